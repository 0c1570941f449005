//! Lists the files that a configuration is read from, so that a program can watch them.

use std::path::{Path, PathBuf};

use crate::hosts::{Directories, Names};
use crate::include;
use crate::plan::{CertificateSource, Plan, Tls};
use crate::source::{Source, Sources};
use crate::tree;

/// Returns the files that [`crate::load`] reads for `path`: the configuration file, included files,
/// the directories of patterns in `include`, and the files of `{file.PATH}`. After an error,
/// returns the files that were found before the error.
pub fn inputs(path: &Path) -> Vec<PathBuf> {
    let mut paths = vec![path.to_owned()];
    let Ok(mut sources) = include::main_file(path) else { return paths };
    // An error in an included file is reported when the configuration is loaded.
    let _ = include::follow(&mut sources);
    for source in sources.files() {
        let name = Path::new(&source.name).file_name().unwrap_or_default();
        paths.push(source.base.join(name));
        paths.extend(placeholders(source));
    }
    paths.append(&mut sources.directories);
    paths
}

/// Returns the directories of `hosts_from` and `users_from`: sites and routes come and go with their
/// entries. Empty if no site has these keys, or if the configuration cannot be read.
pub fn host_directories(path: &Path) -> Vec<PathBuf> {
    let Ok(mut sources) = include::main_file(path) else { return Vec::new() };
    let _ = include::follow(&mut sources);
    patterns(&sources).iter().flat_map(Directories::watched).collect()
}

/// The patterns of directories whose owners may run applications: all patterns, if a user is
/// `{owner}`.
pub(crate) fn owner_patterns(sources: &Sources) -> Vec<(PathBuf, PathBuf)> {
    let names_owners = |source: &Source| {
        ["\"{owner}\"", "'{owner}'"].iter().any(|text| source.text.contains(text))
    };
    if !sources.files().iter().any(names_owners) {
        return Vec::new();
    }
    patterns(sources).into_iter().map(|found| (found.before, found.behind.into())).collect()
}

/// The patterns of `hosts_from` and `users_from`.
fn patterns(sources: &Sources) -> Vec<Directories> {
    let mut found = Vec::new();
    let mut add = |names: Names, table: &tree::Tree<'_>, base: &Path| {
        let pattern = table.get(names.key()).and_then(|pattern| pattern.get_ref().as_str());
        let directories = pattern.and_then(|pattern| Directories::parse(names, pattern, base));
        found.extend(directories);
    };
    let has_pattern = |text: &str| Names::ALL.iter().any(|names| text.contains(names.key()));
    for source in sources.files().iter().filter(|source| has_pattern(&source.text)) {
        let Ok(mut table) = tree::parse_one(source) else { continue };
        for (_, site) in tree::tables_at(&mut table, "site") {
            add(Names::Hosts, site, &source.base);
            for (_, route) in tree::tables_at(site, "route") {
                add(Names::Users, route, &source.base);
            }
        }
    }
    found
}

/// Returns the files of certificates, keys and OCSP responses of a plan.
pub fn certificate_files(plan: &Plan) -> Vec<PathBuf> {
    let of_sites = plan.sites.iter().filter_map(|site| site.tls.as_ref());
    let of_relays = plan.relays.iter().filter_map(|relay| relay.tls.as_ref());
    of_sites.chain(of_relays).flat_map(files_of).collect()
}

fn files_of(tls: &Tls) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = tls.ocsp_staple.iter().cloned().collect();
    if let CertificateSource::Files { certificate, key } = &tls.source {
        files.extend([certificate.clone(), key.clone()]);
    }
    files.extend(tls.clients.iter().map(|clients| clients.ca.clone()));
    files
}

fn placeholders(source: &Source) -> impl Iterator<Item = PathBuf> {
    let after = source.text.split("{file.").skip(1);
    after.filter_map(|rest| rest.split_once('}')).map(|(path, _)| source.base.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_configuration_are_found_even_if_one_has_an_error() {
        let dir = std::env::temp_dir().join(format!("forebay-inputs-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("conf.d")).unwrap();
        let main = dir.join("site.toml");
        let text = "include = [\"conf.d/*.toml\", \"absent.toml\"]\n\
                    [server]\nadmin_token = \"{file.secret/token}\"\n";
        std::fs::write(&main, text).unwrap();
        std::fs::write(dir.join("conf.d/a.toml"), "nonsense {file./run/x}").unwrap();
        let found = inputs(&main);
        for path in ["site.toml", "conf.d/a.toml", "conf.d", "secret/token", "/run/x"] {
            assert!(found.contains(&dir.join(path)), "{path}: {found:?}");
        }
        assert_eq!(inputs(Path::new("/absent/x")), [Path::new("/absent/x")]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

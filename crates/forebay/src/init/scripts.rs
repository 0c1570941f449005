//! Finds scripts in a cgi-bin directory, to name them in an experiment file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_process::beginning;

use super::look::Look;
use super::quote;

/// Script name in the templates, which the name of an existing script replaces.
const PLACEHOLDER: &str = "script.pl";
/// Kind of application in the template of the site.
const PERL: &str = "\"perl-cgi\"";
const PYTHON: &str = "\"python-cgi\"";

/// Number of bytes that are read of a script to find its language.
const FIRST_LINE: u64 = 128;

/// Names of the scripts in a directory, sorted.
#[derive(Debug, Default, PartialEq)]
struct Scripts {
    perl: Vec<String>,
    python: Vec<String>,
}

/// Returns the texts `experiment` and `site` for a script in `directory`: the experiment with the
/// script's name, the site with its language. Takes the first Perl script, or the first Python
/// script if there is no Perl script. A comment in the experiment lists the other scripts of the
/// same language. Without scripts, returns the texts unchanged.
pub fn name(directory: &Path, experiment: &str, site: &str) -> (String, String) {
    let Scripts { perl, python } = find(directory);
    let (scripts, kind) = if perl.is_empty() { (python, PYTHON) } else { (perl, PERL) };
    let Some((first, others)) = scripts.split_first() else {
        return (experiment.to_owned(), site.to_owned());
    };
    let experiment = experiment.replace(PLACEHOLDER, first);
    let site = site.replace(PERL, kind);
    if others.is_empty() {
        return (experiment, site);
    }
    let note =
        format!("# Other scripts in cgi-bin that can take its place: {}\n", others.join(", "));
    (experiment.replacen("[load]\n", &format!("{note}[load]\n"), 1), site)
}

/// Returns true if a Perl script in `directory` asks for taint checks in its `#!` line, as in
/// `#!/usr/bin/perl -wT`.
pub fn has_taint_checks(directory: &Path) -> bool {
    find(directory).perl.iter().any(|name| {
        let line = first_line(&directory.join(name));
        let mut words = line.split_whitespace();
        words.any(|word| {
            word.starts_with('-') && !word.starts_with("--") && word.contains(['T', 't'])
        })
    })
}

/// Returns the names of all Perl and Python scripts in `directory`, sorted.
pub fn all(directory: &Path) -> Vec<String> {
    let Scripts { perl, python } = find(directory);
    let mut all = [perl, python].concat();
    all.sort();
    all
}

fn find(directory: &Path) -> Scripts {
    let mut scripts = Scripts::default();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_file()) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Skip scripts whose names would need escapes in the URL or in the experiment file.
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if !name.bytes().all(is_plain) || name.starts_with('.') {
            continue;
        }
        let line = first_line(&entry.path());
        if name.ends_with(".pl") || line.contains("perl") {
            scripts.perl.push(name);
        } else if name.ends_with(".py") || line.contains("python") {
            scripts.python.push(name);
        }
    }
    scripts.perl.sort();
    scripts.python.sort();
    scripts
}

/// Returns the line that names the interpreter (`#!`). Returns an empty text if there is no such
/// line.
fn first_line(path: &Path) -> String {
    let bytes = beginning(path, FIRST_LINE).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().filter(|line| line.starts_with("#!"));
    line.unwrap_or_default().to_owned()
}

/// Maximum number of files and directories that are looked at.
const MOST_NAMES: usize = 20_000;
/// Maximum depth of directories.
const MOST_DEPTH: usize = 8;
/// Maximum number of scripts that are refused by their path.
const MOST_PATHS: usize = 100;

/// Endings of scripts. All files with such an ending are refused if one of them is a script. Files
/// with other endings may also be for clients, such as `.js`.
const ENDINGS: [&str; 9] = [".bash", ".cgi", ".fcgi", ".lua", ".pl", ".py", ".rb", ".sh", ".tcl"];

/// Scripts that the site does not run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IdleScripts {
    /// Endings of their names.
    pub endings: BTreeSet<String>,
    /// The paths of scripts with other names.
    pub paths: BTreeSet<String>,
    /// The first of them.
    pub first: Option<String>,
}

impl IdleScripts {
    /// Searches the directory that is served at `/`. `skipped` are the endings of scripts that the
    /// site runs, and directories that it does not serve.
    pub fn find(look: &Look<'_>, root: &str, skipped: &[&str]) -> Self {
        let mut found = Self::default();
        let mut left = MOST_NAMES;
        let start = if root == "." { String::new() } else { root.to_owned() };
        let mut dirs = vec![(start.clone(), 0)];
        while let Some((dir, depth)) = dirs.pop() {
            for name in look.names(&dir) {
                if left == 0 {
                    return found;
                }
                left -= 1;
                let below = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
                if name.starts_with('.') || skipped.contains(&&*below) {
                    continue;
                }
                let Ok(metadata) = look.path(&below).symlink_metadata() else { continue };
                if metadata.is_dir() && depth < MOST_DEPTH {
                    dirs.push((below, depth + 1));
                } else if metadata.is_file() {
                    let path = below[start.len()..].trim_start_matches('/');
                    found.add(look, &below, path, (metadata.mode() & 0o111 != 0, skipped));
                }
            }
        }
        found
    }

    fn add(&mut self, look: &Look<'_>, file: &str, path: &str, how: (bool, &[&str])) {
        let (is_executable, skipped) = how;
        let name = path.rsplit('/').next().unwrap_or_default();
        let ending = name.rfind('.').map_or("", |at| &name[at..]);
        let is_cgi = ending.eq_ignore_ascii_case(".cgi");
        if skipped.contains(&ending) || !is_executable && !is_cgi {
            return;
        }
        if !(look.starts_with(file, b"#!") || is_cgi && is_executable) {
            return;
        }
        self.first.get_or_insert_with(|| file.to_owned());
        if ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)) {
            self.endings.insert(ending.to_owned());
        } else if self.paths.len() < MOST_PATHS {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
            if path.bytes().all(is_plain) {
                self.paths.insert(format!("/{path}"));
            }
        }
    }

    /// Returns the keys of routes that refuse the scripts.
    pub fn refusals(&self) -> Vec<String> {
        let list = |texts: &BTreeSet<String>| {
            texts.iter().map(|text| quote::toml(text)).collect::<Vec<_>>().join(", ")
        };
        let lists = [("suffix", &self.endings), ("paths", &self.paths)];
        let lists = lists.iter().filter(|(_, texts)| !texts.is_empty());
        lists
            .map(|(key, texts)| format!("{key} = [{}]\nrespond = {{ status = 404 }}", list(texts)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERIMENT: &str = "[load]\npath = \"/kept/script.pl\"\n";

    #[test]
    fn scripts_that_exist_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let named = || name(dir.path(), EXPERIMENT, "kind = \"perl-cgi\"");
        assert_eq!(named().0, EXPERIMENT, "there is none");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("report.py", "");
        write("README", "perl");
        let (experiment, site) = named();
        assert_eq!(experiment, "[load]\npath = \"/kept/report.py\"\n");
        assert_eq!(site, "kind = \"python-cgi\"");
        write("zeit.cgi", "#!/usr/bin/perl -w\nprint 1;");
        write("b b.pl", "");
        write("list.pl", "");
        let (experiment, site) = named();
        assert!(experiment.contains("/kept/list.pl"), "{experiment}");
        assert!(experiment.starts_with("# Other scripts in cgi-bin"), "{experiment}");
        assert!(experiment.contains(": zeit.cgi\n"), "{experiment}");
        assert_eq!(site, "kind = \"perl-cgi\"");
    }
}

//! Sites of directories: `hosts_from = "/srv/*/htdocs"` makes a site of each directory that the
//! pattern matches. The name in place of `*` is the host, and replaces `{host}` in all texts of the
//! site.
//!
//! So no name that a client sends becomes part of a path: Forebay looks the client's host up among
//! the names that it has found on the disk. Forebay loads the configuration again when directories
//! come or go.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use crate::error::{Problem, reason};
use crate::files;
use crate::source::Sources;
use crate::tree::{self, Node, Tree};

/// The largest number of sites of one pattern.
const MAX_SITES: usize = 100_000;

/// A pattern of directories: `before/*/behind`.
pub(crate) struct HostDirectories {
    /// The directory whose entries are hosts.
    pub before: PathBuf,
    /// The rest of the pattern, without a slash at its ends. May be empty.
    pub behind: String,
}

impl HostDirectories {
    /// Reads a pattern. `base` is the directory of relative patterns. Returns `None` if the pattern
    /// does not have exactly one `*`, which is a whole name.
    pub(crate) fn parse(pattern: &str, base: &Path) -> Option<Self> {
        let (before, behind) = pattern.split_once('*')?;
        let is_name = (before.is_empty() || before.ends_with('/'))
            && (behind.is_empty() || behind.starts_with('/'));
        let is_plain = |part: &str| !part.contains(['*', '?', '[', '\0']);
        let has_parents = behind.split('/').any(|part| matches!(part, "." | ".."));
        if !is_name || !is_plain(before) || !is_plain(behind) || has_parents {
            return None;
        }
        Some(Self { before: base.join(before), behind: behind.trim_matches('/').to_owned() })
    }

    /// Returns the hosts whose directories exist, in alphabetical order.
    fn hosts(&self) -> std::io::Result<Vec<String>> {
        let mut hosts = files::names(&self.before, MAX_SITES)?;
        hosts.retain(|host| is_host(host));
        if !self.behind.is_empty() {
            hosts.retain(|host| {
                let directory = self.before.join(host).join(&self.behind);
                matches!(files::kind(&directory), Ok(files::Kind::Directory))
            });
        }
        Ok(hosts)
    }

    /// Returns the directories whose changes add or remove sites.
    pub(crate) fn watched(&self) -> Vec<PathBuf> {
        let names = files::names(&self.before, MAX_SITES).unwrap_or_default();
        let directories = names.iter().filter(|name| is_host(name));
        let incomplete = directories
            .map(|name| self.before.join(name))
            .filter(|directory| !self.behind.is_empty() && !directory.join(&self.behind).is_dir());
        std::iter::once(self.before.clone()).chain(incomplete).collect()
    }
}

/// Returns true if the name of a directory is a host name in lower case. All other directories, such
/// as `lost+found` and `.git`, are no sites.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 253
        && name.bytes().all(|byte| is_plain(byte) || byte == b'.')
        && name.split('.').all(is_label)
}

/// Replaces each site with `hosts_from` by a site for each directory. A host that another site names
/// stays with that site.
pub(crate) fn expand(tree: &mut Tree<'_>, sources: &Sources) -> Result<(), Vec<Problem>> {
    let has_pattern = |(_, site): (_, &mut Tree<'_>)| site.contains_key("hosts_from");
    if !tree::tables_at(tree, "site").any(has_pattern) {
        return Ok(());
    }
    let mut taken: HashSet<String> = HashSet::new();
    for (_, site) in tree::tables_at(tree, "site") {
        let hosts = site.get("hosts").and_then(tree::texts).unwrap_or_default();
        taken.extend(hosts.iter().map(|(_, host)| host.to_ascii_lowercase()));
    }
    let Some(DeValue::Array(all)) = tree.get_mut("site").map(Spanned::get_mut) else {
        return Ok(());
    };
    let (mut sites, mut problems) = (Vec::new(), Vec::new());
    for site in std::mem::replace(all, DeArray::new()) {
        match expanded(&site, sources, &mut taken) {
            Ok(Some(expanded)) => sites.extend(expanded),
            Ok(None) => sites.push(site),
            Err(problem) => problems.push(problem),
        }
    }
    sites.into_iter().for_each(|site| all.push(site));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns the sites of the directories of one site. `None` if it has no `hosts_from`.
fn expanded<'s>(
    site: &Node<'s>,
    sources: &Sources,
    taken: &mut HashSet<String>,
) -> Result<Option<Vec<Node<'s>>>, Problem> {
    let Some(table) = site.get_ref().as_table() else { return Ok(None) };
    let Some(pattern) = table.get("hosts_from") else { return Ok(None) };
    let span = pattern.span();
    let help = "write a path in which one name is `*`: hosts_from = \"/srv/*/htdocs\"";
    let directories = pattern
        .get_ref()
        .as_str()
        .and_then(|text| HostDirectories::parse(text, &sources.at(span.start).base))
        .ok_or_else(|| Problem::new(&span, "this is no pattern of directories").help(help))?;
    if let Some((key, _)) = table.get_key_value("hosts") {
        return Err(Problem::new(&key.span(), "both `hosts` and `hosts_from`")
            .also(&span, "the names of these directories are the hosts")
            .help("leave one of the two out, or write two sites"));
    }
    let hosts = directories.hosts().map_err(|error| {
        let place = directories.before.display();
        Problem::new(&span, format!("cannot look into {place}: {}", reason(&error)))
            .help("give an existing directory that Forebay may read")
    })?;
    let sites = hosts.into_iter().filter(|host| taken.insert(host.clone())).map(|host| {
        let mut site = site.clone();
        if let DeValue::Table(table) = site.get_mut() {
            tree::each_text(table, &mut |_, text| {
                if text.contains("{host}") {
                    *text = text.replace("{host}", &host).into();
                }
            });
            tree::insert(table, &span, "hosts", tree::text(&span, host));
        }
        site
    });
    Ok(Some(sites.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_hosts() {
        for name in ["example.org", "a", "xn--bcher-kva.example", "10.0.0.1", "a-b.c"] {
            assert!(is_host(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".git",
            "a..b",
            "a.",
            "-a",
            "a-",
            "a.-b",
            "A.org",
            "a_b",
            "a b",
            "a/b",
            "lost+found",
            "*.a",
            "a\0",
            "\u{fc}.org",
            "{host}",
            "a:80",
        ] {
            assert!(!is_host(name), "{name}");
        }
        assert!(!is_host(&"a".repeat(64)));
    }

    #[test]
    fn a_pattern_has_one_whole_name() {
        let parse = |pattern: &str| HostDirectories::parse(pattern, Path::new("/base"));
        let found = parse("/srv/*/htdocs/").unwrap();
        assert_eq!((found.before.as_path(), &*found.behind), (Path::new("/srv"), "htdocs"));
        assert_eq!(parse("sites/*").unwrap().before, Path::new("/base/sites"));
        for pattern in ["/srv", "/srv/a*", "/srv/*a", "/srv/*/*", "/srv/**", "/s?v/*", "/srv/*/.."]
        {
            assert!(parse(pattern).is_none(), "{pattern}");
        }
    }
}

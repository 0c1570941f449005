//! Finds scripts whose source a site would send as a file.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use super::look::Look;
use super::quote;

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

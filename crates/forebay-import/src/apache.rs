//! Translates configurations of Apache httpd: <https://httpd.apache.org/docs/2.4/>.

mod access;
mod around;
mod bases;
mod conditions;
mod expressions;
mod fastcgi;
mod fields;
mod globs;
mod handlers;
mod htaccess;
mod includes;
mod listeners;
mod media;
mod mod_perl;
mod mono;
mod mounts;
mod named_files;
mod names;
mod networks;
mod pages;
mod place;
mod proxies;
mod regions;
mod rewrites;
mod runners;
mod script_alias;
mod sections;
mod syntax;
mod targets;
mod unread;
mod vhosts;
mod wsgi;

use std::path::{Path, PathBuf};

use crate::draft::Draft;
use crate::keys::Keys;
use crate::source::ImportError;
pub use htaccess::TOO_MANY;
pub use mounts::translate as translate_mounts;
use syntax::{Directive, is, line};

/// The state of a translation.
struct Cx<'a> {
    keys: &'a Keys,
    /// The directives outside of virtual hosts.
    main: &'a [Directive],
    /// Base directory of relative paths (`ServerRoot`).
    root: PathBuf,
    draft: Draft,
    /// The directories that the sites serve.
    dirs: Vec<String>,
    /// The `Proxy` sections that were compared with a backend. The flag is true if the section
    /// applies to a backend.
    proxies: Vec<(Directive, bool)>,
    /// True if access files apply to scripts that no module of Apache runs.
    runs_php: bool,
}

impl Cx<'_> {
    /// Adds a note about a directive without a full translation. Marks the directive as read, so
    /// that the import adds no second note. Returns the note as a comment for the draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        directive.settle();
        self.draft.notes.add(&directive.place, &line(directive), next)
    }

    /// Adds notes on the directives that the translation does not read. Returns the notes as
    /// comments.
    fn note_unread(&mut self, block: &[Directive]) -> Vec<String> {
        // A translated `Limit` is marked as read only later.
        let is_limit = |directive: &Directive| access::refused_methods(directive).is_some();
        let unread = block.iter().filter(|directive| !names::is_known(&directive.name));
        let unread =
            unread.filter(|directive| !is_limit(directive) && !mod_perl::only_preloads(directive));
        let unread: Vec<&Directive> = unread.collect();
        let notes = unread.iter().map(|found| self.note(found, names::next_step(&found.name)));
        let mut notes: Vec<_> = notes.collect();
        for section in block.iter().filter(|directive| is_plain_section(directive)) {
            notes.extend(self.note_unread(section.inside()));
        }
        notes
    }

    /// Returns a path as an absolute path without a final slash. A relative path begins at `root`.
    fn path(&self, path: &str) -> String {
        let path = crate::files::below(&self.root, path);
        if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path }
    }
}

/// Returns true for a section with a plain path, such as `<Directory /srv>`. Returns false for a
/// path with `~`, `*`, `?` or `[`: the module `expressions` adds the notes for such sections.
fn is_plain_section(directive: &Directive) -> bool {
    ["Directory", "Location", "Files", "FilesMatch", "Proxy"]
        .iter()
        .any(|name| is(directive, name) && directive.arg(0) != "~")
        && !directive.arg(0).contains(['*', '?', '['])
}

pub fn translate(file: &Path, keys: &Keys) -> Result<Draft, ImportError> {
    let main = syntax::read(file)?;
    let root = main.iter().find(|directive| is(directive, "ServerRoot"));
    let root = root.map_or("/etc/apache2", |root| root.arg(0));
    let mut cx = Cx {
        keys,
        main: &main,
        root: root.into(),
        draft: Draft::default(),
        dirs: Vec::new(),
        proxies: Vec::new(),
        runs_php: false,
    };
    if main.is_empty() {
        let message = format!("{} has no directives", file.display());
        return Err(ImportError::new(
            message,
            "give apache2.conf, httpd.conf, or the file of a site",
        ));
    }
    vhosts::translate(&mut cx);
    Ok(cx.draft)
}

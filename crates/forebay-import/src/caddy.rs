//! Translates Caddyfiles: <https://caddyserver.com/docs/caddyfile>.

mod addresses;
mod around;
mod block;
mod certificates;
mod expression;
mod files;
mod layers;
mod matchers;
mod needless;
mod on_demand;
mod options;
mod rewrites;
mod servers;
mod sites;
mod spelling;
mod syntax;
mod unread;

use std::path::{Path, PathBuf};

use crate::draft::Draft;
use crate::keys::Keys;
use crate::source::ImportError;
use syntax::Directive;

/// The state of a translation.
struct Cx<'a> {
    keys: &'a Keys,
    /// Base directory of relative paths.
    dir: PathBuf,
    draft: Draft,
    /// The host of the present site, if it has exactly one.
    host: Option<String>,
    /// The expressions for paths that matchers of the present site exclude, in all spellings.
    excluded: Vec<String>,
    /// True if the sites trust the addresses that proxies send.
    trusts_proxies: bool,
    /// True if Caddy finds the client's address in a way that Forebay does not have.
    has_other_clients: bool,
}

impl Cx<'_> {
    /// Adds a note about a line without a full translation. Marks the line and its block as read,
    /// so that the import adds no further notes on them. Returns the note as a comment for the
    /// draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        directive.settle_all();
        self.note_site(directive, next)
    }

    /// Adds a note on the address of a site. Does not mark the lines of the site as read.
    fn note_site(&mut self, directive: &Directive, next: impl Into<String>) -> String {
        self.draft.notes.add(&directive.place, &line(directive), next)
    }
}

fn line(directive: &Directive) -> String {
    let text = format!("{} {}", directive.name, directive.args.join(" "));
    let text = text.trim();
    if directive.block.is_some() { format!("{text} {{ ... }}") } else { text.to_owned() }
}

pub fn translate(file: &Path, keys: &Keys) -> Result<Draft, ImportError> {
    let lines = syntax::read(file)?;
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let dir = absolute.parent().unwrap_or(Path::new("/")).to_owned();
    let mut cx = Cx {
        keys,
        dir,
        draft: Draft::default(),
        host: None,
        excluded: Vec::new(),
        trusts_proxies: false,
        has_other_clients: false,
    };
    if lines.is_empty() {
        let message = format!("{} has no site", file.display());
        return Err(ImportError::new(message, "give a Caddyfile with at least one address"));
    }
    sites::translate(&mut cx, &lines);
    Ok(cx.draft)
}

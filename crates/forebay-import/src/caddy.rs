//! Translates Caddyfiles: <https://caddyserver.com/docs/caddyfile>.

mod addresses;
mod around;
mod block;
mod complement;
mod expression;
mod files;
mod fill;
mod layers;
mod matchers;
mod on_demand;
mod servers;
mod sites;
mod syntax;

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
}

impl Cx<'_> {
    /// Adds a note: Forebay has no full translation of this line. Returns the note as a comment for
    /// the draft.
    fn note(&mut self, directive: &Directive, next: impl Into<String>) -> String {
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
    let mut cx = Cx { keys, dir, draft: Draft::default() };
    if lines.is_empty() {
        let message = format!("{} has no site", file.display());
        return Err(ImportError::new(message, "give a Caddyfile with at least one address"));
    }
    sites::translate(&mut cx, &lines);
    Ok(cx.draft)
}

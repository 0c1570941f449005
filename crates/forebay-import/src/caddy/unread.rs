//! Finds the lines that no translator has read.

use super::needless::is_needless;
use super::syntax::Directive;
use super::{Cx, line};
use crate::unread::{self, Unread};

/// Adds notes on the lines without a translation in a block and in the blocks inside it. `around`
/// is the name of the line that has the block. Returns the notes as comments.
pub fn report(cx: &mut Cx<'_>, around: &str, block: &[Directive]) -> Vec<String> {
    let mut found = Vec::new();
    within(around, block, &mut found);
    unread::add(&mut cx.draft.notes, found)
}

fn within(around: &str, block: &[Directive], found: &mut Vec<Unread>) {
    // A matcher only defines a name. The lines that use it are translated or reported.
    for directive in block.iter().filter(|directive| !directive.name.starts_with('@')) {
        let name = directive.name.as_str();
        if directive.is_settled() {
            within(name, directive.inside(), found);
        } else if !is_needless(around, name) {
            found.push(Unread::new(directive, line(directive), next_step(around, name)));
        }
    }
}

/// Returns the next step for a line without a translation.
fn next_step(around: &str, name: &str) -> &'static str {
    match (around, name) {
        ("tls", _) => "see `tls` and `acme` of a site in the reference, or remove the line",
        ("header", "match") => "the fields are set in all replies: write a route for these replies",
        ("encode", "match") => "write the media types in `types` of `compress`",
        ("request_body", _) => "see `timeouts` of a route, or remove the line",
        (_, "bind" | "tls") => "a site has one such line: the first one is used",
        _ => {
            "Forebay has no such line: look for a key in the configuration reference, or remove it"
        }
    }
}

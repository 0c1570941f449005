//! Reports the directives that no translator has read, so that no line is lost silently.

use super::Cx;
use super::names;
use super::sections::is_below;
use super::syntax::{Directive, is};

/// The next step for a directive that is translated in other sections.
const NEXT: &str = "this line has no translation here: write it as keys of the routes";

/// Adds a note on each directive that is not settled, needs a key in Forebay, and has no note.
/// Returns the notes as comments.
pub fn report(cx: &mut Cx<'_>, htaccess: &[(String, Directive)]) -> Vec<String> {
    let main = cx.main;
    let mut comments = Vec::new();
    within(cx, main, &mut comments);
    for (_, directive) in htaccess {
        within(cx, std::slice::from_ref(directive), &mut comments);
    }
    comments
}

fn within(cx: &mut Cx<'_>, block: &[Directive], comments: &mut Vec<String>) {
    for directive in block {
        if is(directive, "VirtualHost") {
            // A note on the host is not about its lines.
            within(cx, directive.inside(), comments);
            continue;
        }
        if directive.is_settled() || is_unused(cx, directive) {
            continue;
        }
        if has_note(cx, directive) || has_no_effect(directive) {
            // The note on a section is about all of its lines.
        } else if directive.block.is_some() {
            within(cx, directive.inside(), comments);
        } else {
            let next = match names::next_step(&directive.name) {
                names::UNKNOWN => NEXT,
                next => next,
            };
            comments.push(cx.note(directive, next));
        }
    }
}

fn has_note(cx: &Cx<'_>, directive: &Directive) -> bool {
    let place = &directive.place;
    let notes = &cx.draft.notes.0;
    notes.iter().any(|note| note.line == place.line && *note.file == *place.file)
}

/// Returns true for a section about a directory that no site serves.
fn is_unused(cx: &Cx<'_>, directive: &Directive) -> bool {
    if !is(directive, "Directory") || !super::is_plain_section(directive) {
        return false;
    }
    let own = cx.path(directive.arg(0));
    !cx.dirs.iter().any(|dir| is_below(dir, &own) || is_below(&own, dir))
}

/// Returns true for a line that only states a default, or that changes no reply.
fn has_no_effect(directive: &Directive) -> bool {
    let is_off = directive.arg(0).eq_ignore_ascii_case("off");
    let switches = ["ProxyRequests", "RewriteEngine", "ProxyErrorOverride", "XBitHack"];
    names::is_needless(&directive.name)
        || is_off && switches.iter().any(|name| is(directive, name))
        || is(directive, "UserDir") && directive.arg(0).eq_ignore_ascii_case("disabled")
}

#[cfg(test)]
mod tests;

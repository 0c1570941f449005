//! Reports the directives that no translator has read, so that no line is lost silently.

use std::collections::HashSet;

use super::Cx;
use super::names;
use super::sections::is_below;
use super::syntax::{Directive, is};

/// The next step for a directive that is translated in other sections.
const NEXT: &str = "this line has no translation here: write it as keys of the routes";

/// Adds a note on each directive that is not marked as read, needs a key in Forebay, and has no
/// note. Returns the notes as comments.
pub fn report(cx: &mut Cx<'_>, htaccess: &[(String, Directive)]) -> Vec<String> {
    let main = cx.main;
    let mut comments = Vec::new();
    let notes = cx.draft.notes.0.iter().map(|note| (note.file.clone(), note.line));
    let noted: HashSet<(String, usize)> = notes.collect();
    within(cx, &noted, main, &mut comments);
    for (_, directive) in htaccess {
        within(cx, &noted, std::slice::from_ref(directive), &mut comments);
    }
    comments
}

/// Adds notes on the lines of a block that the translation has not read. `noted` has the lines that
/// already have a note.
fn within(
    cx: &mut Cx<'_>,
    noted: &HashSet<(String, usize)>,
    block: &[Directive],
    comments: &mut Vec<String>,
) {
    for directive in block {
        if is(directive, "VirtualHost") {
            // A note on a host is not about the lines inside the host, so also look at these lines.
            within(cx, noted, directive.inside(), comments);
            continue;
        }
        if directive.is_settled() || is_unused(cx, directive) {
            continue;
        }
        let place = &directive.place;
        if noted.contains(&(place.file.to_string(), place.line)) || has_no_effect(directive) {
            // The note on a section is about all of its lines, so skip these lines.
        } else if directive.block.is_some() {
            within(cx, noted, directive.inside(), comments);
        } else {
            let next = match names::next_step(&directive.name) {
                names::UNKNOWN => NEXT,
                next => next,
            };
            comments.push(cx.note(directive, next));
        }
    }
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

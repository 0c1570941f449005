//! Explains the changes of a route to the bodies of its replies.

use forebay_conf::{Filters, ReplaceEscape};
use forebay_net::head::Request;
use forebay_net::template::Escape;

use super::Explanation;

/// Appends a line if the route evaluates commands in pages (SSI). Appends the texts that the route
/// replaces, with the values of this request.
pub(super) fn append(filters: &Filters, request: &Request, text: &mut Explanation) {
    if let Some(ssi) = &filters.ssi {
        let most = ssi.max_size;
        let line = format!("commands of pages are evaluated, up to {most} bytes with includes");
        text.item("ssi", line.as_bytes());
    }
    let Some(replace) = &filters.replace else { return };
    let escape = match replace.escape {
        ReplaceEscape::Html => Escape::Html,
        ReplaceEscape::Json => Escape::Json,
    };
    let lines = replace.texts.iter().map(|(from, to)| {
        let mut line = from.clone().into_bytes();
        line.extend_from_slice(b" -> ");
        request.fill(to, escape, &mut line);
        line
    });
    text.list("replace", lines);
}

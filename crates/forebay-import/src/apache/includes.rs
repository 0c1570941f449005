//! Translates server-side includes: `Options +Includes` with `AddOutputFilter INCLUDES`,
//! `AddHandler server-parsed` or `XBitHack`.

use super::Cx;
use super::regions::has_option;
use super::sections::{all, last};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::value::{Table, Value};

/// Adds the key `ssi` to a route whose pages Apache evaluates.
pub fn includes(cx: &mut Cx<'_>, layers: &[&[Directive]], route: &mut DraftRoute) {
    let is_off = |bit: &&Directive| bit.arg(0).eq_ignore_ascii_case("off");
    let bit = last(layers, "XBitHack").filter(|bit| !is_off(bit));
    let names_filter = |directive: &&Directive| {
        let filters = directive.arg(0).split(';');
        filters.into_iter().any(|name| name.eq_ignore_ascii_case("INCLUDES"))
    };
    let filters = ["AddOutputFilter", "SetOutputFilter"].map(|name| all(layers, name));
    let filter = filters.into_iter().flatten().find(names_filter);
    let handler = all(layers, "AddHandler");
    let mut handler =
        handler.into_iter().filter(|handler| handler.arg(0).eq_ignore_ascii_case("server-parsed"));
    let Some(directive) = filter.or_else(|| handler.next()).or(bit) else { return };
    if !has_option(layers, "Includes") && !has_option(layers, "IncludesNOEXEC") {
        return;
    }
    if !cx.keys.route("ssi") {
        let next = "write the text into the pages";
        return route.comments.push(cx.note(directive, next));
    }
    let is_full = bit.is_some_and(|bit| bit.arg(0).eq_ignore_ascii_case("full"));
    let value = if is_full {
        Value::from(Table::default().with("last_modified", true))
    } else {
        Value::from(true)
    };
    route.keys.set("ssi", value);
}

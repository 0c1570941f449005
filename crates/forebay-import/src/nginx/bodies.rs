//! Translates changes to the bodies of replies: `sub_filter` and `ssi`.

use super::Cx;
use super::scope::Scope;
use super::syntax::Directive;
use super::variables::Variables;
use crate::draft::DraftRoute;
use crate::value::{Table, Value};

/// Adds the keys for changes to bodies of a route.
pub fn bodies(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let is_fixed = ["redirect", "respond"].iter().any(|key| route.keys.get(key).is_some());
    if !is_fixed {
        replace(cx, variables, route);
        includes(cx, variables.scope, route);
    }
}

fn includes(cx: &mut Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let Some(directive) = scope.nearest("ssi").filter(|_| scope.is_on("ssi")) else { return };
    if !cx.keys.route("ssi") {
        let next = "write the text into the pages";
        return route.comments.push(cx.note(directive, next));
    }
    let mut table = Table::default();
    table.set_some("types", types(scope, "ssi_types"));
    if scope.is_on("ssi_last_modified") {
        table.set("last_modified", true);
    }
    let value = if table.is_empty() { Value::from(true) } else { Value::from(table) };
    route.keys.set("ssi", value);
}

/// Translates `sub_filter`. nginx ignores case, and replaces each text once by default.
fn replace(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, route: &mut DraftRoute) {
    let scope = variables.scope;
    let filters = scope.all("sub_filter");
    if filters.is_empty() {
        return;
    }
    if !cx.keys.route("replace") {
        let next = "replace the text in the application";
        return filters.iter().for_each(|filter| route.comments.push(cx.note(filter, next)));
    }
    let (mut texts, mut has_placeholders) = (Table::default(), false);
    for filter in filters {
        match text_of(variables, filter) {
            Ok((text, to)) => {
                has_placeholders |= super::variables::has_variables(filter.arg(1));
                texts.set(&text, to);
            }
            Err(why) => {
                let next = format!("{why}: write the text in `replace`");
                route.comments.push(cx.note(filter, next));
            }
        }
    }
    if texts.is_empty() {
        return;
    }
    let mut table = Table::default().with("texts", texts);
    if let Some(types) = types(scope, "sub_filter_types") {
        table.set("types", types);
    }
    if scope.value("sub_filter_once") != Some("off") {
        table.set("once", true);
    }
    table.set("ignore_case", true);
    if scope.is_on("sub_filter_last_modified") && !has_placeholders {
        table.set("last_modified", true);
    }
    route.keys.set("replace", table);
}

fn text_of(variables: &Variables<'_, '_>, filter: &Directive) -> Result<(String, String), String> {
    let text = filter.arg(0);
    if super::variables::has_variables(text) {
        return Err("a text to find has no placeholders".into());
    }
    let to = variables.fill(filter.arg(1)).map_err(|name| format!("{name} has no placeholder"))?;
    Ok((text.to_owned(), to))
}

/// Returns the media types of a directive such as `sub_filter_types`. Adds `text/html`, because
/// nginx always changes HTML. Returns `None` if there is no directive, or if it names only
/// `text/html`.
fn types(scope: &Scope<'_>, name: &str) -> Option<Vec<String>> {
    let directive = scope.nearest(name)?;
    if directive.args.iter().any(|kind| kind == "*") {
        return Some(vec!["*".to_owned()]);
    }
    let mut types = vec!["text/html".to_owned()];
    types.extend(directive.args.iter().filter(|kind| *kind != "text/html").cloned());
    (types.len() > 1).then_some(types)
}

//! Translates `proxy_pass http://$NAME`, if a `map` chooses the server.

use super::here::Here;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::{Cx, backends, conditions};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;

/// Maximum number of routes for one `proxy_pass`.
const MOST: usize = 32;

/// Returns a route for each value of a `map` that sets the variable of `proxy_pass`, as in
/// `proxy_pass http://$backend`. Returns `None` if no `map` sets the variable, or if the `map` has
/// no translation.
pub fn routes<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    pass: &Directive,
    base: &DraftRoute,
) -> Option<Vec<DraftRoute>> {
    let (scheme, name) = pass.arg(0).split_once("://$").filter(|_| pass.name == "proxy_pass")?;
    if cx.changed.contains(&format!("${name}")) {
        return None;
    }
    let map = cx.http.every("map").find(|map| map.arg(1).strip_prefix('$') == Some(name))?;
    let variables = here.variables(server);
    let mut routes = Vec::new();
    for (matcher, value) in values(cx, server, map)? {
        let mut route = base.clone();
        route.matcher = match matcher {
            Some(matcher) => base.matcher.and(&matcher)?,
            None => base.matcher.clone(),
        };
        let url = format!("{scheme}://{value}");
        backends::proxy_to(cx, &variables, here, &url, &mut route).ok()?;
        routes.push(route);
    }
    map.settle_all();
    Some(routes)
}

/// Returns each value of a `map` with its requests, in nginx's order. The default value is the
/// last, and has no condition. Returns `None` if the `map` has no translation.
fn values<'m>(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    map: &'m Directive,
) -> Option<Vec<(Option<Matcher>, &'m str)>> {
    let (mut exact, mut expressions, mut default) = (Vec::new(), Vec::new(), None);
    for entry in map.inside() {
        let (key, value) = (entry.name.as_str(), entry.arg(0));
        if value.is_empty() || value.contains('$') {
            return None;
        }
        let variable = map.arg(0);
        match key {
            "default" => default = Some((None, value)),
            "volatile" | "hostnames" | "include" => return None,
            "" => exact
                .push((Some(conditions::requests_with(cx, server, (variable, "=", ""))?), value)),
            _ => {
                let (operator, text) = match (key.strip_prefix("~*"), key.strip_prefix('~')) {
                    (Some(text), _) => ("~*", text.to_owned()),
                    (None, Some(text)) => ("~", text.to_owned()),
                    // In nginx, a `map` ignores the case of texts.
                    (None, None) => ("~*", format!("^{}$", regex_syntax::escape(key))),
                };
                let found = conditions::requests_with(cx, server, (variable, operator, &text))?;
                let is_expression = key.starts_with('~');
                let list = if is_expression { &mut expressions } else { &mut exact };
                list.push((Some(found), value));
            }
        }
    }
    exact.append(&mut expressions);
    exact.push(default?);
    (exact.len() <= MOST).then_some(exact)
}

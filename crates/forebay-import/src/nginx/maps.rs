//! Translates addresses such as `proxy_pass http://$NAME` and `fastcgi_pass $NAME`, if a `map`, or
//! `set` in `if` blocks, chooses the value of the variable.

use super::here::Here;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::variables::{Piece, has_variables, split};
use super::{Cx, backends, conditions};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;

/// Maximum number of routes for one `proxy_pass`.
const MOST: usize = 32;

/// Returns a route for each value of the first variable in an address that has no placeholder.
/// Returns `None` if nothing sets the variable, or if one of its values has no translation.
pub fn routes<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    pass: &Directive,
    base: &DraftRoute,
) -> Option<Vec<DraftRoute>> {
    if !matches!(pass.name.as_str(), "proxy_pass" | "fastcgi_pass") {
        return None;
    }
    let variables = here.variables(server);
    let name = split(pass.arg(0)).into_iter().find_map(|piece| match piece {
        Piece::Variable(name) => variables.fill(&format!("${{{name}}}")).is_err().then_some(name),
        Piece::Text(_) => None,
    })?;
    let (choices, sources) = if cx.changed.contains(&format!("${name}")) {
        set_in_conditions(cx, server, here, name)?
    } else {
        let map = cx.http.every("map").find(|map| map.arg(1).strip_prefix('$') == Some(name))?;
        (values(cx, server, map)?, vec![map])
    };
    let mut routes = Vec::new();
    for (matcher, value) in choices {
        let mut route = base.clone();
        route.matcher = match matcher {
            Some(matcher) => base.matcher.and(&matcher)?,
            None => base.matcher.clone(),
        };
        let piece = |piece: Piece<'_>| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Variable(other) if other == name => value.to_owned(),
            Piece::Variable(other) => format!("${{{other}}}"),
        };
        let text: String = split(pass.arg(0)).into_iter().map(piece).collect();
        if text.is_empty() || text.ends_with("://") {
            return None;
        }
        match pass.name.as_str() {
            "proxy_pass" => backends::proxy_to(cx, &variables, here, (&text, true), &mut route),
            _ => {
                let pass = pass.with_words("fastcgi_pass", vec![text]);
                backends::fastcgi(cx, &variables, here, &pass, &mut route)
            }
        }
        .ok()?;
        routes.push(route);
    }
    sources.into_iter().for_each(Directive::settle_all);
    Some(routes)
}

type Choices<'m> = Vec<(Option<Matcher>, &'m str)>;

/// Returns the values of a variable that one `set` of the location sets, and that later `if` blocks
/// with only `set` change, with the lines that set them. The last block that applies counts, so its
/// value comes first.
fn set_in_conditions<'a>(
    cx: &Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    name: &str,
) -> Option<(Choices<'a>, Vec<&'a Directive>)> {
    let is_set = |directive: &&Directive| {
        directive.name == "set" && directive.arg(0).strip_prefix('$') == Some(name)
    };
    let scope = &here.location.scope;
    if scope.every("set").filter(is_set).count() != 1 {
        return None;
    }
    let (mut choices, mut sources) = (Vec::new(), Vec::new());
    for directive in scope.own().iter().rev() {
        if is_set(&directive) {
            choices.push((None, directive.arg(1)));
            sources.push(directive);
            return Some((choices, sources));
        }
        let Some(set) = directive.inside().iter().rfind(is_set) else { continue };
        if directive.name != "if" || !conditions::only_sets(directive) {
            return None;
        }
        choices.push((Some(conditions::condition(cx, server, directive)?), set.arg(1)));
        sources.push(directive);
    }
    None
}

/// Returns each value of a `map` with its requests, in nginx's order. The default value is the
/// last, and has no condition. Returns `None` if the `map` has no translation.
fn values<'m>(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    map: &'m Directive,
) -> Option<Choices<'m>> {
    let (mut exact, mut expressions, mut default) = (Vec::new(), Vec::new(), None);
    for entry in map.inside() {
        let (key, value) = (entry.name.as_str(), entry.arg(0));
        if has_variables(value) {
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

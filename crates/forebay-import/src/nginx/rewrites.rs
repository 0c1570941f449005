//! Translates `return`, `rewrite` and `try_files`.

use super::Cx;
use super::files_of::extension;
use super::here::{EarlyStep, Here, OwnContent, Phase};
use super::locations::{Location, LocationKind};
use super::scope::Scope;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::variables::{Variables, has_variables};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::{self, PatternConditions, Use, as_regex, classify, negative_lookahead};
use crate::template::{self, redirect_target, without_query};
use crate::value::Table;

/// Returns the route for `return`. If Forebay cannot express the reply, the route is closed.
pub fn returned(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    directive: &Directive,
    route: DraftRoute,
) -> DraftRoute {
    let (first, second) = (directive.arg(0), directive.arg(1));
    let status: Option<u64> = first.parse().ok();
    match status {
        Some(status @ (301 | 302 | 303 | 307 | 308)) if !second.is_empty() => {
            redirected(cx, variables, directive, (second, status), route)
        }
        None => redirected(cx, variables, directive, (first, 302), route),
        Some(status) if !(200..=599).contains(&status) => {
            let comment = cx.note(directive, "write a status from 200 to 599 in `respond`");
            route.closed(comment)
        }
        Some(status) if second.is_empty() || matches!(status, 204 | 205 | 304) => {
            route.respond(status)
        }
        Some(status) => {
            if has_variables(second) {
                let comment =
                    cx.note(directive, "a fixed reply has no variables: write a text in `respond`");
                let mut route = route.respond(status);
                route.comments.push(comment);
                return route;
            }
            let kind = content_type(variables.scope);
            let mut route = route.respond(status);
            let text: String = second.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
            route.keys.set("respond", fixed(status, &text, kind.as_deref()));
            route
        }
    }
}

/// Returns the value of the key `respond` with a status, a body, and the media type that nginx
/// would send.
fn fixed(status: u64, body: &str, kind: Option<&str>) -> Table {
    let mut table = Table::default().with("status", status).with("body", body);
    table.set_some("content_type", kind);
    table
}

/// Returns the media type of a fixed reply. Returns `None` if the type is Forebay's default, or if
/// it has variables.
fn content_type(scope: &Scope<'_>) -> Option<String> {
    let fields = scope.all("add_header");
    let field = fields.iter().find(|field| field.arg(0).eq_ignore_ascii_case("content-type"));
    let kind = field.map(|field| field.arg(1)).or_else(|| scope.value("default_type"))?;
    let is_plain = kind.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && !kind.contains('$');
    (is_plain && !kind.is_empty() && kind != "application/octet-stream").then(|| kind.to_owned())
}

/// Returns `route` as a redirect. Closes the route if Forebay cannot express the target.
fn redirected(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    directive: &Directive,
    (target, status): (&str, u64),
    route: DraftRoute,
) -> DraftRoute {
    // nginx's `rewrite` keeps the client's query unless the target ends with a question mark.
    // nginx's `return` keeps the query only if the target contains a variable such as `$args`.
    let is_rewrite = directive.name == "rewrite";
    let filled = variables.fill(target).map_err(|name| format!("{name} has no placeholder"));
    let checked = filled.and_then(|filled| {
        let (filled, has_query) = without_query(&filled);
        let keeps = has_query || (is_rewrite && !filled.ends_with('?'));
        let to = redirect_target(&filled, keeps, cx.keys);
        if template::is_redirect_target(&to) {
            Ok(to)
        } else {
            Err(format!("\"{to}\" is no target"))
        }
    });
    match checked {
        Ok(to) => route.redirect(&to, status),
        Err(why) => {
            let comment = cx.note(directive, format!("{why}: write the target in `redirect`"));
            route.closed(comment)
        }
    }
}

/// Translates `rewrite EXPRESSION REPLACEMENT [FLAG]`.
pub fn rewrite<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) {
    if leaves_out(cx, server, here, directive, phase, out) {
        return;
    }
    let (found, matcher) = match narrowed(cx, here, directive) {
        Ok(Some(both)) => both,
        Ok(None) => return,
        Err(why) => {
            let comment =
                cx.note(directive, format!("{why}: write routes with `redirect` or `rewrite`"));
            phase.closed.get_or_insert(comment);
            return;
        }
    };
    let (target, flag) = (directive.arg(1), directive.arg(2));
    let covers = matcher.covers(&here.matcher);
    let route = DraftRoute::new(&directive.place, directive.line(), matcher);
    let variables = server.variables(&here.location.scope, Some(&found));
    let is_absolute = ["http://", "https://", "$scheme://"].iter().any(|s| target.starts_with(s));
    if is_absolute || matches!(flag, "permanent" | "redirect") {
        let status = if flag == "permanent" { 301 } else { 302 };
        let route = redirected(cx, &variables, directive, (target, status), route);
        out.push(EarlyStep::Route(route));
        phase.is_done = covers;
        return;
    }
    let filled = rewritten(cx, &variables, target);
    match filled {
        Err(why) => {
            let comment = cx.note(directive, format!("{why}: write the path in `rewrite`"));
            out.push(EarlyStep::Route(route.closed(comment)));
            phase.is_done = covers;
        }
        // With `break`, nginx serves the new path from the same location.
        Ok(to) if flag == "break" && covers => phase.rewrite = Some(to),
        Ok(to) if flag == "break" && here.location.directive.is_some() => {
            let (matcher, found) = (route.matcher.clone(), Some(found.clone()));
            let own = OwnContent { matcher, found, rewrite: Some(to) };
            out.push(EarlyStep::Content(own));
        }
        Ok(to) => {
            let mut route = route;
            route.keys.set("rewrite", to);
            out.push(EarlyStep::Route(route));
            phase.is_done = covers;
        }
    }
}

/// Translates a directive such as `rewrite ^/(?!index) /index.php`. The paths that its expression
/// excludes keep the content of the location. Returns false if the directive has another form or no
/// translation.
fn leaves_out<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    directive: &'a Directive,
    phase: &mut Phase<'a>,
    out: &mut Vec<EarlyStep>,
) -> bool {
    // The routes of the server's own rewrites precede the routes of all locations. So in a server
    // block, the excluded paths cannot keep the content of their locations.
    if here.location.directive.is_none() {
        return false;
    }
    let Some((before, excluded, "")) = negative_lookahead(directive.arg(0)) else { return false };
    let text = format!("{before}(?:{excluded})");
    let Ok(kept) = classify(&text, false, cx.keys, Use::Exact) else { return false };
    if here.matcher.regex.is_some() && kept.matcher.regex.is_some() || before.contains('$') {
        return false;
    }
    let Ok(to) = rewritten(cx, &here.variables(server), directive.arg(1)) else { return false };
    if let Some(matcher) = here.matcher.and(&kept.matcher) {
        let own = OwnContent { matcher, found: here.found.clone(), rewrite: None };
        out.push(EarlyStep::Content(own));
    }
    let mut route = DraftRoute::new(&directive.place, directive.line(), here.matcher.clone());
    route.keys.set("rewrite", to);
    out.push(EarlyStep::Route(route));
    phase.is_done = true;
    true
}

/// Returns the conditions of a directive's expression, and a matcher that also has the conditions
/// of the location. Returns `None` if no request meets all of these conditions. An error says why
/// the expression has no translation.
fn narrowed(
    cx: &Cx<'_>,
    here: &Here<'_, '_>,
    directive: &Directive,
) -> Result<Option<(PatternConditions, Matcher)>, String> {
    let text = directive.arg(0);
    let mut found = classify(text, false, cx.keys, Use::Exact).map_err(|unknown| unknown.why)?;
    // Without `path_regex`, some groups have no placeholders. If the target uses such a group,
    // write the expression as `path_regex`.
    let variables = directive.arg(1);
    let needs = (1..10).filter(|n| variables.contains(&format!("${n}")));
    let lacks = needs.into_iter().any(|n| template::group(n, &found).is_none());
    if lacks {
        found = as_regex(text, false, cx.keys).ok_or("its groups have no placeholders")?;
    }
    let both = match (&here.matcher.regex, &found.matcher.regex) {
        // If the expressions differ only in a final `$`, treat them as equal.
        (Some(ours), Some(theirs))
            if ours.trim_end_matches('$') == theirs.trim_end_matches('$') =>
        {
            found.matcher.regex = Some(ours.clone());
            here.matcher.and(&found.matcher)
        }
        (Some(ours), Some(theirs)) if ours != theirs => {
            return Err("a route has one expression".into());
        }
        _ => here.matcher.and(&found.matcher),
    };
    // With narrower paths, `{rest}` would not be the text of the group.
    let names_rest = found.rest.is_some_and(|number| variables.contains(&format!("${number}")));
    let both = match both {
        Some(both) if names_rest => {
            let kept = pattern::keeping_paths(&found.matcher, &both, cx.keys);
            Some(kept.ok_or("a route has one expression")?)
        }
        both => both,
    };
    Ok(both.map(|matcher| (found, matcher)))
}

/// Returns the target of an internal rewrite. An error says why the target has no translation.
fn rewritten(cx: &Cx<'_>, variables: &Variables<'_, '_>, target: &str) -> Result<String, String> {
    if !cx.keys.route("rewrite") {
        return Err("this version has no `rewrite`".into());
    }
    let filled = variables.fill(target).map_err(|name| format!("{name} has no placeholder"))?;
    let (filled, _) = without_query(&filled);
    if template::is_rewrite_target(&filled) {
        Ok(filled)
    } else {
        Err(format!("\"{filled}\" is no path"))
    }
}

/// Adds the keys for missing files, from `try_files`, `error_page 404 = ...` or `if (!-f ...)`. If
/// `try_files` ends with a status, returns the route that answers for missing files with this
/// status. Otherwise returns `None`.
pub fn try_files<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    phase: &mut Phase<'a>,
    base: &mut DraftRoute,
) -> Option<DraftRoute> {
    let scope = &here.location.scope;
    let own = scope.of_own("try_files");
    // A `try_files` of the server block applies only to paths that no location takes.
    let of_server =
        server.scope.peek_own("try_files").filter(|_| here.location.directive.is_none());
    let Some(directive) = own.or(of_server) else {
        let target = phase.fallback.take().or_else(|| server.fallback.clone());
        let target = target.or_else(|| missing_page(cx, server, here, phase));
        let is_script_route = scope.peek_own("fastcgi_pass").is_some();
        if let Some(target) = target.filter(|_| !is_script_route) {
            base.keys.set("fallback_to", target);
        } else if phase.named.is_some() || phase.is_left {
            base.keys.set("fallback", true);
        }
        return None;
    };
    directive.settle();
    let (checks, last) = directive.args.split_at(directive.args.len().saturating_sub(1));
    let last = last.first().map_or("=404", String::as_str);
    // A check of `/dev/null` never finds a file, so ignore it.
    let has_keys = cx.keys.has("Files", "extensions");
    let is_longer = |n: usize| has_keys && extension(checks, n).is_some();
    let directory =
        checks.iter().position(|check| matches!(&check[..], "$uri/" | "$document_uri/"));
    if directory.is_some_and(|at| (at..checks.len()).any(is_longer)) {
        base.comments.push("A file about.html comes before a directory about.".to_owned());
    }
    let others: Vec<&String> =
        (0..checks.len()).filter(|&n| !is_longer(n)).map(|n| &checks[n]).collect();
    let is_other = |check: &&String| !is_of_path(check) && *check != "/dev/null";
    let others: Vec<&str> = others.into_iter().filter(is_other).map(String::as_str).collect();
    if !others.is_empty() {
        let next = if checks.iter().any(|check| is_of_path(check)) {
            "only the path itself is looked for: add routes for the other files".to_owned()
        } else {
            let answer = last.strip_prefix('=').unwrap_or(last);
            format!(
                "Forebay does not look for {}, so all paths here get {answer}: write a route that \
                 sends this file",
                others.join(", ")
            )
        };
        base.comments.push(cx.note(directive, next));
    }
    if let Some(name) = last.strip_prefix('@') {
        base.keys.set("fallback", true);
        phase.named = Some(format!("@{name}"));
        return None;
    }
    if let Some(code) = last.strip_prefix('=') {
        let status =
            code.parse().ok().filter(|status| (200..=599).contains(status) && *status != 404);
        let status: u64 = status?;
        base.keys.set("fallback", true);
        return Some(
            DraftRoute::new(&directive.place, directive.line(), here.matcher.clone())
                .respond(status),
        );
    }
    match fallback_target(cx, &here.variables(server), last) {
        Ok(target) if here.is_exact() && base.matcher.paths[..] == [target.clone()] => {}
        Ok(target) => base.keys.set("fallback_to", target),
        Err(next) => base.comments.push(cx.note(directive, next)),
    }
    None
}

/// Returns true if an argument of `try_files` names the requested path, such as `$uri` or
/// `$uri/index.html`.
fn is_of_path(check: &str) -> bool {
    let check = check.replace("$document_uri", "$uri").replace("$fastcgi_script_name", "$uri");
    matches!(check.as_str(), "$uri" | "$uri/" | "$uri/index.html" | "$uri/index.php")
}

/// Returns true if nginx sends the requested files of the location. Returns false if `try_files`
/// looks only for other files than the requested one.
pub fn sends_files(server: &TranslatedServer<'_>, here: &Here<'_, '_>) -> bool {
    let own = here.location.scope.peek_own("try_files");
    let of_server = || server.scope.peek_own("try_files");
    let directive = match here.location.directive {
        Some(_) => own,
        None => own.or_else(of_server),
    };
    directive.is_none_or(|directive| directive.args.iter().rev().skip(1).any(|c| is_of_path(c)))
}

/// Returns the named location that answers all requests of a location with `return CODE` and
/// `error_page CODE = @NAME`. Returns `None` for other locations.
pub fn passed_on<'a>(server: &TranslatedServer<'a>, here: &Here<'_, 'a>) -> Option<&'a str> {
    // The named location does not have the rules of `limit_except` and of inner locations.
    if here.location.scope.peek_own("limit_except").is_some()
        || !here.location.within_regex().is_empty()
    {
        return None;
    }
    let own = here.location.scope.own();
    let is_rewrite =
        |inner: &&Directive| matches!(inner.name.as_str(), "return" | "rewrite" | "if" | "break");
    let mut rewrites = own.iter().filter(is_rewrite);
    let (only, None) = (rewrites.next()?, rewrites.next()) else { return None };
    let [code] = &only.args[..] else { return None };
    let page = own.iter().find(|inner| inner.name == "error_page" && inner.args.contains(code))?;
    let [.., change, name] = &page.args[..] else { return None };
    let is_named = |location: &Location<'_>| location.kind == LocationKind::Named(name);
    let is_there = name.starts_with('@') && server.locations.iter().any(is_named);
    if only.name != "return" || change != "=" || !is_there {
        return None;
    }
    only.settle();
    page.settle();
    Some(name)
}

/// Returns the target for missing files. If this version of Forebay has no placeholders, returns
/// only the path of the target. The text of an error says what the user must do.
pub fn fallback_target(
    cx: &Cx<'_>,
    variables: &Variables<'_, '_>,
    target: &str,
) -> Result<String, String> {
    let filled = variables.fill(target).map_err(|name| format!("{name} has no placeholder"))?;
    let (filled, _) = without_query(&filled);
    let filled = if filled.starts_with('/') { filled } else { format!("/{filled}") };
    if cx.keys.has_placeholders() && template::is_rewrite_target(&filled) {
        return Ok(filled);
    }
    let path = filled.split('?').next().unwrap_or_default();
    if path.contains('{') || !template::is_rewrite_target(path) {
        return Err("name one path in `fallback_to`".into());
    }
    Ok(path.to_owned())
}

/// Returns the path that answers for missing files: `/x` for `error_page 404 = /x`. For
/// `error_page 404 @NAME`, stores the name in `phase` and returns `None`. Also returns `None` if
/// the location has no such line, or if the path has no translation.
fn missing_page<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    phase: &mut Phase<'a>,
) -> Option<String> {
    let pages = here.location.scope.peek(&["error_page"]);
    let is_missing = |page: &&&Directive| {
        let codes = &page.args[..page.args.len().saturating_sub(1)];
        let is_changed = codes.last().is_some_and(|code| code.starts_with('='));
        codes.iter().any(|code| code == "404")
            && (is_changed || page.args.last().is_some_and(|to| to.starts_with('@')))
    };
    let page = pages.iter().find(is_missing)?;
    let to = page.args.last()?;
    if to.starts_with('@') {
        page.settle();
        phase.named = Some(to.clone());
        return None;
    }
    let target = fallback_target(cx, &here.variables(server), to).ok()?;
    page.settle();
    Some(target)
}

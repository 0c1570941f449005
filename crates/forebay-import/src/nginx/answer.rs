//! Translates a location to routes: its rewrites, its access rules, its content, and changes to its
//! replies.

use super::access::{self, Limit};
use super::access::{Gate, gate, guard};
use super::conditions;
use super::here::{EarlyStep, Here, OwnContent, Phase};
use super::locations::{Location, LocationKind, Slot, longest};
use super::pages::pages;
use super::rewrites;
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::variables::Variables;
use super::{Cx, backends, fields, files_of, internal, maintenance, maps, names, needless, unread};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::{self, PatternConditions, Use, classify, classify_with_exception};
use crate::template;
use crate::value::{Table, Value};

/// Returns the routes for the location of a slot. Returns no routes for a named location, and if no
/// request meets the conditions of the location.
pub fn routes<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    slot: Slot<'_, 'a>,
) -> Vec<DraftRoute> {
    let mut here = Here {
        location: slot.location,
        matcher: Matcher::default(),
        found: None,
        region: slot.region,
    };
    if slot.adds_slash {
        let path = slot.location.path().unwrap_or("/");
        here.matcher = Matcher::path(path.trim_end_matches('/'));
        let to = template::redirect_target(&template::literal(path, cx.keys), true, cx.keys);
        let mut route = here.route(server).redirect(&to, 301);
        internal::hide(slot.location, std::slice::from_mut(&mut route));
        return vec![route];
    }
    let mut out = match matcher(cx, slot) {
        Ok(Some((matcher, found))) => {
            (here.matcher, here.found) = (matcher, found);
            except(cx, server, &here)
        }
        Ok(None) => return Vec::new(),
        Err((why, superset)) => return unknown(cx, server, here, &why, superset),
    };
    out.extend(of_here(cx, server, &here));
    out.extend(near_scripts(cx, server, &here));
    out.extend(line_feed(server, &here, &out));
    let is_closed =
        |route: &DraftRoute| route.comments.iter().any(|comment| comment == crate::draft::CLOSED);
    if let Some(directive) = slot.location.directive.filter(|_| out.iter().any(is_closed)) {
        cx.closed.insert(directive.id());
    }
    out
}

/// Returns a route that refuses paths with a line feed at their end, for a location that restricts
/// access and has an expression with `$`. nginx's `$` also matches before a final line feed, but
/// `$` in a condition of a route does not. Returns `None` for other locations.
fn line_feed<'a>(
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    routes: &[DraftRoute],
) -> Option<DraftRoute> {
    let LocationKind::Regex { text, .. } = here.location.kind else { return None };
    let is_refusal = |route: &DraftRoute| match route.keys.get("respond") {
        Some(Value::Table(reply)) => {
            matches!(reply.get("status"), Some(Value::Number(400..)))
        }
        _ => route.has_gate() || route.keys.get("internal").is_some(),
    };
    if !pattern::has_end(text) || !routes.iter().any(is_refusal) {
        return None;
    }
    let all = Matcher { regex: Some("\\n$".into()), ..Matcher::default() };
    let mut route = here.route(server).respond(403);
    route.matcher = all.within(here.region.unwrap_or("/"))?;
    route.comments.push("In nginx, `$` also matches before a line feed at the end.".into());
    Some(route)
}

/// Returns a route for paths such as `/a.php.bak`, which nginx's `location ~ \.php` also sends to
/// its application. The route answers 404, so that no other route sends these files. Returns `None`
/// for a location without such paths.
fn near_scripts<'a>(
    cx: &Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
) -> Option<DraftRoute> {
    let LocationKind::Regex { text, ignore_case } = here.location.kind else { return None };
    let is_script = here.found.as_ref().is_some_and(|found| found.is_script);
    let is_wider =
        classify(text, false, cx.keys, Use::Exact).is_ok_and(|of| of.matcher.regex.is_some());
    let whole = pattern::as_regex(text, ignore_case, cx.keys).filter(|_| is_script && is_wider)?;
    let matcher = whole.matcher.within(here.region.unwrap_or("/"))?;
    let mut route = DraftRoute { matcher, ..here.route(server) }.respond(404);
    route.comments.push("nginx sends these paths to the application, too.".into());
    Some(route)
}

type Condition = (Matcher, Option<PatternConditions>);
type NoCondition = (String, Option<Box<Matcher>>);

/// Returns the conditions of a location. Returns `None` if no request meets them. An error has the
/// reason, and perhaps a matcher. This matcher takes all requests of the location, and may take
/// other requests.
fn matcher(cx: &Cx<'_>, slot: Slot<'_, '_>) -> Result<Option<Condition>, NoCondition> {
    match slot.location.kind {
        LocationKind::Exact(path) | LocationKind::Prefix { path, .. } => {
            let is_exact = matches!(slot.location.kind, LocationKind::Exact(_));
            let typed = if is_exact { path.to_owned() } else { format!("{path}*") };
            if pattern::is_path(&typed) && !path.contains('*') {
                return Ok(Some((Matcher::path(typed), None)));
            }
            let end = if is_exact { "$" } else { "" };
            let text = format!("^{}{end}", regex_syntax::escape(path));
            pattern::as_regex(&text, false, cx.keys)
                .map(|found| Some((found.matcher, None)))
                .ok_or_else(|| ("a route cannot have this path".into(), None))
        }
        LocationKind::Regex { text, ignore_case } => {
            let runs = slot.location.scope.peek_own("fastcgi_pass").is_some();
            let of = if runs { Use::Scripts } else { Use::Exact };
            let found = classify_with_exception(text, ignore_case, cx.keys, of)
                .map_err(|unknown| (unknown.why, unknown.superset))?;
            let region = slot.region.unwrap_or("/");
            Ok(found.matcher.within(region).map(|matcher| (matcher, Some(found))))
        }
        LocationKind::Named(_) => Ok(None),
    }
}

/// Returns routes for the paths that `(?!...)` excludes from the location's expression. In nginx,
/// other locations take these paths, so the routes have the content of these locations.
fn except<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
) -> Vec<DraftRoute> {
    let except = here.found.as_ref().and_then(|found| found.except.clone());
    let Some(except) = except else { return Vec::new() };
    let mut out = Vec::new();
    for path in except.paths {
        let start = path.trim_end_matches('*').trim_end_matches('/').to_owned() + "/";
        let Some(location) = longest(&server.locations, &start) else { continue };
        out.extend(found_deeper(cx, server, here, &start));
        let matcher = Matcher::prefix(&start);
        out.extend(of_here(cx, server, &Here { location, matcher, found: None, region: None }));
    }
    out
}

/// Returns routes for the paths below `start` that the location's expression still matches. The
/// expression excludes `start`, but without `^` it may match in a later segment of the path.
fn found_deeper<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    start: &str,
) -> Vec<DraftRoute> {
    let Some(regex) = here.found.as_ref().and_then(|found| found.matcher.regex.as_deref()) else {
        return Vec::new();
    };
    let (flag, text) = match regex.strip_prefix("~*") {
        Some(text) => ("~*", text),
        None => ("", regex),
    };
    if text.starts_with('^') {
        return Vec::new();
    }
    let start = regex_syntax::escape(start.trim_end_matches('/'));
    let regex = Some(format!("{flag}^{start}.*(?:{text})"));
    let matcher = Matcher { regex, ..Matcher::default() };
    let found = PatternConditions { matcher: matcher.clone(), ..PatternConditions::default() };
    let deeper = Here { location: here.location, matcher, found: Some(found), region: here.region };
    of_here(cx, server, &deeper)
}

/// Returns a closed route for a location whose condition Forebay cannot express, so that no other
/// route answers the location's requests. Returns no route if the location only has directives such
/// as `expires`. Other routes may then answer its requests.
fn unknown<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    mut here: Here<'_, 'a>,
    why: &str,
    superset: Option<Box<Matcher>>,
) -> Vec<DraftRoute> {
    let scope = &here.location.scope;
    let is_tuning = |directive: &Directive| {
        matches!(
            directive.name.as_str(),
            "expires" | "add_header" | "access_log" | "log_not_found" | "etag" | "root"
        ) || needless::is_needless(&directive.name)
            || directive.name == "try_files" && directive.arg(0) == "$uri"
    };
    let is_tuning = scope.own().iter().all(is_tuning);
    let Some(directive) = here.location.directive else { return Vec::new() };
    // Mark all lines of the location as read, because the note is about the whole location.
    directive.settle_all();
    if is_tuning {
        cx.note(directive, format!("{why}; its paths are answered by other routes"));
        return Vec::new();
    }
    let closed = superset.map_or_else(|| Matcher::path("/*"), |matcher| *matcher);
    let Some(matcher) = closed.within(here.region.unwrap_or("/")) else { return Vec::new() };
    here.matcher = matcher;
    let comment = cx.note(directive, format!("{why}: write routes for its paths, in their order"));
    vec![here.route(server).closed(comment)]
}

/// Returns the routes of a location for the requests of `here`.
pub fn of_here<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
) -> Vec<DraftRoute> {
    here.location.directive.iter().for_each(|location| location.settle());
    if internal::serves_subrequests(server, here.location) {
        return vec![only_nginx(server, here)];
    }
    if let Some(name) = rewrites::passed_on(server, here) {
        let mut out = named(cx, server, here, name, &Gate::default());
        internal::hide(here.location, &mut out);
        return out;
    }
    // nginx selects an inner location before it reads `return` of the outer location.
    let mut inner = Vec::new();
    for location in here.location.within_regex() {
        inner.extend(within_regex(cx, server, here, location));
    }
    let mut phase = Phase::default();
    let mut out = before(cx, server, here, here.location.scope.own(), &mut phase);
    limit_answers(cx, server, here, &mut phase, &mut out);
    internal::hide(here.location, &mut out);
    out.splice(0..0, inner);
    let mut last = Vec::new();
    if phase.is_done {
        unread::settle_unreached(here.location.scope.own());
    } else {
        last = content(cx, server, here, &mut phase);
    }
    // If a location with `internal` runs the scripts for missing files, `content` has closed all
    // routes except those of the scripts. For another location, hide all routes here.
    if internal::entry(server, here).is_none() {
        internal::hide(here.location, &mut last);
    }
    out.append(&mut last);
    if let Some(mut other) = phase.otherwise.take() {
        internal::hide(here.location, std::slice::from_mut(&mut other));
        out.push(other);
    }
    if let Some(maintenance) = phase.maintenance {
        for route in &mut out {
            match route.keys.get("maintenance") {
                Some(Value::Table(own)) if !maintenance::is_same_file(own, &maintenance) => {
                    let directive = here.location.directive.unwrap_or(server.directive);
                    let comment = cx.note(directive, maintenance::TWO_FILES);
                    *route = route.clone().closed(comment);
                }
                _ => route.keys.set("maintenance", maintenance.clone()),
            }
        }
    }
    out
}

/// Returns the route of a location that only nginx itself uses.
fn only_nginx(server: &TranslatedServer<'_>, here: &Here<'_, '_>) -> DraftRoute {
    let mut route = here.route(server).respond(404);
    route.comments.push("Only nginx itself may ask for these paths.".into());
    route
}

/// Returns the routes of `return`, `rewrite` and `if`, which precede the content.
pub fn before<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    block: &'a [Directive],
    phase: &mut Phase<'a>,
) -> Vec<DraftRoute> {
    let (mut steps, mut out) = (Vec::new(), Vec::new());
    conditions::run(cx, server, here, block, phase, &mut steps);
    let variables = here.variables(server);
    for step in steps {
        match step {
            EarlyStep::Route(mut route) => {
                fields::decorate(cx, &variables, &mut route);
                out.push(route);
            }
            EarlyStep::Content(own) => {
                let OwnContent { matcher, found, rewrite } = own;
                let (location, region) = (here.location, here.region);
                let narrow = Here { location, matcher, found, region };
                let mut phase = Phase { rewrite, ..Phase::default() };
                out.extend(content(cx, server, &narrow, &mut phase));
            }
        }
    }
    out
}

/// Returns the routes of the location `inner`, which is inside of a location with a regular
/// expression. If one route cannot have the conditions of both locations, returns a closed route.
fn within_regex<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    inner: &Location<'a>,
) -> Vec<DraftRoute> {
    let slot = Slot { location: inner, region: None, adds_slash: false };
    if let Ok(Some((matcher, found))) = matcher(cx, slot)
        && let Some(matcher) = here.matcher.and(&matcher)
    {
        let both = Here { location: inner, matcher, found, region: here.region };
        return of_here(cx, server, &both);
    }
    let Some(directive) = inner.directive else { return Vec::new() };
    directive.settle_all();
    let comment = cx.note(directive, "write a route for these paths, before this one");
    vec![here.route(server).closed(comment)]
}

/// Returns the routes with the content and the access rules of a location.
fn content<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    phase: &mut Phase<'a>,
) -> Vec<DraftRoute> {
    let scope = &here.location.scope;
    let entry = internal::entry(server, here);
    if let Some(matcher) = entry.as_ref().filter(|entry| !entry.covers(&here.matcher)) {
        let (matcher, found) = (matcher.clone(), here.found.clone());
        let script = Here { location: here.location, matcher, found, region: here.region };
        let mut routes = content(cx, server, &script, phase);
        routes.push(only_nginx(server, here));
        return routes;
    }
    let mut base = here.route(server);
    base.keys.set_some("rewrite", phase.rewrite.take());
    let rules = gate(cx, scope);
    if let Some(comment) = phase.closed.take().or_else(|| rules.closed.clone()) {
        return vec![base.closed(comment)];
    }
    if let Some(directive) = scope.nearest("internal").filter(|_| entry.is_some()) {
        let next = "clients may also ask for this script by its own name, because a rule for the \
                    script would close all paths that it answers";
        base.comments.push(cx.note(directive, next));
    }
    let variables = here.variables(server);
    if rules.keys.get("deny") == Some(&Value::from("all")) && rules.keys.get("satisfy").is_none() {
        let mut route = base.respond(403);
        fields::decorate(cx, &variables, &mut route);
        return vec![route];
    }
    let mut routes = answers(cx, server, here, &variables, base, phase);
    let pages = match here.location.directive {
        Some(_) => pages(cx, scope, &server.locations),
        None => Table::default(),
    };
    let intercepts = ["proxy_intercept_errors", "fastcgi_intercept_errors"];
    let intercepts = intercepts.iter().any(|name| scope.is_on(name)) && cx.keys.route("intercept");
    for route in &mut routes {
        if !pages.is_empty() {
            route.keys.set("error_pages", pages.clone());
        }
        if intercepts && ["proxy", "fastcgi"].iter().any(|key| route.keys.get(key).is_some()) {
            route.keys.set("intercept", true);
        }
        fields::decorate(cx, &variables, route);
        internal::redirects(cx, server, scope, route);
        guard(route, &rules);
    }
    // If a named location answers, `named` adds the access rules to its routes.
    let is_named = routes.is_empty() && phase.named.is_some();
    let is_covered = is_named || routes.iter().any(|route| route.matcher.covers(&here.matcher));
    if !rules.is_open() && !is_covered {
        let mut rest = here.route(server).respond(403);
        rest.comments.push("The rules hold for all other paths of this location, too.".into());
        routes.push(rest);
    }
    if let Some(methods) = &phase.methods {
        access::only(methods, &mut routes);
    }
    let limit = Limit::of(cx, scope);
    let mut rest = match &limit {
        Some(limit) => limit.rest(server, here, routes.clone(), &rules),
        None => Vec::new(),
    };
    if let Some(name) = phase.named.take() {
        routes.extend(named(cx, server, here, &name, &rules));
        if let Some(limit) = &limit {
            rest.extend(named(cx, server, here, &name, &limit.others));
        }
    }
    if let Some(limit) = &limit {
        limit.narrow(&mut routes);
    }
    routes.extend(rest);
    routes
}

/// Limits the routes of `return` and `rewrite` to the methods in `limit_except`. For other methods,
/// nginx skips `return` and `rewrite`. Such requests get the content of the location, under the
/// rules inside `limit_except`.
fn limit_answers<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    phase: &mut Phase<'a>,
    out: &mut Vec<DraftRoute>,
) {
    let scope = &here.location.scope;
    let Some(directive) = scope.of_own("limit_except") else { return };
    let Some(limit) = Limit::of(cx, scope) else { return };
    limit.narrow(out);
    if phase.methods.is_some() {
        let next = "a condition on the method has other methods: write `methods` of the routes";
        phase.closed.get_or_insert(cx.note(directive, next));
        phase.otherwise = None;
    }
    if phase.is_done {
        // The routes in `out` answer only the methods in `limit_except`. Add the content for other
        // methods.
        out.extend(content(cx, server, here, &mut Phase::default()));
    }
}

/// Returns the routes for the directive that answers the requests of a location, such as
/// `proxy_pass`. Without such a directive, the routes send files.
fn answers<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    variables: &Variables<'_, 'a>,
    mut base: DraftRoute,
    phase: &mut Phase<'a>,
) -> Vec<DraftRoute> {
    let scope = variables.scope;
    let is_answer = |directive: &&Directive| {
        let name = directive.name.as_str();
        name.ends_with("_pass") || name == "stub_status" || names::answers(name)
    };
    if let Some(pass) = phase.missing_pass.take() {
        let mut first = base.clone();
        first.keys.set("fallback", true);
        let mut routes = files_of::routes(cx, variables, here, &first);
        routes.push(match backends::proxy(cx, variables, here, pass, &mut base) {
            Ok(()) => base,
            Err(next) => base.closed(cx.note(pass, next)),
        });
        return routes;
    }
    let Some(pass) = scope.own().iter().find(is_answer) else {
        let after = rewrites::try_files(cx, server, here, phase, &mut base);
        if !rewrites::sends_files(server, here) {
            return without_files(cx, here, base, after, phase);
        }
        let mut routes = files_of::routes(cx, variables, here, &base);
        routes.extend(after);
        return routes;
    };
    pass.settle();
    if let Some(routes) = maps::routes(cx, server, here, pass, &base) {
        return routes;
    }
    let kind = pass.name.trim_end_matches("_pass");
    let passes = ["proxy", "fastcgi", "scgi", "uwsgi"].into_iter().find(|name| *name == kind);
    let fields = passes.and_then(|kind| scope.nearest(&format!("{kind}_pass_request_headers")));
    if let Some(directive) = fields.filter(|fields| fields.arg(0) == "off") {
        let next = "the server would get the client's fields: check that it does not believe them";
        return vec![base.closed(cx.note(directive, next))];
    }
    let mut after = None;
    let outcome = match pass.name.as_str() {
        "proxy_pass" | "grpc_pass" => backends::proxy(cx, variables, here, pass, &mut base),
        "fastcgi_pass" => {
            after = rewrites::try_files(cx, server, here, phase, &mut base);
            backends::fastcgi(cx, variables, here, pass, &mut base)
        }
        "scgi_pass" | "uwsgi_pass" => backends::app_server(cx, variables, pass, &mut base),
        "stub_status" => {
            cx.draft.server.set("admin", "127.0.0.1:9900");
            let text = "Forebay's own figures are at `admin` of [server]: /status and /metrics.";
            base.comments.push(text.into());
            base = base.respond(404);
            Ok(())
        }
        name => Err(names::next_step(name).to_owned()),
    };
    if let Err(next) = outcome {
        let comment = cx.note(pass, next);
        return vec![base.closed(comment)];
    }
    std::iter::once(base).chain(after).collect()
}

/// Returns the routes of a location whose `try_files` does not look for the requested file.
fn without_files(
    cx: &mut Cx<'_>,
    here: &Here<'_, '_>,
    mut base: DraftRoute,
    after: Option<DraftRoute>,
    phase: &Phase<'_>,
) -> Vec<DraftRoute> {
    if phase.named.is_some() || after.is_some() {
        return after.into_iter().collect();
    }
    let scope = &here.location.scope;
    let target = match base.keys.get("fallback_to") {
        Some(Value::Text(target)) => target.clone(),
        _ => return vec![base.respond(404)],
    };
    base.keys.remove("fallback_to");
    if gate(cx, scope).is_open() {
        base.keys.set("rewrite", target);
        return vec![base];
    }
    // A request would have to meet the access rules of this location and the rules of the target.
    // The translation does not combine them, so it closes the route.
    let Some(directive) = scope.peek_own("try_files").or(here.location.directive) else {
        return vec![base.respond(404)];
    };
    let comment = cx.note(directive, "write the rules of this location in the route of the target");
    vec![base.closed(comment)]
}

/// Maximum length of a chain of named locations, each reached from the previous one.
const DEEPEST: usize = 8;

/// Returns the routes of a named location for the requests of `here`. `before` has the access rules
/// of the location that names it. If there is no such location, or if named locations lead to each
/// other, returns a route with status 404.
fn named<'a>(
    cx: &mut Cx<'a>,
    server: &TranslatedServer<'a>,
    here: &Here<'_, 'a>,
    name: &str,
    before: &Gate,
) -> Vec<DraftRoute> {
    let is_named = |location: &&Location<'a>| location.kind == LocationKind::Named(name);
    // If a named location leads to itself, the translation would never end.
    let is_loop = cx.depth >= DEEPEST;
    let Some(location) = server.locations.iter().find(is_named).filter(|_| !is_loop) else {
        return vec![here.route(server).respond(404)];
    };
    cx.depth += 1;
    let there = Here { location, matcher: here.matcher.clone(), found: None, region: here.region };
    let mut routes = of_here(cx, server, &there);
    cx.depth -= 1;
    let own = gate(cx, &location.scope);
    for route in &mut routes {
        if before.is_open() || own.keys == before.keys {
            continue;
        }
        if own.is_open() {
            guard(route, before);
        } else if let Some(directive) = location.directive {
            let next = format!(
                "the rules of {name} and of the location before it both hold: write them in one route"
            );
            let comment = cx.note(directive, next);
            *route = route.clone().closed(comment);
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    #[test]
    fn internal_scripts_answer_only_for_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        let text = "events {}\nhttp { server { listen 8080; root /srv;\n\
                    location / { try_files $uri /index.php?$args; }\n\
                    location ~ \\.php$ { internal; fastcgi_pass 127.0.0.1:9; } } }\n";
        std::fs::write(&file, text).unwrap();
        let toml = import(Language::Nginx, &file).unwrap().toml;
        let routes: Vec<&str> = toml.split("[[site.route]]").skip(1).collect();
        let scripts: Vec<_> = routes.iter().filter(|route| route.contains("fastcgi =")).collect();
        assert_eq!(scripts.len(), 1, "{toml}");
        assert!(scripts[0].contains("\"/index.php\""), "{toml}");
        let rest = routes.iter().position(|route| route.contains("404")).unwrap();
        assert!(routes[rest].contains(".php") && !routes[rest].contains("index.php"), "{toml}");
        assert!(routes[rest - 1].contains("fastcgi ="), "{toml}");
    }

    #[test]
    fn internal_locations_are_hidden_and_applications_may_choose_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        let root = dir.path().display();
        for (ignored, chooses) in [("", true), ("proxy_ignore_headers X-Accel-Redirect;", false)] {
            let text = format!(
                "events {{}}\nhttp {{ send_timeout 9s; server {{ listen 8080; {ignored}\n\
                 location / {{ proxy_pass http://127.0.0.1:9; client_body_timeout 5m; send_timeout 9s; }}\n\
                 location /files/ {{ internal; root {root}; send_timeout 10m; }}\n\
                 location = /fixed {{ internal; return 200 secret; }} }} }}\n"
            );
            std::fs::write(&file, text).unwrap();
            let imported = import(Language::Nginx, &file).unwrap();
            let (toml, notes) = (imported.toml, imported.notes);
            assert!(notes.is_empty(), "{notes:?}");
            let routes: Vec<&str> = toml.split("[[site.route]]").skip(1).collect();
            let with = |text: &str| -> Vec<&str> {
                routes.iter().copied().filter(|route| route.contains(text)).collect()
            };
            let hidden = with("internal = true");
            assert!(
                !with("secret").is_empty() && with("secret").iter().all(|r| hidden.contains(r))
            );
            assert!(with("files =").iter().all(|route| hidden.contains(route)), "{toml}");
            assert_eq!(with("internal_redirects = true").len(), usize::from(chooses), "{toml}");
            let own = with("proxy =");
            assert!(own[0].contains("timeouts = { body_idle = \"5m\" }"), "{toml}");
            assert!(with("files =")[0].contains("timeouts = { write = \"10m\" }"), "{toml}");
        }
    }
}

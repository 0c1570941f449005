//! Resolves `[[site.route]]`, except for the action.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::access::challenge;
use super::access::{forward_auth as forward_auth_of, perl_gate};
use super::action::action;
use super::filter::filters;
use super::jwt::jwt as jwt_of;
use super::log::log_file;
use super::media::charset;
use super::proxy::mirror as mirror_of;
use super::reply::cache;
use super::reply::{error_pages, maintenance};
use super::reply::{remove_headers, reply_headers, request_headers};
use super::template::rewrite_target;
use super::value::{method, size_or_unlimited, text};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, BoolOr, File, Kind};
use crate::key::no_effect;
use crate::key::paths::directory;
use crate::plan::{
    Access, Action, AppProtocol, ErrorPages, Fingerprint, LogFile, Maintenance, Matcher, OnAbort,
    PathParameters, PathPattern, Rewrite, Route, Satisfy, Scope, ServerProtocol, matches_some,
};

/// Settings of a site that its routes inherit.
#[derive(Default)]
pub(super) struct OfSite {
    pub max_body: Option<u64>,
    pub error_pages: ErrorPages,
    pub maintenance: Option<Arc<Maintenance>>,
    pub log: Option<LogFile>,
    /// True if the site is left out, and its certificate cannot be used.
    pub lacks_certificate: bool,
}

/// Checks one `[[site.route]]` and adds the defaults.
pub(super) fn route(
    context: &Context<'_>,
    file: &File,
    typed: &At<file::Route>,
    of_site: &OfSite,
) -> Resolution<Route> {
    let matcher = matcher(typed)?;
    let names = matcher.regex.iter().flat_map(|regex| regex.names().map(str::to_owned));
    let captures: Vec<_> = names.collect();
    let known = Scope { captures: &captures, ..context.scope };
    let action = action(context, file, typed, known)?;
    let access = access(context, file, typed, known)?;
    let mut matcher = Matcher { allows_path_info: runs_scripts(file, &action), ..matcher };
    if let Some(when) = &mut matcher.when {
        when.refuses = matches!(&action, Action::Respond(respond) if respond.status >= 400);
        when.is_rule = when.refuses || access != Access::default();
    }
    let mut request_headers = request_headers(&typed.request_headers, known)?;
    Ok(Route {
        filters: filters(context, typed, (&action, known), &mut request_headers)?,
        name: name(typed)?,
        matcher,
        fallback: fallback(context, file, typed, &action)?,
        fallback_to: fallback_to(context, file, typed, (&action, known))?,
        rewrite: rewrite(typed, &action, known)?,
        sendfile_root: sendfile_root(context, typed, &action)?,
        internal_redirects: internal_redirects(context, typed, &action)?,
        buffer: buffer(context, file, typed, &action)?,
        on_abort: on_abort(context, file, typed, &action)?,
        compress: typed.compress.clone().flatten(),
        cache: cache(context, &typed.cache, &action)?,
        request_buffering: request_buffering(context, file, typed, &action)?,
        path_parameters: path_parameters(context, file, typed, &action)?,
        action,
        log: !matches!(&typed.log, Some(At { value: BoolOr::Bool(false), .. })),
        own_log: match &typed.log {
            Some(at @ At { value: BoolOr::Table(table), .. }) => {
                Some(log_file(context, file, &at.with(table))?)
            }
            _ => None,
        },
        expires: typed.expires.clone(),
        charset: typed.charset.as_ref().map(charset).transpose()?,
        request_headers,
        reply_headers: reply_headers(typed, known)?,
        remove_headers: remove_headers(typed)?,
        error_pages: error_pages(
            context,
            &typed.error_pages,
            &typed.intercept,
            &of_site.error_pages,
        )?,
        maintenance: maintenance(context, &typed.maintenance, of_site.maintenance.as_ref())?,
        cookies: typed.cookies,
        cors: typed.cors.clone(),
        max_body: size_or_unlimited(&typed.max_body)?.or(of_site.max_body),
        access,
        bandwidth_limit: typed.bandwidth_limit,
        timeouts: typed.timeouts.unwrap_or_default(),
        mirror: typed.mirror.as_ref().map(|at| mirror_of(context, file, at)).transpose()?,
        line: context.line(typed.span.start),
        inherited: Vec::new(),
        fingerprint: Fingerprint::default(),
    })
}

/// Returns the name of the route, or `None` if the user typed none. The name is one word, so that a
/// test in `expect` can contain it.
fn name(typed: &file::Route) -> Resolution<Option<String>> {
    let Some(at) = &typed.name else { return Ok(None) };
    let is_plain = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    if at.is_empty() || at.len() > 100 || !at.chars().all(is_plain) {
        return Err(Problem::new(&at.span, "this is not the name of a route")
            .help("use letters, digits, hyphens and dots, such as \"wiki-files\""));
    }
    Ok(Some(at.value.clone()))
}

/// Checks the keys that decide who may use the route.
fn access(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    known: Scope<'_>,
) -> Resolution<Access> {
    let jwt = typed.jwt.as_ref().map(|at| jwt_of(context, file, at)).transpose()?;
    let gate = typed.perl_gate.as_ref().map(|at| perl_gate(file, at)).transpose()?;
    if let (Some(at), Some(_)) = (&typed.perl_gate, &typed.forward_auth) {
        return Err(
            Problem::new(&at.span, "`forward_auth` decides already").help("keep one of them")
        );
    }
    let forward_auth = typed.forward_auth.as_ref();
    let access = Access {
        allow: typed.allow.clone(),
        deny: typed.deny.clone(),
        basic_auth: typed.basic_auth.as_ref().map(|at| at.value.clone()),
        digest_auth: typed.digest_auth.as_ref().map(|at| at.value.clone()),
        jwt,
        forward_auth: forward_auth
            .map(|at| forward_auth_of(context, file, at, known))
            .transpose()?
            .or(gate),
        satisfy: typed.satisfy.as_ref().map(|at| at.value).unwrap_or_default(),
        rate_limits: typed.rate_limit.clone(),
        concurrency_limits: typed.concurrency_limit.clone(),
        signed_url: typed.signed_url.clone(),
        challenge: typed.challenge.as_ref().map(|at| challenge(context, at)).transpose()?.flatten(),
        allow_methods: methods(&typed.allow_methods)?,
        open_methods: methods(&typed.open_methods)?,
        internal: typed.internal.as_ref().is_some_and(|at| at.value),
    };
    let has_addresses = !access.allow.is_empty() || !access.deny.is_empty();
    let passwords = [access.basic_auth.is_some(), access.digest_auth.is_some()];
    let by_login = passwords.into_iter().chain([access.jwt.is_some()]);
    let rules = by_login.chain([has_addresses, access.forward_auth.is_some()]);
    let rules = rules.filter(|&is_given| is_given).count();
    if access.satisfy == Satisfy::All {
        one_authorization(typed, &access)?;
    }
    if let Some(at) = typed.open_methods.as_ref().filter(|_| rules == 0) {
        if context.is_default(&at.span) {
            return Ok(Access { open_methods: Vec::new(), ..access });
        }
        let help = "add a rule, such as `allow` or `basic_auth`; to refuse methods, there is \
                    `allow_methods`";
        return Err(no_effect(&at.span, "open_methods", "without an access rule", help));
    }
    match &typed.satisfy {
        Some(at) if access.satisfy == Satisfy::Any && rules < 2 => {
            if context.is_default(&at.span) {
                return Ok(Access { satisfy: Satisfy::All, ..access });
            }
            Err(Problem::new(&at.span, "`satisfy` makes no difference here").help(
                "it combines `allow` or `deny`, `basic_auth`, `digest_auth`, `jwt`, \
                 `forward_auth` and `perl_gate`: give two of them",
            ))
        }
        _ => Ok(access),
    }
}

fn methods(typed: &Option<At<file::OneOrMany<String>>>) -> Resolution<Vec<String>> {
    let Some(at) = typed else { return Ok(Vec::new()) };
    matches_some(&at.items(), &at.span)?;
    at.items().iter().map(method).collect()
}

/// Checks that at most one rule needs the field `Authorization`, because a request has only one
/// such field.
fn one_authorization(typed: &file::Route, access: &Access) -> Resolution<()> {
    let basic = typed.basic_auth.as_ref().map(|at| &at.span);
    let digest = typed.digest_auth.as_ref().map(|at| &at.span);
    let is_token = access.jwt.as_ref().is_some_and(|jwt| jwt.source.is_authorization());
    let token = typed.jwt.as_ref().map(|at| &at.span).filter(|_| is_token);
    let Some(span) = [basic, digest, token].into_iter().flatten().nth(1) else { return Ok(()) };
    let message = "no request can have two kinds of credentials in one field `Authorization`";
    Err(Problem::new(span, message)
        .help("write satisfy = \"any\", or take a token from another `header` or a `cookie`"))
}

fn fallback(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    action: &Action,
) -> Resolution<bool> {
    let Some(at) = &typed.fallback else { return Ok(false) };
    match may_fall_back(file, &at.span, "fallback", action) {
        Err(_) if context.is_default(&at.span) => Ok(false),
        outcome => outcome.map(|()| at.value),
    }
}

/// Checks `fallback_to`. Returns `None` if the route does not use the key. A default value is
/// ignored if the route cannot use it.
fn fallback_to(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    (action, known): (&Action, Scope<'_>),
) -> Resolution<Option<Rewrite>> {
    let Some(at) = &typed.fallback_to else { return Ok(None) };
    match may_fall_back(file, &at.span, "fallback_to", action) {
        Err(_) if context.is_default(&at.span) => return Ok(None),
        outcome => outcome?,
    }
    if typed.fallback.as_ref().is_some_and(|fallback| fallback.value) {
        return Err(Problem::new(&at.span, "`fallback_to` has no effect beside `fallback`").help(
            "keep one: `fallback` asks the routes below, `fallback_to` asks all for another path",
        ));
    }
    rewrite_target(&at.with(&at.value), known).map(Some)
}

fn rewrite(typed: &file::Route, action: &Action, known: Scope<'_>) -> Resolution<Option<Rewrite>> {
    let Some(at) = &typed.rewrite else { return Ok(None) };
    let beside = match action {
        Action::Respond(_) => "respond",
        Action::Redirect(_) => "redirect",
        _ => return rewrite_target(&at.with(&at.value), known).map(Some),
    };
    Err(no_effect(&at.span, "rewrite", &format!("beside `{beside}`"), "keep one of the two"))
}

/// Checks that the action may leave requests without an answer, as `files` does for missing files.
/// Returns an error for an action that answers all requests.
fn may_fall_back(file: &File, span: &Range<usize>, key: &str, action: &Action) -> Resolution<()> {
    let name = match action {
        Action::Proxy(_) => "proxy",
        Action::Ajp(_) => "ajp",
        Action::AppServer(server) => match server.protocol {
            ServerProtocol::Scgi => "scgi",
            ServerProtocol::Uwsgi { .. } => "uwsgi",
        },
        Action::Fastcgi(fastcgi) if fastcgi.mount.is_some() => "fastcgi",
        Action::Respond(_) => "respond",
        Action::Redirect(_) | Action::Moved(_) => "redirect",
        Action::Rewrite => "rewrite",
        Action::App(name) if takes_every_path(file, name) => "app",
        _ => return Ok(()),
    };
    Err(Problem::new(span, format!("a route with `{name}` cannot fall back"))
        .label("there is always an answer")
        .help(format!(
            "`{key}` is for `files`, `cgi`, `fastcgi` without `mount`, and applications with a script for each path \
             (perl-cgi, python-cgi, cgi-bin, php): what is not there is left to others"
        )))
}

/// Returns the value of `buffer`, or its default. If true, Forebay stores the part of a reply that
/// a slow client has not read.
fn buffer(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    action: &Action,
) -> Resolution<bool> {
    let name = match action {
        Action::Files(_) => "files",
        Action::Respond(_) => "respond",
        Action::Redirect(_) | Action::Moved(_) => "redirect",
        Action::Rewrite => "rewrite",
        Action::Proxy(_) => return Ok(typed.buffer.as_ref().is_some_and(|at| at.value)),
        // An ASGI process serves many requests at once, so a slow client does not keep it busy.
        Action::App(name) if is_asgi(file, name) => {
            return Ok(typed.buffer.as_ref().is_some_and(|at| at.value));
        }
        _ => return Ok(typed.buffer.as_ref().is_none_or(|at| at.value)),
    };
    let Some(at) = context.own(&typed.buffer) else { return Ok(false) };
    Err(Problem::new(&at.span, format!("`buffer` has no effect beside `{name}`"))
        .help("a slow client does not delay its replies: leave it out"))
}

/// Returns the value of `on_abort`: that of the route, that of its application, or the default.
fn on_abort(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    action: &Action,
) -> Resolution<OnAbort> {
    let (of_app, default) = match action {
        Action::Files(_)
        | Action::Respond(_)
        | Action::Redirect(_)
        | Action::Moved(_)
        | Action::Rewrite => {
            let Some(at) = context.own(&typed.on_abort) else { return Ok(OnAbort::Cancel) };
            let why = "on a route without an application or server";
            return Err(no_effect(&at.span, "on_abort", why, "leave it out"));
        }
        // Most requests to HTTP servers can be repeated, and a download that nobody waits for need
        // not cross the network. nginx and HAProxy do the same.
        Action::Proxy(_) => (None, OnAbort::Cancel),
        Action::App(name) => {
            let app = file.app.get(name);
            // An ASGI application hears of its client and decides itself what to finish.
            let is_told = is_asgi(file, name);
            let default = if is_told { OnAbort::Cancel } else { OnAbort::Finish };
            (app.and_then(|app| app.on_abort.as_ref()), default)
        }
        _ => (None, OnAbort::Finish),
    };
    Ok(typed.on_abort.as_ref().or(of_app).map_or(default, |at| at.value))
}

/// Returns the value of `request_buffering`, or its default. If true, Forebay receives the whole
/// request body before it sends the request to a server.
fn request_buffering(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    action: &Action,
) -> Resolution<bool> {
    let default = match action {
        Action::Proxy(_) | Action::Ajp(_) => false,
        // gRPC answers a message before the client sends the next one, so bodies must not be held
        // back.
        Action::App(name) if speaks_h2c(file, name) || is_asgi(file, name) => false,
        Action::App(name) if streams_bodies(file, name) => true,
        // The Rack host process accepts only whole bodies.
        Action::App(name) if is_rack(file, name) && typed.request_buffering.is_none() => true,
        _ => {
            let Some(at) = context.own(&typed.request_buffering) else { return Ok(false) };
            return Err(Problem::new(&at.span, "`request_buffering` makes no difference here")
                .help(
                    "it is for `proxy`, `ajp` and for applications that speak asgi, pagi, http, h2c or ajp; \
                     other routes take whole bodies, or none",
                ));
        }
    };
    Ok(typed.request_buffering.as_ref().map_or(default, |at| at.value))
}

/// Returns the treatment of path parameters. The key is an error on a route without `proxy`, `ajp`,
/// or a program that speaks HTTP or AJP.
fn path_parameters(
    context: &Context<'_>,
    file: &File,
    typed: &file::Route,
    action: &Action,
) -> Resolution<PathParameters> {
    let may_drop = match action {
        Action::Proxy(_) | Action::Ajp(_) => true,
        Action::App(name) => streams_bodies(file, name),
        _ => false,
    };
    match (&typed.path_parameters, may_drop) {
        (None, true) => Ok(PathParameters::Match),
        (None, false) => Ok(PathParameters::Ignore),
        (Some(at), false) if context.is_default(&at.span) => Ok(PathParameters::Ignore),
        (Some(at), false) => {
            Err(Problem::new(&at.span, "`path_parameters` makes no difference here").help(
                "it is for `proxy`, `ajp` and for applications that speak http, h2c or ajp: leave it out",
            ))
        }
        (Some(at), true) => Ok(at.value),
    }
}

fn is_rack(file: &File, app: &str) -> bool {
    let kind = file.app.get(app).and_then(|app| app.kind.as_ref());
    kind.is_some_and(|at| matches!(at.value, Kind::Rack))
}

/// Returns true if the application is a program that can get bodies as they arrive.
fn streams_bodies(file: &File, app: &str) -> bool {
    let protocols = [AppProtocol::Http, AppProtocol::H2c, AppProtocol::Ajp];
    spoken_by(file, app).is_some_and(|spoken| protocols.contains(&spoken))
}

fn speaks_h2c(file: &File, app: &str) -> bool {
    spoken_by(file, app) == Some(AppProtocol::H2c)
}

/// Returns true if the application is an ASGI or PAGI application, which reads bodies as they arrive.
fn is_asgi(file: &File, app: &str) -> bool {
    let kind = file.app.get(app).and_then(|app| app.kind.as_ref());
    kind.is_some_and(|at| matches!(at.value, Kind::Asgi | Kind::Pagi))
}

fn spoken_by(file: &File, app: &str) -> Option<AppProtocol> {
    let speaks = file.app.get(app).and_then(|app| app.speaks.as_ref())?;
    Some(speaks.value)
}

/// Returns true if the action looks for a script in each path: `/a.php/b` names the script `/a.php`
/// with the PATH_INFO `/b`.
fn runs_scripts(file: &File, action: &Action) -> bool {
    match action {
        Action::Cgi(_) => true,
        Action::Fastcgi(fastcgi) => fastcgi.mount.is_none(),
        Action::App(name) => !takes_every_path(file, name),
        _ => false,
    }
}

/// Returns true if the application is one program that answers all paths.
fn takes_every_path(file: &File, app: &str) -> bool {
    let kind = file.app.get(app).and_then(|app| app.kind.as_ref());
    kind.is_some_and(|at| {
        matches!(
            at.value,
            Kind::Psgi
                | Kind::ModPerl
                | Kind::Wsgi
                | Kind::Asgi
                | Kind::Pagi
                | Kind::Rack
                | Kind::Node
                | Kind::Java
                | Kind::Command
        )
    })
}

/// Checks `sendfile_root`. Only routes whose replies come from another program may have it.
fn sendfile_root(
    context: &Context<'_>,
    typed: &file::Route,
    action: &Action,
) -> Resolution<Option<PathBuf>> {
    let Some(at) = &typed.sendfile_root else { return Ok(None) };
    match own_answer(action) {
        None => directory(context.sources, at).map(Some),
        Some(_) if context.is_default(&at.span) => Ok(None),
        Some(name) => Err(needs_program(&at.span, "sendfile_root", name)),
    }
}

/// Checks `internal_redirects`. Only routes whose replies come from another program may have it.
fn internal_redirects(
    context: &Context<'_>,
    typed: &file::Route,
    action: &Action,
) -> Resolution<bool> {
    let Some(at) = typed.internal_redirects.as_ref().filter(|at| at.value) else {
        return Ok(false);
    };
    match own_answer(action) {
        None => Ok(true),
        Some(_) if context.is_default(&at.span) => Ok(false),
        Some(name) => Err(needs_program(&at.span, "internal_redirects", name)),
    }
}

/// Returns the key of an action that needs no application and no backend. Returns `None` for other
/// actions.
fn own_answer(action: &Action) -> Option<&'static str> {
    match action {
        Action::Files(_) => Some("files"),
        Action::Respond(_) => Some("respond"),
        Action::Redirect(_) | Action::Moved(_) => Some("redirect"),
        Action::Rewrite => Some("rewrite"),
        _ => None,
    }
}

fn needs_program(span: &Range<usize>, key: &str, beside: &str) -> Problem {
    Problem::new(span, format!("`{key}` has no effect beside `{beside}`")).help(
        "it is for `cgi`, `fastcgi`, `scgi`, `uwsgi`, `ajp`, `proxy` and `app`, which can ask for a \
               file to be sent",
    )
}

/// Checks the conditions that select the route.
fn matcher(typed: &file::Route) -> Resolution<Matcher> {
    let mut matcher = Matcher::default();
    for at in [&typed.path, &typed.paths].into_iter().flatten() {
        matches_some(&at.items(), &at.span)?;
        for item in at.items() {
            matcher.paths.push(path_pattern(&item)?);
        }
    }
    if let Some(at) = &typed.suffix {
        matches_some(&at.items(), &at.span)?;
        matcher.suffixes = at.items().iter().map(suffix).collect::<Resolution<_>>()?;
    }
    if let Some(at) = &typed.suffix_ignore_case {
        if at.value && typed.suffix.is_none() {
            return Err(Problem::new(
                &at.span,
                "`suffix_ignore_case` has no effect without `suffix`",
            )
            .help(
                "add suffix = \".php\"; for a regular expression, write path_regex = \"~*...\"",
            ));
        }
        matcher.suffix_ignores_case = at.value;
    }
    if let Some(at) = &typed.methods {
        matches_some(&at.items(), &at.span)?;
        matcher.methods = at.items().iter().map(method).collect::<Resolution<_>>()?;
    }
    matcher.regex = typed.path_regex.clone();
    matcher.when = typed.when.clone().map(Box::new);
    Ok(matcher)
}

/// Checks a path, which must begin with a slash and may end in `*`.
fn path_pattern(typed: &At<&String>) -> Resolution<PathPattern> {
    let text = text(typed)?;
    let problem = Problem::new(&typed.span, format!("\"{text}\" is not a path"));
    if !text.starts_with('/') {
        let path = text
            .split_once("://")
            .map_or(text, |(_, rest)| rest.find('/').map_or("*", |slash| &rest[slash + 1..]));
        if let Some(suffix) = text.strip_prefix("*.") {
            return Err(problem.help(format!("for an end of a path write suffix = \".{suffix}\"")));
        }
        return Err(problem.help(format!("a path begins with a slash: \"/{path}\"")));
    }
    let (before, star) = match text.strip_suffix('*') {
        Some(before) => (before, true),
        None => (text, false),
    };
    if before.contains('*') {
        return Err(problem
            .label("has a `*` that is not its last character")
            .help("a `*` must be last, as in \"/x/*\"; for an end of a path there is `suffix`"));
    }
    if text.contains(['?', '#']) {
        return Err(problem.help("a path ends before the query: leave off `?`, `#` and the rest"));
    }
    if let Some(percent) = text.find('%') {
        let hex = text.as_bytes()[percent + 1..].iter().take(2);
        if hex.filter(|byte| byte.is_ascii_hexdigit()).count() == 2 {
            return Err(problem.help("paths are compared decoded: write the character itself"));
        }
    }
    if before.split('/').any(|part| part == "." || part == "..") || before.contains("//") {
        return Err(problem.help("paths are compared without `//`, `.` and `..`: leave them out"));
    }
    Ok(if star {
        PathPattern::Prefix(before.to_owned())
    } else {
        PathPattern::Exact(before.to_owned())
    })
}

fn suffix(typed: &At<&String>) -> Resolution<String> {
    let text = text(typed)?;
    let problem = Problem::new(&typed.span, format!("\"{text}\" is not the end of a file name"));
    let plain = text.trim_start_matches('*');
    if plain != text {
        return Err(problem.label("has a `*`").help(format!("write \"{plain}\"")));
    }
    if text.contains(['/', '*']) {
        return Err(problem.help("write an end such as \".php\"; for directories there is `path`"));
    }
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(problem.label("no dot").help(format!("write \".{text}\"")));
    }
    Ok(text.to_owned())
}

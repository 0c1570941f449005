//! The origin that answers, and the data that it would receive.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_conf::{
    Action, Activation, Address, Ajp, App, AppKind, AppServer, Backend, Cgi, Fastcgi, Files,
    HttpVersion, Listening, Listing, Plan, Proxy, ProxyHeader, Redirect, Route, ServerProtocol,
    Site, Upstream,
};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_origin::apps::definition::{Definition, definition, env, env_of_requests};
use forebay_origin::apps::program;
use forebay_origin::apps::program::Protocol;
use forebay_origin::apps::running;
use forebay_origin::apps::scripts::unmarked;
use forebay_origin::apps::worker::Target;
use forebay_origin::files::open::open;
use forebay_origin::files::{FileLanguages, MediaTypes, RouteId, ScriptRoutes, fault, is_hidden};
use forebay_origin::moved::new_address;
use forebay_origin::respond::location;
use forebay_origin::rules::keeps_from;
use forebay_origin::scripts::cgi::{PASSED, no_script};
use forebay_origin::scripts::interpreter::{Languages, first_line};
use forebay_origin::scripts::warm::Runner;
use forebay_server::dispatch::kept_from_scripts;
use forebay_upstream::ajp::append_head as append_packet;
use forebay_upstream::announce;
use forebay_upstream::mount::Mount;
use forebay_upstream::proxy::{append_head, append_http2_head, append_scoped_head};
use forebay_upstream::script::{NoScript, Script, Scripts, exact_paths, find, scripts_of};
use forebay_upstream::{app_server, fastcgi};
use forebay_wire::ajp13::{Attribute, RequestHead, parse_request};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::{KnownField, RequestFraming};
use forebay_wire::{scgi, uwsgi};
use forebay_workers::Right;

use super::Explanation;
use crate::separation::{gateway_person, person_of};

/// Appends the origin and its data. Returns a path if Forebay must select a route again for that
/// path, otherwise `None`. Returns a fault if the origin would answer with an error, or would leave
/// the request to a later route.
pub(super) fn origin(
    plan: &Plan,
    site: &Site,
    route: &Route,
    request: &Request,
    text: &mut Explanation,
) -> Result<Option<Vec<u8>>, Fault> {
    if let Action::Files(settings) = &route.action {
        // This process may read more than the user that will serve.
        let below = request.rest().strip_prefix(b"/").unwrap_or(request.rest());
        let path = settings.root.join(std::ffi::OsStr::from_bytes(below));
        let right = if path.is_dir() { Right::Run } else { Right::Read };
        let gateway = gateway_person(&plan.server);
        if let Some(refused) = gateway.and_then(|gateway| gateway.refusal(&path, right)) {
            return Err(Fault::client(403, refused.message));
        }
        let scripts = ScriptRoutes::of(site, plan);
        let outcome = files(settings, &scripts, route.passes_on(), request, text);
        return outcome.map_err(|fault| kept(plan, site, route, request, fault));
    }
    processes(plan, route, request, text).map(|()| None)
}

fn processes(
    plan: &Plan,
    route: &Route,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    match &route.action {
        Action::Files(_) => Ok(()),
        Action::Cgi(settings) => script_of_cgi(route, settings, request, text),
        Action::Fastcgi(settings) => script_of_fastcgi(settings, request, text),
        Action::AppServer(settings) => variables_of_server(settings, request, text),
        Action::Ajp(settings) => ajp(settings, request, text),
        Action::Proxy(settings) => {
            proxy(settings, request, text);
            Ok(())
        }
        Action::App(name) if running::listens(&plan.apps[name]) => {
            program(name, &plan.apps[name], request, text)
        }
        Action::App(name) => {
            let app = &plan.apps[name];
            let (script, variables, runner) = match Target::of(app, route) {
                Target::Scripts(scripts) => {
                    let (script, mut variables) = find_script(&scripts, request)?;
                    replace(&mut variables, &env_of_requests(app));
                    let runner = runner(name, app, &script)?;
                    (script, variables, runner)
                }
                Target::Mount(mount) => {
                    let (file, mut variables) = mounted(mount, request);
                    replace(&mut variables, &env_of_requests(app));
                    (file, variables, format!("a worker of [app.{name}]"))
                }
            };
            text.item("origin", format!("app {name}: {runner}").as_bytes());
            text.item("script", script.as_os_str().as_bytes());
            let person = person_of(&plan.server, app.user.as_deref(), app.group.as_deref());
            if let Some(refused) = person.and_then(|person| person.refusal(&script, Right::Read)) {
                text.item("refused", refused.message.as_bytes());
            }
            append(text, "variables", variables);
            environment(app, text);
            Ok(())
        }
        Action::Respond(respond) => {
            let said = format!("a fixed reply: {} ({})", respond.status, respond.content_type);
            text.item("origin", said.as_bytes());
            text.answer.decide(respond.status);
            Ok(())
        }
        Action::Redirect(redirect) => redirection(redirect, request, text),
        Action::Moved(pages) => {
            let (moved, location) = new_address(pages, request)?;
            let to = String::from_utf8_lossy(&location);
            let said = format!("a redirection: {} to {to}", moved.status);
            text.item("origin", said.as_bytes());
            text.answer.redirect(moved.status, to.into_owned());
            Ok(())
        }
        // The caller selects a route for the new path.
        Action::Rewrite => Ok(()),
    }
}

/// Appends the redirection. Returns a fault if the redirect has no valid target for this request.
pub(super) fn redirection(
    redirect: &Redirect,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let to = location(redirect, request)?;
    let to = String::from_utf8_lossy(&to);
    let said = format!("a redirection: {} to {to}", redirect.status);
    text.item("origin", said.as_bytes());
    text.answer.redirect(redirect.status, to.into_owned());
    Ok(())
}

/// Returns `fault`, the fault of a files route. Exception: `fault` passes the request on to later
/// routes, and the files route forbids some of these routes to run its files. If a forbidden route
/// would run the requested file, returns a 404 fault. Otherwise marks `fault`, so that the
/// forbidden routes cannot run the file.
fn kept(plan: &Plan, site: &Site, route: &Route, request: &Request, fault: Fault) -> Fault {
    let at = site.routes.iter().position(|other| std::ptr::eq(other, route));
    let kept_from = at.map(|at| keeps_from(site, plan, at)).unwrap_or_default();
    let Action::Files(settings) = &route.action else { return fault };
    let is_here = find(&settings.root, request.rest()) != Err(NoScript::NotFound);
    if kept_from.is_empty() || !fault.is_declined() || !is_here {
        return fault;
    }
    let is_run_by = |id| kept_from.iter().any(|&below| RouteId::of(site, below) == id);
    if script_route(settings, &ScriptRoutes::of(site, plan), request).is_some_and(is_run_by) {
        kept_from_scripts()
    } else {
        fault.kept_from_scripts()
    }
}

/// Returns the route that runs the file that the path names. In `/x.php/a`, this file is `x.php`.
/// Returns `None` if no route runs the file.
fn script_route(settings: &Files, scripts: &ScriptRoutes, request: &Request) -> Option<RouteId> {
    let rest = request.rest();
    let itself = || {
        let (file, path) = look_at(settings, rest).ok()?;
        run_by(scripts, &file, &path)
    };
    script_before(settings, scripts, rest).or_else(itself)
}

/// Appends the answer of a files route: a file, a redirect or a listing. If a directory has a
/// script as index, returns the script's path, otherwise `None`. The caller then selects a route
/// for that path. Returns a fault if the files route would answer with an error, or would leave the
/// request to a later route.
fn files(
    settings: &Files,
    scripts: &ScriptRoutes,
    fallback: bool,
    request: &Request,
    text: &mut Explanation,
) -> Result<Option<Vec<u8>>, Fault> {
    text.item("origin", format!("files below {}", settings.root.display()).as_bytes());
    let is_read = matches!(request.method(), b"GET" | b"HEAD");
    let status = if fallback { 404 } else { 405 };
    let refused = || Fault::client(status, "files take GET and HEAD").decline(Decline::IfFallback);
    let rest = request.rest();
    let name = String::from_utf8_lossy(rest);
    let missing = || Fault::client(404, format!("no file {name:?}")).decline(Decline::IfFallback);
    if let Some(id) = script_before(settings, scripts, rest) {
        return Err(not_sent(id));
    }
    if !settings.hidden && is_hidden(rest) {
        let why = format!("{name:?} begins with a dot, and `hidden` is false");
        return Err(Fault::client(404, why).decline(Decline::IfFallback));
    }
    let found = look_for(settings, scripts, request, rest);
    if !is_read && found.is_err() {
        return Err(refused());
    }
    let (file, path) = found.map_err(|error| error.unwrap_or_else(missing))?;
    let metadata = file.metadata();
    let is_directory = metadata.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    if !is_directory && metadata.is_ok_and(|metadata| !metadata.is_file()) {
        let why = "neither a file nor a directory";
        return Err(if is_read { Fault::client(403, why) } else { refused() });
    }
    let wants_directory = request.path.ends_with(b"/");
    if !is_directory {
        return match run_by(scripts, &file, &path) {
            _ if wants_directory => Err(missing()),
            Some(id) => Err(not_sent(id)),
            None if !is_read => Err(refused()),
            None => {
                text.item("file", path.as_os_str().as_bytes());
                if !settings.types.is_empty() {
                    let kind = MediaTypes::new(settings).of(path.as_os_str().as_bytes());
                    text.item("type", kind.as_bytes());
                }
                text.answer.decide(200);
                Ok(None)
            }
        };
    }
    let own = settings.index.iter().map(String::as_str);
    let index = own.chain(scripts.indexes()).find_map(|name| {
        let below = [rest.strip_suffix(b"/").unwrap_or(rest), b"/", name.as_bytes()].concat();
        let below = below.strip_prefix(b"/").unwrap_or(&below);
        let (file, path) = look_for(settings, scripts, request, below).ok()?;
        let is_script = run_by(scripts, &file, &path).is_some();
        let is_own = settings.index.iter().any(|own| own == name);
        (is_script || is_own).then_some((name, path, is_script))
    });
    let is_empty = index.is_none() && settings.listing == Listing::Never;
    match index {
        Some((name, _, true)) if wants_directory => {
            return Ok(Some([&request.path, name.as_bytes()].concat()));
        }
        _ if !is_read => return Err(refused()),
        _ if is_empty && fallback => {
            return Err(Fault::client(404, "a directory without an index file")
                .decline(Decline::IfFallback));
        }
        _ if !wants_directory => {
            text.item("answer", b"301 to the same path with a slash: it is a directory");
            let (path, query) = split_query(request.target());
            let location = [path, b"/", query].concat();
            text.answer.redirect(301, String::from_utf8_lossy(&location).into_owned());
        }
        _ if is_empty => return Err(Fault::client(403, "a directory without an index file")),
        Some((_, path, _)) => text.item("file", path.as_os_str().as_bytes()),
        None => {
            text.item("answer", b"200 a listing of the directory");
            if let Listing::Template(template) = &settings.listing {
                text.item("template", template.file.as_os_str().as_bytes());
            }
        }
    }
    text.answer.decide(200);
    Ok(None)
}

/// Returns the path, and the query with its question mark.
fn split_query(target: &[u8]) -> (&[u8], &[u8]) {
    target.split_at(target.iter().position(|&byte| byte == b'?').unwrap_or(target.len()))
}

fn not_sent(id: RouteId) -> Fault {
    let why = format!("a script of the route on line {}; its source is not sent", id.line);
    Fault::client(404, why).decline(Decline::Always)
}

/// Returns the route that runs a script before the end of the path, as in `/x.php/a`. Returns
/// `None` if there is no such script.
fn script_before(settings: &Files, scripts: &ScriptRoutes, rest: &[u8]) -> Option<RouteId> {
    let ends = rest.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut beginnings = ends.map(|(end, _)| &rest[..end]);
    beginnings.find_map(|beginning| {
        let (file, path) = look_at(settings, beginning).ok()?;
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        let is_shown = settings.hidden || !is_hidden(beginning);
        let id = (is_file && is_shown).then(|| run_by(scripts, &file, &path))??;
        scripts.takes_path_info(id).then_some(id)
    })
}

/// Opens a file or directory in the same way as a files route. The error is `None` if the path
/// does not exist.
fn look_at(settings: &Files, below: &[u8]) -> Result<(File, PathBuf), Option<Fault>> {
    let file = open(&settings.root, below, settings.follow_symlinks).map_err(|error| {
        let fault = fault(&error);
        (fault.status != 404).then_some(fault)
    })?;
    Ok((file, settings.root.join(Path::new(std::ffi::OsStr::from_bytes(below)))))
}

/// Opens a file, or its variant in the language that the client prefers. As in [`look_at`], the
/// error is `None` if the path does not exist.
fn look_for(
    settings: &Files,
    scripts: &ScriptRoutes,
    request: &Request,
    below: &[u8],
) -> Result<(File, PathBuf), Option<Fault>> {
    let plain = look_at(settings, below);
    let Some(languages) = FileLanguages::new(&settings.languages) else { return plain };
    let is_sent = |(file, path): &(File, PathBuf)| {
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        is_file && run_by(scripts, file, path).is_none()
    };
    let is_plain = plain.as_ref().is_ok_and(is_sent);
    let is_missing = matches!(plain, Err(None)) && !below.ends_with(b"/");
    if languages.are_in(below) || !is_plain && !is_missing {
        return plain;
    }
    let exists = |path: &[u8]| look_at(settings, path).is_ok_and(|found| is_sent(&found));
    let variant = languages.preferred(request, below, (is_plain, 0), exists);
    variant.map_or(plain, |variant| look_at(settings, &variant))
}

fn run_by(scripts: &ScriptRoutes, file: &File, path: &Path) -> Option<RouteId> {
    let mut start = [0; 4];
    let read = file.read_at(&mut start, 0).unwrap_or(0);
    scripts.runner(path, file, &start[..read])
}

/// Adds the variables in `by`, which replace variables of the same names.
fn replace(variables: &mut VariableList, by: &BTreeMap<String, String>) {
    for (name, value) in by {
        variables.retain(|(other, _)| other != name.as_bytes());
        variables.variable(name.as_bytes(), value.as_bytes());
    }
}

/// Appends the variables that the configuration adds to the environment of an application's
/// processes.
fn environment(app: &App, text: &mut Explanation) {
    let variables = env(app).into_iter().map(|(name, value)| (name.into(), value.into()));
    let variables: VariableList = variables.collect();
    if !variables.is_empty() {
        append(text, "environment", variables);
    }
}

/// Returns a text that names the kind of process that runs an application's script, and says why.
/// Returns a fault if no process may run the script.
fn runner(name: &str, app: &App, script: &Path) -> Result<String, Fault> {
    let Ok(Definition::Scripts(spec)) = definition(name, app) else {
        return Ok(format!("a worker of [app.{name}]"));
    };
    let language = Languages::default().of(script);
    let line = first_line(script).map(|line| format!(", as its first line is {line:?}"));
    let line = line.unwrap_or_default();
    match spec.warm.runner(script, &language) {
        Runner::Perl => Ok(format!("a worker of [app.{name}] for Perl{line}")),
        Runner::Python => Ok(format!("a worker of [app.{name}] for Python{line}")),
        Runner::Process => Ok(format!("a process for the request{line}")),
        Runner::Nobody => Err(unmarked(script)),
    }
}

/// Names and values.
type VariableList = Vec<(Vec<u8>, Vec<u8>)>;

fn find_script(scripts: &Scripts, request: &Request) -> Result<(PathBuf, VariableList), Fault> {
    let script = scripts.find(request.rest(), 0).map_err(no_script)?;
    Ok((script.file.clone(), variables_of(&script, scripts.dir(), request)))
}

fn variables_of(script: &Script, dir: &Path, request: &Request) -> VariableList {
    let mut variables = VariableList::new();
    cgi::variables(&script.describe(request, dir, content_length(request)), &mut variables);
    variables
}

fn mounted(mount: Mount, request: &Request) -> (PathBuf, VariableList) {
    let mut variables = VariableList::new();
    let parts = mount.parts(request);
    cgi::variables(&mount.describe(request, &parts, content_length(request)), &mut variables);
    (mount.file, variables)
}

/// Returns the body's length from the head. Returns `None` if the body is chunked or absent.
fn content_length(request: &Request) -> Option<u64> {
    match request.head.framing {
        RequestFraming::Length(length) => Some(length),
        RequestFraming::None | RequestFraming::Chunked => None,
    }
}

/// Appends the script of a CGI route and its environment variables.
fn script_of_cgi(
    route: &Route,
    settings: &Cgi,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let (script, mut variables) = match &settings.program {
        Some(program) => {
            let script = Script::one_for_all(program, request, &exact_paths(route));
            (program.clone(), variables_of(&script, &settings.dir, request))
        }
        None => find_script(&scripts_of(&settings.dir, route), request)?,
    };
    text.item("origin", b"cgi: a process for the request");
    text.item("script", script.as_os_str().as_bytes());
    for name in PASSED {
        if let Some(value) = std::env::var_os(name) {
            variables.variable(name.as_bytes(), value.as_bytes());
        }
    }
    replace(&mut variables, &settings.env);
    append(text, "variables", variables);
    Ok(())
}

fn script_of_fastcgi(
    settings: &Fastcgi,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let script = fastcgi::Script::of_route(request, settings, (&Default::default(), 0))?;
    servers("fastcgi", &settings.upstream, ", in turn with ", text);
    if settings.mount.is_none() {
        text.item("script", script.file());
    }
    let mut variables = VariableList::new();
    script.append_variables(request, settings, content_length(request), &mut variables);
    append(text, "variables", variables);
    Ok(())
}

/// Appends the variables that an application server would receive, decoded from the encoded
/// request. Returns a fault if the request cannot be encoded.
fn variables_of_server(
    settings: &AppServer,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let name = app_server::name(settings.protocol);
    servers(name, &settings.upstream, ", in turn with ", text);
    read_back(settings, request, text)
}

fn read_back(settings: &AppServer, request: &Request, text: &mut Explanation) -> Result<(), Fault> {
    let mut out = Vec::new();
    app_server::append_head(&mut out, request, settings, content_length(request))?;
    let ranges = match settings.protocol {
        ServerProtocol::Scgi => scgi::parse(&out, out.len()).ok().flatten().map(|p| p.variables),
        ServerProtocol::Uwsgi { .. } => uwsgi::parse(&out).ok().flatten().map(|p| p.variables),
    };
    let pairs = ranges.into_iter().flatten();
    append(
        text,
        "variables",
        pairs.map(|(name, value)| (out[name].to_vec(), out[value].to_vec())).collect(),
    );
    Ok(())
}

/// Appends the name of an application that listens by itself, and the data that this application
/// would receive.
fn program(name: &str, app: &App, request: &Request, text: &mut Explanation) -> Result<(), Fault> {
    let options = running::program_options(app);
    let spoken = match &options.protocol {
        Protocol::Http(route) if route.variables.is_some() => "Rack",
        Protocol::Http(route) if route.scope_line.is_some() => "ASGI",
        Protocol::Http(route) if route.version == HttpVersion::Http2 => "HTTP/2",
        Protocol::Http(_) => "HTTP",
        Protocol::Fastcgi(..) => "FastCGI",
        Protocol::AppServer(settings) => app_server::name(settings.protocol),
        Protocol::Ajp(_) => "AJP",
    };
    text.item("origin", format!("app {name}: a process of [app.{name}], over {spoken}").as_bytes());
    match &options.protocol {
        Protocol::Http(route) => {
            if let Some(cookie) = &route.sticky {
                let line = format!("the process that the cookie {cookie} names, if it has room");
                text.item("sticky", line.as_bytes());
            }
            match (&route.variables, &route.scope_line) {
                (None, Some(line)) => {
                    let mut head = Vec::new();
                    append_scoped_head(&mut head, request, line);
                    lines(&head, text);
                }
                (Some(settings), _) => {
                    let mut variables = VariableList::new();
                    settings.append(request, &mut variables);
                    append(text, "variables", variables);
                }
                (None, None) => {
                    let name = authority(app);
                    head(&route.to(Address::Tcp(name.into()), name), request, text);
                }
            }
        }
        Protocol::AppServer(settings) => {
            read_back(settings, request, text)?;
        }
        Protocol::Ajp(settings) => packet(settings, request, text)?,
        Protocol::Fastcgi(mapping, settings) => {
            let script = mapping.find(request, settings, (&Default::default(), 0))?;
            text.item("script", script.file());
            let mut variables = VariableList::new();
            script.append_variables(request, settings, content_length(request), &mut variables);
            append(text, "variables", variables);
        }
    }
    environment(app, text);
    Ok(())
}

/// Returns the authority of an application that speaks HTTP. `{port}` represents a port that is
/// chosen when the application starts.
fn authority(app: &App) -> &'static str {
    match app.kind {
        AppKind::Command { listen: Listening::Port | Listening::InheritPort, .. } => {
            "127.0.0.1:{port}"
        }
        _ => program::UNIX_AUTHORITY,
    }
}

fn proxy(settings: &Proxy, request: &Request, text: &mut Explanation) {
    servers("proxy", &settings.upstream, " or ", text);
    if settings.upstream.send_proxy.is_some() {
        let mut line = Vec::new();
        announce::append_client(&mut line, ProxyHeader::V1, request.client, request.server);
        text.item("announced", line.trim_ascii_end());
    }
    head(settings, request, text);
}

/// Appends the servers and the name of their group.
fn servers(kind: &str, upstream: &Upstream, between: &str, text: &mut Explanation) {
    let to: Vec<_> = upstream.addresses().map(ToString::to_string).collect();
    let to = to.join(between);
    let line = match &upstream.name {
        Some(name) => format!("{kind}: [upstream.{name}], {to}"),
        None => format!("{kind}: {to}"),
    };
    text.item("origin", line.as_bytes());
    for backend in &upstream.to {
        let rank = rank(backend, upstream);
        if !rank.is_empty() {
            text.item("server", format!("{}: {}", backend.address, rank.join(", ")).as_bytes());
        }
    }
}

/// Returns the reasons why the group prefers other backends to `backend`.
fn rank(backend: &Backend, upstream: &Upstream) -> Vec<String> {
    let mut rank = Vec::new();
    if backend.backup {
        rank.push("backup".to_owned());
    }
    if backend.distance > 0 {
        rank.push(format!("distance {}", backend.distance));
    }
    match backend.activation {
        Activation::Active => {}
        Activation::Disabled => rank.push("disabled: only for clients that stay with it".into()),
        Activation::Stopped => rank.push("stopped".into()),
    }
    if let Some(other) = backend.redirect.and_then(|index| upstream.to.get(index)) {
        rank.push(format!("{} takes its place", other.address));
    }
    rank
}

/// Appends the head that an HTTP server would receive.
fn head(settings: &Proxy, request: &Request, text: &mut Explanation) {
    let mut head = Vec::new();
    match settings.upstream.to.first().map(|backend| backend.version) {
        Some(HttpVersion::Http2) => append_http2_head(&mut head, request, settings, 0),
        _ => append_head(&mut head, request, settings, 0),
    }
    if settings.upstream.to.iter().any(|backend| backend.version == HttpVersion::Negotiated) {
        text.item("version", b"HTTP/2 if the server chooses it (ALPN), else HTTP/1.1 as shown");
    }
    lines(&head, text);
    if request.head.value(KnownField::Expect, &request.bytes).is_some() {
        text.item("", b"Forebay answers Expect when it reads the body");
    }
}

fn lines(head: &[u8], text: &mut Explanation) {
    let lines = head.trim_ascii_end().split(|&b| b == b'\n');
    text.list("head", lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
}

/// Appends the head that a container would receive, decoded from the encoded packet.
fn ajp(settings: &Ajp, request: &Request, text: &mut Explanation) -> Result<(), Fault> {
    servers("ajp", &settings.upstream, " or ", text);
    packet(settings, request, text)
}

/// Appends the fields and attributes of the AJP packet, decoded as a servlet container decodes
/// them.
fn packet(settings: &Ajp, request: &Request, text: &mut Explanation) -> Result<(), Fault> {
    let (mut out, mut head) = (Vec::new(), RequestHead::default());
    append_packet(&mut out, request, settings, request.head.framing)?;
    if parse_request(&out, settings.packet_size, &mut head).is_err() {
        return Err(Fault::us(500, "a request that no container could read"));
    }
    let bytes = head.fields.bytes();
    let line = [head.method, head.uri, head.protocol].map(|span| span.of(bytes));
    let fields = head.fields.iter().map(|field| [field.name, b": ", field.value].concat());
    text.list("head", std::iter::once(line.join(&b' ')).chain(fields));
    let mut variables = VariableList::new();
    for (name, attribute) in [
        ("remote_user", Attribute::RemoteUser),
        ("auth_type", Attribute::AuthType),
        ("query_string", Attribute::QueryString),
    ] {
        if let Some(value) = head.attribute(attribute) {
            variables.variable(name.as_bytes(), value);
        }
    }
    variables.variable(b"remote_addr", head.remote_addr.of(bytes));
    variables.variable(b"server_name", head.server_name.of(bytes));
    variables.variable(b"server_port", head.server_port.to_string().as_bytes());
    variables.variable(b"is_ssl", head.is_ssl.to_string().as_bytes());
    if settings.secret.is_some() {
        variables.variable(b"secret", b"(not shown)");
    }
    for (name, value) in &head.request_attributes {
        variables.variable(name.of(bytes), value.of(bytes));
    }
    append(text, "attributes", variables);
    Ok(())
}

fn append(text: &mut Explanation, label: &str, variables: VariableList) {
    text.list(
        label,
        variables.into_iter().map(|(name, value)| [&name, &b"="[..], &value].concat()),
    );
}

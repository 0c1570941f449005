//! The origin that answers, and the data that it would receive.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_conf::{
    Action, Activation, Address, Ajp, App, AppKind, AppServer, Backend, Cgi, Fastcgi, Files,
    HttpVersion, Listening, Listing, Plan, Proxy, ProxyHeader, Redirect, Route, ServerProtocol,
    Upstream,
};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_origin::apps::definition::{Definition, definition, env, env_of_requests};
use forebay_origin::apps::program;
use forebay_origin::apps::program::Protocol;
use forebay_origin::apps::running;
use forebay_origin::apps::scripts::unmarked;
use forebay_origin::apps::worker::Target;
use forebay_origin::files::{FileAnswer, FileResolver, MediaTypes, location_with_slash};
use forebay_origin::moved::new_address;
use forebay_origin::respond::location;
use forebay_origin::scripts::cgi::{PASSED, no_script, obstacle};
use forebay_origin::scripts::interpreter::{Languages, first_line};
use forebay_origin::scripts::warm::Runner;
use forebay_upstream::ajp::append_head as append_packet;
use forebay_upstream::append_proxy_header;
use forebay_upstream::mount::Mount;
use forebay_upstream::proxy::{append_head, append_http2_head, append_scoped_head};
use forebay_upstream::script::{Script, Scripts, exact_paths, scripts_of};
use forebay_upstream::{app_server, fastcgi};
use forebay_wire::ajp13::{Attribute, RequestHead, parse_request};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::{KnownField, RequestFraming};
use forebay_wire::{scgi, uwsgi};
use forebay_workers::{Person, Right};

use super::Explanation;
use crate::separation::{gateway_person, person_of};

/// Appends the origin and its data. `files` is the resolver of a files route. Returns a fault if the
/// origin would answer with an error, or would leave the request to another route.
pub(super) fn origin(
    plan: &Plan,
    route: &Route,
    resolver: Option<&FileResolver>,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    match &route.action {
        Action::Files(settings) => {
            // This process may read more than the user that will serve.
            let below = request.rest().strip_prefix(b"/").unwrap_or(request.rest());
            let path = settings.root.join(std::ffi::OsStr::from_bytes(below));
            let right = if path.is_dir() { Right::Run } else { Right::Read };
            let gateway = gateway_person(&plan.server);
            if let Some(refused) = gateway.and_then(|gateway| gateway.refusal(&path, right)) {
                return Err(Fault::client(403, refused.message));
            }
            let resolver = resolver.expect("a files route has a resolver");
            files(settings, resolver, request, text)
        }
        Action::Cgi(settings) => {
            let person =
                person_of(&plan.server, settings.user.as_deref(), settings.group.as_deref());
            script_of_cgi(route, settings, person.as_ref(), request, text)
        }
        Action::Fastcgi(settings) => {
            let found = script_of_fastcgi(settings, request, text);
            sockets(plan, &settings.upstream, text);
            found
        }
        Action::AppServer(settings) => {
            let found = variables_of_server(settings, request, text);
            sockets(plan, &settings.upstream, text);
            found
        }
        Action::Ajp(settings) => {
            let found = ajp(settings, request, text);
            sockets(plan, &settings.upstream, text);
            found
        }
        Action::Proxy(settings) => {
            proxy(settings, request, text);
            sockets(plan, &settings.upstream, text);
            Ok(())
        }
        Action::App(name) if running::listens(&plan.apps[name]) => {
            program(name, &plan.apps[name], request, text)
        }
        Action::App(name) => {
            let app = &plan.apps[name];
            let person = person_of(&plan.server, app.user.as_deref(), app.group.as_deref());
            let (script, variables, runner, is_process) = match Target::of(app, route) {
                Target::Scripts(scripts) => {
                    let (script, mut variables) = find_script(&scripts, request)?;
                    replace(&mut variables, &env_of_requests(app));
                    let (runner, is_process) = runner(name, app, &script)?;
                    (script, variables, runner, is_process)
                }
                Target::Mount(mount) => {
                    let (file, mut variables) = mounted(mount, request);
                    replace(&mut variables, &env_of_requests(app));
                    (file, variables, format!("a worker of [app.{name}]"), false)
                }
            };
            text.item("origin", format!("app {name}: {runner}").as_bytes());
            text.item("script", script.as_os_str().as_bytes());
            let refusal = person.as_ref().and_then(|one| one.refusal(&script, Right::Read));
            if let Some(refused) = refusal {
                text.item("refused", refused.message.as_bytes());
            }
            append(text, "variables", variables);
            environment(app, text);
            if is_process { check_run(&script, person.as_ref()) } else { Ok(()) }
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

/// Appends the answer of a files route: a file, a redirect or a listing.
fn files(
    settings: &Files,
    resolver: &FileResolver,
    request: &Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    text.item("origin", format!("files below {}", settings.root.display()).as_bytes());
    match resolver.resolve(request, 0)? {
        FileAnswer::File(below, _) => {
            let path = settings.root.join(Path::new(std::ffi::OsStr::from_bytes(&below)));
            text.item("file", path.as_os_str().as_bytes());
            if !settings.types.is_empty() {
                let kind = MediaTypes::new(settings).of(path.as_os_str().as_bytes());
                text.item("type", kind.as_bytes());
            }
            text.answer.file = Some(path);
        }
        FileAnswer::Listing(_) => {
            text.item("answer", b"200 a listing of the directory");
            if let Listing::Template(template) = &settings.listing {
                text.item("template", template.file.as_os_str().as_bytes());
            }
        }
        FileAnswer::AddSlash => {
            text.item("answer", b"301 to the same path with a slash: it is a directory");
            let location = location_with_slash(request);
            text.answer.redirect(301, String::from_utf8_lossy(&location).into_owned());
        }
        FileAnswer::MethodNotAllowed => return Err(Fault::client(405, "files take GET and HEAD")),
    }
    text.answer.decide(200);
    Ok(())
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
/// Also returns true if the process runs the script itself, not an interpreter that reads it.
/// Returns a fault if no process may run the script.
fn runner(name: &str, app: &App, script: &Path) -> Result<(String, bool), Fault> {
    let Ok(Definition::Scripts(spec)) = definition(name, app) else {
        return Ok((format!("a worker of [app.{name}]"), false));
    };
    let language = Languages::default().of(script);
    let line = first_line(script).map(|line| format!(", as its first line is {line:?}"));
    let line = line.unwrap_or_default();
    match spec.warm.runner(script, &language) {
        Runner::Perl => Ok((format!("a worker of [app.{name}] for Perl{line}"), false)),
        Runner::Python => Ok((format!("a worker of [app.{name}] for Python{line}"), false)),
        Runner::Process => Ok((format!("a process for the request{line}"), true)),
        Runner::Nobody => Err(unmarked(script)),
    }
}

/// Returns the fault with which a script answers that nobody, or not this user, may run.
fn check_run(script: &Path, person: Option<&Person>) -> Result<(), Fault> {
    if let Some(fault) = obstacle(script) {
        return Err(fault);
    }
    let refused = person.and_then(|person| person.refusal(script, Right::Run));
    refused.map_or(Ok(()), |refused| Err(Fault::app(403, refused.message)))
}

/// Appends what keeps the gateway from the Unix sockets of backends.
fn sockets(plan: &Plan, upstream: &Upstream, text: &mut Explanation) {
    let Some(gateway) = gateway_person(&plan.server) else { return };
    for address in upstream.addresses() {
        let Address::Unix(path) = address else { continue };
        let refused = gateway.refusal(path, Right::Write);
        if let Some(refused) = refused.filter(|_| path.exists()) {
            let message = refused.message.replace(" may not write to ", " may not connect to ");
            text.item("refused", message.as_bytes());
        }
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
    person: Option<&Person>,
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
    check_run(&script, person)
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
        append_proxy_header(&mut line, ProxyHeader::V1, request.client, request.server);
        text.item("announced", line.trim_ascii_end());
    }
    if settings.upstream.strict {
        text.item("strict", b"odd HTTP/1.1 replies are refused (502)");
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

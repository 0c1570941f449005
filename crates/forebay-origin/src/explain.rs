//! What would become of a request: site, route, origin, and what the origin would be sent.
//!
//! Nothing is started and nobody is connected to; only the file system is looked at.

mod carried;

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_conf::{Action, Address, App, AppKind, AppServer, Cgi, Fastcgi, Files, HostPattern};
use forebay_conf::{Listen, Listening, Matcher, PathPattern, Plan, Proxy, ProxyHeader, Route};
use forebay_conf::{ServerProtocol, Site};
use forebay_engine::{Fault, Request, best_site, find_client};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::{Known, Limits, Progress, RequestFraming, RequestHead, RequestParser};
use forebay_wire::{path, scgi, uwsgi};

use crate::app::Target;
use crate::build::{target, trust};
use crate::cgi::{PASSED, no_script};
use crate::files::open::open;
use crate::mount::{self, Mount};
use crate::program::{self, Speaks};
use crate::proxy::{announce, append_head};
use crate::running;
use crate::script::Scripts;
use crate::{app_server, fastcgi};

/// A request to explain, as typed.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// `http://host[:port]/path?query`, or the path and query alone.
    pub url: &'a str,
    /// The method.
    pub method: &'a str,
    /// `name: value`.
    pub fields: &'a [String],
    /// The body. Fields that tell its length and type are added where there are none.
    pub body: Option<&'a [u8]>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub struct QuestionError(String);

impl fmt::Display for QuestionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuestionError {}

/// Tells what `plan` would do with a request, in lines of text.
pub fn explain(plan: &Plan, question: &Question<'_>) -> Result<String, QuestionError> {
    let url = Url::parse(question.url)?;
    let (listen, is_guess) = listener(plan, &url);
    let mut request = request(question, &url, &listen, plan)?;
    let sites: Vec<&Site> =
        plan.sites.iter().filter(|site| site.listen.contains(&listen)).collect();
    let authority = request.head.authority.map(|span| span.of(&request.bytes).to_vec());
    let authority = authority.unwrap_or_default();
    let at = best_site(sites.iter().map(|site| &site.hosts[..]), &authority).unwrap_or(0);
    let site = sites[if sites.len() == 1 { 0 } else { at }];
    let peer = request.peer;
    let believed = find_client(&mut request, peer, &trust(site)).map_err(Fault::from);
    let mut text = Lines(String::new());
    text.item("request", &[question.method.as_bytes(), b" ", request.target()].concat());
    if is_guess {
        text.item(
            "",
            format!("no site listens on port {}; taken to {listen}", url.port).as_bytes(),
        );
    }
    let why = why(site, &sites, &authority, &listen);
    text.item("site", format!("line {}: {why}", site.line).as_bytes());
    match believed.and_then(|()| routes(plan, site, &mut request, &mut text)) {
        Ok(()) => {}
        Err(fault) => text.item("answer", format!("{} {fault}", fault.status).as_bytes()),
    }
    carried::append(&mut text, &request, question.body);
    Ok(text.0)
}

/// Lines with a label in front.
struct Lines(String);

impl Lines {
    fn item(&mut self, label: &str, value: &[u8]) {
        let _ = writeln!(self.0, "{label:<10}{}", printable(value));
    }

    fn list<'a>(&mut self, label: &str, lines: impl Iterator<Item = Vec<u8>> + 'a) {
        let _ = writeln!(self.0, "{label}");
        for line in lines {
            let _ = writeln!(self.0, "  {}", printable(&line));
        }
    }
}

/// Text that a terminal takes as it is.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let escaped = text.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    escaped.collect()
}

struct Url<'a> {
    /// `host[:port]`; `None` where only a path was given.
    authority: Option<&'a str>,
    port: u16,
    target: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, QuestionError> {
        let wrong = |what: &str| {
            let example = "give a URL such as http://example.org/path or a path such as /path";
            QuestionError(format!("\"{}\" {what}; {example}", printable(text.as_bytes())))
        };
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("has a character that has to be percent-encoded"));
        }
        let text = text.split('#').next().unwrap_or_default();
        if text.starts_with('/') {
            return Ok(Self { authority: None, port: 80, target: text });
        }
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(wrong(match text.starts_with("https://") {
                true => "is of TLS, which this version leaves to what stands in front of it",
                false => "is no URL",
            }));
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let port = match authority.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => {
                port.parse().map_err(|_| wrong("has no valid port"))?
            }
            _ => 80,
        };
        if authority.is_empty() {
            return Err(wrong("names no host"));
        }
        Ok(Self { authority: Some(authority), port, target })
    }

    /// The host, where that is an address.
    fn ip(&self) -> Option<IpAddr> {
        let authority = self.authority?;
        let host = authority.parse::<SocketAddr>().map(|address| address.ip());
        host.ok().or_else(|| authority.trim_matches(['[', ']']).parse().ok())
    }
}

/// The listener that would take the connection, and whether that is a guess. A port of 0 stands for
/// one that the system will choose.
fn listener(plan: &Plan, url: &Url<'_>) -> (Listen, bool) {
    let all = || plan.sites.iter().flat_map(|site| &site.listen);
    let fits = |listen: &&Listen, exact: bool| match listen {
        Listen::Tcp(address) => {
            let ip = address.ip();
            let of_ip = url.ip().is_none_or(|asked| asked == ip || ip.is_unspecified());
            (address.port() == url.port || address.port() == 0) && (of_ip || !exact)
        }
        Listen::Unix(_) | Listen::Named(_) => false,
    };
    let found = url.authority.and_then(|_| {
        all().find(|listen| fits(listen, true)).or_else(|| all().find(|listen| fits(listen, false)))
    });
    match found {
        Some(listen) => (listen.clone(), false),
        None => (plan.sites[0].listen[0].clone(), url.authority.is_some()),
    }
}

/// Reads the request as a listener would. A path without a host is one of the first site.
fn request(
    question: &Question<'_>,
    url: &Url<'_>,
    listen: &Listen,
    plan: &Plan,
) -> Result<Request, QuestionError> {
    let server = match listen {
        Listen::Tcp(address) => {
            let ip = if address.ip().is_unspecified() { url.ip() } else { Some(address.ip()) };
            let port = if address.port() == 0 { url.port } else { address.port() };
            SocketAddr::new(ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), port)
        }
        Listen::Unix(_) | Listen::Named(_) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
    };
    let slash = if url.target.starts_with('/') { "" } else { "/" };
    let mut raw = format!("{} {slash}{} HTTP/1.1\r\n", question.method, url.target);
    let is_given = |name: &str| {
        let is_it = |field: &String| field.to_ascii_lowercase().starts_with(name);
        question.fields.iter().any(is_it)
    };
    if !is_given("host:") {
        let name = plan.sites[0].hosts.iter().find_map(|pattern| match pattern {
            HostPattern::Exact(name) => Some(name.clone()),
            _ => None,
        });
        let host = url.authority.map(str::to_owned).or(name).unwrap_or_else(|| server.to_string());
        let _ = write!(raw, "Host: {host}\r\n");
    }
    for field in question.fields {
        if field.contains(['\r', '\n']) {
            return Err(QuestionError("a header field is one line: \"name: value\"".into()));
        }
        let _ = write!(raw, "{field}\r\n");
    }
    if let Some(body) = question.body {
        if !is_given("content-type:") {
            let _ = write!(raw, "Content-Type: {}\r\n", carried::FORM);
        }
        if !is_given("content-length:") && !is_given("transfer-encoding:") {
            let _ = write!(raw, "Content-Length: {}\r\n", body.len());
        }
    }
    raw.push_str("\r\n");
    let mut head = RequestHead::default();
    let get_body = plan.server.limits.get_body;
    let limits = Limits { head: 1 << 20, fields: 1000, target: 1 << 19, get_body };
    match RequestParser::new(limits).parse(raw.as_bytes(), &mut head) {
        Ok(Progress::Complete(len)) if len == raw.len() => {}
        Ok(_) => return Err(QuestionError("this is not one request".into())),
        Err(error) => {
            let message = format!("such a request is refused with {}: {error}", error.status());
            return Err(QuestionError(message));
        }
    }
    if let (Some(body), RequestFraming::Length(told)) = (question.body, head.framing)
        && body.len() as u64 != told
    {
        let message = format!("Content-Length says {told} bytes, the body has {}", body.len());
        return Err(QuestionError(message));
    }
    let peer = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    Ok(Request {
        bytes: raw.into_bytes(),
        head,
        path: Vec::new(),
        rest: 0..0,
        client: peer,
        peer,
        is_peer_trusted: false,
        is_told_by_forwarded: false,
        server,
        https: false,
    })
}

/// Why the site takes the request.
fn why(site: &Site, sites: &[&Site], authority: &[u8], listen: &Listen) -> String {
    if sites.len() == 1 {
        return format!("the only site on {listen}");
    }
    let authority = String::from_utf8_lossy(authority);
    let host = authority.rsplit_once(':').map_or(&authority[..], |(host, _)| host);
    let host = host.trim_end_matches('.');
    let fits = |pattern: &&HostPattern| pattern.matches(host) && **pattern != HostPattern::Any;
    let longest = site.hosts.iter().filter(fits).max_by_key(|pattern| match pattern {
        HostPattern::Exact(_) => usize::MAX,
        HostPattern::Suffix(suffix) => suffix.len(),
        HostPattern::Any => 0,
    });
    match longest {
        Some(HostPattern::Exact(name)) => format!("it names the host {name}"),
        Some(HostPattern::Suffix(suffix)) => {
            format!("*{suffix} is the longest pattern on {listen} that fits {host}")
        }
        _ if site.hosts.contains(&HostPattern::Any) => {
            format!("no site on {listen} names {host}, and this one takes any host")
        }
        _ => format!("no site on {listen} fits {host}, and this is the first"),
    }
}

/// Follows the routes as the engine does.
fn routes(plan: &Plan, site: &Site, request: &mut Request, text: &mut Lines) -> Result<(), Fault> {
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    let mut clean = Vec::new();
    path::normalize(request.head.path_and_query.of(&request.bytes), &mut clean)
        .map_err(|error| Fault::client(400, error.to_string()))?;
    request.path = clean;
    let mut passed_on = None;
    for route in &site.routes {
        let method = request.head.method.of(&request.bytes);
        let Some(found) = route.matcher.matches(method, &request.path) else { continue };
        request.rest = request.path.len() - found.rest.len()..request.path.len();
        text.item(
            "route",
            format!("line {}: {}", route.line, conditions(&route.matcher)).as_bytes(),
        );
        if let RequestFraming::Length(length) = request.head.framing {
            let most = route.max_body.unwrap_or(plan.server.limits.max_body);
            if length > most {
                return Err(Fault::client(413, format!("the body is larger than {most} bytes")));
            }
        }
        match origin(plan, route, request, text) {
            Err(fault) if fault.is_not_mine && route.fallback => {
                text.item("", format!("{fault}: left to the routes below").as_bytes());
                passed_on = Some(fault);
            }
            outcome => return outcome,
        }
    }
    Err(passed_on.unwrap_or_else(|| Fault::client(404, "no route takes this request")))
}

/// The conditions of a route, as one would type them.
fn conditions(matcher: &Matcher) -> String {
    let list = |name: &str, values: Vec<String>| match &values[..] {
        [] => None,
        [one] => Some(format!("{name} = {one:?}")),
        many => Some(format!("{name} = {many:?}")),
    };
    let paths = matcher.paths.iter().map(|pattern| match pattern {
        PathPattern::Exact(path) => path.clone(),
        PathPattern::Prefix(path) => format!("{path}*"),
    });
    let given = [
        list("path", paths.collect()),
        list("suffix", matcher.suffixes.clone()),
        list("methods", matcher.methods.clone()),
    ];
    let given: Vec<_> = given.into_iter().flatten().collect();
    if given.is_empty() { "takes every request".into() } else { given.join(", ") }
}

fn origin(plan: &Plan, route: &Route, request: &Request, text: &mut Lines) -> Result<(), Fault> {
    match &route.action {
        Action::Files(settings) => files(settings, route.fallback, request, text),
        Action::Cgi(settings) => script_of_cgi(settings, request, text),
        Action::Fastcgi(settings) => script_of_fastcgi(settings, request, text),
        Action::AppServer(settings) => variables_of_server(settings, request, text),
        Action::Proxy(settings) => {
            proxy(settings, request, text);
            Ok(())
        }
        Action::App(name) if running::listens(&plan.apps[name]) => {
            program(name, &plan.apps[name], request, text)
        }
        Action::App(name) => {
            let app = &plan.apps[name];
            let (script, variables) = match target(app) {
                Target::Scripts(scripts) => find_script(&scripts, request)?,
                Target::Mount(mount) => mounted(mount, request),
            };
            text.item("origin", format!("app {name}: a worker of [app.{name}]").as_bytes());
            text.item("script", script.as_os_str().as_bytes());
            append(text, "variables", variables);
            Ok(())
        }
        Action::Respond(respond) => {
            let said = format!("a fixed reply: {} ({})", respond.status, respond.content_type);
            text.item("origin", said.as_bytes());
            Ok(())
        }
        Action::Redirect(redirect) => {
            let said = format!("a redirection: {} to {}", redirect.status, redirect.to);
            text.item("origin", said.as_bytes());
            Ok(())
        }
    }
}

fn files(
    settings: &Files,
    fallback: bool,
    request: &Request,
    text: &mut Lines,
) -> Result<(), Fault> {
    text.item("origin", format!("files below {}", settings.root.display()).as_bytes());
    if !matches!(request.method(), b"GET" | b"HEAD") {
        let status = if fallback { 404 } else { 405 };
        return Err(Fault::client(status, "files take GET and HEAD").not_mine());
    }
    let name = String::from_utf8_lossy(request.rest());
    let missing = || Fault::client(404, format!("no file {name:?}")).not_mine();
    let opened = open(&settings.root, request.rest(), settings.follow_symlinks);
    let metadata = opened.and_then(|file| file.metadata()).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Fault::client(403, "the file may not be read"),
        _ => missing(),
    })?;
    let found = settings.root.join(Path::new(std::ffi::OsStr::from_bytes(request.rest())));
    let wants_directory = request.path.ends_with(b"/");
    if metadata.is_file() && !wants_directory {
        text.item("file", found.as_os_str().as_bytes());
        return Ok(());
    }
    if !metadata.is_dir() {
        return Err(missing());
    }
    let index = settings.index.iter().map(|name| found.join(name)).find(|file| file.is_file());
    let is_empty = index.is_none() && !settings.listing;
    match index {
        _ if is_empty && fallback => {
            return Err(Fault::client(404, "a directory without an index file").not_mine());
        }
        _ if !wants_directory => {
            text.item("answer", b"301 to the same path with a slash: it is a directory");
        }
        _ if is_empty => return Err(Fault::client(403, "a directory without an index file")),
        Some(file) => text.item("file", file.as_os_str().as_bytes()),
        None => text.item("answer", b"200 a listing of the directory"),
    }
    Ok(())
}

/// Names and values.
type Variables = Vec<(Vec<u8>, Vec<u8>)>;

fn find_script(scripts: &Scripts, request: &Request) -> Result<(PathBuf, Variables), Fault> {
    let script = scripts.find(request.rest(), 0).map_err(no_script)?;
    let mut variables = Variables::new();
    let described = script.describe(request, scripts.dir(), content_length(request));
    cgi::variables(&described, &mut variables);
    Ok((script.file.clone(), variables))
}

fn mounted(mount: Mount, request: &Request) -> (PathBuf, Variables) {
    let mut variables = Variables::new();
    let path = mount::path_of(request);
    cgi::variables(&mount.describe(request, &path, content_length(request)), &mut variables);
    (mount.file, variables)
}

/// Length of the body that the request tells of. That of a chunked one is known when it is there.
fn content_length(request: &Request) -> Option<u64> {
    match request.head.framing {
        RequestFraming::Length(length) => Some(length),
        RequestFraming::None | RequestFraming::Chunked => None,
    }
}

fn script_of_cgi(settings: &Cgi, request: &Request, text: &mut Lines) -> Result<(), Fault> {
    let scripts = Scripts::new(settings.dir.clone());
    let (script, mut variables) = find_script(&scripts, request)?;
    text.item("origin", b"cgi: a process for the request");
    text.item("script", script.as_os_str().as_bytes());
    for name in PASSED {
        if let Some(value) = std::env::var_os(name) {
            variables.variable(name.as_bytes(), value.as_bytes());
        }
    }
    for (name, value) in &settings.env {
        variables.retain(|(other, _)| other != name.as_bytes());
        variables.variable(name.as_bytes(), value.as_bytes());
    }
    append(text, "variables", variables);
    Ok(())
}

fn script_of_fastcgi(settings: &Fastcgi, request: &Request, text: &mut Lines) -> Result<(), Fault> {
    let script = fastcgi::Script::find(request, settings)?;
    let to: Vec<_> = settings.to.iter().map(ToString::to_string).collect();
    text.item("origin", format!("fastcgi: {}", to.join(", in turn with ")).as_bytes());
    text.item("script", &script.file);
    let mut variables = Variables::new();
    script.append_variables(request, settings, content_length(request), &mut variables);
    append(text, "variables", variables);
    Ok(())
}

/// What is sent, read back from the bytes of it.
fn variables_of_server(
    settings: &AppServer,
    request: &Request,
    text: &mut Lines,
) -> Result<(), Fault> {
    let to: Vec<_> = settings.to.iter().map(ToString::to_string).collect();
    let name = app_server::name(settings.protocol);
    text.item("origin", format!("{name}: {}", to.join(", in turn with ")).as_bytes());
    read_back(settings, request, text)
}

fn read_back(settings: &AppServer, request: &Request, text: &mut Lines) -> Result<(), Fault> {
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

/// An application that listens by itself.
fn program(name: &str, app: &App, request: &Request, text: &mut Lines) -> Result<(), Fault> {
    let how = running::how(app);
    let spoken = match &how.speaks {
        Speaks::Http(_) => "HTTP",
        Speaks::Fastcgi(_) => "FastCGI",
        Speaks::AppServer(settings) => app_server::name(settings.protocol),
    };
    text.item("origin", format!("app {name}: a process of [app.{name}], by {spoken}").as_bytes());
    match &how.speaks {
        Speaks::Http(host) => {
            let name = authority(app);
            head(&program::route_to(Address::Tcp(name.into()), name, *host), request, text);
        }
        Speaks::AppServer(settings) => {
            read_back(&program::mounted(settings, request), request, text)?;
        }
        Speaks::Fastcgi(naming) => {
            let script = naming.find(request, &how)?;
            text.item("script", &script.file);
            let mut variables = Variables::new();
            let settings = naming.settings(&how);
            script.append_variables(request, &settings, content_length(request), &mut variables);
            append(text, "variables", variables);
        }
    }
    Ok(())
}

/// What an application that speaks HTTP is called. Its port is found when it is started.
fn authority(app: &App) -> &'static str {
    match app.kind {
        AppKind::Command { listen: Listening::Port | Listening::InheritPort, .. } => {
            "127.0.0.1:{port}"
        }
        _ => program::UNIX_AUTHORITY,
    }
}

fn proxy(settings: &Proxy, request: &Request, text: &mut Lines) {
    let to: Vec<_> = settings.to.iter().map(|backend| backend.address.to_string()).collect();
    text.item("origin", format!("proxy: {}", to.join(" or ")).as_bytes());
    if settings.send_proxy.is_some() {
        let mut line = Vec::new();
        announce::append_client(&mut line, ProxyHeader::V1, request);
        text.item("announced", line.trim_ascii_end());
    }
    head(settings, request, text);
}

/// The head that an HTTP server would be sent.
fn head(settings: &Proxy, request: &Request, text: &mut Lines) {
    let mut head = Vec::new();
    append_head(&mut head, request, settings, 0);
    let head = head.strip_suffix(b"\r\n\r\n").unwrap_or(&head);
    let lines = head.split(|&b| b == b'\n');
    text.list("head", lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
    if request.head.value(Known::Expect, &request.bytes).is_some() {
        text.item("", b"Expect is answered here, when the body is read");
    }
}

fn append(text: &mut Lines, label: &str, variables: Variables) {
    text.list(
        label,
        variables.into_iter().map(|(name, value)| [&name, &b"="[..], &value].concat()),
    );
}

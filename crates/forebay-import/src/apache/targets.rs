//! Translates `ProxyPass` and similar directives, for backends of several protocols.

use super::Cx;
use super::sections::{all, last};
use super::syntax::{Directive, is};
use crate::draft::DraftRoute;
use crate::template::{Mount, mount};
use crate::units::duration;
use crate::value::{Table, Value};

/// The URL of a `ProxyPass` or `SetHandler` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    scheme: String,
    /// `host:port`, or `unix:PATH`, or the name of a balancer.
    address: String,
    pub path: String,
}

impl Target {
    /// Parses a URL of `ProxyPass` or `SetHandler`, which may name a socket:
    /// `unix:PATH|SCHEME://HOST/PATH`. Returns `None` if the URL has no scheme, or if Forebay does
    /// not accept its address.
    pub fn parse(url: &str) -> Option<Self> {
        let url = url.strip_prefix("proxy:").unwrap_or(url);
        let (socket, url) = match url.strip_prefix("unix:").and_then(|rest| rest.split_once('|')) {
            Some((socket, url)) => (Some(socket), url),
            None => (None, url),
        };
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        };
        let address = match socket {
            Some(socket) => format!("unix:{socket}"),
            None => authority.to_owned(),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:[]/".contains(c);
        let is_plain =
            !address.is_empty() && address.chars().all(is_plain) && !address.contains('$');
        is_plain.then(|| Self {
            scheme: scheme.to_ascii_lowercase(),
            address,
            path: path.to_owned(),
        })
    }

    /// Returns true if the backend speaks FastCGI. FastCGI requests name the file of a script.
    pub fn is_fastcgi(&self) -> bool {
        self.scheme == "fcgi"
    }

    /// Returns the address in the form of the key `to`.
    fn url(&self) -> String {
        let is_socket = self.address.starts_with("unix:");
        match self.scheme.as_str() {
            _ if is_socket => self.address.clone(),
            "ws" | "http" => format!("http://{}", self.address),
            "wss" | "https" => format!("https://{}", self.address),
            "h2c" => format!("h2c://{}", self.address),
            "h2" => format!("https://{}", self.address),
            "fcgi" if !self.address.contains(':') => format!("{}:8000", self.address),
            "ajp" if !self.address.contains(':') => format!("{}:8009", self.address),
            "scgi" if !self.address.contains(':') => format!("{}:4000", self.address),
            "uwsgi" if !self.address.contains(':') => format!("{}:3031", self.address),
            _ => self.address.clone(),
        }
    }

    /// Returns the key of a route for this protocol; `None` if Forebay does not speak the protocol.
    fn key(&self) -> Option<&'static str> {
        match self.scheme.as_str() {
            "http" | "https" | "ws" | "wss" | "h2" | "h2c" => Some("proxy"),
            "fcgi" => Some("fastcgi"),
            "scgi" => Some("scgi"),
            "uwsgi" => Some("uwsgi"),
            "ajp" => Some("ajp"),
            _ => None,
        }
    }
}

/// Sets the key of a route that passes requests to a backend. The path of the URL replaces
/// `prefix`. The text of an error says what the user must do.
pub fn pass(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    directive: &Directive,
    (prefix, url): (&str, &str),
    route: &mut DraftRoute,
) -> Result<(), String> {
    let target = Target::parse(url).ok_or("write the URL of one server in `proxy`")?;
    let (to, kind, group) = if target.scheme == "balancer" {
        let (name, first) = balancer(cx, &target.address)?;
        (format!("@{name}"), first, true)
    } else {
        (target.url(), target.clone(), false)
    };
    let key = kind.key().ok_or_else(|| format!("Forebay does not speak {}", kind.scheme))?;
    let mut table = Table::default().with("to", to.as_str());
    options(directive, &mut table, group);
    match key {
        "proxy" => {
            let keeps_host = last(layers, "ProxyPreserveHost");
            let keeps_host = keeps_host.is_some_and(|keep| keep.arg(0).eq_ignore_ascii_case("on"));
            if !keeps_host {
                table.set("host", "backend");
            }
            if table.get("reply_timeout").is_none() {
                let timeout = last(layers, "ProxyTimeout").and_then(|time| duration(time.arg(0)));
                table.set_some("reply_timeout", timeout.filter(|time| time != "0s"));
            }
            let path = if target.path.is_empty() { "/" } else { &target.path };
            match mount(prefix, path, false, cx.keys)? {
                Mount::Same => {}
                Mount::Strip(prefix) => table.set("strip_prefix", prefix),
                Mount::Rewrite(to) => route.keys.set("rewrite", to),
            }
        }
        "fastcgi" => {
            let dir = target.path.trim_end_matches('/');
            table.set("root", if dir.is_empty() { "/" } else { dir });
        }
        "ajp"
            if mount(
                prefix,
                if target.path.is_empty() { "/" } else { &target.path },
                false,
                cx.keys,
            )? != Mount::Same =>
        {
            return Err(format!("let the container answer below {prefix}: AJP keeps the path"));
        }
        "scgi" | "uwsgi" if !prefix.trim_end_matches('/').is_empty() => {
            table.set("mount", prefix.trim_end_matches('/'));
        }
        _ => {}
    }
    let value =
        if table.0.len() == 1 && key == "proxy" { table.0.remove(0).1 } else { table.into() };
    route.keys.set(key, value);
    Ok(())
}

/// Adds keys for the parameters of `ProxyPass`, such as `timeout=5`.
fn options(directive: &Directive, table: &mut Table, is_group: bool) {
    for argument in &directive.args {
        let Some((name, value)) = argument.split_once('=') else { continue };
        match name.to_ascii_lowercase().as_str() {
            "timeout" => {
                table.set_some("reply_timeout", duration(value).filter(|time| time != "0s"));
            }
            "connectiontimeout" if !is_group => {
                table.set_some("connect_timeout", duration(value).filter(|time| time != "0s"));
            }
            "secret" => table.set("secret", value),
            _ => {}
        }
    }
}

/// Adds the upstream group of a balancer to the draft. Returns the name and the first member of the
/// group. An error says why there is no such group.
fn balancer(cx: &mut Cx<'_>, name: &str) -> Result<(String, Target), String> {
    let url = format!("balancer://{name}");
    let is_this = |directive: &&Directive| {
        is(directive, "Proxy") && directive.arg(0).trim_end_matches('/').eq_ignore_ascii_case(&url)
    };
    let hosts = cx.main.iter().filter(|directive| is(directive, "VirtualHost"));
    let mut proxies =
        cx.main.iter().chain(hosts.flat_map(super::super::directive::Directive::inside));
    let block = proxies.find(is_this).ok_or_else(|| format!("there is no <Proxy {url}>"))?;
    let (mut to, mut first) = (Vec::new(), None);
    let mut table = Table::default();
    let mut set = block.inside().iter().filter(|inner| is(inner, "ProxySet"));
    let method = |arg: &String| arg.to_ascii_lowercase().starts_with("lbmethod=bybusyness");
    if set.any(|set| set.args.iter().any(method)) {
        table.set("balance", "least-connections");
    }
    let sticky = block.inside().iter().filter(|inner| is(inner, "ProxySet"));
    let sticky =
        sticky.flat_map(|set| set.args.iter()).find_map(|arg| arg.strip_prefix("stickysession="));
    let mut has_routes = true;
    for member in block.inside().iter().filter(|inner| is(inner, "BalancerMember")) {
        let Some(target) = Target::parse(member.arg(0)) else {
            cx.note(member, "write the address of this server in `to`");
            continue;
        };
        let mut entry = Table::default().with("url", target.url());
        for argument in &member.args[1..] {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("loadfactor", n) => {
                    let weight = n.parse::<f64>().ok().map(|n| n.round().clamp(1.0, 256.0) as u64);
                    entry.set_some("weight", weight);
                }
                ("route", name) => entry.set("route", name),
                ("status", "+H") => entry.set("backup", true),
                ("status", "+D") => entry.set("activation", "stopped"),
                _ => {}
            }
        }
        has_routes &= entry.get("route").is_some();
        let is_plain = entry.0.len() == 1;
        to.push(if is_plain { entry.0.remove(0).1 } else { Value::Table(entry) });
        first.get_or_insert(target);
    }
    let first = first.ok_or_else(|| format!("{url} has no BalancerMember"))?;
    table.0.insert(0, ("to".into(), Value::List(to)));
    if let Some(cookie) = sticky.and_then(|names| names.split('|').next()).filter(|_| has_routes) {
        table.set("sticky", Table::default().with("cookie", cookie).with("routes", true));
    }
    if !cx.draft.upstreams.iter().any(|(other, _)| other == name) {
        cx.draft.upstreams.push((name.to_owned(), table));
    }
    Ok((name.to_owned(), first))
}

/// Returns the backend of the last `SetHandler` directive, and the URL of the backend. Returns
/// `None` if there is no such directive, or if it names no backend.
pub fn handler(layers: &[&[Directive]]) -> Option<(Target, String)> {
    let handlers = all(layers, "SetHandler");
    let url = handlers.last()?.arg(0).to_owned();
    Some((Target::parse(url.strip_prefix("proxy:")?)?, url))
}

/// The directory of the scripts of a region.
pub struct ScriptRoot {
    pub dir: String,
    /// The prefix of the path that is no part of the scripts' paths below `dir`.
    pub strip_prefix: Option<String>,
    /// DOCUMENT_ROOT of the scripts, if it is not `dir`.
    pub document_root: Option<String>,
}

impl ScriptRoot {
    /// Returns the variables that Forebay must send in place of its own.
    pub fn variables(&self) -> Option<Table> {
        let root = self.document_root.as_deref()?;
        Some(Table::default().with("DOCUMENT_ROOT", root))
    }
}

/// Sets the key `fastcgi` for the scripts below the directory `root`. `ends` are the file name
/// extensions of the scripts.
pub fn scripts(target: &Target, root: &ScriptRoot, ends: &[String], route: &mut DraftRoute) {
    let mut table = Table::default().with("to", target.url()).with("root", root.dir.as_str());
    table.set_some("strip_prefix", root.strip_prefix.as_deref());
    table.set_some("params", root.variables());
    if !ends.is_empty() && ends[..] != [".php".to_owned()] {
        table.set("scripts", ends.to_vec());
    }
    route.keys.set("fastcgi", table);
}

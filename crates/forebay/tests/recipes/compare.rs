//! Sends the requests, and compares the answers with those of nginx.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_testkit::http::{Client, Reply};
use forebay_testkit::tls;
use rustls::ClientConfig;

use crate::cases::{Case, Recipe, Server, Transport};
use crate::stage::Stage;

/// Reply fields that are not compared: they describe the server, the connection or the file.
/// Forebay reports its cache in the standard fields `Age` and `Cache-Status`, which nginx does not have.
const IGNORED: [&str; 16] = [
    "server",
    "date",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "etag",
    "last-modified",
    "accept-ranges",
    "expires",
    "content-encoding",
    "x-powered-by",
    "alt-svc",
    "allow",
    "age",
    "cache-status",
];

/// Reply fields of errors that are compared. All others depend on the error page.
const OF_ERRORS: [&str; 4] =
    ["www-authenticate", "strict-transport-security", "x-frame-options", "referrer-policy"];

/// Request fields that are not compared: they depend on the port, or have no meaning for the backend.
const UNCOMPARED: [&str; 4] =
    ["x-nginx-proxy", "content-length", "x-auth-request-redirect", "x-forwarded-port"];

/// Compares the answers of servers.
pub struct Comparison<'s> {
    stage: &'s Stage,
    plain: Arc<ClientConfig>,
    with_certificate: Arc<ClientConfig>,
    pub wrong: Vec<String>,
}

impl<'s> Comparison<'s> {
    pub fn new(stage: &'s Stage) -> Self {
        let plain = Arc::new(stage.authority.client());
        let with_certificate = stage.authority.client_of(Some(&stage.client), rustls::ALL_VERSIONS);
        Self { stage, plain, with_certificate: Arc::new(with_certificate), wrong: Vec::new() }
    }

    /// Sends a request to a server that listens on `port`, or on its port for TLS.
    pub fn send(&self, case: &Case, server: Server, port: u16) -> Option<Reply> {
        let config = match case.transport {
            Transport::Plain => None,
            Transport::Tls => Some(&self.plain),
            Transport::TlsWithCertificate => Some(&self.with_certificate),
        };
        let mut client = match config {
            None => Client::connect(SocketAddr::from(([127, 0, 0, 1], port))),
            Some(config) => {
                let port = match server {
                    Server::Nginx => self.stage.nginx_tls_port,
                    Server::Forebay => self.stage.tls_port,
                    Server::Imported => self.stage.imported_tls_port,
                };
                tls::connect(([127, 0, 0, 1], port).into(), &case.host, config.clone()).unwrap()
            }
        };
        client.send(request(case));
        if case.method == "HEAD" { Some(client.reply_to_head()) } else { client.try_reply().ok() }
    }

    /// Sends `count` requests of new visitors for the recipe "canary". Returns the number of those
    /// that reach the new version.
    pub fn count(&self, recipes: &[Recipe], server: Server, port: u16, count: usize) -> usize {
        let of_canary = recipes.iter().find(|recipe| recipe.name == "canary").unwrap();
        let case = &of_canary.cases[0];
        let replies = (0..count).map(|_| self.send(case, server, port).unwrap());
        replies.filter(|reply| reply.text().contains("backend: 127.0.0.1:6001\n")).count()
    }

    /// Compares the answer of a server with that of nginx.
    pub fn judge(
        &mut self,
        case: &Case,
        server: Server,
        theirs: &Option<Reply>,
        ours: &Option<Reply>,
    ) {
        let mut found = Vec::new();
        let status = |reply: &Option<Reply>| reply.as_ref().map_or(444, |reply| reply.status);
        let expected = [(Server::Nginx, status(theirs)), (server, status(ours))];
        for (server, status) in expected {
            let wanted = case.status_of(server);
            if status != wanted {
                found.push(format!("{server:?} has status {status}, not {wanted}"));
            }
        }
        if let (Some(theirs), Some(ours)) = (theirs, ours) {
            if found.is_empty() && theirs.status == ours.status {
                let except =
                    if server == Server::Forebay { &case.except } else { &case.import_except };
                found.extend(fields(case, theirs, ours, except));
                found.extend(bodies(theirs, ours, except));
            }
            if let (Server::Forebay, Some(text)) = (server, &case.has) {
                let head: String =
                    ours.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
                let body = String::from_utf8_lossy(&ours.body);
                if !head.contains(text) && !body.contains(text) {
                    found.push(format!("no {text:?} in {head:?} {body:?}"));
                }
            }
        }
        self.wrong
            .extend(found.iter().map(|text| format!("{server:?} {}\n    {text}", case.place)));
    }
}

/// Returns the bytes of a request.
fn request(case: &Case) -> String {
    let is_upgrade = case.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let connection = if is_upgrade { "Upgrade" } else { "close" };
    let mut text = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", case.method, case.target, case.host);
    text += &format!("Connection: {connection}\r\n");
    for (name, value) in &case.fields {
        text += &format!("{name}: {value}\r\n");
    }
    if matches!(case.method.as_str(), "POST" | "PUT" | "PATCH") {
        text += "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\na=1";
    } else {
        text += "\r\n";
    }
    text
}

/// Returns the differences between the fields of two answers with the same status.
fn fields(case: &Case, theirs: &Reply, ours: &Reply, except: &[String]) -> Vec<String> {
    let names = |reply: &Reply| -> Vec<String> {
        reply.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect()
    };
    let mut all = names(theirs);
    all.extend(names(ours));
    all.sort();
    all.dedup();
    let is_compared = |name: &String| {
        let is_relevant = theirs.status < 400 || OF_ERRORS.contains(&name.as_str());
        let is_note = name == "content-type" && (300..400).contains(&theirs.status);
        is_relevant && !is_note && !IGNORED.contains(&name.as_str()) && !except.contains(name)
    };
    let mut wrong = Vec::new();
    for name in all.iter().filter(|name| is_compared(name)) {
        let (theirs, ours) = (value(case, theirs, name), value(case, ours, name));
        if theirs != ours {
            wrong.push(format!("{name}: nginx {theirs:?}, Forebay {ours:?}"));
        }
    }
    wrong
}

/// Returns the values of a field in a form that can be compared.
fn value(case: &Case, reply: &Reply, name: &str) -> Vec<String> {
    let plain = |value: &str| match name {
        // RFC 9239 has made this name obsolete, which nginx still sends.
        "content-type" => {
            value.split(';').next().unwrap_or_default().replace("application/j", "text/j")
        }
        "location" => location(case, value),
        _ => value.to_owned(),
    };
    let mut values: Vec<String> =
        reply.headers_named(name).iter().map(|value| plain(value)).collect();
    if matches!(name, "cache-control" | "vary") {
        let parts = values.iter().flat_map(|value| value.split(','));
        values = parts.map(|part| part.trim().to_ascii_lowercase()).collect();
        values.retain(|part| part != "accept-encoding");
        values.sort();
        values.dedup();
    }
    values
}

/// Returns a Location without the ports of the test, and without scheme and host if these are those of the
/// request.
fn location(case: &Case, value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
    let host = host.split(':').next().unwrap_or_default();
    let of_request = if case.transport == Transport::Plain { "http" } else { "https" };
    if scheme == of_request && host == case.host {
        path.to_owned()
    } else {
        format!("{scheme}://{host}{path}")
    }
}

/// Returns the differences between two bodies. If a backend or script has answered with the request that it got,
/// each line of nginx's request must be in Forebay's: Forebay may send more fields.
fn bodies(theirs: &Reply, ours: &Reply, except: &[String]) -> Vec<String> {
    let is_redirect = (300..400).contains(&theirs.status);
    if theirs.status >= 400 || is_redirect || except.iter().any(|name| name == "body") {
        return Vec::new();
    }
    let (theirs, ours) =
        (String::from_utf8_lossy(&theirs.body), String::from_utf8_lossy(&ours.body));
    if !theirs.contains("\nbackend: ") && !theirs.contains("\nscript_name: ") {
        return if theirs == ours {
            Vec::new()
        } else {
            vec![format!("body: nginx {theirs:?}, Forebay {ours:?}")]
        };
    }
    let is_compared = |line: &&str| {
        let name = line.split(": ").next().unwrap_or_default();
        !UNCOMPARED.contains(&name) && !except.iter().any(|field| field == name)
    };
    let missing =
        theirs.lines().filter(is_compared).filter(|line| !ours.lines().any(|other| other == *line));
    missing.map(|line| format!("the backend does not get {line:?} but {ours:?}")).collect()
}

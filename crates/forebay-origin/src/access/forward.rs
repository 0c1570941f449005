//! `forward_auth`: another server decides if a request is permitted.
//!
//! The server gets a GET with the client's fields, without the body. `X-Forwarded-Uri` has the path
//! that selected the route, so that the server decides about the same resource. It may speak any
//! protocol that a route to backends may: over FastCGI, the fields are HTTP_X_FORWARDED_URI and so
//! on.
//!
//! Handlers of mod_perl (`perl_gate`) get the client's own target, method and fields instead, as
//! under Apache. They may also change fields of the request. Their host says so in fields of its
//! answer whose names begin with `Forebay-` (`hosts/mod-perl/Forebay/Phases.pm`), and only an answer
//! with `Forebay-Permit` permits a request: a handler may answer by itself with status 200.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_conf::{
    self as conf, Placeholder, RequestChange, RequestField, Template, TemplatePart,
};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::{Request, is_alike};
use forebay_net::request_fields::RequestFields;
use forebay_net::template::Escape;
use forebay_server::exchange::{Exchange, Origin};
use forebay_server::reply::{Captured, Keep, Length, Recorder};
use forebay_upstream::mount;
use forebay_wire::fields::of_lines;
use forebay_wire::http1::KnownField;
use forebay_wire::sendfile;

/// Largest body of an answer, in bytes.
const LONGEST_ANSWER: usize = 256 * 1024;

/// Fields of the client that the server does not get. With them, the server's answer could become
/// partial, empty or a tunnel.
const REMOVED: [&str; 10] = [
    "Expect",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Range",
    "TE",
    "Trailer",
    "Upgrade",
];

/// Fields that describe the request to the server. The server decides by these fields, so it must
/// not get those that the client has sent.
const DESCRIPTIONS: [&str; 11] = [
    "X-Auth-Request-Redirect",
    "X-Host",
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "X-Original-Host",
    "X-Original-Method",
    "X-Original-URI",
    "X-Original-URL",
    "X-Request-URI",
    "X-Rewrite-URL",
];

/// Fields that prove the identity of a client.
const CREDENTIALS: [&str; 2] = ["Authorization", "Cookie"];

/// Beginnings of the names of fields that login services and proxies use for the user. The server
/// decides who the user is, so it must not get such fields from the client.
const IDENTITIES: [&str; 5] =
    ["Remote-", "X-Auth-Request-", "X-Authentik-", "X-Remote-", "X-WebAuth-"];

/// Fields about the body and the connection, which a handler of mod_perl must not change.
const FRAMING: [&str; 10] = [
    "Connection",
    "Content-Length",
    "Expect",
    "Host",
    "Keep-Alive",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

/// The field with which mod_perl's host permits a request.
const PERMIT: &str = "Forebay-Permit";
/// The field with which it changes a field of the request: `NAME: VALUE`, or `NAME` to remove it.
const CHANGE: &str = "Forebay-Field";
/// The variable that asks mod_perl's host for a decision: the method of the client, a space, and the
/// location, which is the part of the path before the `*` of the route's path.
const QUESTION: &str = "FOREBAY_GATE";

/// Check of requests by a server that permits or refuses each request (`forward_auth`).
pub struct ForwardAuth {
    server: Box<dyn Origin>,
    settings: conf::ForwardAuth,
    fields: Option<Rc<RequestFields>>,
}

impl ForwardAuth {
    /// Creates a check that asks `server` with these settings.
    pub fn new(server: Box<dyn Origin>, settings: conf::ForwardAuth) -> Self {
        let removed = REMOVED.iter().chain(&DESCRIPTIONS);
        let removed = removed.map(|name| change(name, RequestChange::Remove));
        // Login services for Traefik and Caddy read the `X-Forwarded-` fields. Login services for
        // nginx read the `X-Original-` fields.
        let set = [
            ("X-Forwarded-Method", Placeholder::Method),
            ("X-Forwarded-Uri", Placeholder::Uri),
            ("X-Original-Method", Placeholder::Method),
            ("X-Original-URI", Placeholder::Uri),
        ];
        // A proxy sets these by itself.
        let of_proxy = [
            ("X-Forwarded-Host", Placeholder::Header("host".to_owned())),
            ("X-Forwarded-Proto", Placeholder::Scheme),
            ("X-Forwarded-For", Placeholder::Client),
        ];
        let is_proxy = matches!(settings.server, conf::Action::Proxy(_));
        if settings.app().is_some() {
            let removed = ["If-Range", "Range", "TE", "Trailer", "Upgrade"];
            let changes = removed.map(|name| change(name, RequestChange::Remove));
            return Self { server, settings, fields: RequestFields::new(&changes) };
        }
        let set = set.into_iter().chain(of_proxy.into_iter().filter(|_| !is_proxy));
        let set = set.map(|(name, value)| {
            let value = Template::of(vec![TemplatePart::Value(value)]);
            change(name, RequestChange::Set(value))
        });
        let own = &settings.request_headers;
        let is_own = |field: &RequestField| {
            own.iter().any(|own| {
                own.name.eq_ignore_ascii_case(&field.name)
                    && !matches!(own.change, RequestChange::Add(_))
            })
        };
        let fixed = removed.chain(set).filter(|field| !is_own(field));
        let changes: Vec<_> = fixed.chain(own.iter().cloned()).collect();
        Self { server, settings, fields: RequestFields::new(&changes) }
    }

    /// Returns true if the server permits the request. Otherwise passes the server's answer to the
    /// client. Fails if the answer is unusable, or if the client of a refused request speaks gRPC.
    pub async fn decide(&self, exchange: &mut Exchange) -> Result<bool, Fault> {
        let captured = self.ask(exchange).await?;
        let is_app = self.settings.app().is_some();
        let permits = if is_app {
            values_of(&captured.lines, PERMIT).next().is_some()
        } else {
            matches!(captured.status, 200..=299)
        };
        if permits {
            self.permit(exchange, &captured);
            return Ok(true);
        }
        let is_usable = is_app || matches!(captured.status, 300..=303 | 305..);
        let has_none = is_app && matches!(captured.status, 204 | 304);
        let body = captured.body.or_else(|| has_none.then(Vec::new));
        let Some(body) = body.filter(|_| is_usable) else {
            let status = captured.status;
            return Err(Fault::backend(
                502,
                format!("the server of forward_auth gave no usable answer, with status {status}"),
            ));
        };
        if exchange.reply.is_to_grpc() {
            return Err(Fault::client(captured.status, "the server of forward_auth refused it"));
        }
        let mut lines = if is_app { lines_but(&captured.lines, is_own) } else { captured.lines };
        sendfile::strip(&mut lines, 0);
        let has_date = of_lines(&lines).any(|field| field.name.eq_ignore_ascii_case(b"date"));
        let reply = &mut exchange.reply;
        reply.begin(captured.status, b"");
        reply.field_lines().extend_from_slice(&lines);
        reply.end_head(Length::Known(body.len() as u64), has_date);
        reply.push(&body).await?;
        reply.finish().await?;
        Ok(false)
    }

    /// Sends the request to the server, and returns its answer.
    async fn ask(&self, exchange: &Exchange) -> Result<Captured, Fault> {
        let mut request = exchange.request.clone();
        let mut target = self.settings.target.as_bytes().to_vec();
        if self.settings.app().is_some() {
            let location = &request.path[..mount::before(&request.path, request.rest.start)];
            let question = [request.method(), location].join(&b' ');
            let question = String::from_utf8_lossy(&question).into_owned();
            request.params = Some(Rc::new([(QUESTION.to_owned(), question)].into()));
            target = request.target().to_vec();
        } else {
            self.remove_identities(&mut request);
            request.params = self.params(&request);
        }
        if let Some(fields) = &self.fields {
            // The fields are set before the request becomes a GET, so that placeholders give the
            // client's method and target.
            fields.change(&mut request);
        }
        request.become_get_for(&target);
        if !matches!(self.settings.server, conf::Action::Proxy(_)) {
            // Other servers than HTTP's get the path in parts, and the target in REQUEST_URI.
            request.clean_path().map_err(|error| Fault::us(500, error.to_string()))?;
        }
        let mut asked = exchange.aside(request);
        asked.reply.record(Rc::new(WholeAnswer), true);
        let outcome = self.server.serve(&mut asked).await;
        let captured = asked.reply.take_captured();
        asked.detach();
        // A script that the server lacks must not let another route answer instead.
        outcome.map_err(|fault| fault.decline(Decline::No))?;
        captured.ok_or_else(|| Fault::us(500, "the server of forward_auth gave no answer"))
    }

    /// Returns all parameters of the question, which describe the client's request. `None` if the
    /// server's own `params` are enough.
    fn params(&self, request: &Request) -> Option<Rc<BTreeMap<String, String>>> {
        if self.settings.params.is_empty() {
            return None;
        }
        let mut params = match &self.settings.server {
            conf::Action::Fastcgi(fastcgi) => fastcgi.params.clone(),
            conf::Action::AppServer(server) => server.params.clone(),
            _ => BTreeMap::new(),
        };
        for (name, template) in &self.settings.params {
            let mut value = Vec::new();
            request.fill(template, Escape::Field, &mut value);
            params.insert(name.clone(), String::from_utf8_lossy(&value).into_owned());
        }
        Some(Rc::new(params))
    }

    /// Removes client fields that could claim a user, such as `X-Forwarded-User`. Also removes
    /// client fields with the names that the route copies from the server's answer. Keeps
    /// credentials, and all fields of a trusted proxy.
    fn remove_identities(&self, request: &mut Request) {
        // A trusted proxy may have identified the user.
        let is_trusted = request.is_peer_trusted;
        let (bytes, settings) = (&request.bytes, &self.settings);
        let is_identity = |name: &[u8]| {
            let begins =
                |start: &&str| name.get(..start.len()).is_some_and(|given| is_alike(given, start));
            let is_of_answer = |(_, from): &(String, String)| is_alike(name, from);
            IDENTITIES.iter().any(begins)
                || settings.copy.iter().any(is_of_answer)
                || settings.user.as_ref().is_some_and(|user| is_alike(name, user))
        };
        request.head.fields.retain(|field| {
            let name = field.name.of(bytes);
            // Keep the fields that a check of a token (`jwt`) has set.
            let is_ours = field.known == KnownField::Gateway;
            let is_credential = CREDENTIALS.iter().any(|other| is_alike(name, other));
            is_trusted || is_ours || is_credential || !is_identity(name)
        });
    }

    /// Copies the configured fields of the answer to the request, sets the user, and passes the
    /// answer's cookies to the client.
    fn permit(&self, exchange: &mut Exchange, answer: &Captured) {
        let value_of =
            |name: &str| values_of(&answer.lines, name).collect::<Vec<_>>().join(&b", "[..]);
        let set = |name: &str, value: &[u8]| {
            let value = String::from_utf8_lossy(value).into_owned();
            change(name, RequestChange::Set(Template::of(vec![TemplatePart::Text(value)])))
        };
        let copied = self.settings.copy.iter().map(|(name, from)| set(name, &value_of(from)));
        let is_app = self.settings.app().is_some();
        let changed = values_of(&answer.lines, CHANGE).filter(|_| is_app).filter_map(|text| {
            let colon = memchr::memchr(b':', text);
            let name = str::from_utf8(&text[..colon.unwrap_or(text.len())]).ok()?;
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !is_name
                || name.is_empty()
                || FRAMING.iter().any(|own| is_alike(name.as_bytes(), own))
            {
                return None;
            }
            Some(match colon {
                Some(colon) => set(name, text[colon + 1..].trim_ascii()),
                None => change(name, RequestChange::Remove),
            })
        });
        let changes: Vec<_> = copied.chain(changed).collect();
        if let Some(fields) = RequestFields::new(&changes) {
            fields.change(&mut exchange.request);
        }
        if let Some(name) = &self.settings.user {
            exchange.request.user = value_of(name);
        }
        // Fields that handlers of Apache set before the content are part of its head.
        let mut carried = lines_but(&answer.lines, |name| {
            if is_app {
                is_own(name)
                    || name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"))
            } else {
                !name.eq_ignore_ascii_case(b"set-cookie")
            }
        });
        sendfile::strip(&mut carried, 0);
        exchange.reply.carry(&carried);
    }
}

/// Returns the values of the fields `name`.
fn values_of<'a>(lines: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let named = move |field: &forebay_wire::fields::FieldRef<'_>| {
        field.name.eq_ignore_ascii_case(name.as_bytes())
    };
    of_lines(lines).filter(named).map(|field| field.value)
}

/// Returns true for a field with which the host of mod_perl speaks with this file.
fn is_own(name: &[u8]) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"forebay-"))
}

/// Returns the lines without the fields whose names `is_left_out` accepts.
fn lines_but(lines: &[u8], is_left_out: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let is_kept = |line: &&[u8]| {
        let colon = memchr::memchr(b':', line);
        colon.is_none_or(|colon| !is_left_out(&line[..colon]))
    };
    lines.split_inclusive(|&b| b == b'\n').filter(is_kept).flatten().copied().collect()
}

fn change(name: &str, change: RequestChange) -> RequestField {
    RequestField { name: name.to_owned(), change }
}

/// Recorder that keeps the answer of the server, up to [`LONGEST_ANSWER`].
struct WholeAnswer;

impl Recorder for WholeAnswer {
    fn decide(&self, _status: u16, _lines: &[u8], _length: Length) -> Keep {
        Keep::Instead(LONGEST_ANSWER)
    }

    fn reserve(&self, bytes: usize) -> bool {
        bytes <= LONGEST_ANSWER
    }
}

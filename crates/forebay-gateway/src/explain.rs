//! Explains a request: site, route, origin, and the data that the origin would receive.
//!
//! Starts no processes, opens no connections, and reads only the file system.
//!
//! The module contains no routing rules. It parses a request as a listener would. It calls the
//! functions of the origins that find scripts and create variables and header lines.

mod answer;
mod carried;
mod filters;
mod origin;
mod question;
mod relay;

use std::fmt::Write;

use forebay_conf::{
    Action, AppKind, HostPattern, Inherited, Listen, Matcher, OnAbort, PathPattern, Plan,
    ReplyChange, Route, Satisfy, Site, TokenSource,
};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::request_fields::RequestFields;
use forebay_net::template::{Escape, encode_path};
use forebay_origin::access::{challenges, check_signed_url, is_open_to, permits_method};
use forebay_origin::files::FileResolver;
use forebay_origin::rules::{facts, rules_beside};
use forebay_server::decide::{Admission, Declined, Lead, Step, Walk, only_internal};
use forebay_server::dispatch::{BeforeGate, before_gate};
use forebay_server::forwarded::find_client;
use forebay_server::pages::Closed;
use forebay_server::route::{index_sites, select_site};
use forebay_wire::http1::RequestFraming;

use crate::build::{by_https, places, slashes, trust};
use origin::{origin, redirection};
use question::{Url, listener, request};

pub use answer::Answer;
pub use question::{Question, QuestionError};

/// Returns the explanation of a request under `plan`, as lines of text. Values from the environment
/// and from files are not shown. An error says why the question has no answer.
pub fn explain(plan: &Plan, question: &Question<'_>) -> Result<String, QuestionError> {
    let (tcp, udp) = (question.url.strip_prefix("tcp://"), question.url.strip_prefix("udp://"));
    if let Some(address) = tcp.or(udp) {
        return relay::explain(plan, address, udp.is_some()).map(|text| plan.file.hide(&text));
    }
    let explanation = explained(plan, question, None)?;
    Ok(plan.file.hide(&explanation.text))
}

/// Returns what [`explain`] finds out, without its text.
pub fn find_answer(plan: &Plan, question: &Question<'_>) -> Result<Answer, QuestionError> {
    explained(plan, question, None).map(|explanation| explanation.answer)
}

/// The answer to a GET for this decoded path on the site, over TLS, while no route is closed.
/// `None` if no client can send such a path.
pub(crate) fn find_answer_on(plan: &Plan, site: &Site, path: &[u8]) -> Option<Answer> {
    let target = String::from_utf8(encode_path(path)).ok()?;
    let question = Question { url: &target, method: "GET", fields: &[], body: None };
    let url = Url::parse(&target).ok()?;
    let mut request = request(&question, &url, site.listen.first()?, plan).ok()?;
    request.https = true;
    let mut text = Explanation { ignores_maintenance: true, ..Explanation::default() };
    routes(plan, site, &mut request, &mut text).ok()?;
    Some(text.answer)
}

/// Explains a request to `listen`, or to the listener that the URL names. An error says why the
/// question has no answer.
pub(crate) fn explained(
    plan: &Plan,
    question: &Question<'_>,
    listen: Option<&Listen>,
) -> Result<Explanation, QuestionError> {
    let url = Url::parse(question.url)?;
    if plan.sites.is_empty() {
        return Err(QuestionError::without_sites());
    }
    let (listen, is_guess) = match listen {
        Some(listen) => (listen.clone(), false),
        None => listener(plan, &url),
    };
    let mut request = request(question, &url, &listen, plan)?;
    let sites: Vec<&Site> = (plan.sites.iter().map(AsRef::as_ref))
        .filter(|site: &&Site| site.listen.contains(&listen))
        .collect();
    let authority = request.head.authority.map(|span| span.of(&request.bytes).to_vec());
    let authority = authority.unwrap_or_default();
    let hosts = index_sites(sites.iter().map(|site| &site.hosts[..]));
    let site = sites[select_site(&hosts, &authority)];
    let removed = if site.underscores_in_headers { None } else { request.remove_marked() };
    let peer = request.peer;
    let resolved = find_client(&mut request, peer, &trust(site)).map_err(Fault::from);
    let mut text = Explanation::default();
    text.answer.site = plan.sites.iter().position(|other| std::ptr::eq(&**other, site));
    text.item("request", &[question.method.as_bytes(), b" ", request.target()].concat());
    if is_guess {
        text.item(
            "",
            format!("no site listens on port {}; taken to {listen}", url.port).as_bytes(),
        );
    }
    let why = why(site, &sites, &authority, &listen);
    let file = site.file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
    text.item("site", format!("line {}{file}: {why}", site.line).as_bytes());
    text.inherited(&site.inherited);
    if let Some(field) = removed {
        let name = field.name.of(&request.bytes);
        text.item("removed", &[b"fields with marks in their names, such as ", name].concat());
        text.item("", b"`underscores_in_headers = true` of the site keeps them");
    }
    match resolved.and_then(|()| routes(plan, site, &mut request, &mut text)) {
        Ok(()) => {}
        Err(fault) => {
            let route = text.answer.route.and_then(|at| site.routes.get(at));
            let pages = route.map_or(&site.error_pages, |route| &route.error_pages);
            text.answer.refuse(fault.status, pages);
            text.item("answer", format!("{} {fault}", fault.status).as_bytes());
            if let Some(status) = text.answer.of_page {
                text.item("", format!("sent with status {status} (`error_pages`)").as_bytes());
            }
        }
    }
    carried::append(&mut text, &request, question.body);
    Ok(text)
}

/// Explanation under construction, with a label before each item.
#[derive(Default)]
pub(crate) struct Explanation {
    text: String,
    /// The answer, as far as it is known.
    pub(crate) answer: Answer,
    /// True if closed routes count as open.
    ignores_maintenance: bool,
}

impl Explanation {
    fn item(&mut self, label: &str, value: &[u8]) {
        let _ = writeln!(self.text, "{label:<10}{}", printable(value));
    }

    /// Appends the keys that the site or route inherits from `[defaults]`, `[site.defaults]` or
    /// `[set.NAME]`, with the table and line of each key.
    fn inherited(&mut self, keys: &[Inherited]) {
        for Inherited { key, typed, table, line, file } in keys {
            let file = file.as_ref().map(|file| format!(" of {file}")).unwrap_or_default();
            let line = format!("{key} = {typed} from {table}, line {line}{file}");
            self.item("", line.as_bytes());
        }
    }

    fn list<'a>(&mut self, label: &str, lines: impl Iterator<Item = Vec<u8>> + 'a) {
        let _ = writeln!(self.text, "{label}");
        for line in lines {
            let _ = writeln!(self.text, "  {}", printable(&line));
        }
    }
}

/// Returns the text with control characters escaped for a terminal.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let escaped = text
        .chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() });
    escaped.collect()
}

/// Returns the reason why the site takes the request.
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

/// Follows the routes in the same way as the server. Returns a fault if the request is refused.
fn routes(
    plan: &Plan,
    site: &Site,
    request: &mut Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    request
        .prepare_path(site.encoded_slashes, slashes(site))
        .map_err(|error| Fault::client(error.status(), error.to_string()))?;
    if let Some(redirect) = site.redirect_to_https.map(by_https).filter(|_| !request.https) {
        text.item("route", b"none: `redirect_to_https` of the site answers");
        return redirection(&redirect, request, text);
    }
    let (facts, files) = facts(site, plan);
    let mut walk = Walk::new(&facts, site.encoded_slashes);
    let (mut current, mut selections) = (0, 0);
    loop {
        let step = walk.next(request, 0);
        let (count, at) = walk.selections();
        if count > selections {
            selections = count;
            let route = &site.routes[at];
            let line = format!("line {}: {}", route.line, conditions(&route.matcher));
            text.item("route", line.as_bytes());
            text.inherited(&route.inherited);
            (text.answer.route, current) = (Some(at), at);
        }
        match step? {
            Step::Rewritten | Step::Again(Lead::Rewrite) => {
                text.item("rewrite", &[b"as ", request.target()].concat());
            }
            Step::Again(Lead::Index) => text.item("index", &request.path),
            Step::Again(Lead::Extension) => text.item("file", &request.path),
            Step::Gate { rule, is_internal } => {
                rule_line(&site.routes[rule], walk.rule_name(), text);
                text.answer.route = Some(rule);
                let was_internal = request.is_internal;
                request.is_internal |= is_internal;
                let outcome = gate(&site.routes[rule], request, text);
                request.is_internal = was_internal;
                outcome?;
                text.answer.route = Some(current);
            }
            Step::Instead(rule) => rule_line(&site.routes[rule], &request.path, text),
            Step::Admit(Admission { at, is_asked, .. }) => {
                (text.answer.route, current) = (Some(at), at);
                if is_answered_before_gate(&site.routes[at], request, text) {
                    return Ok(());
                }
                if !is_asked {
                    gate(&site.routes[at], request, text)?;
                }
            }
            Step::Answer(at) => {
                let files = files[at].as_deref();
                let Err(fault) = answer(plan, (site, at), files, request, text) else {
                    return Ok(());
                };
                let why = fault.to_string();
                match walk.declined(request, fault)? {
                    Declined::Below => {
                        text.item("", format!("{why}: left to the routes below").as_bytes());
                    }
                    Declined::Again => {
                        let to = if request.is_rerouted() {
                            &request.path[..]
                        } else {
                            request.target()
                        };
                        let to = String::from_utf8_lossy(to);
                        text.item("", format!("{why}: routed again as {to}").as_bytes());
                    }
                }
            }
            Step::End(fault) => return Err(fault),
        }
    }
}

/// Appends the line of a rule for another name of the same resource. For example, `/` and
/// `/index.php` may name the same script.
fn rule_line(rule: &Route, name: &[u8], text: &mut Explanation) {
    let line = format!("the one on line {} applies to ", rule.line);
    text.item("rule", &[line.as_bytes(), name].concat());
}

/// Appends the answer of route `at`, which has admitted the request. Fails if its origin would answer
/// with an error, or would leave the request to another route.
fn answer(
    plan: &Plan,
    (site, at): (&Site, usize),
    files: Option<&FileResolver>,
    request: &mut Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let route = &site.routes[at];
    if matches!(request.method(), b"MOVE" | b"COPY") {
        text.item("", b"if the client may also send a PUT to the `Destination`");
    }
    for beside in rules_beside(site, plan, at, &request.path) {
        let line = site.routes[beside].line;
        let why = format!("that of line {line} protects the same, and does not take this path");
        text.item("no rule", why.as_bytes());
    }
    if let RequestFraming::Length(length) = request.head.framing {
        let most = route.max_body.unwrap_or(plan.server.limits.max_body);
        if length > most {
            return Err(Fault::client(413, format!("the body is larger than {most} bytes")));
        }
    }
    if route.cache.is_some() {
        text.item("cache", b"its replies may be stored, and later requests get them");
        text.item("store", places(plan).as_bytes());
    }
    filters::append(&route.filters, request, text);
    let fields = RequestFields::new(&route.request_headers);
    let clients = fields.as_ref().map(|fields| fields.apply(request));
    let outcome = origin(plan, route, files, request, text);
    if let Some(clients) = clients {
        RequestFields::restore(request, clients);
    }
    if outcome.is_ok() {
        reply_fields(route, request, text);
        end_of_client(plan, route, text);
    }
    outcome
}

/// Appends what happens if the client leaves, unless it is the default of the route's kind.
fn end_of_client(plan: &Plan, route: &Route, text: &mut Explanation) {
    let is_told = match &route.action {
        Action::Proxy(_) => true,
        Action::App(name) => {
            matches!(plan.apps[name].kind, AppKind::Asgi { .. } | AppKind::Pagi { .. })
        }
        _ => false,
    };
    let what: &[u8] = match (route.on_abort, is_told) {
        (OnAbort::Finish, true) => {
            b"finish: the request runs to its end although its client leaves"
        }
        (OnAbort::Cancel, false) if has_origin(route) => {
            b"cancel: the request ends when its client has certainly left"
        }
        (OnAbort::Stop, _) => b"stop: the request ends when its client closes its sending side",
        _ => return,
    };
    text.item("on_abort", what);
}

/// Returns true if an application or server answers.
fn has_origin(route: &Route) -> bool {
    !matches!(
        route.action,
        Action::Files(_)
            | Action::Respond(_)
            | Action::Redirect(_)
            | Action::Moved(_)
            | Action::Rewrite
    )
}

/// Appends the fields that the route sets or adds in its reply.
fn reply_fields(route: &Route, request: &Request, text: &mut Explanation) {
    if route.reply_headers.is_empty() {
        return;
    }
    let lines = route.reply_headers.iter().map(|field| {
        let mut line = format!("{}: ", field.name).into_bytes();
        request.fill(&field.value, Escape::Field, &mut line);
        if field.change == ReplyChange::IfMissing {
            line.extend_from_slice(b" (if the reply has none)");
        }
        if !field.always {
            line.extend_from_slice(b" (unless the status is 400 or more)");
        }
        line
    });
    text.list("reply", lines);
}

/// Appends what answers in place of the route, if something does.
fn is_answered_before_gate(route: &Route, request: &Request, text: &mut Explanation) -> bool {
    let settings = route.maintenance.as_ref().filter(|_| !text.ignores_maintenance);
    let closed = settings.map(|settings| Closed::new(settings.clone()));
    match before_gate(closed.as_ref(), route.cors.as_ref(), request, 0) {
        Some(BeforeGate::Closed(_)) => {
            text.item("answer", b"503, because the route is closed (`maintenance`)");
            text.answer.decide(503);
        }
        Some(BeforeGate::Preflight(_)) => {
            text.item("answer", b"204 to the preflight request (`cors`), without access rules");
            text.answer.decide(204);
        }
        None => return false,
    }
    true
}

/// Appends the access rules of the route. Fails if these rules refuse the client.
fn gate(route: &Route, request: &Request, text: &mut Explanation) -> Result<(), Fault> {
    if route.access.internal && !request.is_internal {
        return Err(only_internal());
    }
    if !permits_method(&route.access, request) {
        let allowed = route.access.allow_field();
        return Err(Fault::client(405, format!("`allow_methods` permits {allowed}")));
    }
    if let Some(signed) = &route.access.signed_url {
        check_signed_url(signed, request)?;
        text.item("", b"the signature of the URL is valid (`signed_url`)");
    }
    if let Some(challenge) = &route.access.challenge
        && challenges(challenge, request)
    {
        let bits = challenge.difficulty;
        let task = format!(
            "a new visitor first gets a page whose script searches a hash with {bits} zero bits \
             (`challenge`)"
        );
        text.item("", task.as_bytes());
    }
    if is_open_to(&route.access, request) {
        text.item("", b"the method needs no permission (`open_methods`)");
        return Ok(());
    }
    let is_any = route.access.satisfy == Satisfy::Any;
    let is_admitted = route.access.admits(request.client.ip());
    if is_admitted && route.access.suffices_by_address() {
        text.item("", b"the client's address is enough (`satisfy`)");
        return Ok(());
    }
    if !is_admitted && !is_any {
        let message = format!("`allow` or `deny` refuses {}", request.client);
        return Err(Fault::client(403, message));
    }
    for limit in &route.access.rate_limits {
        let (every, ahead) = (limit.interval().as_secs_f64(), limit.burst());
        let limit = format!("one request every {every} s per key, and {ahead} at once before");
        text.item("", limit.as_bytes());
    }
    for limit in &route.access.concurrency_limits {
        let limit = format!("at most {} requests per key at once", limit.max);
        text.item("", limit.as_bytes());
    }
    logins(route, request, text);
    if let Some(auth) = &route.access.forward_auth {
        let servers = auth.upstream().into_iter().flat_map(|upstream| upstream.addresses());
        let servers: Vec<_> = servers.map(ToString::to_string).collect();
        let asked = match auth.app() {
            Some(name) => format!("if the access handlers of [app.{name}] permit it"),
            None => format!("if {} permits it: GET {}", servers.join(", "), auth.target),
        };
        text.item("", asked.as_bytes());
    }
    Ok(())
}

/// Appends the logins of the route. If the request lacks the fields that these logins need, the
/// answer is 401.
fn logins(route: &Route, request: &Request, text: &mut Explanation) {
    let access = &route.access;
    let users = |file: &std::path::Path| format!("for the users of {}", file.display());
    let basic = access.basic_auth.as_ref().map(|auth| {
        let text = match &auth.users[..] {
            [] => users(&auth.file),
            some => format!("for {} of {}", some.join(", "), auth.file.display()),
        };
        (text, "authorization")
    });
    let digest = access.digest_auth.as_ref().map(|auth| (users(&auth.file), "authorization"));
    let token = access.jwt.as_ref().map(|jwt| {
        let field = match &jwt.source {
            TokenSource::Header(name) => name.as_str(),
            TokenSource::Cookie(_) => "cookie",
        };
        ("for a request with a valid token (`jwt`)".to_owned(), field)
    });
    let logins: Vec<_> = [basic, digest, token].into_iter().flatten().collect();
    let has_field = |name: &str| {
        let mut names = request.head.fields.iter().map(|field| field.name.of(&request.bytes));
        names.any(|given| given.eq_ignore_ascii_case(name.as_bytes()))
    };
    let missing = logins.iter().filter(|(_, field)| !has_field(field)).count();
    logins.iter().for_each(|(item, _)| text.item("", item.as_bytes()));
    let is_refused = match access.satisfy {
        Satisfy::All => missing > 0,
        Satisfy::Any => missing > 0 && missing == logins.len() && access.forward_auth.is_none(),
    };
    if is_refused {
        text.answer.refuse(401, &route.error_pages);
    }
}

/// Returns the conditions of a route as in a configuration file.
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
        matcher.suffix_ignores_case.then(|| "suffix_ignore_case = true".to_owned()),
        list("path_regex", matcher.regex.iter().map(|regex| regex.condition()).collect()),
        list("methods", matcher.methods.clone()),
        matcher.when.as_ref().map(|_| "the conditions of `when`".to_owned()),
    ];
    let given: Vec<_> = given.into_iter().flatten().collect();
    if given.is_empty() { "takes every request".into() } else { given.join(", ") }
}

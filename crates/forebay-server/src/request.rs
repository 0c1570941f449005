//! Handles a request of any protocol, from step 3 of the table in ARCHITECTURE.md on. Before that,
//! the modules of the protocols (`http1`, `http2`, `http3`, `ajp`) read the head.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf::Level;
use forebay_net::counters::TopTimes;
use forebay_net::fault::{Fault, Side};
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::log::LogEntry;
use forebay_net::thread::Thread;
use forebay_net::timing::Steps;
use forebay_wire::http1::{Field, KnownField, RequestFraming, TargetForm, Version};

use crate::context::FrontContext;
use crate::decide::{Walk, no_route};
use crate::dispatch::{WORTH_DRAINING, try_routes};
use crate::exchange::{Exchange, Origin};
use crate::forwarded::{Trust, find_client};
use crate::internal_redirect::{Origins, follow};
use crate::part::Abort;
use crate::reply::is_grpc_call;
use crate::route::{Route, Site};
use crate::stream::Stream;

/// Further use of the connection.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// The connection may carry another request.
    Request,
    /// The connection closes.
    Close,
    /// The connection closes after a delay, so that the client can read the reply. More bytes of
    /// the request may arrive.
    Linger,
}

/// Answers a request whose head has been read. Returns the next step for the connection: another
/// request, or a close.
pub async fn answer(context: &FrontContext, stream: &Stream, exchange: &mut Exchange) -> Next {
    let started = stream.thread().start();
    begin(exchange);
    let site = find_site(context, stream, &exchange.request);
    let site = site.as_deref();
    let pages = site.and_then(|site| site.pages.clone());
    exchange.reply.set_pages(pages, false);
    let http3_port = site.and_then(|site| http3_port(site, stream));
    exchange.reply.announce_http3(http3_port.unwrap_or(0));
    let mut answering = None;
    let to_https = |request: &Request| {
        site.and_then(|site| site.redirect_to_https.as_deref()).filter(|_| !request.https)
    };
    if exchange.request.head.has_marks {
        remove_marked(stream, site, &mut exchange.request);
    }
    let client = resolve_client(stream, site, &mut exchange.request);
    if stream.thread().is_tracing() {
        stream.thread().begin_trace(&mut exchange.request);
    }
    let outcome = match client
        .and_then(|()| check_certificate(context, stream, site, &mut exchange.request))
        .and_then(|()| clean_target(site, &mut exchange.request))
    {
        Ok(Subject::Path) => {
            let mut answer = None;
            if context.table().challenges.is_some() {
                answer = challenge(context, &exchange.request);
                if answer.is_none() && may_ask(context, &exchange.request) {
                    // Box the future, so that all other requests reserve no memory for it.
                    answer = Box::pin(ask_for_challenge(context, &exchange.request)).await;
                }
            }
            if let Some(answer) = answer {
                let Exchange { reply, .. } = &mut *exchange;
                reply.respond(200, "application/octet-stream", answer.as_bytes()).await
            } else if let Some(origin) = to_https(&exchange.request) {
                redirect_to_https(exchange, origin).await
            } else {
                answer_by_routes(stream, exchange, site, &mut answering).await
            }
        }
        Ok(Subject::Server) => describe_server(exchange).await,
        Err(fault) => Err(fault),
    };
    exchange.request.undo_rewrite();
    carry_tunnel(stream, exchange, &outcome).await;
    let is_whole = end_reply(stream, exchange, outcome).await;
    record(stream, exchange, started, (site, answering));
    if let Some(counters) = answering.and_then(|route| route.counters.as_deref()) {
        let took = started.map(|started| started.elapsed());
        let Exchange { request, reply, .. } = &*exchange;
        counters.count(request.method(), reply.status(), reply.body_bytes(), took);
    }
    keep_or_close(stream, exchange, is_whole).await
}

/// Prepares body and reply for the request.
fn begin(exchange: &mut Exchange) {
    let Exchange { request, body, reply, .. } = exchange;
    body.prepare(&request.head, &mut request.bytes);
    request.forget_route();
    request.complete_target();
    reply.forget_carried();
    reply.prepare(&request.head, request.head.method.of(&request.bytes));
    reply.set_to_grpc(request.head.version >= Version::Http2 && is_grpc_call(request));
}

fn find_site(context: &FrontContext, stream: &Stream, request: &Request) -> Option<Rc<Site>> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    context.table().site(stream.accepted().listener, authority).cloned()
}

/// Returns the UDP port of HTTP/3, which `Alt-Svc` announces. Returns `None` if the site does not
/// offer HTTP/3. Also returns `None` for a connection without TLS, and for an HTTP/3 connection.
fn http3_port(site: &Site, stream: &Stream) -> Option<u16> {
    let is_told = site.http3 && !matches!(stream, Stream::Http3(_));
    let accepted = stream.accepted();
    (is_told && accepted.tls.is_some()).then_some(accepted.local.port())
}

/// Removes fields with names such as `x_user`, which some applications read as `X-User`. Logs the
/// first of the removed fields. Does nothing if the site has `underscores_in_headers`.
fn remove_marked(stream: &Stream, site: Option<&Site>, request: &mut Request) {
    if site.is_some_and(|site| site.passes_marks) {
        return;
    }
    if let Some(first) = request.remove_marked() {
        stream.thread().log_limited_with(Level::Info, || {
            let name = first.name.of(&request.bytes);
            let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST_LOGGED)]);
            format!(
                "a request header was removed, because many applications read its name as another \
                 one: {name}, from {}; if an application needs such headers, set \
                 underscores_in_headers = true for its site",
                stream.peer()
            )
        });
    }
}

/// Maximum length in bytes of a field's name in a message.
const LONGEST_LOGGED: usize = 64;

/// Determines the address of the client. Fails with status 400 if forwarding fields of a trusted
/// proxy are malformed or contradict each other.
fn resolve_client(
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    let nobody = Trust::default();
    let trust = site.map_or(&nobody, |site| &site.trust);
    let peer = stream.peer();
    find_client(request, peer, trust).map_err(|why| {
        // The administrator must correct the proxy or Forebay's trust in it. So log the refusal, at
        // most once a second.
        stream.thread().log_limited(Level::Info, &format!("400 {why}: from {peer}"));
        why.into()
    })
}

/// Checks that the handshake of the connection fits the requested host. Fails with status 421 (RFC
/// 9110 section 15.5.20) in three cases. In the first, the handshake was for a host with another
/// certificate. In the second, the handshake did not ask for the client certificate that the
/// requested host requires. In the third, the connection uses HTTP/3, but the host does not offer
/// it.
fn check_certificate(
    context: &FrontContext,
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    (request.subject_field, request.subject_name) = (None, None);
    // HTTP/3 always uses TLS.
    if stream.accepted().tls.is_none() && !matches!(stream, Stream::Http3(_)) {
        return Ok(());
    }
    check_handshake(context, stream, site, request)
}

fn check_handshake(
    context: &FrontContext,
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    if matches!(stream, Stream::Http3(_)) && site.is_some_and(|site| !site.http3) {
        return Err(Fault::client(421, "the site of that name takes no HTTP/3"));
    }
    let accepted = stream.accepted();
    let tls = site.and_then(|site| site.tls.as_ref());
    let Some((handshake, tls)) = accepted.tls.as_ref().zip(tls) else { return Ok(()) };
    let table = context.table();
    // A handshake of QUIC does not look at the address.
    let local = (!matches!(stream, Stream::Http3(_))).then(|| accepted.local.ip());
    let shown = table.tls(accepted.listener, handshake.server_name(), local);
    if shown.is_some_and(|shown| !Arc::ptr_eq(shown, tls) && !shown.is_like(tls)) {
        return Err(Fault::client(421, "the handshake was for a site with another certificate"));
    }
    if !tls.takes_clients_of(handshake.tls()) {
        return Err(Fault::client(421, "the handshake did not ask for the client's certificate"));
    }
    request.set_subject(tls);
    Ok(())
}

/// Returns the answer to an ACME authority's request. The host name and the listener do not matter.
/// Returns `None` if the path names no known challenge.
fn challenge(context: &FrontContext, request: &Request) -> Option<String> {
    let table = context.table();
    table.challenges.as_ref()?.reply(&request.path)
}

/// Returns true if the shared store may have the answer: the path is the path of an ACME challenge,
/// and another machine may have stored the answer.
fn may_ask(context: &FrontContext, request: &Request) -> bool {
    context.table().challenges.as_ref().is_some_and(|all| all.may_ask(&request.path))
}

/// Asks the shared store for the answer to an ACME authority's request. Returns `None` if there is
/// no answer in time.
async fn ask_for_challenge(context: &FrontContext, request: &Request) -> Option<String> {
    let challenges = context.table().challenges.clone()?;
    challenges.ask_for_reply(&request.path).await
}

/// Redirects a client without TLS to the HTTPS URL.
async fn redirect_to_https(exchange: &mut Exchange, origin: &dyn Origin) -> Result<(), Fault> {
    if !exchange.body.discard(WORTH_DRAINING).await? {
        exchange.reply.close_after();
    }
    origin.serve(exchange).await
}

/// Subject of a request.
enum Subject {
    /// The path of the request's target.
    Path,
    /// The server as a whole: `OPTIONS *`.
    Server,
}

/// Prepares the path for the selection of a route. Returns [`Subject::Server`] for the target `*`.
/// Fails for the methods CONNECT and TRACE, and for an invalid path.
fn clean_target(site: Option<&Site>, request: &mut Request) -> Result<Subject, Fault> {
    if request.head.form == TargetForm::Asterisk {
        return Ok(Subject::Server);
    }
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    let encoded = site.map(|site| site.encoded_slashes).unwrap_or_default();
    let slashes = site.map(|site| site.slashes).unwrap_or_default();
    request
        .prepare_path(encoded, slashes)
        .map(|()| Subject::Path)
        .map_err(|error| Fault::client(error.status(), error.to_string()))
}

async fn describe_server(exchange: &mut Exchange) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    reply.begin(200, b"");
    reply.field("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    reply.end_head(crate::reply::Length::Known(0), false);
    reply.finish().await
}

/// Offers the request to the routes of `site`, and follows internal redirects until an origin
/// answers without a redirect. Sets `answering` to the last tried route. Returns a fault if no
/// route answers.
async fn answer_by_routes<'s>(
    stream: &Stream,
    exchange: &mut Exchange,
    site: Option<&'s Site>,
    answering: &mut Option<&'s Route>,
) -> Result<(), Fault> {
    let Some(site) = site else { return Err(no_route()) };
    let mut walk = Walk::new(&site.routes, site.encoded_slashes).by_index(&site.index);
    let route = try_routes(stream, exchange, site, &mut walk, answering).await?;
    let Some(redirect) = exchange.reply.take_redirect() else { return Ok(()) };
    let origins = Origins { site, route, walk };
    // Box the future. Otherwise each connection, even an idle connection, reserves memory for the
    // future.
    Box::pin(follow(stream, exchange, origins, redirect, answering)).await
}

/// Relays bytes in both directions after a 101, until the tunnel ends. Does nothing if the exchange
/// has no tunnel.
async fn carry_tunnel(stream: &Stream, exchange: &mut Exchange, outcome: &Result<(), Fault>) {
    if outcome.is_ok()
        && let Some(tunnel) = exchange.tunnel.take()
    {
        stream.end_steps();
        let request = &mut exchange.request;
        let is_websocket = is_websocket(&request.head.fields, &request.bytes);
        let prefix = request.bytes.split_off(request.head.len);
        request.bytes.shrink_to_fit();
        // Box the future, so that requests without an upgrade reserve no memory for a tunnel.
        let sent = Box::pin(tunnel.carry(stream, prefix, is_websocket)).await;
        exchange.reply.count_body(sent);
    }
}

/// Returns true if the only protocol in `Upgrade` is WebSocket.
fn is_websocket(fields: &[Field], bytes: &[u8]) -> bool {
    let mut upgrades = fields.iter().filter(|field| field.known == KnownField::Upgrade);
    let first = upgrades
        .next()
        .is_some_and(|field| field.value.of(bytes).trim_ascii().eq_ignore_ascii_case(b"websocket"));
    first && upgrades.next().is_none()
}

/// Finishes the reply after any outcome of the origin. Returns true if the client has received a
/// complete reply.
async fn end_reply(stream: &Stream, exchange: &mut Exchange, outcome: Result<(), Fault>) -> bool {
    let Exchange { request, body, reply, .. } = exchange;
    let fault = match outcome {
        Ok(()) if reply.is_done() => return true,
        Ok(()) => Fault::us(500, "the origin left its reply unfinished"),
        Err(fault) => fault,
    };
    if let Some(limit) = fault.limit {
        stream.thread().counters.count_limit(limit);
    }
    report(stream, request, &fault);
    reply.restart();
    // The origin has returned, so no task would write a backlog to the client.
    reply.set_buffered(false);
    if fault.is_cancelled && (reply.has_begun() || reply.is_to_grpc()) {
        // Reset the stream instead of sending an error: the reset code shows a gRPC client that the
        // server's deadline has passed.
        if !reply.has_begun() {
            reply.record_status(fault.status);
        }
        stream.abort(Abort::Cancelled);
        return false;
    }
    if reply.has_begun() {
        stream.abort(Abort::ReplyLost);
        return false;
    }
    let framing_lost = fault.side == Side::Client && matches!(fault.status, 400 | 408 | 499);
    if framing_lost || body.framing() != RequestFraming::None && fault.status == 413 {
        reply.close_after();
    }
    if matches!(fault.status, 444 | 499) {
        reply.record_status(fault.status);
        if fault.status == 444 && matches!(stream, Stream::Http2(_) | Stream::Http3(_)) {
            stream.abort(Abort::Cancelled);
        }
        return false;
    }
    if reply.is_to_grpc() {
        return reply.respond_fault(&fault).await.is_ok();
    }
    exchange.respond_error_with(fault.status, b"").await.is_ok()
}

/// Counts and logs the request.
pub fn record(
    stream: &Stream,
    exchange: &Exchange,
    started: Option<Instant>,
    (site, route): (Option<&Site>, Option<&Route>),
) {
    let steps = stream.end_steps();
    let took = started.map(|started| started.elapsed());
    let Exchange { request, body, reply, .. } = exchange;
    let (status, body_bytes) = (reply.status(), reply.body_bytes());
    let thread = stream.thread();
    thread.counters.count_request(status, body_bytes, took);
    if let Some(steps) = steps.as_deref().filter(|_| thread.reports_steps()) {
        count_top(thread, request, steps);
    }
    let log = route.map_or(site.map_or(Some(0), |site| site.log), |route| route.log);
    let is_logged = log.is_some() || request.trace.is_some();
    let Some(took) = took.filter(|_| is_logged) else { return };
    let steps = steps.as_deref();
    let upstream_steps = steps.filter(|_| request.upstream.is_some());
    let entry = LogEntry {
        request,
        status,
        body_bytes,
        took,
        upstream_time: upstream_steps.map(Steps::upstream_time),
        bytes_in: body.bytes(),
        bytes_out: reply.bytes(),
        site: site.map(|site| &*site.name),
        route: route.map(|route| &*route.name),
    };
    if let Some(number) = log {
        thread.log_request(number, &entry);
    }
    if let Some((trace, steps)) = request.trace.as_deref().zip(steps) {
        thread.end_trace(trace, &entry, steps);
    }
}

/// Counts the time of a request for its client, agent and path.
fn count_top(thread: &Thread, request: &Request, steps: &Steps) {
    let micros = |time: Duration| time.as_micros() as u64;
    let times = TopTimes {
        time_us: micros(steps.upstream_time()),
        queue_us: micros(steps.queue_time()),
        requests: 1,
    };
    let agent = request.joined_field("user-agent");
    thread.counters.top.count(request.client.ip(), &agent, &request.path, times);
}

/// Discards the rest of a small body, so that the connection can carry another request. Returns the
/// next step for the connection. The connection must close if the reply or the rest of the body is
/// incomplete.
async fn keep_or_close(stream: &Stream, exchange: &mut Exchange, is_whole: bool) -> Next {
    if !is_whole {
        return Next::Close;
    }
    if stream.ends_alone() {
        return Next::Request;
    }
    let Exchange { body, reply, .. } = exchange;
    let keeps_alive = reply.keeps_alive();
    // Check `is_done` before the call, because most requests have no body.
    if keeps_alive && (body.is_done() || matches!(body.discard(WORTH_DRAINING).await, Ok(true))) {
        return Next::Request;
    }
    if body.is_done() || body.is_continue_pending() { Next::Close } else { Next::Linger }
}

/// Counts and logs a client that still sends a request long after its reply.
pub(crate) fn report_endless(stream: &Stream) {
    let thread = stream.thread();
    thread.counters.count_limit(Limit::Linger);
    thread.log_limited_with(Level::Info, || {
        format!(
            "a client was cut off although it still sent its request, which had been answered: the \
             limit is linger of [server.timeouts] or linger_size of [server.limits], from {}",
            stream.peer()
        )
    });
}

/// Logs a fault. Ignores errors of the client, except a request over a limit: the administrator may
/// want to raise this limit.
fn report(stream: &Stream, request: &Request, fault: &Fault) {
    let is_clients = fault.side == Side::Client && fault.status != 500;
    if is_clients && fault.limit.is_none() && !matches!(fault.status, 413 | 431) {
        return;
    }
    let mut line = format!(
        "{} {}: {} {}",
        fault.status,
        fault,
        String::from_utf8_lossy(request.method()),
        String::from_utf8_lossy(request.original_target()),
    );
    if let Some(limit) = fault.limit.filter(|limit| !line.contains(limit.name())) {
        line.push_str(&format!(": the limit is {}", limit.name()));
    }
    if is_clients {
        stream.thread().log_limited(Level::Info, &format!("{line}, from {}", request.client));
    } else {
        stream.thread().errors.error(&line);
    }
}

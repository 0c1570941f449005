//! The life of a request, whatever protocol it came by: the steps from the third on, of which
//! ARCHITECTURE.md has the table. Accepting the connection and reading the head come before, and
//! are the front's.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_wire::http1::{RequestFraming, TargetForm, Version};
use forebay_wire::path::PathError;

use crate::context::FrontContext;
use crate::dispatch::{WORTH_DRAINING, no_route, try_routes};
use crate::exchange::{Exchange, Origin};
use crate::fault::{Fault, Side};
use crate::forwarded::{Trust, find_client};
use crate::head::Request;
use crate::internal_redirect::{Origins, follow};
use crate::log::Entry;
use crate::reply::is_grpc_call;
use crate::route::Site;
use crate::stream::{Abort, Stream};

/// What is left to do with the connection.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// It may carry another request.
    Request,
    /// It closes.
    Close,
    /// It closes when the client has had time to read the reply: there may be more of its request.
    Linger,
}

/// Answers the request whose head has been read, and decides about its connection.
pub async fn answer(context: &FrontContext, stream: &Stream, exchange: &mut Exchange) -> Next {
    let started = stream.thread().start();
    begin(exchange);
    let site = find_site(context, stream, &exchange.request);
    let site = site.as_deref();
    let http3_port = site.and_then(|site| http3_port(site, stream));
    exchange.reply.announce_http3(http3_port.unwrap_or(0));
    let mut is_logged = true;
    let to_https = |request: &Request| {
        site.and_then(|site| site.redirect_to_https.as_deref()).filter(|_| !request.https)
    };
    let outcome = match resolve_client(stream, site, &mut exchange.request)
        .and_then(|()| check_certificate(context, stream, site, &mut exchange.request))
        .and_then(|()| clean_target(stream, site, &mut exchange.request))
    {
        Ok(Subject::Path) => {
            match (challenge(context, &exchange.request), to_https(&exchange.request)) {
                (Some(answer), _) => {
                    let Exchange { reply, .. } = &mut *exchange;
                    reply.respond(200, "application/octet-stream", answer.as_bytes()).await
                }
                (None, Some(origin)) => redirect_to_https(exchange, origin).await,
                (None, None) => answer_by_routes(stream, exchange, site, &mut is_logged).await,
            }
        }
        Ok(Subject::Server) => describe_server(exchange).await,
        Err(fault) => Err(fault),
    };
    carry_tunnel(stream, exchange, &outcome).await;
    let is_whole = end_reply(stream, exchange, outcome).await;
    record(stream, exchange, started, is_logged);
    keep_or_close(stream, exchange, is_whole).await
}

/// Makes body and reply ready for the request.
fn begin(exchange: &mut Exchange) {
    let Exchange { request, body, reply, .. } = exchange;
    body.prepare(&request.head, &mut request.bytes);
    request.complete_target();
    reply.forget_carried();
    reply.prepare(&request.head, request.head.method.of(&request.bytes));
    reply.set_to_grpc(request.head.version >= Version::Http2 && is_grpc_call(request));
}

fn find_site(context: &FrontContext, stream: &Stream, request: &Request) -> Option<Rc<Site>> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes)).unwrap_or_default();
    context.table().site(stream.accepted().listener, authority).cloned()
}

/// The port where a client that came by TLS over TCP may come by HTTP/3, if the site takes that.
fn http3_port(site: &Site, stream: &Stream) -> Option<u16> {
    let is_told = site.http3 && !matches!(stream, Stream::Http3(_));
    let accepted = stream.accepted();
    (is_told && accepted.tls.is_some()).then_some(accepted.local.port())
}

/// Step 3: who the client is. The fields of a trusted proxy may make no sense, which its
/// configuration or ours has to mend: it is logged, at most once a second.
fn resolve_client(
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    let nobody = Trust::default();
    let trust = site.map_or(&nobody, |site| &site.trust);
    let peer = stream.peer();
    find_client(request, peer, trust).map_err(|why| {
        stream.thread().warn_limited(&format!("400 {why}: from {peer}"));
        why.into()
    })
}

/// Refuses a request for a host whose clients are shown another certificate than the one that the
/// connection began with, or get another certificate request: they may have meant another server,
/// or have shown nothing (RFC 9110 section 15.5.20).
fn check_certificate(
    context: &FrontContext,
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    (request.subject_field, request.subject_name) = (None, None);
    if matches!(stream, Stream::Http3(_)) && site.is_some_and(|site| !site.http3) {
        return Err(Fault::client(421, "the site of that name takes no HTTP/3"));
    }
    let accepted = stream.accepted();
    let tls = site.and_then(|site| site.tls.as_ref());
    let Some((handshake, tls)) = accepted.tls.as_ref().zip(tls) else { return Ok(()) };
    let table = context.table();
    let shown = table.tls(accepted.listener, handshake.server_name());
    if shown.is_some_and(|shown| !Arc::ptr_eq(shown, tls) && !shown.is_like(tls)) {
        return Err(Fault::client(421, "the handshake was for a site with another certificate"));
    }
    if !tls.takes_clients_of(handshake.tls()) {
        return Err(Fault::client(421, "the handshake did not ask for the client's certificate"));
    }
    request.set_subject(tls);
    Ok(())
}

/// The reply to an authority that asks whether a name is ours, by whatever name and listener.
fn challenge(context: &FrontContext, request: &Request) -> Option<String> {
    let table = context.table();
    table.challenges.as_ref()?.reply(&request.path)
}

/// Sends a client that came without TLS to the same place with it.
async fn redirect_to_https(exchange: &mut Exchange, origin: &dyn Origin) -> Result<(), Fault> {
    if !exchange.body.discard(WORTH_DRAINING).await? {
        exchange.reply.close_after();
    }
    origin.serve(exchange).await
}

/// What a request is about.
enum Subject {
    /// The path of its target.
    Path,
    /// The server as a whole: `OPTIONS *`.
    Server,
}

/// Makes the path that routes are looked up by.
fn clean_target(
    stream: &Stream,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<Subject, Fault> {
    if request.head.form == TargetForm::Asterisk {
        return Ok(Subject::Server);
    }
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    let slashes = site.map(|site| site.encoded_slashes).unwrap_or_default();
    request.prepare_path(slashes).map(|()| Subject::Path).map_err(|error| {
        if error == PathError::EncodedSlash {
            stream.thread().warn_limited(&format!(
                "404 {error}: {}, from {}; where an application needs such paths, set \
                 encoded_slashes = \"pass\" for its site",
                String::from_utf8_lossy(request.original_target()),
                stream.accepted().peer
            ));
        }
        Fault::client(error.status(), error.to_string())
    })
}

async fn describe_server(exchange: &mut Exchange) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    reply.begin(200, b"");
    reply.field("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    reply.end_head(crate::reply::Length::Known(0), false);
    reply.finish().await
}

/// Steps 4 to 9, again for what a reply names in its place. `is_logged` is set to what the
/// answering route has.
async fn answer_by_routes(
    stream: &Stream,
    exchange: &mut Exchange,
    site: Option<&Site>,
    is_logged: &mut bool,
) -> Result<(), Fault> {
    let Some(site) = site else { return Err(no_route()) };
    let mut taken = Vec::new();
    let route = try_routes(stream, exchange, site, &mut taken, is_logged).await?;
    let Some(redirect) = exchange.reply.take_redirect() else { return Ok(()) };
    let origins = Origins { site, route, taken };
    // In a box, as the futures of idle connections have room for all that can happen to them.
    Box::pin(follow(stream, exchange, origins, redirect, is_logged)).await
}

/// After a 101 the connection carries bytes both ways until the tunnel ends.
async fn carry_tunnel(stream: &Stream, exchange: &mut Exchange, outcome: &Result<(), Fault>) {
    if outcome.is_ok()
        && let Some(tunnel) = exchange.tunnel.take()
    {
        stream.end_steps();
        let request = &mut exchange.request;
        let prefix = request.bytes.split_off(request.head.len);
        request.bytes.shrink_to_fit();
        // Boxed, so that requests that are no upgrades do not carry room for a tunnel.
        let sent = Box::pin(tunnel.carry(stream, prefix)).await;
        exchange.reply.count_body(sent);
    }
}

/// Brings the reply to an end whatever the origin did; whether the client has got all of one.
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
    // Nobody drains a backlog behind the origin any more.
    reply.set_buffered(false);
    if fault.is_cancelled && (reply.has_begun() || reply.is_to_grpc()) {
        // Clients of gRPC read the server's deadline from the code of the reset.
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
    if fault.status == 499 {
        reply.record_status(499);
        return false;
    }
    reply.respond_fault(&fault).await.is_ok()
}

/// Step 10: counts the request and logs it.
pub fn record(stream: &Stream, exchange: &Exchange, started: Option<Instant>, is_logged: bool) {
    stream.end_steps();
    let took = started.map(|started| started.elapsed());
    let Exchange { request, reply, .. } = exchange;
    let (status, body_bytes) = (reply.status(), reply.body_bytes());
    let thread = stream.thread();
    thread.counters.count_request(status, body_bytes, took);
    if let Some(took) = took.filter(|_| is_logged) {
        thread.log_request(&Entry { request, status, body_bytes, took });
    }
}

/// Step 11: the rest of the body is dropped where that is worth the connection.
async fn keep_or_close(stream: &Stream, exchange: &mut Exchange, is_whole: bool) -> Next {
    if !is_whole {
        return Next::Close;
    }
    if stream.ends_alone() {
        return Next::Request;
    }
    let Exchange { body, reply, .. } = exchange;
    if reply.keeps_alive() && matches!(body.discard(WORTH_DRAINING).await, Ok(true)) {
        return Next::Request;
    }
    if body.is_done() || body.is_continue_pending() { Next::Close } else { Next::Linger }
}

/// Logs what went wrong. Of the clients' own faults a body over the limit is logged, as that may
/// be a limit to raise.
fn report(stream: &Stream, request: &Request, fault: &Fault) {
    let is_clients = fault.side == Side::Client && fault.status != 500;
    if is_clients && fault.status != 413 {
        return;
    }
    let line = format!(
        "{} {}: {} {}",
        fault.status,
        fault,
        String::from_utf8_lossy(request.method()),
        String::from_utf8_lossy(request.original_target()),
    );
    if is_clients {
        stream.thread().warn_limited(&format!("{line}, from {}", request.client));
    } else {
        stream.thread().errors.log(&line);
    }
}

//! A client's connection from its first byte to its last: the life of its requests, in order.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::http1::{HeadError, Limits, Progress, RequestFraming, RequestParser, TargetForm};
use forebay_wire::path::PathError;

use crate::dispatch::{WORTH_DRAINING, dispatch};
use crate::exchange::{BUFFER, Client, Exchange, Request};
use crate::fault::{Fault, Side};
use crate::forwarded::{Trust, find_client};
use crate::limit::Limit;
use crate::route::Site;
use crate::timing::Step;

/// How long a closing connection is read on.
const LINGER: Duration = Duration::from_secs(2);

/// What is left to do with the connection.
#[derive(PartialEq, Eq)]
enum Next {
    Request,
    Close,
}

/// Serves a connection until it closes. `early` is what has been read from it already.
pub async fn converse(client: Rc<Client>, listener: usize, early: Vec<u8>) {
    let timeouts = &client.thread.settings().timeouts;
    client.socket.limit_writes(timeouts.write);
    let mut wait = timeouts.head;
    let mut is_first = true;
    let mut left = requests_allowed(&client);
    let mut early = Some(early).filter(|bytes| !bytes.is_empty());
    loop {
        client.socket.limit_read(wait);
        if early.is_none() {
            client.socket.set_idle(true);
            let ready = client.socket.readable().await;
            client.socket.set_idle(false);
            if ready.is_err() || client.socket.is_expired() {
                if client.socket.is_expired() && !client.thread.is_stopping() {
                    let limit = if is_first { Limit::Head } else { Limit::KeepAlive };
                    client.thread.counters.count_limit(limit);
                }
                return;
            }
        }
        let mut exchange = client.thread.take_exchange(&client);
        match early.take() {
            Some(early) => exchange.request.bytes.extend(early),
            None => match client.socket.read_now(&mut exchange.request.bytes) {
                Ok(1..) => {}
                // The event loop takes new connections for readable. Many have said nothing yet,
                // and hold no exchange until they do.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    client.thread.keep_exchange(exchange);
                    continue;
                }
                Ok(0) | Err(_) => {
                    client.thread.keep_exchange(exchange);
                    return;
                }
            },
        }
        // In a box of its own, so that an idle connection does not hold room for a busy one's
        // state.
        let next = Box::pin(serve_waiting(&client, listener, &mut exchange, &mut left)).await;
        client.thread.keep_exchange(exchange);
        if next == Next::Close || client.thread.is_stopping() {
            return;
        }
        wait = client.thread.settings().timeouts.keep_alive;
        is_first = false;
    }
}

/// How many requests the connection may carry.
fn requests_allowed(client: &Client) -> u64 {
    let settings = client.thread.settings();
    match settings.limits.keepalive_requests {
        _ if settings.timeouts.keep_alive.is_zero() => 1,
        0 => u64::MAX,
        most => most,
    }
}

/// Serves requests until none has begun to come in; `left` counts those still allowed.
async fn serve_waiting(
    client: &Rc<Client>,
    listener: usize,
    exchange: &mut Exchange,
    left: &mut u64,
) -> Next {
    loop {
        match read_head(client, &mut exchange.request).await {
            Ok(true) => {}
            Ok(false) => return Next::Close,
            Err(fault) => {
                refuse(client, exchange, &fault).await;
                return Next::Close;
            }
        }
        *left -= 1;
        let has_limit = || client.thread.settings().limits.keepalive_requests > 0;
        if *left == 0 && exchange.request.head.keep_alive && has_limit() {
            client.thread.counters.count_limit(Limit::KeepaliveRequests);
        }
        if *left == 0 || client.thread.table.borrow().is_leaving(listener) {
            exchange.request.head.keep_alive = false;
        }
        if serve_one(client, listener, exchange).await == Next::Close {
            return Next::Close;
        }
        exchange.next();
        if exchange.request.bytes.is_empty() {
            return Next::Request;
        }
    }
}

/// Reads until a head is whole; `false` where the client has closed instead.
async fn read_head(client: &Client, request: &mut Request) -> Result<bool, Fault> {
    let settings = client.thread.settings();
    let limits = settings.head_limits();
    let mut parser = RequestParser::new(limits);
    let mut limited = false;
    loop {
        if !request.bytes.is_empty() {
            if !limited {
                client.begin_steps();
                refuse_other_protocols(&request.bytes)?;
            }
            let progress = parser.parse(&request.bytes, &mut request.head);
            if let Progress::Complete(_) = progress.map_err(|e| head_fault(e, request, &limits))? {
                client.socket.unlimit_read();
                client.enter(Step::Route);
                return Ok(true);
            }
            if !limited {
                // The whole head has this long, however many pieces it comes in.
                client.socket.limit_read(settings.timeouts.head);
                limited = true;
            }
        }
        if request.bytes.capacity() - request.bytes.len() < BUFFER / 8 {
            request.bytes.reserve(BUFFER);
        }
        // What woke the connection may have been known already: then it is idle still.
        client.socket.set_idle(request.bytes.is_empty());
        let read = client.socket.read(&mut request.bytes).await;
        client.socket.set_idle(false);
        match read {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let waiting = request.bytes.is_empty();
                return match waiting {
                    true => Ok(false),
                    false => Err(Fault::client(408, "slow head").limited_by(Limit::Head)),
                };
            }
            Err(_) => return Ok(false),
        }
    }
}

/// The fault of a head that is refused, with the limit that can be changed where there is one.
fn head_fault(error: HeadError, request: &Request, limits: &Limits) -> Fault {
    let fault = Fault::from(error);
    match error {
        HeadError::TooLarge if request.head.fields.len() >= limits.fields => {
            fault.limited_by(Limit::Fields)
        }
        HeadError::TooLarge => fault.limited_by(Limit::HeadSize),
        HeadError::GetBody => fault.limited_by(Limit::GetBody),
        _ => fault,
    }
}

/// Who speaks TLS or begins with HTTP/2 waits for an answer before there is a whole line of HTTP/1.
fn refuse_other_protocols(bytes: &[u8]) -> Result<(), Fault> {
    // The record type of a TLS handshake, with which no method begins.
    if bytes[0] == 0x16 {
        return Err(Fault::client(400, "TLS on a listener that speaks plain HTTP"));
    }
    Ok(())
}

async fn serve_one(client: &Rc<Client>, listener: usize, exchange: &mut Exchange) -> Next {
    let start = client.thread.start();
    let Exchange { request, body, reply, .. } = exchange;
    body.prepare(&request.head, &mut request.bytes);
    request.complete_target();
    let method = request.head.method.of(&request.bytes);
    reply.prepare(&request.head, method);
    let site = find_site(client, listener, request);
    let mut is_logged = true;
    let prepared = believe(client, site.as_deref(), request)
        .and_then(|()| prepare(client, site.as_deref(), request));
    let outcome = match prepared {
        Ok(true) => dispatch(client, exchange, site.as_deref(), &mut is_logged).await,
        Ok(false) => asterisk(exchange).await,
        Err(fault) => Err(fault),
    };
    if outcome.is_ok()
        && let Some(tunnel) = exchange.tunnel.take()
    {
        client.end_steps();
        // Boxed, so that requests that are no upgrades do not carry room for a tunnel.
        Box::pin(exchange.carry(&client.socket, *tunnel)).await;
    }
    let next = conclude(client, exchange, outcome).await;
    client.end_steps();
    client.thread.note(exchange, start, is_logged);
    next
}

fn find_site(client: &Client, listener: usize, request: &Request) -> Option<Rc<Site>> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes));
    client.thread.table.borrow().site(listener, authority.unwrap_or_default()).cloned()
}

/// Finds out who the client is. What a trusted proxy tells may make no sense: that is a matter of
/// its configuration or ours, so it is told in the log, if not for each request.
fn believe(client: &Client, site: Option<&Site>, request: &mut Request) -> Result<(), Fault> {
    let nobody = Trust::default();
    let trust = site.map_or(&nobody, |site| &site.trust);
    find_client(request, client.peer, trust).map_err(|why| {
        client.thread.complain(&format!("400 {why}: from {}", client.peer.ip()));
        why.into()
    })
}

/// Makes the path clean; `false` for `OPTIONS *`, which is about the server as a whole.
fn prepare(client: &Client, site: Option<&Site>, request: &mut Request) -> Result<bool, Fault> {
    if request.head.form == TargetForm::Asterisk {
        return Ok(false);
    }
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    let slashes = site.map(|site| site.encoded_slashes).unwrap_or_default();
    request.prepare_path(slashes).map(|()| true).map_err(|error| {
        if error == PathError::EncodedSlash {
            client.thread.complain(&format!(
                "404 {error}: {}, from {}; where an application needs such paths, set \
                 encoded_slashes = \"pass\" for its site",
                String::from_utf8_lossy(request.asked_target()),
                client.peer.ip()
            ));
        }
        Fault::client(error.status(), error.to_string())
    })
}

async fn asterisk(exchange: &mut Exchange) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    reply.begin(200, b"");
    reply.field("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    reply.end_head(crate::reply::Length::Known(0), false);
    reply.finish().await
}

/// Brings the reply to an end whatever the origin did, and decides about the connection.
async fn conclude(client: &Client, exchange: &mut Exchange, outcome: Result<(), Fault>) -> Next {
    let Exchange { request, body, reply, .. } = exchange;
    let fault = match outcome {
        Ok(()) if reply.is_done() => None,
        Ok(()) => Some(Fault::us(500, "the origin left its reply unfinished")),
        Err(fault) => Some(fault),
    };
    if let Some(fault) = fault {
        if let Some(limit) = fault.limit {
            client.thread.counters.count_limit(limit);
        }
        report(client, request, &fault);
        reply.restart();
        reply.set_buffered(false);
        if reply.has_begun() {
            client.socket.reset();
            return Next::Close;
        }
        let framing_lost = fault.side == Side::Client && matches!(fault.status, 400 | 408 | 499);
        if framing_lost || body.framing() != RequestFraming::None && fault.status == 413 {
            reply.close_after();
        }
        if fault.status == 499 {
            reply.note_status(499);
            return Next::Close;
        }
        if reply.respond_error(fault.status).await.is_err() {
            return Next::Close;
        }
    }
    client.end_steps();
    let wanted = reply.keeps_alive();
    if wanted && matches!(body.discard(WORTH_DRAINING).await, Ok(true)) {
        return Next::Request;
    }
    if !body.is_done() && !body.is_unasked() {
        linger(client).await;
    }
    Next::Close
}

/// Tells what went wrong. Of the clients' own faults a body over the limit is told, since that may
/// be a limit to raise.
fn report(client: &Client, request: &Request, fault: &Fault) {
    let is_clients = fault.side == Side::Client && fault.status != 500;
    if is_clients && fault.status != 413 {
        return;
    }
    let line = format!(
        "{} {}: {} {}",
        fault.status,
        fault,
        String::from_utf8_lossy(request.method()),
        String::from_utf8_lossy(request.asked_target()),
    );
    if is_clients {
        client.thread.complain(&format!("{line}, from {}", request.client.ip()));
    } else {
        client.thread.errors.say(&line);
    }
}

/// Answers a request whose head cannot be read.
async fn refuse(client: &Client, exchange: &mut Exchange, fault: &Fault) {
    let start = client.thread.start();
    if let Some(limit) = fault.limit {
        client.thread.counters.count_limit(limit);
    }
    exchange.request.head.fields.clear();
    exchange.request.path.clear();
    exchange.reply.prepare_refusal(exchange.request.method());
    let answered = exchange.reply.respond_error(fault.status).await;
    client.end_steps();
    client.thread.note(exchange, start, true);
    if answered.is_ok() {
        linger(client).await;
    }
}

/// Reads on for a moment after the last reply: closing with unread bytes would reset the
/// connection, and the client could lose the reply (RFC 9112 section 9.6).
async fn linger(client: &Client) {
    client.socket.finish_writing();
    client.socket.limit_read(LINGER);
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut left = 64 * BUFFER;
    while left > 0 {
        buffer.clear();
        match client.socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => left = left.saturating_sub(n),
        }
    }
}

//! A client's connection from its first byte to its last: the life of its requests, in order.

use std::rc::Rc;
use std::time::Duration;

use forebay_wire::http1::{Progress, RequestFraming, RequestParser, TargetForm};

use crate::dispatch::{WORTH_DRAINING, dispatch};
use crate::exchange::{BUFFER, Client, Exchange, Request};
use crate::fault::{Fault, Side};
use crate::forwarded::find_client;
use crate::route::Site;

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
    let mut left = requests_allowed(&client);
    let mut early = Some(early).filter(|bytes| !bytes.is_empty());
    loop {
        client.socket.limit_read(wait);
        if early.is_none() {
            client.socket.set_idle(true);
            let ready = client.socket.readable().await;
            client.socket.set_idle(false);
            if ready.is_err() || client.socket.is_expired() {
                return;
            }
        }
        let mut exchange = client.thread.take_exchange(&client);
        exchange.request.bytes.extend(early.take().unwrap_or_default());
        // In a box of its own, so that an idle connection does not hold room for a busy one's state.
        let next = Box::pin(serve_waiting(&client, listener, &mut exchange, &mut left)).await;
        client.thread.keep_exchange(exchange);
        if next == Next::Close || client.thread.is_stopping() {
            return;
        }
        wait = client.thread.settings().timeouts.keep_alive;
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
            if let Progress::Complete(_) = parser.parse(&request.bytes, &mut request.head)? {
                client.socket.unlimit_read();
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
        match client.socket.read(&mut request.bytes).await {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let waiting = request.bytes.is_empty();
                return if waiting { Ok(false) } else { Err(Fault::client(408, "slow head")) };
            }
            Err(_) => return Ok(false),
        }
    }
}

async fn serve_one(client: &Rc<Client>, listener: usize, exchange: &mut Exchange) -> Next {
    let start = client.thread.start();
    let Exchange { request, body, reply, .. } = exchange;
    body.prepare(&request.head, &mut request.bytes);
    let method = request.head.method.of(&request.bytes);
    reply.prepare(&request.head, method);
    let site = find_site(client, listener, request);
    let trusted = site.as_ref().map_or(&[][..], |site| &site.trusted_proxies);
    find_client(request, client.peer, trusted);
    let mut is_logged = true;
    let outcome = match prepare(request) {
        Ok(true) => dispatch(client, exchange, site.as_deref(), &mut is_logged).await,
        Ok(false) => asterisk(exchange).await,
        Err(fault) => Err(fault),
    };
    if outcome.is_ok()
        && let Some(tunnel) = exchange.tunnel.take()
    {
        // Boxed, so that requests that are no upgrades do not carry room for a tunnel.
        Box::pin(exchange.carry(&client.socket, *tunnel)).await;
    }
    let next = conclude(client, exchange, outcome).await;
    client.thread.note(exchange, start, is_logged);
    next
}

fn find_site(client: &Client, listener: usize, request: &Request) -> Option<Rc<Site>> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes));
    client.thread.table.borrow().site(listener, authority.unwrap_or_default()).cloned()
}

/// Makes the path clean; `false` for `OPTIONS *`, which is about the server as a whole.
fn prepare(request: &mut Request) -> Result<bool, Fault> {
    if request.head.form == TargetForm::Asterisk {
        return Ok(false);
    }
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    request.clean_path().map_err(|error| Fault::client(400, error.to_string()))?;
    Ok(true)
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
        report(client, request, &fault);
        reply.restart();
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
    let wanted = reply.keeps_alive();
    if wanted && matches!(body.discard(WORTH_DRAINING).await, Ok(true)) {
        return Next::Request;
    }
    if !body.is_done() && !body.is_unasked() {
        linger(client).await;
    }
    Next::Close
}

fn report(client: &Client, request: &Request, fault: &Fault) {
    if fault.side == Side::Client && fault.status != 500 {
        return;
    }
    client.thread.errors.say(&format!(
        "{} {}: {} {}",
        fault.status,
        fault,
        String::from_utf8_lossy(request.method()),
        String::from_utf8_lossy(request.target()),
    ));
}

/// Answers a request whose head cannot be read.
async fn refuse(client: &Client, exchange: &mut Exchange, fault: &Fault) {
    let start = client.thread.start();
    exchange.request.head.fields.clear();
    exchange.request.path.clear();
    exchange.reply.prepare_refusal();
    let answered = exchange.reply.respond_error(fault.status).await;
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

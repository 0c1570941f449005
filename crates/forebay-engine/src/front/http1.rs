//! HTTP/1.1 connections (RFC 9112): heads are read one after the other, each request is answered, and
//! the connection is kept or closed.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::http1::{HeadError, Limits, Progress, RequestParser};

use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::head::Request;
use crate::limit::Limit;
use crate::request::{Next, answer, record};
use crate::socket::{BUFFER, Socket};
use crate::stream::{Http1, Stream};
use crate::thread::Thread;
use crate::timing::Step;

/// How long a closing connection is read on.
const LINGER: Duration = Duration::from_secs(2);

/// Serves a connection until it closes. `prefix` is what has been read from it already.
pub async fn serve_connection(connection: Http1, prefix: Vec<u8>) {
    let client = Rc::new(connection);
    let stream = Stream::Http1(client.clone());
    let thread = &client.accepted.thread;
    let timeouts = &thread.settings().timeouts;
    client.socket.limit_writes(timeouts.write);
    let mut wait = timeouts.head;
    let mut is_first = true;
    let mut left = requests_allowed(thread);
    let mut prefix = Some(prefix).filter(|bytes| !bytes.is_empty());
    loop {
        client.socket.limit_read(wait);
        if prefix.is_none() {
            client.socket.set_idle(true);
            let ready = client.socket.readable().await;
            client.socket.set_idle(false);
            if ready.is_err() || client.socket.is_expired() {
                if client.socket.is_expired() && !thread.is_stopping() {
                    let limit = if is_first { Limit::Head } else { Limit::KeepAlive };
                    thread.counters.count_limit(limit);
                }
                return;
            }
        }
        let mut exchange = thread.take_exchange(&stream);
        match prefix.take() {
            Some(prefix) => exchange.request.bytes.extend(prefix),
            None => match client.socket.read_now(&mut exchange.request.bytes) {
                Ok(1..) => {}
                // The event loop takes new connections for readable. Many have said nothing yet,
                // and hold no exchange until they do.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread.keep_exchange(exchange);
                    continue;
                }
                Ok(0) | Err(_) => {
                    thread.keep_exchange(exchange);
                    return;
                }
            },
        }
        // In a box of its own, so that an idle connection does not hold room for a busy one's
        // state.
        let next = Box::pin(serve_waiting(&stream, &client.socket, &mut exchange, &mut left)).await;
        thread.keep_exchange(exchange);
        if next != Next::Request || thread.is_stopping() {
            return;
        }
        wait = thread.settings().timeouts.keep_alive;
        is_first = false;
    }
}

/// How many requests the connection may carry.
fn requests_allowed(thread: &Thread) -> u64 {
    let settings = thread.settings();
    match settings.limits.keepalive_requests {
        _ if settings.timeouts.keep_alive.is_zero() => 1,
        0 => u64::MAX,
        most => most,
    }
}

/// Serves requests until none has begun to come in; `left` counts those still allowed.
async fn serve_waiting(
    stream: &Stream,
    socket: &Socket,
    exchange: &mut Exchange,
    left: &mut u64,
) -> Next {
    let thread = stream.thread();
    loop {
        match read_head(stream, socket, &mut exchange.request).await {
            Ok(true) => {}
            Ok(false) => return Next::Close,
            Err(fault) => {
                if refuse(stream, exchange, &fault).await {
                    linger(socket).await;
                }
                return Next::Close;
            }
        }
        *left -= 1;
        let has_limit = || thread.settings().limits.keepalive_requests > 0;
        if *left == 0 && exchange.request.head.keep_alive && has_limit() {
            thread.counters.count_limit(Limit::KeepaliveRequests);
        }
        if *left == 0 || thread.table.borrow().is_leaving(stream.accepted().listener) {
            exchange.request.head.keep_alive = false;
        }
        match answer(stream, exchange).await {
            Next::Request => {}
            Next::Close => return Next::Close,
            Next::Linger => {
                linger(socket).await;
                return Next::Close;
            }
        }
        exchange.next();
        if exchange.request.bytes.is_empty() {
            return Next::Request;
        }
    }
}

/// Reads until a head is whole; `false` where the client has closed instead.
async fn read_head(stream: &Stream, socket: &Socket, request: &mut Request) -> Result<bool, Fault> {
    let settings = stream.thread().settings();
    let limits = settings.head_limits();
    let mut parser = RequestParser::new(limits);
    let mut limited = false;
    loop {
        if !request.bytes.is_empty() {
            if !limited {
                stream.begin_steps();
                refuse_other_protocols(&request.bytes)?;
            }
            let progress = parser.parse(&request.bytes, &mut request.head);
            if let Progress::Complete(_) = progress.map_err(|e| head_fault(e, request, &limits))? {
                socket.unlimit_read();
                stream.enter(Step::Route);
                return Ok(true);
            }
            if !limited {
                // The whole head has this long, however many pieces it comes in.
                socket.limit_read(settings.timeouts.head);
                limited = true;
            }
        }
        if request.bytes.capacity() - request.bytes.len() < BUFFER / 8 {
            request.bytes.reserve(BUFFER);
        }
        // What woke the connection may have been known already: then it is idle still.
        socket.set_idle(request.bytes.is_empty());
        let read = socket.read(&mut request.bytes).await;
        socket.set_idle(false);
        match read {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let waiting = request.bytes.is_empty();
                return if waiting {
                    Ok(false)
                } else {
                    Err(Fault::client(408, "slow head").limited_by(Limit::Head))
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

/// Answers a request whose head cannot be read; whether that could be written.
async fn refuse(stream: &Stream, exchange: &mut Exchange, fault: &Fault) -> bool {
    let start = stream.thread().start();
    if let Some(limit) = fault.limit {
        stream.thread().counters.count_limit(limit);
    }
    exchange.request.head.fields.clear();
    exchange.request.path.clear();
    exchange.reply.prepare_refusal(exchange.request.method());
    let answered = exchange.reply.respond_error(fault.status).await;
    record(stream, exchange, start, true);
    answered.is_ok()
}

/// Reads on for a moment after the last reply: closing with unread bytes would reset the
/// connection, and the client could lose the reply (RFC 9112 section 9.6).
pub async fn linger(socket: &Socket) {
    socket.finish_writing();
    socket.limit_read(LINGER);
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut left = 64 * BUFFER;
    while left > 0 {
        buffer.clear();
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => left = left.saturating_sub(n),
        }
    }
}

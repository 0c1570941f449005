//! Serves HTTP/1.1 connections (RFC 9112): reads heads one after the other, answers each request,
//! and keeps or closes the connection.

use std::io::ErrorKind;
use std::rc::Rc;

use forebay_net::deadline::Activity;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::socket::{BUFFER, Lingering, Socket, yield_to_readers};
use forebay_net::sys::recycled::Recycled;
use forebay_net::timing::Step;
use forebay_wire::http1::{Progress, RequestParser};
use forebay_wire::http2::PREFACE;

use crate::context::FrontContext;
use crate::exchange::Exchange;
use crate::http1::stream::Http1;
use crate::part::Accepted;
use crate::refusal::{head_fault, refuse, requests_allowed};
use crate::request::{Next, answer, report_endless};
use crate::stream::Stream;

/// Serves a connection until it closes. If the client begins with HTTP/2, returns the connection
/// and all bytes read from it. Otherwise returns `None`. `prefix` contains bytes that were already
/// read.
pub async fn serve_connection(
    context: &FrontContext,
    socket: Socket,
    accepted: Accepted,
    prefix: Vec<u8>,
    may_be_http2: bool,
) -> Option<(Socket, Accepted, Vec<u8>)> {
    let client = Rc::new(Http1::new(socket, accepted));
    let read = serve_requests(context, &client, prefix, may_be_http2).await;
    client.socket.sent().await;
    let read = read?;
    let Http1 { socket, accepted, .. } = Rc::into_inner(client)?;
    Some((socket, accepted, read))
}

/// Serves requests until the connection ends. If the client begins with HTTP/2, returns the bytes
/// that were read. Otherwise returns `None`.
async fn serve_requests(
    context: &FrontContext,
    client: &Rc<Http1>,
    prefix: Vec<u8>,
    may_be_http2: bool,
) -> Option<Vec<u8>> {
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
            if ready.is_err() || client.socket.is_expired() {
                if client.socket.is_overdue() && !thread.is_stopping() {
                    let limit = if is_first { Limit::Head } else { Limit::KeepAlive };
                    thread.counters.count_limit(limit);
                }
                return None;
            }
        }
        let mut exchange = context.take_exchange(&stream);
        match prefix.take() {
            Some(prefix) => exchange.request.bytes.extend(prefix),
            None => match client.socket.read_now(&mut exchange.request.bytes) {
                Ok(1..) => {}
                // The event loop reports new connections as readable, although many clients have
                // sent nothing yet. Keep the exchange only if bytes have arrived.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    context.keep_exchange(exchange);
                    continue;
                }
                Ok(0) | Err(_) => {
                    context.keep_exchange(exchange);
                    return None;
                }
            },
        }
        client.socket.set_idle(false);
        client.socket.set_used();
        // Store the future in separate memory, so that an idle connection reserves no memory for
        // the state of requests.
        let may_be_http2 = may_be_http2 && is_first;
        let served = Recycled::new(&thread.blocks, || {
            let (socket, exchange) = (&client.socket, &mut *exchange);
            serve_waiting(context, &stream, socket, exchange, &mut left, may_be_http2)
        });
        let served = served.await;
        let read = (served == Served::Http2).then(|| exchange.request.bytes.clone());
        context.keep_exchange(exchange);
        if served != Served::Whole || thread.is_stopping() {
            return read;
        }
        wait = thread.settings().timeouts.keep_alive;
        is_first = false;
    }
}

/// Outcome of [`serve_waiting`].
#[derive(PartialEq, Eq)]
enum Served {
    /// The connection may carry more requests.
    Whole,
    /// The connection ends.
    Last,
    /// Nothing was served, because the client begins with HTTP/2.
    Http2,
}

/// Serves requests until all received bytes are used. `left` is the number of further requests
/// allowed on the connection.
async fn serve_waiting(
    context: &FrontContext,
    stream: &Stream,
    socket: &Socket,
    exchange: &mut Exchange,
    left: &mut u64,
    mut may_be_http2: bool,
) -> Served {
    let thread = stream.thread();
    loop {
        let found = read_head(stream, socket, &mut exchange.request, may_be_http2).await;
        socket.set_activity(Activity::Busy);
        match found {
            Ok(NextHead::Head) => may_be_http2 = false,
            Ok(NextHead::Http2) => return Served::Http2,
            Ok(NextHead::End) => return Served::Last,
            Err(fault) => {
                if refuse(stream, exchange, &fault).await {
                    linger(stream, socket).await;
                }
                return Served::Last;
            }
        }
        *left -= 1;
        let has_limit = || thread.settings().limits.keepalive_requests > 0;
        if *left == 0 && exchange.request.head.keep_alive && has_limit() {
            thread.counters.count_limit(Limit::KeepaliveRequests);
        }
        if *left == 0 || context.table().is_leaving(stream.accepted().listener) {
            exchange.request.head.keep_alive = false;
        }
        match answer(context, stream, exchange).await {
            Next::Request => {}
            Next::Close => return Served::Last,
            Next::Linger => {
                linger(stream, socket).await;
                return Served::Last;
            }
        }
        exchange.next();
        if exchange.request.bytes.is_empty() {
            return Served::Whole;
        }
        // Let other tasks run, so that a client with many pipelined requests does not delay them.
        yield_to_readers().await;
    }
}

/// Reads and drops the rest of a request that has been answered, so that the client can read the
/// reply.
async fn linger(stream: &Stream, socket: &Socket) {
    let settings = stream.thread().settings();
    let limit = Lingering { time: settings.timeouts.linger, bytes: settings.limits.linger_size };
    if !Box::pin(socket.linger_for(limit)).await && !stream.thread().is_stopping() {
        report_endless(stream);
    }
}

/// Outcome of reading the next head.
enum NextHead {
    /// A complete head.
    Head,
    /// No head follows: the client has closed the connection or sent nothing in time, or the
    /// connection is closed to admit another client.
    End,
    /// The client has sent the first line of HTTP/2's preface.
    Http2,
}

/// The first line of HTTP/2's preface. After this line, errors are answered with GOAWAY and not
/// with an HTTP/1.1 reply (RFC 9113 section 3.4).
const PREFACE_LINE: &[u8] = PREFACE.split_at(16).0;

/// Reads a complete head. If `may_be_http2` is true, also accepts the preface of HTTP/2.
async fn read_head(
    stream: &Stream,
    socket: &Socket,
    request: &mut Request,
    mut may_be_http2: bool,
) -> Result<NextHead, Fault> {
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
            if may_be_http2 && request.bytes.starts_with(PREFACE_LINE) {
                return Ok(NextHead::Http2);
            }
            may_be_http2 &= PREFACE_LINE.starts_with(&request.bytes);
            if !may_be_http2 {
                let progress = parser.parse(&request.bytes, &mut request.head);
                let progress = progress.map_err(|e| head_fault(e, request, &limits))?;
                if let Progress::Complete(_) = progress {
                    socket.unlimit_read();
                    stream.enter(Step::Route);
                    return Ok(NextHead::Head);
                }
            }
            if !limited {
                // The limit applies to the whole head, regardless of the number of reads.
                socket.limit_read(settings.timeouts.head);
                limited = true;
            }
        }
        if request.bytes.capacity() - request.bytes.len() < BUFFER / 8 {
            request.bytes.reserve(BUFFER);
        }
        // If no byte of a head has been read, the connection is still idle.
        let is_idle = request.bytes.is_empty();
        socket.set_activity(if is_idle { Activity::Idle } else { Activity::PartialHead });
        match socket.read(&mut request.bytes).await {
            Ok(0) => return Ok(NextHead::End),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                return if is_idle || socket.is_evicted() {
                    Ok(NextHead::End)
                } else {
                    Err(Fault::client(408, "slow head").limited_by(Limit::Head))
                };
            }
            Err(_) => return Ok(NextHead::End),
        }
    }
}

/// Returns an error if `bytes` begin with a TLS handshake.
fn refuse_other_protocols(bytes: &[u8]) -> Result<(), Fault> {
    // Refuse now, because a TLS client waits for an answer, and its bytes may never form an HTTP/1
    // line. 0x16 is the record type of a TLS handshake, and no method begins with it.
    if bytes[0] == 0x16 {
        return Err(Fault::client(400, "TLS on a listener that speaks plain HTTP"));
    }
    Ok(())
}

//! Serves HTTP/2 connections (RFC 9113). One task reads and writes for all streams of a connection.
//! Each stream answers its request separately.
//!
//! The codec collects the output of the streams, and the task writes it once per loop. A request
//! that needs no waiting is answered without a new task. Request heads are converted to lines of
//! HTTP/1.1 (`wire/src/http2/head.rs`), because origins forward lines. Reply fields are encoded
//! from lines, too.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_conf::Level;
use forebay_net::deadline::{Activity, Ticks};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::socket::{BUFFER, Lingering, Socket, yield_to_readers};
use forebay_net::sys::recycled::Recycled;
use forebay_net::thread::{Settings, Thread};
use forebay_net::timing::Step;
use forebay_wire::http1::{RequestFraming, RequestHead, Version};
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http2::{
    self, Cause, Config, ErrorCode, Event, HeadLimits, HeadRule, Http2Error, Rule,
};

use crate::context::FrontContext;
use crate::exchange::Exchange;
use crate::http2::connection::Connection;
use crate::http2::stream::websocket_key;
use crate::part::Accepted;
use crate::refusal::{refuse, requests_allowed, rule_fault};
use crate::reply::is_head_of_grpc;
use crate::request::{answer, report_endless};
use crate::stream::Stream;

/// Maximum number of concurrent streams on a connection.
const STREAMS: u32 = 100;

/// Serves a connection until it closes. `prefix` contains bytes that were already read.
pub async fn serve_connection(
    context: &Rc<FrontContext>,
    socket: Socket,
    accepted: Accepted,
    prefix: Vec<u8>,
) {
    let settings = accepted.thread.settings();
    socket.limit_writes(settings.timeouts.write);
    let left = requests_allowed(&accepted.thread);
    let codec = http2::Connection::server(config(&settings));
    let mut front = Front {
        context: context.clone(),
        connection: Connection::new(socket, accepted, codec),
        input: prefix,
        left,
        goaway: Goaway::Unsent,
        is_first: true,
        is_idle: false,
        has_partial: false,
        is_held_up: false,
    };
    let is_clean = front.serve().await;
    let connection = front.connection;
    connection.cancel_all();
    if is_clean {
        connection.socket.linger().await;
    }
    // Wait for current requests, so that the connection remains counted until they have released
    // their resources.
    while !connection.is_idle() {
        poll_fn(|context| connection.poll_woken(context)).await;
    }
}

fn config(settings: &Settings) -> Config {
    let limits = settings.head_limits();
    Config {
        streams: STREAMS,
        list: ListLimits { size: limits.head, fields: limits.fields },
        head: HeadLimits {
            target: limits.target,
            get_body: limits.get_body,
            extended_connect: true,
        },
        limits_heads: true,
        ..Config::default()
    }
}

struct Front {
    context: Rc<FrontContext>,
    connection: Rc<Connection>,
    /// Bytes that were read but not processed yet, usually an incomplete frame.
    input: Vec<u8>,
    /// Number of further requests allowed on the connection.
    left: u64,
    goaway: Goaway,
    is_first: bool,
    /// True while the time limit for the next request runs.
    is_idle: bool,
    /// True while the time limit for the rest of a frame runs.
    has_partial: bool,
    /// True if no more frames are processed until the client accepts output. `input` may then
    /// contain complete frames.
    is_held_up: bool,
}

/// Progress of the shutdown with GOAWAY.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goaway {
    Unsent,
    /// The announcing GOAWAY was sent at this tick. The client may not have received it yet, so
    /// further requests are accepted until the second tick after it.
    Announced(Ticks),
    Sent,
}

/// Next event to handle.
enum Ready {
    /// There is output or input to process, or a stream has ended.
    Woken,
    Readable,
    Tick,
}

impl Front {
    fn thread(&self) -> &Rc<Thread> {
        &self.connection.accepted.thread
    }

    /// Serves until the connection must end. Returns true if the client can still read the last
    /// bytes.
    async fn serve(&mut self) -> bool {
        loop {
            let is_failed = self.receive().await.is_err();
            // Let streams produce output now, so that one write sends it.
            yield_to_readers().await;
            if !is_failed {
                self.send_goaway();
                self.connection.give_turn();
            }
            match self.write(is_failed).await {
                Ok(()) if is_failed || self.is_finished() => return true,
                Ok(()) => {}
                Err(_) => return false,
            }
            self.set_limits();
            match self.wait().await {
                Ready::Woken => {}
                Ready::Tick => {
                    let limit = self.thread().settings().timeouts.write;
                    self.connection.check_deadlines(limit);
                    self.connection.shorten_write_limit(limit);
                }
                Ready::Readable => match self.read() {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        return self.end_overdue().await;
                    }
                    Err(_) => return false,
                },
            }
        }
    }

    /// Processes the complete frames in `input`. Returns an error if the client violates the
    /// protocol.
    async fn receive(&mut self) -> Result<(), Http2Error> {
        let now = Connection::now();
        let mut at = 0;
        let outcome = loop {
            let step = self.connection.codec.borrow_mut().receive(&self.input[at..], now);
            match step {
                Ok(http2::ReceivedEvent { consumed, event: Some(event) }) => {
                    let started = self.handle(event, at);
                    at += consumed;
                    if let Some(answering) = started {
                        run(answering).await;
                    }
                }
                Ok(http2::ReceivedEvent { consumed, event: None }) => {
                    at += consumed;
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        let codec = self.connection.codec.borrow();
        if at > 0 && !codec.is_within_block() {
            self.has_partial = false;
        }
        self.is_held_up = !codec.can_receive();
        drop(codec);
        self.input.drain(..at);
        if self.input.is_empty() {
            let buffer = std::mem::take(&mut self.input);
            self.thread().keep_buffer(buffer);
        }
        if let Err(error) = outcome {
            self.failed(error);
        }
        outcome
    }

    /// Handles an event. Returns the future that answers a new request, or `None` for other events.
    fn handle(&mut self, event: Event, at: usize) -> Option<Answering> {
        let connection = self.connection.clone();
        let codec = &connection.codec;
        match event {
            Event::Head { stream, head, end } => {
                let answering = self.open(stream, &head, end);
                codec.borrow_mut().recycle(head);
                return Some(answering);
            }
            Event::Unacceptable { stream, head, rule, end } => {
                let (answered, mut exchange) = self.take_up(stream, false, end);
                exchange.request.head = RequestHead::default();
                exchange.reply.set_to_grpc(is_head_of_grpc(&head));
                codec.borrow_mut().recycle(head);
                let refusal = || refuse_stream(answered, exchange, rule_fault(rule));
                return Some(Recycled::new(&connection.accepted.thread.blocks, refusal));
            }
            Event::Data { stream, data, end } => match self.connection.stream(stream) {
                Some(stream) => stream.receive(&self.input[at + data.start..at + data.end], end),
                None => codec.borrow_mut().discard(stream, Connection::now()),
            },
            Event::Trailers { stream, head } => {
                match connection.stream(stream) {
                    Some(stream) => stream.receive_trailers(&head),
                    None => codec.borrow_mut().release_heads(head.counted),
                }
                codec.borrow_mut().recycle(head);
            }
            Event::Reset { stream, cause } => {
                if let Some(stream) = connection.stream(stream) {
                    stream.cancel();
                }
                if cause == Cause::Rule(Rule::HeldTrailers) {
                    connection.accepted.report_held_heads();
                }
            }
            Event::Refused { rule: Rule::HeldHeads, .. } => {
                connection.accepted.report_held_heads();
            }
            Event::Refused { .. } | Event::Goaway { .. } | Event::Settings => {}
            // This event does not occur on a connection with a client.
            Event::Interim { .. } => {}
        }
        None
    }

    /// Prepares the answer to a new request.
    fn open(&mut self, id: u32, head: &http2::Head, end: bool) -> Answering {
        let (answered, mut exchange) = self.take_up(id, !head.protocol.is_empty(), end);
        if let Stream::Http2(stream) = &answered.stream {
            stream.hold(head);
        }
        let request = &mut exchange.request;
        head.write_http1(
            Version::Http2,
            end,
            &websocket_key(),
            &mut request.bytes,
            &mut request.head,
        );
        let blocks = &self.connection.accepted.thread.blocks;
        if may_be_a_get_body(request) && !self.thread().settings().limits.get_body {
            return Recycled::new(blocks, || answer_without_body(answered, exchange));
        }
        Recycled::new(blocks, || answer_stream(answered, exchange))
    }

    fn take_up(&mut self, id: u32, is_tunnel: bool, end: bool) -> (Answered, Box<Exchange>) {
        (self.is_first, self.is_idle) = (false, false);
        self.connection.socket.set_activity(Activity::Busy);
        self.connection.socket.set_used();
        self.left -= 1;
        let stream = Stream::Http2(self.connection.open(id, is_tunnel, end));
        stream.begin_steps();
        stream.enter(Step::Route);
        let exchange = self.context.take_exchange(&stream);
        (Answered { context: self.context.clone(), stream }, exchange)
    }

    /// Cancels all streams after a protocol error of the client. The connection then ends.
    fn failed(&mut self, error: Http2Error) {
        self.goaway = Goaway::Sent;
        self.connection.cancel_all();
        if matches!(error.rule, Rule::Abuse(_)) {
            let thread = self.thread();
            thread.counters.count_limit(Limit::Http2Frames);
            let peer = self.connection.accepted.peer;
            thread.log_limited(Level::Info, &format!("{error}, from {peer}: connection closed"));
        }
    }

    /// Sends the final GOAWAY if the connection has carried its last permitted request. If the
    /// listener closes, first sends a GOAWAY that refuses no request, so that the client stops
    /// sending requests. Two ticks later, sends the final GOAWAY.
    fn send_goaway(&mut self) {
        let thread = &self.connection.accepted.thread;
        let now = thread.deadlines.now();
        let listener = self.connection.accepted.listener;
        let mut codec = self.connection.codec.borrow_mut();
        match self.goaway {
            Goaway::Unsent if self.left == 0 => {
                if thread.settings().limits.keepalive_requests > 0 {
                    thread.counters.count_limit(Limit::KeepaliveRequests);
                }
            }
            Goaway::Unsent if thread.is_stopping() || self.context.table().is_leaving(listener) => {
                codec.announce_goaway();
                self.goaway = Goaway::Announced(now);
                return;
            }
            // Wait for two ticks. In this time, the last requests arrive that the client has sent
            // before it received the first GOAWAY.
            Goaway::Announced(since) if now > since + 1 => {}
            _ => return,
        }
        codec.goaway(ErrorCode::NO_ERROR);
        self.goaway = Goaway::Sent;
    }

    /// Writes as much output as the socket accepts. If `all` is true, waits until the socket has
    /// accepted all output. Returns an error if the connection is lost or a write takes too long.
    async fn write(&self, all: bool) -> io::Result<()> {
        loop {
            let written = {
                let mut codec = self.connection.codec.borrow_mut();
                if codec.output().is_empty() {
                    return Ok(());
                }
                let written = self.connection.socket.try_write(&[IoSlice::new(codec.output())])?;
                codec.wrote(written as usize);
                written
            };
            if written == 0 {
                let limit = self.thread().settings().timeouts.write;
                let socket = &self.connection.socket;
                socket.limit_writes(self.connection.write_limit(limit));
                socket.expect_room();
                if !all {
                    return Ok(());
                }
                poll_fn(|context| self.connection.socket.poll_room(context)).await?;
            } else if !all {
                self.connection.give_turn();
            }
        }
    }

    fn is_finished(&self) -> bool {
        let codec = self.connection.codec.borrow();
        codec.is_finished() && self.connection.is_idle() && codec.output().is_empty()
    }

    /// Sets the time limits for the next wait.
    fn set_limits(&mut self) {
        let (connection, thread) = (&self.connection, &self.connection.accepted.thread);
        let timeouts = &thread.settings().timeouts;
        let codec = connection.codec.borrow();
        let is_partial = codec.is_within_block() || !self.input.is_empty() && codec.can_receive();
        drop(codec);
        let is_idle = connection.is_idle();
        connection.socket.set_activity(match (is_idle, is_partial) {
            (false, _) => Activity::Busy,
            (true, true) => Activity::PartialHead,
            (true, false) => Activity::Idle,
        });
        if is_partial {
            self.is_idle = false;
            if !std::mem::replace(&mut self.has_partial, true) {
                connection.socket.limit_read(timeouts.head);
            }
            return;
        }
        self.has_partial = false;
        if is_idle && !self.is_idle {
            connection.shrink();
            connection.shorten_write_limit(timeouts.write);
            let wait = if self.is_first { timeouts.head } else { timeouts.keep_alive };
            connection.socket.limit_read(wait);
        } else if !is_idle {
            connection.socket.unlimit_read();
        }
        self.is_idle = is_idle;
    }

    /// Waits for the next event. Reads nothing while the codec accepts no input.
    async fn wait(&self) -> Ready {
        let connection = &*self.connection;
        let begun = connection.accepted.thread.deadlines.now();
        let has_ticks = !connection.is_idle() || matches!(self.goaway, Goaway::Announced(_));
        poll_fn(|context| {
            if connection.poll_woken(context).is_ready() {
                return Poll::Ready(Ready::Woken);
            }
            let codec = connection.codec.borrow();
            if codec.can_receive() {
                if self.is_held_up && !self.input.is_empty() {
                    return Poll::Ready(Ready::Woken);
                }
                if connection.socket.poll_readable(context).is_ready() {
                    return Poll::Ready(Ready::Readable);
                }
            }
            if !codec.output().is_empty() && connection.socket.poll_room(context).is_ready() {
                return Poll::Ready(Ready::Woken);
            }
            if has_ticks && connection.socket.poll_tick(begun, context).is_ready() {
                return Poll::Ready(Ready::Tick);
            }
            Poll::Pending
        })
        .await
    }

    /// Reads received bytes into `input`. Returns an error if the client has closed the connection,
    /// or if no bytes have arrived.
    fn read(&mut self) -> io::Result<()> {
        if self.input.capacity() == 0 {
            self.input = self.thread().take_buffer();
        }
        self.input.reserve(BUFFER);
        let socket = &self.connection.socket;
        match socket.read_now(&mut self.input) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a connection that has exceeded a time limit, is idle while the server stops, or must
    /// close to admit another client. Returns true if the last bytes could be written.
    async fn end_overdue(&mut self) -> bool {
        let (thread, is_evicted) = (self.thread(), self.connection.socket.is_evicted());
        if !thread.is_stopping() && !is_evicted {
            let is_head = self.is_first || self.has_partial;
            let limit = if is_head { Limit::Head } else { Limit::KeepAlive };
            thread.counters.count_limit(limit);
        }
        self.connection.codec.borrow_mut().goaway(ErrorCode::NO_ERROR);
        // If another client waits for this connection to close, send only the bytes that the socket
        // accepts now.
        self.write(!is_evicted).await.is_ok()
    }
}

/// Future that answers one request.
pub(crate) type Answering = Recycled<'static, ()>;

/// Polls the future once. If the future has not completed, spawns a task that completes it.
pub(crate) async fn run(mut answering: Answering) {
    let is_done =
        poll_fn(|context| Poll::Ready(Pin::new(&mut answering).poll(context).is_ready())).await;
    if !is_done {
        tokio::task::spawn_local(answering);
    }
}

pub(crate) async fn answer_stream(answered: Answered, mut exchange: Box<Exchange>) {
    let Answered { context, stream } = &answered;
    answer(context, stream, &mut exchange).await;
    context.keep_exchange(exchange);
    discard_rest(stream).await;
}

/// Reads and drops the rest of a request that has been answered. curl 7.88 and others lose the reply
/// if the stream is reset while they send.
async fn discard_rest(stream: &Stream) {
    if !stream.awaits_rest() {
        return;
    }
    let settings = stream.thread().settings();
    let limit = Lingering { time: settings.timeouts.linger, bytes: settings.limits.linger_size };
    if !Box::pin(stream.discard_rest(limit)).await && !stream.thread().is_stopping() {
        report_endless(stream);
    }
}

/// Returns true for a GET or HEAD that may have a body. Such a request has no `Content-Length`, and
/// its head does not end the stream.
pub(crate) fn may_be_a_get_body(request: &Request) -> bool {
    request.head.framing == RequestFraming::Chunked && matches!(request.method(), b"GET" | b"HEAD")
}

/// Waits for the end of a GET or HEAD and answers it. Refuses the request if body bytes come first.
pub(crate) async fn answer_without_body(answered: Answered, mut exchange: Box<Exchange>) {
    let limit = answered.stream.thread().settings().timeouts.body_idle;
    answered.stream.enter(Step::Body);
    let mut body = Vec::with_capacity(1);
    let fault = match answered.stream.read(&mut body, limit).await {
        Ok(0) => {
            exchange.request.head.framing = RequestFraming::None;
            answered.stream.enter(Step::Route);
            return answer_stream(answered, exchange).await;
        }
        Ok(_) => rule_fault(HeadRule::GetBody),
        Err(error) => Fault::client_closed(&error, Limit::BodyIdle),
    };
    refuse_stream(answered, exchange, fault).await;
}

pub(crate) async fn refuse_stream(answered: Answered, mut exchange: Box<Exchange>, fault: Fault) {
    let Answered { context, stream } = &answered;
    refuse(stream, &mut exchange, &fault).await;
    context.keep_exchange(exchange);
    discard_rest(stream).await;
}

/// Closes a stream when the answer to its request ends for any reason, even by a panic.
pub(crate) struct Answered {
    pub context: Rc<FrontContext>,
    pub stream: Stream,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.stream.close();
    }
}

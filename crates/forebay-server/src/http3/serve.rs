//! Serves HTTP/3 connections (RFC 9114). One task accepts the streams of a connection. Each stream
//! reads and answers its request in its own task. `forebay_wire::http3` decodes the streams, and
//! `quinn` implements QUIC.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use forebay_net::deadline::{Guest, NEVER, TICK, Ticks};
use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::timing::Step;
use forebay_wire::http1::{RequestHead, Version};
use forebay_wire::http2::{HeadLimits, HeadRule, budget};
use forebay_wire::http3::{self, ErrorCode, HeadError, Http3Error, Rule, UniDecoder, UniKind};
use quinn::{RecvStream, SendStream};
use tokio::task::spawn_local;

use crate::context::FrontContext;
use crate::exchange::Exchange;
use crate::http2::serve::{
    Answered, answer_stream, answer_without_body, may_be_a_get_body, refuse_stream,
};
use crate::http2::stream::websocket_key;
use crate::http3::connection::Connection;
use crate::http3::lingering::{FirstPoll, Served, Unacknowledged};
use crate::http3::stream::{Arrived, Http3};
use crate::part::Accepted;
use crate::refusal::{requests_allowed, rule_fault};
use crate::stream::Stream;

/// Serves a connection whose handshake has finished, until it closes.
pub async fn serve_connection(
    context: &Rc<FrontContext>,
    quic: quinn::Connection,
    accepted: Accepted,
    guest: Rc<Guest>,
) {
    let left = requests_allowed(&accepted.thread);
    let due = accepted.thread.deadlines.due(accepted.thread.settings().timeouts.head);
    let mut front = Front {
        context: context.clone(),
        connection: Connection::new(quic, accepted, guest),
        control: None,
        uni: Rc::default(),
        next: 0,
        left,
        goaway: Goaway::Unsent,
        is_first: true,
        due,
        unacknowledged: Unacknowledged::new(),
    };
    let code = match front.serve().await {
        Ok(()) => {
            front.send_last_goaway().await;
            ErrorCode::NO_ERROR
        }
        Err(_) => ErrorCode::INTERNAL_ERROR,
    };
    let connection = front.connection;
    connection.close(code);
    drop(front.unacknowledged);
    // Let the task of `quinn` send the close of the connection.
    tokio::task::yield_now().await;
    // Wait for current requests, so that the connection remains counted until they have released
    // their resources.
    while !connection.is_idle() {
        connection.ended.notified().await;
    }
}

struct Front {
    context: Rc<FrontContext>,
    connection: Rc<Connection>,
    /// The server's control stream.
    control: Option<SendStream>,
    /// Kinds of the client's unidirectional streams. At most one of each kind may exist.
    uni: Rc<RefCell<Vec<UniKind>>>,
    /// Number of the first stream that has not been accepted.
    next: u64,
    /// Number of further requests allowed on the connection.
    left: u64,
    goaway: Goaway,
    is_first: bool,
    /// Deadline of the connection if no request arrives.
    due: Ticks,
    unacknowledged: Unacknowledged,
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
    Request(SendStream, RecvStream),
    Uni(RecvStream),
    /// A stream has ended, a limit may have passed, or the server stops.
    Look,
}

impl Front {
    /// Serves until the connection must end. Fails if the connection is lost.
    async fn serve(&mut self) -> Result<(), quinn::ConnectionError> {
        let Accepted { thread, .. } = &self.connection.accepted;
        let (thread, limit) = (thread.clone(), thread.settings().timeouts.head);
        // Limit the wait, because a client may forbid the server to open any stream, even the
        // control stream.
        let Ok(opened) = thread.deadlines.timeout(limit, self.open_control()).await else {
            thread.counters.count_limit(Limit::Head);
            return Ok(());
        };
        opened?;
        let mut first_poll = FirstPoll::new();
        loop {
            // Register for changes before the checks below, so that no change after them is missed.
            let connection = self.connection.clone();
            let thread = &connection.accepted.thread;
            let changed = thread.changed.notified();
            self.send_goaway();
            let has_ended = self.goaway == Goaway::Sent && connection.is_idle();
            if has_ended || connection.guest.occupancy.is_evicted() || self.is_overdue() {
                return Ok(());
            }
            if connection.is_idle() {
                first_poll.shrink();
            }
            self.unacknowledged.look(&thread.deadlines);
            let patience = self.patience();
            let unacknowledged = &mut self.unacknowledged;
            let ready = async {
                tokio::select! {
                    biased;
                    request = connection.quic.accept_bi() => {
                        request.map(|(send, receive)| Ready::Request(send, receive))
                    }
                    uni = connection.quic.accept_uni() => uni.map(Ready::Uni),
                    () = connection.ended.notified() => Ok(Ready::Look),
                    () = connection.guest.evicted.notified() => Ok(Ready::Look),
                    () = changed => Ok(Ready::Look),
                    () = unacknowledged.wait() => Ok(Ready::Look),
                }
            };
            match thread.deadlines.timeout(patience, ready).await {
                Ok(Ok(Ready::Request(send, receive))) => {
                    let Some(served) = self.take_up(send, receive) else { continue };
                    first_poll.set(serve_stream(self.context.clone(), served));
                    match first_poll.run().await {
                        Ok(Some(served)) => self.unacknowledged.add(served, &thread.deadlines),
                        Ok(None) => {}
                        Err(rest) => drop(spawn_local(linger(rest))),
                    }
                }
                Ok(Ok(Ready::Uni(stream))) => self.read_uni(stream),
                Ok(Ok(Ready::Look)) | Err(_) => {}
                Ok(Err(error)) => return Err(error),
            }
        }
    }

    /// Returns the time until a deadline must be checked.
    fn patience(&self) -> Duration {
        let now = self.connection.accepted.thread.deadlines.now();
        match (self.goaway, self.due.min(self.unacknowledged.look_due())) {
            (Goaway::Announced(_), _) => TICK,
            (_, NEVER) => Duration::MAX,
            (_, due) => TICK.saturating_mul(due.saturating_sub(now)),
        }
    }

    /// Opens the control stream, the only stream that the server opens.
    async fn open_control(&mut self) -> Result<(), quinn::ConnectionError> {
        let mut control = self.connection.quic.open_uni().await?;
        // Send the control stream before all replies, whose priority is at most 3.
        let _ = control.set_priority(4);
        let mut opening = Vec::new();
        http3::opening(&mut opening, self.connection.list_limits().size);
        // Ignore a failure, which means that the connection has ended. `serve` detects this end.
        let _ = control.write_all(&opening).await;
        self.control = Some(control);
        Ok(())
    }

    /// Sends the final GOAWAY if the connection has carried its last permitted request. If the
    /// listener closes, first sends a GOAWAY that refuses no request, so that the client stops
    /// sending requests. Two ticks later, sends the final GOAWAY.
    fn send_goaway(&mut self) {
        let Accepted { thread, listener, .. } = &self.connection.accepted;
        let now = thread.deadlines.now();
        let leaves = thread.is_stopping() || self.context.table().is_leaving(*listener);
        let mut frame = Vec::new();
        match self.goaway {
            Goaway::Unsent if self.left == 0 => {
                if thread.settings().limits.keepalive_requests > 0 {
                    thread.counters.count_limit(Limit::KeepaliveRequests);
                }
            }
            Goaway::Unsent if leaves => {
                http3::goaway(&mut frame, None);
                self.goaway = Goaway::Announced(now);
                return self.send_control(frame);
            }
            // Wait for two ticks. In this time, the last requests arrive that the client has sent
            // before it received the first GOAWAY.
            Goaway::Announced(since) if now > since + 1 => {}
            _ => return,
        }
        http3::goaway(&mut frame, Some(self.next));
        self.goaway = Goaway::Sent;
        self.send_control(frame);
    }

    /// Sends GOAWAY before the connection is closed. Does nothing if GOAWAY was sent earlier.
    async fn send_last_goaway(&mut self) {
        if self.goaway != Goaway::Sent {
            let mut frame = Vec::new();
            http3::goaway(&mut frame, Some(self.next));
            self.goaway = Goaway::Sent;
            self.send_control(frame);
            // Let the task of `quinn` send the frame, because the close of the connection drops
            // unsent frames.
            tokio::task::yield_now().await;
        }
    }

    fn send_control(&mut self, frame: Vec<u8>) {
        if let Some(control) = &mut self.control {
            let mut context = Context::from_waker(Waker::noop());
            // Ignore a failure. A client that cannot accept these few bytes misses the GOAWAY, but
            // notices the end of the connection.
            let _ = Pin::new(control).poll_write(&mut context, &frame);
        }
    }

    /// Returns true, and counts a reached limit, if the connection has been idle for too long.
    /// Starts this time limit when the connection becomes idle.
    fn is_overdue(&mut self) -> bool {
        let thread = &self.connection.accepted.thread;
        if !self.connection.is_idle() {
            self.due = NEVER;
            return false;
        }
        if self.due == NEVER {
            self.connection.shrink();
            self.due = thread.deadlines.due(thread.settings().timeouts.keep_alive);
        }
        let is_overdue = self.due <= thread.deadlines.now();
        if is_overdue {
            let limit = if self.is_first { Limit::Head } else { Limit::KeepAlive };
            thread.counters.count_limit(limit);
        }
        is_overdue
    }

    /// Accepts a stream with a new request. Returns `None` if the stream is refused.
    fn take_up(&mut self, mut send: SendStream, mut receive: RecvStream) -> Option<Served> {
        if self.goaway == Goaway::Sent || self.left == 0 {
            // The client may send the request again on another connection (RFC 9114 section 4.1.1).
            let code = ErrorCode::REQUEST_REJECTED.0.into();
            let _ = (receive.stop(code), send.reset(code));
            self.connection.charge(budget::RESET);
            return None;
        }
        self.next = u64::from(send.id()) + 4;
        self.is_first = false;
        self.left -= 1;
        let connection = self.connection.clone();
        let largest = connection.list_limits().size;
        let open = connection.open();
        let stream = Rc::new(Http3::new(connection, (send, receive), largest));
        Some(Served { stream, open })
    }

    /// Reads one of the client's unidirectional streams in a new task.
    fn read_uni(&self, stream: RecvStream) {
        let (connection, kinds) = (self.connection.clone(), self.uni.clone());
        spawn_local(async move {
            if let Err(error) = read_uni(&connection, stream, &kinds).await {
                connection.fail(&error);
            }
        });
    }
}

/// Reads one of the client's unidirectional streams to its end, and charges the client for useless
/// input. Fails if the stream violates the protocol.
async fn read_uni(
    connection: &Connection,
    mut stream: RecvStream,
    kinds: &RefCell<Vec<UniKind>>,
) -> Result<(), Http3Error> {
    let mut decoder = UniDecoder::default();
    let mut is_known = false;
    let mut buffer = [0; 512];
    loop {
        let count = match stream.read(&mut buffer).await {
            Ok(Some(count)) => count,
            Ok(None) | Err(quinn::ReadError::Reset(_)) => {
                connection.charge(decoder.end()?);
                return Ok(());
            }
            Err(_) => return Ok(()),
        };
        connection.charge(decoder.receive(&buffer[..count])?);
        let Some(kind) = decoder.kind() else { continue };
        if kind == UniKind::Unknown {
            let _ = stream.stop(ErrorCode::STREAM_CREATION_ERROR.0.into());
            connection.charge(budget::USELESS);
            return Ok(());
        }
        if !is_known {
            is_known = true;
            if kinds.borrow().contains(&kind) {
                return Err(Http3Error::repeated_stream());
            }
            kinds.borrow_mut().push(kind);
        }
    }
}

/// Reads and answers a request. Waits until QUIC has taken the whole reply, and then returns the
/// stream. Returns `None` if the stream has failed.
async fn serve_stream(context: Rc<FrontContext>, served: Served) -> Option<Served> {
    answer_request(context, &served).await?;
    served.stream.send_leftover().await.ok()?;
    Some(served)
}

/// Waits until a request is answered, and then until the client has acknowledged the reply. Runs in
/// a task of its own.
async fn linger(serving: impl Future<Output = Option<Served>>) {
    if let Some(served) = serving.await {
        served.linger().await;
    }
}

/// Reads and answers a request. Returns `None` if the stream has failed.
async fn answer_request(context: Rc<FrontContext>, Served { stream, open }: &Served) -> Option<()> {
    let thread = context.thread.clone();
    let limit = thread.settings().timeouts.head;
    let came = thread.deadlines.timeout(limit, stream.next()).await;
    open.end_head();
    let answered = Answered { context, stream: Stream::Http3(stream.clone()) };
    answered.stream.begin_steps();
    answered.stream.enter(Step::Route);
    let outcome = match came {
        Ok(Ok(Arrived::Section)) => read_head(&answered, stream),
        Ok(Ok(Arrived::TooLarge)) => {
            stream.read_no_more();
            stream.connection.charge(budget::HEADER_LIST);
            Err(rule_fault(HeadRule::TooLarge))
        }
        // The stream has failed and was reset, or its connection has ended.
        Ok(_) => return None,
        Err(_) => {
            // Nothing that comes after an incomplete head is the rest of an upload.
            stream.read_no_more();
            Err(Fault::client(408, "no request head").limited_by(Limit::Head))
        }
    };
    match outcome {
        Ok(Some(exchange)) => {
            let get_body = thread.settings().limits.get_body;
            if may_be_a_get_body(&exchange.request) && !get_body {
                answer_without_body(answered, exchange).await;
            } else {
                answer_stream(answered, exchange).await;
            }
        }
        Ok(None) => return None,
        Err(fault) => {
            let mut exchange = answered.context.take_exchange(&answered.stream);
            exchange.request.head = RequestHead::default();
            refuse_stream(answered, exchange, fault).await;
        }
    }
    Some(())
}

/// Decodes the received head into an exchange. Returns `None` if the stream has failed, and a fault
/// if the request must be refused.
fn read_head(answered: &Answered, stream: &Http3) -> Result<Option<Box<Exchange>>, Fault> {
    let section = stream.take_section();
    let connection = &stream.connection;
    let settings = connection.accepted.thread.settings();
    let limits = settings.head_limits();
    let rules =
        HeadLimits { target: limits.target, get_body: limits.get_body, extended_connect: true };
    let mut head = connection.head.borrow_mut();
    let read = http3::read_head(&section, connection.list_limits(), &rules, &mut head);
    match read {
        Ok(()) => {}
        Err(HeadError::Rule(rule)) if rule.status().is_some() => {
            if rule == HeadRule::TooLarge {
                connection.charge(budget::HEADER_LIST);
            }
            return Err(rule_fault(rule));
        }
        Err(HeadError::Rule(rule)) => {
            stream.fail(&Http3Error::malformed(Rule::Head(rule)));
            return Ok(None);
        }
        Err(HeadError::Http3(error)) => {
            stream.fail(&error);
            return Ok(None);
        }
    }
    if !stream.hold_head(&mut head) {
        return Ok(None);
    }
    stream.expect_content(head.content_length);
    if !head.protocol.is_empty() {
        stream.expect_tunnel();
    }
    stream.set_urgency(head.priority.urgency);
    let ends = stream.has_no_body();
    if stream.is_closed() {
        return Ok(None);
    }
    let mut exchange = answered.context.take_exchange(&answered.stream);
    let request = &mut exchange.request;
    let (bytes, written) = (&mut request.bytes, &mut request.head);
    head.write_http1(Version::Http3, ends, &websocket_key(), bytes, written);
    Ok(Some(exchange))
}

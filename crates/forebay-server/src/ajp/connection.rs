//! Serves AJP 1.3 connections. A web server (Apache with mod_jk or mod_proxy_ajp) forwards
//! requests, one after the other, and may send pings between them.
//!
//! A request packet is converted to lines of HTTP/1.1 and parsed like a client's request, so that
//! all rules for heads exist only once.

use std::io::{self, ErrorKind};
use std::rc::Rc;

use forebay_conf::{Level, Secret};
use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::socket::Socket;
use forebay_net::timing::Step;
use forebay_wire::ajp13::{self, AjpError, Attribute, Incoming, RequestHead, parse_request};

use super::request;
use crate::ajp::stream::AjpStream;
use crate::context::FrontContext;
use crate::exchange::Exchange;
use crate::part::Accepted;
use crate::refusal::{refuse, requests_allowed};
use crate::request::{Next, answer};
use crate::stream::Stream;

/// Maximum number of consecutive pings without a request.
const PINGS: u32 = 100;

/// Serves a connection until it closes. `prefix` contains bytes that were already read.
pub async fn serve_connection(
    context: &FrontContext,
    socket: Socket,
    accepted: Accepted,
    prefix: Vec<u8>,
) {
    let thread = accepted.thread.clone();
    let packet_size = match context.table().ajp(accepted.listener) {
        Some(front) => front.packet_size,
        None => return,
    };
    let timeouts = &thread.settings().timeouts;
    socket.limit_writes(timeouts.write);
    let left = requests_allowed(&thread);
    let client = Rc::new(AjpStream::new(socket, accepted, packet_size, prefix));
    let mut front = Front { context, stream: Stream::Ajp(client.clone()), client, left, pings: 0 };
    let mut wait = timeouts.head;
    let mut is_first = true;
    loop {
        front.client.socket.limit_read(wait);
        if front.client.input().borrow().is_empty() && !front.wait(is_first).await {
            return;
        }
        // Box the future, so that an idle connection reserves no memory for the state of requests.
        if !Box::pin(front.serve_waiting()).await || thread.is_stopping() {
            return;
        }
        wait = thread.settings().timeouts.keep_alive;
        is_first = false;
    }
}

struct Front<'a> {
    context: &'a FrontContext,
    client: Rc<AjpStream>,
    /// `client` as a `Stream`.
    stream: Stream,
    /// Number of further requests allowed on the connection.
    left: u64,
    /// Pings since the last request.
    pings: u32,
}

/// Input between two requests.
enum NextInput {
    /// A request packet. The number is its length in bytes.
    Request(usize),
    /// No packet has begun to arrive.
    Nothing,
    /// No request follows, so the connection must close.
    End,
}

impl Front<'_> {
    /// Waits for input. Returns false if the connection must end.
    async fn wait(&self, is_first: bool) -> bool {
        let (client, thread) = (&self.client, self.stream.thread());
        client.socket.set_idle(true);
        let ready = client.socket.readable().await;
        if ready.is_err() || client.socket.is_expired() {
            if client.socket.is_overdue() && !thread.is_stopping() {
                let limit = if is_first { Limit::Head } else { Limit::KeepAlive };
                thread.counters.count_limit(limit);
            }
            return false;
        }
        match client.receive_now() {
            Err(error) => error.kind() == ErrorKind::WouldBlock,
            Ok(read) => {
                client.socket.set_idle(false);
                client.socket.set_used();
                read > 0
            }
        }
    }

    /// Serves requests until all input is used. Returns true if the connection may carry another
    /// request.
    async fn serve_waiting(&mut self) -> bool {
        let mut head = RequestHead::default();
        loop {
            match self.read_packet(&mut head).await {
                Ok(NextInput::Request(length)) => self.client.consume(length),
                Ok(NextInput::Nothing) => return true,
                Ok(NextInput::End) => return false,
                Err(error) => return self.refuse_packet(error).await,
            }
            self.pings = 0;
            let mut exchange = self.context.take_exchange(&self.stream);
            let goes_on = self.serve(&head, &mut exchange).await;
            self.context.keep_exchange(exchange);
            if !goes_on {
                return false;
            }
        }
    }

    /// Reads until a request packet is complete, and answers each ping before that packet. Returns
    /// `Nothing` if no input is left, and `End` if the connection must close.
    async fn read_packet(&mut self, head: &mut RequestHead) -> Result<NextInput, AjpError> {
        let client = self.client.clone();
        let mut is_limited = false;
        loop {
            let found = parse_request(&client.input().borrow(), client.packet_size(), head)?;
            match found {
                Some((Incoming::Request, length)) => {
                    client.socket.unlimit_read();
                    return Ok(NextInput::Request(length));
                }
                Some((Incoming::Ping, length)) => {
                    client.consume(length);
                    if !self.answer_ping().await {
                        return Ok(NextInput::End);
                    }
                    is_limited = false;
                    continue;
                }
                None if client.input().borrow().is_empty() => return Ok(NextInput::Nothing),
                None => {}
            }
            if !std::mem::replace(&mut is_limited, true) {
                self.stream.begin_steps();
                let limit = self.stream.thread().settings().timeouts.head;
                client.socket.limit_read(limit);
            }
            match client.receive().await {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    self.stream.thread().counters.count_limit(Limit::Head);
                    return Ok(NextInput::End);
                }
                Ok(0) | Err(_) => return Ok(NextInput::End),
            }
        }
    }

    /// Answers a ping. Returns false if the connection must close, for example after too many
    /// pings.
    async fn answer_ping(&mut self) -> bool {
        self.pings += 1;
        if self.pings > PINGS {
            let thread = self.stream.thread();
            thread.counters.count_limit(Limit::AjpPings);
            let peer = self.client.accepted.peer;
            thread.log_limited(
                Level::Warn,
                &format!(
                    "more than {PINGS} AJP pings without a request, from {peer}: connection closed"
                ),
            );
            return false;
        }
        self.client.socket.write_all(ajp13::PONG).await.is_ok()
    }

    /// Handles an invalid packet. Sends an error reply if the end of the packet is known. Returns
    /// false, because the connection must close.
    async fn refuse_packet(&self, error: AjpError) -> bool {
        let thread = self.stream.thread();
        let advice = match error {
            AjpError::TooLarge(..) => "; raise `ajp_packet_size` to allow it",
            AjpError::Magic(_) => "; this listener speaks only AJP",
            _ => "",
        };
        let peer = self.client.accepted.peer;
        thread.log_limited(
            Level::Warn,
            &format!("AJP: {error}, from {peer}: connection closed{advice}"),
        );
        let status = match error {
            AjpError::Magic(_) | AjpError::TooLarge(..) => return false,
            AjpError::Kind(_) | AjpError::Shutdown => return false,
            AjpError::Fields(..) => 431,
            _ => 400,
        };
        let mut exchange = self.context.take_exchange(&self.stream);
        self.client.begin(self.client.accepted.peer, Default::default());
        exchange.request.head = Default::default();
        let fault = Fault::client(status, error.to_string());
        if refuse(&self.stream, &mut exchange, &fault).await {
            self.client.socket.linger().await;
        }
        self.context.keep_exchange(exchange);
        false
    }

    /// Serves the request of `head`. Returns true if the connection continues.
    async fn serve(&mut self, head: &RequestHead, exchange: &mut Exchange) -> bool {
        self.stream.begin_steps();
        self.stream.enter(Step::Route);
        if let Err(fault) = self.take_up(head, &mut exchange.request) {
            if refuse(&self.stream, exchange, &fault).await {
                self.client.socket.linger().await;
            }
            return false;
        }
        let thread = self.stream.thread();
        self.left -= 1;
        if self.left == 0 && thread.settings().limits.keepalive_requests > 0 {
            thread.counters.count_limit(Limit::KeepaliveRequests);
        }
        if self.left == 0 || self.context.table().is_leaving(self.client.accepted.listener) {
            exchange.request.head.keep_alive = false;
        }
        if answer(self.context, &self.stream, exchange).await == Next::Close {
            return false;
        }
        exchange.next();
        if !self.client.keeps_alive() {
            self.client.socket.linger().await;
            return false;
        }
        let limit = thread.settings().timeouts.body_idle;
        match self.client.skip_data(limit).await {
            Ok(()) => true,
            Err(error) => {
                self.count_slow_body(&error);
                false
            }
        }
    }

    fn count_slow_body(&self, error: &io::Error) {
        if error.kind() == ErrorKind::TimedOut {
            self.stream.thread().counters.count_limit(Limit::BodyIdle);
        }
    }

    /// Converts the packet to a request. Fails if the packet lacks the listener's secret, or is not
    /// a valid request.
    fn take_up(
        &self,
        head: &RequestHead,
        request: &mut forebay_net::head::Request,
    ) -> Result<(), Fault> {
        let client = &*self.client;
        let thread = self.stream.thread();
        request.bytes.clear();
        request.head = Default::default();
        // The packet may be refused below, before the client is known. For this refusal, use the
        // address of the web server, and no body.
        client.begin(client.accepted.peer, Default::default());
        let table = self.context.table();
        let secret = table.ajp(client.accepted.listener).and_then(|front| front.secret.as_ref());
        if !secret.is_none_or(|secret| is_known(secret, head)) {
            thread.log_limited(
                Level::Warn,
                &format!(
                    "403: an AJP request without the `ajp_secret` of the listener, from {}",
                    client.accepted.peer
                ),
            );
            return Err(Fault::client(403, "an AJP request without the secret"));
        }
        drop(table);
        request::decode_request(head, request, &thread.settings().head_limits())?;
        let peer = request::describe_client(head, request, &client.accepted)?;
        client.begin(peer, request.head.framing);
        Ok(())
    }
}

/// Returns true if the request has the configured secret. The comparison takes constant time: the
/// time depends only on the lengths of the two secrets.
fn is_known(secret: &Secret, head: &RequestHead) -> bool {
    let (wanted, given) =
        (secret.as_bytes(), head.attribute(Attribute::Secret).unwrap_or_default());
    let differ = wanted.iter().zip(given).fold(0, |differ, (one, other)| differ | (one ^ other));
    wanted.len() == given.len() && std::hint::black_box(differ) == 0
}

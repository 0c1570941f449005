//! FastCGI responders that have their own listener, such as php-fpm.
//!
//! `script` finds the script and its parameters. This module sends a request over an unshared
//! connection, or over a connection of `mux_connection`, which several requests share. `mux_pool` holds the shared connections of a thread.
//!
//! If a client disconnects, Forebay closes the unshared connection to the application, because the
//! application may still answer an aborted request.
//!
//! Before Forebay closes a connection for any reason, it sends [`FAREWELL`], so that in the protocol
//! the application ends the connection. fastcgi-mono-server4 has 1,024 slots for connections, and
//! never frees the slot of a connection that the web server has closed without this.
//!
//! Connections are multiplexed only if configured, because in practice only fastcgi-mono-server4
//! and Go's applications support multiplexing.
//!
//! If an application sends END_REQUEST without output, the client gets a 502. On a reused
//! connection, Forebay first resends the request once, if the retry rules allow it.

mod mux_connection;
mod mux_pool;
mod script;

pub use forebay_wire::fastcgi::FAREWELL;
pub use script::{FoundScripts, Script, below_prefix, script_end};

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::{Fault, Retry};
use forebay_net::head::Request;
use forebay_net::log::ErrorLog;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_process::{OutputLines, Severity};
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::spool::Spooled;
use forebay_wire::fastcgi::{self, Decoder, ProtocolStatus, RecordEvent};

use crate::output::Output;
use crate::reply_pump::ReplyPump;
use crate::script_reply::{OutputLimit, ScriptReply};
use crate::upstream::{
    Attempt, Backend, BackendConnection, BodyAtHand, BodyEncoder, Carrier, ConnectionOrigin,
    Source, ToBackend, Upstream, send_and_read, upload,
};
use mux_connection::{RequestStream, StreamEvent};
use mux_pool::MuxPool;

/// Number of the only request on an unshared connection.
const ID: u16 = 1;
const INBOX: usize = 16 * 1024;
/// Idle limit of a connection.
// The limit is short, because each idle connection occupies a process of php-fpm.
pub const FASTCGI_IDLE: Duration = Duration::from_secs(2);

/// Origin of a route to a FastCGI application. Each thread has one.
pub struct Fastcgi {
    thread: Rc<Thread>,
    upstream: Upstream,
    /// Shared connections by backend; empty if connections are not shared.
    pools: Vec<MuxPool>,
    settings: conf::Fastcgi,
    found: FoundScripts,
}

impl Fastcgi {
    /// Creates the origin for the backends of `upstream`.
    pub fn new(thread: Rc<Thread>, upstream: Upstream, settings: conf::Fastcgi) -> Self {
        let pool = |_| MuxPool::new(thread.clone(), &settings);
        let pools = match settings.multiplex {
            conf::Multiplex::Off => Vec::new(),
            conf::Multiplex::On | conf::Multiplex::Auto => (0..upstream.len()).map(pool).collect(),
        };
        Self { thread, upstream, pools, settings, found: FoundScripts::default() }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let found = (&self.found, self.thread.second());
        let script = Script::of_route(&exchange.request, &self.settings, found)?;
        let body = exchange.body.spool().await?;
        self.forward_with(exchange, &script, &body).await
    }

    /// Sends a request whose script is known and whose whole body has been received.
    pub async fn forward_with(
        &self,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
    ) -> Result<(), Fault> {
        let is_repeatable = exchange.request.is_idempotent();
        let mut carrier = FastcgiCarrier { origin: self, script, body, is_repeatable };
        exchange.enter(Step::Connect);
        self.upstream.send(&mut carrier, exchange, None).await.map(drop)
    }

    async fn go(
        &self,
        connection: RequestConnection,
        source: &ConnectionSource<'_>,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
    ) -> Result<(), Fault> {
        match connection {
            RequestConnection::Alone(connection) => {
                let keep = self.settings.keep_conn;
                let mut out = self.thread.take_buffer();
                self.append_head(&mut out, (ID, keep), &exchange.request, script, body);
                self.run(source.backend, connection, exchange, body, out).await
            }
            RequestConnection::Shared(stream) => {
                // Do not take a buffer of the thread, because the shared connection keeps these
                // records until it has sent them.
                let mut out = Vec::new();
                self.append_head(&mut out, (stream.id(), true), &exchange.request, script, body);
                let shared = Shared::new(self, source, &stream);
                shared.run(exchange, out, body).await
            }
        }
    }

    /// Appends the first records of request number `id`. Also appends the body, if it is in memory.
    /// `keep` asks the application to keep the connection open.
    fn append_head(
        &self,
        out: &mut Vec<u8>,
        (id, keep): (u16, bool),
        request: &Request,
        script: &Script,
        body: &Spooled,
    ) {
        fastcgi::begin(out, id, keep);
        let mut params = fastcgi::Params::new(out, id);
        script.append_variables(request, &self.settings, body.length(), &mut params);
        params.finish();
        if let Spooled::Memory(memory) = body {
            fastcgi::stdin(out, id, memory);
        }
        if !matches!(body, Spooled::File(..)) {
            fastcgi::end_of_stdin(out, id);
        }
    }

    /// Sends one request over `connection`, and sends the reply to the client. Then keeps the
    /// connection for reuse, if possible.
    async fn run(
        &self,
        backend: &Backend,
        connection: BackendConnection,
        exchange: &mut Exchange,
        body: &Spooled,
        out: Vec<u8>,
    ) -> Result<(), Fault> {
        let socket = &connection.socket;
        let is_whole = {
            let upload = pin!(self.send(backend, socket, out, body));
            let download = pin!(self.read_reply(backend, &connection, exchange));
            send_and_read(upload, download).await?
        };
        if is_whole == Some(true) && self.settings.keep_conn {
            backend.keep(connection);
        }
        Ok(())
    }

    /// Sends `out`, then the body if it is in a file. Each piece of the file restarts the time
    /// limit of the reply, because the application still reads.
    async fn send(
        &self,
        backend: &Backend,
        socket: &Socket,
        out: Vec<u8>,
        body: &Spooled,
    ) -> Result<(), Fault> {
        let is_all = !matches!(body, Spooled::File(..));
        let sent =
            if is_all { socket.write_soon(&out).await } else { socket.write_all(&out).await };
        self.thread.keep_buffer(out);
        sent.map_err(|error| backend.lost(&error))?;
        if is_all {
            return Ok(());
        }
        let outlet = ToBackend { backend, socket };
        upload(&outlet, BodyEncoder::Stdin(ID), Source::spooled(body)).await
    }

    /// Reads the reply and sends it to the client. Returns true if the connection can be kept.
    async fn read_reply(
        &self,
        backend: &Backend,
        connection: &BackendConnection,
        exchange: &mut Exchange,
    ) -> Result<bool, Fault> {
        let socket = &connection.socket;
        backend.readable(socket).await?;
        connection.answered();
        let mut inbox = self.thread.take_buffer();
        let outcome = self.pass_reply(backend, socket, exchange, &mut inbox).await;
        self.thread.keep_buffer(inbox);
        outcome
    }

    /// Decodes the application's records: sends output to the client, and writes error output to
    /// the log. Returns true if the connection can be kept.
    async fn pass_reply(
        &self,
        backend: &Backend,
        socket: &Socket,
        exchange: &mut Exchange,
        inbox: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        let mut decoder = Decoder::new(ID);
        let limit = OutputLimit::new(self.settings.max_output, Fault::backend, &self.thread);
        let limit = limit.strict(backend.is_strict());
        let output = Output::Parsed(ScriptReply::new(limit));
        let mut pump = ReplyPump::new(output, &mut exchange.reply);
        let mut any = false;
        let stderr = Stderr::default();
        loop {
            let mut start = 0;
            loop {
                let step = decoder
                    .decode(&inbox[start..])
                    .map_err(|error| Fault::backend(502, format!("{}: {error}", backend.name())))?;
                let at = |range: std::ops::Range<usize>| start + range.start..start + range.end;
                match step.event {
                    Some(RecordEvent::Stdout(range)) => {
                        pump.feed(&inbox[at(range)]).await?;
                    }
                    Some(RecordEvent::Stderr(range)) => {
                        stderr.log(&self.thread, backend.name(), &inbox[at(range)]);
                    }
                    Some(RecordEvent::End { status, .. }) => {
                        check_end(backend.name(), status, pump.output().is_empty())?;
                        pump.finish().await?;
                        return Ok(decoder.is_done() && start + step.consumed == inbox.len());
                    }
                    Some(RecordEvent::Values(_)) => {}
                    None => {
                        start += step.consumed;
                        break;
                    }
                }
                start += step.consumed;
            }
            inbox.drain(..start);
            if inbox.len() == inbox.capacity() {
                inbox.reserve(INBOX);
            }
            let limit = pump.silence(backend);
            match pump.next(async || backend.read_within(socket, inbox, limit).await).await? {
                Ok(0) => return Err(backend.cut_off(any)),
                Ok(_) => any = true,
                Err(fault) if any => return Err(fault.retry(Retry::No)),
                Err(fault) => return Err(fault),
            }
        }
    }
}

impl Origin for Fastcgi {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.forward(exchange))
    }
}

/// A request that the upstream may send to several backends, one after another.
struct FastcgiCarrier<'a> {
    origin: &'a Fastcgi,
    script: &'a Script,
    body: &'a Spooled,
    is_repeatable: bool,
}

impl Carrier for FastcgiCarrier<'_> {
    type Connection = RequestConnection;
    type Outcome = ();

    async fn connect(
        &mut self,
        attempt: &Attempt<'_>,
        is_new: bool,
    ) -> Result<(RequestConnection, ConnectionOrigin), Fault> {
        let pool = self.origin.pools.get(attempt.index());
        let source =
            ConnectionSource { backend: attempt.backend, pool, is_repeatable: self.is_repeatable };
        let connection = source.take(is_new).await?;
        let past = connection.past();
        Ok((connection, past))
    }

    async fn exchange(
        &mut self,
        attempt: &Attempt<'_>,
        connection: RequestConnection,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        exchange.enter(Step::Origin);
        let (origin, script, body) = (self.origin, self.script, self.body);
        let pool = origin.pools.get(attempt.index());
        let source =
            ConnectionSource { backend: attempt.backend, pool, is_repeatable: self.is_repeatable };
        origin.go(connection, &source, exchange, script, body).await
    }

    fn body(&self) -> BodyAtHand {
        BodyAtHand::Whole
    }
}

/// Source of the connection for a request.
struct ConnectionSource<'a> {
    backend: &'a Backend,
    pool: Option<&'a MuxPool>,
    is_repeatable: bool,
}

/// Connection of a request: unshared, or a stream of a shared connection.
enum RequestConnection {
    Alone(BackendConnection),
    Shared(RequestStream),
}

impl ConnectionSource<'_> {
    /// Returns a connection for one request. `fresh` is true after another connection has failed
    /// for this request: the result is then a new unshared connection.
    async fn take(&self, fresh: bool) -> Result<RequestConnection, Fault> {
        if !fresh
            && let Some(pool) = self.pool
            && let Some(stream) = pool.stream(self.backend).await?
        {
            return Ok(RequestConnection::Shared(stream));
        }
        Ok(RequestConnection::Alone(if self.is_repeatable || fresh {
            self.backend.connect(fresh).await?
        } else {
            self.backend.connect_non_idempotent().await?
        }))
    }
}

impl RequestConnection {
    fn past(&self) -> ConnectionOrigin {
        match self {
            Self::Alone(connection) => connection.past(),
            Self::Shared(_) => ConnectionOrigin::Shared,
        }
    }
}

/// Returns a fault if the application refused the request, or if it ended the request without
/// output.
fn check_end(name: &str, status: ProtocolStatus, is_empty: bool) -> Result<(), Fault> {
    // After `Overloaded` and `CantMultiplex` without output, allow a retry, because the application
    // has not processed the request. After an empty reply, allow a retry only on a reused
    // connection, because fastcgi-mono-server4 sometimes sends empty replies there (mono#20086).
    let (code, what, retry) = match status {
        ProtocolStatus::Complete if is_empty => (502, "sent an empty reply", Retry::IfReused),
        ProtocolStatus::Complete => return Ok(()),
        ProtocolStatus::Overloaded => (503, "is overloaded", Retry::Yes),
        ProtocolStatus::CantMultiplex => {
            (502, "refuses a second request on one connection", Retry::Yes)
        }
        ProtocolStatus::Refused => (502, "does not take the responder role", Retry::No),
    };
    let retry = if is_empty { retry } else { Retry::No };
    Err(Fault::backend(code, format!("{name} {what}")).retry(retry))
}

// Sends one request over a shared connection, and sends its reply to the client.

/// One request over a shared connection.
struct Shared<'a> {
    origin: &'a Fastcgi,
    source: &'a ConnectionSource<'a>,
    stream: &'a RequestStream,
    /// True if the whole request was sent.
    is_sent: Cell<bool>,
}

impl<'a> Shared<'a> {
    /// Creates a request to `origin` on `stream`.
    pub fn new(
        origin: &'a Fastcgi,
        source: &'a ConnectionSource<'a>,
        stream: &'a RequestStream,
    ) -> Self {
        Self { origin, source, stream, is_sent: Cell::new(false) }
    }

    /// Sends the request, and sends its reply to the client. `head` contains the whole request,
    /// except a body that is in a file.
    pub async fn run(
        &self,
        exchange: &mut Exchange,
        head: Vec<u8>,
        body: &Spooled,
    ) -> Result<(), Fault> {
        let upload = pin!(self.send(head, body));
        send_and_read(upload, pin!(self.read_reply(exchange))).await.map(drop)
    }

    async fn send(&self, head: Vec<u8>, body: &Spooled) -> Result<(), Fault> {
        self.stream.send(head).await?;
        if matches!(body, Spooled::File(..)) {
            let encoder = BodyEncoder::Stdin(self.stream.id());
            upload(self.stream, encoder, Source::spooled(body)).await?;
        }
        self.is_sent.set(true);
        Ok(())
    }

    /// Sends the application's output to the client until the request ends. A fault after the first
    /// output does not allow a retry.
    async fn read_reply(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let (origin, name) = (self.origin, self.source.backend.name());
        let limit = OutputLimit::new(origin.settings.max_output, Fault::backend, &origin.thread);
        let limit = limit.strict(self.source.backend.is_strict());
        let output = Output::Parsed(ScriptReply::new(limit));
        let mut pump = ReplyPump::new(output, &mut exchange.reply);
        let mut inbox = Vec::new();
        loop {
            inbox.clear();
            let limit = pump.silence(self.source.backend);
            match pump.next(async || self.next(&mut inbox, limit).await).await? {
                Ok(StreamEvent::Output) => pump.feed(&inbox).await?,
                Ok(StreamEvent::End(status)) => {
                    self.learn(status);
                    check_end(name, status, pump.output().is_empty())?;
                    return pump.finish().await;
                }
                Err(fault) if pump.output().is_empty() => return Err(fault),
                Err(fault) => return Err(fault.retry(Retry::No)),
            }
        }
    }

    /// Returns the next part of the reply. The reply timeout applies only after the whole request
    /// was sent.
    async fn next(&self, inbox: &mut Vec<u8>, limit: Duration) -> Result<StreamEvent, Fault> {
        loop {
            match tokio::time::timeout(limit, self.stream.next(inbox)).await {
                Ok(event) => return event,
                Err(_) if !self.is_sent.get() => {}
                Err(_) => {
                    let name = self.source.backend.name();
                    return Err(Fault::backend(504, format!("{name} sent nothing for {limit:?}")));
                }
            }
        }
    }

    /// If the application has refused the request, stops multiplexing or lowers the limit of the
    /// connection.
    fn learn(&self, status: ProtocolStatus) {
        match (status, self.source.pool) {
            (ProtocolStatus::CantMultiplex, Some(pool)) => {
                let name = self.source.backend.name();
                self.origin.thread.errors.warn(&format!("{name} refuses to multiplex requests"));
                pool.give_up();
            }
            (ProtocolStatus::Overloaded, _) => self.stream.lower_limit(),
            _ => {}
        }
    }
}

// Error stream of one request: its lines go to the log, escaped and limited.

/// Bytes of error output to log per request.
const LOGGED: usize = 64 * 1024;

/// Error stream of one request. Dropping it logs an unfinished last line.
struct Stderr {
    /// Bytes that may still be logged.
    left: Cell<usize>,
    /// The unfinished line, the log, and the application's name, which precedes each line.
    lines: RefCell<Option<(OutputLines, ErrorLog, String)>>,
}

impl Default for Stderr {
    fn default() -> Self {
        Self { left: Cell::new(LOGGED), lines: RefCell::default() }
    }
}

impl Stderr {
    /// Logs output of the application `name`. A line may arrive in any number of pieces. After
    /// `LOGGED` bytes, logs that further output is not logged.
    pub fn log(&self, thread: &Thread, name: &str, text: &[u8]) {
        let left = self.left.get();
        if left == 0 {
            return;
        }
        let text = &text[..text.len().min(left)];
        self.left.set(left - text.len());
        let mut lines = self.lines.borrow_mut();
        let begin = || (OutputLines::default(), thread.errors.clone(), name.to_owned());
        let (lines, errors, name) = lines.get_or_insert_with(begin);
        lines.push(text, |line| log_line(errors, name, line));
        if self.left.get() == 0 {
            lines.end(|line| log_line(errors, name, line));
            errors.warn(&format!("{name}: further error output is not logged"));
        }
    }
}

/// Logs a line. Ignores empty lines, because some applications end each record with one.
fn log_line(errors: &ErrorLog, name: &str, line: &str) {
    if !line.is_empty() {
        let (level, line) = Severity::of_line(line);
        errors.output(level, &format!("{name}: {line}"));
    }
}

impl Drop for Stderr {
    fn drop(&mut self) {
        if let Some((lines, errors, name)) = self.lines.get_mut() {
            lines.end(|line| log_line(errors, name, line));
        }
    }
}

//! FastCGI responders that listen by themselves, such as php-fpm.
//!
//! `script` finds the script and its parameters; here a request goes over a connection of its own,
//! by `shared` over one that it shares, a `line`.

mod line;
mod lines;
mod script;
mod shared;
mod stderr;

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_engine::{Exchange, Fault, Origin, Request, Retry, Serving, Socket, Step, Thread};
use forebay_wire::fastcgi::{self, Decoder, Event, ProtocolStatus};

use crate::connect::{Backend, Backends, Connection};
use crate::duplex::send_and_read;
use line::Stream;
use lines::Lines;
use shared::Shared;
use stderr::Stderr;

pub use script::Script;

use crate::script_reply::{OutputLimit, PAUSE, ScriptReply};
use crate::spool::Spooled;
use crate::tally::Tallies;

/// The one request that is under way on a connection.
const ID: u16 = 1;
/// Bytes of request body that go out at a time.
const PIECE: usize = 32 * 1024;
const INBOX: usize = 16 * 1024;
/// Buffers kept for reuse, none of them larger than `LARGEST` bytes.
const SPARE: usize = 64;
const LARGEST: usize = 4 * INBOX;
/// How long a connection may be idle: each holds a process of php-fpm, which closes it when it has
/// served its number of requests.
pub const FASTCGI_IDLE: Duration = Duration::from_secs(2);

/// A FastCGI application, as one thread knows it.
pub struct Fastcgi {
    thread: Rc<Thread>,
    backends: Backends,
    /// By backend, where requests share connections; else empty.
    lines: Vec<Lines>,
    settings: conf::Fastcgi,
    spare: RefCell<Vec<Buffers>>,
}

/// What goes out and what comes in.
type Buffers = (Vec<u8>, Vec<u8>);

impl Fastcgi {
    /// Passes requests to `backends` in turn; `tallies` are shared by all threads.
    pub fn new(
        thread: Rc<Thread>,
        backends: Vec<Backend>,
        tallies: &Arc<Tallies>,
        settings: conf::Fastcgi,
    ) -> Self {
        let lines = |_| Lines::new(thread.clone(), &settings);
        let lines = match settings.multiplex {
            conf::Multiplex::Off => Vec::new(),
            conf::Multiplex::On | conf::Multiplex::Auto => (0..backends.len()).map(lines).collect(),
        };
        let backends = Backends::new(backends, tallies);
        Self { thread, backends, lines, settings, spare: RefCell::default() }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let script = Script::find(&exchange.request, &self.settings)?;
        let body = Spooled::take(&mut exchange.body).await?;
        self.pass_on(exchange, &script, &body).await
    }

    /// Passes on a request whose script is known and whose body is at hand.
    pub async fn pass_on(
        &self,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
    ) -> Result<(), Fault> {
        let mut buffers = self.spare.borrow_mut().pop().unwrap_or_default();
        let outcome = self.try_backends(exchange, script, body, &mut buffers).await;
        self.keep(buffers);
        outcome
    }

    fn keep(&self, buffers: Buffers) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && buffers.0.capacity().max(buffers.1.capacity()) <= LARGEST {
            spare.push(buffers);
        }
    }

    /// The backend whose turn it is, or the first after it that can be reached.
    async fn try_backends(
        &self,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let is_repeatable = exchange.request.is_idempotent();
        let mut last = None;
        for (at, backend) in self.backends.in_turn() {
            let ways = Ways { backend, lines: self.lines.get(at), is_repeatable };
            let active = self.backends.begin(at);
            exchange.enter(Step::Connect);
            let way = match ways.take(false).await {
                Ok(way) => way,
                Err(fault) => {
                    active.note(&fault);
                    last = Some(fault);
                    continue;
                }
            };
            exchange.enter(Step::Origin);
            let outcome = self.ask(way, &ways, exchange, script, body, buffers).await;
            return outcome.inspect_err(|fault| active.note(fault));
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a FastCGI route without backends")))
    }

    /// A request that cannot have been acted on, or may be sent again, is sent once more over a new
    /// connection.
    async fn ask(
        &self,
        way: Way,
        ways: &Ways<'_>,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let (is_shared, is_reused) = way.kind();
        let fault = match self.go(way, ways, exchange, script, body, buffers).await {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        let is_safe = match fault.retry {
            Retry::Yes => is_shared,
            Retry::IfReused => is_reused && ways.is_repeatable,
            Retry::No => false,
        };
        if !is_safe || exchange.reply.has_begun() {
            return Err(fault);
        }
        let way = ways.take(true).await?;
        let again = self.go(way, ways, exchange, script, body, buffers).await;
        // Once is enough, for a caller who knows of further backends, too.
        again.map_err(|fault| fault.retry(Retry::No))
    }

    async fn go(
        &self,
        way: Way,
        ways: &Ways<'_>,
        exchange: &mut Exchange,
        script: &Script,
        body: &Spooled,
        (out, inbox): &mut Buffers,
    ) -> Result<(), Fault> {
        out.clear();
        inbox.clear();
        match way {
            Way::Alone(connection) => {
                let keep = self.settings.keep_conn;
                self.append_head(out, (ID, keep), &exchange.request, script, body);
                inbox.reserve(INBOX);
                self.converse(ways.backend, connection, exchange, body, out, inbox).await
            }
            Way::Shared(stream) => {
                self.append_head(out, (stream.id(), true), &exchange.request, script, body);
                let shared = Shared::new(self, ways, &stream);
                shared.converse(exchange, std::mem::take(out), body, inbox).await
            }
        }
    }

    /// Appends what is sent first, with the number of the request, and whether the connection is to
    /// be kept.
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
        script.append_variables(request, &self.settings, body.len(), &mut params);
        params.finish();
        if let Spooled::Memory(memory) = body {
            fastcgi::stdin(out, id, memory);
        }
        if !matches!(body, Spooled::File(..)) {
            fastcgi::end_of_stdin(out, id);
        }
    }

    /// One request over `connection`, which is kept where that can be.
    async fn converse(
        &self,
        backend: &Backend,
        connection: Connection,
        exchange: &mut Exchange,
        body: &Spooled,
        out: &[u8],
        inbox: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        inbox.clear();
        let socket = &connection.socket;
        let is_whole = {
            let upload = pin!(self.send(backend, socket, out, body));
            let download = pin!(self.read_reply(backend, socket, exchange, inbox));
            send_and_read(upload, download).await?
        };
        if is_whole == Some(true) && self.settings.keep_conn {
            backend.keep(connection);
        }
        Ok(())
    }

    /// Sends what is in `out`, then a body that is not in there. The time limit for the reply
    /// starts anew with each piece: an application that reads has not fallen silent.
    async fn send(
        &self,
        backend: &Backend,
        socket: &Socket,
        out: &[u8],
        body: &Spooled,
    ) -> Result<(), Fault> {
        socket.write_all(out).await.map_err(|error| backend.lost(&error))?;
        if !matches!(body, Spooled::File(..)) {
            return Ok(());
        }
        let mut buffer = vec![0; PIECE];
        let mut out = Vec::with_capacity(PIECE + 2 * fastcgi::HEADER);
        let mut offset = 0;
        loop {
            let n = body.read_at(offset, &mut buffer).map_err(unreadable)?;
            out.clear();
            if n == 0 {
                fastcgi::end_of_stdin(&mut out, ID);
            } else {
                fastcgi::stdin(&mut out, ID, &buffer[..n]);
            }
            socket.write_all(&out).await.map_err(|error| backend.lost(&error))?;
            socket.renew_read_limit(backend.reply_timeout());
            if n == 0 {
                return Ok(());
            }
            offset += n as u64;
        }
    }

    /// Reads the reply and passes it on; whether the connection can be kept.
    async fn read_reply(
        &self,
        backend: &Backend,
        socket: &Socket,
        exchange: &mut Exchange,
        inbox: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        let mut decoder = Decoder::new(ID);
        let mut script =
            ScriptReply::new(OutputLimit::new(self.settings.max_output, Fault::backend));
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
                    Some(Event::Stdout(range)) => {
                        script.feed(&inbox[at(range)], &mut exchange.reply).await?;
                    }
                    Some(Event::Stderr(range)) => {
                        stderr.log(&self.thread, backend.name(), &inbox[at(range)]);
                    }
                    Some(Event::End { status, .. }) => {
                        check_end(backend.name(), status, script.is_empty())?;
                        script.finish(&mut exchange.reply).await?;
                        return Ok(decoder.is_done() && start + step.consumed == inbox.len());
                    }
                    Some(Event::Values(_)) => {}
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
            if any {
                socket.acknowledge();
            }
            let read = self.read(backend, socket, inbox, &mut script, exchange).await;
            match read {
                Ok(0) => return Err(backend.cut_off(any)),
                Ok(_) => any = true,
                Err(fault) if any => return Err(fault.retry(Retry::No)),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Reads on; when nothing comes for a moment, what has come goes to the client.
    async fn read(
        &self,
        backend: &Backend,
        socket: &Socket,
        inbox: &mut Vec<u8>,
        script: &mut ScriptReply,
        exchange: &mut Exchange,
    ) -> Result<usize, Fault> {
        {
            let read = backend.read(socket, inbox);
            tokio::select! {
                biased;
                outcome = read => return outcome,
                () = tokio::time::sleep(PAUSE), if script.has_output() => {}
            }
        }
        script.flush(&mut exchange.reply).await?;
        backend.read(socket, inbox).await
    }
}

impl Origin for Fastcgi {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.forward(exchange))
    }
}

/// The ways to a backend.
struct Ways<'a> {
    backend: &'a Backend,
    lines: Option<&'a Lines>,
    is_repeatable: bool,
}

/// How a request goes: over a connection of its own, or a place on one that is shared.
enum Way {
    Alone(Connection),
    Shared(Stream),
}

impl Ways<'_> {
    /// A way for one request; `fresh` where another has failed.
    async fn take(&self, fresh: bool) -> Result<Way, Fault> {
        if !fresh
            && let Some(lines) = self.lines
            && let Some(stream) = lines.stream(self.backend).await?
        {
            return Ok(Way::Shared(stream));
        }
        Ok(Way::Alone(match self.is_repeatable || fresh {
            true => self.backend.connect(fresh).await?,
            false => self.backend.connect_for_once().await?,
        }))
    }
}

impl Way {
    /// Whether it is shared, and whether it may break for what this request has no part in: it has
    /// served others before, or does meanwhile.
    fn kind(&self) -> (bool, bool) {
        match self {
            Self::Alone(connection) => (false, connection.is_reused),
            Self::Shared(_) => (true, true),
        }
    }
}

fn unreadable(error: std::io::Error) -> Fault {
    Fault::us(500, format!("cannot read a spooled body: {error}"))
}

/// A request that was refused was not acted on. One that ended without a word is a bad reply; over
/// a connection that was used before, fastcgi-mono-server4 is known for them (mono#20086), and what
/// may be sent twice is.
fn check_end(name: &str, status: ProtocolStatus, is_empty: bool) -> Result<(), Fault> {
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

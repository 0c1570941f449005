//! FastCGI responders that listen by themselves, such as php-fpm.

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::rc::Rc;

use forebay_conf as conf;
use forebay_engine::{Exchange, Fault, Origin, Request, Retry, Serving, Socket, Thread};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::fastcgi::{self, Decoder, Event, ProtocolStatus};
use forebay_wire::http1::Known;

use crate::connect::{Backend, Connection};
use crate::script_reply::{OutputLimit, PAUSE, ScriptReply};
use crate::spool::Spooled;

/// The one request that is under way on a connection.
const ID: u16 = 1;
/// Bytes of request body that go out at a time.
const PIECE: usize = 32 * 1024;
const INBOX: usize = 16 * 1024;

/// A FastCGI application, as one thread knows it.
pub struct Fastcgi {
    thread: Rc<Thread>,
    backends: Vec<Backend>,
    next: Cell<usize>,
    settings: conf::Fastcgi,
    spare: RefCell<Vec<Buffers>>,
}

/// What goes out and what comes in.
type Buffers = (Vec<u8>, Vec<u8>);

impl Fastcgi {
    /// Passes requests to `backends` in turn.
    pub fn new(thread: Rc<Thread>, backends: Vec<Backend>, settings: conf::Fastcgi) -> Self {
        let (next, spare) = (Cell::new(0), RefCell::default());
        Self { thread, backends, next, settings, spare }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let script = Script::find(&exchange.request, &self.settings)?;
        let body = Spooled::take(&mut exchange.body).await?;
        let (mut out, mut inbox) = self.spare.borrow_mut().pop().unwrap_or_default();
        out.clear();
        inbox.reserve(INBOX);
        self.append_head(&mut out, &exchange.request, &script, &body);
        let outcome = self.try_backends(exchange, &body, &out, &mut inbox).await;
        inbox.clear();
        self.spare.borrow_mut().push((out, inbox));
        outcome
    }

    async fn try_backends(
        &self,
        exchange: &mut Exchange,
        body: &Spooled,
        out: &[u8],
        inbox: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let mut fault = None;
        for _ in 0..self.backends.len() {
            let at = self.next.get();
            self.next.set((at + 1) % self.backends.len());
            let backend = &self.backends[at];
            let connected = match exchange.request.is_idempotent() {
                true => backend.connect(false).await,
                false => backend.connect_for_once().await,
            };
            let connection = match connected {
                Ok(connection) => connection,
                Err(error) => {
                    fault = Some(error);
                    continue;
                }
            };
            let is_reused = connection.is_reused;
            let outcome = self.converse(backend, connection, exchange, body, out, inbox).await;
            return match outcome {
                Err(fault)
                    if fault.retry == Retry::IfReused
                        && is_reused
                        && exchange.request.is_idempotent()
                        && !exchange.reply.has_begun() =>
                {
                    let connection = backend.connect(true).await?;
                    self.converse(backend, connection, exchange, body, out, inbox).await
                }
                outcome => outcome,
            };
        }
        Err(fault.unwrap_or_else(|| Fault::us(500, "a FastCGI route without backends")))
    }

    fn append_head(&self, out: &mut Vec<u8>, request: &Request, script: &Script, body: &Spooled) {
        fastcgi::begin(out, ID, self.settings.keep_conn);
        let mut params = fastcgi::Params::new(out, ID);
        script.append_variables(request, &self.settings, body.len(), &mut params);
        params.finish();
        if let Spooled::Memory(memory) = body {
            fastcgi::stdin(out, ID, memory);
        }
        if !matches!(body, Spooled::File(..)) {
            fastcgi::end_of_stdin(out, ID);
        }
    }

    /// One request over `connection`, which is kept where that can be. A script may answer while it
    /// still reads, and stops reading when nobody takes what it answers.
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
            let mut upload = pin!(self.send(backend, socket, out, body));
            let mut download = pin!(self.read_reply(backend, socket, exchange, inbox));
            tokio::select! {
                biased;
                sent = &mut upload => match (sent, download.await) {
                    (Ok(()), outcome) => outcome?,
                    (Err(_), Ok(_)) => false,
                    (Err(fault), Err(_)) => return Err(fault),
                },
                outcome = &mut download => {
                    outcome?;
                    false
                }
            }
        };
        if is_whole && self.settings.keep_conn {
            backend.keep(connection);
        }
        Ok(())
    }

    /// Sends what is in `out`, then a body that is not in there. The time limit for the reply starts
    /// anew with each piece: an application that reads has not fallen silent.
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
            let n = body
                .read_at(offset, &mut buffer)
                .map_err(|error| Fault::us(500, format!("cannot read a spooled body: {error}")))?;
            out.clear();
            if n == 0 {
                fastcgi::end_of_stdin(&mut out, ID);
            } else {
                fastcgi::stdin(&mut out, ID, &buffer[..n]);
            }
            socket.write_all(&out).await.map_err(|error| backend.lost(&error))?;
            socket.limit_read(self.thread.settings().timeouts.reply_idle);
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
                    Some(Event::Stderr(range)) => self.log_stderr(backend, &inbox[at(range)]),
                    Some(Event::End { status, .. }) => {
                        check_end(backend, status)?;
                        script.finish(&mut exchange.reply).await?;
                        return Ok(decoder.is_done() && start + step.consumed == inbox.len());
                    }
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

    fn log_stderr(&self, backend: &Backend, text: &[u8]) {
        for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
            let line = String::from_utf8_lossy(line);
            self.thread.errors.say(&format!("{}: {line}", backend.name()));
        }
    }
}

impl Origin for Fastcgi {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.forward(exchange))
    }
}

/// What nginx sends beside the variables of CGI, and what scripts may take for granted: the fields
/// about the body under a second name, and names with nothing in them.
fn append_as_nginx(
    request: &Request,
    script: &Script,
    content_length: Option<u64>,
    params: &mut impl Sink,
) {
    if script.path_info.is_empty() {
        params.variable(b"PATH_INFO", b"");
    }
    if content_length.is_none() {
        params.variable(b"CONTENT_LENGTH", b"");
    }
    if let Some(length) = request.head.value(Known::ContentLength, &request.bytes) {
        params.variable(b"HTTP_CONTENT_LENGTH", length);
    }
    match request.head.value(Known::ContentType, &request.bytes) {
        Some(content_type) => params.variable(b"HTTP_CONTENT_TYPE", content_type),
        None => params.variable(b"CONTENT_TYPE", b""),
    }
    // Nobody has checked who the user is. (nginx passes on what the client claims.)
    params.variable(b"REMOTE_USER", b"");
}

fn check_end(backend: &Backend, status: ProtocolStatus) -> Result<(), Fault> {
    let (code, what) = match status {
        ProtocolStatus::Complete => return Ok(()),
        ProtocolStatus::Overloaded => (503, "is overloaded"),
        ProtocolStatus::CantMultiplex => (502, "refuses a second request on one connection"),
        ProtocolStatus::Refused => (502, "does not take the responder role"),
    };
    Err(Fault::backend(code, format!("{} {what}", backend.name())))
}

/// What a path names, as nginx splits it.
pub struct Script {
    /// The path of the script.
    name: Vec<u8>,
    /// What is left of the path behind it.
    path_info: Vec<u8>,
    /// The script's file, as the application sees it.
    pub file: Vec<u8>,
}

impl Script {
    /// Splits the path behind its first `.php`-like segment end: the suffix of the index. A script
    /// that should be on this machine and is not there is not asked for: PHP would look for others.
    pub fn find(request: &Request, settings: &conf::Fastcgi) -> Result<Self, Fault> {
        let path = &request.path;
        if path.iter().any(|b| b.is_ascii_control()) {
            return Err(Fault::client(400, "control byte in the path of a script"));
        }
        let suffix = settings.index.rfind('.').map_or("", |at| &settings.index[at..]).as_bytes();
        let mut name = path.clone();
        let mut path_info = Vec::new();
        if path.ends_with(b"/") && !has_script(path, suffix) {
            name.extend_from_slice(settings.index.as_bytes());
        } else if let Some(end) = script_end(path, suffix) {
            name.truncate(end);
            path_info.extend_from_slice(&path[end..]);
        }
        if settings.root.is_dir() {
            let relative = std::ffi::OsStr::from_bytes(name.strip_prefix(b"/").unwrap_or(&name));
            if !settings.root.join(relative).is_file() {
                return Err(Fault::client(404, "no such script").not_mine());
            }
        }
        let file = [settings.root.as_os_str().as_bytes(), &name].concat();
        Ok(Self { name, path_info, file })
    }

    /// Passes the variables of `request` for this script to `sink`, and those of the route.
    pub fn append_variables(
        &self,
        request: &Request,
        settings: &conf::Fastcgi,
        content_length: Option<u64>,
        sink: &mut impl Sink,
    ) {
        let variables = cgi::Request {
            head: &request.head,
            bytes: &request.bytes,
            script_name: &self.name,
            script_filename: &self.file,
            path_info: &self.path_info,
            document_root: settings.root.as_os_str().as_bytes(),
            document_uri: &request.path,
            content_length,
            client: request.client,
            server: request.server,
            https: request.https,
        };
        cgi::variables(&variables, sink);
        append_as_nginx(request, self, content_length, sink);
        for (name, value) in &settings.params {
            sink.variable(name.as_bytes(), value.as_bytes());
        }
    }
}

fn has_script(path: &[u8], suffix: &[u8]) -> bool {
    script_end(path, suffix).is_some()
}

/// Where the first segment that ends in `suffix` ends.
fn script_end(path: &[u8], suffix: &[u8]) -> Option<usize> {
    if suffix.is_empty() {
        return None;
    }
    let mut end = 0;
    for segment in path.split(|&b| b == b'/') {
        end += segment.len();
        if segment.ends_with(suffix) {
            return Some(end);
        }
        end += 1;
    }
    None
}

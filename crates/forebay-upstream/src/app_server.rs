//! SCGI and uwsgi applications that have their own listener. Each connection carries one request.
//!
//! The applications receive the variables of nginx's `scgi_params` and `uwsgi_params`, and the CGI
//! variables that do not describe a script. An application has no script: the path after `mount` is
//! its PATH_INFO.
//!
//! Applications answer with HTTP or with CGI output. The first bytes of a reply show the form. If a
//! reply announces its length, Forebay reads no further than its end. If uWSGI has not read the
//! request's body, it then resets the connection, and this reset must not count as an error.

use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::rc::Rc;

use forebay_conf as conf;
use forebay_conf::ServerProtocol;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::spool::Spooled;
use forebay_wire::cgi::{self, Sink};
use forebay_wire::{scgi, uwsgi};

use crate::mount::{self, request_data, with_params};
use crate::output::Output;
use crate::reply_pump::ReplyPump;
use crate::script_reply::OutputLimit;
use crate::upstream::{
    Attempt, Backend, BackendConnection, BodyAtHand, BodyEncoder, Carrier, ConnectionOrigin,
    Source, ToBackend, Upstream, send_and_read, upload,
};

/// Answers a route's requests by sending them to an SCGI or uwsgi application. Each thread has one.
pub struct AppServer {
    thread: Rc<Thread>,
    upstream: Upstream,
    settings: conf::AppServer,
}

impl AppServer {
    /// Creates the origin for the backends of `upstream`.
    pub fn new(thread: Rc<Thread>, upstream: Upstream, settings: conf::AppServer) -> Self {
        Self { thread, upstream, settings }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let body = exchange.body.spool().await?;
        self.forward_with(exchange, &body).await
    }

    /// Sends a request whose whole body has been received, and sends the reply to the client.
    pub async fn forward_with(&self, exchange: &mut Exchange, body: &Spooled) -> Result<(), Fault> {
        let mut out = self.thread.take_buffer();
        append_head(&mut out, &exchange.request, &self.settings, body.length())?;
        let mut carrier = AppServerCarrier { origin: self, head: &out, body };
        exchange.enter(Step::Connect);
        let outcome = self.upstream.send(&mut carrier, exchange, None).await.map(drop);
        self.thread.keep_buffer(out);
        outcome
    }
}

impl Origin for AppServer {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.forward(exchange))
    }
}

/// Returns the protocol's name for messages.
pub fn name(protocol: ServerProtocol) -> &'static str {
    match protocol {
        ServerProtocol::Scgi => "scgi",
        ServerProtocol::Uwsgi { .. } => "uwsgi",
    }
}

/// Appends the head of the request, which precedes the body. Fails if the head is too large for a
/// uwsgi packet.
pub fn append_head(
    out: &mut Vec<u8>,
    request: &Request,
    settings: &conf::AppServer,
    content_length: Option<u64>,
) -> Result<(), Fault> {
    match settings.protocol {
        ServerProtocol::Scgi => {
            let mut head = scgi::Head::new(out, content_length.unwrap_or(0));
            append_variables(request, settings, content_length, &mut head);
            head.finish();
            Ok(())
        }
        ServerProtocol::Uwsgi { modifier1, modifier2 } => {
            let mut packet = uwsgi::Packet::new(out, modifier1, modifier2);
            append_variables(request, settings, content_length, &mut packet);
            packet.finish().map_err(|error| Fault::client(431, error.to_string()))
        }
    }
}

/// Passes the CGI variables of the request to `sink`. The `params` of the route replace variables
/// of the same name.
fn append_variables(
    request: &Request,
    settings: &conf::AppServer,
    content_length: Option<u64>,
    sink: &mut impl Sink,
) {
    let parts = mount::parts(request, settings.mount.as_deref());
    let root = settings.root.as_ref().map(|root| root.as_os_str().as_bytes());
    let variables = cgi::Request {
        script_name: parts.script_name,
        path_info: &parts.path_info,
        document_root: root.unwrap_or_default(),
        ..request_data(request, content_length)
    };
    let params = request.params.as_deref().unwrap_or(&settings.params);
    if params.is_empty() {
        cgi::variables(&variables, sink);
    } else {
        with_params(params, sink, |sink| cgi::variables(&variables, sink));
    }
}

/// A request that the upstream may send to several backends, one after another.
struct AppServerCarrier<'a> {
    origin: &'a AppServer,
    head: &'a [u8],
    body: &'a Spooled,
}

impl Carrier for AppServerCarrier<'_> {
    type Connection = BackendConnection;
    type Outcome = ();

    async fn connect(
        &mut self,
        attempt: &Attempt<'_>,
        _is_new: bool,
    ) -> Result<(BackendConnection, ConnectionOrigin), Fault> {
        Ok((attempt.backend.connect(true).await?, ConnectionOrigin::New))
    }

    async fn exchange(
        &mut self,
        attempt: &Attempt<'_>,
        connection: BackendConnection,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        exchange.enter(Step::Origin);
        let (origin, backend) = (self.origin, attempt.backend);
        let session = Session { origin, backend, socket: &connection.socket };
        session.run(exchange, self.head, self.body).await
    }

    fn body(&self) -> BodyAtHand {
        BodyAtHand::Whole
    }
}

/// One request and its reply over a connection that carries no other request.
struct Session<'a> {
    origin: &'a AppServer,
    backend: &'a Backend,
    socket: &'a Socket,
}

impl Session<'_> {
    async fn run(&self, exchange: &mut Exchange, head: &[u8], body: &Spooled) -> Result<(), Fault> {
        let upload = pin!(self.send(head, body));
        send_and_read(upload, pin!(self.read_reply(exchange))).await.map(drop)
    }

    /// Sends the request. Each piece of a long body restarts the time limit of the reply, because
    /// the application still reads.
    async fn send(&self, head: &[u8], body: &Spooled) -> Result<(), Fault> {
        let lost = |error| self.backend.lost(&error);
        let memory = if let Spooled::Memory(memory) = body { &memory[..] } else { b"" };
        let mut pieces = [IoSlice::new(head), IoSlice::new(memory)];
        self.socket.write_pieces(&mut pieces).await.map_err(lost)?;
        if !matches!(body, Spooled::File(..)) {
            return Ok(());
        }
        let outlet = ToBackend { backend: self.backend, socket: self.socket };
        upload(&outlet, BodyEncoder::Plain, Source::spooled(body)).await
    }

    /// Reads the reply and sends it to the client.
    async fn read_reply(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        self.backend.readable(self.socket).await?;
        let mut inbox = self.origin.thread.take_buffer();
        let outcome = self.pass_reply(exchange, &mut inbox).await;
        self.origin.thread.keep_buffer(inbox);
        outcome
    }

    /// Sends a reply to the client, up to its announced length or to the end of the connection.
    async fn pass_reply(&self, exchange: &mut Exchange, inbox: &mut Vec<u8>) -> Result<(), Fault> {
        let limit =
            OutputLimit::new(self.origin.settings.max_output, Fault::backend, &self.origin.thread);
        let limit = limit.strict(self.backend.is_strict());
        let output = Output::of_server(&exchange.request, limit);
        let mut pump = ReplyPump::new(output, &mut exchange.reply);
        loop {
            let limit = pump.silence(self.backend);
            let read = async || self.backend.read_within(self.socket, inbox, limit).await;
            let read = pump.next(read).await??;
            if read == 0 && pump.output().is_empty() {
                return Err(self.backend.cut_off(false));
            }
            pump.feed(inbox).await?;
            inbox.clear();
            if read == 0 || pump.output().is_complete() {
                return pump.finish().await;
            }
        }
    }
}

//! A gateway in memory with its peers. Their messages are encoded and decoded here, without the
//! codecs under test.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::Status;
use forebay_conf::{Listen, Plan};
use forebay_gateway::{Origins, SiteTls, Starts};
use forebay_net::log::ErrorLog;
use forebay_net::memory::{Destination, Link};
use forebay_net::thread::Settings;
use forebay_origin::access::{Turn, checks_at_once};
use forebay_server::memory_gateway::MemoryGateway;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

/// Listener of a test's site, unless the test has its own.
const LISTEN: &str = "127.0.0.1:80";
/// Time limit of a conversation, on the clock of the test.
const FOR_EVER: Duration = Duration::from_secs(4 * 3600);

/// Runs `test` against a gateway with this configuration in TOML. If the text begins with
/// `[[site.route]]`, `[[site]]` with its `listen` precedes it.
pub fn in_memory(configuration: &str, test: impl AsyncFnOnce(&World)) {
    let text = with_site(configuration);
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default());
    runtime.unwrap().block_on(async {
        let world = World::new(&text);
        let ended = tokio::time::timeout(FOR_EVER, test(&world)).await;
        assert!(ended.is_ok(), "the conversation hangs; logged: {:#?}", world.errors());
    });
}

/// A gateway with its surroundings.
pub struct World {
    pub gateway: MemoryGateway,
    origins: RefCell<Arc<Origins>>,
    log: ErrorLog,
    listen: Vec<Option<Listen>>,
}

impl World {
    fn new(text: &str) -> Self {
        let plan = parse(text);
        let (errors, kept) = ErrorLog::kept();
        let mut listen: Vec<Option<Listen>> = Vec::new();
        let of_streams = plan.relays.iter().flat_map(|relay| &relay.listen);
        for address in plan.sites.iter().flat_map(|site| &site.listen).chain(of_streams) {
            if !listen.contains(&Some(address.clone())) {
                listen.push(Some(address.clone()));
            }
        }
        let tls = SiteTls::load(&plan, None).unwrap();
        let settings = settings(&plan);
        let access_log = plan.log.clone();
        let origins = Arc::new(Origins::new(plan, Arc::new(tls), &errors, Starts::Later).unwrap());
        let logs = (&access_log, kept, errors.clone());
        let gateway = MemoryGateway::new(settings, logs, &origins.tables(), &listen);
        Self { gateway, origins: RefCell::new(origins), log: errors, listen }
    }

    /// Returns another thread of this server, with its own backends at equal addresses.
    /// `configuration` is that of this thread.
    pub fn another_thread(&self, configuration: &str) -> Self {
        let plan = parse(&with_site(configuration));
        let (errors, kept) = ErrorLog::kept();
        let (origins, listen) = (self.origins.borrow().clone(), self.listen.clone());
        let logs = (&plan.log, kept, errors.clone());
        let gateway = MemoryGateway::new(settings(&plan), logs, &origins.tables(), &listen);
        Self { gateway, origins: RefCell::new(origins), log: errors, listen }
    }

    /// Occupies all slots for password hashes until the returned turns are dropped.
    pub async fn check_other_passwords(&self) -> Vec<Turn> {
        let queue = self.origins.borrow().password_queue().clone();
        let mut held = Vec::new();
        for _ in 0..checks_at_once() {
            held.push(queue.wait(None).await.expect("nobody else waits"));
        }
        held
    }

    /// Returns the status of applications and backends.
    pub fn status(&self) -> Status {
        self.origins.borrow().status()
    }

    /// Removes stored replies, as the administrator does.
    pub fn purge(&self, purge: &forebay_admin::Purge) -> Option<usize> {
        self.origins.borrow().purge(purge)
    }

    /// Returns a new connection from a client.
    pub fn client(&self) -> Peer {
        self.client_from("192.0.2.7:4000")
    }

    /// Returns a new connection from a client with this address.
    pub fn client_from(&self, address: &str) -> Peer {
        Peer::new(self.gateway.connect(0, address.parse().unwrap()))
    }

    /// Returns a new connection to the listener of this number, from 0 in the order of the file.
    pub fn client_at(&self, listener: usize) -> Peer {
        Peer::new(self.gateway.connect(listener, SocketAddr::from(([192, 0, 2, 7], 4000))))
    }

    /// Sends one request on a new connection, and returns the reply.
    pub async fn ask(&self, request: &str) -> Message {
        let mut client = self.client();
        client.send(request).await;
        client.reply(request).await
    }

    /// Sends `request` on a new connection. Returns the request that `backend` receives, and the
    /// client's reply if `reply` is all that the backend sends before it closes.
    pub async fn pass(
        &self,
        backend: &mut Backend,
        request: impl AsRef<[u8]>,
        reply: impl AsRef<[u8]>,
    ) -> (Message, Message) {
        let (asked, replied) = self.try_pass(backend, request, reply).await;
        (asked, replied.expect("a whole reply comes"))
    }

    /// Like [`World::pass`], with an error if the reply is cut off.
    pub async fn try_pass(
        &self,
        backend: &mut Backend,
        request: impl AsRef<[u8]>,
        reply: impl AsRef<[u8]>,
    ) -> (Message, io::Result<Message>) {
        let mut client = self.client();
        let is_head = request.as_ref().starts_with(b"HEAD ");
        let asking = async {
            client.send(request).await;
            loop {
                let reply = client.any_reply(is_head).await?;
                if !matches!(reply.status(), 100 | 102..=199) {
                    return Ok(reply);
                }
            }
        };
        let answering = async {
            let mut connection = backend.accept().await;
            let asked = connection.request().await;
            connection.send(reply).await;
            asked
        };
        tokio::join!(answering, asking)
    }

    /// Starts a backend at a TCP address.
    pub fn backend(&self, address: &str) -> Backend {
        let address: SocketAddr = address.parse().unwrap();
        Backend(self.gateway.network().listen(Destination::Tcp(address)))
    }

    /// Starts a backend at a Unix socket.
    pub fn unix_backend(&self, path: impl Into<PathBuf>) -> Backend {
        Backend(self.gateway.network().listen(Destination::Unix(path.into())))
    }

    /// Lets connections to this TCP address hang: neither accepted nor refused.
    pub fn fall_silent(&self, address: &str) {
        self.gateway.network().fall_silent(Destination::Tcp(address.parse().unwrap()));
    }

    /// Returns the errors since the last call.
    pub fn errors(&self) -> Vec<String> {
        self.gateway.errors()
    }

    /// Reloads the configuration unchanged.
    pub fn reload(&self) {
        self.gateway.adopt(&self.origins.borrow().tables(), &self.listen);
    }

    /// Replaces the configuration with another one for these listeners.
    pub fn reload_as(&self, configuration: &str) {
        let plan = parse(&with_site(configuration));
        let tls = SiteTls::load(&plan, None).unwrap();
        let origins =
            Origins::new(plan, Arc::new(tls), &self.log, Starts::After(&self.origins.borrow()))
                .unwrap();
        self.origins.replace(Arc::new(origins));
        self.reload();
    }
}

fn settings(plan: &Plan) -> Settings {
    Settings {
        timeouts: plan.server.timeouts.clone(),
        limits: plan.server.limits.clone(),
        timing: plan.server.timing,
        is_timed: false,
        admin_hosts: Vec::new(),
        admin_token: None,
        spool_dir: plan.server.spool_dir.clone(),
    }
}

pub fn with_site(configuration: &str) -> String {
    if configuration.trim_start().starts_with("[[site.route]]") {
        format!("[[site]]\nlisten = [\"{LISTEN}\"]\n{configuration}")
    } else {
        configuration.to_owned()
    }
}

pub fn parse(text: &str) -> Plan {
    let mut plan = match forebay_conf::parse(text, "test.toml", Path::new("/")) {
        Ok(plan) => plan,
        Err(error) => panic!("{error}"),
    };
    plan.share_connections(1).unwrap();
    plan
}

/// A scripted backend.
pub struct Backend(mpsc::UnboundedReceiver<Link>);

impl Backend {
    /// Returns the next connection to the backend.
    pub async fn accept(&mut self) -> Peer {
        Peer::new(self.0.recv().await.expect("the gateway is there as long as the test"))
    }

    /// Returns true if a connection waits to be accepted.
    pub fn has_visitor(&mut self) -> bool {
        !self.0.is_empty()
    }

    /// Answers the first request on a new connection, which stays open. Returns both.
    pub async fn answer(&mut self, reply: &str) -> (Message, Peer) {
        let mut connection = self.accept().await;
        let request = connection.request().await;
        connection.send(reply).await;
        (request, connection)
    }
}

/// The far end of a gateway connection: a client or a backend.
pub struct Peer {
    pub link: Link,
    unread: Vec<u8>,
}

/// A request or a reply that was read.
#[derive(Debug)]
pub struct Message {
    /// The request line or status line.
    pub start: String,
    /// Name in lower case, and value.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Trailers of a chunked body.
    pub trailers: Vec<(String, String)>,
}

impl Message {
    /// Returns the status of a reply.
    pub fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Returns the first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a field.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(n, _)| n == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Peer {
    fn new(link: Link) -> Self {
        Self { link, unread: Vec::new() }
    }

    /// Sends `data`, and waits for room. If the other end has closed, the data is lost.
    pub async fn send(&mut self, data: impl AsRef<[u8]>) {
        let _ = self.link.write(data.as_ref()).await;
    }

    /// Like [`Peer::send`], in pieces whose sizes `seed` determines. The other side runs in
    /// between.
    pub async fn send_in_pieces(&mut self, data: impl AsRef<[u8]>, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut data = data.as_ref();
        while !data.is_empty() {
            let (piece, rest) = data.split_at(random.usize(1..=data.len().min(64)));
            self.send(piece).await;
            tokio::task::yield_now().await;
            data = rest;
        }
    }

    /// Returns what was received and not read yet.
    pub fn unread(&self) -> &[u8] {
        &self.unread
    }

    /// Reads more. Returns false at the end of the stream.
    pub async fn more(&mut self) -> io::Result<bool> {
        Ok(self.link.read(&mut self.unread).await? > 0)
    }

    /// Returns everything up to the end, and the kind of end.
    pub async fn rest(&mut self) -> (Vec<u8>, io::Result<()>) {
        let outcome = loop {
            match self.more().await {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (std::mem::take(&mut self.unread), outcome)
    }

    /// Returns true if the connection ends here without further bytes.
    pub async fn is_closed(&mut self) -> bool {
        let (rest, _) = self.rest().await;
        rest.is_empty()
    }

    /// Returns the next request.
    pub async fn request(&mut self) -> Message {
        let mut message = self.head().await.expect("a request comes");
        let length = message.field("content-length").map(|length| length.parse().unwrap());
        match message.field("transfer-encoding") {
            Some(_) => self.chunked(&mut message).await.unwrap(),
            None => message.body = self.exactly(length.unwrap_or(0)).await.unwrap(),
        }
        message
    }

    /// Returns the reply to `request`, without interim replies.
    pub async fn reply(&mut self, request: &str) -> Message {
        loop {
            let message =
                self.any_reply(request.starts_with("HEAD ")).await.expect("a reply comes");
            if message.status() == 101 || message.status() >= 200 {
                return message;
            }
        }
    }

    /// Returns the next reply, interim replies included; an error if it is cut off.
    pub async fn any_reply(&mut self, to_head: bool) -> io::Result<Message> {
        let mut message = self.head().await?;
        let length = message.field("content-length").map(|length| length.parse().unwrap());
        if to_head || matches!(message.status(), 100..=199 | 204 | 304) {
            return Ok(message);
        }
        if message.field("transfer-encoding").is_some() {
            self.chunked(&mut message).await?;
        } else if let Some(length) = length {
            message.body = self.exactly(length).await?;
        } else {
            let (rest, outcome) = self.rest().await;
            outcome?;
            message.body = rest;
        }
        Ok(message)
    }

    /// Reads a start line and its fields.
    pub async fn head(&mut self) -> io::Result<Message> {
        let start = self.line().await?;
        let fields = self.fields().await?;
        Ok(Message { start, fields, body: Vec::new(), trailers: Vec::new() })
    }

    async fn fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("no field: {line}"));
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads a line, and returns it without CRLF.
    pub async fn line(&mut self) -> io::Result<String> {
        let mut from = 0;
        loop {
            if let Some(at) = self.unread[from..].windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..from + at + 2).collect();
                return Ok(String::from_utf8(line[..line.len() - 2].to_vec()).unwrap());
            }
            from = self.unread.len().saturating_sub(1);
            if !self.more().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads `length` bytes.
    pub async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            if !self.more().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.unread.drain(..length).collect())
    }

    async fn chunked(&mut self, message: &mut Message) -> io::Result<()> {
        loop {
            let line = self.line().await?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or(""), 16).unwrap();
            if size == 0 {
                message.trailers = self.fields().await?;
                return Ok(());
            }
            message.body.extend(self.exactly(size).await?);
            assert_eq!(self.line().await?, "", "a chunk ends with CRLF");
        }
    }
}

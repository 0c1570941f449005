//! A scripted HTTP/2 client on the client role of the codec. The gateway under test uses the server
//! role, which is also tested against other implementations.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use forebay_net::memory::Link;
use forebay_wire::fields::Fields;
use forebay_wire::http2::{Cause, Config, Connection, ErrorCode, Event, Head, RequestPseudo};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;

use crate::world::World;

/// A client's connection, with the received data.
pub struct Http2Client {
    pub link: Rc<Link>,
    /// Bytes for the task that writes.
    writing: UnboundedSender<Vec<u8>>,
    pub codec: Connection,
    input: Vec<u8>,
    replies: BTreeMap<u32, Reply>,
    /// Unfinished bodies, and the number of their bytes that were sent.
    bodies: BTreeMap<u32, (Vec<u8>, usize)>,
    /// True if data is read without opening its window.
    pub holds_windows: bool,
    /// Number of received data bytes, held or not.
    pub received: usize,
    unconsumed: Vec<(u32, usize)>,
    pub goaway: Option<ErrorCode>,
    pub has_settings: bool,
    /// True after the end of the connection.
    pub has_ended: bool,
}

/// A reply, as far as it has arrived.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// Interim replies before the final one.
    pub interim: Vec<(u16, Vec<(String, String)>)>,
    pub is_whole: bool,
    pub reset: Option<Cause>,
}

impl Reply {
    /// Returns the first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Http2Client {
    /// Connects, and exchanges settings in both directions.
    pub async fn connect(world: &World) -> Self {
        Self::connect_with(world, Config::default()).await
    }

    pub async fn connect_with(world: &World, config: Config) -> Self {
        let mut client =
            Self::over(world.gateway.connect(0, "192.0.2.7:4000".parse().unwrap()), config);
        while !client.has_settings {
            assert!(client.turn().await, "the connection ends before its settings");
        }
        client.flush();
        client
    }

    pub fn over(link: Link, config: Config) -> Self {
        let link = Rc::new(link);
        Self {
            writing: spawn_writer(link.clone()),
            link,
            codec: Connection::client(config),
            input: Vec::new(),
            replies: BTreeMap::new(),
            bodies: BTreeMap::new(),
            holds_windows: false,
            received: 0,
            unconsumed: Vec::new(),
            goaway: None,
            has_settings: false,
            has_ended: false,
        }
    }

    /// Opens a stream with a request that has no body.
    pub fn get(&mut self, path: &str) -> u32 {
        self.ask("GET", path, &[], true)
    }

    /// Opens a stream.
    pub fn ask(&mut self, method: &str, path: &str, fields: &[(&str, &str)], end: bool) -> u32 {
        let pseudo = RequestPseudo {
            method: method.as_bytes(),
            scheme: b"http",
            authority: b"a.example",
            path: path.as_bytes(),
            protocol: b"",
        };
        self.ask_as(&pseudo, fields, end)
    }

    pub fn ask_as(&mut self, pseudo: &RequestPseudo, fields: &[(&str, &str)], end: bool) -> u32 {
        let mut list = Fields::new();
        list.extend(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        self.codec.send_request(pseudo, &list, end).expect("the server takes a stream")
    }

    /// Sends a body and the end of the stream, as the windows allow.
    pub fn send_body(&mut self, stream: u32, body: impl Into<Vec<u8>>) {
        self.bodies.insert(stream, (body.into(), 0));
        self.go_on(stream);
    }

    /// Returns true if the whole body of `send_body` was sent.
    pub fn has_sent(&self, stream: u32) -> bool {
        self.bodies.get(&stream).is_some_and(|(body, sent)| *sent == body.len())
    }

    /// Sends data now, which must fit into the windows.
    pub fn send_data(&mut self, stream: u32, data: &[u8], end: bool) {
        let sent = self.codec.send_data(stream, data, end, now()).unwrap();
        assert_eq!(sent, data.len(), "the window is large enough");
    }

    pub fn send_trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        let mut list = Fields::new();
        list.extend(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        self.codec.send_trailers(stream, &list).expect("the stream is open");
    }

    fn go_on(&mut self, stream: u32) {
        let Some((body, sent)) = self.bodies.get_mut(&stream) else { return };
        // If the stream is gone, an event reports that.
        *sent += self.codec.send_data(stream, &body[*sent..], true, now()).unwrap_or_default();
    }

    /// Writes all output.
    pub fn flush(&mut self) {
        loop {
            while let Some(stream) = self.codec.poll_writable() {
                self.go_on(stream);
            }
            let output = self.codec.output().to_vec();
            if output.is_empty() {
                return;
            }
            self.codec.wrote(output.len());
            let _ = self.writing.send(output);
        }
    }

    /// Writes raw bytes.
    pub fn send_raw(&mut self, bytes: impl Into<Vec<u8>>) {
        self.flush();
        let _ = self.writing.send(bytes.into());
    }

    /// Writes, and reads the next bytes. Returns false at the end of the connection.
    pub async fn turn(&mut self) -> bool {
        self.flush();
        match self.link.read(&mut self.input).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => {
                self.has_ended = true;
                return false;
            }
        }
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        loop {
            let step =
                self.codec.receive(&input[at..], now()).expect("the gateway keeps the rules");
            let Some(event) = step.event else {
                self.input.extend_from_slice(&input[at + step.consumed..]);
                return true;
            };
            self.handle(event, &input[at..]);
            at += step.consumed;
        }
    }

    fn handle(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => {
                let reply = self.replies.entry(stream).or_default();
                (reply.status, reply.fields, reply.is_whole) = (head.status, list(&head), end);
                self.codec.recycle(head);
            }
            Event::Interim { stream, head } => {
                let reply = self.replies.entry(stream).or_default();
                reply.interim.push((head.status, list(&head)));
                self.codec.recycle(head);
            }
            Event::Data { stream, data, end } => {
                let reply = self.replies.entry(stream).or_default();
                reply.body.extend_from_slice(&input[data.clone()]);
                reply.is_whole = end;
                self.received += data.len();
                if self.holds_windows {
                    self.unconsumed.push((stream, data.len()));
                } else {
                    self.codec.consume(stream, data.len(), now());
                }
            }
            Event::Trailers { stream, head } => {
                let reply = self.replies.entry(stream).or_default();
                (reply.trailers, reply.is_whole) = (list(&head), true);
                self.codec.recycle(head);
            }
            Event::Reset { stream, cause } => {
                self.replies.entry(stream).or_default().reset = Some(cause);
            }
            Event::Goaway { code } => self.goaway = Some(code),
            Event::Settings => self.has_settings = true,
            Event::Unacceptable { .. } | Event::Refused { .. } => {}
        }
    }

    /// Opens windows from now on, also for earlier data.
    pub fn release(&mut self) {
        self.holds_windows = false;
        for (stream, len) in std::mem::take(&mut self.unconsumed) {
            self.codec.consume(stream, len, now());
        }
    }

    /// Returns the reply on a stream, as far as it has arrived.
    pub fn so_far(&self, stream: u32) -> Reply {
        self.replies.get(&stream).cloned().unwrap_or_default()
    }

    /// Returns the complete reply on a stream, or the part before a reset.
    pub async fn reply(&mut self, stream: u32) -> Reply {
        self.until(|client| {
            let reply = client.replies.get(&stream);
            reply.is_some_and(|reply| reply.is_whole || reply.reset.is_some())
        })
        .await;
        self.replies.remove(&stream).unwrap()
    }

    /// Takes turns until `holds` returns true.
    pub async fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.turn().await, "the connection ends: {:?}", self.replies);
        }
    }

    /// Takes turns until the connection ends.
    pub async fn end(&mut self) {
        while self.turn().await {}
    }

    /// Reads while `other` runs.
    pub async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            let mut turn = std::pin::pin!(self.turn());
            let done = poll_fn(|context| {
                if let Poll::Ready(value) = other.as_mut().poll(context) {
                    return Poll::Ready(Some(value));
                }
                turn.as_mut().poll(context).map(|goes_on| {
                    assert!(goes_on, "the connection ends");
                    None
                })
            })
            .await;
            if let Some(value) = done {
                return value;
            }
        }
    }
}

/// Starts a task that writes to `link`. The task is necessary, because a partial write must not be
/// cancelled.
pub fn spawn_writer(link: Rc<Link>) -> UnboundedSender<Vec<u8>> {
    let (writing, mut written) = unbounded_channel::<Vec<u8>>();
    spawn_local(async move {
        while let Some(bytes) = written.recv().await {
            if link.write(&bytes).await.is_err() {
                return;
            }
        }
    });
    writing
}

fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

fn list(head: &Head) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    head.fields.iter().map(|field| (text(field.name), text(field.value))).collect()
}

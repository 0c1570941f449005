//! A scripted HTTP/2 server on the server role of the codec; the gateway under test uses the client
//! role.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_net::memory::{Destination, Link};
use forebay_wire::fields::Fields;
use forebay_wire::http2::{Config, Connection, ErrorCode, Event};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::spawn_local;

use crate::http2_client::spawn_writer;
use crate::world::World;

/// Address of the server.
pub const ADDRESS: &str = "10.0.0.1:3000";

/// A server that accepts connections.
pub struct Http2Backend(UnboundedReceiver<Link>);

/// A connection of the server.
pub struct Served {
    pub link: Rc<Link>,
    writing: UnboundedSender<Vec<u8>>,
    pub codec: Connection,
    input: Vec<u8>,
    pub asked: BTreeMap<u32, Asked>,
    /// Unfinished replies, and the number of their bytes that were sent.
    replies: BTreeMap<u32, (Vec<u8>, usize)>,
    /// True if data is read without opening its window.
    pub holds_windows: bool,
    unconsumed: Vec<(u32, usize)>,
    pub goaway: Option<ErrorCode>,
    pub has_ended: bool,
}

/// A request, as far as it has arrived.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub method: String,
    pub scheme: String,
    pub authority: String,
    pub path: String,
    pub protocol: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    pub is_whole: bool,
    pub reset: bool,
}

impl Asked {
    /// Returns the first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Returns a route to the server.
pub fn proxied(keys: &str) -> String {
    format!("[[site.route]]\npath = \"/*\"\n[site.route.proxy]\nto = \"h2c://{ADDRESS}\"\n{keys}\n")
}

impl Http2Backend {
    pub fn new(world: &World) -> Self {
        Self(world.gateway.network().listen(Destination::Tcp(ADDRESS.parse().unwrap())))
    }

    /// Returns the next connection.
    pub async fn accept(&mut self) -> Served {
        self.accept_with(Config::default()).await
    }

    pub async fn accept_with(&mut self, config: Config) -> Served {
        Served::over(self.link().await, config)
    }

    /// Returns the next connection, with nothing sent on it.
    pub async fn link(&mut self) -> Link {
        self.0.recv().await.expect("the gateway is there as long as the test")
    }

    /// Answers the first request on a new connection with this body. Returns the request.
    pub async fn answer(&mut self, body: &str) -> Asked {
        let mut served = self.accept().await;
        loop {
            served.turn().await;
            if let Some((id, asked)) = served.take_whole().pop() {
                served.reply(id, body);
                served.turn().await;
                return asked;
            }
        }
    }

    /// Returns true if a connection waits to be accepted.
    pub fn has_visitor(&self) -> bool {
        !self.0.is_empty()
    }

    /// Serves all connections with `answer`, which is called after each turn. Returns their number.
    pub fn serve(
        mut self,
        config: Config,
        answer: impl Fn(&mut Served, usize) + 'static,
    ) -> Rc<Cell<usize>> {
        let (count, answer) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(answer)));
        let counted = count.clone();
        spawn_local(async move {
            while let Some(link) = self.0.recv().await {
                let number = counted.get();
                counted.set(number + 1);
                let mut served = Served::over(link, config.clone());
                let answer = answer.clone();
                spawn_local(async move {
                    while !served.has_ended && served.turn().await {
                        answer.borrow()(&mut served, number);
                    }
                });
            }
        });
        count
    }
}

impl Served {
    pub fn over(link: Link, config: Config) -> Self {
        let link = Rc::new(link);
        Self {
            writing: spawn_writer(link.clone()),
            link,
            codec: Connection::server(config),
            input: Vec::new(),
            asked: BTreeMap::new(),
            replies: BTreeMap::new(),
            holds_windows: false,
            unconsumed: Vec::new(),
            goaway: None,
            has_ended: false,
        }
    }

    /// Returns the next complete request.
    pub async fn request(&mut self) -> (u32, Asked) {
        loop {
            let whole = self.asked.iter().find(|(_, asked)| asked.is_whole).map(|(id, _)| *id);
            if let Some(id) = whole {
                return (id, self.asked.remove(&id).unwrap());
            }
            assert!(self.turn().await, "the connection ends: {:?}", self.asked);
        }
    }

    /// Returns the complete requests so far.
    pub fn take_whole(&mut self) -> Vec<(u32, Asked)> {
        self.asked.extract_if(.., |_, asked| asked.is_whole).collect()
    }

    /// Takes turns until `holds` returns true.
    pub async fn until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.turn().await, "the connection ends: {:?}", self.asked);
        }
    }

    /// Sends a head.
    pub fn head(&mut self, stream: u32, status: u16, fields: &[(&str, &str)], end: bool) {
        let mut list = Fields::new();
        list.extend(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        self.codec.send_reply(stream, status, &list, end).expect("the stream is open");
    }

    /// Sends data now, which must fit into the windows.
    pub fn data(&mut self, stream: u32, data: &[u8], end: bool) {
        let sent = self.codec.send_data(stream, data, end, now()).unwrap();
        assert_eq!(sent, data.len(), "the window is large enough");
    }

    pub fn trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        let mut list = Fields::new();
        list.extend(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        self.codec.send_trailers(stream, &list).unwrap();
    }

    /// Sends a complete reply, as the windows allow.
    pub fn reply(&mut self, stream: u32, body: impl Into<Vec<u8>>) {
        let body = body.into();
        self.head(stream, 200, &[("content-length", &body.len().to_string())], body.is_empty());
        if !body.is_empty() {
            self.replies.insert(stream, (body, 0));
            self.go_on(stream);
        }
    }

    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        self.codec.reset(stream, code, now());
    }

    /// Sends raw bytes.
    pub fn raw(&mut self, bytes: impl Into<Vec<u8>>) {
        self.flush();
        let _ = self.writing.send(bytes.into());
    }

    fn go_on(&mut self, stream: u32) {
        let Some((body, sent)) = self.replies.get_mut(&stream) else { return };
        *sent += self.codec.send_data(stream, &body[*sent..], true, now()).unwrap_or_default();
    }

    /// Opens windows from now on, also for earlier data.
    pub fn release(&mut self) {
        self.holds_windows = false;
        for (stream, len) in std::mem::take(&mut self.unconsumed) {
            self.codec.consume(stream, len, now());
        }
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
                self.flush();
                return true;
            };
            self.handle(event, &input[at..]);
            at += step.consumed;
        }
    }

    fn handle(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head { stream, head, end } => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let list = head.fields.iter().map(|f| (text(f.name), text(f.value)));
                let asked = Asked {
                    method: text(head.bytes(head.method)),
                    scheme: text(head.bytes(head.scheme)),
                    authority: text(head.bytes(head.authority)),
                    path: text(head.bytes(head.path)),
                    protocol: text(head.bytes(head.protocol)),
                    fields: list.collect(),
                    is_whole: end,
                    ..Asked::default()
                };
                self.asked.insert(stream, asked);
                self.codec.recycle(head);
            }
            Event::Data { stream, data, end } => {
                if let Some(asked) = self.asked.get_mut(&stream) {
                    asked.body.extend_from_slice(&input[data.clone()]);
                    asked.is_whole = end;
                }
                if self.holds_windows {
                    self.unconsumed.push((stream, data.len()));
                } else {
                    self.codec.consume(stream, data.len(), now());
                }
            }
            Event::Reset { stream, .. } => {
                self.replies.remove(&stream);
                self.asked.entry(stream).or_default().reset = true;
            }
            Event::Goaway { code } => self.goaway = Some(code),
            Event::Unacceptable { rule, .. } => panic!("the gateway sends {rule}"),
            Event::Refused { rule, .. } => panic!("the gateway sends too much: {rule}"),
            Event::Trailers { stream, head } => {
                if let Some(asked) = self.asked.get_mut(&stream) {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    let list = head.fields.iter().map(|f| (text(f.name), text(f.value)));
                    (asked.trailers, asked.is_whole) = (list.collect(), true);
                }
                self.codec.recycle(head);
            }
            Event::Interim { .. } | Event::Settings => {}
        }
    }
}

fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

//! A scripted web server that speaks AJP, without the codec under test.

use crate::world::{Peer, World};

/// Number of bytes that a listener requests at a time: the maximum for a packet of 8192 bytes.
pub const DATA: usize = 8186;
pub const PING: &[u8] = b"\x12\x34\0\x01\x0a";
pub const PONG: &[u8] = b"AB\0\x01\x09";
pub const HELLO: &str = "[[site.route]]\nrespond = \"here\"\n";
pub const PROXIED: &str = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";
pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns a site with an AJP listener and these keys.
pub fn site(keys: &str, routes: &str) -> String {
    format!("[[site]]\nlisten = \"ajp://127.0.0.1:8009\"\n{keys}\n{routes}")
}

pub fn packet(payload: &[u8]) -> Vec<u8> {
    [&b"\x12\x34"[..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text, b"\0"].concat()
}

/// Returns a data packet.
pub fn data(bytes: &[u8]) -> Vec<u8> {
    packet(&[&(bytes.len() as u16).to_be_bytes(), bytes].concat())
}

/// A request from a web server.
pub struct Ask<'a> {
    /// Number of the method.
    pub method: u8,
    pub uri: &'a [u8],
    pub client: &'a [u8],
    pub server: &'a [u8],
    pub is_ssl: bool,
    pub fields: &'a [(&'a str, &'a str)],
    /// Attributes and other data before the end.
    pub attributes: Vec<u8>,
}

pub const GET: u8 = 2;
pub const HEAD: u8 = 3;
pub const POST: u8 = 4;

impl<'a> Ask<'a> {
    pub fn new(method: u8, uri: &'a str) -> Self {
        Self {
            method,
            uri: uri.as_bytes(),
            client: b"192.0.2.9",
            server: b"front",
            is_ssl: false,
            fields: &[("Host", "h")],
            attributes: Vec::new(),
        }
    }

    pub fn fields(mut self, fields: &'a [(&'a str, &'a str)]) -> Self {
        self.fields = fields;
        self
    }

    pub fn attribute(mut self, code: u8, value: &[u8]) -> Self {
        self.attributes.push(code);
        self.attributes.extend(text(value));
        self
    }

    pub fn named(mut self, name: &str, value: &str) -> Self {
        self.attributes.push(0x0a);
        self.attributes.extend(text(name.as_bytes()));
        self.attributes.extend(text(value.as_bytes()));
        self
    }

    pub fn packet(&self) -> Vec<u8> {
        let mut payload = vec![2, self.method];
        for part in [&b"HTTP/1.1"[..], self.uri, self.client, b"host.example", self.server] {
            payload.extend(text(part));
        }
        payload.extend([0, 81, u8::from(self.is_ssl)]);
        payload.extend((self.fields.len() as u16).to_be_bytes());
        for (name, value) in self.fields {
            payload.extend(text(name.as_bytes()));
            payload.extend(text(value.as_bytes()));
        }
        payload.extend(&self.attributes);
        payload.push(0xff);
        packet(&payload)
    }
}

/// A packet from a listener.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    Head(u16, Vec<(String, String)>),
    Chunk(Vec<u8>),
    WantsBody(usize),
    End(bool),
    Pong,
}

/// Returns the next packet; `None` if the connection has ended.
pub async fn next(peer: &mut Peer) -> Option<Sent> {
    let header = peer.exactly(4).await.ok()?;
    assert_eq!(header[..2], *b"AB");
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    assert!(length <= 8192 - 4, "no packet is larger than what was agreed on");
    let payload = peer.exactly(length).await.unwrap();
    let int = |at: usize| usize::from(u16::from_be_bytes([payload[at], payload[at + 1]]));
    Some(match payload[0] {
        3 => {
            assert_eq!((int(1) + 4, payload[length - 1]), (length, 0));
            Sent::Chunk(payload[3..length - 1].to_vec())
        }
        4 => Sent::Head(int(1) as u16, fields(&payload)),
        5 => Sent::End(payload[1] == 1),
        6 => Sent::WantsBody(int(1)),
        9 => Sent::Pong,
        other => panic!("a packet of type {other}"),
    })
}

fn fields(payload: &[u8]) -> Vec<(String, String)> {
    const NAMES: [&str; 7] = [
        "content-type",
        "content-language",
        "content-length",
        "date",
        "last-modified",
        "location",
        "set-cookie",
    ];
    let mut at = 3;
    let int = |at: usize| usize::from(u16::from_be_bytes([payload[at], payload[at + 1]]));
    let text = |at: &mut usize| {
        let length = int(*at);
        if length > 0xa000 {
            *at += 2;
            return NAMES[length - 0xa001].to_owned();
        }
        *at += length + 3;
        assert_eq!(payload[*at - 1], 0);
        String::from_utf8(payload[*at - 1 - length..*at - 1].to_vec()).unwrap()
    };
    text(&mut at);
    at += 2;
    (0..int(at - 2)).map(|_| (text(&mut at).to_lowercase(), text(&mut at))).collect()
}

/// A complete reply: status, fields, body, and true if another request may follow.
pub struct Reply {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub reuse: bool,
}

/// Reads a reply, and sends pieces of `body` on request.
pub async fn reply(peer: &mut Peer, mut body: &[u8]) -> Reply {
    let mut reply = Reply { status: 0, fields: Vec::new(), body: Vec::new(), reuse: false };
    loop {
        match next(peer).await.expect("a whole reply comes") {
            Sent::Head(status, fields) => {
                assert_eq!(reply.status, 0, "one head");
                (reply.status, reply.fields) = (status, fields);
            }
            Sent::Chunk(chunk) => {
                assert!(reply.status > 0 && !chunk.is_empty());
                reply.body.extend(chunk);
            }
            Sent::WantsBody(length) => {
                let (piece, rest) = body.split_at(length.min(body.len()));
                peer.send(if piece.is_empty() { packet(b"") } else { data(piece) }).await;
                body = rest;
            }
            Sent::End(reuse) => {
                reply.reuse = reuse;
                return reply;
            }
            Sent::Pong => panic!("nobody has pinged"),
        }
    }
}

impl Reply {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }
}

pub async fn ask(world: &World, ask: &Ask<'_>) -> Reply {
    let mut peer = world.client();
    peer.send(ask.packet()).await;
    reply(&mut peer, b"").await
}

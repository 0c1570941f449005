//! The client's end of WebSockets.

use forebay_testkit::http::{Client, Reply};

use super::Forebay;

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// The client's end of a WebSocket.
pub struct Socket(pub Client);

impl Socket {
    pub fn open(forebay: &Forebay, path: &str, fields: &str) -> (Self, Reply) {
        let mut client = forebay.connect();
        client.send(handshake(path, fields));
        let reply = client.reply();
        (Self(client), reply)
    }

    pub fn accepted(forebay: &Forebay, path: &str) -> Self {
        let (socket, reply) = Self::open(forebay, path, "");
        assert_eq!(reply.status, 101, "{path}");
        socket
    }

    /// Sends a frame; `first` has the flags and the opcode.
    pub fn frame(&mut self, first: u8, data: &[u8]) {
        self.0.send(masked(first, data));
    }

    pub fn message(&mut self, opcode: u8, data: &[u8]) {
        self.frame(0x80 | opcode, data);
    }

    /// Returns opcode and content of the next frame.
    pub fn read(&mut self) -> (u8, Vec<u8>) {
        let head = self.0.bytes(2);
        assert_eq!(head[0] & 0xf0, 0x80, "no frame is part of a message");
        let size = match head[1] {
            126 => u16::from_be_bytes(self.0.bytes(2).try_into().unwrap()).into(),
            127 => u64::from_be_bytes(self.0.bytes(8).try_into().unwrap()) as usize,
            size => usize::from(size),
        };
        (head[0] & 15, self.0.bytes(size))
    }

    /// Reads a close frame with this code, and the end of the connection.
    pub fn is_closed_with(&mut self, code: u16) {
        let (opcode, data) = self.read();
        assert_eq!((opcode, data.get(..2)), (CLOSE, Some(&code.to_be_bytes()[..])));
        self.0.try_send(&masked(0x80 | CLOSE, &data)).ok();
        assert_eq!(self.0.rest(), b"");
    }
}

fn handshake(path: &str, fields: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
    )
}

pub fn masked(first: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match data.len() {
        size @ 0..126 => frame.push(0x80 | size as u8),
        size @ 126..65536 => {
            frame.push(0x80 | 126);
            frame.extend((size as u16).to_be_bytes());
        }
        size => {
            frame.push(0x80 | 127);
            frame.extend((size as u64).to_be_bytes());
        }
    }
    let key = [7, 200, 31, 4];
    frame.extend(key);
    frame.extend(data.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

/// Frames that a server must refuse, each with its name and the code of the server's close frame. `most`
/// is the size of the largest message.
pub fn forbidden_frames(most: usize) -> Vec<(&'static str, Vec<u8>, u16)> {
    let large = [&[0x80 | BINARY, 0xff][..], &(1u64 << 40).to_be_bytes()].concat();
    let over = masked(0x80 | BINARY, &vec![0; most + 1]);
    let in_parts = [masked(BINARY, &vec![0; most]), masked(0x80, b"x")].concat();
    vec![
        ("too large in its head", large, 1009),
        ("too large", over[..20].to_vec(), 1009),
        ("too large in parts", in_parts, 1009),
        ("not masked", vec![0x80 | TEXT, 1, b'x'], 1002),
        ("reserved bits", masked(0xc0 | TEXT, b"x"), 1002),
        ("an unknown opcode", masked(0x80 | 3, b"x"), 1002),
        ("an unknown control opcode", masked(0x80 | 11, b"x"), 1002),
        ("a ping in parts", masked(PING, b"x"), 1002),
        ("a long ping", masked(0x80 | PING, &[b'x'; 126]), 1002),
        ("a part without a start", masked(0x80, b"x"), 1002),
        (
            "a start within a message",
            [masked(TEXT, b"x"), masked(0x80 | TEXT, b"y")].concat(),
            1002,
        ),
        ("a close of one byte", masked(0x80 | CLOSE, b"x"), 1002),
        ("a reserved code", masked(0x80 | CLOSE, &1005u16.to_be_bytes()), 1002),
        ("no UTF-8", masked(0x80 | TEXT, b"\xff"), 1007),
    ]
}

//! Server sides of protocols for the simulation.

use std::collections::VecDeque;
use std::time::Instant;

/// Output of a server: pieces of a stream, or datagrams.
pub type ServerOutput = VecDeque<Vec<u8>>;

/// Server side of one connection.
pub trait Codec: Send {
    /// Processes received bytes. Appends output that must not wait for a reply. Returns the IDs of
    /// the requests that are now complete.
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32>;

    /// Appends the reply to a request.
    fn reply(&mut self, id: u32, out: &mut ServerOutput);

    /// Returns the time at which the caller must call [`Codec::expire`], or `None` if there is no
    /// such time.
    fn timeout(&mut self) -> Option<Instant> {
        None
    }

    /// Does the work that is due now, such as the resending of lost data.
    fn expire(&mut self, _out: &mut ServerOutput) {}
}

/// HTTP/1.1 without bodies of requests.
#[derive(Default)]
pub struct Http1Codec(Vec<u8>);

/// WebSocket with short messages.
#[derive(Default)]
pub struct WebSocketCodec {
    unread: Vec<u8>,
    is_open: bool,
}

/// FastCGI, for one request at a time or several.
#[derive(Default)]
pub struct FastcgiCodec(Vec<u8>);

/// HTTP/2 with prior knowledge. Heads of requests are not decoded. Heads of replies need no
/// compression state.
#[derive(Default)]
pub struct Http2Codec {
    unread: Vec<u8>,
    is_open: bool,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Removes a head from the received bytes. Returns false if it is not complete.
fn take_head(unread: &mut Vec<u8>) -> bool {
    let Some(at) = memchr::memmem::find(unread, b"\r\n\r\n") else { return false };
    unread.drain(..at + 4);
    true
}

impl Codec for Http1Codec {
    fn receive(&mut self, bytes: &[u8], _: &mut ServerOutput) -> Vec<u32> {
        self.0.extend_from_slice(bytes);
        let mut ids = Vec::new();
        while take_head(&mut self.0) {
            ids.push(0);
        }
        ids
    }

    fn reply(&mut self, _: u32, out: &mut ServerOutput) {
        out.push_back(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n".to_vec());
    }
}

impl Codec for WebSocketCodec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.unread.extend_from_slice(bytes);
        if !self.is_open && take_head(&mut self.unread) {
            self.is_open = true;
            let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            out.push_back(head.into());
        }
        let mut ids = Vec::new();
        while self.is_open && self.unread.len() >= 6 {
            // A frame of a client has two bytes, a masking key of four, and its payload.
            self.unread.drain(..6 + usize::from(self.unread[1] & 0x7f));
            ids.push(0);
        }
        ids
    }

    fn reply(&mut self, _: u32, out: &mut ServerOutput) {
        out.push_back(b"\x81\x02ok".to_vec());
    }
}

impl Codec for FastcgiCodec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.0.extend_from_slice(bytes);
        let mut ids = Vec::new();
        while self.0.len() >= 8 {
            let word = |at: usize| u16::from_be_bytes([self.0[at], self.0[at + 1]]);
            let (kind, id, length) = (self.0[1], word(2), word(4));
            self.0.drain(..8 + usize::from(length));
            match kind {
                // The end of STDIN ends a request.
                5 if length == 0 => ids.push(u32::from(id)),
                // Answers GET_VALUES.
                9 => out.push_back(b"\x01\x0a\0\0\0\x12\0\0\x0f\x01FCGI_MPXS_CONNS1".to_vec()),
                _ => {}
            }
        }
        ids
    }

    fn reply(&mut self, id: u32, out: &mut ServerOutput) {
        let [.., high, low] = id.to_be_bytes();
        let stdout = b"Status: 200 OK\r\n\r\nok\n";
        let head = [1, 6, high, low, 0, stdout.len() as u8, 0, 0];
        let end = [1, 3, high, low, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        out.push_back([&head[..], stdout, &end].concat());
    }
}

impl Codec for Http2Codec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.unread.extend_from_slice(bytes);
        if !self.is_open && self.unread.starts_with(PREFACE) {
            self.unread.drain(..PREFACE.len());
            self.is_open = true;
            out.push_back(vec![0, 0, 0, 4, 0, 0, 0, 0, 0]);
        }
        let mut ids = Vec::new();
        while self.is_open && self.unread.len() >= 9 {
            let frame = &self.unread;
            let length = usize::from(frame[1]) << 8 | usize::from(frame[2]);
            let (kind, flags) = (frame[3], frame[4]);
            let id = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
            self.unread.drain(..9 + length);
            match kind {
                1 => ids.push(id),
                // Acknowledges SETTINGS.
                4 if flags & 1 == 0 => out.push_back(vec![0, 0, 0, 4, 1, 0, 0, 0, 0]),
                _ => {}
            }
        }
        ids
    }

    fn reply(&mut self, id: u32, out: &mut ServerOutput) {
        let id = id.to_be_bytes();
        // The reply is HEADERS with `:status: 200`, and DATA with the end of the stream.
        let head = [&[0, 0, 1, 1, 4][..], &id, &[0x88]].concat();
        out.push_back([&head[..], &[0, 0, 3, 0, 1], &id, b"ok\n"].concat());
    }
}

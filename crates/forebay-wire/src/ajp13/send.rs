//! Encoder of replies, as a container sends them.

use super::codes::REPLY_FIELDS;
use super::packet::Writer;
use super::{AjpError, MOST_PACKET, TO_FRONT, kind, most_chunk};

/// Encoder of a reply head. [`Self::finish`] completes the head.
#[derive(Debug)]
pub struct SendHeaders<'a> {
    writer: Writer<'a>,
    /// Position of the field count in the buffer.
    count_at: usize,
    count: usize,
}

impl<'a> SendHeaders<'a> {
    /// Starts the head of a reply at the end of `out`. `message` is mandatory, because mod_jk fails
    /// without a message.
    pub fn new(out: &'a mut Vec<u8>, status: u16, message: &[u8]) -> Self {
        let mut writer = Writer::new(out, TO_FRONT, kind::SEND_HEADERS);
        writer.int(status);
        writer.text(message);
        let count_at = writer.out.len();
        writer.int(0);
        Self { writer, count_at, count: 0 }
    }

    /// Adds a field. The caller guarantees that name and value are valid.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.count += 1;
        self.writer.field(REPLY_FIELDS, name, value);
    }

    /// Completes the head. If the head has a text that is too long, or more than `packet_size`
    /// bytes, removes the head from the buffer and returns an error.
    pub fn finish(mut self, packet_size: usize) -> Result<(), AjpError> {
        // No packet has room for more fields than the number can express.
        self.writer.set_int(self.count_at, self.count as u16);
        self.writer.finish(packet_size)
    }
}

/// Appends a piece of a body in as many packets as needed. An empty piece makes the web server send
/// everything so far to the client.
pub fn append_body_chunk(out: &mut Vec<u8>, mut data: &[u8], packet_size: usize) {
    loop {
        let (piece, rest) = data.split_at(data.len().min(most_chunk(packet_size)));
        out.extend_from_slice(&chunk_header(piece.len()));
        out.extend_from_slice(piece);
        out.push(0);
        if rest.is_empty() {
            return;
        }
        data = rest;
    }
}

/// Returns the bytes that precede `length` bytes of a reply body. `length` is at most
/// [`most_chunk`]. The caller appends a NUL after the body bytes.
pub fn chunk_header(length: usize) -> [u8; 7] {
    debug_assert!(length <= most_chunk(MOST_PACKET), "a packet has room for it");
    let [high, low] = (length as u16).to_be_bytes();
    let [whole_high, whole_low] = (length as u16 + 4).to_be_bytes();
    [TO_FRONT[0], TO_FRONT[1], whole_high, whole_low, kind::SEND_BODY_CHUNK, high, low]
}

/// Appends a packet that requests `length` bytes of the request body, or 65,535 if `length` is
/// larger.
pub fn append_get_body_chunk(out: &mut Vec<u8>, length: usize) {
    let [high, low] = (length.min(usize::from(u16::MAX)) as u16).to_be_bytes();
    out.extend_from_slice(&[TO_FRONT[0], TO_FRONT[1], 0, 3, kind::GET_BODY_CHUNK, high, low]);
}

/// Appends the end of a reply. If `reuse` is true, another request may use the connection.
pub fn append_end(out: &mut Vec<u8>, reuse: bool) {
    out.extend_from_slice(&[TO_FRONT[0], TO_FRONT[1], 0, 2, kind::END_RESPONSE, u8::from(reuse)]);
}

//! A stream of AJP 1.3: a connection of a web server, which carries one request at a time.
//!
//! Replies are sent as packets. If a request's body has a known length, the web server sends the
//! first packet of the body unasked. Forebay requests each further packet when the origin reads the
//! body.
//!
//! Specification: <https://tomcat.apache.org/connectors-doc/ajp/ajpv13a.html>.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice};
use std::time::Duration;

use forebay_net::socket::{BUFFER, Socket};
use forebay_wire::ClientAddress;
use forebay_wire::ajp13::{AjpError, SendHeaders, chunk_header, most_chunk, parse_data};
use forebay_wire::fields;
use forebay_wire::http1::RequestFraming;
use tokio::sync::Mutex;

use crate::part::{Accepted, Part, SharedState};

/// Maximum size in bytes of a body that is copied after the reply's head, so that one piece
/// contains both.
pub const COPIED: usize = 1024;
/// Number of packets of a file that are sent at a time.
pub const FILE_PACKETS: usize = 8;

/// An AJP connection with the state of its current request.
pub struct AjpStream {
    /// The connection's socket.
    pub socket: Socket,
    /// Addresses and listener of the connection.
    pub accepted: Accepted,
    /// Maximum packet size in bytes, including the header.
    pub packet_size: usize,
    /// The client that the web server names.
    client: Cell<ClientAddress>,
    /// Bytes that were read and not decoded yet.
    input: RefCell<Vec<u8>>,
    /// Remaining bytes of the body, if its length is known.
    left: Cell<Option<u64>>,
    /// True if a requested data packet has not arrived yet.
    pub is_awaited: Cell<bool>,
    /// True if the web server has marked the end of the body.
    pub has_body_end: Cell<bool>,
    /// True if the connection may carry another request.
    pub keep_alive: Cell<bool>,
    /// True if the end of the reply has been written.
    pub has_ended: Cell<bool>,
    /// True if a packet was written only in part.
    pub is_torn: Cell<bool>,
    /// Locked during each write, so that reply packets and requests for body packets do not mix.
    pub turn: Mutex<()>,
    pub(crate) shared: SharedState,
}

impl AjpStream {
    /// Creates a connection without a request. `input` contains bytes that were already read.
    pub fn new(socket: Socket, accepted: Accepted, packet_size: usize, input: Vec<u8>) -> Self {
        Self {
            client: Cell::new(accepted.peer),
            socket,
            accepted,
            packet_size,
            input: RefCell::new(input),
            left: Cell::new(None),
            is_awaited: Cell::new(false),
            has_body_end: Cell::new(true),
            keep_alive: Cell::new(true),
            has_ended: Cell::new(false),
            is_torn: Cell::new(false),
            turn: Mutex::new(()),
            shared: SharedState::default(),
        }
    }

    /// Begins a request from `client`. `framing` determines the end of its body.
    pub fn begin(&self, client: ClientAddress, framing: RequestFraming) {
        self.client.set(client);
        self.left.set(match framing {
            RequestFraming::Length(length) => Some(length),
            RequestFraming::None | RequestFraming::Chunked => None,
        });
        self.is_awaited.set(matches!(framing, RequestFraming::Length(_)));
        self.has_body_end.set(framing == RequestFraming::None);
        self.has_ended.set(false);
        self.keep_alive.set(true);
    }

    /// Returns the client that the web server names.
    pub fn client(&self) -> ClientAddress {
        self.client.get()
    }

    /// Returns the maximum packet size in bytes, including the header.
    pub fn packet_size(&self) -> usize {
        self.packet_size
    }

    /// Returns the bytes that were read and not decoded yet.
    pub fn input(&self) -> &RefCell<Vec<u8>> {
        &self.input
    }

    /// Returns true if the complete reply was written and announced that another request may
    /// follow.
    pub fn keeps_alive(&self) -> bool {
        self.has_ended.get() && self.keep_alive.get() && !self.is_torn.get()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    pub(crate) fn set_keep_alive(&self, keep_alive: bool) {
        self.keep_alive.set(keep_alive);
    }

    /// Waits for bytes and appends them to the input. Returns 0 if the web server has closed.
    pub async fn receive(&self) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            let read = self.receive_now();
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }

    /// Reads like [`Self::receive`], but fails with `WouldBlock` if nothing has arrived.
    pub fn receive_now(&self) -> io::Result<usize> {
        let mut input = self.input.borrow_mut();
        if input.capacity() == 0 {
            *input = self.accepted.thread.take_buffer();
        }
        if input.capacity() - input.len() < BUFFER / 8 {
            input.reserve(BUFFER);
        }
        self.socket.read_now(&mut input)
    }

    /// Drops `length` bytes from the start of the input. If the input is then empty, returns its
    /// buffer to the thread.
    pub fn consume(&self, length: usize) {
        let mut input = self.input.borrow_mut();
        if length < input.len() {
            input.drain(..length);
            return;
        }
        let mut buffer = std::mem::take(&mut *input);
        buffer.clear();
        self.accepted.thread.keep_buffer(buffer);
    }

    /// Reads and drops the data packet that Forebay has requested, because the next request follows
    /// this packet. Waits at most `limit`. Does nothing if no data packet is outstanding.
    pub async fn skip_data(&self, limit: Duration) -> io::Result<()> {
        if self.is_awaited.get() {
            self.read_packet(&mut Vec::new(), limit).await?;
        }
        Ok(())
    }

    /// Appends the payload of the requested data packet to `buffer` and returns its length. Returns
    /// 0 at the end of the body.
    pub async fn read_packet(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        self.socket.limit_read(limit);
        let data = loop {
            let found = parse_data(&self.input.borrow(), self.packet_size);
            match found.map_err(malformed)? {
                Some(data) => break data,
                None if self.receive().await? == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                None => {}
            }
        };
        self.socket.unlimit_read();
        let length = data.range.len();
        if let Some(left) = self.left.get() {
            let left = left.checked_sub(length as u64);
            self.left.set(Some(left.ok_or_else(|| malformed(AjpError::ContentLength))?));
        }
        buffer.extend_from_slice(&self.input.borrow()[data.range]);
        self.consume(data.len);
        self.is_awaited.set(false);
        if length == 0 {
            self.has_body_end.set(true);
        }
        Ok(length)
    }

    /// Appends the head of a reply as a packet. Fails if the head does not fit in a packet.
    pub fn append_head(&self, out: &mut Vec<u8>, part: &Part<'_>) -> Result<(), AjpError> {
        let line = &part.gathered[..part.fields_at];
        // The reason follows `HTTP/1.1 200 `.
        let reason = line.get(13..).unwrap_or_default().trim_ascii_end();
        let mut head = SendHeaders::new(out, part.status, reason);
        for field in fields::of_lines(&part.gathered[part.fields_at..part.body_at]) {
            head.field(field.name, field.value);
        }
        head.finish(self.packet_size)
    }
}

pub fn malformed(error: AjpError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Packet headers and ends for the pieces of a body.
pub struct PacketFraming {
    most: usize,
    full: [u8; 8],
    rests: [[u8; 8]; 2],
}

impl PacketFraming {
    /// Prepares the headers for these two pieces, in packets of `packet_size` bytes.
    pub fn new(pieces: [&[u8]; 2], packet_size: usize) -> Self {
        let most = most_chunk(packet_size);
        let header = |length: usize| {
            // The first byte is the NUL that ends the previous packet.
            let mut header = [0; 8];
            header[1..].copy_from_slice(&chunk_header(length));
            header
        };
        Self { most, full: header(most), rests: pieces.map(|piece| header(piece.len() % most)) }
    }

    /// Returns `head`, the packets of both pieces, and `end`, in this order.
    pub fn pieces<'a>(
        &'a self,
        head: &'a [u8],
        pieces: [&'a [u8]; 2],
        end: &'a [u8],
    ) -> Vec<IoSlice<'a>> {
        let mut out = vec![IoSlice::new(head)];
        let mut is_first = true;
        for (piece, rest) in pieces.into_iter().zip(&self.rests) {
            for chunk in piece.chunks(self.most) {
                let header = if chunk.len() == self.most { &self.full } else { rest };
                let from = usize::from(std::mem::take(&mut is_first));
                out.push(IoSlice::new(&header[from..]));
                out.push(IoSlice::new(chunk));
            }
        }
        if !is_first {
            out.push(IoSlice::new(b"\0"));
        }
        out.push(IoSlice::new(end));
        out
    }
}

impl<'a> Part<'a> {
    /// Creates a part without a head.
    pub fn of_body(data: &'a [u8], last: Option<&'a [u8]>) -> Self {
        Self {
            status: 0,
            fields_at: 0,
            gathered: b"",
            body_at: 0,
            has_head: false,
            data,
            is_chunked: false,
            may_wait: false,
            last,
        }
    }
}

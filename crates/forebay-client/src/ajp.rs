//! AJP 1.3 client, in the role of a web server. A connection is reused if the container's end
//! packet allows it.

use std::sync::Arc;

use forebay_wire::ajp13::{
    END_OF_BODY, LEAST_PACKET, MOST_PACKET, PacketEvent, ReplyDecoder, ReplyHead, data_header,
    most_data,
};

use crate::{Answer, Malformed, Receipt, Session, Sink};

/// AJP request, as [`crate::ajp_request`] returns it.
#[derive(Debug, Default)]
pub struct AjpRequest {
    /// The head, and the first data packet, which a container receives without asking for it.
    pub(crate) packets: Vec<u8>,
    /// Rest of the body. It is sent in pieces, as the container asks for them.
    pub(crate) rest: Vec<u8>,
    /// True if the method is HEAD.
    pub(crate) to_head: bool,
    /// False if the connection is not used again after the reply.
    pub(crate) keepalive: bool,
}

/// Connection to a servlet container.
#[derive(Debug)]
pub struct AjpClient<S> {
    request: Arc<AjpRequest>,
    /// Data packet that the container asked for.
    packet: Vec<u8>,
    /// Number of bytes written of the request's `packets`, and of `packet`.
    written: (usize, usize),
    /// Number of bytes of `AjpRequest::rest` that were put into packets.
    sent: usize,
    decoder: ReplyDecoder,
    head: ReplyHead,
    body: u64,
    sink: S,
}

impl<S: Sink> AjpClient<S> {
    /// Creates a session that sends `request` in each exchange.
    pub fn new(request: Arc<AjpRequest>, sink: S) -> Self {
        Self {
            request,
            packet: Vec::new(),
            written: (0, 0),
            sent: 0,
            decoder: ReplyDecoder::new(MOST_PACKET),
            head: ReplyHead::default(),
            body: 0,
            sink,
        }
    }

    /// Appends a data packet with the next bytes of the body, at most `requested` bytes. After the
    /// last byte, appends an empty packet, which ends the body.
    fn append_packet(&mut self, requested: usize) {
        let rest = &self.request.rest[self.sent..];
        let data = &rest[..rest.len().min(requested).min(most_data(LEAST_PACKET))];
        if data.is_empty() {
            self.packet.extend_from_slice(END_OF_BODY);
            return;
        }
        self.packet.extend_from_slice(&data_header(data.len()));
        self.packet.extend_from_slice(data);
        self.sent += data.len();
    }

    fn answer(&self, reuse: bool) -> Result<Answer, Malformed> {
        let has_body = !self.request.to_head && !matches!(self.head.status, 204 | 304);
        if has_body && self.head.content_length.is_some_and(|length| length != self.body) {
            return Err(Malformed::Length);
        }
        Ok(Answer { status: self.head.status, reusable: reuse && self.request.keepalive })
    }
}

impl<S: Sink> Session for AjpClient<S> {
    type Sink = S;
    type Request = Arc<AjpRequest>;

    fn set_request(&mut self, request: &Arc<AjpRequest>) {
        self.request = request.clone();
    }

    fn start(&mut self) {
        self.written = (0, 0);
        self.sent = 0;
        self.packet.clear();
        self.decoder = ReplyDecoder::new(MOST_PACKET);
        self.body = 0;
        self.sink.begin();
    }

    fn output(&self) -> &[u8] {
        let first = &self.request.packets[self.written.0..];
        if first.is_empty() { &self.packet[self.written.1..] } else { first }
    }

    fn wrote(&mut self, n: usize) {
        if self.written.0 < self.request.packets.len() {
            self.written.0 += n;
            return;
        }
        self.written.1 += n;
        if self.written.1 == self.packet.len() {
            self.packet.clear();
            self.written.1 = 0;
        }
    }

    /// Decodes packets until all bytes are consumed, or until the reply is complete. If the
    /// container asks for more of the body, adds the next packet of the body to the output.
    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let mut at = 0;
        loop {
            let step =
                self.decoder.decode(&bytes[at..], &mut self.head).map_err(Malformed::Packet)?;
            let start = at;
            at += step.consumed;
            match step.event {
                Some(PacketEvent::Head) if self.sink.wants_fields() => {
                    for field in &self.head.fields {
                        self.sink.field(field.name, field.value);
                    }
                }
                Some(PacketEvent::Body(range)) => {
                    self.body += range.len() as u64;
                    self.sink.body(&bytes[start..][range]);
                }
                Some(PacketEvent::WantsBody(requested)) => self.append_packet(requested),
                Some(PacketEvent::End { reuse }) => {
                    return Ok(Receipt { consumed: at, answer: Some(self.answer(reuse)?) });
                }
                Some(PacketEvent::Head | PacketEvent::Flush) => {}
                None => return Ok(Receipt { consumed: at, answer: None }),
            }
        }
    }

    fn closed(&mut self) -> Option<Answer> {
        None
    }

    fn status(&self) -> u16 {
        if self.decoder.has_head() { self.head.status } else { 0 }
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}

//! WebSocket client (RFC 6455). An exchange is one message to the server and one message back, as
//! from an echo server. The first exchange of a connection includes the handshake.

use std::sync::Arc;

use forebay_wire::http1::{Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::reply::{ReplyReader as Heads, ReplyStep};
use forebay_wire::websocket::{Decoder, FrameEvent, MessageKind, append_masked};

use crate::http1::malformed;
use crate::{Answer, Malformed, Receipt, Session, Sink};

/// `Sec-WebSocket-Key` of every handshake: the example of RFC 6455, section 1.3. The key only
/// proves that the server understands the protocol, so it may be constant.
pub const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Status of the handshake's reply. Sessions report it for each message too, because WebSocket
/// messages have no status.
const SWITCHING_PROTOCOLS: u16 = 101;

/// Handshake request, and the message that each exchange sends.
#[derive(Clone, Debug)]
pub struct WebSocketRequest {
    /// HTTP/1.1 request of the handshake.
    pub handshake: Arc<[u8]>,
    /// Frame with the message.
    frame: Arc<[u8]>,
}

/// WebSocket connection.
#[derive(Debug)]
pub struct WebSocket<S> {
    request: WebSocketRequest,
    keepalive: bool,
    /// True after the handshake.
    is_open: bool,
    /// Bytes to write. The first `written` of them are already written.
    output: Vec<u8>,
    written: usize,
    /// Start of a pong at the end of `output`.
    pong: Option<usize>,
    heads: Heads<ResponseParser>,
    decoder: Decoder,
    status: u16,
    sink: S,
}

impl WebSocketRequest {
    /// Creates a request from its handshake and its message. The message is sent as text if it is
    /// UTF-8, else as binary data.
    pub fn new(handshake: Arc<[u8]>, message: &[u8]) -> Self {
        let kind = if std::str::from_utf8(message).is_ok() {
            MessageKind::Text
        } else {
            MessageKind::Binary
        };
        let mut frame = Vec::new();
        // A fixed masking key makes all frames identical, so the frame is encoded only once. Random
        // keys protect proxies from scripts in a browser (RFC 6455, section 10.3), but this client
        // runs no scripts.
        append_masked(&mut frame, kind, message, MASK);
        Self { handshake, frame: frame.into() }
    }
}

/// Masking key of all frames.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

impl<S: Sink> WebSocket<S> {
    /// Creates a session that sends the message of `request` in each exchange. If `keepalive` is
    /// false, each exchange needs a new connection.
    pub fn new(request: WebSocketRequest, keepalive: bool, sink: S) -> Self {
        Self {
            request,
            keepalive,
            is_open: false,
            output: Vec::new(),
            written: 0,
            pong: None,
            heads: heads(),
            decoder: Decoder::default(),
            status: 0,
            sink,
        }
    }

    /// Reads the reply to the handshake. Returns the number of bytes consumed, and the answer if
    /// the server refuses the handshake.
    fn read_handshake(&mut self, bytes: &[u8]) -> Result<(usize, Option<Answer>), Malformed> {
        let mut at = 0;
        let mut head = ResponseHead::default();
        loop {
            match self.heads.read(&bytes[at..], &mut head).map_err(malformed)? {
                ReplyStep::Partial => return Ok((at, None)),
                ReplyStep::Interim(len) => at += len,
                ReplyStep::Final(len) if head.status == SWITCHING_PROTOCOLS => {
                    let bytes = &bytes[at..at + len];
                    let accept = head.fields.iter().find(|field| {
                        field.name.of(bytes).eq_ignore_ascii_case(b"sec-websocket-accept")
                    });
                    if accept.is_none_or(|field| field.value.of(bytes) != ACCEPT) {
                        return Err(Malformed::Accept);
                    }
                    self.is_open = true;
                    self.output.extend_from_slice(&self.request.frame);
                    return Ok((at + len, None));
                }
                // Do not read the body of a refusal: the refused connection is not reusable, so the
                // caller closes it.
                ReplyStep::Final(_) => {
                    self.status = head.status;
                    let answer = Answer { status: head.status, reusable: false };
                    return Ok((bytes.len(), Some(answer)));
                }
            }
        }
    }
}

impl<S> WebSocket<S> {
    /// Appends the answer to a ping. Replaces an earlier answer if no byte of that answer has been
    /// written (RFC 6455, section 5.5.3). Otherwise, the pings of a server that reads nothing would
    /// make the output grow.
    fn add_pong(&mut self, payload: &[u8]) {
        if let Some(unsent) = self.pong.filter(|&pong| pong >= self.written) {
            self.output.truncate(unsent);
        }
        self.pong = Some(self.output.len());
        append_masked(&mut self.output, MessageKind::Pong, payload, MASK);
    }
}

fn heads() -> Heads<ResponseParser> {
    Heads::new(ResponseParser::new(Http1Limits::default(), false))
}

impl<S: Sink> Session for WebSocket<S> {
    type Sink = S;
    type Request = WebSocketRequest;

    fn set_request(&mut self, request: &WebSocketRequest) {
        self.request = request.clone();
    }

    fn connect(&mut self) {
        (self.is_open, self.written, self.pong) = (false, 0, None);
        self.output.clear();
        self.output.extend_from_slice(&self.request.handshake);
        (self.heads, self.decoder) = (heads(), Decoder::default());
    }

    fn start(&mut self) {
        self.status = 0;
        self.sink.begin();
        if self.is_open {
            self.output.extend_from_slice(&self.request.frame);
            self.pong = None;
        }
    }

    fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    fn wrote(&mut self, n: usize) {
        self.written += n;
        if self.written == self.output.len() {
            self.output.clear();
            (self.written, self.pong) = (0, None);
        }
    }

    fn has_late_output(&self) -> bool {
        // After the complete reply, the output can only contain a pong.
        !self.output.is_empty()
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let mut at = 0;
        if !self.is_open {
            let (consumed, refusal) = self.read_handshake(bytes)?;
            if refusal.is_some() || !self.is_open {
                return Ok(Receipt { consumed, answer: refusal });
            }
            at = consumed;
        }
        let mut answer = None;
        loop {
            let mut decoder = self.decoder.clone();
            let step = decoder.decode(&bytes[at..]).map_err(Malformed::Frame)?;
            // Each exchange has one reply, so a second message is left unconsumed.
            if answer.is_some() && matches!(step.event, Some(FrameEvent::Data { .. })) {
                return Ok(Receipt { consumed: at, answer });
            }
            self.decoder = decoder;
            let start = at;
            at += step.consumed;
            match step.event {
                Some(FrameEvent::Data { data, is_end }) => {
                    self.sink.body(&bytes[start..][data]);
                    if is_end {
                        self.status = SWITCHING_PROTOCOLS;
                        let reusable = self.keepalive;
                        answer = Some(Answer { status: SWITCHING_PROTOCOLS, reusable });
                    }
                }
                Some(FrameEvent::Ping(payload)) => self.add_pong(&bytes[start..][payload]),
                Some(FrameEvent::Pong) => {}
                // The server has sent its whole message before the close frame, so the exchange
                // succeeds.
                Some(FrameEvent::Close(_)) if answer.is_some() => {
                    let answer = answer.map(|answer| Answer { reusable: false, ..answer });
                    return Ok(Receipt { consumed: at, answer });
                }
                Some(FrameEvent::Close(code)) => return Err(Malformed::Closed(code)),
                None => return Ok(Receipt { consumed: at, answer }),
            }
        }
    }

    fn closed(&mut self) -> Option<Answer> {
        None
    }

    fn status(&self) -> u16 {
        self.status
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}

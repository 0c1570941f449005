//! WebSocket frames for the client's side (RFC 6455, section 5):
//! <https://www.rfc-editor.org/rfc/rfc6455#section-5>
//!
//! Extensions are not supported, so the reserved bits must be zero.

use std::fmt;
use std::ops::Range;

/// Kind of a message that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8 text.
    Text,
    /// Any bytes.
    Binary,
    /// Answer to a ping.
    Pong,
    /// End of the connection.
    Close,
}

/// Decoder of the frames that a server sends.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    /// Number of bytes of the current data frame's payload that have not arrived.
    left: u64,
    /// True if the current data frame is the last one of its message.
    is_last: bool,
    /// True if a message has begun and not ended.
    in_message: bool,
}

/// Result of one call of [`Decoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedPayload {
    /// Number of bytes that were consumed.
    pub consumed: usize,
    /// The event, with ranges of the input. `None` if more bytes are needed.
    pub event: Option<FrameEvent>,
}

/// Event in the frames of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// A piece of a message. `is_end` is true if the message is complete.
    Data {
        /// Position of the piece in the input.
        data: Range<usize>,
        /// True if the message ends here.
        is_end: bool,
    },
    /// A ping with its payload, which a pong must repeat.
    Ping(Range<usize>),
    /// A pong.
    Pong,
    /// A close frame with its code. The code is 1005 if the frame contains none.
    Close(u16),
}

/// Rule that a server's frame violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// A reserved bit is set although no extension was negotiated.
    Reserved,
    /// The frame is masked, which a server must not do.
    Masked,
    /// The opcode is unknown.
    Opcode(u8),
    /// A control frame is fragmented or longer than 125 bytes.
    Control,
    /// The frame continues a message that has not begun, or begins a message inside another one.
    Continuation,
    /// The length is not in its shortest form, or has its highest bit set.
    Length,
    /// The payload of a close frame has a single byte.
    Close,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Maximum length of a control frame's payload in bytes.
const CONTROL_LIMIT: u64 = 125;
/// Code that represents a close frame without a code.
const NO_CODE: u16 = 1005;

/// Appends a frame that contains a whole message. The frame is masked with `key`, as RFC 6455
/// requires of clients.
pub fn append_masked(out: &mut Vec<u8>, kind: MessageKind, payload: &[u8], key: [u8; 4]) {
    let opcode = match kind {
        MessageKind::Text => TEXT,
        MessageKind::Binary => BINARY,
        MessageKind::Pong => PONG,
        MessageKind::Close => CLOSE,
    };
    out.push(FIN | opcode);
    match payload.len() {
        len @ 0..=125 => out.push(MASKED | len as u8),
        len @ 126..=0xffff => {
            out.push(MASKED | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(MASKED | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&key);
    out.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key));
}

impl Decoder {
    /// Decodes the next part of `bytes`, which starts with the first unconsumed byte. Fails if a
    /// frame breaks a rule.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<DecodedPayload, FrameError> {
        if self.left > 0 {
            let take = (bytes.len() as u64).min(self.left) as usize;
            if take == 0 {
                return Ok(DecodedPayload { consumed: 0, event: None });
            }
            self.left -= take as u64;
            return Ok(DecodedPayload { consumed: take, event: Some(self.data(0..take)) });
        }
        let Some((head, length)) = FrameHead::parse(bytes)? else {
            return Ok(DecodedPayload { consumed: 0, event: None });
        };
        if head.opcode >= CLOSE {
            // A control frame is short, so it is processed as a whole.
            let end = length + head.payload as usize;
            if bytes.len() < end {
                return Ok(DecodedPayload { consumed: 0, event: None });
            }
            let event = control(head.opcode, bytes, length..end)?;
            return Ok(DecodedPayload { consumed: end, event: Some(event) });
        }
        if (head.opcode == CONTINUATION) != self.in_message {
            return Err(FrameError::Continuation);
        }
        (self.in_message, self.is_last, self.left) = (true, head.is_last, head.payload);
        let take = ((bytes.len() - length) as u64).min(self.left) as usize;
        self.left -= take as u64;
        let end = length + take;
        // An empty piece is an event only if the frame has no payload.
        let event = (take > 0 || head.payload == 0).then(|| self.data(length..end));
        Ok(DecodedPayload { consumed: end, event })
    }

    /// Returns the event for a piece, and records the end of the message.
    fn data(&mut self, data: Range<usize>) -> FrameEvent {
        let is_end = self.left == 0 && self.is_last;
        if is_end {
            self.in_message = false;
        }
        FrameEvent::Data { data, is_end }
    }
}

/// Header of a frame.
struct FrameHead {
    is_last: bool,
    opcode: u8,
    payload: u64,
}

impl FrameHead {
    /// Parses a frame header. Returns the header and its length, or `None` if the header is
    /// incomplete.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (is_last, opcode) = (first & FIN != 0, first & 0x0f);
        if first & 0x70 != 0 {
            return Err(FrameError::Reserved);
        }
        if second & MASKED != 0 {
            return Err(FrameError::Masked);
        }
        if !matches!(opcode, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG) {
            return Err(FrameError::Opcode(opcode));
        }
        let (payload, length) = match second & 0x7f {
            126 => {
                let Some(length) = rest.first_chunk::<2>() else { return Ok(None) };
                let payload = u64::from(u16::from_be_bytes(*length));
                if payload < 126 {
                    return Err(FrameError::Length);
                }
                (payload, 4)
            }
            127 => {
                let Some(length) = rest.first_chunk::<8>() else { return Ok(None) };
                let payload = u64::from_be_bytes(*length);
                if payload <= 0xffff || payload >> 63 != 0 {
                    return Err(FrameError::Length);
                }
                (payload, 10)
            }
            short => (u64::from(short), 2),
        };
        if opcode >= CLOSE && (!is_last || payload > CONTROL_LIMIT) {
            return Err(FrameError::Control);
        }
        Ok(Some((Self { is_last, opcode, payload }, length)))
    }
}

fn control(opcode: u8, bytes: &[u8], payload: Range<usize>) -> Result<FrameEvent, FrameError> {
    Ok(match (opcode, &bytes[payload.clone()]) {
        (PING, _) => FrameEvent::Ping(payload),
        (PONG, _) => FrameEvent::Pong,
        (_, []) => FrameEvent::Close(NO_CODE),
        (_, [high, low, ..]) => FrameEvent::Close(u16::from_be_bytes([*high, *low])),
        (_, [_]) => return Err(FrameError::Close),
    })
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved => f.write_str("a reserved bit is set"),
            Self::Masked => f.write_str("a frame of the server is masked"),
            Self::Opcode(opcode) => write!(f, "the opcode {opcode} is unknown"),
            Self::Control => f.write_str("a control frame is fragmented or too long"),
            Self::Continuation => {
                f.write_str("a message is continued that has not begun, or begun twice")
            }
            Self::Length => f.write_str("a length is not in its shortest form"),
            Self::Close => f.write_str("a close has a code of one byte"),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `bytes` in pieces of `size` bytes. Returns the messages and the other events.
    fn decode(bytes: &[u8], size: usize) -> Result<(Vec<Vec<u8>>, Vec<String>), FrameError> {
        let mut decoder = Decoder::default();
        let (mut messages, mut others, mut current) = (Vec::new(), Vec::new(), Vec::new());
        let mut pending = Vec::new();
        for piece in bytes.chunks(size) {
            pending.extend_from_slice(piece);
            loop {
                let DecodedPayload { consumed, event } = decoder.decode(&pending)?;
                match &event {
                    Some(FrameEvent::Data { data, is_end }) => {
                        current.extend_from_slice(&pending[data.clone()]);
                        if *is_end {
                            messages.push(std::mem::take(&mut current));
                        }
                    }
                    Some(FrameEvent::Ping(at)) => {
                        others.push(format!("ping {}", pending[at.clone()].escape_ascii()));
                    }
                    Some(other) => others.push(format!("{other:?}")),
                    None => {}
                }
                pending.drain(..consumed);
                if event.is_none() {
                    break;
                }
            }
        }
        Ok((messages, others))
    }

    #[test]
    fn frames_give_the_same_messages_however_they_are_split() {
        let mut bytes = b"\x81\x05Hello".to_vec();
        // This is a fragmented message with a ping between its parts (RFC 6455, section 5.7).
        bytes.extend_from_slice(b"\x01\x03Hel\x89\x02hi\x80\x02lo");
        bytes.extend_from_slice(b"\x82\x00\x02\x00\x80\x00\x8a\x00");
        bytes.extend_from_slice(&[0x82, 126, 1, 0]);
        bytes.extend_from_slice(&[7; 256]);
        bytes.extend_from_slice(&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
        bytes.extend_from_slice(&[8; 65_536]);
        bytes.extend_from_slice(b"\x88\x02\x03\xe8");
        let whole = decode(&bytes, bytes.len()).unwrap();
        let (messages, others) = &whole;
        assert_eq!(messages[..4], [&b"Hello"[..], b"Hello", b"", b""].map(<[u8]>::to_vec));
        assert_eq!((messages[4].len(), messages[5].len()), (256, 65_536));
        assert_eq!(others[..], ["ping hi", "Pong", "Close(1000)"]);
        for size in [1, 2, 3, 7, 100] {
            assert_eq!(decode(&bytes, size).unwrap(), whole, "{size}");
        }
    }

    #[test]
    fn rules_that_a_server_breaks_are_named() {
        for (bytes, error) in [
            (&b"\xc1\x00"[..], FrameError::Reserved),
            (b"\x81\x80\0\0\0\0", FrameError::Masked),
            (b"\x83\x00", FrameError::Opcode(3)),
            (b"\x09\x00", FrameError::Control),
            (b"\x89\x7e\x00\x7e", FrameError::Control),
            (b"\x80\x00", FrameError::Continuation),
            (b"\x01\x01a\x81\x00", FrameError::Continuation),
            (b"\x82\x7e\x00\x7d", FrameError::Length),
            (b"\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff", FrameError::Length),
            (b"\x82\x7f\x80\x00\x00\x00\x00\x01\x00\x00", FrameError::Length),
            (b"\x88\x01\x03", FrameError::Close),
        ] {
            for size in [1, 100] {
                assert_eq!(decode(bytes, size), Err(error), "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_masked_frame_is_that_of_the_standard() {
        // RFC 6455, section 5.7: a single-frame masked text message.
        let mut out = Vec::new();
        append_masked(&mut out, MessageKind::Text, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        assert_eq!(out, b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
        for (len, head) in [(125, 2), (126, 4), (65_535, 4), (65_536, 10)] {
            let mut out = Vec::new();
            append_masked(&mut out, MessageKind::Binary, &vec![1; len], [0; 4]);
            assert_eq!(out.len(), len + head + 4);
        }
    }
}

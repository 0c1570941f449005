//! gRPC over HTTP/2: adds the framing of messages, and reads status and messages of replies.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

/// Content type of requests.
pub(crate) const CONTENT_TYPE: &str = "application/grpc";

/// Names of the status codes, by their numbers.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Maximum number of bytes of `grpc-message` that an error message quotes.
const QUOTED: usize = 200;

/// Length of the prefix of a message: a byte for compression, and the length in four bytes.
const PREFIX: usize = 5;

/// Status code of a gRPC reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrpcStatus(u8);

/// Counts of gRPC replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcCounts {
    /// Complete replies with a valid gRPC status, by status.
    pub status: BTreeMap<GrpcStatus, u64>,
    /// Complete messages in all replies.
    pub messages: u64,
}

impl GrpcStatus {
    /// The call succeeded.
    pub const OK: Self = Self(0);

    /// Returns the status with this name, as `Display` writes it. Returns `None` for an unknown
    /// name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().position(|other| *other == name).map(|code| Self(code as u8))
    }

    /// Parses the number of a status. A number without a name becomes `UNKNOWN`. Returns `None` if
    /// `value` is no number from 0 to 255.
    fn parse(value: &[u8]) -> Option<Self> {
        let code: u8 = std::str::from_utf8(value).ok()?.parse().ok()?;
        // Unknown codes count as UNKNOWN, as the specification requires.
        Some(if usize::from(code) < NAMES.len() { Self(code) } else { Self(2) })
    }
}

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[usize::from(self.0)])
    }
}

impl GrpcCounts {
    /// Counts a complete reply. `status` is `None` if the reply has no valid status.
    pub(crate) fn count(&mut self, status: Option<GrpcStatus>, messages: u64) {
        self.messages += messages;
        if let Some(status) = status {
            *self.status.entry(status).or_default() += 1;
        }
    }

    /// Adds the counts of another turn, thread or machine.
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        for (status, count) in &other.status {
            *self.status.entry(*status).or_default() += count;
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let status: serde_json::Map<_, _> =
            self.status.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        json!({ "status": status, "messages_received": self.messages })
    }

    pub(crate) fn from_json(json: &Value) -> Result<Self, String> {
        let status = json["status"].as_object().ok_or("grpc")?;
        let status =
            status.iter().map(|(name, count)| Some((GrpcStatus::named(name)?, count.as_u64()?)));
        let status = status.collect::<Option<_>>().ok_or("grpc")?;
        Ok(Self { status, messages: json["messages_received"].as_u64().ok_or("grpc")? })
    }
}

/// Appends `message` `count` times, each time after its gRPC prefix.
pub(crate) fn append_messages(message: &[u8], count: usize, out: &mut Vec<u8>) {
    let length = (message.len() as u32).to_be_bytes();
    for _ in 0..count {
        out.push(0);
        out.extend_from_slice(&length);
        out.extend_from_slice(message);
    }
}

/// Reader of a gRPC reply.
#[derive(Debug, Default)]
pub(crate) struct GrpcReply {
    /// Status in the head. It counts only if the reply has no messages and no trailers with a
    /// status.
    of_head: Option<Result<GrpcStatus, BadReply>>,
    of_trailers: Option<Result<GrpcStatus, BadReply>>,
    /// Beginning of the field `grpc-message`.
    text: Vec<u8>,
    has_content_type: bool,
    prefix: Prefix,
    /// Bytes of the current message that have not arrived yet.
    missing: u32,
    has_body: bool,
    messages: u64,
    is_compressed: bool,
}

#[derive(Debug, Default)]
struct Prefix {
    bytes: [u8; PREFIX],
    length: usize,
}

/// Violation of gRPC's rules by a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadReply {
    /// HTTP status other than 200, without a gRPC status.
    Http(u16),
    ContentType,
    NoStatus,
    Status,
    Compressed,
    Truncated,
}

impl GrpcReply {
    pub fn begin(&mut self) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        *self = Self { text, ..Self::default() };
    }

    /// Reads a field of the head.
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"content-type" => self.has_content_type = value.starts_with(CONTENT_TYPE.as_bytes()),
            b"grpc-status" => self.of_head = Some(GrpcStatus::parse(value).ok_or(BadReply::Status)),
            b"grpc-message" => self.quote(value),
            _ => {}
        }
    }

    /// Reads a field of the trailers.
    pub fn trailer(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"grpc-status" => {
                self.of_trailers = Some(GrpcStatus::parse(value).ok_or(BadReply::Status));
            }
            b"grpc-message" => self.quote(value),
            _ => {}
        }
    }

    fn quote(&mut self, value: &[u8]) {
        self.text.clear();
        self.text.extend_from_slice(&value[..value.len().min(QUOTED)]);
    }

    /// Counts the messages in a piece of the body.
    pub fn body(&mut self, mut piece: &[u8]) {
        self.has_body |= !piece.is_empty();
        while !piece.is_empty() {
            if self.missing > 0 {
                let taken = (self.missing as usize).min(piece.len());
                self.missing -= taken as u32;
                piece = &piece[taken..];
                self.messages += u64::from(self.missing == 0);
                continue;
            }
            let Prefix { bytes, length } = &mut self.prefix;
            let taken = (PREFIX - *length).min(piece.len());
            bytes[*length..*length + taken].copy_from_slice(&piece[..taken]);
            *length += taken;
            piece = &piece[taken..];
            if *length == PREFIX {
                // The request offers no compression, so a compressed message violates the protocol.
                self.is_compressed |= bytes[0] != 0;
                self.missing = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                *length = 0;
                self.messages += u64::from(self.missing == 0);
            }
        }
    }

    /// Returns the number of complete messages.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the gRPC status of a complete reply. `http` is the HTTP status of the reply. Fails
    /// with the violated rule if the reply is invalid.
    pub fn status(&self, http: u16) -> Result<GrpcStatus, BadReply> {
        let of_head = self.of_head.filter(|_| !self.has_body);
        let status = match self.of_trailers.or(of_head) {
            Some(status) => status?,
            None if http != 200 => return Err(BadReply::Http(http)),
            None if !self.has_content_type => return Err(BadReply::ContentType),
            None => return Err(BadReply::NoStatus),
        };
        if status != GrpcStatus::OK {
            return Ok(status);
        }
        if http != 200 {
            return Err(BadReply::Http(http));
        }
        if self.is_compressed {
            return Err(BadReply::Compressed);
        }
        if self.missing > 0 || self.prefix.length > 0 {
            return Err(BadReply::Truncated);
        }
        Ok(status)
    }

    /// Returns the server's explanation of the status in quotes, for an error message. Returns
    /// `without a message` if the server has sent no explanation.
    pub fn text(&self) -> String {
        if self.text.is_empty() {
            return "without a message".to_owned();
        }
        format!("\"{}\"", self.text.escape_ascii())
    }
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(f, "it has the HTTP status {status}, not a gRPC status"),
            Self::ContentType => f.write_str("its content-type is not application/grpc"),
            Self::NoStatus => f.write_str("it ends without grpc-status"),
            Self::Status => f.write_str("its grpc-status is not a number"),
            Self::Compressed => f.write_str("a message is compressed"),
            Self::Truncated => f.write_str("it ends inside a message"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(pieces: &[&[u8]], trailers: &[(&[u8], &[u8])]) -> GrpcReply {
        let mut reply = GrpcReply::default();
        reply.begin();
        reply.field(b"content-type", b"application/grpc+proto");
        pieces.iter().for_each(|piece| reply.body(piece));
        trailers.iter().for_each(|(name, value)| reply.trailer(name, value));
        reply
    }

    const OK: (&[u8], &[u8]) = (b"grpc-status", b"0");

    #[test]
    fn messages_are_counted_however_their_bytes_arrive() {
        let mut body = Vec::new();
        append_messages(b"hello", 3, &mut body);
        append_messages(b"", 2, &mut body);
        for size in 1..=body.len() {
            let pieces: Vec<_> = body.chunks(size).collect();
            let reply = reply(&pieces, &[OK]);
            assert_eq!((reply.messages(), reply.status(200)), (5, Ok(GrpcStatus::OK)), "{size}");
        }
        for cut in [1, 4, 6, 9] {
            assert_eq!(reply(&[&body[..cut]], &[OK]).status(200), Err(BadReply::Truncated));
        }
    }

    #[test]
    fn only_a_valid_status_is_a_success() {
        let of = |value: &'static [u8]| reply(&[], &[(b"grpc-status", value)]).status(200);
        assert_eq!(of(b"5").unwrap().to_string(), "NOT_FOUND");
        assert_eq!(of(b"16").unwrap().to_string(), "UNAUTHENTICATED");
        assert_eq!(of(b"17").unwrap().to_string(), "UNKNOWN");
        for wrong in [&b""[..], b"-1", b"x", b"999", b"0 0"] {
            assert_eq!(of(wrong), Err(BadReply::Status));
        }
        assert_eq!(reply(&[], &[]).status(200), Err(BadReply::NoStatus));
        assert_eq!(reply(&[], &[OK]).status(503), Err(BadReply::Http(503)));
        assert_eq!(reply(&[b"\x01\0\0\0\0"], &[OK]).status(200), Err(BadReply::Compressed));
        assert_eq!(GrpcReply::default().status(200), Err(BadReply::ContentType));
    }

    #[test]
    fn the_status_of_the_head_counts_only_without_messages() {
        let mut alone = reply(&[], &[]);
        alone.field(b"grpc-status", b"12");
        alone.field(b"grpc-message", b"no\x1bsuch");
        assert_eq!(alone.status(200).unwrap().to_string(), "UNIMPLEMENTED");
        assert_eq!(alone.text(), "\"no\\x1bsuch\"");
        alone.body(b"\0\0\0\0\0");
        assert_eq!(alone.status(200), Err(BadReply::NoStatus));
    }
}

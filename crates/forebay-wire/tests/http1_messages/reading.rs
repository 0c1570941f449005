//! Reads the messages of a connection, as a listener or a client does. Each message becomes one
//! line, so that a table can contain the expected result.

use std::fmt::Write;

use forebay_wire::http1::*;

/// State of the connection at the end of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The bytes end after a complete message.
    Clean,
    /// The bytes end within a message.
    Partial,
    /// A head broke this rule.
    Head(HeadError),
    /// A body broke this rule.
    Body(HttpError),
}

/// One line for each message, and the state at the end.
pub type Outcome = (Vec<String>, End);

/// Reads requests. Their lines are `METHOD path version keep|close {Name: value; ...} body`.
pub fn requests(pieces: &[&[u8]]) -> Outcome {
    let mut parser = RequestParser::default();
    let mut head = RequestHead::default();
    read(pieces, |bytes| {
        let Progress::Complete(len) = parser.parse(bytes, &mut head)? else { return Ok(None) };
        parser = RequestParser::default();
        let method = head.method.of(bytes).escape_ascii();
        let path = head.path_and_query.of(bytes).escape_ascii();
        let mut line = format!("{method} {path} {}", version(head.version));
        append_fields(&mut line, head.keep_alive, &head.fields, bytes);
        Ok(Some((len, line, BodyDecoder::request(head.framing))))
    })
}

/// Reads responses to requests with `method`. Their lines are `status reason version keep|close
/// {Name: value; ...} body`.
pub fn responses(method: &str, pieces: &[&[u8]]) -> Outcome {
    let fresh = || ResponseParser::new(Http1Limits::default(), method == "HEAD");
    let mut parser = fresh();
    let mut head = ResponseHead::default();
    read(pieces, |bytes| {
        let Progress::Complete(len) = parser.parse(bytes, &mut head)? else { return Ok(None) };
        parser = fresh();
        let reason = head.reason.of(bytes).escape_ascii();
        let mut line = format!("{} {reason} {}", head.status, version(head.version));
        append_fields(&mut line, head.keep_alive, &head.fields, bytes);
        Ok(Some((len, line, BodyDecoder::response(head.framing))))
    })
}

/// Checks that `outcome_of` returns `expected` for `bytes` as a whole, in single bytes and in
/// twenty random divisions. The divisions are equal in each run.
pub fn check(
    name: &str,
    bytes: &[u8],
    expected: &Outcome,
    outcome_of: impl Fn(&[&[u8]]) -> Outcome,
) {
    let shown = bytes.escape_ascii().to_string();
    let shown = &shown[..shown.len().min(300)];
    assert_eq!(&outcome_of(&[bytes]), expected, "{name}: {shown}");
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(&outcome_of(&single), expected, "{name}, byte by byte: {shown}");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..20 {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (piece, after) = rest.split_at((1 + state as usize % 24).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(&outcome_of(&pieces), expected, "{name}, division {round}: {shown}");
    }
}

fn version(version: Version) -> &'static str {
    if version == Version::Http11 { "1.1" } else { "1.0" }
}

fn append_fields(line: &mut String, keep_alive: bool, fields: &[Field], bytes: &[u8]) {
    let fields = fields.iter().map(|field| {
        let (name, value) = (field.name.of(bytes), field.value.of(bytes));
        format!("{}: {}", name.escape_ascii(), value.escape_ascii())
    });
    let fields = fields.collect::<Vec<_>>().join("; ");
    let _ = write!(line, " {} {{{fields}}}", if keep_alive { "keep" } else { "close" });
}

/// Length of the head, the line about the head, and the decoder of the body. `None` if the head is
/// incomplete.
type Start = Result<Option<(usize, String, BodyDecoder)>, HeadError>;

/// Reads a connection. A head is parsed from all bytes so far, and a body is decoded as its bytes
/// arrive.
fn read(pieces: &[&[u8]], mut start: impl FnMut(&[u8]) -> Start) -> Outcome {
    let mut connection = Connection { buffer: Vec::new(), body: None, messages: Vec::new() };
    for piece in pieces {
        connection.buffer.extend_from_slice(piece);
        if let Err(end) = connection.advance(&mut start) {
            return (connection.messages, end);
        }
    }
    connection.close()
}

struct Connection {
    buffer: Vec<u8>,
    /// Line, received payload and decoder of the message whose body is arriving.
    body: Option<(String, Vec<u8>, BodyDecoder)>,
    messages: Vec<String>,
}

impl Connection {
    fn advance(&mut self, mut start: impl FnMut(&[u8]) -> Start) -> Result<(), End> {
        loop {
            if self.body.is_none() {
                let Some((len, line, decoder)) = start(&self.buffer).map_err(End::Head)? else {
                    return Ok(());
                };
                self.buffer.drain(..len);
                self.body = Some((line, Vec::new(), decoder));
            }
            let (_, payload, decoder) = self.body.as_mut().expect("it has just been set");
            let step = decoder.decode(&self.buffer).map_err(End::Body)?;
            payload.extend_from_slice(&self.buffer[step.data.clone()]);
            self.buffer.drain(..step.consumed);
            if step.done {
                self.end_message();
                if self.buffer.is_empty() {
                    return Ok(());
                }
            } else if step.consumed == 0 && step.data.is_empty() {
                return Ok(());
            }
        }
    }

    fn end_message(&mut self) {
        if let Some((line, payload, _)) = self.body.take() {
            self.messages.push(format!("{line} {}", payload.escape_ascii()).trim_end().to_owned());
        }
    }

    fn close(mut self) -> Outcome {
        if self.body.as_ref().is_some_and(|(_, _, decoder)| decoder.ends_at_close()) {
            self.end_message();
        }
        let is_clean = self.body.is_none() && self.buffer.is_empty();
        (self.messages, if is_clean { End::Clean } else { End::Partial })
    }
}

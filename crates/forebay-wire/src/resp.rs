//! Commands and replies of the Redis protocol (RESP, version 2), as a client uses them.
//!
//! A reply has limits: bytes in total, values in total, and the depth of arrays. The server is another
//! program, so a reply may be anything.

/// Maximum number of values in a reply.
const MOST_VALUES: usize = 1 << 16;
/// Maximum depth of arrays. Replies about Redis streams (`XREAD`) need four.
const DEEPEST: u32 = 6;
/// Maximum length of a line: of a number, a status or an error.
const LONGEST_LINE: usize = 1024;

/// A reply of the server, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespValue {
    /// The absent value.
    Nil,
    /// A number.
    Number(i64),
    /// A status such as `OK`, or a string.
    Bytes(Vec<u8>),
    /// An error, as the server words it.
    Error(String),
    /// Several values.
    Array(Vec<RespValue>),
}

/// Broken rule of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespError {
    /// A value begins with an unknown byte.
    UnknownType(u8),
    /// A length or number is malformed.
    BadNumber,
    /// A line is too long, or its line break is malformed or missing.
    BadLine,
    /// The reply is larger than the limit.
    TooLarge,
    /// Arrays are nested too deeply.
    TooDeep,
}

impl std::fmt::Display for RespError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownType(byte) => write!(f, "a value begins with the byte {byte:#04x}"),
            Self::BadNumber => write!(f, "a number is malformed"),
            Self::BadLine => write!(f, "a line is malformed"),
            Self::TooLarge => write!(f, "a reply is too large"),
            Self::TooDeep => write!(f, "a reply is nested too deeply"),
        }
    }
}

impl std::error::Error for RespError {}

/// Appends a command with its arguments to `out`.
pub fn append_command(arguments: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Parses one reply at the start of `bytes`. Returns the reply and its length, or `None` if the reply
/// is incomplete.
///
/// # Errors
/// Fails if the reply breaks a rule, or if it has more than `limit` bytes. The connection is then
/// unusable.
pub fn parse(bytes: &[u8], limit: usize) -> Result<Option<(RespValue, usize)>, RespError> {
    let mut reader = RespReader { bytes, at: 0, limit, values: 0 };
    Ok(reader.value(0)?.map(|value| (value, reader.at)))
}

struct RespReader<'a> {
    bytes: &'a [u8],
    at: usize,
    limit: usize,
    values: usize,
}

impl<'a> RespReader<'a> {
    fn value(&mut self, depth: u32) -> Result<Option<RespValue>, RespError> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(RespError::TooLarge);
        }
        let Some(&kind) = self.bytes.get(self.at) else { return Ok(None) };
        if !b"+-:$*".contains(&kind) {
            return Err(RespError::UnknownType(kind));
        }
        self.at += 1;
        let Some(line) = self.line()? else { return Ok(None) };
        match kind {
            b'+' => Ok(Some(RespValue::Bytes(line.to_vec()))),
            b'-' => Ok(Some(RespValue::Error(String::from_utf8_lossy(line).into_owned()))),
            b':' => number(line).map(|number| Some(RespValue::Number(number))),
            b'$' => self.string(number(line)?),
            _ => self.array(number(line)?, depth),
        }
    }

    /// Returns the bytes up to the next line break, and moves past this line break. Returns `None`
    /// if the line break has not arrived.
    fn line(&mut self) -> Result<Option<&'a [u8]>, RespError> {
        let rest = &self.bytes[self.at..];
        let searched = &rest[..rest.len().min(LONGEST_LINE)];
        let Some(end) = memchr::memchr(b'\r', searched) else {
            return if rest.len() < LONGEST_LINE { Ok(None) } else { Err(RespError::BadLine) };
        };
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 2;
                if self.at > self.limit {
                    return Err(RespError::TooLarge);
                }
                Ok(Some(&rest[..end]))
            }
            Some(_) => Err(RespError::BadLine),
        }
    }

    fn string(&mut self, length: i64) -> Result<Option<RespValue>, RespError> {
        if length == -1 {
            return Ok(Some(RespValue::Nil));
        }
        let length = usize::try_from(length).map_err(|_| RespError::BadNumber)?;
        // Fail before the bytes arrive, so that the caller does not collect them.
        if length > self.limit.saturating_sub(self.at) {
            return Err(RespError::TooLarge);
        }
        let Some(found) = self.bytes.get(self.at..self.at + length + 2) else { return Ok(None) };
        let (string, end) = found.split_at(length);
        if end != b"\r\n" {
            return Err(RespError::BadLine);
        }
        self.at += length + 2;
        Ok(Some(RespValue::Bytes(string.to_vec())))
    }

    fn array(&mut self, length: i64, depth: u32) -> Result<Option<RespValue>, RespError> {
        if length == -1 {
            return Ok(Some(RespValue::Nil));
        }
        let length = usize::try_from(length).map_err(|_| RespError::BadNumber)?;
        if length > MOST_VALUES {
            return Err(RespError::TooLarge);
        }
        if depth >= DEEPEST {
            return Err(RespError::TooDeep);
        }
        let mut values = Vec::new();
        for _ in 0..length {
            let Some(value) = self.value(depth + 1)? else { return Ok(None) };
            values.push(value);
        }
        Ok(Some(RespValue::Array(values)))
    }
}

fn number(line: &[u8]) -> Result<i64, RespError> {
    let text = std::str::from_utf8(line).map_err(|_| RespError::BadNumber)?;
    text.parse().map_err(|_| RespError::BadNumber)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100;

    #[test]
    fn replies_are_parsed_whole_and_byte_by_byte() {
        let text = |text: &str| RespValue::Bytes(text.as_bytes().to_vec());
        let nested = RespValue::Array(vec![
            RespValue::Array(vec![text("a\r\nb"), RespValue::Nil]),
            RespValue::Number(-7),
            RespValue::Error("ERR no".to_owned()),
        ]);
        for (bytes, wanted) in [
            ("+OK\r\n", text("OK")),
            ("$0\r\n\r\n", text("")),
            ("$-1\r\n", RespValue::Nil),
            ("*-1\r\n", RespValue::Nil),
            ("*0\r\n", RespValue::Array(Vec::new())),
            ("*3\r\n*2\r\n$4\r\na\r\nb\r\n$-1\r\n:-7\r\n-ERR no\r\n", nested),
        ] {
            let whole = format!("{bytes}+next\r\n");
            assert_eq!(parse(whole.as_bytes(), LIMIT), Ok(Some((wanted, bytes.len()))), "{bytes}");
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes.as_bytes()[..end], LIMIT), Ok(None), "{bytes} {end}");
            }
        }
    }

    #[test]
    fn hostile_replies_are_refused_before_their_bytes_arrive() {
        for (bytes, error) in [
            ("x", RespError::UnknownType(b'x')),
            ("$-5\r\n", RespError::BadNumber),
            ("$9223372036854775807\r\n", RespError::TooLarge),
            ("$101\r\n", RespError::TooLarge),
            ("$1x\r\n", RespError::BadNumber),
            ("$1\r\nabc", RespError::BadLine),
            ("*99999999\r\n", RespError::TooLarge),
            ("*-2\r\n", RespError::BadNumber),
            (":99999999999999999999\r\n", RespError::BadNumber),
            ("+a\rb", RespError::BadLine),
        ] {
            assert_eq!(parse(bytes.as_bytes(), LIMIT), Err(error), "{bytes}");
        }
        let deep = "*1\r\n".repeat(1000);
        assert_eq!(parse(deep.as_bytes(), 10_000), Err(RespError::TooDeep));
        let long = format!("+{}", "a".repeat(5000));
        assert_eq!(parse(long.as_bytes(), 10_000), Err(RespError::BadLine));
        let many = format!("*60000\r\n{}", ":1\r\n".repeat(60_000));
        assert_eq!(parse(many.as_bytes(), LIMIT), Err(RespError::TooLarge));
    }

    #[test]
    fn random_bytes_never_panic() {
        let alphabet = b"+-:$*019\r\na";
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..24 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.push(alphabet[(state >> 33) as usize % alphabet.len()]);
            }
            let _ = parse(&bytes, LIMIT);
        }
    }

    #[test]
    fn a_command_may_contain_any_byte() {
        let mut out = Vec::new();
        append_command(&[b"SET", b"a\r\n"], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nSET\r\n$3\r\na\r\n\r\n");
    }
}

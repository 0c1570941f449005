//! Reader of the heads of one reply: up to 256 interim heads (1xx), then the final head. The heads
//! may have the syntax of HTTP or CGI.

use std::fmt;

use crate::cgi::{self, CgiError, NphHead, NphParser};
use crate::http1::{HeadError, Http1Limits, Progress, ResponseHead, ResponseParser};

/// Parser of one head from a growing buffer.
pub trait HeadParser: Copy {
    /// Type of the head.
    type Head;
    /// Type of the error. An error names the violated rule.
    type Error;

    /// Continues to parse a head. `bytes` is everything since the end of the previous head.
    fn parse(&mut self, bytes: &[u8], head: &mut Self::Head) -> Result<Progress, Self::Error>;

    /// Returns the status of a complete head.
    fn status(head: &Self::Head) -> u16;
}

/// Reader of the heads of one reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyReader<P> {
    /// Unused parser, which is copied for each head.
    fresh: P,
    parser: P,
    interim: usize,
    count: usize,
}

/// Result of one call of [`ReplyReader::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStep {
    /// More bytes are needed.
    Partial,
    /// Head of an interim reply with this length in bytes. Another head follows.
    Interim(usize),
    /// Head of the final reply, or of a reply with status 101. The value is its length in bytes.
    Final(usize),
}

/// Error that names the rule that the heads of a reply violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError<E> {
    /// A single head violated this rule.
    Head(E),
    /// The interim replies are too many or too long.
    Interim,
}

/// Maximum number of interim replies before the final reply.
const MOST_INTERIM: usize = 256;

impl<P: HeadParser> ReplyReader<P> {
    /// Creates a reader. `parser` must be unused. All interim replies together may have as many
    /// bytes as one head may have by default.
    pub fn new(parser: P) -> Self {
        Self { fresh: parser, parser, interim: 0, count: 0 }
    }

    /// Continues to read a reply. `bytes` is everything since the end of the previous head.
    pub fn read(
        &mut self,
        bytes: &[u8],
        head: &mut P::Head,
    ) -> Result<ReplyStep, ReplyError<P::Error>> {
        let Progress::Complete(len) = self.parser.parse(bytes, head).map_err(ReplyError::Head)?
        else {
            return Ok(ReplyStep::Partial);
        };
        if !matches!(P::status(head), 100 | 102..200) {
            return Ok(ReplyStep::Final(len));
        }
        self.parser = self.fresh;
        (self.interim, self.count) = (self.interim + len, self.count + 1);
        if self.interim > Http1Limits::default().head || self.count > MOST_INTERIM {
            return Err(ReplyError::Interim);
        }
        Ok(ReplyStep::Interim(len))
    }
}

impl HeadParser for ResponseParser {
    type Head = ResponseHead;
    type Error = HeadError;

    fn parse(&mut self, bytes: &[u8], head: &mut ResponseHead) -> Result<Progress, HeadError> {
        self.parse(bytes, head)
    }

    fn status(head: &ResponseHead) -> u16 {
        head.status
    }
}

impl HeadParser for NphParser {
    type Head = NphHead;
    type Error = HeadError;

    fn parse(&mut self, bytes: &[u8], head: &mut NphHead) -> Result<Progress, HeadError> {
        NphParser::parse(*self, bytes, head)
    }

    fn status(head: &NphHead) -> u16 {
        head.head.status
    }
}

impl HeadParser for cgi::ReplyParser {
    type Head = cgi::ReplyHead;
    type Error = CgiError;

    fn parse(&mut self, bytes: &[u8], head: &mut cgi::ReplyHead) -> Result<Progress, CgiError> {
        self.parse(bytes, head)
    }

    fn status(head: &cgi::ReplyHead) -> u16 {
        head.status
    }
}

impl<E: fmt::Display> fmt::Display for ReplyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => error.fmt(f),
            Self::Interim => f.write_str("too many interim replies (1xx)"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for ReplyError<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the statuses of all heads, and the total length of the heads.
    fn read<P: HeadParser>(
        parser: P,
        mut head: P::Head,
        text: &str,
        step: usize,
    ) -> Result<(Vec<u16>, usize), ReplyError<P::Error>> {
        let mut reader = ReplyReader::new(parser);
        let (mut statuses, mut start) = (Vec::new(), 0);
        for end in (0..=text.len()).step_by(step).chain([text.len()]) {
            loop {
                let step = reader.read(&text.as_bytes()[start..end], &mut head)?;
                let (len, is_final) = match step {
                    ReplyStep::Partial => break,
                    ReplyStep::Interim(len) => (len, false),
                    ReplyStep::Final(len) => (len, true),
                };
                statuses.push(P::status(&head));
                start += len;
                if is_final {
                    return Ok((statuses, start));
                }
            }
        }
        Ok((statuses, start))
    }

    #[test]
    fn heads_are_read_up_to_the_final_one_in_any_syntax() {
        let http = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n\
                    HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\n";
        let cgi = "Status: 103 Early\nA: b\n\nStatus: 404 No\nA: b\n\n";
        for step in [1, 7, 1000] {
            let parser = ResponseParser::new(Http1Limits::default(), false);
            let whole = read(parser, ResponseHead::default(), &format!("{http}x"), step);
            assert_eq!(whole.unwrap(), (vec![100, 103, 404], http.len()));
            let lines = http.replace("\r\n", "\n");
            let parser = NphParser::new(Http1Limits::default(), false);
            let whole = read(parser, NphHead::default(), &format!("{lines}x"), step);
            assert_eq!(whole.unwrap(), (vec![100, 103, 404], lines.len()));
            let parser = cgi::ReplyParser::new(Http1Limits::default());
            let whole = read(parser, cgi::ReplyHead::default(), &format!("{cgi}x"), step);
            assert_eq!(whole.unwrap(), (vec![103, 404], cgi.len()));
        }
    }

    #[test]
    fn a_switch_of_protocols_is_final() {
        let parser = ResponseParser::new(Http1Limits::default(), false);
        let text = "HTTP/1.1 101 X\r\nUpgrade: y\r\n\r\nHTTP/1.1 200 X\r\n\r\n";
        let (statuses, _) = read(parser, ResponseHead::default(), text, 1000).unwrap();
        assert_eq!(statuses, [101]);
    }

    #[test]
    fn interim_replies_have_an_end() {
        let parser = ResponseParser::new(Http1Limits::default(), false);
        let one = "HTTP/1.1 102 X\r\n\r\n";
        let read = |text: &str| read(parser, ResponseHead::default(), text, 4000);
        assert_eq!(read(&one.repeat(MOST_INTERIM)).unwrap().0.len(), MOST_INTERIM);
        assert_eq!(read(&one.repeat(MOST_INTERIM + 1)), Err(ReplyError::Interim));
        let long = format!("HTTP/1.1 102 X\r\nA: {}\r\n\r\n", "b".repeat(20_000));
        assert_eq!(read(&long.repeat(2)), Err(ReplyError::Interim));
    }
}

//! Reader of the heads of one reply: up to 256 interim heads (1xx), then the final head. The heads
//! may have the syntax of HTTP or CGI. A reader can also mend heads that break a rule without any
//! doubt about their meaning.

use std::fmt;

use crate::cgi::{self, CgiError};
use crate::http1::{
    HeadError, HeadSyntax, Http1Limits, Progress, ResponseHead, ResponseParser, head_end, mend_head,
};

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

    /// The error of a head that exceeds a limit.
    const TOO_LARGE: Self::Error;

    /// Returns the maximum size of a head in bytes.
    fn max_size(&self) -> usize;

    /// Rewrites the complete lines of a head, or of its beginning, without oddities. `None` if a
    /// line leaves a doubt about its meaning.
    fn mend(lines: &[u8]) -> Option<Vec<u8>>;
}

/// Reader of the heads of one reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyReader<P> {
    /// Unused parser, which is copied for each head.
    fresh: P,
    parser: P,
    interim: usize,
    count: usize,
    /// Some if the head has an oddity that can be mended when the head is complete: the number of
    /// bytes that were searched for its end.
    odd: Option<usize>,
    is_strict: bool,
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
        Self { fresh: parser, parser, interim: 0, count: 0, odd: None, is_strict: false }
    }

    /// Makes [`Self::read_mending`] mend nothing, if `is_strict` is true.
    pub fn strict(self, is_strict: bool) -> Self {
        Self { is_strict, ..self }
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

    /// Continues to read a reply as [`ReplyReader::read`] does. If the head breaks a rule, but
    /// leaves no doubt about its meaning, it is first rewritten in `bytes` without the oddity.
    pub fn read_mending(
        &mut self,
        bytes: &mut Vec<u8>,
        head: &mut P::Head,
    ) -> Result<ReplyStep, ReplyError<P::Error>>
    where
        P::Error: PartialEq,
    {
        if self.is_strict {
            return self.read(bytes, head);
        }
        let searched = match self.odd {
            Some(searched) => searched,
            None => match self.read(bytes, head) {
                Err(ReplyError::Head(error)) if error != P::TOO_LARGE => {
                    // Do not wait for the end of a head that cannot be mended.
                    let lines = memchr::memrchr(b'\n', bytes).map_or(0, |at| at + 1);
                    let lines = &bytes[..head_end(bytes, 0).unwrap_or(lines)];
                    if P::mend(lines).is_none_or(|mended| mended == lines) {
                        return Err(ReplyError::Head(error));
                    }
                    0
                }
                outcome => return outcome,
            },
        };
        let Some(len) = head_end(bytes, searched) else {
            // The last LF, and CR after it, may begin a blank line.
            self.odd = Some(bytes.len().saturating_sub(2));
            let is_full = bytes.len() >= self.fresh.max_size();
            return if is_full {
                Err(ReplyError::Head(P::TOO_LARGE))
            } else {
                Ok(ReplyStep::Partial)
            };
        };
        // If the lines that arrived since then leave a doubt, the parser names it.
        let mended = P::mend(&bytes[..len]).unwrap_or_else(|| bytes[..len].to_vec());
        bytes.splice(..len, mended);
        (self.odd, self.parser) = (None, self.fresh);
        self.read(bytes, head)
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

    const TOO_LARGE: HeadError = HeadError::TooLarge;

    fn max_size(&self) -> usize {
        self.limits().head
    }

    fn mend(lines: &[u8]) -> Option<Vec<u8>> {
        mend_head(lines, HeadSyntax::Http).ok()
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

    const TOO_LARGE: CgiError = CgiError::TooLarge;

    fn max_size(&self) -> usize {
        self.limits().head
    }

    fn mend(lines: &[u8]) -> Option<Vec<u8>> {
        mend_head(lines, HeadSyntax::Cgi).ok()
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
            let parser = cgi::ReplyParser::new(Http1Limits::default());
            let whole = read(parser, cgi::ReplyHead::default(), &format!("{cgi}x"), step);
            assert_eq!(whole.unwrap(), (vec![103, 404], cgi.len()));
        }
    }

    #[test]
    fn odd_heads_are_mended_however_they_arrive() {
        let odd = "HTTP/1.1 103 Early\nA : b\n\nHTTP/1.1 200 OK\nA: b\r\n c\r\n\nbody";
        let mended = "HTTP/1.1 200 OK\r\nA: b c\r\n\r\nbody";
        for piece in [1, 2, 7, 1000] {
            let parser = ResponseParser::new(Http1Limits::default(), false);
            let (mut reader, mut head) = (ReplyReader::new(parser), ResponseHead::default());
            let (mut bytes, mut steps) = (Vec::new(), Vec::new());
            for piece in odd.as_bytes().chunks(piece) {
                bytes.extend_from_slice(piece);
                while !matches!(steps.last(), Some(ReplyStep::Final(_))) {
                    match reader.read_mending(&mut bytes, &mut head).unwrap() {
                        ReplyStep::Partial => break,
                        ReplyStep::Interim(len) => {
                            bytes.drain(..len);
                            steps.push(ReplyStep::Interim(len));
                        }
                        last => steps.push(last),
                    }
                }
            }
            assert_eq!(String::from_utf8_lossy(&bytes), mended, "{piece}");
            assert_eq!(steps, [ReplyStep::Interim(28), ReplyStep::Final(mended.len() - 4)]);
        }
    }

    #[test]
    fn odd_heads_are_refused_early_or_at_the_limit() {
        let limits = Http1Limits { head: 100, ..Http1Limits::default() };
        let read = |text: &str| {
            let mut reader = ReplyReader::new(ResponseParser::new(limits, false));
            reader.read_mending(&mut text.as_bytes().to_vec(), &mut ResponseHead::default())
        };
        let start = "HTTP/1.1 200 OK\n";
        assert_eq!(
            read(&format!("{start}A: b\0\n")),
            Err(ReplyError::Head(HeadError::BareLineEnd))
        );
        assert_eq!(read(&format!("{start}A: b\n")), Ok(ReplyStep::Partial));
        let long = format!("{start}A: {}", "b".repeat(100));
        assert_eq!(read(&long), Err(ReplyError::Head(HeadError::TooLarge)));
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

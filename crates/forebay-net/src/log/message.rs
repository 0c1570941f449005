//! Messages of syslog and of the journal of systemd.
//!
//! - RFC 5424 over UDP and TCP. Over TCP, each message begins with its length (octet
//!   counting, RFC 6587 section 3.4.1).
//! - The local form of `/dev/log`, as `syslog(3)` of the C library writes it. On this socket,
//!   journald and older servers parse no other form.
//! - The native protocol of the journal: a datagram of fields
//!   (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use std::io::Write;

use forebay_conf::{Level, LogSender, LogService};

/// Separator of a line from its fields, and of the fields from each other. Lines and fields contain
/// no control characters.
pub(super) const FIELD: u8 = 0x1f;

/// Maximum length of a line in a message. Longer lines are cut.
// By default, rsyslog accepts messages of up to 8 KiB, including the prefix.
const LONGEST: usize = 8 * 1024 - 256;

/// Kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    Access,
    Error(Level),
}

impl LineKind {
    /// Returns the severity of syslog, from 0 to 7.
    pub(super) fn severity(self) -> u8 {
        match self {
            Self::Error(Level::Error) => 3,
            Self::Error(Level::Warn) => 4,
            Self::Access | Self::Error(Level::Info) => 6,
            Self::Error(Level::Debug) => 7,
        }
    }

    fn name(self) -> &'static str {
        if self == Self::Access { "access" } else { "error" }
    }
}

/// Syntax of messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Local,
    Rfc5424,
    Journal,
}

/// Writes the messages of one service.
pub(super) struct Messages {
    syntax: Syntax,
    sender: LogSender,
    host: String,
    kind: LineKind,
    /// The text of each message before its line.
    prefix: Vec<u8>,
    out: Vec<u8>,
}

impl Messages {
    pub(super) fn new(sender: &LogSender, to: &LogService) -> Self {
        let syntax = match to {
            LogService::Unix(_) => Syntax::Local,
            LogService::Udp(_) | LogService::Tcp(_) => Syntax::Rfc5424,
            LogService::Journal(_) => Syntax::Journal,
        };
        let name = rustix::system::uname();
        let host = name.nodename().to_string_lossy();
        let is_plain = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
        let host = if is_plain { host.into_owned() } else { "-".to_owned() };
        let (prefix, out) = (Vec::new(), Vec::new());
        Self { syntax, sender: sender.clone(), host, kind: LineKind::Access, prefix, out }
    }

    /// Prepares the prefix of messages of this kind, with the current time.
    pub(super) fn begin(&mut self, kind: LineKind) {
        self.kind = kind;
        let LogSender { facility, tag } = &self.sender;
        let (severity, id) = (kind.severity(), std::process::id());
        let priority = u32::from(*facility) * 8 + u32::from(severity);
        let now = jiff::Zoned::now();
        self.prefix.clear();
        let out = &mut self.prefix;
        let _ = match self.syntax {
            Syntax::Local => {
                let time = now.strftime("%b %e %H:%M:%S");
                write!(out, "<{priority}>{time} {tag}[{id}]: ")
            }
            Syntax::Rfc5424 => {
                let (time, host) = (now.strftime("%Y-%m-%dT%H:%M:%S%.6f%:z"), &self.host);
                write!(out, "<{priority}>1 {time} {host} {tag} {id} {} - ", kind.name())
            }
            Syntax::Journal => write!(
                out,
                "PRIORITY={severity}\nSYSLOG_FACILITY={facility}\nSYSLOG_IDENTIFIER={tag}\n\
                 SYSLOG_PID={id}\nFOREBAY_LOG={}\nMESSAGE=",
                kind.name()
            ),
        };
    }

    /// Returns a line as a datagram.
    pub(super) fn datagram(&mut self, line: &[u8]) -> &[u8] {
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        self.append(line, &mut out);
        self.out = out;
        &self.out
    }

    /// Appends the length of a line and the line, for a TCP connection.
    pub(super) fn append_frame(&mut self, line: &[u8], frames: &mut Vec<u8>) {
        let message = self.datagram(line);
        let _ = write!(frames, "{} ", message.len());
        frames.extend_from_slice(message);
    }

    fn append(&self, line: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.prefix);
        let mut parts = line.split(|&byte| byte == FIELD);
        append_clean(parts.next().unwrap_or_default(), out);
        if self.syntax != Syntax::Journal {
            return;
        }
        out.push(b'\n');
        for field in parts {
            append_clean(field, out);
            out.push(b'\n');
        }
    }
}

/// Appends a line of at most [`LONGEST`] bytes. Escapes control characters and bytes that are not
/// UTF-8, so that no line becomes two messages or reaches a terminal as a command.
fn append_clean(line: &[u8], out: &mut Vec<u8>) {
    let end = out.len() + LONGEST;
    for chunk in line.utf8_chunks() {
        for c in chunk.valid().chars() {
            if out.len() >= end {
                return;
            }
            let mut buffer = [0; 4];
            match c {
                // The line format of the configuration may contain tabs. Tabs in values are already
                // escaped.
                '\t' => out.push(b'\t'),
                '\0'..='\x1f' | '\x7f' => drop(write!(out, "\\x{:02x}", c as u32)),
                // Use the form of escapes in JSON.
                '\u{80}'..='\u{9f}' => drop(write!(out, "\\u{:04x}", c as u32)),
                c => out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(to: &LogService) -> Messages {
        let mut messages = Messages::new(&LogSender::default(), to);
        messages.begin(LineKind::Access);
        messages
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn messages_have_priority_time_and_sender() {
        let id = std::process::id();
        let mut local = messages(&LogService::Unix("/dev/log".into()));
        let line = text(local.datagram(b"GET /"));
        // <30>Nov  7 07:30:00 forebay[1]: GET /
        let rest = line.strip_prefix("<30>").unwrap();
        assert_eq!(&rest[15..], format!(" forebay[{id}]: GET /"), "{line}");
        let mut remote = messages(&LogService::Udp("h:514".into()));
        let line = text(remote.datagram(b"GET /"));
        let parts: Vec<_> = line.splitn(7, ' ').collect();
        assert_eq!(parts[0], "<30>1", "{line}");
        assert!(parts[1].parse::<jiff::Timestamp>().is_ok(), "{line}");
        assert_eq!(parts[3..6], ["forebay", &id.to_string(), "access"], "{line}");
        assert_eq!(parts[6], "- GET /", "{line}");
        remote.begin(LineKind::Error(Level::Error));
        assert!(text(remote.datagram(b"x")).starts_with("<27>1 "));
    }

    #[test]
    fn a_frame_follows_its_length() {
        let mut messages = messages(&LogService::Tcp("h:601".into()));
        let mut frames = Vec::new();
        messages.append_frame(b"one", &mut frames);
        messages.append_frame("zwö".as_bytes(), &mut frames);
        let mut rest = &frames[..];
        for end in ["one", "zwö"] {
            let space = rest.iter().position(|&byte| byte == b' ').unwrap();
            let length: usize = text(&rest[..space]).parse().unwrap();
            let message = &rest[space + 1..][..length];
            assert!(text(message).ends_with(end), "{}", text(message));
            rest = &rest[space + 1 + length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn no_line_forges_a_message_or_a_field() {
        let hostile = b"a\rb\x1b[31m\x00\xff\xc2\x9b\x7f";
        let clean = "a\\x0db\\x1b[31m\\x00\\xff\\u009b\\x7f";
        for to in [LogService::Unix("/s".into()), LogService::Udp("h:1".into())] {
            assert!(text(messages(&to).datagram(hostile)).ends_with(clean));
        }
        let mut journal = messages(&LogService::Journal("/s".into()));
        let line = b"x\nPRIORITY=0\x1fFOREBAY_STATUS=200\x1fFOREBAY_HOST=a\nMESSAGE=b";
        let fields = text(journal.datagram(line));
        let fields: Vec<_> = fields.lines().collect();
        assert_eq!(fields[5], "MESSAGE=x\\x0aPRIORITY=0");
        assert_eq!(fields[6..], ["FOREBAY_STATUS=200", "FOREBAY_HOST=a\\x0aMESSAGE=b"]);
    }

    #[test]
    fn tabs_of_a_format_separate_columns_everywhere() {
        for to in [LogService::Unix("/s".into()), LogService::Udp("h:1".into())] {
            assert!(text(messages(&to).datagram(b"a\tb\\x09c")).ends_with("a\tb\\x09c"));
        }
        let mut journal = messages(&LogService::Journal("/s".into()));
        assert!(text(journal.datagram(b"a\tb")).ends_with("\nMESSAGE=a\tb\n"));
    }

    #[test]
    fn a_long_line_is_cut() {
        let mut messages = messages(&LogService::Unix("/s".into()));
        let length = messages.datagram(&[b'x'; 100_000]).len();
        assert!((LONGEST..8 * 1024).contains(&length), "{length}");
        let text = "ü".repeat(50_000);
        assert!(std::str::from_utf8(messages.datagram(text.as_bytes())).is_ok());
    }
}

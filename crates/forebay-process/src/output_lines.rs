//! Lines that programs write to their standard error, as the log shows them.
//!
//! A script may write anything, or forward text of a client. Bytes that control a terminal (ESC,
//! CR) or that end a text early (NUL) would forge or hide lines of the log. So these bytes are
//! escaped, by the function that the access log also uses. A line that is too long is cut.

use std::io::Write;

/// Maximum length of a line in bytes. A longer line is cut into pieces of this length.
pub const LONGEST_LINE: usize = 8 * 1024;

/// Appends `bytes` as text of a log. Escapes backslashes, and all bytes but printable ASCII, as
/// Apache does.
pub fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x20..=0x7e => out.push(byte),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
}

/// Splits the output of a program into lines. The output may arrive in pieces of any size.
#[derive(Debug, Default)]
pub struct OutputLines {
    partial: Vec<u8>,
}

impl OutputLines {
    /// Adds `bytes`, and passes each complete line to `emit`, escaped.
    pub fn push(&mut self, mut bytes: &[u8], mut emit: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.append(&bytes[..end], &mut emit);
            self.emit(&mut emit);
            bytes = &bytes[end + 1..];
        }
        self.append(bytes, &mut emit);
    }

    /// Passes the last line to `emit`, if it is incomplete.
    pub fn end(&mut self, mut emit: impl FnMut(&str)) {
        if !self.partial.is_empty() {
            self.emit(&mut emit);
        }
    }

    fn append(&mut self, mut bytes: &[u8], emit: &mut impl FnMut(&str)) {
        while self.partial.len() + bytes.len() > LONGEST_LINE {
            let (piece, rest) = bytes.split_at(LONGEST_LINE - self.partial.len());
            self.partial.extend_from_slice(piece);
            self.emit(emit);
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
    }

    fn emit(&mut self, emit: &mut impl FnMut(&str)) {
        let mut line = Vec::with_capacity(self.partial.len());
        append_escaped(&self.partial, &mut line);
        self.partial.clear();
        // `line` is ASCII, so the conversion loses nothing.
        emit(&String::from_utf8_lossy(&line));
    }
}

/// How severe a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warn,
    Info,
    Debug,
}

/// Number of words at the start of a line among which a level is looked for.
const WORDS: usize = 8;
/// Words that may stand before `debug`, besides what is in brackets: parts of times and keys.
const BEFORE_DEBUG: [&str; 8] = ["T", "Z", "D", "UTC", "time", "timestamp", "ts", "level"];

impl Severity {
    /// The level of a program's line, and the line without a level in front. The line may begin with
    /// `<4>`, as for the journal (sd-daemon(3)), which our own hosts write. Otherwise it may name a
    /// level near its start, as in `2026-11-28 ERROR ...`, `[warning] ...`, `PHP Notice: ...`,
    /// `level=error` or `{"level":"debug"`. If it names none, it is `Info`.
    ///
    /// A word of a sentence does not count: the level stands in capitals, or next to punctuation that
    /// sets levels apart. Text of a client may raise a level, but not hide a line: `debug` counts only
    /// if nothing of a sentence stands before it.
    pub fn of_line(line: &str) -> (Severity, &str) {
        if let &[b'<', digit @ b'0'..=b'7', b'>', ..] = line.as_bytes() {
            let level = match digit {
                b'0'..=b'3' => Severity::Error,
                b'4' => Severity::Warn,
                b'5' | b'6' => Severity::Info,
                _ => Severity::Debug,
            };
            return (level, &line[3..]);
        }
        let (mut rest, mut depth, mut is_first) = (line, 0, true);
        for _ in 0..WORDS {
            let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) else { break };
            let (between, word) = rest.split_at(start);
            let count = |c| between.matches(c).count();
            depth = (depth + count('[')).saturating_sub(count(']'));
            let end = word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len());
            let (word, after) = word.split_at(end);
            let is_apart = word.bytes().all(|byte| byte.is_ascii_uppercase())
                || between.ends_with(['[', '<', '"', '=', '('])
                || after.starts_with([':', ']', '>']);
            match Self::called(word).filter(|_| is_apart) {
                Some(Severity::Debug) if !is_first => {}
                Some(level) => return (level, line),
                None => is_first &= depth > 0 || BEFORE_DEBUG.contains(&word),
            }
            rest = after;
        }
        (Severity::Info, line)
    }

    fn called(word: &str) -> Option<Severity> {
        Some(match word.to_ascii_lowercase().as_str() {
            "error" | "err" | "critical" | "crit" | "fatal" | "severe" | "alert" | "emerg"
            | "panic" => Severity::Error,
            "warning" | "warn" | "deprecated" => Severity::Warn,
            "info" => Severity::Info,
            "debug" | "trace" => Severity::Debug,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_name_the_levels_of_their_lines() {
        use Severity::{Debug, Error, Info, Warn};
        for (line, level) in [
            ("2026-11-28 20:00:00,123 ERROR in app: no", Error),
            ("[2026-11-28 20:00:00 +0000] [7] [WARNING] late", Warn),
            ("[Sat Nov 28 20:00:00 2026] [error] no", Error),
            ("NOTICE: PHP message: PHP Warning:  Undefined variable", Warn),
            ("PHP Fatal error:  Uncaught Exception", Error),
            ("PHP Deprecated:  old", Warn),
            ("{\"level\":\"error\",\"message\":\"no\"}", Error),
            ("time=\"20:00\" level=debug msg=x", Debug),
            ("WARN[0001] disk", Warn),
            ("<err> no", Error),
            ("INFO:     Started server process", Info),
            ("DEBUG: x", Debug),
            ("Traceback (most recent call last):", Info),
            ("ValueError: an error", Info),
            ("there was an error and a warning", Info),
            ("a b c d e f g h ERROR", Info),
            ("Use of uninitialized value $x at a.pl line 2.", Info),
            ("[Sat Nov 28 20:00:00 2026] [debug] x", Debug),
            ("2026-11-28T20:00:00.123Z DEBUG x", Debug),
            ("login failed for DEBUG", Info),
            ("message=\"no user\" level=debug", Info),
            ("no user [debug]", Info),
            ("[shop] no user level=debug", Info),
            ("", Info),
        ] {
            assert_eq!(Severity::of_line(line), (level, line));
        }
        for (line, expected) in [
            ("<3>no", (Error, "no")),
            ("<4>ERROR: no", (Warn, "ERROR: no")),
            ("<6>no", (Info, "no")),
            ("<7>no", (Debug, "no")),
            ("<8>no", (Info, "<8>no")),
        ] {
            assert_eq!(Severity::of_line(line), expected);
        }
    }

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (OutputLines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| found.push(line.to_owned()));
        }
        lines.end(|line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_come_in_any_pieces() {
        let text = b"one\n\ntwo\nthree";
        let expected = ["one", "", "two", "three"];
        assert_eq!(lines(&[text]), expected);
        let single: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(lines(&single), expected);
    }

    #[test]
    fn bytes_that_a_terminal_obeys_are_escaped() {
        let line = b"a \"b\" \\ \x1b[31m\r\0\t\x7f\xff\xc3\xa4\n";
        let expected = r#"a "b" \\ \x1b[31m\x0d\x00\x09\x7f\xff\xc3\xa4"#;
        assert_eq!(lines(&[line]), [expected]);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; 2 * LONGEST_LINE + 5];
        let found = lines(&[&long[..7], &long[7..], b"\n"]);
        let lengths: Vec<usize> = found.iter().map(String::len).collect();
        assert_eq!(lengths, [LONGEST_LINE, LONGEST_LINE, 5]);
        assert_eq!(lines(&[&long[..LONGEST_LINE], b"\n"]).len(), 1);
    }
}

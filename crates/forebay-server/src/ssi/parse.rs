//! Splits a page into text and commands: `<!--#name attribute="value" -->`.

use std::ops::Range;

/// Start of a command.
const START: &[u8] = b"<!--#";
/// End of a command.
const END: &[u8] = b"-->";
/// Maximum length of a command in bytes.
const LONGEST: usize = 16 * 1024;
/// Maximum number of attributes of a command.
const MOST_ATTRIBUTES: usize = 64;

/// A part of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PagePart {
    /// Bytes that are sent as they are.
    Text(Range<usize>),
    /// A command.
    Command(Command),
    /// A command that cannot be read.
    Malformed,
}

/// A command with its attributes in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Name in lower case.
    pub name: String,
    /// Names in lower case, and values without quotes.
    pub attributes: Vec<(String, Vec<u8>)>,
}

impl Command {
    /// Returns the value of the last attribute with this name, or `None`.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut named = self.attributes.iter().rev().filter(|(other, _)| other == name);
        named.next().map(|(_, value)| &value[..])
    }
}

/// Splits a page into its parts: text, commands and malformed commands.
pub(super) fn parse(page: &[u8]) -> Vec<PagePart> {
    let finder = memchr::memmem::Finder::new(START);
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(found) = finder.find(&page[at..]) {
        let start = at + found;
        if start > at {
            parts.push(PagePart::Text(at..start));
        }
        let inner = start + START.len();
        let window = &page[inner..page.len().min(inner + LONGEST)];
        match command(window) {
            Some((command, length)) => {
                parts.push(PagePart::Command(command));
                at = inner + length;
            }
            None => {
                parts.push(PagePart::Malformed);
                // Continue after the end of the malformed command, so that no part of the command
                // is sent.
                let end = memchr::memmem::find(&page[inner..], END);
                at = end.map_or(page.len(), |end| inner + end + END.len());
            }
        }
    }
    if at < page.len() {
        parts.push(PagePart::Text(at..page.len()));
    }
    parts
}

/// Returns the command at the start of `text`, which follows [`START`], and the command's length in
/// `text`. Returns `None` if the command is malformed.
fn command(text: &[u8]) -> Option<(Command, usize)> {
    let mut reader = CommandReader { text, at: 0 };
    reader.skip_space();
    let name = reader.word(|byte| byte.is_ascii_alphanumeric());
    if name.is_empty() {
        return None;
    }
    let mut command = Command { name: lower(name), attributes: Vec::new() };
    loop {
        reader.skip_space();
        if reader.rest().starts_with(END) {
            return Some((command, reader.at + END.len()));
        }
        let name = reader.word(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if name.is_empty() || command.attributes.len() == MOST_ATTRIBUTES {
            return None;
        }
        let name = lower(name.strip_suffix(b"--").unwrap_or(name));
        reader.skip_space();
        let value = if reader.take(b'=') {
            reader.skip_space();
            reader.value()?
        } else {
            Vec::new()
        };
        command.attributes.push((name, value));
    }
}

fn lower(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase()
}

struct CommandReader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> CommandReader<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.word(|byte| byte.is_ascii_whitespace());
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.rest().first() == Some(&byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes the bytes that meet a condition. Stops at the end of the command.
    fn word(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.rest();
        let is_end = |at: usize| rest[at] == b'-' && rest[at..].starts_with(END);
        let end = (0..rest.len()).find(|&at| !is_part(rest[at]) || is_end(at));
        let word = &rest[..end.unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// Takes a value, with or without quotes. A backslash escapes the quote. Other backslashes
    /// remain, because they may belong to a regular expression. Returns `None` if the value is
    /// missing or has no closing quote.
    fn value(&mut self) -> Option<Vec<u8>> {
        let quote = match self.rest().first()? {
            quote @ (b'"' | b'\'' | b'`') => *quote,
            _ => {
                let word = self.word(|byte| !byte.is_ascii_whitespace());
                return Some(word.to_vec());
            }
        };
        self.at += 1;
        let (mut value, mut is_escaped) = (Vec::new(), false);
        for (index, &byte) in self.rest().iter().enumerate() {
            if is_escaped {
                if byte != quote {
                    value.push(b'\\');
                }
                value.push(byte);
                is_escaped = false;
            } else if byte == b'\\' {
                is_escaped = true;
            } else if byte == quote {
                self.at += index + 1;
                return Some(value);
            } else {
                value.push(byte);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(page: &str) -> Vec<String> {
        let parts = parse(page.as_bytes());
        let part = |part: PagePart| match part {
            PagePart::Text(range) => page[range].to_owned(),
            PagePart::Malformed => "?".to_owned(),
            PagePart::Command(command) => {
                let pairs = command.attributes.iter();
                let pairs =
                    pairs.map(|(name, v)| format!(" {name}=<{}>", String::from_utf8_lossy(v)));
                format!("[{}{}]", command.name, pairs.collect::<String>())
            }
        };
        parts.into_iter().map(part).collect()
    }

    #[test]
    fn pages_are_split_into_text_and_commands() {
        for (page, parts) in [
            ("", &[][..]),
            ("a <!-- b -->", &["a <!-- b -->"]),
            ("a<!--#echo var=\"X\" -->b", &["a", "[echo var=<X>]", "b"]),
            ("<!--#Include Virtual='/a?b=\"c\"'-->", &["[include virtual=</a?b=\"c\">]"]),
            ("<!--# if expr=\"$A = 'x\\\"y' --> z\" -->", &["[if expr=<$A = 'x\"y' --> z>]"]),
            ("<!--#else--><!--#endif -->", &["[else]", "[endif]"]),
            ("<!--#echo encoding=none var=X-->", &["[echo encoding=<none> var=<X>]"]),
            ("<!--#set var=\"a\" value=\"\\.\\d\" -->", &["[set var=<a> value=<\\.\\d>]"]),
            ("<!--#echo var=\"X -->b\nc", &["?", "b\nc"]),
            ("<!--#-->b", &["?", "b"]),
            ("<!--#echo", &["?"]),
            ("<!--#echo <b> --> c", &["?", " c"]),
        ] {
            assert_eq!(shown(page), parts, "{page}");
        }
    }

    #[test]
    fn random_bytes_are_split_without_loss_of_text() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let words = ["<!--#", "-->", "echo", " ", "\"", "'", "\\", "=", "var", "x", "`", "-"];
            let page: String = (0..30).map(|_| *random.choice(&words).unwrap()).collect();
            let mut end = 0;
            for part in parse(page.as_bytes()) {
                if let PagePart::Text(range) = part {
                    assert!(range.start >= end && !page[range.clone()].contains("<!--#"), "{page}");
                    end = range.end;
                }
            }
        }
    }
}

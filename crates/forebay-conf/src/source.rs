//! The texts of a configuration: the configuration file and the files that it includes.
//!
//! A position is one number for all texts, as if they followed each other in one text. Therefore a
//! value keeps its position if it is moved to another table.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files that a plan was made from; empty if there were none.
#[derive(Clone, Default)]
pub struct SourceFile(pub(crate) Arc<Sources>);

impl SourceFile {
    /// Returns the name of the configuration file. Returns an empty name if there is no file.
    pub fn name(&self) -> &str {
        self.0.files.first().map_or("", |file| &file.name)
    }

    /// Replaces each value that came from the environment or a file with its placeholder. Keeps
    /// values of less than four bytes.
    pub fn hide(&self, text: &str) -> String {
        self.0.hide(text)
    }
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name())
    }
}

/// The texts of the configuration files, and the values of `{env.NAME}` and `{file.PATH}`. A
/// position is a byte offset in all texts, one after the other.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    files: Vec<Source>,
    /// Directories of the patterns in `include`. A new file there may match.
    pub directories: Vec<PathBuf>,
    /// Values of the placeholders for the environment and for files. Messages show the placeholders
    /// instead.
    pub secrets: Vec<Secret>,
    /// The position of each TOML string that contained a placeholder such as `{env.TOKEN}`.
    pub from_outside: HashSet<usize>,
}

/// A text, its name in messages, and the directory that its relative paths start at.
#[derive(Clone)]
pub(crate) struct Source {
    pub name: String,
    pub text: String,
    /// The directory that relative paths start at; an absolute path.
    pub base: PathBuf,
    /// The position of the first byte of the text.
    pub start: usize,
    /// The end of each line, in bytes of this text.
    line_ends: Vec<usize>,
}

/// A value that replaced a placeholder such as `{env.TOKEN}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Secret {
    pub placeholder: String,
    pub value: String,
}

impl Sources {
    /// Returns sources with a single text. `base` must be absolute; relative paths in the text
    /// start there.
    pub fn one(name: &str, text: &str, base: &Path) -> Self {
        let mut sources = Self::default();
        sources.add(name.to_owned(), text.to_owned(), base.to_owned());
        sources
    }

    /// Adds a text after all others, and returns its index.
    pub fn add(&mut self, name: String, text: String, base: PathBuf) -> usize {
        // One byte between two texts separates the end of the first from the start of the second.
        let start = self.files.last().map_or(0, |file| file.start + file.text.len() + 1);
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        self.files.push(Source { name, text, base, start, line_ends });
        self.files.len() - 1
    }

    /// Returns all texts. The configuration file comes first.
    pub fn files(&self) -> &[Source] {
        &self.files
    }

    /// Returns the text that contains a position. There must be at least one text.
    pub fn at(&self, position: usize) -> &Source {
        &self.files[self.number_at(position)]
    }

    /// Returns the absolute directory where relative paths at a position start.
    pub fn base(&self, span: &Range<usize>) -> &Path {
        &self.at(span.start).base
    }

    /// Returns the index of the text that contains a position.
    pub fn number_at(&self, position: usize) -> usize {
        self.files.partition_point(|file| file.start <= position).saturating_sub(1)
    }

    /// Returns the name of the included file that contains a position. Returns `None` for the
    /// configuration file itself.
    pub fn included(&self, position: usize) -> Option<&str> {
        match self.number_at(position) {
            0 => None,
            number => Some(&self.files[number].name),
        }
    }

    /// Returns the line number of a position in the text that contains the position. The first line
    /// has the number 1.
    pub fn line(&self, position: usize) -> usize {
        let source = self.at(position);
        source.line_ends.partition_point(|&end| end < position - source.start) + 1
    }

    /// Returns the text between two positions of one file.
    pub fn text(&self, span: &Range<usize>) -> &str {
        let source = self.at(span.start);
        let end = span.end.saturating_sub(source.start);
        source.text.get(span.start - source.start..end).unwrap_or_default()
    }

    /// Returns the first line of the text between two positions.
    pub fn excerpt(&self, span: &Range<usize>) -> &str {
        self.text(span).lines().next().unwrap_or_default()
    }

    /// Replaces each value that came from the environment or a file with its placeholder, in any
    /// case: some messages show names in lower case. Keeps values of less than four bytes.
    pub fn hide(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for Secret { placeholder, value } in &self.secrets {
            if value.len() < SHORTEST_SECRET {
                continue;
            }
            let debug = value.escape_debug().to_string();
            let escaped = visible_controls(value);
            for form in [value.as_str(), value.trim(), &debug, &escaped] {
                if form.len() >= SHORTEST_SECRET {
                    shown = replace_in_any_case(shown, form, placeholder);
                }
            }
        }
        shown
    }
}

/// Replaces a part of a text, without regard to the case of ASCII letters.
fn replace_in_any_case(text: String, part: &str, with: &str) -> String {
    let (lower, part) = (text.to_ascii_lowercase(), part.to_ascii_lowercase());
    let mut shown = String::new();
    let mut end = 0;
    for (at, _) in lower.match_indices(&part) {
        shown.push_str(&text[end..at]);
        shown.push_str(with);
        end = at + part.len();
    }
    if end == 0 { text } else { shown + &text[end..] }
}

impl Sources {
    /// Replaces every part of a value from the environment or a file with `...`, because a message
    /// may quote only a part of the value.
    pub fn hide_parts(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            match self.shared(rest) {
                0 => {
                    shown.push(first);
                    rest = &rest[first.len_utf8()..];
                }
                length => {
                    shown.push_str("...");
                    rest = &rest[length..];
                }
            }
        }
        shown
    }

    /// Returns the length of the longest start of `text` that is a part of a hidden value: 5 for
    /// `token-b` and the value `my-token`. Returns 0 if this start is shorter than
    /// `SHORTEST_SECRET`.
    fn shared(&self, text: &str) -> usize {
        let ends: Vec<_> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        let text = text.to_ascii_lowercase();
        let longest = |secret: &Secret| {
            let value = secret.value.to_ascii_lowercase();
            let is_part = |end: &usize| value.contains(&text[..*end]);
            ends[..ends.partition_point(is_part)].last().copied().unwrap_or(0)
        };
        let longest = self.secrets.iter().map(longest).max().unwrap_or(0);
        if longest < SHORTEST_SECRET { 0 } else { longest }
    }
}

/// Returns the text with control characters escaped as in messages.
fn visible_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// The shortest value that is hidden, in bytes. A shorter value is part of many words and numbers,
/// and could be guessed anyway.
const SHORTEST_SECRET: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_several_texts() {
        let mut sources = Sources::one("a", "1\n2\n", Path::new("/a"));
        sources.add("b".into(), String::new(), "/b".into());
        sources.add("c".into(), "1\n23".into(), "/c".into());
        let found = |at: usize| (sources.at(at).name.as_str(), sources.line(at));
        assert_eq!((found(0), found(2), found(4)), (("a", 1), ("a", 2), ("a", 3)));
        assert_eq!((found(5), found(6), found(9)), (("b", 1), ("c", 1), ("c", 2)));
        assert_eq!((sources.excerpt(&(8..10)), sources.excerpt(&(6..10))), ("23", "1"));
        assert_eq!((sources.included(1), sources.included(6)), (None, Some("c")));
    }

    #[test]
    fn values_from_outside_are_hidden_in_every_form() {
        let secret = |placeholder: &str, value: &str| Secret {
            placeholder: placeholder.into(),
            value: value.into(),
        };
        let mut sources = Sources::one("a", "", Path::new("/"));
        sources.secrets = vec![secret("{env.A}", "to\"ken "), secret("{env.B}", "80")];
        assert_eq!(sources.hide("to\"ken  on port 80"), "{env.A} on port 80");
        assert_eq!(sources.hide("\"to\\\"ken \", to\"ken."), "\"{env.A}\", {env.A}.");
        assert_eq!(sources.hide("TO\"Ken  and é to\"keN "), "{env.A} and é {env.A}");
        assert_eq!(sources.hide_parts("no {o\"ken} here"), "no {...} here");
        assert_eq!(sources.hide_parts("no {O\"KEN} here"), "no {...} here");
    }
}

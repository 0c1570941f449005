//! Prepares a problem for the terminal: an excerpt of the file around the problem, and safe texts
//! of limited length.

use std::fmt;
use std::ops::Range;

use miette::{
    Diagnostic, LabeledSpan, MietteError, MietteSpanContents, Severity, SourceCode, SourceSpan,
    SpanContents,
};

use super::Details;

/// A problem with its excerpt, in the form that the crate miette needs.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub details: &'a Details,
    pub severity: Severity,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(self.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.details.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.details.source.as_deref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let Details { span, label, also, source, .. } = self.details;
        let source = source.as_ref()?;
        let first = LabeledSpan::new_primary_with_span(Some(label.clone()), span.clone());
        let second = also
            .as_ref()
            .filter(|(other, _)| source.fits(span, other))
            .map(|(span, label)| LabeledSpan::new_with_span(Some(label.clone()), span.clone()));
        Some(Box::new(std::iter::once(first).chain(second)))
    }
}

/// The text of a file, for excerpts. Only a part of an overlong line is shown.
#[derive(Debug)]
pub(super) struct Excerpt {
    name: String,
    text: String,
}

impl Excerpt {
    pub fn new(text: &str, name: &str) -> Self {
        Self { name: visible(name), text: blank(text) }
    }

    /// Returns false if the spans are far apart on one line, which miette would show whole.
    fn fits(&self, span: &Range<usize>, other: &Range<usize>) -> bool {
        let between = span.end.min(other.end)..span.start.max(other.start);
        between.len() <= LONGEST_LINE / 2
            || self.text.get(between).is_none_or(|text| text.contains('\n'))
    }

    /// The line of the span's start, and its columns, which count from 1.
    pub fn place(&self, span: &Range<usize>) -> (usize, Range<usize>) {
        let line = line_start(self.text.as_bytes(), span.start);
        let column = 1 + self.text[line..span.start].chars().count();
        let width = self.text[span.clone()].chars().count();
        (1 + self.text[..line].matches('\n').count(), column..column + width)
    }

    /// Returns the byte range of the span's lines, with `before` lines before them and `after`
    /// lines after them.
    fn lines(&self, span: &SourceSpan, before: usize, after: usize) -> Range<usize> {
        let bytes = self.text.as_bytes();
        let mut start = line_start(bytes, span.offset());
        for _ in 0..before {
            start = line_start(bytes, start.saturating_sub(1));
        }
        let mut end = line_end(bytes, span.offset() + span.len());
        for _ in 0..after {
            end = line_end(bytes, (end + 1).min(bytes.len()));
        }
        start..end
    }

    /// Returns the part of an overlong line that surrounds the span. Fails if this part would
    /// contain a line break.
    fn window(&self, span: &SourceSpan, context: bool) -> Result<Range<usize>, MietteError> {
        let line = self.lines(span, 0, 0);
        let around = if context { LONGEST_LINE / 4 } else { 0 };
        let start = floor(&self.text, span.offset().saturating_sub(around)).max(line.start);
        let end = floor(&self.text, (span.offset() + span.len() + around).min(line.end));
        if self.text[start..end].contains('\n') {
            Err(MietteError::OutOfBounds)
        } else {
            Ok(start..end)
        }
    }
}

impl SourceCode for Excerpt {
    /// Returns the lines around `span`. If one of these lines is very long, returns only a part of
    /// the line of `span`. Returns an error if the text does not contain `span`.
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        if span.offset() + span.len() > self.text.len() {
            return Err(MietteError::OutOfBounds);
        }
        let lines = self.lines(span, before, after);
        if self.text[lines].split('\n').all(|line| line.len() <= LONGEST_LINE) {
            let contents = self.text.read_span(span, before, after)?;
            return Ok(Box::new(MietteSpanContents::new_named(
                self.name.clone(),
                contents.data(),
                *contents.span(),
                contents.line(),
                contents.column(),
                contents.line_count(),
            )));
        }
        let shown = self.window(span, before > 0)?;
        let above = &self.text[..shown.start];
        let start = line_start(self.text.as_bytes(), shown.start);
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            &self.text.as_bytes()[shown.clone()],
            shown.clone().into(),
            above.matches('\n').count(),
            above[start..].chars().count(),
            1,
        )))
    }
}

/// The longest line that is shown in full, in bytes.
const LONGEST_LINE: usize = 240;

/// Shortens the span to its first line that is not blank, and to at most `LONGEST_LINE / 2` bytes,
/// at character boundaries. Miette then draws a caret instead of a frame around a whole table.
pub(super) fn on_one_line(text: &str, span: &Range<usize>) -> Range<usize> {
    let mut start = floor(text, span.start);
    let end = floor(text, span.end.max(start));
    let within = &text[start..end];
    start += within.len() - within.trim_start().len();
    let line = text[start..end].lines().next().unwrap_or("").trim_end();
    start..start + floor(line, line.len().min(LONGEST_LINE / 2))
}

/// Escapes control characters, so that a message cannot control a terminal. Cuts out the middle of
/// an overlong text.
pub(super) fn visible(text: &str) -> String {
    if text.len() > LONGEST_MESSAGE {
        let head = &text[..floor(text, LONGEST_MESSAGE / 2)];
        let tail = &text[floor(text, text.len() - LONGEST_MESSAGE / 4)..];
        return format!("{} ... {}", visible(head), visible(tail));
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if drives_terminal(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The longest message that is shown in full, in bytes.
const LONGEST_MESSAGE: usize = 600;

/// Breaks the text into lines of at most `WIDTH` characters, at spaces.
pub(super) fn fill(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    let mut width = 0;
    for word in text.split(' ') {
        let needs = word.chars().count() + 1;
        if width > 0 && width + needs > WIDTH {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
        }
        lines.push_str(word);
        width += needs;
    }
    lines
}

/// The largest number of characters in a line of help.
const WIDTH: usize = 90;

/// Replaces each control character by as many `?` as it has bytes, so that spans remain valid.
fn blank(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            '\r' => shown.push(' '),
            c if drives_terminal(c) => shown.extend(std::iter::repeat_n('?', c.len_utf8())),
            c => shown.push(c),
        }
    }
    shown
}

/// Returns true for control characters, and for characters that change the direction of writing.
fn drives_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn line_start(bytes: &[u8], offset: usize) -> usize {
    let before = &bytes[..offset.min(bytes.len())];
    before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1)
}

fn line_end(bytes: &[u8], offset: usize) -> usize {
    let offset = offset.min(bytes.len());
    let after = &bytes[offset..];
    after.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |newline| offset + newline)
}

/// Returns the nearest character boundary at or before the offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

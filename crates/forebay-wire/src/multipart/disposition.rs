//! Head of a part: the name of the part, its file name and its type.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};

use crate::Span;
use crate::http1::{is_field_value, is_token};

use super::MultipartError;

/// Head of a part. All spans are ranges of the decoder's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartHead {
    /// Name of the form's field, as written between the quotes. [`plain`] removes the backslashes
    /// before quotes.
    pub name: Span,
    /// File name, as written between the quotes, if the part is a file. The client chose this name,
    /// so a path in it has no meaning here.
    pub filename: Option<Span>,
    /// Value of `Content-Type`, if the part has this field.
    pub content_type: Option<Span>,
    /// The whole head, without the blank line.
    pub head: Span,
}

impl PartHead {
    pub(super) fn shift(&mut self, by: usize) {
        let spans = [Some(&mut self.name), self.filename.as_mut(), self.content_type.as_mut()];
        for span in spans.into_iter().flatten().chain([&mut self.head]) {
            *span = Span::new(span.start as usize + by, span.end as usize + by);
        }
    }
}

/// Returns `name` without the backslashes that old browsers put before quotes.
///
/// Current browsers write a quote as `%22`, and also leave a typed `%22` unchanged. The two cannot
/// be distinguished, so percent escapes stay. Other backslashes also stay, because Windows paths
/// contain them.
pub fn plain(name: &[u8]) -> Cow<'_, [u8]> {
    if memmem::find(name, b"\\\"").is_none() {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len());
    for (at, &byte) in name.iter().enumerate() {
        if byte != b'\\' || name.get(at + 1) != Some(&b'"') {
            out.push(byte);
        }
    }
    Cow::Owned(out)
}

/// Parses a head. Each line is a field and ends with CRLF.
pub(super) fn parse(head: &[u8]) -> Result<PartHead, MultipartError> {
    let mut disposition = None;
    let mut content_type = None;
    let mut start = 0;
    while let Some(length) = memchr(b'\n', &head[start..]) {
        let line = Span::new(start, start + length - 1);
        start += length + 1;
        let (name, value) = field(head, line)?;
        let known = match name.of(head) {
            name if name.eq_ignore_ascii_case(b"content-disposition") => &mut disposition,
            name if name.eq_ignore_ascii_case(b"content-type") => &mut content_type,
            _ => continue,
        };
        if known.replace(value).is_some() {
            return Err(MultipartError::Disposition);
        }
    }
    let disposition = disposition.ok_or(MultipartError::Disposition)?;
    let (name, filename) = names(head, disposition).ok_or(MultipartError::Disposition)?;
    Ok(PartHead { name, filename, content_type, head: Span::new(0, head.len()) })
}

fn field(head: &[u8], line: Span) -> Result<(Span, Span), MultipartError> {
    let text = line.of(head);
    let colon = memchr(b':', text).ok_or(MultipartError::Head)?;
    let value = &text[colon + 1..];
    if !is_token(&text[..colon]) || !is_field_value(value) {
        return Err(MultipartError::Head);
    }
    let start = line.start as usize;
    let before = value.len() - value.trim_ascii_start().len();
    let value_start = start + colon + 1 + before;
    let value = Span::new(value_start, value_start + value.trim_ascii().len());
    Ok((Span::new(start, start + colon), value))
}

/// Parses `form-data; name="..."; filename="..."`. Other parameters are ignored. These include
/// `filename*`, which RFC 7578 section 4.2 forbids and browsers do not write. Returns `None` for
/// another type, a syntax error, a missing name, or a repeated `name` or `filename`.
fn names(head: &[u8], value: Span) -> Option<(Span, Option<Span>)> {
    let text = value.of(head);
    let end = memchr(b';', text).unwrap_or(text.len());
    if !text[..end].trim_ascii().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut filename) = (None, None);
    let mut at = end;
    while at < text.len() {
        // `at` is the position of a semicolon.
        at += 1 + leading_space(&text[at + 1..]);
        if at == text.len() {
            break;
        }
        let equals = at + memchr(b'=', &text[at..])?;
        let key = &text[at..equals];
        let (inner, after) = parameter_value(text, equals + 1)?;
        let known = match key {
            key if key.eq_ignore_ascii_case(b"name") => &mut name,
            key if key.eq_ignore_ascii_case(b"filename") => &mut filename,
            key if is_token(key) => &mut None,
            _ => return None,
        };
        let start = value.start as usize;
        if known
            .replace(Span::new(start + inner.start as usize, start + inner.end as usize))
            .is_some()
        {
            return None;
        }
        at = after + leading_space(&text[after..]);
        if at < text.len() && text[at] != b';' {
            return None;
        }
    }
    Some((name?, filename))
}

/// Returns the value at position `start` without its quotes, and the position after the value.
/// Returns `None` if the value is not valid.
///
/// A quotation mark after a backslash does not end the value. So `"a\"` has no end and is rejected,
/// because some parsers would read the name `a\`.
fn parameter_value(text: &[u8], start: usize) -> Option<(Span, usize)> {
    if text.get(start) != Some(&b'"') {
        let length = text[start..].iter().position(|b| matches!(b, b';' | b' ' | b'\t'));
        let end = start + length.unwrap_or(text.len() - start);
        return is_token(&text[start..end]).then(|| (Span::new(start, end), end));
    }
    let mut at = start + 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((Span::new(start + 1, at), at + 1));
        }
        at += 2;
    }
}

fn leading_space(text: &[u8]) -> usize {
    text.iter().take_while(|b| matches!(b, b' ' | b'\t')).count()
}

//! Parts of a request that an application would parse: cookies, the query and a form.

use forebay_net::head::Request;
use forebay_wire::Span;
use forebay_wire::cookies::cookies;
use forebay_wire::forms::{Dialect, pairs, text};
use forebay_wire::http1::KnownField;
use forebay_wire::multipart::{Boundary, Event, FormDecoder, FormLimits, MultipartError, plain};

use super::Explanation;

/// Default type of a body, as in HTML and curl.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

/// Appends the cookies, the query and the body, if the request has them.
pub(super) fn append(text: &mut Explanation, request: &Request, body: Option<&[u8]>) {
    let fields = request.head.fields.iter();
    let found: Vec<_> = fields
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"cookie"))
        .flat_map(|field| cookies(field.value.of(&request.bytes)))
        .map(|cookie| [cookie.name, b"=", cookie.value].concat())
        .collect();
    if !found.is_empty() {
        text.list("cookies", found.into_iter());
    }
    let query = request.target().splitn(2, |&b| b == b'?').nth(1).unwrap_or_default();
    if !query.is_empty() {
        text.list("query", decoded(query));
    }
    if let Some(body) = body {
        append_body(text, request.head.value(KnownField::ContentType, &request.bytes), body);
    }
}

/// Appends the fields of a form, or the size and type of another body.
fn append_body(text: &mut Explanation, content_type: Option<&[u8]>, body: &[u8]) {
    let content_type = content_type.unwrap_or_default();
    let kind = content_type.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
    if kind.eq_ignore_ascii_case(FORM.as_bytes()) {
        return text.list("form", decoded(body));
    }
    if !kind.eq_ignore_ascii_case(b"multipart/form-data") {
        let summary = [format!("{} bytes of ", body.len()).as_bytes(), kind].concat();
        return text.item("body", &summary);
    }
    let Some(boundary) = Boundary::of(content_type) else {
        return text.item("form", b"none that can be read: its Content-Type names no boundary");
    };
    match parts(&boundary, body) {
        Ok(parts) => text.list("form", parts.into_iter()),
        Err(error) => text.item("form", format!("none that can be read: {error}").as_bytes()),
    }
}

/// Decodes a query, or the body of a form without files. Returns each field as `name=value`.
fn decoded(form: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    pairs(form, Dialect::Whatwg)
        .map(|pair| format!("{}={}", text(pair.name), text(pair.value)).into_bytes())
}

/// Decodes a `multipart/form-data` body. Returns each field as `name=value`, and each file as its
/// name, type and length.
fn parts(boundary: &Boundary, body: &[u8]) -> Result<Vec<Vec<u8>>, MultipartError> {
    let mut decoder = FormDecoder::new(boundary, FormLimits::default());
    let (mut found, mut at, mut content) = (Vec::new(), 0, 0..0);
    let mut part = None;
    loop {
        let shown = &body[at..];
        let step = decoder.decode(shown)?;
        match step.event {
            Event::More => return decoder.finish().map(|()| found),
            Event::End => return Ok(found),
            Event::Part(head) => {
                let text = |span: Span| plain(span.of(shown)).into_owned();
                let file = head.filename.map(|name| (text(name), head.content_type.map(text)));
                part = Some((text(head.name), file));
                content = 0..0;
            }
            Event::Content(range) if content.is_empty() => {
                content = at + range.start..at + range.end;
            }
            Event::Content(range) => content.end = at + range.end,
            Event::PartEnd => {
                let content = &body[content.clone()];
                found.extend(part.take().map(|(name, file)| line(name, file, content)));
            }
        }
        at += step.consumed;
    }
}

/// Name and type of a file.
type CarriedFile = (Vec<u8>, Option<Vec<u8>>);

fn line(mut name: Vec<u8>, file: Option<CarriedFile>, content: &[u8]) -> Vec<u8> {
    match file {
        None => name.extend_from_slice(&[b"=", content].concat()),
        Some((file, kind)) => {
            let kind = kind.map(|kind| [b", ", &kind[..]].concat()).unwrap_or_default();
            let length = format!(", {} bytes", content.len());
            name.extend_from_slice(&[b": file ", &file[..], &kind, length.as_bytes()].concat());
        }
    }
    name
}

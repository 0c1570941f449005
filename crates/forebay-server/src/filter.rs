//! Changes to the bodies of replies: replacements of texts (`replace`), and pages whose commands are
//! evaluated (`ssi`).
//!
//! A filter changes a body after the cache has recorded it, and before compression. The cache
//! therefore stores the origin's own replies, without the values that a filter inserts for one
//! visitor.

mod replace;

use std::rc::Rc;
use std::time::SystemTime;

use forebay_conf::{self as conf, MediaPattern, Ssi};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::http1::encode;

use replace::{Replacements, Replacer};

/// Maximum bytes that callers pass to `BodyFilter::take` in one call.
pub const SLICE: usize = 16 * 1024;

/// Fields that describe the exact bytes of the origin's body.
const OF_BYTES: [&[u8]; 5] =
    [b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"repr-digest"];

/// The changes of a route to the bodies of its replies, on one thread.
pub struct Filters {
    replace: Option<Rc<Replacements>>,
    ssi: Option<Rc<Ssi>>,
}

/// A change to the body of one reply.
pub struct BodyFilter {
    replacer: Option<Replacer>,
    /// SSI settings, until the reply's head has shown if the reply is a page.
    ssi: Option<Rc<Ssi>>,
    /// The page, while its body is collected.
    page: Option<SsiPage>,
    /// Bytes of the announced length that the origin has not sent yet.
    left: Option<u64>,
}

/// The change of a route to the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyChange {
    /// The body stays as it is.
    No,
    /// The body changes, and the client gets validators.
    WithValidators,
    /// The body changes, and the client gets no validators.
    WithoutValidators,
}

/// A page with SSI commands that Forebay evaluates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SsiPage {
    /// Status of the reply.
    pub status: u16,
    /// Field lines of the reply, without the lines that are wrong for the evaluated page.
    pub lines: Vec<u8>,
    /// True if the lines have a `Date`.
    pub has_date: bool,
    /// Time of the last change of the page.
    pub modified: Option<SystemTime>,
    /// Body.
    pub body: Vec<u8>,
    /// Maximum number of bytes of the body and of the evaluated page.
    pub limit: usize,
}

impl SsiPage {
    fn append(&mut self, data: &[u8]) -> Result<(), Fault> {
        let limit = self.limit;
        if self.body.len() + data.len() > limit {
            let why = format!("a page is larger than {limit} bytes (`max_size` of `ssi`)");
            return Err(Fault::us(500, why));
        }
        self.body.extend_from_slice(data);
        Ok(())
    }
}

/// Decision about a change to the body of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suitability {
    /// The body can be changed.
    Suitable,
    /// The media type or the status excludes the reply.
    Other,
    /// The body is encoded, although the request accepted no encoding.
    Encoded,
}

impl Filters {
    /// Returns the changes that a route's settings demand, or `None` if the settings are empty.
    pub fn new(settings: &conf::Filters) -> Option<Rc<Self>> {
        let replace = settings.replace.as_ref().map(|replace| Rc::new(Replacements::new(replace)));
        let ssi = settings.ssi.clone().map(Rc::new);
        (!settings.is_empty()).then(|| Rc::new(Self { replace, ssi }))
    }

    /// Returns the change for the reply to `request`.
    pub(crate) fn of_request(&self, request: &Request) -> Box<BodyFilter> {
        let replacer = self.replace.as_ref().map(|replace| replace.of_request(request));
        Box::new(BodyFilter { replacer, ssi: self.ssi.clone(), page: None, left: None })
    }
}

impl BodyFilter {
    /// Adapts the field lines of `out` from `start` on. Fails if the body must not be changed.
    /// `announced` is the length of the origin's body.
    pub(crate) fn begin(
        &mut self,
        out: &mut Vec<u8>,
        start: usize,
        announced: Option<u64>,
    ) -> Result<(), Unchanged> {
        let Some(replacer) = &self.replacer else { return Err(Unchanged::Other) };
        let settings = replacer.settings();
        match suitability(&out[start..], &settings.types) {
            Suitability::Suitable => {}
            Suitability::Other => return Err(Unchanged::Other),
            Suitability::Encoded => return Err(Unchanged::Encoded),
        }
        self.left = announced;
        adapt_head(out, start, settings.last_modified);
        if replacer.is_private() {
            // The body contains values of this visitor. So no cache may give the reply to another
            // visitor.
            forbid_sharing(out, start, b"private");
        }
        Ok(())
    }

    /// Predicts the change to a body with this `Content-Type`, before the other fields of the reply
    /// are known.
    pub(crate) fn change_of(&self, content_type: &str) -> BodyChange {
        let media_type = content_type.split(';').next().unwrap_or_default().trim().as_bytes();
        let is_meant = |types: &[MediaPattern]| types.iter().any(|one| one.matches(media_type));
        let replace = self.replacer.as_ref().map(Replacer::settings);
        let replace = replace.filter(|replace| is_meant(&replace.types));
        let ssi = self.ssi.as_ref().filter(|ssi| is_meant(&ssi.types));
        match (replace.map(|one| one.last_modified), ssi.map(|one| one.last_modified)) {
            (None, None) => BodyChange::No,
            (Some(false), _) | (_, Some(false)) => BodyChange::WithoutValidators,
            _ => BodyChange::WithValidators,
        }
    }

    /// Returns true if the route evaluates SSI pages, and `lines` are the field lines of such a
    /// page.
    pub(crate) fn is_page(&self, lines: &[u8]) -> bool {
        let content_type = fields(lines).find(|(name, _)| is(name, b"content-type"));
        let media_type = content_type.and_then(|(_, value)| value.split(|&b| b == b';').next());
        let media_type = media_type.unwrap_or_default().trim_ascii();
        let types = self.ssi.iter().flat_map(|ssi| &ssi.types);
        types.into_iter().any(|one| one.matches(media_type))
    }

    /// Returns the filter that collects the body of a page. Fails if the reply is not to be evaluated.
    /// Adapts the field lines of `out` from `start` on.
    pub(crate) fn begin_page(
        &mut self,
        out: &mut Vec<u8>,
        start: usize,
        announced: Option<u64>,
    ) -> Result<Box<Self>, Unchanged> {
        let Some(ssi) = self.ssi.take() else { return Err(Unchanged::Other) };
        match suitability(&out[start..], &ssi.types) {
            Suitability::Suitable => {}
            Suitability::Other => return Err(Unchanged::Other),
            Suitability::Encoded => return Err(Unchanged::Encoded),
        }
        let modified = fields(&out[start..]).find(|(name, _)| is(name, b"last-modified"));
        let modified = modified.and_then(|(_, time)| std::str::from_utf8(time).ok());
        let modified = modified.and_then(|time| httpdate::parse_http_date(time).ok());
        adapt_head(out, start, ssi.last_modified);
        let page = SsiPage { modified, limit: ssi.max_size, ..SsiPage::default() };
        Ok(Box::new(Self { replacer: None, ssi: None, page: Some(page), left: announced }))
    }

    /// Sets the head of the page.
    pub(crate) fn set_page_head(&mut self, status: u16, lines: &[u8], has_date: bool) {
        if let Some(page) = &mut self.page {
            (page.status, page.has_date) = (status, has_date);
            page.lines.extend_from_slice(lines);
        }
    }

    /// Takes the page after its end. Returns `None` if there is no page.
    pub(crate) fn take_page(&mut self) -> Option<SsiPage> {
        self.page.take()
    }

    /// Takes bytes of the origin's body. Call [`Self::step`] before the next call.
    pub(crate) fn take(&mut self, data: &[u8]) -> Result<(), Fault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or_else(Fault::longer_than_announced)?;
        }
        if let Some(page) = &mut self.page {
            return page.append(data);
        }
        if let Some(replacer) = &mut self.replacer {
            replacer.take(data);
        }
        Ok(())
    }

    /// Appends bytes of the changed body to `out`. Returns true if `out` is full. The caller must
    /// then write these bytes and call this function again.
    pub(crate) fn step(&mut self, out: &mut Vec<u8>) -> bool {
        self.replacer.as_mut().is_some_and(|replacer| replacer.step(false, out))
    }

    /// Appends the end of the changed body to `out`. Returns true if `out` is full; see
    /// [`Self::step`]. Fails if the origin has sent fewer bytes than announced.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        match self.left {
            Some(left @ 1..) => Err(Fault::shorter_than_announced(left)),
            _ => Ok(self.replacer.as_mut().is_some_and(|replacer| replacer.step(true, out))),
        }
    }
}

/// Reason why a body is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchanged {
    /// The route changes no replies of this type or status.
    Other,
    /// The body is encoded.
    Encoded,
}

/// Decides if the body of a reply with these field lines may be changed. The media type must be in
/// `types`. The body must be neither encoded nor partial.
fn suitability(lines: &[u8], types: &[MediaPattern]) -> Suitability {
    let (mut media_type, mut is_encoded) = (None, false);
    for (name, value) in fields(lines) {
        if is(name, b"content-range") {
            return Suitability::Other;
        }
        is_encoded |= is(name, b"content-encoding") && !is(value, b"identity") && !value.is_empty();
        if is(name, b"content-type") {
            media_type = value.split(|&b| b == b';').next().map(<[u8]>::trim_ascii);
        }
    }
    let is_meant = |media_type: &[u8]| types.iter().any(|pattern| pattern.matches(media_type));
    match media_type.is_some_and(is_meant) {
        false => Suitability::Other,
        true if is_encoded => Suitability::Encoded,
        true => Suitability::Suitable,
    }
}

/// Removes the fields that are wrong for the changed body from the field lines of `out` from
/// `start` on. If `keeps_validators` is true, keeps `Last-Modified` and makes `ETag` weak.
/// Otherwise removes both.
pub(crate) fn adapt_head(out: &mut Vec<u8>, start: usize, keeps_validators: bool) {
    let lines = out.split_off(start);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        let (name, value) = split(line);
        let is_validator = is(name, b"etag") || is(name, b"last-modified");
        if OF_BYTES.iter().any(|dropped| is(name, dropped)) || is_validator && !keeps_validators {
            continue;
        }
        if is(name, b"etag") && value.starts_with(b"\"") {
            encode::field(out, "ETag", &[b"W/", value].concat());
        } else {
            out.extend_from_slice(line);
        }
    }
}

/// Sets `Cache-Control` in the lines of `out` from `start` on, so that caches give the reply to no
/// other visitor. Removes the fields that some caches obey instead of `Cache-Control`.
pub(crate) fn forbid_sharing(out: &mut Vec<u8>, start: usize, value: &[u8]) {
    let lines = out.split_off(start);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        if !is_targeted(split(line).0) {
            out.extend_from_slice(line);
        }
    }
    encode::field(out, "Cache-Control", value);
}

/// Returns true if some caches obey a field of this name instead of `Cache-Control`. An example is
/// `CDN-Cache-Control` (RFC 9213).
pub(crate) fn is_targeted(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with(b"-cache-control")
        || [&b"surrogate-control"[..], b"edge-control", b"x-accel-expires"].contains(&&*name)
}

pub(crate) fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines.split_inclusive(|&b| b == b'\n').map(split)
}

fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let colon = memchr::memchr(b':', line).unwrap_or(line.len());
    (&line[..colon], line.get(colon + 1..).unwrap_or_default().trim_ascii())
}

pub(crate) fn is(name: &[u8], expected: &[u8]) -> bool {
    name.eq_ignore_ascii_case(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_whose_bodies_are_changed() {
        let types = [MediaPattern::parse("text/html").unwrap()];
        for (lines, expected) in [
            ("Content-Type: text/html; charset=utf-8\r\n", Suitability::Suitable),
            ("content-type: TEXT/HTML\r\nContent-Encoding: identity\r\n", Suitability::Suitable),
            ("Content-Type: text/html\r\nContent-Encoding: gzip\r\n", Suitability::Encoded),
            ("Content-Type: text/html\r\nContent-Range: bytes 0-1/2\r\n", Suitability::Other),
            ("Content-Type: text/htmlx\r\n", Suitability::Other),
            ("Content-Type: image/png\r\nContent-Encoding: gzip\r\n", Suitability::Other),
            ("", Suitability::Other),
        ] {
            assert_eq!(suitability(lines.as_bytes(), &types), expected, "{lines}");
        }
    }

    #[test]
    fn the_head_promises_nothing_about_the_original_bytes() {
        let lines =
            "ETag: \"a\"\r\nLast-Modified: x\r\nAccept-Ranges: bytes\r\nDigest: y\r\nX: z\r\n";
        for (keeps, expected) in
            [(false, "X: z\r\n"), (true, "ETag: W/\"a\"\r\nLast-Modified: x\r\nX: z\r\n")]
        {
            let mut out = lines.as_bytes().to_vec();
            adapt_head(&mut out, 0, keeps);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}

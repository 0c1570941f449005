//! What a route does to its replies and to their fields.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::Table;
use schemars::{Schema, SchemaGenerator};

use super::{Clients, Placeholder, Template, TemplatePart};
use crate::error::Problem;
use crate::key::{Bytes, Cx, Form, Many, Node, Resolution, Text};

/// Settings for stored replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The lifetime of replies that state none themselves. `None`: their lifetime depends on the
    /// time since `Last-Modified`.
    pub valid: Option<Duration>,
    /// For this time after its lifetime, a reply is still sent while Forebay fetches a new one.
    /// Default: zero.
    pub stale_while_revalidate: Duration,
    /// For this time after its lifetime, a reply is still sent if the origin fails. Default: zero.
    pub stale_if_error: Duration,
    /// The text that selects a stored reply. Requests with equal texts may get the same reply.
    /// Default: scheme, host, path and query.
    pub key: Template,
    /// The largest reply body that is stored, in bytes.
    pub max_size: usize,
    /// Names of cookies that make a request personal. Default: all.
    pub private_cookies: Vec<CookieName>,
    /// Stores replies that set a cookie. Default: false.
    pub set_cookie: bool,
}

/// Stored replies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDisk {
    /// The directory; an absolute path.
    pub dir: PathBuf,
    /// The maximum size of all files, in bytes.
    pub size: u64,
}

/// Name of a cookie, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CookieName {
    /// Exactly this name.
    Exact(String),
    /// Names that begin with this text.
    Prefix(String),
}

/// The replies to compress, and the codings to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// The codings with their levels. The preferred coding comes first. Never empty.
    pub algorithms: Vec<Algorithm>,
    /// The media types of replies to compress. Never empty.
    pub types: Vec<MediaPattern>,
    /// The length in bytes of the smallest reply to compress. Applies only to replies whose length
    /// is known in advance. Default 512.
    pub min_size: u64,
}

/// A content coding and its compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The coding.
    pub coding: ContentCoding,
    /// The compression level, within [`Algorithm::levels`] of the coding.
    pub level: u32,
}

impl Algorithm {
    /// Returns the default level of a coding. It is below the highest permitted level, because
    /// clients wait while replies are compressed.
    pub fn default_level(coding: ContentCoding) -> u32 {
        match coding {
            ContentCoding::Brotli => 4,
            ContentCoding::Zstandard => 3,
            ContentCoding::Gzip => 5,
        }
    }

    /// Returns the permitted levels of a coding. With higher levels, an encoder needs more than 4
    /// MB for each reply.
    pub fn levels(coding: ContentCoding) -> std::ops::RangeInclusive<u32> {
        match coding {
            ContentCoding::Brotli => 0..=6,
            ContentCoding::Zstandard | ContentCoding::Gzip => 1..=9,
        }
    }
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// Brotli (RFC 7932).
    Brotli,
    /// Zstandard (RFC 8878).
    Zstandard,
    /// gzip (RFC 1952).
    Gzip,
}

impl ContentCoding {
    /// All codings. The first coding compresses best.
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// Returns the file name extension of this coding, without a dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zst",
            Self::Gzip => "gz",
        }
    }

    /// Returns the name of this coding in `Content-Encoding` and `Accept-Encoding`.
    pub fn coding(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }
}

/// A pattern of media types, in lower case: one media type, or all with a common start and end,
/// such as `text/*` and `*+json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPattern {
    prefix: String,
    /// The text after the `*`. `None`: the pattern has no `*`.
    suffix: Option<String>,
}

impl MediaPattern {
    /// Parses a pattern. Returns `None` if the pattern can match no media type.
    pub fn parse(text: &str) -> Option<Self> {
        let text = if text == "*/*" { "*".to_owned() } else { text.to_ascii_lowercase() };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+/".contains(&b);
        let (prefix, suffix) = match text.split_once('*') {
            Some((prefix, suffix)) => (prefix, Some(suffix)),
            None => (&text[..], None),
        };
        let slashes = text.matches('/').count();
        let has_type = match suffix {
            Some(_) => slashes <= 1 && (slashes == 1 || prefix.is_empty()),
            None => slashes == 1 && !prefix.starts_with('/') && !prefix.ends_with('/'),
        };
        let is_valid = has_type && prefix.bytes().chain(suffix.unwrap_or("").bytes()).all(is_plain);
        is_valid.then(|| Self { prefix: prefix.to_owned(), suffix: suffix.map(str::to_owned) })
    }

    /// Returns true if the pattern matches a media type, which has no parameters. Case does not
    /// matter.
    pub fn matches(&self, media_type: &[u8]) -> bool {
        let (prefix, suffix) = (self.prefix.as_bytes(), self.suffix.as_deref());
        let Some(suffix) = suffix else { return media_type.eq_ignore_ascii_case(prefix) };
        let Some(rest) = media_type.len().checked_sub(suffix.len()) else { return false };
        rest >= prefix.len()
            && media_type[..prefix.len()].eq_ignore_ascii_case(prefix)
            && media_type[rest..].eq_ignore_ascii_case(suffix.as_bytes())
    }
}

impl Form for MediaPattern {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        String::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let text = Text::read(node, cx)?;
        Self::parse(&text).ok_or_else(|| {
            Problem::new(&node.span(), format!("\"{text}\" is not a media type"))
                .help("write one such as \"text/html\", or several: \"text/*\", \"*+json\"")
        })
    }
}

/// The default codings. The preferred coding comes first.
pub(crate) const ALGORITHMS: [ContentCoding; 3] =
    [ContentCoding::Zstandard, ContentCoding::Brotli, ContentCoding::Gzip];

/// The default media types.
pub(crate) const TYPES: [&str; 15] = [
    "text/*",
    "*+json",
    "*+xml",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/vnd.ms-fontobject",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
    "image/x-icon",
];

/// The default length of the smallest reply to compress, in bytes. A shorter reply fits into one
/// packet, so compression gains nothing.
pub(crate) const MIN_SIZE: u64 = 512;

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestField {
    /// The name: letters, digits and hyphens. Names of fields that frame the message are not
    /// allowed.
    pub name: String,
    /// The change.
    pub change: RequestChange,
}

/// A change to a field of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestChange {
    /// The field gets this value. If the value is empty, the field is removed.
    Set(Template),
    /// The field is added to the client's fields of this name, unless the value is empty.
    Add(Template),
    /// The field is removed.
    Remove,
}

/// A field that is set or added in replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyField {
    /// The name; a valid field name. Names of fields that frame the message are not allowed.
    pub name: String,
    /// The value. Its text has no control characters.
    pub value: Template,
    /// True if the field is added to the origin's fields of this name. Otherwise the field replaces
    /// them.
    pub is_added: bool,
    /// True if the field is also set in replies with a status of 400 or more.
    pub always: bool,
}

/// The target of a rewrite: a path that begins with a slash, and a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The path and the query. The text of the template is percent-encoded.
    pub to: Template,
    /// True if the target has a query.
    pub has_query: bool,
    /// True if the client's query is appended.
    pub keep_query: bool,
}

/// Changes to the bodies of a route's replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Texts to replace. Default `None`.
    pub replace: Option<Replace>,
    /// Server-side includes. Default `None`.
    pub ssi: Option<Ssi>,
}

impl Filters {
    /// Returns true if bodies are not changed.
    pub fn is_empty(&self) -> bool {
        self.replace.is_none() && self.ssi.is_none()
    }
}

/// Evaluates the commands of pages (server-side includes), such as `<!--#include virtual="/x" -->`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct Ssi {
    /// The media types of replies to evaluate.
    #[key(as = Many<MediaPattern>, default = "text/html", check = some_types)]
    pub types: Vec<MediaPattern>,
    /// The largest page with all that it includes, at most "64M". Forebay keeps the page in memory.
    /// A larger page gets 500.
    #[key(as = Bytes, default = "4M", check = fits_into_memory)]
    pub max_size: usize,
    /// Keeps `Last-Modified` of evaluated pages, and `ETag` as a weak tag. Clients then do not
    /// notice changes of included documents.
    #[key(default = false)]
    pub last_modified: bool,
}

fn some_types(types: &[MediaPattern], span: &Range<usize>) -> Resolution<()> {
    if types.is_empty() {
        return Err(Problem::new(span, "this list is empty, so that nothing is changed")
            .help("name media types such as \"text/html\", or leave the key out"));
    }
    Ok(())
}

/// Forebay keeps each page in memory while it changes the page.
fn fits_into_memory(size: &usize, span: &Range<usize>) -> Resolution<()> {
    if *size > 64 * 1024 * 1024 {
        return Err(Problem::new(span, "pages this large do not fit into memory")
            .help("the most is \"64M\""));
    }
    Ok(())
}

/// Literal texts to replace in the bodies of replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replace {
    /// The texts to find, with their replacements. Never empty. No text is empty, and no text
    /// occurs twice.
    pub texts: Vec<(String, Template)>,
    /// The media types of replies to change. Never empty. Default `text/html`.
    pub types: Vec<MediaPattern>,
    /// The escapes for values of placeholders.
    pub escape: ReplaceEscape,
    /// Replaces only the first occurrence of each text. Default false.
    pub once: bool,
    /// Finds texts without regard to the case of ASCII letters. Default false.
    pub ignore_case: bool,
    /// Keeps the validators of changed replies. Default false.
    pub last_modified: bool,
}

/// The escapes for values of placeholders in replacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceEscape {
    /// For the text of an HTML or XML document.
    Html,
    /// For a JSON string.
    Json,
}

impl Replace {
    /// Returns true if a replacement uses a value that is not a part of the URL, such as `{user}`.
    /// The changed reply may then be meant for only one visitor.
    pub fn is_private(&self) -> bool {
        let of_url = |value: &Placeholder| {
            matches!(
                value,
                Placeholder::Scheme
                    | Placeholder::Host
                    | Placeholder::Port
                    | Placeholder::RequestedPort
                    | Placeholder::Path
                    | Placeholder::Query
                    | Placeholder::Uri
                    | Placeholder::Rest
                    | Placeholder::Prefix
                    | Placeholder::Capture(_)
                    | Placeholder::Parameter(_)
            )
        };
        self.texts.iter().any(|(_, to)| to.uses(|value| !of_url(value)))
    }

    /// Returns true if a replacement has a placeholder.
    pub fn has_placeholders(&self) -> bool {
        self.texts.iter().any(|(_, to)| to.uses(|_| true))
    }
}

/// Returns true if the placeholder's values need no escapes: their characters have no meaning in
/// HTML, scripts and style sheets.
pub(crate) fn is_plain(value: &Placeholder) -> bool {
    matches!(
        value,
        Placeholder::Scheme
            | Placeholder::Host
            | Placeholder::Port
            | Placeholder::RequestedPort
            | Placeholder::Client
            | Placeholder::ClientPort
            | Placeholder::Country(_)
            | Placeholder::Asn(_)
            | Placeholder::RequestId
    )
}

/// Returns true if the text of a template may begin a script or a style sheet.
pub(crate) fn has_script(template: &Template) -> bool {
    template.parts().iter().any(|part| match part {
        TemplatePart::Text(text) => {
            let text = text.to_ascii_lowercase();
            text.contains("<script") || text.contains("<style")
        }
        TemplatePart::Value(_) => false,
    })
}

/// Pages for errors. The first page whose status or class fits is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages {
    /// Pages by status. The pages of a route precede those of its site. In each group, pages for
    /// one status precede pages for a class.
    pub pages: Vec<(Statuses, Arc<Page>)>,
    /// True if the pages also replace the error replies of backends and applications.
    pub intercept: bool,
}

/// One status, or a class of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statuses {
    /// This status, from 400 to 599.
    One(u16),
    /// All statuses with this first digit: 4 or 5.
    Class(u16),
}

/// A page. Forebay reads the file when it loads the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// The text of the page.
    pub text: Template,
    /// The status that replaces the status of the error. `None`: the status of the error.
    pub status: Option<u16>,
    /// The kind of the page, from the ending of the file.
    pub kind: PageKind,
}

/// The kind of a page. It determines how the values of placeholders are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// `.html` and `.htm`.
    Html,
    /// `.json`.
    Json,
    /// Any other ending: plain text.
    Text,
}

/// A page for all requests while a site or route is closed, except for some clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// The page, sent with status 503.
    pub page: Arc<Page>,
    /// The time in the field `Retry-After`. Default 10 minutes.
    pub retry_after: Duration,
    /// Clients that are served as usual. Default: none.
    pub except: Vec<Clients>,
    /// The page is sent only while this file exists. `None`: always.
    pub while_exists: Option<PathBuf>,
}

/// Web pages of other origins that may use a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// True if pages of any origin may use the route. `origins` is then empty.
    pub any: bool,
    /// The origins whose pages may use the route, in lower case.
    pub origins: Vec<OriginPattern>,
    /// Methods that pages may use. Never empty.
    pub methods: Vec<String>,
    /// Request headers that pages may send. `None`: all that they ask for.
    pub headers: Option<Vec<String>>,
    /// Reply headers that pages may read. Default: none.
    pub expose: Vec<String>,
    /// True if pages may send cookies and passwords. Never true together with `any`.
    pub credentials: bool,
    /// The time that browsers may keep the answer to a preflight request. Default 10 minutes.
    pub max_age: Duration,
}

/// A pattern of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// This origin: scheme, host and port.
    Exact(String),
    /// Origins that begin with `start` and end in `end`, with at least one label of the host name
    /// between them.
    Below {
        /// The scheme with `://`.
        start: String,
        /// The end of the host name, with the dot before it, and the port.
        end: String,
    },
}

impl ErrorPages {
    /// Returns the first page for a status. Returns `None` if no page is for this status.
    pub fn of(&self, status: u16) -> Option<&Page> {
        let fits = |statuses: Statuses| match statuses {
            Statuses::One(one) => one == status,
            Statuses::Class(class) => class == status / 100,
        };
        self.pages.iter().find(|(statuses, _)| fits(*statuses)).map(|(_, page)| &**page)
    }
}

impl Cors {
    /// Returns true if pages of this origin may use the route.
    pub fn allows(&self, origin: &[u8]) -> bool {
        let Ok(origin) = str::from_utf8(origin) else { return false };
        let origin = origin.to_ascii_lowercase();
        let fits = |pattern: &OriginPattern| match pattern {
            OriginPattern::Exact(exact) => *exact == origin,
            OriginPattern::Below { start, end } => {
                let rest = origin.strip_prefix(start.as_str());
                let label = rest.and_then(|rest| rest.strip_suffix(end.as_str()));
                let is_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
                label.is_some_and(|label| !label.is_empty() && label.chars().all(is_host))
            }
        };
        self.any || self.origins.iter().any(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_media_types() {
        for (pattern, media_type, expected) in [
            ("text/*", "text/html", true),
            ("text/*", "TEXT/Plain", true),
            ("text/*", "text", false),
            ("*+json", "application/ld+json", true),
            ("*+json", "application/json", false),
            ("application/*+xml", "application/rss+xml", true),
            ("application/*+xml", "image/svg+xml", false),
            ("*", "x/y", true),
            ("*/*", "x/y", true),
            ("Application/JSON", "application/json", true),
            ("application/json", "application/json2", false),
            ("a/aa*aa", "a/aaa", false),
        ] {
            let parsed = MediaPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(media_type.as_bytes()), expected, "{pattern} {media_type}");
        }
        for wrong in ["", "text", "text*", "a/b/c", "a/*/c", "text/html; charset=utf-8", "*,*", "/"]
        {
            assert!(MediaPattern::parse(wrong).is_none(), "{wrong}");
        }
        assert!(TYPES.iter().all(|text| MediaPattern::parse(text).is_some()));
    }
}

//! What a route does to its replies and to their fields.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};

use super::{Clients, Placeholder, Template, TemplatePart};
use crate::error::Problem;
use crate::key::{
    Bytes, FromText, Given, Many, Method, Resolution, SharedKey, Whole, is_token, not_empty,
};

/// The replies to store, their lifetimes, and the requests that may share them.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct Cache {
    /// The lifetime of replies with the status 200, 301 or 302 that state no lifetime themselves.
    /// Default: a tenth of the time since Last-Modified, at most a day. Replies without
    /// Last-Modified are then not stored.
    pub valid: Option<Duration>,
    /// For this time after its lifetime, a reply is still sent while Forebay fetches a new one. The
    /// reply's own stale-while-revalidate has precedence.
    #[key(default = "0s")]
    pub stale_while_revalidate: Duration,
    /// For this time after its lifetime, a reply is still sent if the application fails. The
    /// reply's own stale-if-error has precedence.
    #[key(default = "0s")]
    pub stale_if_error: Duration,
    /// A text with placeholders. Requests share a stored reply if they have the same text, and the
    /// same values of the headers that the reply names in Vary.
    #[key(as = SharedKey, default = "{scheme}{host}{uri}", check = differs)]
    pub key: Template,
    /// The largest reply body that is stored. A body larger than a sixteenth of `cache_memory` is
    /// stored only in `cache_dir`. A body larger than an eighth of `cache_disk` is never stored in
    /// `cache_dir`.
    #[key(as = Bytes, default = "1MiB")]
    pub max_size: usize,
    /// The names of cookies that make a request personal; a `*` at the end matches any text. A
    /// personal request gets a stored reply only if the reply itself states its lifetime.
    #[key(as = Many<CookieName>, default = "*")]
    pub private_cookies: Vec<CookieName>,
    /// Also stores replies that set a cookie. All visitors then get that cookie. With false, such a
    /// reply is stored only if its Cache-Control has public or s-maxage.
    #[key(default = false)]
    pub set_cookie: bool,
}

fn differs(key: &Template, span: &Range<usize>) -> Resolution<()> {
    if key.constant().is_some() {
        return Err(Problem::new(span, "all requests would get the same reply")
            .help("use placeholders that tell the replies apart, such as \"{host}{uri}\""));
    }
    Ok(())
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

impl FromText for CookieName {
    fn from_text(name: &str, span: &Range<usize>) -> Resolution<Self> {
        let is_plain = |c: char| c.is_ascii_graphic() && !"=;,\"*".contains(c);
        let (bare, is_prefix) = name.strip_suffix('*').map_or((name, false), |bare| (bare, true));
        if !bare.chars().all(is_plain) {
            return Err(Problem::new(span, format!("\"{name}\" is not the name of a cookie"))
                .help("write a name such as \"session\", or the start of names: \"wp_*\""));
        }
        let bare = bare.to_owned();
        Ok(if is_prefix { Self::Prefix(bare) } else { Self::Exact(bare) })
    }
}

/// The replies to compress, and the codings to use.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(check = levels_have_effect)]
pub struct Compress {
    /// The content codings. The preferred coding comes first.
    #[key(name = "algorithms", default = ["zstd", "br", "gzip"], check = each_once)]
    pub codings: Vec<ContentCoding>,
    /// The media types of replies to compress, such as "text/html", "text/*" or "*+json".
    #[key(
        as = Many<MediaPattern>,
        default = [
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
            "image/x-icon"
        ],
        check = compresses_types
    )]
    pub types: Vec<MediaPattern>,
    /// The length of the smallest reply to compress. Applies only to replies whose length is known
    /// in advance. A shorter one fits into one packet.
    #[key(as = Bytes, default = 512)]
    pub min_size: u64,
    /// The compression level of each coding. Higher levels compress more and need more CPU time.
    #[key(default)]
    pub levels: Levels,
}

/// The compression level of each coding. With higher ones, an encoder needs more than 4 MB for each
/// reply. The defaults are below the highest, because clients wait while replies are compressed.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(default)]
pub struct Levels {
    /// The level of gzip, from 1 to 9.
    #[key(as = Whole<1, 9>, default = 5)]
    pub gzip: u32,
    /// The level of Brotli, from 0 to 6.
    #[key(as = Whole<0, 6>, default = 4)]
    pub br: u32,
    /// The level of Zstandard, from 1 to 9.
    #[key(as = Whole<1, 9>, default = 3)]
    pub zstd: u32,
}

fn each_once(codings: &[ContentCoding], span: &Range<usize>) -> Resolution<()> {
    not_empty(
        codings,
        span,
        ", so that nothing is compressed",
        "name \"zstd\", \"br\" or \"gzip\", or say compress = false",
    )?;
    let is_repeated = |(at, coding): &(usize, &ContentCoding)| codings[..*at].contains(coding);
    match codings.iter().enumerate().find(is_repeated) {
        Some((_, coding)) => {
            let message = format!("\"{}\" is given twice", coding.coding());
            Err(Problem::new(span, message).help("leave one out"))
        }
        None => Ok(()),
    }
}

fn compresses_types(types: &[MediaPattern], span: &Range<usize>) -> Resolution<()> {
    not_empty(
        types,
        span,
        ", so that nothing is compressed",
        "name media types such as \"text/*\", or leave the key out",
    )
}

fn levels_have_effect(table: &mut Compress, given: &Given<'_, '_>) -> Resolution<()> {
    let default = Levels::default();
    let is_idle = |coding: &ContentCoding| {
        table.levels.of(*coding) != default.of(*coding) && !table.codings.contains(coding)
    };
    match ContentCoding::ALL.iter().find(|coding| is_idle(coding)) {
        Some(coding) => {
            let span = given.span("levels").unwrap_or_else(|| given.span.clone());
            let message = format!("a level of {} has no effect", coding.coding());
            Err(Problem::new(&span, message)
                .help("it is not among `algorithms`: add it there, or leave the level out"))
        }
        None => Ok(()),
    }
}

impl Compress {
    /// Returns the codings with their levels. The preferred coding comes first.
    pub fn algorithms(&self) -> impl Iterator<Item = Algorithm> {
        self.codings.iter().map(|&coding| Algorithm { coding, level: self.levels.of(coding) })
    }
}

impl Levels {
    /// Returns the level of a coding.
    pub fn of(&self, coding: ContentCoding) -> u32 {
        match coding {
            ContentCoding::Brotli => self.br,
            ContentCoding::Zstandard => self.zstd,
            ContentCoding::Gzip => self.gzip,
        }
    }
}

/// A content coding and its compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The coding.
    pub coding: ContentCoding,
    /// The compression level.
    pub level: u32,
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum ContentCoding {
    /// Brotli.
    #[key("br")]
    Brotli,
    /// Zstandard.
    #[key("zstd")]
    Zstandard,
    /// Gzip.
    #[key("gzip")]
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

impl FromText for MediaPattern {
    fn from_text(text: &str, span: &Range<usize>) -> Resolution<Self> {
        Self::parse(text).ok_or_else(|| {
            Problem::new(span, format!("\"{text}\" is not a media type"))
                .help("write one such as \"text/html\", or several: \"text/*\", \"*+json\"")
        })
    }
}

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
    /// What becomes of the origin's fields of this name. Default: they are replaced.
    pub change: ReplyChange,
    /// True if the field is also set in replies with a status of 400 or more.
    pub always: bool,
}

/// How a field changes the origin's fields of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyChange {
    /// It replaces them.
    #[default]
    Set,
    /// It is added to them.
    Add,
    /// It is added if there are none.
    IfMissing,
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
    not_empty(
        types,
        span,
        ", so that nothing is changed",
        "name media types such as \"text/html\", or leave the key out",
    )
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
                    | Placeholder::BareHost
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
            | Placeholder::BareHost
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

/// The time that clients may cache a reply: `Expires` and `Cache-Control: max-age`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(short = "default")]
pub struct Expires {
    /// The time for all other types. Default: they get no caching header.
    pub default: Option<Duration>,
    /// Times by media type, such as { "text/html" = "0s", "image/*" = "30d" }. The longest pattern
    /// that matches counts.
    #[key(default, check = are_media_types)]
    pub types: BTreeMap<String, Duration>,
}

fn are_media_types(types: &BTreeMap<String, Duration>, span: &Range<usize>) -> Resolution<()> {
    types.keys().try_for_each(|name| MediaPattern::from_text(name, span).map(drop))
}

impl Expires {
    /// Returns the times by media type, with the longest pattern first.
    pub fn by_type(&self) -> Vec<(MediaPattern, Duration)> {
        let mut types: Vec<_> = self.types.iter().collect();
        types.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let parsed = |(name, time): (&String, &Duration)| Some((MediaPattern::parse(name)?, *time));
        types.into_iter().filter_map(parsed).collect()
    }
}

/// Attributes that each cookie of a reply gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(check = sends_to_all_only_over_tls)]
pub struct CookieAttributes {
    /// Adds Secure, so that browsers send the cookie only over https. Browsers drop such a cookie if
    /// it comes over http.
    #[key(default = false)]
    pub secure: bool,
    /// Adds HttpOnly, so that scripts of pages cannot read the cookie.
    #[key(default = false)]
    pub http_only: bool,
    /// Sets SameSite to this value: "strict", "lax" or "none". Default: cookies keep theirs.
    pub same_site: Option<SameSite>,
}

fn sends_to_all_only_over_tls(
    cookies: &mut CookieAttributes,
    given: &Given<'_, '_>,
) -> Resolution<()> {
    match given.span("same_site") {
        Some(span) if cookies.same_site == Some(SameSite::None) && !cookies.secure => {
            Err(Problem::new(&span, "browsers refuse cookies with SameSite=None without Secure")
                .help("add secure = true"))
        }
        _ => Ok(()),
    }
}

/// The requests of other sites' pages with which browsers send a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum SameSite {
    /// None.
    Strict,
    /// Links that a user follows.
    Lax,
    /// All. Needs `secure`.
    None,
}

/// The origins whose web pages may use a route, although the route has another origin (the CORS
/// protocol).
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(check = keeps_logins)]
pub struct Cors {
    /// The origins, such as `https://app.example.org` or `https://*.example.org`, or `*` for all.
    #[key(as = Many<OriginPattern>, required = "[\"https://app.example.org\"]", check = any_alone)]
    pub origins: Vec<OriginPattern>,
    /// The methods that pages may use.
    #[key(
        as = Many<Method>,
        default = ["GET", "HEAD", "QUERY", "POST", "PUT", "PATCH", "DELETE"]
    )]
    pub methods: Vec<String>,
    /// The request headers that pages may send. Default: all that a page asks for.
    #[key(as = Many<FieldName>)]
    pub headers: Option<Vec<String>>,
    /// The reply headers that pages may read, besides those that browsers always allow. Default:
    /// none.
    #[key(default, as = Many<FieldName>)]
    pub expose: Vec<String>,
    /// Lets pages send cookies and passwords.
    #[key(default = false)]
    pub credentials: bool,
    /// The time that browsers may keep the answer to a preflight request.
    #[key(default = "10m")]
    pub max_age: Duration,
}

/// A pattern of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// Any origin.
    Any,
    /// This origin: scheme, host and port, in lower case.
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

fn any_alone(origins: &[OriginPattern], span: &Range<usize>) -> Resolution<()> {
    if origins.len() > 1 && origins.contains(&OriginPattern::Any) {
        return Err(
            Problem::new(span, "\"*\" is every origin").help("leave out the others, or \"*\"")
        );
    }
    Ok(())
}

fn keeps_logins(cors: &mut Cors, given: &Given<'_, '_>) -> Resolution<()> {
    match given.span("origins") {
        Some(span) if cors.any() && cors.credentials => {
            Err(Problem::new(&span, "every page of the web could use a visitor's login")
                .label("\"*\" with `credentials`")
                .help("name the origins, or leave `credentials` out"))
        }
        _ => Ok(()),
    }
}

impl FromText for OriginPattern {
    fn from_text(text: &str, span: &Range<usize>) -> Resolution<Self> {
        let origin = text.to_ascii_lowercase();
        if origin == "*" {
            return Ok(Self::Any);
        }
        let problem = |why: &str| {
            Problem::new(span, format!("\"{origin}\" is not an origin"))
                .help(format!("{why}, such as \"https://app.example.org\""))
        };
        let Some((scheme, host)) = origin.split_once("://") else {
            return Err(problem("an origin has a scheme and a host"));
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        let name = host.strip_prefix("*.").unwrap_or(host);
        if scheme.is_empty() || name.is_empty() || !name.chars().all(is_plain) {
            return Err(problem("an origin has no path, and a `*` is only for the first part"));
        }
        let default = if scheme == "https" { ":443" } else { ":80" };
        let host = host.strip_suffix(default).unwrap_or(host);
        Ok(match host.strip_prefix('*') {
            Some(end) => Self::Below { start: format!("{scheme}://"), end: end.to_owned() },
            None => Self::Exact(format!("{scheme}://{host}")),
        })
    }
}

/// The name of a field that a browser asks about.
struct FieldName;

impl FromText<String> for FieldName {
    fn from_text(name: &str, span: &Range<usize>) -> Resolution<String> {
        if !is_token(name) {
            return Err(Problem::new(span, format!("\"{name}\" is not the name of a header"))
                .help("a name is letters, digits and hyphens, such as \"Content-Type\""));
        }
        Ok(name.to_owned())
    }
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
    /// Returns true if pages of every origin may use the route.
    pub fn any(&self) -> bool {
        self.origins.contains(&OriginPattern::Any)
    }

    /// Returns true if pages of this origin may use the route.
    pub fn allows(&self, origin: &[u8]) -> bool {
        let Ok(origin) = str::from_utf8(origin) else { return false };
        let origin = origin.to_ascii_lowercase();
        let fits = |pattern: &OriginPattern| match pattern {
            OriginPattern::Any => true,
            OriginPattern::Exact(exact) => *exact == origin,
            OriginPattern::Below { start, end } => {
                let rest = origin.strip_prefix(start.as_str());
                let label = rest.and_then(|rest| rest.strip_suffix(end.as_str()));
                let is_host = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
                label.is_some_and(|label| !label.is_empty() && label.chars().all(is_host))
            }
        };
        self.origins.iter().any(fits)
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
    }
}

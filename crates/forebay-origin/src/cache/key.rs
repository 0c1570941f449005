//! Keys of stored replies, and the properties of a request that decide how it uses the store.

use forebay_conf::{Placeholder, Template, TemplatePart};
use forebay_net::head::Request;
use forebay_net::template::{Escape, append_exact};
use forebay_wire::Span;
use forebay_wire::aliases::Ambiguous;
use forebay_wire::caching::is_safe;
use forebay_wire::http1::{Field, KnownField, RequestFraming};

use super::checksum::checksum;
use super::resource_key::{ChangedKeys, Group, Half, Key, halves};
use super::stored::Stored;
use crate::named::NamedValue;

/// Fields that replace the target, the method or the host in some frameworks. The key does not
/// contain these fields, so the origin of a stored reply must not see them.
const OVERRIDES: [&str; 23] = [
    "x-original-url",
    "x-rewrite-url",
    "x-original-host",
    "x-host",
    "x-forwarded-server",
    "x-forwarded-scheme",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "base-url",
    "http-url",
    "proxy-host",
    "proxy-url",
    "request-uri",
    "x-backend-host",
    "x-envoy-original-path",
    "x-http-destinationurl",
    "x-http-host-override",
    "x-original-uri",
    "x-override-url",
    "x-proxy-url",
    "x-url-scheme",
    "x-real-host",
];

/// Use of the store for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A stored reply may answer the request.
    Lookup,
    /// The request may change stored replies.
    Invalidate,
    /// The request does not use the store.
    Bypass,
}

/// Fields of a request that the cache treats specially.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheFields {
    /// `Upgrade`.
    has_upgrade: bool,
    /// A condition, or a range.
    pub has_conditions: bool,
    /// `Authorization`.
    pub has_authorization: bool,
    /// `Cookie`.
    pub has_cookies: bool,
}

impl CacheFields {
    /// Finds the fields of `request`.
    pub fn of(request: &Request) -> Self {
        let mut found = Self::default();
        for field in &request.head.fields {
            found.has_upgrade |= field.known == KnownField::Upgrade;
            found.has_conditions |= is_condition(field.known);
            let name = field.name.of(&request.bytes);
            found.has_authorization |= name.eq_ignore_ascii_case(b"authorization");
            found.has_cookies |= name.eq_ignore_ascii_case(b"cookie");
        }
        found
    }
}

impl Use {
    fn of(request: &Request, fields: CacheFields) -> Self {
        match request.method() {
            b"GET" | b"HEAD" => {
                // A body may change the reply, but is not part of the key.
                let has_body = request.head.framing != RequestFraming::None;
                let upgrades = fields.has_upgrade;
                // The origin does not get fields that `Connection` lists. If such a field were part
                // of the key, the reply would be stored for a value that the origin has not seen.
                let hides_fields = request.head.connection_names_fields;
                // The origin may read a field such as `X_User` as `X-User`. The key may contain
                // `X-User`, but not `X_User`.
                let is_ambiguous = request.head.has_marks;
                let passes = has_body || upgrades || hides_fields || is_ambiguous;
                if passes { Self::Bypass } else { Self::Lookup }
            }
            method if is_safe(method) => Self::Bypass,
            _ => Self::Invalidate,
        }
    }
}

/// Builds the keys of a route's requests.
pub struct KeyOf {
    zone: Box<[u8]>,
    /// Part of the client's own target that the key also contains, if Forebay has replaced the
    /// target or the path. Applications read it in REQUEST_URI.
    original: Option<OriginalPart>,
    /// True if the origin does not see the client's own target, so that pages share the documents
    /// that they include.
    shares_includes: bool,
    /// True if the key contains the scheme, the host, the path and the query.
    has_whole_url: bool,
    parts: Vec<KeySection>,
    /// The values that a request must have at most once.
    named: Vec<NamedValue>,
}

/// Part of the client's own target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OriginalPart {
    Path,
    Whole,
}

/// A part of a key.
enum KeySection {
    /// Bytes that are the same for each request.
    Text(Vec<u8>),
    /// A value that is appended as it is.
    Value(Template),
    /// A value that depends on the target, and is appended as it is.
    OfTarget(Template),
    /// `{scheme}`, as [`Self::Value`] would append it.
    Scheme,
    /// `{uri}`, as [`Self::Value`] would append it.
    Uri,
    /// The host in lower case, because hosts are compared without regard to case.
    Host,
    /// The name and the value as the client sent them, so that two spellings have two keys.
    Named(NamedValue),
}

impl KeyOf {
    /// Creates a builder that fills `template` for each key in `zone`.
    pub fn new(zone: &str, template: &Template) -> Self {
        // If the key contains the whole query, requests with equal keys have equal parameters. So a
        // request for a stored reply may have several values for a parameter.
        let has_query =
            template.uses(|value| matches!(value, Placeholder::Query | Placeholder::Uri));
        let is_checked =
            |named: &NamedValue| !(has_query && matches!(named, NamedValue::Parameter(_)));
        let (mut parts, mut text) = (Vec::new(), Vec::new());
        for part in template.parts() {
            let section = match part {
                TemplatePart::Text(part) => {
                    text.extend_from_slice(part.as_bytes());
                    None
                }
                TemplatePart::Value(Placeholder::Host) => Some(KeySection::Host),
                TemplatePart::Value(Placeholder::Scheme) => Some(KeySection::Scheme),
                TemplatePart::Value(Placeholder::Uri) => Some(KeySection::Uri),
                TemplatePart::Value(value) => {
                    let named = NamedValue::of(value).filter(is_checked).map(KeySection::Named);
                    let filled = || {
                        let filled = Template::of(vec![part.clone()]);
                        if depends_on_target(&filled) {
                            KeySection::OfTarget(filled)
                        } else {
                            KeySection::Value(filled)
                        }
                    };
                    Some(named.unwrap_or_else(filled))
                }
            };
            if let Some(section) = section {
                parts.push(KeySection::Text(std::mem::take(&mut text)));
                parts.push(section);
            }
            // A NUL follows each value. Values contain no NUL, so two different lists of values
            // never give the same key.
            text.push(0);
        }
        parts.push(KeySection::Text(text));
        let named = NamedValue::all_of(template).into_iter().filter(is_checked).collect();
        let uses = |wanted: &[Placeholder]| template.uses(|value| wanted.contains(value));
        let has_path = uses(&[Placeholder::Uri, Placeholder::Path]);
        let has_part_of_path = has_path || uses(&[Placeholder::Rest]);
        let original = match () {
            () if has_query && has_part_of_path => Some(OriginalPart::Whole),
            () if has_part_of_path => Some(OriginalPart::Path),
            () => None,
        };
        let has_whole_url =
            has_query && has_path && uses(&[Placeholder::Host]) && uses(&[Placeholder::Scheme]);
        let zone = [zone.as_bytes(), b"\0"].concat().into();
        Self { zone, original, shares_includes: false, has_whole_url, parts, named }
    }

    /// Lets all pages that include a document share its stored reply. Call this only for origins
    /// that do not see the client's own target, which is the URL of the page. Otherwise one client
    /// could choose the content that other clients get.
    pub fn share_includes(self) -> Self {
        Self { shares_includes: true, ..self }
    }

    /// Returns the beginning of all keys of the route.
    pub fn zone(&self) -> &[u8] {
        &self.zone
    }

    /// Returns true if replies with different URLs never share a key.
    pub fn has_whole_url(&self) -> bool {
        self.has_whole_url
    }

    /// Returns the use of the store for a request. Returns `Use::Bypass` if an application may read
    /// another value for a parameter, cookie or field than the one in the key.
    pub fn use_of(&self, request: &Request, fields: CacheFields) -> Use {
        match Use::of(request, fields) {
            Use::Lookup if self.named.iter().any(|named| named.only(request).is_err()) => {
                Use::Bypass
            }
            other => other,
        }
    }

    /// Returns the key of a request.
    pub fn of(&self, request: &Request) -> Key {
        let mut key = Vec::with_capacity(128);
        let plain = self.append(request, &mut key);
        Key::new(key, plain, || self.own_half(request, request.original_target()))
    }

    /// Appends the key of a request to `key`, which is empty. Returns the length of the plain key
    /// (see `resource_key`).
    pub fn append(&self, request: &Request, key: &mut Vec<u8>) -> usize {
        let host = self.append_start(request, key);
        for part in &self.parts {
            part.append(request, host, key);
        }
        let plain = key.len();
        if let Some((part, target)) = self.original.zip(request.replaced_target())
            && !self.is_shared(request)
        {
            part.append(target, key);
        }
        plain
    }

    /// Returns true if the request is for an included document that pages share. Returns false
    /// after a rewrite, because a change of the resource at the original URL must remove the reply,
    /// too. Also returns false for a trusted peer, because the fields that it sends may contain the
    /// URL of the page.
    fn is_shared(&self, request: &Request) -> bool {
        let is_rewritten = request.asked.is_some() || request.is_rerouted();
        self.shares_includes && request.is_included && !is_rewritten && !request.is_peer_trusted
    }

    /// Appends the parts that are the same for all templates. Returns the requested host, which the
    /// caller appends if the template contains it.
    fn append_start<'r>(&self, request: &'r Request, key: &mut Vec<u8>) -> &'r [u8] {
        key.extend_from_slice(&self.zone);
        // The port of `Host` is part of the key, because applications may use it in links.
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let host = request.plain_host().unwrap_or_default();
        let port = authority.and_then(|authority| authority.get(host.len()..)).unwrap_or_default();
        key.extend_from_slice(port);
        key.push(0);
        host
    }

    /// Returns a hash of the client's own target. The hash also covers the values of the key that
    /// do not depend on the current target, such as the host, cookies and fields. A client
    /// therefore cannot remove replies to requests with another host, cookie or field.
    fn own_half(&self, request: &Request, target: &[u8]) -> Half {
        let mut key = Vec::with_capacity(128);
        let host = self.append_start(request, &mut key);
        for part in self.parts.iter().filter(|part| !part.is_of_target()) {
            part.append(request, host, &mut key);
        }
        self.original.unwrap_or(OriginalPart::Whole).append(target, &mut key);
        halves(&checksum(&key)).0
    }

    /// Adds the resources that a request has changed (RFC 9111 section 4.4). These are the target
    /// of the request, and the targets in `references` that are on the same host and port.
    pub fn add_changed(&self, request: &Request, references: &[&[u8]], changes: &mut ChangedKeys) {
        let mut get = request.clone();
        get.become_get(None);
        changes.add(self.of(&get));
        if get.replaced_target().is_some() {
            get.forget_original();
            changes.add(self.of(&get));
        }
        // Routes may depend on the method, so a GET may be rewritten in another way than this
        // request. Therefore also add the resource of a GET for the client's own target.
        self.add_target(request, request.original_target(), changes);
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        for target in references {
            if let Some(path) = path_on(target, authority.unwrap_or_default()) {
                self.add_target(request, path, changes);
            }
        }
    }

    /// Adds all keys that a GET for `target` may have. Adds nothing if the path of `target` is
    /// malformed.
    fn add_target(&self, request: &Request, target: &[u8], changes: &mut ChangedKeys) {
        let mut get = request.clone();
        get.become_get(Some(target));
        let sent = get.head.path_and_query;
        if get.clean_path().is_err() {
            return;
        }
        let clean = get.head.path_and_query;
        get.forget_original();
        changes.add(self.of(&get));
        // If `fallback_to` or an index script replaces the path of the GET, the key of the GET is
        // an alias. An alias ends in the client's own target, which may be `clean` or `sent`. After
        // an internal redirect of `request`, the client's own target may also be `own`.
        let own = request.original.unwrap_or(request.head.path_and_query);
        for original in [clean, sent, own] {
            get.original = Some(original);
            changes.add(self.of(&get));
        }
        // If `rewrite`, an internal redirect or an include replaces the target of the GET, the
        // plain key is unknown. So add the group of all aliases that end in `clean` or `sent`.
        for original in [clean, sent].into_iter().filter(|_| self.original.is_some()) {
            let half = self.own_half(&get, original.of(&get.bytes));
            changes.groups.insert(Group::Own(half));
        }
    }
}

impl OriginalPart {
    /// Appends this part of the client's own target.
    fn append(self, target: &[u8], key: &mut Vec<u8>) {
        let path_len = memchr::memchr(b'?', target).unwrap_or(target.len());
        key.extend_from_slice(match self {
            Self::Path => &target[..path_len],
            Self::Whole => target,
        });
        // End the value with NUL, as `new` does for the other values.
        key.push(0);
    }
}

impl KeySection {
    fn append(&self, request: &Request, host: &[u8], key: &mut Vec<u8>) {
        match self {
            Self::Text(text) => key.extend_from_slice(text),
            Self::Value(value) | Self::OfTarget(value) => request.fill(value, Escape::Exact, key),
            Self::Scheme => key.extend_from_slice(if request.https { b"https" } else { b"http" }),
            Self::Uri => append_exact(request.target(), key),
            Self::Host => {
                let host_at = key.len();
                key.extend_from_slice(host);
                key[host_at..].make_ascii_lowercase();
            }
            Self::Named(named) => append_named(named, request, key),
        }
    }

    /// Returns true if the value depends on the current target.
    fn is_of_target(&self) -> bool {
        matches!(self, Self::Uri | Self::OfTarget(_) | Self::Named(NamedValue::Parameter(_)))
    }
}

/// Returns true if the text depends on the target, perhaps through a table [map.NAME].
fn depends_on_target(template: &Template) -> bool {
    template.depends_on(&|value| {
        matches!(
            value,
            Placeholder::Uri
                | Placeholder::Path
                | Placeholder::Query
                | Placeholder::Rest
                | Placeholder::Prefix
                | Placeholder::Capture(_)
                | Placeholder::Parameter(_)
        )
    })
}

/// Appends a named value. A missing value, an empty value and several values give different keys.
fn append_named(named: &NamedValue, request: &Request, key: &mut Vec<u8>) {
    // A request with several values bypasses the store. Its key only has to differ from all keys
    // with one value.
    match named.only(request) {
        Ok(None) => {}
        Ok(Some(only)) => {
            // Leave out the name of a field, because it can differ only in case, which has no
            // meaning.
            if !matches!(named, NamedValue::Field(_)) {
                key.extend_from_slice(only.name);
            }
            key.push(b'=');
            key.extend_from_slice(only.value);
        }
        Err(Ambiguous) => key.push(1),
    }
}

/// Returns the path and the query of a reference. Returns `None` if the reference is on another
/// host or port, or if it is not a URL or an absolute path.
fn path_on<'a>(target: &'a [u8], authority: &[u8]) -> Option<&'a [u8]> {
    if !target.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    let rest = target.strip_prefix(b"https:").or_else(|| target.strip_prefix(b"http:"));
    let path = match rest.unwrap_or(target).strip_prefix(b"//") {
        Some(rest) => {
            let end = rest.iter().position(|b| b"/?#".contains(b)).unwrap_or(rest.len());
            if !rest[..end].eq_ignore_ascii_case(authority) {
                return None;
            }
            &rest[end..]
        }
        None => target,
    };
    let end = memchr::memchr(b'#', path).unwrap_or(path.len());
    path.starts_with(b"/").then_some(&path[..end])
}

/// Returns true if the client asks for a range.
pub fn asks_for_part(request: &Request) -> bool {
    request.head.fields.iter().any(|field| field.known == KnownField::Range)
}

/// Removes the client's conditions and its range.
pub fn remove_conditions(request: &mut Request) {
    request.head.fields.retain(|field| !is_condition(field.known));
}

/// Replaces the client's conditions by conditions that let the origin confirm `stored`. Also
/// removes the fields in `OVERRIDES`, unless a trusted proxy has sent the request. Returns the
/// fields from before the change.
pub fn set_validators(request: &mut Request, stored: Option<&Stored>) -> Vec<Field> {
    let clients = request.head.fields.clone();
    remove_conditions(request);
    let bytes = &request.bytes;
    request.head.fields.retain(|field| {
        let name = field.name.of(bytes);
        // A trusted proxy may set these fields.
        request.is_peer_trusted
            || !OVERRIDES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
    });
    let Some(stored) = stored else { return clients };
    if let Some(etag) = &stored.etag {
        add_field(request, b"If-None-Match", etag, KnownField::IfNoneMatch);
    }
    if let Some(modified) = stored.modified_text() {
        add_field(request, b"If-Modified-Since", modified, KnownField::IfModifiedSince);
    }
    clients
}

/// Adds a field at the end of the head.
fn add_field(request: &mut Request, name: &[u8], value: &[u8], known: KnownField) {
    let at = request.head.len;
    let line = [name, b": ", value, b"\r\n"].concat();
    let value_at = at + name.len() + 2;
    request.head.fields.push(Field {
        name: Span::new(at, at + name.len()),
        value: Span::new(value_at, value_at + value.len()),
        line: Span::new(at, at + line.len()),
        known,
    });
    request.head.len += line.len();
    request.bytes.splice(at..at, line);
}

fn is_condition(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::IfMatch
            | KnownField::IfUnmodifiedSince
            | KnownField::IfNoneMatch
            | KnownField::IfModifiedSince
            | KnownField::IfRange
            | KnownField::Range
    )
}

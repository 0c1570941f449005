//! A route's changes to the fields of replies.

use std::iter;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use forebay_conf::{CookieAttributes, Cors, Expires, MediaPattern, ReplyChange, ReplyField};
use forebay_net::head::Request;
use forebay_net::template::Escape;
use forebay_wire::http1::{KnownField, encode};

use super::changes::FieldChanges;
use super::{charset, cookies, cors};

/// A route's changes to the head of a reply.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Changes to replies with a status below 400.
    pub unless_error: FieldChanges,
    /// Changes to all replies.
    pub always: FieldChanges,
    /// Fields whose values depend on the request.
    pub by_request: Vec<ReplyField>,
    /// Web pages of other origins that may use the route.
    pub cors: Option<Rc<Cors>>,
    /// Lifetime in caches: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<Lifetimes>,
    /// Attributes of cookies.
    pub cookies: Option<CookieAttributes>,
    /// Charset that is added to the `Content-Type` of texts without one.
    pub charset: Option<Rc<str>>,
    /// True if `X-Accel-Redirect` and `X-Sendfile` make the server send a file in place of the
    /// reply.
    pub sends_files: bool,
}

/// Lifetimes of replies in caches.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    by_type: Rc<[(MediaPattern, Duration)]>,
    default: Option<Duration>,
}

impl Lifetimes {
    /// Converts the setting of a route.
    pub fn new(settings: &Expires) -> Self {
        Self { by_type: settings.by_type().into(), default: settings.default }
    }

    /// The lifetime of a reply with these field lines.
    fn of(&self, lines: &[u8]) -> Option<Duration> {
        if self.by_type.is_empty() {
            return self.default;
        }
        let mut fields = forebay_wire::fields::of_lines(lines);
        let kind = fields.find(|field| field.name.eq_ignore_ascii_case(b"content-type"));
        let kind = kind.map_or(&b""[..], |kind| kind.value);
        let kind = kind.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
        let mut types = self.by_type.iter();
        types.find(|(pattern, _)| pattern.matches(kind)).map(|(_, time)| *time).or(self.default)
    }
}

impl Rules {
    /// Returns the rules of a route with these fields to set and to remove.
    pub fn new(set: &[ReplyField], removed: &[String]) -> Self {
        let mut rules = Self::default();
        rules.always.remove.extend_from_slice(removed);
        for field in set {
            match field.value.constant() {
                Some(value) => rules.set(field, value.as_bytes()),
                None => rules.by_request.push(field.clone()),
            }
        }
        rules
    }

    /// Returns true if a field value depends on the request.
    pub(crate) fn is_by_request(&self) -> bool {
        !self.by_request.is_empty() || self.cors.is_some()
    }

    /// Returns the rules for the reply to `request`. In these rules, all placeholders are replaced
    /// by their values.
    pub(crate) fn of_request(self: &Rc<Self>, request: &Request) -> Rc<Self> {
        if !self.is_by_request() {
            return self.clone();
        }
        let mut rules = Self { by_request: Vec::new(), cors: None, ..Self::clone(self) };
        if let Some(cors) = &self.cors {
            cors::change_reply(cors, request, &mut rules.always);
        }
        let mut value = Vec::new();
        for field in &self.by_request {
            value.clear();
            request.fill(&field.value, Escape::Field, &mut value);
            rules.set(field, value.trim_ascii());
        }
        Rc::new(rules)
    }

    /// Changes the fields of this name. As in nginx, does not add a field whose value is empty
    /// because its placeholders have no values.
    fn set(&mut self, field: &ReplyField, value: &[u8]) {
        let changes = if field.always { &mut self.always } else { &mut self.unless_error };
        if field.change == ReplyChange::Set {
            changes.remove.push(field.name.to_ascii_lowercase());
        }
        let is_missing = field.change == ReplyChange::IfMissing;
        let lines = if is_missing { &mut changes.add_missing } else { &mut changes.add };
        if !value.is_empty() || field.value.constant().is_some() {
            encode::field(lines, &field.name, value);
        }
    }

    /// Returns the names of all fields that the rules remove. The result includes fields that are
    /// removed only from successful replies.
    pub(crate) fn removed(&self) -> Vec<String> {
        [&self.always.remove[..], &self.unless_error.remove].concat()
    }

    /// Applies the rules for a reply with `status` to the field lines of `out` from `start` on. The
    /// lines of `carried` are appended later.
    pub(super) fn apply(&self, out: &mut Vec<u8>, start: usize, (status, carried): (u16, &[u8])) {
        let is_error = status >= 400;
        if let Some(charset) = &self.charset {
            charset::add(charset, out, start);
        }
        if let Some(cookies) = &self.cookies {
            cookies::add(cookies, out, start);
        }
        self.always.remove_from(out, start);
        if !is_error {
            self.unless_error.remove_from(out, start);
            out.extend_from_slice(&self.unless_error.add);
        }
        out.extend_from_slice(&self.always.add);
        let lifetimes = self.expires.as_ref().filter(|_| !is_error);
        if let Some(time) = lifetimes.and_then(|lifetimes| lifetimes.of(&out[start..])) {
            let at = SystemTime::now() + time;
            encode::field(out, "Expires", httpdate::fmt_http_date(at).as_bytes());
            encode::field(out, "Cache-Control", format!("max-age={}", time.as_secs()).as_bytes());
        }
        let end = out.len();
        let by_status = Some(&self.unless_error).filter(|_| !is_error);
        for changes in by_status.into_iter().chain([&self.always]) {
            for line in changes.add_missing.split_inclusive(|&b| b == b'\n') {
                let name = name_of(line);
                if !has(&out[start..end], name) && !has(carried, name) {
                    out.extend_from_slice(line);
                }
            }
        }
    }

    /// Applies the rules to `out[start..]`, fields that another route's reply will get.
    pub(super) fn apply_to_carried(&self, out: &mut Vec<u8>, start: usize) {
        if let Some(cookies) = &self.cookies {
            cookies::add(cookies, out, start);
        }
        self.remove_from(out, start);
    }

    /// Removes from `out[start..]` the fields of [`Self::removed`].
    pub(super) fn remove_from(&self, out: &mut Vec<u8>, start: usize) {
        self.always.remove_from(out, start);
        self.unless_error.remove_from(out, start);
    }
}

/// Appends each line of `carried`, unless `out` has a field of the same name from `start` on.
/// Cookies are always appended, and `Accept-Ranges` replaces the field of the file. An error gets
/// no line that describes the resource, such as its type or its lifetime in caches.
pub(super) fn append_carried(out: &mut Vec<u8>, start: usize, (status, carried): (u16, &[u8])) {
    for line in carried.split_inclusive(|&b| b == b'\n') {
        let name = name_of(line);
        let is_cookie = name.eq_ignore_ascii_case(b"set-cookie");
        let lower = name.to_ascii_lowercase();
        let describes_resource = lower.starts_with(b"content-")
            || [&b"accept-ranges"[..], b"cache-control", b"expires"].contains(&&*lower);
        if status >= 400 && describes_resource {
            continue;
        }
        if name.eq_ignore_ascii_case(b"accept-ranges") {
            let changes =
                FieldChanges { remove: vec!["accept-ranges".into()], ..FieldChanges::default() };
            changes.remove_from(out, start);
        }
        if is_cookie || !has(&out[start..], name) {
            out.extend_from_slice(line);
        }
    }
}

/// Returns the field lines that an error page keeps from the error reply that it replaces.
pub(super) fn of_error(lines: &[u8]) -> Vec<u8> {
    const KEPT: [&[u8]; 5] =
        [b"www-authenticate", b"proxy-authenticate", b"retry-after", b"allow", b"set-cookie"];
    let lines = lines.split_inclusive(|&b| b == b'\n');
    let is_kept = |line: &&[u8]| KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name_of(line)));
    lines.filter(is_kept).flatten().copied().collect()
}

/// Returns true if one of the lines has this field name. Ignores case.
pub(super) fn has(lines: &[u8], name: &[u8]) -> bool {
    lines.split(|&b| b == b'\n').any(|line| name_of(line).eq_ignore_ascii_case(name))
}

fn name_of(line: &[u8]) -> &[u8] {
    line.split(|&b| b == b':').next().unwrap_or_default()
}

/// Media type of event streams.
const EVENTS: &[u8] = b"text/event-stream";

/// Returns true if this field asks for unbuffered delivery: `X-Accel-Buffering: no`, or the
/// `Content-Type` of an event stream.
pub fn is_unbuffered_field(known: KnownField, name: &[u8], value: &[u8]) -> bool {
    match known {
        KnownField::ContentType => {
            value.get(..EVENTS.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
        }
        KnownField::Other => {
            name.eq_ignore_ascii_case(b"x-accel-buffering") && value.eq_ignore_ascii_case(b"no")
        }
        _ => false,
    }
}

/// Returns true for the `Content-Type` of a reply that goes on for as long as the client stays: an
/// event stream or gRPC.
pub fn is_live_type(value: &[u8]) -> bool {
    let is = |kind: &[u8]| value.get(..kind.len()).is_some_and(|v| v.eq_ignore_ascii_case(kind));
    is(EVENTS) || is(b"application/grpc")
}

/// Returns true if [`is_unbuffered_field`] is true for one of these field lines.
pub(super) fn has_unbuffered_field(lines: &[u8]) -> bool {
    let mut starts = iter::once(0).chain(memchr::memchr_iter(b'\n', lines).map(|at| at + 1));
    starts.any(|start| {
        // Check the first letter before the costlier comparison.
        if !matches!(lines.get(start), Some(b'c' | b'C' | b'x' | b'X')) {
            return false;
        }
        let line = lines[start..].split(|&b| b == b'\n').next().unwrap_or_default();
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        let (name, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        is_unbuffered_field(KnownField::of(name), name, value.trim_ascii())
    })
}

/// Adds `Alt-Svc` with the port of HTTP/3 (RFC 7838), unless the fields from `start` on already
/// have one.
pub(super) fn announce_http3(out: &mut Vec<u8>, start: usize, port: u16) {
    let is_named = forebay_wire::fields::of_lines(&out[start..])
        .any(|field| field.name.eq_ignore_ascii_case(b"alt-svc"));
    if !is_named {
        encode::field(out, "Alt-Svc", format!("h3=\":{port}\"; ma=86400").as_bytes());
    }
}

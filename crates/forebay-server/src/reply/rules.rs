//! A route's changes to the fields of replies.

use std::iter;
use std::time::{Duration, SystemTime};

use forebay_wire::http1::{KnownField, encode};

/// A route's changes to the head of a reply.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Field lines to add, each ending in CRLF.
    pub add: Vec<u8>,
    /// Names of fields to remove, in lower case.
    pub remove: Vec<String>,
    /// Lifetime in caches in seconds: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<u64>,
    /// True if `X-Accel-Redirect` and `X-Sendfile` make the server send a file in place of the
    /// reply.
    pub sends_files: bool,
}

impl Rules {
    /// Changes the field lines of `out`, from `start` on, of a reply with this status.
    pub(super) fn apply(&self, out: &mut Vec<u8>, start: usize, status: u16) {
        self.remove_from(out, start);
        out.extend_from_slice(&self.add);
        if let Some(seconds) = self.expires.filter(|_| matches!(status, 200..=399)) {
            let at = SystemTime::now() + Duration::from_secs(seconds);
            encode::field(out, "Expires", httpdate::fmt_http_date(at).as_bytes());
            encode::field(out, "Cache-Control", format!("max-age={seconds}").as_bytes());
        }
    }

    /// Removes the fields named in `remove` from `out`, from `start` on.
    pub(super) fn remove_from(&self, out: &mut Vec<u8>, start: usize) {
        if self.remove.is_empty() {
            return;
        }
        let lines = out.split_off(start);
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let name = line.split(|&b| b == b':').next().unwrap_or_default();
            if !self.remove.iter().any(|n| n.as_bytes().eq_ignore_ascii_case(name)) {
                out.extend_from_slice(line);
            }
        }
    }
}

/// Appends the lines `carried` whose fields `out` does not have from `start` on. Cookies are always
/// appended.
pub(super) fn append_carried(out: &mut Vec<u8>, start: usize, carried: &[u8]) {
    let end = out.len();
    for line in carried.split_inclusive(|&b| b == b'\n') {
        let name = name_of(line);
        let has_own = out[start..end]
            .split(|&b| b == b'\n')
            .any(|own| name_of(own).eq_ignore_ascii_case(name));
        if !has_own || name.eq_ignore_ascii_case(b"set-cookie") {
            out.extend_from_slice(line);
        }
    }
}

fn name_of(line: &[u8]) -> &[u8] {
    line.split(|&b| b == b':').next().unwrap_or_default()
}

/// Returns true if this field asks for unbuffered delivery: `X-Accel-Buffering: no`, or the
/// `Content-Type` of an event stream.
pub fn is_unbuffered_field(known: KnownField, name: &[u8], value: &[u8]) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
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

//! Stored replies: their counts, and their removal. Over TCP, a removal requires `admin_token`.

use std::fmt::Write as _;

use forebay_wire::forms::{self, Dialect};
use serde_json::{Value, json};

use super::request::{AdminRequest, Method};
use super::{Admin, AdminAnswer};
use crate::metrics;

/// Counts of the store of replies at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheRow {
    /// Resources with stored replies.
    pub replies: usize,
    /// Bytes in use.
    pub bytes: u64,
    /// Maximum number of bytes.
    pub capacity: u64,
    /// Requests that fresh stored replies answered.
    pub hits: u64,
    /// Requests that the origin answered, because no usable reply was stored.
    pub misses: u64,
    /// Requests whose stored reply the origin confirmed.
    pub confirmed: u64,
    /// Requests that got a stale reply.
    pub stale: u64,
    /// Requests that could not use the store.
    pub passed: u64,
    /// Counts of the store on disk, if there is one.
    pub disk: Option<DiskRow>,
}

/// Counts of the store on disk at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRow {
    /// `ready`, `loading`, `waiting for another process` or `failed`.
    pub state: &'static str,
    /// Replies on disk.
    pub replies: usize,
    /// Bytes of the files of these replies.
    pub bytes: u64,
    /// Maximum number of bytes.
    pub capacity: u64,
    /// Replies that were read from the disk for a request.
    pub hits: u64,
    /// Replies that were written to the disk.
    pub written: u64,
    /// Replies that were not written, because too many other replies waited to be written.
    pub skipped: u64,
    /// Files that were removed, because a checksum was wrong.
    pub broken: u64,
    /// Errors of the disk.
    pub errors: u64,
}

/// Replies to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    /// The set of replies.
    pub what: Purged,
    /// True if the replies only become stale, so that the origin can confirm them.
    pub is_soft: bool,
}

/// A set of stored replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purged {
    /// All variants for this URL. A URL that begins with `//` stands for both schemes.
    Url(Vec<u8>),
    /// Replies for URLs that begin with this text. A text that begins with `//` stands for both
    /// schemes.
    Prefix(Vec<u8>),
    /// Replies with this tag in `Cache-Tag` or `Surrogate-Key`.
    Tag(Vec<u8>),
    /// Every reply.
    All,
}

const USAGE: &str = "name what to purge: /cache/purge?url=URL, ?prefix=URL, ?tag=TAG or ?all=1; \
                     &soft=1 only makes it stale\n";
const NO_SCHEME: &str = "a URL to purge begins with https:// or http://, or with // for both: \
                         ?url=https://example.org/news\n";
const NOT_ENCODED: &str = "a URL to purge must be percent-encoded (& as %26, + as %2B), as with \
                           curl -G --data-urlencode url=URL -X POST\n";

impl Admin {
    /// Returns the answer for paths below /cache/. Returns `None` for other paths.
    pub(super) fn answer_for_cache(&self, request: &AdminRequest) -> Option<AdminAnswer> {
        let what = request.path.strip_prefix("/cache/")?;
        Some(match (&request.method, what) {
            (Method::Post, "purge") => self.purge(request),
            (_, "purge") => AdminAnswer::text(405, "POST is answered here\n").with("Allow", "POST"),
            _ => AdminAnswer::text(404, "there is /cache/purge\n"),
        })
    }

    fn purge(&self, request: &AdminRequest) -> AdminAnswer {
        if let Some(refusal) = self.refuse_token(request, "to purge replies here") {
            return refusal;
        }
        let purge = match Purge::parse(request.query.as_bytes()) {
            Ok(purge) => purge,
            Err(hint) => return AdminAnswer::text(400, hint),
        };
        match self.meters.control.purge(&purge) {
            Some(count) => AdminAnswer::text(200, format!("{count} purged\n")),
            None => AdminAnswer::text(404, "no route has `cache`\n"),
        }
    }
}

impl Purge {
    /// Parses a query, which must have exactly one of the keys `url`, `prefix`, `tag` and `all`,
    /// and may have `soft`. If the query is not valid, the error is a hint for the administrator.
    fn parse(query: &[u8]) -> Result<Self, &'static str> {
        let (mut what, mut is_soft) = (None, false);
        let names_url =
            |what: &Option<Purged>| matches!(what, Some(Purged::Url(_) | Purged::Prefix(_)));
        for pair in forms::pairs(query, Dialect::Whatwg) {
            let value = forms::decode(pair.value).into_owned();
            let named = match &forms::decode(pair.name)[..] {
                b"url" => Purged::Url(value),
                b"prefix" => Purged::Prefix(value),
                b"tag" => Purged::Tag(value),
                b"all" if value.is_empty() || value == b"1" => Purged::All,
                b"soft" => {
                    is_soft = value != b"0";
                    continue;
                }
                // If the URL is not encoded, the text after its first `&` looks like another key.
                _ if names_url(&what) => return Err(NOT_ENCODED),
                _ => return Err(USAGE),
            };
            let is_empty = matches!(&named,
                Purged::Url(text) | Purged::Prefix(text) | Purged::Tag(text) if text.is_empty());
            if let Purged::Url(text) | Purged::Prefix(text) = &named
                && !is_empty
            {
                check_url(text)?;
            }
            if is_empty || what.replace(named).is_some() {
                return Err(USAGE);
            }
        }
        what.map(|what| Self { what, is_soft }).ok_or(USAGE)
    }
}

/// Checks that a decoded URL begins with `http://`, `https://` or `//`, and has only visible ASCII
/// characters.
fn check_url(url: &[u8]) -> Result<(), &'static str> {
    let has_start = |start: &[u8]| {
        url.get(..start.len()).is_some_and(|given| given.eq_ignore_ascii_case(start))
    };
    if ![&b"http://"[..], b"https://", b"//"].into_iter().any(has_start) {
        return Err(NO_SCHEME);
    }
    if url.iter().all(u8::is_ascii_graphic) { Ok(()) } else { Err(NOT_ENCODED) }
}

/// Returns the counts of the reply store as JSON.
pub(super) fn json(row: &CacheRow) -> Value {
    let mut value = json!({
        "replies": row.replies, "bytes": row.bytes, "capacity": row.capacity, "hits": row.hits,
        "misses": row.misses, "confirmed": row.confirmed, "stale": row.stale, "passed": row.passed,
    });
    if let Some(disk) = &row.disk {
        value["disk"] = json!({
            "state": disk.state, "replies": disk.replies, "bytes": disk.bytes,
            "capacity": disk.capacity, "hits": disk.hits, "written": disk.written,
            "skipped": disk.skipped, "broken": disk.broken, "errors": disk.errors,
        });
    }
    value
}

/// Appends the metrics of the reply store.
pub(super) fn append_metrics(out: &mut String, row: &CacheRow) {
    metrics::CACHE_REQUESTS.begin(out);
    for (result, count) in [
        ("hit", row.hits),
        ("miss", row.misses),
        ("confirmed", row.confirmed),
        ("stale", row.stale),
        ("passed", row.passed),
    ] {
        metrics::CACHE_REQUESTS.value(out, &format!("result=\"{result}\""), count);
    }
    metrics::CACHE_BYTES.single(out, row.bytes);
    let Some(disk) = &row.disk else { return };
    metrics::CACHE_DISK_BYTES.single(out, disk.bytes);
    metrics::CACHE_DISK_REPLIES.single(out, disk.replies);
    metrics::CACHE_DISK_EVENTS.begin(out);
    for (event, count) in [
        ("hit", disk.hits),
        ("written", disk.written),
        ("skipped", disk.skipped),
        ("broken", disk.broken),
        ("error", disk.errors),
    ] {
        metrics::CACHE_DISK_EVENTS.value(out, &format!("event=\"{event}\""), count);
    }
}

/// Appends the counts of the reply store to the status page.
pub(super) fn append_page(page: &mut String, row: &CacheRow) {
    let _ = writeln!(
        page,
        "<h2>Cache</h2>\n<p>{} resources, {} of {} bytes. Requests: {} hits, {} misses, {} \
         confirmed, {} stale, {} passed.</p>",
        row.replies,
        row.bytes,
        row.capacity,
        row.hits,
        row.misses,
        row.confirmed,
        row.stale,
        row.passed,
    );
    if let Some(disk) = &row.disk {
        let _ = writeln!(
            page,
            "<p>On disk ({}): {} replies, {} of {} bytes. {} hits, {} written, {} skipped, {} \
             broken, {} errors.</p>",
            disk.state,
            disk.replies,
            disk.bytes,
            disk.capacity,
            disk.hits,
            disk.written,
            disk.skipped,
            disk.broken,
            disk.errors,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_exactly_one_set() {
        let of = |query: &str| Purge::parse(query.as_bytes());
        let url = Purged::Url(b"http://h/a?b=1".to_vec());
        let purge = of("url=http%3A%2F%2Fh%2Fa%3Fb%3D1&soft=1");
        assert_eq!(purge, Ok(Purge { what: url, is_soft: true }));
        assert_eq!(of("all=1"), Ok(Purge { what: Purged::All, is_soft: false }));
        let both = Purged::Prefix(b"//h/".to_vec());
        assert_eq!(of("prefix=//h/"), Ok(Purge { what: both, is_soft: false }));
        for wrong in ["", "soft=1", "url=", "tag=a&url=//b", "everything=1", "url=//a&url=//b"] {
            assert_eq!(of(wrong), Err(USAGE), "{wrong}");
        }
        for wrong in ["url=/news", "url=h/news", "prefix=ftp://h/", "prefix=/", "url=https"] {
            assert_eq!(of(wrong), Err(NO_SCHEME), "{wrong}");
        }
        for wrong in ["url=http://h/v?h=a&b=c", "url=http://h/a+b", "prefix=//h/caf%C3%A9&soft=1"] {
            assert_eq!(of(wrong), Err(NOT_ENCODED), "{wrong}");
        }
    }
}

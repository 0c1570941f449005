//! A stored reply.

use std::sync::Arc;

use forebay_admin::Purged;
use forebay_net::head::Request;
use forebay_server::compress::CompressedCopies;
use forebay_wire::caching::{CacheControl, Freshness, ReplyControl, parse_date};
use forebay_wire::fields::of_lines;
use tokio::time::Instant;

use super::vary::Variant;

/// Maximum size in bytes of a body that is compressed as a whole, and only once. A larger body is
/// compressed in slices for each client, so that the thread serves other requests in between.
pub const COMPRESSED_AT_ONCE: usize = 256 * 1024;

/// Fields that belong to one connection, or that the cache or the server writes itself.
const NOT_STORED: [&[u8]; 12] = [
    b"age",
    b"connection",
    b"content-length",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Fields that a 304 does not replace. They describe the stored body (RFC 9111 section 3.2), or
/// contain the validator, which has not changed.
const NOT_UPDATED: [&[u8]; 5] =
    [b"content-encoding", b"content-length", b"content-md5", b"content-range", b"etag"];

/// A reply in the store.
#[derive(Clone, Debug)]
pub struct Stored {
    /// URL of the request, as the client wrote it: scheme, authority, path and query.
    pub url: Vec<u8>,
    /// Status.
    pub status: u16,
    /// Field lines, without those of [`NOT_STORED`].
    pub lines: Vec<u8>,
    /// Body.
    pub body: Arc<Vec<u8>>,
    /// Compressed forms of the body.
    pub copies: Arc<CompressedCopies>,
    /// Age on arrival, and lifetime.
    pub freshness: Freshness,
    /// Time of arrival.
    pub arrived: Instant,
    /// Cache directives of the reply, from `Cache-Control`.
    pub control: CacheControl,
    /// Request fields that selected the reply.
    pub variant: Variant,
    /// `ETag`.
    pub etag: Option<Vec<u8>>,
    /// `Last-Modified`, in seconds since 1970.
    pub modified: Option<u64>,
}

/// A reply that arrived, with its lifetime.
pub struct Arrival<'a> {
    /// Status.
    pub status: u16,
    /// Field lines.
    pub lines: &'a [u8],
    /// Cache directives of the reply, from `Cache-Control`.
    pub control: ReplyControl,
    /// Age on arrival, and lifetime.
    pub freshness: Freshness,
}

impl Stored {
    /// Creates the stored form of the reply to `request`.
    pub fn new(arrival: &Arrival<'_>, request: &Request, body: Vec<u8>) -> Self {
        let lines: Vec<u8> = arrival
            .lines
            .split_inclusive(|&b| b == b'\n')
            .filter(|line| !is_named(line, &NOT_STORED))
            .flatten()
            .copied()
            .collect();
        let authority = request.head.authority.map(|span| span.of(&request.bytes));
        let authority = authority.unwrap_or_default().to_ascii_lowercase();
        let scheme: &[u8] = if request.https { b"https://" } else { b"http://" };
        let url = [scheme, &authority, request.target()].concat();
        let variant = Variant::of(arrival.lines, request);
        Self::of_lines(arrival, lines, (url, variant), (Arc::new(body), Arc::default()))
    }

    /// Creates a stored reply from its final field lines.
    fn of_lines(
        arrival: &Arrival<'_>,
        lines: Vec<u8>,
        (url, variant): (Vec<u8>, Variant),
        (body, copies): (Arc<Vec<u8>>, Arc<CompressedCopies>),
    ) -> Self {
        let value = |name: &[u8]| {
            let mut fields = of_lines(&lines);
            fields.find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
        };
        let etag = value(b"etag").map(<[u8]>::to_vec);
        let modified = value(b"last-modified").and_then(parse_date);
        Self {
            url,
            status: arrival.status,
            body,
            copies,
            freshness: arrival.freshness,
            arrived: Instant::now(),
            control: arrival.control.directives.clone(),
            variant,
            etag,
            modified,
            lines,
        }
    }

    /// Returns the field lines of the reply after a 304 with the lines `confirmed`.
    pub fn lines_after(&self, confirmed: &[u8]) -> Vec<u8> {
        let is_new = |line: &&[u8]| !is_named(line, &NOT_STORED) && !is_named(line, &NOT_UPDATED);
        let new: Vec<&[u8]> = confirmed.split_inclusive(|&b| b == b'\n').filter(is_new).collect();
        let is_replaced = |line: &[u8]| new.iter().any(|new| same_name(new, line));
        let kept = self.lines.split_inclusive(|&b| b == b'\n').filter(|line| !is_replaced(line));
        kept.chain(new.iter().copied()).flatten().copied().collect()
    }

    /// Returns the reply with the lines of [`Self::lines_after`] and the lifetime of `arrival`.
    pub fn confirmed(&self, arrival: &Arrival<'_>, lines: Vec<u8>) -> Self {
        let arrival = Arrival { status: self.status, lines: &[], ..arrival.clone() };
        let of_request = (self.url.clone(), self.variant.clone());
        // The body is the same, and so are its compressed forms.
        let body = (self.body.clone(), self.copies.clone());
        Self::of_lines(&arrival, lines, of_request, body)
    }

    /// Returns a copy of the reply whose lifetime has ended.
    pub fn expired(&self) -> Self {
        let freshness = Freshness { lifetime: 0, ..self.freshness };
        Self { freshness, ..self.clone() }
    }

    /// Returns true if `purged` includes this reply.
    pub fn is_meant(&self, purged: &Purged) -> bool {
        let has_tag = |tag: &[u8]| {
            of_lines(&self.lines).any(|field| {
                let divider = match () {
                    () if field.name.eq_ignore_ascii_case(b"cache-tag") => b',',
                    () if field.name.eq_ignore_ascii_case(b"surrogate-key") => b' ',
                    () => return false,
                };
                let mut tags = field.value.split(|&b| b == divider);
                tags.any(|other| other.trim_ascii() == tag)
            })
        };
        match purged {
            Purged::Url(url) => self.url == *url,
            Purged::Prefix(prefix) => self.url.starts_with(prefix),
            Purged::Tag(tag) => has_tag(tag),
            Purged::All => true,
        }
    }

    /// Returns the age and the remaining lifetime in seconds.
    pub fn age_and_remaining(&self) -> (u64, i64) {
        let resident = self.resident();
        (self.freshness.age(resident), self.freshness.remaining(resident))
    }

    /// Returns the remaining lifetime in seconds; negative if the reply is stale.
    pub fn remaining(&self) -> i64 {
        self.freshness.remaining(self.resident())
    }

    fn resident(&self) -> u64 {
        self.arrived.elapsed().as_secs()
    }

    /// Returns true if the reply may be used without asking the origin.
    pub fn is_fresh(&self) -> bool {
        self.remaining() > 0 && !self.control.no_cache
    }

    /// Returns true if the reply is fresh, or has been stale for less than `allowed` seconds. Returns
    /// false if the reply must be validated first.
    pub fn may_be_stale(&self, allowed: u64) -> bool {
        let stale_for = self.remaining().min(0).unsigned_abs();
        // `s-maxage` implies proxy-revalidate (RFC 9111 section 5.2.2.10).
        let must_ask = self.control.no_cache
            || self.control.must_revalidate
            || self.control.s_maxage.is_some();
        !must_ask && stale_for < allowed
    }

    /// Returns true if requests of signed-in users may get the reply.
    pub fn is_for_users(&self) -> bool {
        self.control.public || self.control.must_revalidate || self.control.s_maxage.is_some()
    }

    /// Returns `Last-Modified` as the origin wrote it.
    pub fn modified_text(&self) -> Option<&[u8]> {
        let mut fields = of_lines(&self.lines);
        let field = fields.find(|field| field.name.eq_ignore_ascii_case(b"last-modified"))?;
        self.modified.is_some().then_some(field.value)
    }

    /// Returns the size in memory in bytes, approximately. Assumes three compressed forms, each
    /// with half the size of the body.
    pub fn size(&self) -> usize {
        let may_have_copies = self.body.len() <= COMPRESSED_AT_ONCE && self.is_text();
        let copies = if may_have_copies { self.body.len() * 3 / 2 } else { 0 };
        copies
            + size_of::<Self>()
            + self.url.len()
            + self.lines.len()
            + self.body.len()
            + self.variant.size()
    }
}

impl Stored {
    /// Returns true if the body may be compressed.
    fn is_text(&self) -> bool {
        const BINARY: [&[u8]; 4] = [b"image/", b"video/", b"audio/", b"font/"];
        let mut fields = of_lines(&self.lines);
        let is_encoded = |name: &[u8]| name.eq_ignore_ascii_case(b"content-encoding");
        let is_binary = |value: &[u8]| {
            BINARY.iter().any(|kind| {
                value.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
            })
        };
        !fields.any(|field| {
            is_encoded(field.name)
                || field.name.eq_ignore_ascii_case(b"content-type") && is_binary(field.value)
        })
    }
}

impl Clone for Arrival<'_> {
    fn clone(&self) -> Self {
        Self { control: self.control.clone(), ..*self }
    }
}

fn name_of(line: &[u8]) -> &[u8] {
    line.split(|&b| b == b':').next().unwrap_or_default()
}

fn same_name(one: &[u8], other: &[u8]) -> bool {
    name_of(one).eq_ignore_ascii_case(name_of(other))
}

fn is_named(line: &[u8], names: &[&[u8]]) -> bool {
    names.iter().any(|name| name_of(line).eq_ignore_ascii_case(name))
}

//! A stored reply.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_net::head::Request;
use forebay_server::compress::CompressedCopies;
use forebay_wire::caching::{CacheControl, Freshness, ReplyControl, parse_date};
use forebay_wire::fields::of_lines;
use tokio::time::Instant;

use super::checksum::Checksum;
use super::disk::entry::EntryHead;
use super::disk::index::{EntryName, FIRST_EPOCH};
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

/// Fields that a 304 does not replace, because they describe the stored body (RFC 9111 section
/// 3.2), or contain the validator, which has not changed.
const NOT_UPDATED: [&[u8]; 5] =
    [b"content-encoding", b"content-length", b"content-md5", b"content-range", b"etag"];

/// Body of a stored reply.
#[derive(Clone, Debug)]
pub enum StoredBody {
    /// In memory.
    Memory(Arc<Vec<u8>>),
    /// In an open file of the store on disk.
    File(Arc<BodyFile>),
    /// On disk. The file is opened for each request, because open files are limited.
    Named(BodyName),
}

/// An open file with a body.
#[derive(Debug)]
pub struct BodyFile {
    /// The file.
    pub file: File,
    /// Position of the body.
    pub offset: u64,
    /// Name of the body.
    pub name: BodyName,
}

/// Names a body on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyName {
    /// Name of the entry.
    pub name: EntryName,
    /// Checksum of the body.
    pub sum: Checksum,
    /// Length of the body.
    pub length: u64,
}

impl StoredBody {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(file) => file.name.length,
            Self::Named(name) => name.length,
        }
    }

    /// Returns true if both are the same body in memory or the same file. Does not compare bytes.
    pub fn is_same(&self, other: &Self) -> bool {
        let name = |body: &Self| match body {
            Self::Memory(_) => None,
            Self::File(file) => Some(file.name),
            Self::Named(name) => Some(*name),
        };
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            _ => name(self).is_some() && name(self) == name(other),
        }
    }

    /// Returns the bytes of the body, or `None` if they are not in memory.
    pub fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::File(_) | Self::Named(_) => None,
        }
    }
}

/// Epoch (`Index::epoch`) at the time when a reply in memory was last given to the disk. The value
/// is 0 if the disk does not have the reply. A clone of a reply has the value 0.
#[derive(Debug, Default)]
pub struct OnDisk(AtomicU32);

impl Clone for OnDisk {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl OnDisk {
    /// Records the epoch. Returns true if the epoch differs from the last recorded epoch.
    pub fn renew(&self, epoch: u32) -> bool {
        // Load first: unlike a swap, a load leaves the cache line shared between processors.
        self.0.load(Ordering::Relaxed) != epoch && self.0.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// Records that the disk does not have the reply.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns true if the reply was given to the disk.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// Age and remaining lifetime of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// Age in seconds.
    pub age: u64,
    /// Remaining lifetime in seconds; negative if the reply is stale.
    pub remaining: i64,
}

/// A reply in the store.
#[derive(Clone, Debug)]
pub struct Stored {
    /// URL of the request, as the client wrote it: scheme, authority, path and query.
    pub url: Vec<u8>,
    /// Other URL of the request, if Forebay has replaced the target. After a `rewrite`, this is the
    /// URL that the origin got. After an internal redirect, this is the client's own URL. Otherwise
    /// empty.
    pub other_url: Vec<u8>,
    /// Status.
    pub status: u16,
    /// Field lines, without those of [`NOT_STORED`].
    pub lines: Vec<u8>,
    /// Body.
    pub body: StoredBody,
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
    /// True if the reply was fresh when it arrived. Otherwise each request must ask the origin.
    pub was_fresh: bool,
    /// Number of the request that the origin answered. The number of a later request is larger. The
    /// number is 0 if the reply was read from disk.
    pub number: u64,
    /// Says if the reply was also given to the store on disk.
    pub on_disk: OnDisk,
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
        let of = |target: &[u8]| [scheme, &authority, target].concat();
        let urls = (of(request.requested_target()), other_target(request).map_or(Vec::new(), of));
        let variant = Variant::of(arrival.lines, request);
        let body = StoredBody::Memory(Arc::new(body));
        Self::of_lines(arrival, lines, (urls, variant), (body, Arc::default()))
    }

    /// Creates a stored reply from its final field lines.
    fn of_lines(
        arrival: &Arrival<'_>,
        lines: Vec<u8>,
        ((url, other_url), variant): ((Vec<u8>, Vec<u8>), Variant),
        (body, copies): (StoredBody, Arc<CompressedCopies>),
    ) -> Self {
        let value = |name: &[u8]| {
            let mut fields = of_lines(&lines);
            fields.find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
        };
        let etag = value(b"etag").map(<[u8]>::to_vec);
        let modified = value(b"last-modified").and_then(parse_date);
        let control = arrival.control.directives.clone();
        let was_fresh = arrival.freshness.remaining(0) > 0 && !control.no_cache;
        Self {
            url,
            other_url,
            status: arrival.status,
            body,
            copies,
            freshness: arrival.freshness,
            arrived: Instant::now(),
            control,
            variant,
            etag,
            modified,
            lines,
            was_fresh,
            number: 0,
            on_disk: OnDisk::default(),
        }
    }

    /// Creates a stored reply from an entry that was read from disk at the time `now`, in seconds
    /// since 1970.
    pub fn of_entry(entry: EntryHead, is_expired: bool, body: StoredBody, now: u64) -> Self {
        let mut freshness = entry.freshness;
        let was_fresh = freshness.remaining(0) > 0 && !entry.control.no_cache;
        let resident = now.saturating_sub(entry.arrived);
        freshness.initial_age = freshness.initial_age.saturating_add(resident);
        // If the clock was set back since the reply arrived, the age is unknown, so treat the reply
        // as stale.
        if is_expired || now + 1 < entry.arrived {
            freshness.lifetime = 0;
        }
        let control = ReplyControl { directives: entry.control, ..ReplyControl::default() };
        let arrival = Arrival { status: entry.status, lines: &[], control, freshness };
        let of_request = ((entry.url, entry.other_url), entry.variant);
        let stored = Self::of_lines(&arrival, entry.lines, of_request, (body, Arc::default()));
        stored.on_disk.renew(FIRST_EPOCH);
        Self { was_fresh, ..stored }
    }

    /// Returns the head of the entry on disk.
    pub fn to_entry(&self, key: &[u8]) -> EntryHead {
        EntryHead {
            key: key.to_vec(),
            url: self.url.clone(),
            other_url: self.other_url.clone(),
            status: self.status,
            lines: self.lines.clone(),
            variant: self.variant.clone(),
            control: self.control.clone(),
            freshness: self.freshness,
            arrived: wall_clock().saturating_sub(self.resident()),
        }
    }

    /// Returns the reply without its open file, to be kept in memory.
    pub fn for_memory(mut self) -> Self {
        if let StoredBody::File(file) = &self.body {
            self.body = StoredBody::Named(file.name);
        }
        self
    }

    /// Returns the field lines of the reply after a 304 with the lines `confirmed`.
    pub fn lines_after(&self, confirmed: &[u8]) -> Vec<u8> {
        let is_new = |line: &&[u8]| !is_named(line, &NOT_STORED) && !is_named(line, &NOT_UPDATED);
        let new: Vec<&[u8]> = confirmed.split_inclusive(|&b| b == b'\n').filter(is_new).collect();
        let is_replaced = |line: &[u8]| new.iter().any(|new| same_name(new, line));
        let kept = self.lines.split_inclusive(|&b| b == b'\n').filter(|line| !is_replaced(line));
        kept.chain(new.iter().copied()).flatten().copied().collect()
    }

    /// Returns the reply with `lines`, which [`Self::lines_after`] returned, and with the lifetime
    /// of `arrival`. The values of `request` for the fields in `Vary` become the variant of the
    /// reply.
    pub fn confirmed(&self, arrival: &Arrival<'_>, lines: Vec<u8>, request: &Request) -> Self {
        let arrival = Arrival { status: self.status, lines: &[], ..arrival.clone() };
        // The 304 may have another `Vary`. The origin has confirmed the reply for this request, so
        // this request's values become the variant.
        let urls = (self.url.clone(), self.other_url.clone());
        let of_request = (urls, Variant::of(&lines, request));
        // The body is the same, and so are its compressed forms.
        let body = (self.body.clone(), self.copies.clone());
        Self::of_lines(&arrival, lines, of_request, body)
    }

    /// Returns a copy of the reply whose lifetime has ended.
    pub fn expired(&self) -> Self {
        let freshness = Freshness { lifetime: 0, ..self.freshness };
        Self { freshness, ..self.clone() }
    }

    /// Returns the age and the remaining lifetime of the reply.
    pub fn ages(&self) -> Ages {
        let resident = self.resident();
        Ages { age: self.freshness.age(resident), remaining: self.freshness.remaining(resident) }
    }

    /// Returns the age and the remaining lifetime of a reply that may be used without asking the
    /// origin. Returns `None` for other replies. Reads the clock once.
    pub fn fresh_ages(&self) -> Option<Ages> {
        Some(self.ages()).filter(|ages| ages.remaining > 0 && !self.control.no_cache)
    }

    /// Returns the remaining lifetime in seconds; negative if the reply is stale.
    pub fn remaining(&self) -> i64 {
        self.freshness.remaining(self.resident())
    }

    fn resident(&self) -> u64 {
        self.arrived.elapsed().as_secs()
    }

    /// Returns true if the reply is fresh for more than `seconds`, or has a validator. With a
    /// validator, the origin can confirm the reply later.
    pub fn outlives(&self, seconds: i64) -> bool {
        self.etag.is_some() || self.modified.is_some() || self.remaining() > seconds
    }

    /// Returns true if the reply may be used without asking the origin.
    pub fn is_fresh(&self) -> bool {
        self.fresh_ages().is_some()
    }

    /// Returns true if the reply is fresh or has been stale for less than `allowed` seconds, and if
    /// the reply's directives permit its use without a confirmation.
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

    /// Returns `Last-Modified` as the origin wrote it. Returns `None` if the field is missing or
    /// malformed.
    pub fn modified_text(&self) -> Option<&[u8]> {
        let mut fields = of_lines(&self.lines);
        let field = fields.find(|field| field.name.eq_ignore_ascii_case(b"last-modified"))?;
        self.modified.is_some().then_some(field.value)
    }

    /// Returns the approximate size in memory in bytes. For a body that may be compressed, assumes
    /// three compressed forms, each with half the size of the body.
    pub fn size(&self) -> usize {
        let body = self.body.in_memory().map_or(0, <[u8]>::len);
        let may_have_copies = body <= COMPRESSED_AT_ONCE && self.is_text();
        let copies = if may_have_copies { body * 3 / 2 } else { 0 };
        let urls = self.url.len() + self.other_url.len();
        copies + size_of::<Self>() + urls + self.lines.len() + body + self.variant.size()
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

/// Returns a target of an internally redirected or rewritten request that differs from its
/// requested target: the current target, or else the client's own target. Returns `None` if neither
/// differs, and for all other requests.
fn other_target(request: &Request) -> Option<&[u8]> {
    let requested = request.requested_target();
    let mut others = [request.target(), request.original_target()].into_iter();
    others.find(|other| request.is_internal && *other != requested)
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

/// Returns the time in seconds since 1970.
pub fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

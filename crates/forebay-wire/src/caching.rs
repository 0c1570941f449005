//! Rules of shared caches (RFC 9111). The module contains no store and reads no clock.

mod control;
mod freshness;
mod refusal;

pub use control::{CacheControl, ReplyControl, directives};
pub use freshness::{Freshness, ReplyTimes, parse_date};
pub use refusal::{Circumstances, Refusal};

/// Returns true if Forebay knows how caches must treat replies with this status (RFC 9111 section
/// 3). Only the directive `must-understand` depends on the result.
pub fn is_understood(status: u16) -> bool {
    matches!(
        status,
        200 | 203 | 204 | 300 | 301 | 302 | 303 | 307 | 308 | 404 | 405 | 410 | 414 | 501
    )
}

/// Returns true if a reply with this status may be reused without an explicit lifetime.
///
/// RFC 9110 section 15.1 also allows 405, 414 and 501. A client can cause these statuses with
/// fields that are not part of the cache key. Other clients would then receive the stored error, so
/// these statuses are not included.
pub fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308 | 404 | 410)
}

/// Returns true if a method is safe (RFC 9110 section 9.2.1, and the registry of methods for QUERY
/// and those of WebDAV). A request with an unsafe method invalidates the stored replies for its
/// target.
pub fn is_safe(method: &[u8]) -> bool {
    matches!(
        method,
        b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"QUERY" | b"PROPFIND" | b"REPORT" | b"SEARCH"
    )
}

/// Returns true if a request with this method may be sent twice (RFC 9110 section 9.2.2).
pub fn is_idempotent(method: &[u8]) -> bool {
    is_safe(method) || matches!(method, b"PUT" | b"DELETE")
}

//! `Cache-Status` (RFC 9211) of replies that no one stores.

use forebay_net::head::Request;
use forebay_server::reply::{Keep, Length, Recorder};
use forebay_wire::http1::encode;

/// Reason why a request goes to the origin, and its reply is not stored. The implementation of
/// [`Recorder`] adds `Cache-Status` to the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// The request does not use the store.
    Bypass,
    /// The method always needs the origin.
    Method,
    /// The store has no usable reply, and the next reply can probably not be stored.
    Miss,
}

impl Forwarded {
    /// Returns the reason why a request does not use the store.
    pub fn of_bypass(request: &Request) -> Self {
        let is_read = matches!(request.method(), b"GET" | b"HEAD");
        if is_read { Self::Bypass } else { Self::Method }
    }
}

impl Recorder for Forwarded {
    fn decide(&self, _status: u16, _lines: &[u8], _length: Length) -> Keep {
        Keep::No
    }

    fn append_fields(&self, lines: &mut Vec<u8>) {
        let value: &[u8] = match self {
            Self::Bypass => b"forebay; fwd=bypass",
            Self::Method => b"forebay; fwd=method",
            Self::Miss => b"forebay; fwd=miss",
        };
        encode::field(lines, "Cache-Status", value);
    }

    fn reserve(&self, _bytes: usize) -> bool {
        false
    }
}

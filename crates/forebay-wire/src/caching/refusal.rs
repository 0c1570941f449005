//! Decides which replies may be stored (RFC 9111 section 3).

use std::fmt;

use super::control::ReplyControl;
use super::freshness::Freshness;
use super::is_understood;
use crate::fields::of_lines;
use crate::http1::list_has;

/// Circumstances of a request that decide if its reply may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// True if the request identifies a user, with `Authorization` or by other means.
    pub is_authorized: bool,
    /// True if the request has cookies that may make the reply personal.
    pub is_personal: bool,
    /// True if replies with `Set-Cookie` may be stored.
    pub stores_cookies: bool,
}

impl Circumstances {
    /// Returns true if the request identifies a user, or may get a personal reply.
    pub fn names_user(self) -> bool {
        self.is_authorized || self.is_personal
    }
}

/// Reason not to store a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The status is that of an interim reply (1xx), a partial reply (206) or a validation (304).
    Status,
    /// The reply has `Cache-Control: no-store` or `X-Accel-Expires: 0`.
    NoStore,
    /// The reply has `Cache-Control: private`.
    Private,
    /// The reply has `Cache-Control: must-understand` and an unknown status.
    NotUnderstood,
    /// The reply has `Vary: *`.
    VaryAny,
    /// The request identifies a user, and the reply does not allow shared use.
    Authorized,
    /// The request has cookies, and the reply does not state a lifetime.
    Personal,
    /// The reply sets a cookie.
    SetsCookie,
    /// The reply has neither a usable lifetime nor a validator.
    NoLifetime,
}

impl Refusal {
    /// Returns the reason not to store a reply with this status and these field lines. Returns
    /// `None` if the reply may be stored.
    pub fn of(
        control: &ReplyControl,
        (status, lines): (u16, &[u8]),
        freshness: &Freshness,
        circumstances: Circumstances,
    ) -> Option<Self> {
        let directives = &control.directives;
        let is_for_all = directives.public || directives.s_maxage.is_some();
        let has = |name: &[u8]| of_lines(lines).any(|field| field.name.eq_ignore_ascii_case(name));
        if matches!(status, ..200 | 206 | 304) {
            return Some(Self::Status);
        }
        if directives.must_understand && !is_understood(status) {
            return Some(Self::NotUnderstood);
        }
        // A cache that understands the status ignores `no-store` if `must-understand` is present
        // (RFC 9111 section 5.2.2.3).
        if directives.no_store && !directives.must_understand || control.accel_expires == Some(0) {
            return Some(Self::NoStore);
        }
        if directives.private {
            return Some(Self::Private);
        }
        if varies_by_all(lines) {
            return Some(Self::VaryAny);
        }
        if circumstances.is_authorized && !is_for_all && !directives.must_revalidate {
            return Some(Self::Authorized);
        }
        if circumstances.is_personal && !freshness.is_explicit {
            return Some(Self::Personal);
        }
        if has(b"set-cookie") && !circumstances.stores_cookies && !is_for_all {
            return Some(Self::SetsCookie);
        }
        let is_usable = freshness.lifetime > 0 && !directives.no_cache;
        if !is_usable && !has(b"etag") && !has(b"last-modified") {
            return Some(Self::NoLifetime);
        }
        None
    }

    /// Returns true if the reply was refused only because it is for the client of this request. A
    /// reply that was stored earlier for other clients may then remain stored.
    pub fn is_of_request(self) -> bool {
        matches!(self, Self::Authorized | Self::Personal | Self::SetsCookie)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Status => "replies with this status are never stored",
            Self::NoStore => "the reply says no-store",
            Self::Private => "the reply says private",
            Self::NotUnderstood => "the reply says must-understand, and its status is unknown",
            Self::VaryAny => "the reply says Vary: *",
            Self::Authorized => "the request names a user, and the reply is not public",
            Self::Personal => "the request has cookies, and the reply states no lifetime",
            Self::SetsCookie => "the reply sets a cookie and is not public",
            Self::NoLifetime => "the reply has neither a lifetime nor a validator",
        })
    }
}

fn varies_by_all(lines: &[u8]) -> bool {
    of_lines(lines)
        .any(|field| field.name.eq_ignore_ascii_case(b"vary") && list_has(field.value, b"*"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caching::ReplyTimes;

    const AUTHORIZED: Circumstances =
        Circumstances { is_authorized: true, is_personal: false, stores_cookies: false };
    const PERSONAL: Circumstances =
        Circumstances { is_authorized: false, is_personal: true, stores_cookies: false };
    const STORES_COOKIES: Circumstances =
        Circumstances { is_authorized: false, is_personal: false, stores_cookies: true };

    fn refusal(status: u16, lines: &str, circumstances: Circumstances) -> Option<Refusal> {
        let control = ReplyControl::of_lines(lines.as_bytes());
        let reply = (status, lines.as_bytes());
        let times = ReplyTimes { asked: 1_000_000, arrived: 1_000_000 };
        let freshness = Freshness::of(&control, reply, times, Some(60));
        Refusal::of(&control, reply, &freshness, circumstances)
    }

    #[test]
    fn replies_that_are_not_stored() {
        let nobody = Circumstances::default();
        for (status, control, circumstances, expected) in [
            (200, "max-age=1", nobody, None),
            (599, "max-age=1", nobody, None),
            (200, "", nobody, None),
            (404, "", nobody, Some(Refusal::NoLifetime)),
            (404, "no-cache\r\nETag: \"a\"", nobody, None),
            (206, "max-age=1", nobody, Some(Refusal::Status)),
            (304, "max-age=1", nobody, Some(Refusal::Status)),
            (200, "max-age=1, No-Store", nobody, Some(Refusal::NoStore)),
            (200, "max-age=1\r\nX-Accel-Expires: 0", nobody, Some(Refusal::NoStore)),
            (200, "max-age=1, no-store, must-understand", nobody, None),
            (599, "max-age=1, must-understand", nobody, Some(Refusal::NotUnderstood)),
            (200, "max-age=1, private", nobody, Some(Refusal::Private)),
            (200, "max-age=1\r\nVary: a, *", nobody, Some(Refusal::VaryAny)),
            (200, "max-age=1", AUTHORIZED, Some(Refusal::Authorized)),
            (200, "max-age=1, public", AUTHORIZED, None),
            (200, "s-maxage=1", AUTHORIZED, None),
            (200, "max-age=1, must-revalidate", AUTHORIZED, None),
            (200, "", PERSONAL, Some(Refusal::Personal)),
            (200, "max-age=1", PERSONAL, None),
            (200, "max-age=1\r\nSet-Cookie: a=b", nobody, Some(Refusal::SetsCookie)),
            (200, "max-age=1\r\nSet-Cookie: a=b", STORES_COOKIES, None),
            (200, "max-age=1, public\r\nSet-Cookie: a=b", nobody, None),
        ] {
            let lines = format!("Cache-Control: {control}\r\n");
            assert_eq!(refusal(status, &lines, circumstances), expected, "{status} {control}");
        }
    }
}

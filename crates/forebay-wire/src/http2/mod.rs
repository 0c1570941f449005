//! HTTP/2 (RFC 9113), both roles, without sockets or clock.

mod error;
pub mod frame;
mod head;
pub mod hpack;

pub use error::{Abuse, ErrorCode, HeadRule, Http2Error, Rule, Scope};
pub use head::{Head, HeadLimits, Priority};

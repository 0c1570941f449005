//! HTTP/2 (RFC 9113) for both roles, without sockets or a clock.
//!
//! [`Connection`] converts bytes to events, and calls to bytes. The server, the upstreams and the
//! load generator use it. The [`frame`]s, [`hpack`] and the rules for heads are usable on their
//! own. Heads are decoded directly into an arena of [`Fields`](crate::fields::Fields).
//!
//! Sockets, timers and the meaning of requests are outside this module.

mod connection;
mod error;
pub mod frame;
mod head;
pub mod hpack;
mod http1;

pub use connection::budget;
pub use connection::{Cause, Config, Connection, Event, ReceivedEvent, RequestPseudo, SendError};
pub use error::{Abuse, ErrorCode, HeadRule, Http2Error, Rule, Scope};
pub use frame::PREFACE;
pub use head::{Head, HeadLimits, Priority};

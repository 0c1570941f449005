//! HTTP/2 (RFC 9113) for both roles, without sockets or a clock.
//!
//! [`Connection`] converts received bytes to events, and method calls to bytes for the peer. The
//! server, the upstream connections and the load generator use it. The [`frame`]s, [`hpack`] and
//! the rules for heads (pseudo-fields and fields of a message) are usable without a connection.
//! Heads are decoded directly into [`Fields`](crate::fields::Fields).
//!
//! Sockets, timers and the processing of requests are outside this module.

mod connection;
mod error;
pub mod frame;
mod head;
mod held_heads;
pub mod hpack;

pub use connection::budget;
pub use connection::{Cause, Config, Connection, Event, ReceivedEvent, RequestPseudo, SendError};
pub use error::{Abuse, ErrorCode, HeadRule, Http2Error, Rule, Scope};
pub use frame::PREFACE;
pub use head::{Head, HeadLimits, Priority};
pub use held_heads::HeldHeads;

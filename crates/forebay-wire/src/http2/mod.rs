//! HTTP/2 (RFC 9113), both roles, without sockets or clock.
//!
//! [`Connection`] turns bytes into events and calls into bytes; front, upstreams and the load
//! generator drive the same one. Below it are [`frame`]s, [`hpack`] and the rules for heads, each of
//! use alone. Heads are decoded straight into an arena of [`Fields`](crate::fields::Fields).
//!
//! What is not here: sockets, timers, and what a request means.

mod connection;
mod error;
pub mod frame;
mod head;
pub mod hpack;
mod http1;

pub use connection::budget;
pub use connection::{Cause, Config, Connection, Event, RequestPseudo, SendError, Step};
pub use error::{Abuse, ErrorCode, HeadRule, Http2Error, Rule, Scope};
pub use frame::PREFACE;
pub use head::{Head, HeadLimits, Priority};

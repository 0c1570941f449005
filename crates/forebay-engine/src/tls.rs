//! TLS by `rustls`: sessions on sockets, handshakes, and what a site shows its clients.
//!
//! A [`session::Session`] sits in a [`Socket`](crate::Socket), below its reads and writes: fronts and
//! origins do not know whether a connection has one. Certificates are read once for all threads
//! ([`server`]).

mod accept;
mod client;
mod handshake;
mod server;
pub(crate) mod session;

pub use client::ClientTls;
pub use handshake::Handshake;
pub use server::{ServerTls, TicketKeys, TlsError};

pub(crate) use accept::accept;

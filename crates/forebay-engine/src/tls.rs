//! TLS by `rustls`: sessions on sockets, handshakes, and what a site shows its clients.
//!
//! A [`Session`] sits in a [`Socket`](crate::Socket), below its reads and writes: fronts and
//! origins do not know whether a connection has one. Certificates are read once for all threads
//! ([`server`]).

mod challenges;
mod client;
mod handshake;
mod server;
mod session;

pub use challenges::Challenges;
pub use client::{Alpn, ClientTls};
pub use handshake::Handshake;
pub use server::{ServerTls, SiteCertificate, TicketKeys, TlsError};
pub use session::Session;

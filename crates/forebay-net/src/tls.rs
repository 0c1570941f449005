//! TLS with `rustls`: sessions on sockets, handshakes, and the certificates of sites.
//!
//! A [`TlsSession`] is a layer in a [`Socket`](crate::socket::Socket), below reads and writes, so that
//! servers and origins need not know about TLS. Certificates are loaded once for all threads
//! (`server`).

mod certificate;
mod client;
mod on_demand;
mod server;
mod session;
mod tickets;

pub use certificate::{Challenge, ChallengeAnswer, Challenges, Question, Renewal, SiteCertificate};
pub(crate) use client::no_http2;
pub use client::{Alpn, ClientTls};
pub use on_demand::{Awaited, DemandCertificates, RecentNames, SiteDemand};
pub use server::{ServerTls, TlsError};
pub use session::{Handshake, TlsSession};
pub use tickets::{QuicKeys, TicketKeys, fresh_ring};

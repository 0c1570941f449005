//! The side that clients connect to, and the life of a request.
//!
//! The server accepts connections, reads requests, selects the route and passes an
//! [`Exchange`](exchange::Exchange) to the [`Origin`](exchange::Origin) of the route. The crate has
//! no code for CGI scripts or FastCGI records: the origins are in `forebay-origin` and
//! `forebay-upstream`.
//!
//! `http1`, `http2`, `http3` and `ajp` each have the connections and the streams of one protocol.
//! All other modules see only a `Stream`. The modules, from the lowest layer to the highest:
//! `part`, the streams of the protocols, `stream`; `spool`, `body`, `compress`, `reply`, `tunnel`,
//! `exchange`, `pages`; `rewrite`, `decide`; `forwarded`, `route`, `context`; `dispatch`,
//! `internal_redirect`, `request`, `refusal`; the connections of the protocols, `front`,
//! `admission`, `handshake`, `close_order`, `relay`, `accept`; `serving`, `server`.
#![forbid(unsafe_code)]

mod accept;
mod admission;
mod ajp;
mod backlog;
pub mod body;
mod close_order;
pub mod compress;
mod context;
pub mod decide;
pub mod dispatch;
pub mod exchange;
pub mod filter;
pub mod forwarded;
mod front;
mod handshake;
pub mod host_index;
mod http1;
mod http2;
mod http3;
mod internal_redirect;
#[cfg(feature = "memory")]
pub mod memory_gateway;
pub mod pages;
mod part;
mod refusal;
pub mod relay;
pub mod reply;
mod request;
pub mod rewrite;
pub mod route;
pub mod route_index;
mod server;
pub mod serving;
pub mod spool;
mod ssi;
mod stream;
pub mod tunnel;

pub use server::{Prepare, Reload, ReloadRequest, Reloads, Server, StartError, Wanted};

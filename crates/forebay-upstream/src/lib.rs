//! The side that connects to backends, in every protocol.
//!
//! `upstream` selects a backend and a connection, and decides if a failed request is resent. Each
//! protocol has an origin that carries the request over that connection: `proxy` (with `http1` and
//! `http2`), `fastcgi`, `app_server` (SCGI and uwsgi) and `ajp`. `script` and `mount` compute
//! the variables of a CGI-like application. `output`, `script_reply` and `reply_pump` send the
//! application's output to the client.
#![forbid(unsafe_code)]

pub mod ajp;
pub mod app_server;
pub mod fastcgi;
pub mod fields;
pub mod hops;
mod http;
mod http1;
pub mod http2;
pub mod mount;
pub mod output;
pub mod proxy;
pub mod relay;
pub mod reply_pump;
pub mod script;
pub mod script_reply;
pub mod sticky;
pub mod upgrade;
mod upstream;

pub use upstream::{
    Attempts, Backend, BackendOptions, Balancing, BodyAtHand, Checker, Crawlers, Endpoint, Group,
    HealthCheck, IdlePools, Names, PendingConnections, Permits, Tallies, Upstream,
    append_proxy_header, wait_for_names,
};

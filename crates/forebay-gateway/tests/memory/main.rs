//! Conversations between scripted clients, the server, an origin and scripted backends in one
//! thread: no socket, no process, and a clock that jumps to the next deadline. Tests in
//! `crates/forebay/tests` use sockets for behaviour that needs a real process or peer.

mod ajp_web_server;
mod http2_backend;
mod http2_client;
mod world;

mod access;
mod ajp;
mod ajp_front;
mod ajp_front_abuse;
mod allocations;
mod applications;
mod backends;
mod balancing;
mod bodies;
mod buffering;
mod caching;
mod clients;
mod compression;
mod conditions;
mod connections;
mod error_pages;
mod extended_connect;
mod fastcgi;
mod files;
mod front;
mod groups;
mod grpc;
mod handing_on;
mod http2;
mod http2_abuse;
mod http2_backends;
mod http2_broken;
mod http2_random;
mod http2_refusals;
mod http2_trailers;
mod http2_tunnels;
mod idle_connections;
mod limits;
mod mounts;
mod proxied;
mod proxied_fields;
mod rate_limits;
mod redirects;
mod reply_fields;
mod request_fields;
mod rewriting;
mod routing;
mod rules;
mod sending;
mod time_limits;
mod tunnels;
mod turns;
mod upgrades;
mod wire;

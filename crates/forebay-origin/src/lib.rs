//! Origins that answer requests on this machine: files, scripts, applications and fixed replies.
//!
//! An origin takes an [`Exchange`](forebay_server::exchange::Exchange) and completes its reply.
//! `access` is not an origin: it decides which clients may use a route. `rules` finds the other
//! paths of a resource, because rules must apply to all paths of a resource.
#![forbid(unsafe_code)]

pub mod access;
pub mod apps;
pub mod cache;
pub mod files;
pub mod mirror;
pub mod moved;
mod named;
pub mod respond;
pub mod rules;
pub mod scripts;

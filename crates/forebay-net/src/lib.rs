//! Sockets, TLS, deadlines, threads, memory, logs and counters of the gateway.
//!
//! Each serving thread runs its own event loop and shares only counters, limits and the log writer
//! with the others. This crate does not interpret requests: `forebay-server` does.
//!
//! The main modules, from the lowest layer up: `sys`, `limit`, `fault`, `timing`,
//! `counters`; `memory`, `byte_stream`, `tls`, `deadline`, `socket`; `head`, `matching`,
//! `template`, `request_fields`; `log`, `pressure`, `address_limit`, `listen`, `handover`, `thread`.
#![deny(unsafe_code)]

pub mod address_limit;
mod byte_stream;
pub mod collector;
pub mod counters;
pub mod deadline;
pub mod fault;
pub mod free_list;
pub mod handover;
pub mod head;
pub mod limit;
pub mod listen;
pub mod log;
pub mod log_file;
pub mod log_opener;
pub mod log_rotation;
pub mod matching;
#[cfg_attr(not(any(test, feature = "memory")), path = "no_memory.rs")]
pub mod memory;
pub mod pool;
mod pressure;
pub mod privileges;
pub mod request_fields;
pub mod shared_streams;
pub mod socket;
pub mod sys;
pub mod systemd;
pub mod template;
pub mod thread;
pub mod timed_stream;
pub mod timing;
pub mod tls;
pub mod trace;

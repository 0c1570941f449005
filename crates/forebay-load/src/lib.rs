//! The load generator: closed-loop and paced conversations over the protocols of forebay-wire.
#![forbid(unsafe_code)]

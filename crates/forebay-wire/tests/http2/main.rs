//! Tests of HTTP/2: the examples of the RFCs, their rules, input in pieces of any size, and another
//! implementation as the peer.

mod abuse;
mod differential;
mod drive;
mod flow;
mod frames;
mod heads;
mod held_heads;
mod hpack;
mod rules;
mod shared_windows;

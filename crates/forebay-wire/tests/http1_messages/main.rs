//! Tests of HTTP/1.1 messages with tables and a corpus. The result does not depend on the pieces in
//! which the bytes arrive.

mod desync;
mod reading;
mod requests;
mod responses;

//! What HTTP/1.1 messages mean and which are refused, in tables and a corpus, however they are split.

mod desync;
mod reading;
mod requests;
mod responses;

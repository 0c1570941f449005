//! FastCGI records (FastCGI specification 1.0), for a web server with responders.
//!
//! [`begin`], [`Params`] and [`stdin`] write a request; [`Decoder`] reads the records of its reply.
//! [`get_values`] asks for the capabilities of an application, and [`pairs()`] parses the reply.

mod decode;
mod encode;
mod pairs;

pub use decode::{DecodedRecord, Decoder, FastcgiError, ProtocolStatus, RecordEvent};
pub use encode::{Params, abort, begin, end_of_stdin, get_values, stdin, stdin_header};
pub use pairs::pairs;

/// Length of a record header, in bytes.
pub const HEADER: usize = 8;
/// Largest content of one record, in bytes.
pub const CONTENT_LIMIT: usize = 65_535;

const VERSION: u8 = 1;

/// Record types of section 8.
mod kind {
    pub const BEGIN_REQUEST: u8 = 1;
    pub const ABORT_REQUEST: u8 = 2;
    pub const END_REQUEST: u8 = 3;
    pub const PARAMS: u8 = 4;
    pub const STDIN: u8 = 5;
    pub const STDOUT: u8 = 6;
    pub const STDERR: u8 = 7;
    pub const GET_VALUES: u8 = 9;
    pub const VALUES: u8 = 10;
    pub const UNKNOWN: u8 = 11;
}

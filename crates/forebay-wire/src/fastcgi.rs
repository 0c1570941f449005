//! FastCGI records (FastCGI specification 1.0), as a web server exchanges them with responders.
//!
//! [`begin`], [`Params`] and [`stdin`] write a request. [`Decoder`] reads the records of the reply.
//! [`get_values`] asks an application for its capabilities, and [`pairs()`] parses the answer.

mod decode;
mod encode;
mod pairs;

pub use decode::{DecodedRecord, Decoder, FastcgiError, ProtocolStatus, RecordEvent};
pub use encode::{
    FAREWELL, Params, abort, begin, end_of_stdin, get_values, set_request_id, stdin, stdin_header,
};
pub use pairs::pairs;

/// Length of a record header in bytes.
pub const HEADER: usize = 8;
/// Maximum length of a record's content in bytes.
pub const CONTENT_LIMIT: usize = 65_535;

const VERSION: u8 = 1;

/// Types of records (section 8).
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

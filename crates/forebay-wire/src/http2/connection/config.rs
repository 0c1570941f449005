//! Limits and sizes of a connection.

use super::flow::DEFAULT_WINDOW;
use crate::http2::HeadLimits;
use crate::http2::hpack::{DEFAULT_TABLE, ListLimits};

/// Limits and sizes of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most streams that a client may have open at once.
    pub streams: u32,
    /// Largest list of fields.
    pub list: ListLimits,
    /// What requests may be like beside.
    pub head: HeadLimits,
    /// Window of a new stream, at least 65,535 bytes, and what it may grow to.
    pub stream_window: u32,
    /// See [`Self::stream_window`]; never less than that.
    pub stream_window_limit: u32,
    /// Bytes by which the windows of all streams together may be beyond
    /// [`Self::stream_window_limit`], each up to an equal part. 0: none.
    pub shared_window_limit: u32,
    /// Window of the connection, at least 65,535 bytes, and what it may grow to.
    pub connection_window: u32,
    /// See [`Self::connection_window`].
    pub connection_window_limit: u32,
    /// Most that the encoder's table takes, in bytes.
    pub encoder_table: usize,
    /// No more DATA is taken while this many bytes wait to be written.
    pub output: usize,
    /// Nothing more is read while this many bytes wait to be written.
    pub output_limit: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            streams: 128,
            list: ListLimits { size: 32 * 1024, fields: 100 },
            head: HeadLimits { target: 8 * 1024, get_body: false, extended_connect: true },
            stream_window: DEFAULT_WINDOW,
            stream_window_limit: 1024 * 1024,
            shared_window_limit: 0,
            connection_window: 1024 * 1024,
            connection_window_limit: 16 * 1024 * 1024,
            encoder_table: DEFAULT_TABLE,
            output: 64 * 1024,
            output_limit: 512 * 1024,
        }
    }
}

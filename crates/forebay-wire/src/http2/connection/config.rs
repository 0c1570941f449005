//! Limits and sizes of a connection.

use super::flow::DEFAULT_WINDOW;
use crate::http2::HeadLimits;
use crate::http2::hpack::{DEFAULT_TABLE, ListLimits};

/// Limits and sizes of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of concurrent streams of a client.
    pub streams: u32,
    /// Limits of a list of fields.
    pub list: ListLimits,
    /// Further limits of requests.
    pub head: HeadLimits,
    /// Initial window of a stream, at least 65,535 bytes.
    pub stream_window: u32,
    /// Maximum of a stream's window, at least [`Self::stream_window`].
    pub stream_window_limit: u32,
    /// Number of bytes by which the windows of all streams together may exceed
    /// [`Self::stream_window_limit`]. Each stream gets at most an equal part. 0 disables this.
    pub shared_window_limit: u32,
    /// Initial window of the connection, at least 65,535 bytes.
    pub connection_window: u32,
    /// Maximum of the connection's window.
    pub connection_window_limit: u32,
    /// Maximum size of the encoder's table, in bytes.
    pub encoder_table: usize,
    /// No DATA is accepted for sending while this many bytes wait to be written.
    pub output: usize,
    /// No input is accepted while this many bytes wait to be written.
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

//! Limits and sizes of a connection.

use super::flow::DEFAULT_WINDOW;
use crate::http2::HeadLimits;
use crate::http2::hpack::{DEFAULT_TABLE, ListLimits};

/// Limits and sizes of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of concurrent streams that a client may open.
    pub streams: u32,
    /// Limits of the fields of a received message.
    pub list: ListLimits,
    /// Further limits of received requests.
    pub head: HeadLimits,
    /// True if a server limits the total size of the request heads that its caller holds; see
    /// [`HeldHeads`](crate::http2::HeldHeads). The caller must then call
    /// [`Connection::release_heads`](super::Connection::release_heads).
    pub limits_heads: bool,
    /// Initial receive window of a stream in bytes, at least 65,535.
    pub stream_window: u32,
    /// Maximum receive window of a stream in bytes, at least [`Self::stream_window`].
    pub stream_window_limit: u32,
    /// Space above [`Self::stream_window_limit`] for the receive windows of all streams together,
    /// in bytes. Each stream gets at most an equal part. 0 disables this feature.
    pub shared_window_limit: u32,
    /// Initial receive window of the connection in bytes, at least 65,535.
    pub connection_window: u32,
    /// Maximum receive window of the connection in bytes.
    pub connection_window_limit: u32,
    /// Maximum size of the encoder's HPACK table in bytes.
    pub encoder_table: usize,
    /// `send_data` accepts no data while this many bytes wait to be written.
    pub output: usize,
    /// `receive` accepts no input while this many bytes wait to be written.
    pub output_limit: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            streams: 128,
            list: ListLimits { size: 32 * 1024, fields: 100 },
            head: HeadLimits { target: 8 * 1024, get_body: false, extended_connect: true },
            limits_heads: false,
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

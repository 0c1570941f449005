//! Limits and windows of a connection to a backend.

use forebay_wire::http1::Http1Limits;
use forebay_wire::http2::Config;
use forebay_wire::http2::hpack::ListLimits;

/// Size of the output buffer, in bytes.
// The first window of a server is 65,535 bytes. The buffer has space for this data and its frame
// heads, so one write sends all of it. A buffer of 64 KiB would leave 35 bytes for a separate DATA
// frame. Tomcat counts such small frames against a connection, and answers them with window
// updates.
const OUTPUT: usize = 128 * 1024;

/// Bytes that the receive windows of all streams may have together, in addition to 1 MB for each
/// stream. Data in transit to a client does not count.
// With this limit, Tomcat rarely waits for window updates during a large reply, and needs 17 % less
// CPU time. The kernel's buffer of a socket may use as much memory.
const SHARED_WINDOW_LIMIT: u32 = 16 * 1024 * 1024;

/// Largest window that the protocol allows.
const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// Returns the limits for a backend's frames.
pub(super) fn config(limits: Http1Limits) -> Config {
    Config {
        list: ListLimits { size: limits.head, fields: limits.fields },
        output: OUTPUT,
        shared_window_limit: SHARED_WINDOW_LIMIT,
        connection_window: LARGEST_WINDOW,
        connection_window_limit: LARGEST_WINDOW,
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use forebay_wire::http2::{Connection, RequestPseudo};

    use super::*;

    #[test]
    fn the_window_that_servers_open_with_goes_by_one_write() {
        let mut codec = Connection::client(config(Http1Limits::default()));
        let request = RequestPseudo { method: b"POST", path: b"/", ..RequestPseudo::default() };
        let id = codec.send_request(&request, [], false).unwrap();
        let mut send = |_| codec.send_data(id, &[0; 16_257], false, Instant::now()).unwrap();
        let taken: usize = (0..5).map(&mut send).sum();
        assert_eq!(taken, 65_535);
    }
}

//! Limits and windows of a connection.

use forebay_wire::http1::Limits;
use forebay_wire::http2::Config;
use forebay_wire::http2::hpack::ListLimits;

/// Bytes that wait to be written: the window that servers open with, 65,535, and the heads of its
/// frames go by one write. With 64 KiB what was left of it became DATA of 35 bytes, which Tomcat
/// counts against a connection and answers with an update of its own.
const OUTPUT: usize = 128 * 1024;

/// By how much the windows of all streams together may be beyond 1 MB each; what is passed on at this
/// moment counts no more. One large reply has as much under way as the kernel keeps for a socket;
/// Tomcat waits for windows less and takes 0.83 of the CPU for it.
const SHARED_WINDOW_LIMIT: u32 = 16 * 1024 * 1024;

/// The largest window that there is.
const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// What a backend may send.
pub(super) fn config() -> Config {
    let limits = Limits::default();
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
        let mut codec = Connection::client(config());
        let request = RequestPseudo { method: b"POST", path: b"/", ..RequestPseudo::default() };
        let id = codec.send_request(&request, [], false).unwrap();
        let mut send = |_| codec.send_data(id, &[0; 16_257], false, Instant::now()).unwrap();
        let taken: usize = (0..5).map(&mut send).sum();
        assert_eq!(taken, 65_535);
    }
}

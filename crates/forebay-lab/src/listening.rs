//! Check for a listening server.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Connects to `HOST:PORT` or `unix:PATH`, and closes the connection at once.
pub fn is_listening(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(Path::new(path)).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}

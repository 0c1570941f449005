//! Check if a server listens.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Returns true if a connection to `HOST:PORT` or `unix:PATH` succeeds. Closes the connection at
/// once.
pub fn is_listening(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(Path::new(path)).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}

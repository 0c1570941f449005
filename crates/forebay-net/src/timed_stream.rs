//! A blocking connection with one deadline, for threads of their own that ask another server rarely:
//! the export of traces, and lists of networks.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::tls::{Alpn, ClientTls};

/// A connection whose operations all end by the deadline, however slowly bytes arrive.
pub struct TimedStream {
    socket: TcpStream,
    deadline: Instant,
}

/// A stream to which a request is written, and from which its reply is read.
pub trait Conversation: Read + Write {}

impl<S: Read + Write> Conversation for S {}

impl TimedStream {
    /// Connects to `host`, a name or an address with a port. With `tls`, adds TLS, whose handshake
    /// begins with the first write.
    pub fn connect(
        host: &str,
        tls: Option<&ClientTls>,
        deadline: Instant,
    ) -> io::Result<Box<dyn Conversation>> {
        let mut last = io::Error::other("the name has no address");
        let socket = host.to_socket_addrs()?.find_map(|address| {
            match TcpStream::connect_timeout(&address, left(deadline).ok()?) {
                Ok(socket) => Some(socket),
                Err(error) => {
                    last = error;
                    None
                }
            }
        });
        let stream = Self { socket: socket.ok_or(last)?, deadline };
        let Some(tls) = tls else { return Ok(Box::new(stream)) };
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        let session = tls.connection(name, Alpn::Http11)?;
        Ok(Box::new(rustls::StreamOwned::new(session, stream)))
    }
}

/// Returns the time until the deadline, or an error after it.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.deadline)?))?;
        self.socket.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.deadline)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

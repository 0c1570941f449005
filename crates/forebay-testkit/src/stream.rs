//! Connections for tests: over TCP, TLS or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};
use socket2::SockRef;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// IP address and port.
    Tcp(SocketAddr),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        Self::Unix(path.to_owned())
    }
}

impl From<&PathBuf> for Address {
    fn from(path: &PathBuf) -> Self {
        Self::Unix(path.clone())
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

/// Connection with timeouts for reads and writes.
#[derive(Debug)]
pub enum TestStream {
    /// TCP connection, without the delay of Nagle's algorithm.
    Tcp(TcpStream),
    /// Client's side of a TLS connection.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// Connection over a Unix socket.
    Unix(UnixStream),
}

impl TestStream {
    /// Connects to a server. Reads and writes fail if they take longer than `patience`.
    pub fn connect(address: &Address, patience: Duration) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(address) => Self::Tcp(TcpStream::connect_timeout(address, patience)?),
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
        };
        stream.set_patience(patience)?;
        Ok(stream)
    }

    /// Sets the time limit of reads and writes.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
            Self::Tls(stream) => {
                stream.sock.set_read_timeout(Some(patience))?;
                stream.sock.set_write_timeout(Some(patience))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    /// Closes the sending direction. Data can still be received.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()?;
                stream.sock.shutdown(Shutdown::Write)
            }
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }

    /// Closes the connection with a reset (RST) instead of FIN. A Unix socket has no reset, so it
    /// closes normally.
    pub fn reset(self) {
        if let Self::Tcp(stream) = &self {
            SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("the socket is open");
        }
    }
}

impl Read for TestStream {
    /// Reads again after a signal, because the system does not restart a read that has a time
    /// limit.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Tcp(stream) => stream.read(buffer),
                Self::Tls(stream) => stream.read(buffer),
                Self::Unix(stream) => stream.read(buffer),
            };
            if !matches!(&read, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
                return read;
            }
        }
    }
}

impl Write for TestStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Self::Tls(stream) = self {
            return stream.flush();
        }
        Ok(())
    }
}

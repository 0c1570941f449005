//! Connections of the administrator's clients, over TCP or a Unix socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_net::listen::Listener;
use rustix::net::sockopt::socket_peercred;

pub enum AdminConnection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The client of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client of the TCP listener. `None`: its address is unknown.
    Network(Option<SocketAddr>),
    /// A client of the Unix socket: user and process. `None`: both are unknown.
    Local(Option<(u32, i32)>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(Some(address)) => address.fmt(f),
            Self::Local(Some((user, process))) => write!(f, "user {user} (process {process})"),
            Self::Network(None) | Self::Local(None) => f.write_str("unknown client"),
        }
    }
}

impl AdminConnection {
    pub fn accept(listener: &Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(listener) => Ok(Self::Tcp(listener.accept()?.0)),
            Listener::Unix(listener) => Ok(Self::Unix(listener.accept()?.0)),
            Listener::Udp(_) | Listener::Datagrams(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Makes reads and writes block for at most `patience`.
    pub fn limit(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    pub fn peer(&self) -> Peer {
        match self {
            Self::Tcp(stream) => Peer::Network(stream.peer_addr().ok()),
            Self::Unix(stream) => Peer::Local(socket_peercred(stream).ok().map(|credentials| {
                (credentials.uid.as_raw(), credentials.pid.as_raw_nonzero().get())
            })),
        }
    }

    /// Returns another handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Ends the connection. Reads and writes through all of its handles then end.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    pub fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for AdminConnection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for AdminConnection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

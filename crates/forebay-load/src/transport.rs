//! What carries bytes between a connection and its server: a socket, or TLS over one.
//!
//! The choice is made once for a run, by type: without TLS it is the system calls and nothing else.

use std::os::fd::OwnedFd;
use std::time::Duration;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// An open connection that does not block.
pub(crate) trait Transport: Sized + Send + fmt::Debug {
    /// What each connection is made with.
    type Config: Clone + Send + fmt::Debug;

    /// Over a socket that is connected, or is being connected.
    ///
    /// # Errors
    /// Where `config` does not make a client; the handshake would fail.
    fn new(socket: OwnedFd, config: &Self::Config) -> io::Result<Self>;

    /// The socket, to be watched.
    fn socket(&self) -> &OwnedFd;

    /// Does what can be done now until requests can be sent.
    ///
    /// # Errors
    /// Where the connection ended, or the sides could not agree.
    fn handshake(&mut self) -> io::Result<Progress>;

    /// Sends some of `bytes`; after `AGAIN` the same bytes have to be given again.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;

    /// Receives at most a buffer full; 0 where the server has closed.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Whether another [`recv`](Self::recv) after one of `received` bytes would be `AGAIN`.
    fn is_emptied(&self, received: usize, buffer: usize) -> bool;
}

/// How far a connection is.
pub(crate) enum Progress {
    /// Requests can be sent; where there was a handshake, what became of it.
    Established(Option<Handshake>),
    /// The server has to answer.
    Reads,
    /// There has to be room to write.
    Writes,
}

/// A handshake that succeeded.
pub(crate) struct Handshake {
    pub is_resumed: bool,
    /// From the connected socket to the client's last message.
    pub time: Duration,
}

/// A socket and nothing else.
#[derive(Debug)]
pub(crate) struct Plain(OwnedFd);

impl Transport for Plain {
    type Config = ();

    #[inline]
    fn new(socket: OwnedFd, (): &()) -> io::Result<Self> {
        Ok(Self(socket))
    }

    #[inline]
    fn socket(&self) -> &OwnedFd {
        &self.0
    }

    #[inline]
    fn handshake(&mut self) -> io::Result<Progress> {
        Ok(Progress::Established(None))
    }

    #[inline]
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        recv(&self.0, buffer, RecvFlags::empty()).map(|(_, n)| n)
    }

    #[inline]
    fn is_emptied(&self, received: usize, buffer: usize) -> bool {
        received < buffer
    }
}

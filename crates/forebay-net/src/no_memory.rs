//! Replaces `memory.rs` in builds without connections in memory. Except for `Destination`, the
//! types here have no values, so the compiler removes the code that uses them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::task::{Context, Poll};

use rustix::net::Shutdown;

/// A type without values.
enum Never {}

/// Placeholder for an end of a connection in memory.
pub struct Link(Never);

impl Link {
    pub async fn closed(&self) {
        match self.0 {}
    }

    pub fn poll_readable(&self, _: &Context<'_>) -> Poll<()> {
        match self.0 {}
    }

    pub fn poll_writable(&self, _: &Context<'_>) -> Poll<()> {
        match self.0 {}
    }

    pub fn is_reset(&self) -> bool {
        match self.0 {}
    }

    pub fn peek(&self) -> Option<bool> {
        match self.0 {}
    }

    pub fn try_read(&self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn append_to(&self, _: &mut Vec<u8>, _: usize) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn try_write(&self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub fn shut_down(&self, _: Shutdown) {
        match self.0 {}
    }

    pub fn reset_when_closed(&self) {
        match self.0 {}
    }
}

/// Address of a backend.
pub enum Destination {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Backends in memory.
pub struct Network(Never);

impl Network {
    pub async fn connect(&self, _: &Destination) -> io::Result<Link> {
        match self.0 {}
    }
}

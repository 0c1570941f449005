//! Listening sockets that Forebay opens for programs (`listen = "inherit"`, `"inherit-port"` and
//! `"stdin"`).
//!
//! Forebay keeps such a socket open itself. FastCGI programs often end after some number of
//! requests. A client that connects just then waits in the socket's queue, and the next process gets
//! the same socket, so no request is lost. After a crash, the socket is closed, because those who
//! wait must not wait for a program that may never start again.
//!
//! A Unix socket has no name in the file system, so nothing is left of it however Forebay ends, and
//! nobody else can connect. Forebay connects to the inode, through /proc.

use super::room::make_room;
use super::{Listening, ProcessAddress};
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

/// A listening socket for one process after another.
#[derive(Debug)]
pub(super) struct Seat {
    /// Where Forebay connects.
    pub(super) address: ProcessAddress,
    /// The address that the program is told: that of `getsockname`.
    pub(super) told: ProcessAddress,
    listener: OwnedFd,
    /// The descriptor that `address` names. Whoever may still connect has to hold it, because
    /// another socket may get the number of a descriptor that is closed.
    pub(super) inode: Option<Arc<OwnedFd>>,
}

impl Seat {
    /// Opens a socket, unless the program opens its own.
    pub(super) fn open(listen: Listening) -> io::Result<Option<Seat>> {
        match listen {
            Listening::Socket | Listening::Port => Ok(None),
            Listening::Inherit | Listening::Stdin => Seat::unix().map(Some),
            Listening::InheritPort => {
                let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
                let address = ProcessAddress::Tcp(listener.local_addr()?);
                let told = address.clone();
                Ok(Some(Seat { address, told, listener: listener.into(), inode: None }))
            }
        }
    }

    fn unix() -> io::Result<Seat> {
        let room = make_room(None)?;
        let path = room.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        let inode = open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let address = PathBuf::from(format!("/proc/self/fd/{}", inode.as_raw_fd()));
        Ok(Seat {
            address: ProcessAddress::Unix(address),
            told: ProcessAddress::Unix(path),
            listener: listener.into(),
            inode: Some(Arc::new(inode)),
        })
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_without_a_name_is_reached_and_leaves_nothing() {
        let seat = Seat::open(Listening::Stdin).unwrap().unwrap();
        let (ProcessAddress::Unix(address), ProcessAddress::Unix(told)) =
            (&seat.address, &seat.told)
        else {
            panic!("{seat:?}")
        };
        assert!(!told.exists() && !told.parent().unwrap().exists());
        UnixStream::connect(address).unwrap();
        let listener = UnixListener::from(seat.listener().try_clone_to_owned().unwrap());
        listener.accept().unwrap();
    }
}

//! The only module with `unsafe`.
#![allow(unsafe_code)]

pub(crate) mod spawn;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime of the calling thread. The descriptor may be in blocking
/// mode if callers use only calls that do not block.
pub(crate) fn register(
    fd: impl Into<Arc<OwnedFd>>,
    interest: Interest,
) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    let fd = fd.into();
    // SAFETY: the descriptor must stay open, under the same number, while it is registered. The
    // result shares the ownership of the descriptor, and so keeps it open.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_registered_descriptor_wakes_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let ours = register(ours, Interest::READABLE).unwrap();
            rustix::io::write(&theirs, b"x").unwrap();
            drop(ours.readable().await.unwrap());
        });
    }
}

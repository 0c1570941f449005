//! Sends a request to a worker, which may read it slowly.

use crate::control::{self, Body, Mark};
use crate::sys;
use crate::worker::Worker;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const BODY_CHUNK: usize = 64 * 1024;

/// The reason why a request could not be sent to the worker.
pub(super) enum SendFault {
    TooBig,
    Body(io::Error),
    Socket,
}

/// Sends a request over the control socket, because it does not fit the worker's prefetch queue.
pub(super) async fn stream(
    worker: &Worker,
    block: &[u8],
    body: Body<'_>,
    mark: Mark,
) -> Result<(), SendFault> {
    let (in_memory, length) = match body {
        Body::Empty => (&[][..], 0),
        Body::Bytes(bytes) => (bytes, bytes.len() as u64),
        Body::File(_, length) => (&[][..], length),
    };
    let head = control::head(block.len(), length, mark).ok_or(SendFault::TooBig)?;
    send_all(worker, &[&head, block, in_memory]).await?;
    match body {
        Body::File(file, length) => send_file(worker, file, length).await,
        _ => Ok(()),
    }
}

/// Sends the first `length` bytes of `file` as the body of the request, in pieces.
async fn send_file(worker: &Worker, file: &File, length: u64) -> Result<(), SendFault> {
    let mut chunk = vec![0; BODY_CHUNK.min(usize::try_from(length).unwrap_or(BODY_CHUNK))];
    let mut at = 0;
    while at < length {
        let want = chunk.len().min(usize::try_from(length - at).unwrap_or(usize::MAX));
        match file.read_at(&mut chunk[..want], at) {
            Ok(0) => return Err(SendFault::Body(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => {
                send_all(worker, &[&chunk[..read]]).await?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SendFault::Body(error)),
        }
    }
    Ok(())
}

/// Sends all parts. While the socket's buffer is full, waits until the worker reads.
async fn send_all<const N: usize>(worker: &Worker, parts: &[&[u8]; N]) -> Result<(), SendFault> {
    let mut slices = parts.map(IoSlice::new);
    let mut left = &mut slices[..];
    let mut waiter = None;
    loop {
        while left.first().is_some_and(|slice| slice.is_empty()) {
            left = &mut left[1..];
        }
        if left.is_empty() {
            return Ok(());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&worker.control, left, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_writable(worker, &mut waiter).await?,
            Err(_) => return Err(SendFault::Socket),
        }
    }
}

/// Waits until the control socket is writable. Waits on a copy of the descriptor, so that the
/// socket itself stays registered for reading only.
async fn wait_writable(
    worker: &Worker,
    waiter: &mut Option<AsyncFd<Arc<OwnedFd>>>,
) -> Result<(), SendFault> {
    if waiter.is_none() {
        let copy = worker.control.as_fd().try_clone_to_owned().map_err(SendFault::Body)?;
        *waiter = Some(sys::register(copy, Interest::WRITABLE).map_err(SendFault::Body)?);
    }
    let Some(waiter) = waiter else { return Ok(()) };
    waiter.writable().await.map_err(SendFault::Body)?.clear_ready();
    Ok(())
}

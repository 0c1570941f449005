//! Waiting for messages and output of a worker, and reading them.

use crate::worker::Worker;
use rustix::buffer::spare_capacity;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Growth of a full buffer in bytes.
const READ_AT_ONCE: usize = 64 * 1024;
/// A buffer with less room than this counts as full.
const LEAST_ROOM: usize = 8 * 1024;
/// Silence of a worker after which its output is forwarded and its process watched. Most requests
/// have ended by then.
const PAUSE: Duration = Duration::from_millis(1);

/// The reason why [`readable`] has returned.
pub(super) enum Wake {
    /// There may be output.
    Output,
    /// The worker may have sent a message, or closed its control socket.
    Control,
    /// The worker is silent.
    Pause,
    /// The worker has ended. Its children may keep its sockets open for a long time.
    Exit,
}

/// Waits until there may be something to read, or the worker has ended. Waits for at most a
/// [`PAUSE`] if `has_output`, or while the output is not watched. `closed`: the control socket is
/// at its end.
pub(super) async fn readable(worker: &Worker, closed: bool, has_output: bool) -> io::Result<Wake> {
    let input = || {
        std::future::poll_fn(|context| {
            if let Poll::Ready(outcome) = worker.output.poll_readable(context) {
                return Poll::Ready(outcome.map(|()| Wake::Output));
            }
            if closed {
                return Poll::Pending;
            }
            worker.control.poll_readable(context).map_ok(|()| Wake::Control)
        })
    };
    if let Ok(outcome) = tokio::time::timeout(PAUSE, input()).await {
        return outcome;
    }
    if has_output || !worker.output.is_watched() {
        return Ok(Wake::Pause);
    }
    tokio::select! {
        biased;
        outcome = input() => outcome,
        _ = worker.shared.exited() => Ok(Wake::Exit),
    }
}

/// Appends output to `buf` and returns its length: 0 at the end of the stream, `None` if there is
/// none for now.
pub(super) fn receive_output(worker: &Worker, buf: &mut Vec<u8>) -> Option<usize> {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        buf.reserve(READ_AT_ONCE);
    }
    worker.output.receive(spare_capacity(buf)).unwrap_or(Some(0))
}

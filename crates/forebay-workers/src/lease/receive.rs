//! Waits for messages and output of a worker, and reads the output.

use crate::worker::Worker;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Number of bytes by which a full buffer grows.
const READ_AT_ONCE: usize = 64 * 1024;
/// A buffer with less free space than this, in bytes, counts as full.
const LEAST_ROOM: usize = 8 * 1024;
/// When a worker is silent for this time, the gateway forwards the output so far, and watches the
/// worker's process. Most requests end earlier.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// The reason why [`readable`] has returned.
pub(super) enum Wake {
    /// The output socket may contain output.
    Output,
    /// The worker may have sent a message, or closed its control socket.
    Control,
    /// The worker was silent for a [`PAUSE`].
    Pause,
    /// The worker has ended. Its sockets do not always show the end, because its children may keep
    /// them open for a long time.
    Exit,
}

/// Waits until there may be something to read, or until the worker has ended. If the caller has
/// output to forward (`has_output`), waits for at most one [`PAUSE`]. Also waits for at most one
/// [`PAUSE`] if the runtime does not watch the output socket yet. The caller then lets the runtime
/// watch the socket, and calls this function again. `closed` is true if the control socket is at
/// its end.
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
    if has_output || !worker.output.is_watched() {
        let outcome = tokio::time::timeout(PAUSE, input()).await;
        return outcome.unwrap_or(Ok(Wake::Pause));
    }
    tokio::select! {
        biased;
        outcome = input() => outcome,
        _ = worker.shared.exited() => Ok(Wake::Exit),
    }
}

/// Appends available output to `buf` and returns the number of bytes. Returns 0 at the end of the
/// socket or after an error, and `None` if no output is available now.
pub(super) fn receive_output(worker: &Worker, buf: &mut Vec<u8>) -> Option<usize> {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        buf.reserve(READ_AT_ONCE);
    }
    worker.output.receive(buf).unwrap_or(Some(0))
}

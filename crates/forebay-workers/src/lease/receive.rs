//! Waiting for what a worker says and writes, and taking it in.

use crate::worker::Worker;
use rustix::buffer::spare_capacity;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Bytes by which a buffer grows when it is full.
const READ_AT_ONCE: usize = 64 * 1024;
/// Below this much room a buffer counts as full.
const LEAST_ROOM: usize = 8 * 1024;
/// How long a worker may be silent before its output is passed on, and its process watched. Most
/// have ended by then.
const PAUSE: Duration = Duration::from_millis(1);

/// Why [`readable`] has come back.
pub(super) enum Wake {
    /// There may be output.
    Output,
    /// The worker may have said something, or have closed its control socket.
    Control,
    /// It is silent.
    Pause,
    /// The worker has ended. Children that it has left may hold its sockets open for long.
    Exit,
}

/// Waits until there may be something to read, or the worker has ended; for a [`PAUSE`] at the most
/// while its output is not watched. `closed`: nothing is to be expected from the control socket.
/// `has_output`: nor is it waited for long.
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

/// Bytes appended to `buf`: 0 at the end of the stream, `None` if there are none for now.
pub(super) fn receive_output(worker: &Worker, buf: &mut Vec<u8>) -> Option<usize> {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        buf.reserve(READ_AT_ONCE);
    }
    worker.output.receive(spare_capacity(buf)).unwrap_or(Some(0))
}

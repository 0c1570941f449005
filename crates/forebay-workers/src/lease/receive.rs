//! Waiting for what a worker says and writes, and taking it in.

use crate::link::{Link, Output};
use crate::worker::Worker;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::io;
use std::task::Poll;
use std::time::Duration;

/// Bytes by which a buffer grows when it is full.
const READ_AT_ONCE: usize = 64 * 1024;
/// Below this much room a buffer counts as full.
const LEAST_ROOM: usize = 8 * 1024;
/// How long a script may run before its output is listened to: until then its end is what is waited
/// for, which comes after all output.
const UNHEARD: Duration = Duration::from_millis(1);

/// Why [`readable`] has come back.
pub(super) enum Wake {
    /// There may be something to read.
    Input,
    /// The worker has ended. Children that it has left may hold its sockets open for long.
    Exit,
}

/// Waits until control or output may have something to read, or the worker has ended.
pub(super) async fn readable(worker: &mut Worker) -> io::Result<Wake> {
    if let Output::Silent(_) = worker.output {
        let control = std::future::poll_fn(|context| worker.control.poll_readable(context));
        if let Ok(outcome) = tokio::time::timeout(UNHEARD, control).await {
            return outcome.map(|()| Wake::Input);
        }
        // What has come before counts as just come.
        worker.output.listen()?;
    }
    let input = std::future::poll_fn(|context| {
        let control = worker.control.poll_readable(context);
        let output = worker.output.poll_readable(context);
        match (control, output) {
            (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(Ok(Wake::Input)),
        }
    });
    tokio::select! {
        biased;
        outcome = input => outcome,
        _ = worker.facts.exited() => Ok(Wake::Exit),
    }
}

/// Bytes appended to `buf`: 0 at the end of the stream, `None` if there are none for now.
pub(super) fn receive_output(worker: &Worker, buf: &mut Vec<u8>) -> Option<usize> {
    make_room(buf);
    worker.output.receive(spare_capacity(buf)).unwrap_or(Some(0))
}

pub(super) fn receive(link: &Link, buf: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
    make_room(buf);
    link.receive(spare_capacity(buf))
}

fn make_room(buf: &mut Vec<u8>) {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        buf.reserve(READ_AT_ONCE);
    }
}

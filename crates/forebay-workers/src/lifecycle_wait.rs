//! Waits for two events in the life of a worker: the worker becomes ready, and its process ends.

use crate::control::Reply;
use crate::error::Exit;
use crate::link::{Link, Output};
use crate::pool::Pool;
use crate::sys;
use crate::worker::{Heard, Worker, WorkerShared};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;

/// Waits until the worker reports that it is ready.
pub(crate) async fn await_ready(
    shared: Arc<WorkerShared>,
    control: OwnedFd,
    output: OwnedFd,
) -> io::Result<Worker> {
    let mut worker = Worker::new(shared, Link::new(control)?, Output::new(output)?);
    match worker.heard().await? {
        Heard::Said(Reply::Ready) => Ok(worker),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Waits until the process has ended, and reaps it. If the process failed or the application is
/// shutting down, first kills the rest of its process group.
pub(crate) async fn await_end(shared: &WorkerShared, pool: &Pool, at_end: OwnedFd) -> Exit {
    let readable = sys::register(at_end, Interest::READABLE);
    loop {
        if let Ok(at_end) = &readable {
            let _ = at_end.readable().await;
        }
        match shared.reap(pool.is_closed()) {
            Ok(Some(status)) => return status.into(),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

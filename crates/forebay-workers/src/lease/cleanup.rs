//! Waits for workers that clean up after the end of a reply.

use crate::control::Reply;
use crate::shared::AppShared;
use crate::worker::{Heard, Killed, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Waits until a worker has cleaned up after a request, and returns the worker to the pool. The
/// time limit of the request also covers the cleanup. A worker that sends an unexpected message is
/// killed.
pub(super) async fn await_cleanup(app: Arc<AppShared>, mut worker: Worker) {
    loop {
        let Ok(heard) = worker.heard().await else { return };
        match heard {
            Heard::Said(Reply::Waiting) => {}
            Heard::Said(Reply::Ready) => break,
            Heard::Said(said) if said.is_of_cleanup() => {
                worker.shared.retired.store(true, Ordering::Relaxed);
                break;
            }
            // The worker has died, and the supervisor handles its end.
            Heard::Closed { .. } => return,
            Heard::Nothing | Heard::Said(_) | Heard::Nonsense(..) => {
                return worker.shared.kill(Killed::BrokeProtocol);
            }
        }
    }
    app.give_back(worker);
}

//! Workers that still clean up after their reply has ended.

use crate::control::Reply;
use crate::shared::AppShared;
use crate::worker::{Heard, Killed, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Waits for a worker that cleans up after a request, and returns it to the pool. This time counts
/// as part of the request.
pub(super) async fn await_cleanup(app: Arc<AppShared>, mut worker: Worker) {
    loop {
        let Ok(heard) = worker.heard().await else { return };
        match heard {
            Heard::Said(Reply::Waiting) => {}
            // Keeps the socket's readiness: a message about the next request may follow.
            Heard::Said(Reply::Ready) => break,
            Heard::Said(said) if said.is_of_cleanup() => {
                worker.shared.retired.store(true, Ordering::Relaxed);
                break;
            }
            // The worker has died; its supervisor handles that.
            Heard::Closed { .. } => return,
            Heard::Nothing | Heard::Said(_) | Heard::Nonsense(..) => {
                return worker.shared.kill(Killed::BrokeProtocol);
            }
        }
    }
    app.give_back(worker);
}

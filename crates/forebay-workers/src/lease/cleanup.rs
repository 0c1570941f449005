//! Workers that are not ready yet when their reply is done.

use crate::control::Reply;
use crate::shared::AppShared;
use crate::worker::{Heard, Killed, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Waits for a worker that cleans up after a request whose reply is done, and takes it back. Its
/// time counts as that of the request.
pub(super) async fn await_cleanup(app: Arc<AppShared>, mut worker: Worker) {
    loop {
        let Ok(heard) = worker.heard().await else { return };
        match heard {
            Heard::Said(Reply::Waiting) => {}
            // It may have said as much of the next request: what is known of the socket stays.
            Heard::Said(Reply::Ready) => break,
            Heard::Said(said) if said.is_of_cleanup() => {
                worker.shared.retired.store(true, Ordering::Relaxed);
                break;
            }
            // It has died, which its supervisor sees.
            Heard::Closed { .. } => return,
            Heard::Nothing | Heard::Said(_) | Heard::Nonsense(..) => {
                return worker.shared.kill(Killed::BrokeProtocol);
            }
        }
    }
    app.give_back(worker);
}

//! Workers that are not ready yet when their reply is done.

use crate::control::{REPLY, Reply};
use crate::shared::AppShared;
use crate::worker::{Killed, Worker};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Waits for a worker that cleans up after a request whose reply is done, and takes it back. Its
/// time counts as that of the request.
pub(super) async fn await_cleanup(app: Arc<AppShared>, worker: Worker) {
    let mut message = [0; REPLY];
    let received = loop {
        if std::future::poll_fn(|context| worker.control.poll_readable(context)).await.is_err() {
            return;
        }
        if let Some(received) = worker.control.receive(&mut message[..]).unwrap_or(Some(0)) {
            break received;
        }
    };
    match Reply::parse_after_cleanup(&message[..received]) {
        // It may have said as much of the next request: what is known of the socket stays.
        Some(Reply::Ready) => {}
        Some(_) => worker.shared.retired.store(true, Ordering::Relaxed),
        // It has died, which its supervisor sees.
        None if received == 0 => return,
        None => return worker.shared.kill(Killed::BrokeProtocol),
    }
    app.give_back(worker);
}

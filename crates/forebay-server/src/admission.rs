//! Room for a new connection at the limit: closes the connection of any thread that has been idle
//! longest. If all have requests in progress, the new connection waits.

use std::net::IpAddr;
use std::pin::pin;

use crate::deadline::TICK;
use crate::limit::Limit;
use crate::thread::Thread;

/// Waits until one more connection may be accepted. Returns at once, and closes none, if the
/// client's `address` has reached its own limit: the caller then refuses the connection.
pub async fn make_room(thread: &Thread, address: Option<IpAddr>) {
    let load = &thread.load;
    if load.has_room() || address.is_some_and(|address| load.is_address_full(address)) {
        return;
    }
    thread.counters.count_limit(Limit::Connections);
    let waiting = load.pressure.wait();
    loop {
        let mut changed = pin!(waiting.changed());
        // Register before checking, so that no change is missed.
        changed.as_mut().enable();
        if load.has_room() {
            return;
        }
        // A connection that becomes idle notifies no waiting task, so check more often.
        let patience = if thread.close_for_another() { TICK } else { TICK / 10 };
        let _ = tokio::time::timeout(patience, changed).await;
    }
}

//! A place for a new connection. At the limit it takes that of the connection that has been idle for longest,
//! over all threads; while all have requests under way it waits.

use std::net::IpAddr;
use std::pin::pin;

use crate::deadline::TICK;
use crate::limit::Limit;
use crate::thread::Thread;

/// Waits until one more connection may be taken. If its client's `address` has too many connections, it returns at
/// once and closes none: the caller refuses the connection.
pub async fn make_room(thread: &Thread, address: Option<IpAddr>) {
    let load = &thread.load;
    if load.has_room() || address.is_some_and(|address| load.is_address_full(address)) {
        return;
    }
    thread.counters.count_limit(Limit::Connections);
    let waiting = load.pressure.wait();
    loop {
        let mut changed = pin!(waiting.changed());
        // From here on no change is missed.
        changed.as_mut().enable();
        if load.has_room() {
            return;
        }
        // A connection that becomes idle notifies no other task.
        let patience = if thread.close_for_another() { TICK } else { TICK / 10 };
        let _ = tokio::time::timeout(patience, changed).await;
    }
}

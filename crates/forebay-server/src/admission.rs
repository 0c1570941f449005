//! Admission of new connections: counts them, and makes room at the limit.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use forebay_net::deadline::TICK;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_wire::ClientAddress;

/// Waits until one more connection may be accepted. At the limit, closes the connection of any
/// thread that has been idle longest. If all have requests in progress, waits for one of them.
///
/// Returns at once, and closes none, if the
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

/// Counts a connection until dropped, even by a panic.
pub struct Counted {
    thread: Rc<Thread>,
    /// The client address, if it counts against a limit.
    address: Option<IpAddr>,
}

impl Counted {
    pub fn new(thread: &Rc<Thread>) -> Self {
        thread.counters.count_connection();
        thread.load.enter(thread.index);
        thread.deadlines.resume();
        Self { thread: thread.clone(), address: None }
    }

    /// Counts the connection for its client address. Returns false if the address has too many.
    /// Clients of Unix sockets have no address.
    pub fn count_address(&mut self, client: ClientAddress) -> bool {
        let Some(address) = client.ip() else { return true };
        let Ok(is_counted) = self.thread.load.enter_address(address) else {
            self.thread.counters.count_limit(Limit::ConnectionsPerAddress);
            return false;
        };
        self.address = is_counted.then_some(address);
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.thread.load.leave(self.thread.index);
        if let Some(address) = self.address {
            self.thread.load.leave_address(address);
        }
    }
}

//! Admits new connections: counts them, and closes idle connections at the limit.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use forebay_net::deadline::TICK;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_wire::ClientAddress;

/// Waits until one more connection may be accepted. At the limit, closes the connection that has
/// been idle longest, on any thread. If all connections have requests in progress, waits until one
/// of them ends.
///
/// Returns at once, without closing a connection, if the client's `address` has reached its own
/// limit. The caller then refuses the new connection.
pub async fn make_room(thread: &Thread, address: Option<IpAddr>) {
    let load = &thread.load;
    if load.has_room() || address.is_some_and(|address| load.is_address_full(address)) {
        return;
    }
    thread.counters.count_limit(Limit::Connections);
    let waiting = load.pressure.wait();
    loop {
        let mut changed = pin!(waiting.changed());
        // Register before the check, so that no change is missed.
        changed.as_mut().enable();
        if load.has_room() {
            return;
        }
        // A connection that becomes idle does not notify this task. So if no connection could be
        // closed, check again sooner.
        let patience = if thread.close_for_another() { TICK } else { TICK / 10 };
        let _ = tokio::time::timeout(patience, changed).await;
    }
}

/// Counts a connection until this value is dropped, even by a panic.
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

    /// Counts the connection for its client address. Returns false if the address has too many
    /// connections. Clients of Unix sockets have no address.
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

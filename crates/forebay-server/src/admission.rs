//! Admits new connections: counts them, and closes idle connections at the limit.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use forebay_net::address_limit::AddressEntry;
use forebay_net::deadline::TICK;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_wire::ClientAddress;

use crate::context::FrontContext;

/// Waits until one more connection may be accepted. At the limit, closes the connection that has
/// been idle longest, on any thread. If no connection is idle, waits until a connection ends or
/// becomes idle.
///
/// Returns at once, without closing a connection, if the client's `address` has reached its own
/// limit. The caller then refuses the new connection. `listener` is the number of the listener.
pub async fn make_room(context: &FrontContext, listener: usize, address: Option<IpAddr>) {
    let thread = &context.thread;
    let load = &thread.load;
    if load.has_room() || address.is_some_and(|address| is_full(context, listener, address)) {
        return;
    }
    thread.counters.count_limit(Limit::Connections);
    let waiting = load.pressure.wait();
    loop {
        let mut changed = pin!(waiting.changed());
        // Register for the notification before the check, so that no change is missed.
        changed.as_mut().enable();
        if load.has_room() {
            return;
        }
        // A connection that becomes idle does not notify this task. So if no connection could be
        // closed, wait only a tenth of a tick before the next check.
        let patience = if thread.close_for_another() { TICK } else { TICK / 10 };
        let _ = tokio::time::timeout(patience, changed).await;
    }
}

/// Returns true if connections from `address` are refused now.
pub fn is_full(context: &FrontContext, listener: usize, address: IpAddr) -> bool {
    // Compare with the trusted proxies only at the limit, which few addresses reach.
    context.thread.load.addresses.is_full(address) && !context.table().is_trusted(listener, address)
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
    /// connections. Trusted proxies, and clients of Unix sockets, may have any number of
    /// connections.
    pub fn count_address(
        &mut self,
        context: &FrontContext,
        listener: usize,
        client: ClientAddress,
    ) -> bool {
        let Some(address) = client.ip() else { return true };
        match self.thread.load.addresses.enter(address) {
            AddressEntry::Counted => self.address = Some(address),
            AddressEntry::Unlimited => {}
            AddressEntry::Full if context.table().is_trusted(listener, address) => {}
            AddressEntry::Full => {
                self.thread.counters.count_limit(Limit::ConnectionsPerAddress);
                if let Some(line) = self.thread.load.addresses.refuse(address) {
                    self.thread.errors.warn(&line);
                }
                return false;
            }
        }
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.thread.load.leave(self.thread.index);
        if let Some(address) = self.address {
            self.thread.load.addresses.leave(address);
        }
    }
}

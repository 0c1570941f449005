//! Clients of the administrator's listener that are answered at the same time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::AdminConnection;

/// Maximum number of clients that are answered at the same time.
const MOST_VISITORS: usize = 64;

/// Clients that are answered now.
#[derive(Default)]
pub struct Visitors(Mutex<Present>);

#[derive(Default)]
struct Present {
    count: usize,
    /// Number of the next client.
    next: u64,
    /// Copies of the connections whose threads wait for the client, the oldest first.
    waiting: BTreeMap<u64, AdminConnection>,
}

/// A client that is answered.
pub struct Visitor {
    visitors: Arc<Visitors>,
    number: u64,
}

impl Visitors {
    fn lock(&self) -> MutexGuard<'_, Present> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a client. At the limit of clients, first closes the oldest connection whose thread
    /// waits for its client, so that slow clients cannot keep the administrator out. Returns `None`
    /// if the limit is reached and no thread waits for its client.
    pub fn admit(self: &Arc<Self>, connection: &AdminConnection) -> Option<Visitor> {
        let mut present = self.lock();
        if present.count >= MOST_VISITORS {
            let (_, oldest) = present.waiting.pop_first()?;
            // The thread of this connection fails to read or write, and therefore ends soon.
            let _ = oldest.shutdown();
        }
        let number = present.next;
        present.next += 1;
        present.count += 1;
        drop(present);
        let visitor = Visitor { visitors: self.clone(), number };
        visitor.waits(connection);
        Some(visitor)
    }
}

impl Visitor {
    /// Records that the thread of `connection` waits until the client sends the request or receives
    /// the answer.
    pub fn waits(&self, connection: &AdminConnection) {
        if let Ok(copy) = connection.try_clone() {
            self.visitors.lock().waiting.insert(self.number, copy);
        }
    }

    /// Records that the thread carries out the request, so that `admit` does not close the
    /// connection.
    pub fn is_served(&self) {
        self.visitors.lock().waiting.remove(&self.number);
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut present = self.visitors.lock();
        present.waiting.remove(&self.number);
        present.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn slow_clients_give_way_and_others_stay() {
        let clients = Arc::new(Visitors::default());
        let mut peers = Vec::new();
        let mut admit = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            theirs.set_nonblocking(true).unwrap();
            peers.push(theirs);
            let connection = AdminConnection::Unix(ours);
            clients.admit(&connection).map(|client| (client, connection))
        };
        let mut admitted: Vec<_> = (0..MOST_VISITORS).map(|_| admit().unwrap()).collect();
        admitted[0].0.is_served();
        admitted.push(admit().unwrap());
        for (client, _) in &admitted {
            client.is_served();
        }
        assert!(admit().is_none());
        // The thread of the ended connection finishes.
        drop(admitted.drain(1..3));
        assert!(admit().is_some());
        let mut is_ended = |index: usize| matches!(peers[index].read(&mut [0]), Ok(0));
        assert!(!is_ended(0) && is_ended(1) && !is_ended(3));
    }
}

//! Queue of passwords that wait for hashing.
//!
//! Client addresses take turns: between two passwords of one address, each other address with
//! waiting passwords gets one hash. So a client that sends many passwords delays mainly its own
//! requests. An IPv6 client is identified by its /64 network, because one subscriber has a whole
//! network.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Maximum time in the queue.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of waiting passwords for one address.
// A processor computes about this many bcrypt hashes of cost 10 in five seconds.
const MOST_OF_ADDRESS: usize = 64;
/// Maximum number of waiting passwords of all addresses. If it is reached, the address with the
/// most waiting passwords loses its newest password. If no other address has more waiting passwords
/// than the address of the new password, the new password is refused.
const MOST: usize = 1024;

/// Queue of passwords that wait for hashing.
pub struct HashQueue(Mutex<QueueState>);

struct QueueState {
    /// Number of hashes that may still start.
    free: usize,
    /// Addresses with waiting passwords, the next one first.
    order: VecDeque<QueueKey>,
    waiting: HashMap<QueueKey, VecDeque<oneshot::Sender<Turn>>>,
    /// Number of passwords in `waiting`.
    count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum QueueKey {
    V4([u8; 4]),
    V6([u8; 8]),
    Unix,
}

impl QueueKey {
    fn of(client: Option<IpAddr>) -> Self {
        match client.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => Self::V4(address.octets()),
            Some(IpAddr::V6(address)) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
            None => Self::Unix,
        }
    }
}

/// Reason why a password is not hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many passwords of this address wait, or the queue is full.
    Share,
    /// The password has waited for 10 s.
    Patience,
}

/// The right to compute a hash. When this value is dropped, the right passes to the next password.
pub struct Turn(Option<Arc<HashQueue>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            queue.pass_on();
        }
    }
}

impl HashQueue {
    /// Creates a queue for at most `at_once` hashes at once.
    pub fn new(at_once: usize) -> Arc<Self> {
        let state =
            QueueState { free: at_once, order: VecDeque::new(), waiting: HashMap::new(), count: 0 };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Waits until a password of `client` may be hashed. `None` is a client of a Unix socket.
    /// Returns a refusal if too many passwords wait, or if the wait takes too long.
    pub async fn wait(self: &Arc<Self>, client: Option<IpAddr>) -> Result<Turn, Refusal> {
        let turn = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Turn(Some(self.clone())));
            }
            state.enter(QueueKey::of(client))?
        };
        match timeout(PATIENCE, turn).await {
            Ok(turn) => turn.map_err(|_| Refusal::Share),
            Err(_) => Err(Refusal::Patience),
        }
    }

    fn pass_on(self: Arc<Self>) {
        loop {
            let Some(next) = self.state().next() else { return };
            // If the waiting request ends before it receives the `Turn`, the drop of the `Turn`
            // passes the right to hash to the next waiting request.
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                Err(mut turn) => drop(turn.0.take()),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn enter(&mut self, address: QueueKey) -> Result<oneshot::Receiver<Turn>, Refusal> {
        if self.of(address) >= MOST_OF_ADDRESS {
            self.forget_departed(address);
        }
        let own = self.of(address);
        if own >= MOST_OF_ADDRESS {
            return Err(Refusal::Share);
        }
        if self.count >= MOST {
            self.make_room(own)?;
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = self.waiting.entry(address).or_default();
        if waiting.is_empty() {
            self.order.push_back(address);
        }
        waiting.push_back(sender);
        self.count += 1;
        Ok(receiver)
    }

    /// Removes and returns the password that is next. If no password waits, counts one more hash
    /// that may start, and returns `None`.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let Some(address) = self.order.pop_front() else {
            self.free += 1;
            return None;
        };
        let waiting = self.waiting.get_mut(&address).expect("an address in `order` has some");
        let next = waiting.pop_front().expect("an address in `order` has some");
        if waiting.is_empty() {
            self.waiting.remove(&address);
        } else {
            self.order.push_back(address);
        }
        self.count -= 1;
        Some(next)
    }

    fn of(&self, address: QueueKey) -> usize {
        self.waiting.get(&address).map_or(0, VecDeque::len)
    }

    /// Removes waiting passwords of `address` whose clients have disconnected.
    fn forget_departed(&mut self, address: QueueKey) {
        let Some(waiting) = self.waiting.get_mut(&address) else { return };
        let before = waiting.len();
        waiting.retain(|sender| !sender.is_closed());
        self.count -= before - waiting.len();
        self.forget_if_empty(address);
    }

    /// Refuses the newest password of the address with the most waiting passwords. Fails if no
    /// address has more than `own` waiting passwords.
    fn make_room(&mut self, own: usize) -> Result<(), Refusal> {
        let most = self.waiting.iter().max_by_key(|(_, waiting)| waiting.len());
        let most = most.filter(|(_, waiting)| waiting.len() > own).map(|(address, _)| *address);
        let address = most.ok_or(Refusal::Share)?;
        self.waiting.get_mut(&address).and_then(VecDeque::pop_back);
        self.count -= 1;
        self.forget_if_empty(address);
        Ok(())
    }

    fn forget_if_empty(&mut self, address: QueueKey) {
        if self.of(address) == 0 {
            self.waiting.remove(&address);
            self.order.retain(|other| *other != address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::task::{JoinHandle, spawn_local, yield_now};

    use super::*;

    type Served = Rc<RefCell<Vec<String>>>;

    /// Waits for a turn as this client, and records the turn or the refusal in `served`.
    fn password(queue: &Arc<HashQueue>, client: &str, served: &Served) -> JoinHandle<()> {
        let (queue, served, name) = (queue.clone(), served.clone(), client.to_owned());
        let client = client.parse().ok();
        spawn_local(async move {
            let turn = queue.wait(client).await;
            let outcome = match &turn {
                Ok(_) => name,
                Err(refusal) => format!("{name} {refusal:?}"),
            };
            served.borrow_mut().push(outcome);
        })
    }

    fn run(test: impl AsyncFnOnce(Arc<HashQueue>, Turn, Served)) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build_local(Default::default());
        runtime.unwrap().block_on(async {
            let queue = HashQueue::new(1);
            let held = queue.wait(None).await.unwrap();
            test(queue, held, Served::default()).await;
        });
    }

    async fn settle() {
        for _ in 0..5000 {
            yield_now().await;
        }
    }

    #[test]
    fn addresses_take_turns() {
        run(async |queue, held, served| {
            for client in ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "unix", "2001:db8::1"] {
                password(&queue, client, &served);
            }
            // Another address of this IPv6 network.
            password(&queue, "2001:db8::2", &served);
            settle().await;
            assert!(served.borrow().is_empty(), "all wait");
            drop(held);
            settle().await;
            let expected = [
                "10.0.0.1",
                "10.0.0.2",
                "unix",
                "2001:db8::1",
                "10.0.0.1",
                "2001:db8::2",
                "10.0.0.1",
            ];
            assert_eq!(served.borrow()[..], expected);
            assert_eq!(queue.state().free, 1);
        });
    }

    #[test]
    fn an_address_has_its_share_and_leaves_others_theirs() {
        run(async |queue, held, served| {
            for _ in 0..MOST_OF_ADDRESS + 2 {
                password(&queue, "10.0.0.1", &served);
            }
            settle().await;
            assert_eq!(served.borrow()[..], ["10.0.0.1 Share", "10.0.0.1 Share"]);
            password(&queue, "10.0.0.2", &served);
            settle().await;
            drop(held);
            settle().await;
            assert_eq!(served.borrow()[2..4], ["10.0.0.1", "10.0.0.2"]);
            assert_eq!(served.borrow().len(), MOST_OF_ADDRESS + 3);
        });
    }

    #[test]
    fn a_client_that_has_left_takes_no_turn() {
        run(async |queue, held, served| {
            let mut gone = Vec::new();
            for _ in 0..MOST_OF_ADDRESS {
                gone.push(password(&queue, "10.0.0.1", &served));
            }
            settle().await;
            gone.iter().for_each(JoinHandle::abort);
            settle().await;
            password(&queue, "10.0.0.1", &served);
            settle().await;
            drop(held);
            settle().await;
            assert_eq!(served.borrow()[..], ["10.0.0.1"]);
            let state = queue.state();
            assert_eq!((state.free, state.count), (1, 0));
        });
    }

    #[test]
    fn the_address_with_most_gives_way_when_the_queue_is_full() {
        run(async |queue, held, served| {
            for at in 0..MOST {
                password(&queue, &format!("10.0.0.{}", at / MOST_OF_ADDRESS), &served);
            }
            settle().await;
            assert!(served.borrow().is_empty(), "all fit");
            password(&queue, "10.1.0.1", &served);
            settle().await;
            assert_eq!(served.borrow().len(), 1);
            assert!(served.borrow()[0].ends_with("Share"), "{:?}", served.borrow());
            assert!(!served.borrow()[0].starts_with("10.1."), "{:?}", served.borrow());
            drop(held);
        });
    }

    #[test]
    fn patience_ends() {
        run(async |queue, _held, served| {
            password(&queue, "10.0.0.1", &served).await.unwrap();
            assert_eq!(served.borrow()[..], ["10.0.0.1 Patience"]);
        });
    }
}

//! The queue of requests that wait for a worker, or for a process of a program. The queue also
//! decides when such requests are refused.
//!
//! Clients take turns: the queue begins with one request of each client, in the order in which they
//! came to this place, and the further requests of the clients follow. When a request leaves the
//! first part, the next one of its client takes the place behind the last of the others. So a
//! visitor waits for at most one request of each other visitor, however many they have sent. The
//! list of requests is all that this needs, so a crowd of clients takes no memory beyond the queue.

use crate::error::Unavailable;
use std::collections::{HashSet, VecDeque};

/// A request that waits in [`Waiters`].
pub(crate) trait Waiter {
    /// Returns true if the request still waits for the outcome.
    fn is_open(&self) -> bool;

    /// Returns the number of the client whose requests take turns with those of other clients.
    fn client(&self) -> u64;

    /// Ends the wait with this reason.
    fn refuse(self, why: Unavailable);
}

/// Waiting requests. The first one is the next to be served.
#[derive(Debug)]
pub(crate) struct Waiters<W> {
    requests: VecDeque<W>,
    /// Number of requests in the first part of the queue.
    turns: usize,
    is_closed: bool,
    crash_loop: Option<String>,
    /// True if requests fail instead of waiting for the next start.
    refuses: bool,
}

impl<W> Default for Waiters<W> {
    fn default() -> Waiters<W> {
        let requests = VecDeque::new();
        Waiters { requests, turns: 0, is_closed: false, crash_loop: None, refuses: false }
    }
}

impl<W: Waiter> Waiters<W> {
    /// Returns the waiting requests. The first one is the next to be served.
    pub(crate) fn requests(&self) -> &VecDeque<W> {
        &self.requests
    }

    /// Returns the number of requests at the beginning of the queue that may overtake each other
    /// without harm to another client: the first part, or all requests if one client sent them.
    pub(crate) fn peers(&self) -> usize {
        if self.turns > 1 { self.turns } else { self.requests.len() }
    }

    /// Returns the first request that is not given up yet. Drops the given-up ones before it.
    pub(crate) fn first_open(&mut self) -> Option<&W> {
        while self.requests.front().is_some_and(|first| !first.is_open()) {
            self.remove(0);
        }
        self.requests.front()
    }

    /// Lets a request wait for its client's turn.
    pub(crate) fn push(&mut self, request: W) {
        let client = request.client();
        if self.requests.iter().any(|waiting| waiting.client() == client) {
            self.requests.push_back(request);
        } else {
            self.requests.insert(self.turns, request);
            self.turns += 1;
        }
    }

    /// Puts a request that has left the queue in front of all others. Its client's next request loses
    /// the turn that it got meanwhile.
    pub(crate) fn push_front(&mut self, request: W) {
        let client = request.client();
        let next = self.requests.iter().take(self.turns).position(|one| one.client() == client);
        if let Some(next) = next.and_then(|next| self.requests.remove(next)) {
            self.turns -= 1;
            self.requests.insert(self.turns, next);
        }
        self.requests.push_front(request);
        self.turns += 1;
    }

    /// Removes and returns the request at this index. Its client's next request gets a turn.
    pub(crate) fn remove(&mut self, at: usize) -> Option<W> {
        let request = self.requests.remove(at)?;
        if at < self.turns {
            self.turns -= 1;
            if self.turns == self.requests.len() {
                return Some(request);
            }
            let client = request.client();
            let next = self.requests.iter().position(|waiting| waiting.client() == client);
            if let Some(next) = next.filter(|next| *next >= self.turns) {
                let next = self.requests.remove(next)?;
                self.requests.insert(self.turns, next);
                self.turns += 1;
            }
        }
        Some(request)
    }

    /// Returns true if a request of `client` may wait, because fewer than `limit` requests do.
    /// Drops requests that are not wanted any more. If the queue is full, refuses the last request
    /// of a client with at least two more waiting requests than `client` to make room.
    pub(crate) fn has_room(&mut self, limit: usize, client: u64) -> bool {
        if self.requests.len() < limit {
            return true;
        }
        if !self.requests.iter().all(W::is_open) {
            self.drop_closed();
            if self.requests.len() < limit {
                return true;
            }
        }
        if self.requests.len() == self.turns {
            return false;
        }
        let Some(last) = self.requests.back().map(W::client) else { return false };
        let count = |client| self.requests.iter().filter(|one| one.client() == client).count();
        let makes_room = count(last) > count(client) + 1;
        if let Some(last) = self.requests.pop_back_if(|_| makes_room) {
            last.refuse(Unavailable::QueueFull);
        }
        makes_room
    }

    /// Drops the requests that are not wanted any more.
    fn drop_closed(&mut self) {
        let mut clients = HashSet::new();
        let open = self.requests.drain(..).filter(W::is_open);
        let (mut turns, later): (VecDeque<W>, VecDeque<W>) =
            open.partition(|request| clients.insert(request.client()));
        self.turns = turns.len();
        turns.extend(later);
        self.requests = turns;
    }

    /// Returns the number of waiting requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.iter().filter(|request| request.is_open()).count()
    }

    /// Returns the reason why no request may wait at present. Returns `None` if requests may wait.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        let why = self.crash_loop.as_ref().filter(|_| self.refuses)?;
        Some(Unavailable::CrashLoop(why.clone()))
    }

    /// Refuses waiting requests and, until the next start, new ones.
    pub(crate) fn begin_crash_loop(&mut self, why: String) {
        self.crash_loop = Some(why.clone());
        self.refuses = true;
        self.refuse_all(&Unavailable::CrashLoop(why));
    }

    pub(crate) fn end_crash_loop(&mut self) {
        self.crash_loop = None;
        self.refuses = false;
    }

    /// Lets new requests wait for the next attempt to start a process.
    /// [`begin_crash_loop`](Waiters::begin_crash_loop) refused such requests.
    pub(crate) fn let_wait(&mut self) {
        self.refuses = false;
    }

    /// Returns the last output of processes that end right after their start. Returns `None` if
    /// starts succeed.
    pub(crate) fn crash_loop(&self) -> Option<String> {
        self.crash_loop.clone()
    }

    /// Refuses all requests from now on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.refuse_all(&Unavailable::ShuttingDown);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn refuse_all(&mut self, why: &Unavailable) {
        self.turns = 0;
        for request in self.requests.drain(..) {
            request.refuse(why.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;

    struct Request {
        client: u64,
        number: u64,
        is_open: Rc<RefCell<HashSet<u64>>>,
        refused: Rc<RefCell<Vec<u64>>>,
    }

    impl Waiter for Request {
        fn is_open(&self) -> bool {
            self.is_open.borrow().contains(&self.number)
        }

        fn client(&self) -> u64 {
            self.client
        }

        fn refuse(self, _why: Unavailable) {
            self.refused.borrow_mut().push(self.number);
        }
    }

    #[derive(Default)]
    struct Queue {
        waiters: Waiters<Request>,
        last: u64,
        open: Rc<RefCell<HashSet<u64>>>,
        refused: Rc<RefCell<Vec<u64>>>,
    }

    impl Queue {
        fn request(&mut self, client: u64) -> Request {
            self.last += 1;
            self.open.borrow_mut().insert(self.last);
            let (is_open, refused) = (self.open.clone(), self.refused.clone());
            Request { client, number: self.last, is_open, refused }
        }

        fn push(&mut self, client: u64) -> u64 {
            let request = self.request(client);
            self.waiters.push(request);
            self.last
        }

        fn clients(&mut self) -> Vec<u64> {
            std::iter::from_fn(|| self.waiters.remove(0)).map(|request| request.client).collect()
        }
    }

    #[test]
    fn clients_take_turns() {
        let mut queue = Queue::default();
        for client in [1, 1, 1, 1, 2, 3, 2] {
            queue.push(client);
        }
        assert_eq!(queue.clients(), [1, 2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn a_request_that_comes_back_takes_the_turn_of_the_next_one() {
        let mut queue = Queue::default();
        for client in [1, 1, 1] {
            queue.push(client);
        }
        let first = queue.waiters.remove(0).unwrap();
        queue.waiters.push_front(first);
        queue.push(2);
        assert_eq!(queue.clients(), [1, 2, 1, 1]);
    }

    #[test]
    fn newcomers_do_not_hold_up_a_turn() {
        let mut queue = Queue::default();
        queue.push(1);
        queue.push(1);
        queue.push(2);
        assert_eq!(queue.waiters.remove(0).map(|first| first.client), Some(1));
        for newcomer in 10..20 {
            queue.push(newcomer);
        }
        assert_eq!(queue.clients()[..3], [2, 1, 10]);
    }

    #[test]
    fn a_full_queue_makes_room_for_those_with_less() {
        let mut queue = Queue::default();
        for client in [1, 1, 1, 2] {
            queue.push(client);
        }
        assert!(!queue.waiters.has_room(4, 1), "it has the most");
        assert!(queue.waiters.has_room(4, 3));
        assert_eq!(*queue.refused.borrow(), [3], "the newest of the first client");
        queue.push(3);
        assert!(!queue.waiters.has_room(4, 2), "one more would be as many as the first has");
        queue.open.borrow_mut().remove(&1);
        assert!(queue.waiters.has_room(4, 1), "a client has left");
        assert_eq!(queue.clients(), [2, 3, 1]);
    }

    /// In any schedule, each request leaves once, those of a client in their order, and a request
    /// waits for at most one request of each other client after its own client's turn has come.
    #[test]
    fn in_any_schedule_no_client_waits_for_two_of_another() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut queue = Queue::default();
            let mut waiting: HashMap<u64, VecDeque<u64>> = HashMap::new();
            // For the first request of each client, the clients that were served meanwhile.
            let mut overtaken: HashMap<u64, HashSet<u64>> = HashMap::new();
            for _ in 0..400 {
                let client = random.u64(..6);
                if random.u32(..5) < 3 {
                    let number = queue.push(client);
                    waiting.entry(client).or_default().push_back(number);
                    overtaken.entry(client).or_default();
                } else if random.u32(..4) == 0 {
                    // A worker gives back the requests that it has not begun.
                    let count = random.usize(..4);
                    let taken: Vec<_> = (0..count).map_while(|_| queue.waiters.remove(0)).collect();
                    taken.into_iter().rev().for_each(|one| queue.waiters.push_front(one));
                } else if random.u32(..4) == 0 {
                    // A client leaves.
                    let own = waiting.get_mut(&client).and_then(VecDeque::pop_front);
                    let Some(number) = own else { continue };
                    let mut numbers = queue.waiters.requests().iter();
                    let at = numbers.position(|one| one.number == number).unwrap();
                    queue.waiters.remove(at);
                    overtaken.remove(&client);
                } else if let Some(served) = queue.waiters.remove(0) {
                    let own = waiting.get_mut(&served.client).unwrap();
                    assert_eq!(own.pop_front(), Some(served.number), "seed {seed}");
                    overtaken.remove(&served.client);
                    for (client, others) in &mut overtaken {
                        let is_first = others.insert(served.client);
                        assert!(is_first, "seed {seed}: {client} waits");
                    }
                } else {
                    assert!(waiting.values().all(VecDeque::is_empty), "seed {seed}");
                }
                overtaken.retain(|client, _| !waiting[client].is_empty());
                for (client, own) in &waiting {
                    if !own.is_empty() {
                        overtaken.entry(*client).or_default();
                    }
                }
                let firsts: Vec<u64> =
                    queue.waiters.requests().iter().map(Waiter::client).collect();
                let turns = &firsts[..queue.waiters.turns];
                let clients: HashSet<_> = firsts.iter().collect();
                assert_eq!(turns.iter().collect::<HashSet<_>>(), clients, "seed {seed}");
                assert_eq!(turns.len(), clients.len(), "seed {seed}");
            }
        }
    }
}

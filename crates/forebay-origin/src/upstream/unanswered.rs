//! New connections to a backend on which nothing has come yet, over all threads, and what is closed for
//! them.
//!
//! A process of php-fpm, or of a server that forks beforehand, serves one connection for as long as that is
//! open, and takes up another then. Kept connections that always found the next request left all others
//! without an answer for as long as that went on: with five processes 27 of 32 clients. Whether a process
//! has taken a connection up nobody tells, so it is guessed:
//!
//! - A request came to a kept connection after another was opened, and is done before that is answered: the
//!   kept one is closed.
//! - One has waited for [`PATIENCE`], and there are idle ones, of whichever thread: one is closed. That was
//!   the case of all that have waited as long, then, and for each of them the next that is done is.
//!
//! For each new connection it is one at the most, so that one whose request simply takes long costs others
//! no more than that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

/// After so long without an answer an idle connection is closed for a new one: by TCP, and by a Unix
/// socket, where another costs 15 us and nothing of it is left. Where requests always take longer some are
/// closed in vain whenever more are under way than before.
const PATIENCE: Duration = Duration::from_millis(200);
const PATIENCE_UNIX: Duration = Duration::from_millis(20);

/// The new connections to one backend.
pub struct Unanswered {
    patience: Duration,
    /// How many there have ever been: a connection's number is how many there were before it.
    opened: AtomicU64,
    /// For how many nothing was closed yet.
    in_need: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their numbers.
    waiting: VecDeque<Waiting>,
    holders: Vec<mpsc::UnboundedSender<u64>>,
}

struct Waiting {
    number: u64,
    /// Another was closed for it.
    has_way: bool,
    /// An idle one was, as for others that were opened later than this.
    is_sure: bool,
}

/// A new connection, until something has come on it.
pub struct Waits {
    unanswered: Arc<Unanswered>,
    number: u64,
}

impl Unanswered {
    /// Those to a Unix socket, or by TCP.
    pub fn new(is_unix: bool) -> Self {
        Self {
            patience: if is_unix { PATIENCE_UNIX } else { PATIENCE },
            opened: AtomicU64::default(),
            in_need: AtomicUsize::default(),
            state: Mutex::default(),
        }
    }

    /// A connection is opened for a request.
    pub fn open(self: &Arc<Self>) -> Waits {
        let mut state = self.state();
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        state.waiting.push_back(Waiting { number, has_way: false, is_sure: false });
        self.in_need.fetch_add(1, Ordering::Relaxed);
        Waits { unanswered: self.clone(), number }
    }

    /// How many have been opened.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Whether a connection is to be closed for one of the first `opened`, or for any that surely waits for
    /// a process: its request is done, and came when so many had been opened. It counts as closed.
    pub fn gives_way(&self, opened: u64) -> bool {
        if !self.is_in_need() {
            return false;
        }
        let mut state = self.state();
        let gets_way = |waiting: &&mut Waiting| {
            !waiting.has_way && (waiting.is_sure || waiting.number < opened)
        };
        let Some(first) = state.waiting.iter_mut().find(gets_way) else { return false };
        first.has_way = true;
        self.in_need.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// An idle connection was closed for one of the first `opened`: the others of them wait for a process,
    /// too.
    pub fn trust(&self, opened: u64) {
        let mut state = self.state();
        let first = state.waiting.iter_mut().take_while(|waiting| waiting.number < opened);
        first.for_each(|waiting| waiting.is_sure = true);
    }

    /// A holder of idle connections. It is told how many had been opened [`PATIENCE`] ago, whenever one of
    /// those waits still.
    pub fn join(&self) -> mpsc::UnboundedReceiver<u64> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.holders.retain(|holder| !holder.is_closed());
        state.holders.push(sender);
        receiver
    }

    /// Tells holders when it is time to; ends when nothing waits.
    pub async fn watch(&self) {
        while self.is_in_need() {
            let opened = self.opened();
            tokio::time::sleep(self.patience).await;
            let mut state = self.state();
            if state.waiting.iter().any(|waiting| !waiting.has_way && waiting.number < opened) {
                state.holders.retain(|holder| holder.send(opened).is_ok());
            }
        }
    }

    fn is_in_need(&self) -> bool {
        self.in_need.load(Ordering::Relaxed) > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut state = self.unanswered.state();
        let Ok(at) = state.waiting.binary_search_by_key(&self.number, |waiting| waiting.number)
        else {
            return;
        };
        if state.waiting.remove(at).is_some_and(|waiting| !waiting.has_way) {
            self.unanswered.in_need.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_is_closed_for_each_that_was_opened_before() {
        let unanswered = Arc::new(Unanswered::new(false));
        assert!(!unanswered.gives_way(unanswered.opened()), "nobody waits");
        let (first, second) = (unanswered.open(), unanswered.open());
        assert!(!unanswered.gives_way(0), "a request that had begun before may take as long");
        assert!(unanswered.gives_way(1));
        assert!(!unanswered.gives_way(1), "one is enough for the first");
        assert!(unanswered.gives_way(2));
        assert!(!unanswered.gives_way(2));
        drop((first, second));
        assert!(!unanswered.is_in_need());
    }

    #[test]
    fn nothing_is_closed_for_what_has_been_answered() {
        let unanswered = Arc::new(Unanswered::new(false));
        let (first, second) = (unanswered.open(), unanswered.open());
        drop(first);
        assert!(!unanswered.gives_way(1));
        assert!(unanswered.gives_way(2));
        drop(second);
        assert!(!unanswered.gives_way(2));
        assert_eq!(unanswered.state().waiting.len(), 0);
    }

    #[test]
    fn those_that_surely_wait_get_what_is_done_next_whenever_that_had_begun() {
        let unanswered = Arc::new(Unanswered::new(true));
        let waiting = [unanswered.open(), unanswered.open(), unanswered.open()];
        assert!(unanswered.gives_way(2), "one that is idle");
        unanswered.trust(2);
        assert!(unanswered.gives_way(0));
        assert!(!unanswered.gives_way(0), "the third has not waited for as long");
        drop(waiting);
    }

    #[tokio::test(start_paused = true)]
    async fn holders_are_told_of_what_has_waited_for_long() {
        let unanswered = Arc::new(Unanswered::new(false));
        let mut told = unanswered.join();
        let first = unanswered.open();
        let later = async {
            tokio::time::sleep(PATIENCE / 2).await;
            let second = unanswered.open();
            assert_eq!(told.recv().await, Some(1), "not yet of the second");
            assert!(unanswered.gives_way(1) && !unanswered.gives_way(1));
            assert_eq!(told.recv().await, Some(2));
            drop((first, second));
        };
        tokio::join!(unanswered.watch(), later);
    }
}

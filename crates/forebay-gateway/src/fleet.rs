//! The exchange between machines with the same sites, through a store that they share: keys of TLS
//! tickets, counts of rate limits, and purges. Two threads do this, so that no request waits for
//! the store.

mod counts;
mod purges;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use forebay_admin::Purge;
use forebay_conf::{Plan, SharedStore, StorePlace};
use forebay_net::log::ErrorLog;
use forebay_net::tls::{TicketKeys, fresh_ring};
use forebay_origin::access::SharedKeys;
use forebay_origin::cache;
use forebay_store::{Cursor, Store, StoreError};

use counts::CountExchange;
pub use counts::SharedLimit;

/// Interval of the exchange of counts.
const EXCHANGE: Duration = Duration::from_millis(500);
/// Interval at which the keys of tickets are read.
const KEYS: Duration = Duration::from_secs(30);
/// Maximum number of purges that wait for the store.
const WAITING: usize = 1000;
/// Time that a reader waits for a purge in one call.
const NEWS: Duration = Duration::from_secs(1);
/// Pause after a failure of the reader.
const PAUSE: Duration = Duration::from_secs(1);

/// Entry with the keys of tickets.
const TICKETS: &str = "tls/tickets";

/// The exchange of ticket keys, rate limit counts and purges with other machines, through the
/// store. Dropping this value ends the threads of the exchange.
pub struct Fleet {
    settings: SharedStore,
    shared: Arc<FleetState>,
    /// Queue of purges to publish. `None` after the publishing thread has taken the queue.
    waiting: Mutex<Option<Receiver<Purge>>>,
}

/// State of the exchange with other machines. A reload replaces `limits` and `cache`.
struct FleetState {
    store: Store,
    tickets: TicketKeys,
    errors: ErrorLog,
    limits: Mutex<Vec<SharedLimit>>,
    cache: Mutex<Option<Arc<cache::Store>>>,
    /// Sender of this machine's purges to the publishing thread.
    purges: SyncSender<Purge>,
    /// True if the store has become reachable again. The keys are then read at once.
    has_returned: AtomicBool,
    /// True after another configuration has replaced this store.
    has_ended: Mutex<bool>,
    /// Name of this process in messages.
    own: u64,
}

impl Fleet {
    /// Prepares the exchange with other machines. If `previous` has the same store, returns
    /// `previous`. Returns `None` if the plan has no store. Nothing is exchanged before
    /// [`Self::serve`].
    pub fn new(
        plan: &Plan,
        tickets: &TicketKeys,
        errors: &ErrorLog,
        previous: Option<&Arc<Self>>,
    ) -> io::Result<Option<Arc<Self>>> {
        let Some(settings) = plan.server.store.as_deref() else { return Ok(None) };
        if let Some(same) = previous.filter(|previous| previous.settings == *settings) {
            return Ok(Some(same.clone()));
        }
        let store = Store::new(settings).map_err(io::Error::other)?;
        let (purges, waiting) = sync_channel(WAITING);
        let shared = Arc::new(FleetState {
            store,
            tickets: tickets.clone(),
            errors: errors.clone(),
            limits: Mutex::default(),
            cache: Mutex::default(),
            purges,
            has_returned: AtomicBool::new(false),
            has_ended: Mutex::new(false),
            own: purges::own_name(),
        });
        let waiting = Mutex::new(Some(waiting));
        Ok(Some(Arc::new(Self { settings: settings.clone(), shared, waiting })))
    }

    /// Returns the store that the machines share.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns the keyed hash for the names and keys of rate limits in the store.
    pub fn keys(&self) -> SharedKeys {
        let secret = self.shared.store.derivation().map(|keys| keys.key("rate limits"));
        SharedKeys::new(&secret.unwrap_or_default())
    }

    /// Returns the key of challenges that all machines share. `None` if the store has no key.
    pub fn challenge_key(&self) -> Option<[u8; 32]> {
        self.shared.store.derivation().map(|keys| keys.key("challenges"))
    }

    /// From now on, exchanges the counts of `limits` and the purges of `cache`. `limits` and
    /// `cache` replace those of the previous configuration. Starts the threads of the exchange, if
    /// they do not run.
    pub fn serve(&self, limits: Vec<SharedLimit>, cache: Option<Arc<cache::Store>>) {
        *lock(&self.shared.limits) = limits;
        *lock(&self.shared.cache) = cache;
        let Some(waiting) = lock(&self.waiting).take() else { return };
        if let Some(keys) = self.shared.store.derivation() {
            self.shared.tickets.share_quic_token(keys.key("quic tokens"));
        }
        let (exchange, news) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.shared));
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let started = thread("store").spawn(move || keep(&exchange, &waiting));
        let started = started.and_then(|_| thread("store-news").spawn(move || read_news(&news)));
        if let Err(error) = started {
            self.shared.errors.error(&format!("store: cannot start a thread: {error}"));
        }
    }

    /// Ends the exchange of keys and counts, because the new configuration has another store, or
    /// none. The threads of this value may run for a while longer. After this call, they exchange
    /// no rate limits, because the new configuration may have taken over these limits.
    pub fn end(&self) {
        lock(&self.shared.limits).clear();
        *lock(&self.shared.has_ended) = true;
        self.shared.tickets.end_sharing();
    }

    /// Announces a purge to other machines. If too many purges wait, logs an error instead.
    pub fn purge(&self, purge: &Purge) {
        if self.shared.purges.try_send(purge.clone()).is_err() {
            self.shared.errors.error("store: too many purges wait; other machines miss this one");
        }
    }
}

impl FleetState {
    /// Logs a line if the store has become unreachable or reachable, or for an error that is not in
    /// the log yet ([`Store::notice`]).
    fn notice<T>(&self, outcome: &Result<T, StoreError>) {
        if let Some(line) = self.store.notice(outcome) {
            self.errors.warn(&line);
        }
    }

    /// Uses the ticket keys in `text`. If a new key is due, returns the new content of the store's
    /// entry, otherwise `None`. Does nothing after another configuration has replaced this store.
    /// Fails if `text` is malformed.
    fn share(&self, text: &str) -> Result<Option<String>, String> {
        let has_ended = lock(&self.has_ended);
        if *has_ended { Ok(None) } else { self.tickets.share(text) }
    }

    /// Reads the ticket keys from the store, and adds a new key if one is due.
    fn exchange_keys(&self) -> Result<(), StoreError> {
        // If another machine has added a key at the same time, the second call reads that key.
        if !self.exchange_keys_once()? {
            self.exchange_keys_once()?;
        }
        Ok(())
    }

    /// Reads the ticket keys from the store, and adds a new key if one is due. Returns false if
    /// another machine added a key at the same time.
    fn exchange_keys_once(&self) -> Result<bool, StoreError> {
        let stored = self.store.get(TICKETS)?;
        let next = match &stored {
            // If the store has lost its entry, store the known keys again, because clients still
            // have tickets of these keys.
            None => self.tickets.shared_text().or_else(fresh_ring),
            Some(entry) => {
                let text = String::from_utf8_lossy(&entry.value);
                self.share(&text).map_err(|why| {
                    StoreError::Content(format!("{TICKETS}: {why}; remove the entry to begin anew"))
                })?
            }
        };
        let Some(next) = next else { return Ok(true) };
        let is_first = self.store.replace(TICKETS, stored.as_ref(), next.as_bytes(), None)?;
        if is_first {
            let _ = self.share(&next);
        }
        Ok(is_first)
    }

    fn apply(&self, purge: &Purge) {
        let cache = lock(&self.cache).clone();
        if let Some(cache) = cache {
            cache.purge(purge);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the reason why this machine cannot use the store of the plan. The reason begins with the
/// place of the store. Returns `None` if the store is usable, or the plan has none. Waits for a few
/// seconds at most.
pub fn check_store(plan: &Plan) -> Option<String> {
    let settings = plan.server.store.as_deref()?;
    let place = &settings.place;
    let outcome = Store::new(settings).and_then(|store| {
        let outcome = match place {
            StorePlace::Redis(_) => store.probe(),
            // Only read here, because a write as root would create files that `user` cannot use.
            StorePlace::Directory(_) => store.get("probe").map(drop),
        };
        outcome.map_err(|error| error.to_string())
    });
    outcome.err().map(|error| format!("store {place}: {error}"))
}

/// Exchanges keys and counts, and publishes purges, until the fleet is dropped.
fn keep(shared: &Weak<FleetState>, purges: &Receiver<Purge>) {
    let mut keys_due = Instant::now();
    let mut counts = CountExchange::default();
    let mut unpublished: Option<Purge> = None;
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if shared.has_returned.swap(false, Ordering::Relaxed) || Instant::now() >= keys_due {
            let outcome = shared.exchange_keys();
            shared.notice(&outcome);
            keys_due = Instant::now() + if outcome.is_ok() { KEYS } else { PAUSE * 5 };
        }
        // Copy the list, so that a reload can replace the list while this thread waits for the
        // store.
        let limits = lock(&shared.limits).clone();
        if let Some(outcome) = counts.exchange(&shared.store, &limits).transpose() {
            shared.notice(&outcome);
        }
        if let Some(purge) = &unpublished {
            let outcome = shared.store.publish(purges::CHANNEL, &purges::text(shared.own, purge));
            shared.notice(&outcome);
            if !matches!(outcome, Err(StoreError::Away(_))) {
                unpublished = None;
            }
        }
        drop(shared);
        if unpublished.is_some() {
            thread::sleep(EXCHANGE);
            continue;
        }
        match purges.recv_timeout(EXCHANGE) {
            Ok(purge) => unpublished = Some(purge),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Applies the purges of other machines, until the fleet is dropped.
fn read_news(shared: &Weak<FleetState>) {
    let mut cursor = Cursor::default();
    let mut was_away = false;
    loop {
        let Some(own) = shared.upgrade() else { return };
        let (store, errors) = (own.store.clone(), own.errors.clone());
        // Drop this reference, so that the fleet can be dropped while the reader waits.
        drop(own);
        let unusable =
            |error: StoreError| errors.warn(&format!("store {}: {error}", store.place()));
        let outcome = store.messages(purges::CHANNEL, &mut cursor, NEWS, unusable);
        let Some(shared) = shared.upgrade() else { return };
        let is_away = matches!(outcome, Err(StoreError::Away(_)));
        // If the store is a read-only replica, this read succeeds while all writes fail. Report a
        // successful read only if the read before it failed. Otherwise each read would log that the
        // store has returned.
        if outcome.is_err() || was_away {
            shared.notice(&outcome);
        }
        if std::mem::replace(&mut was_away, is_away) && !is_away {
            shared.has_returned.store(true, Ordering::Relaxed);
        }
        let Ok(messages) = outcome else {
            drop(shared);
            thread::sleep(PAUSE);
            continue;
        };
        for message in messages {
            match purges::parse(&message) {
                Some((own, purge)) if own != shared.own => shared.apply(&purge),
                Some(_) => {}
                None => shared.errors.warn(&format!(
                    "store {}: a purge of another machine is malformed and has no effect",
                    store.place()
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Barrier;

    use forebay_testkit::folder::Folder;
    use forebay_testkit::process::eventually;

    use super::*;

    fn plan(root: &Folder) -> Plan {
        let text = format!(
            "[server]\nstore = \"{}\"\n[[site]]\nlisten = \":80\"\n[[site.route]]\nrespond = \"x\"\n",
            root.path().display()
        );
        forebay_conf::parse(&text, "site.toml", Path::new("/")).unwrap()
    }

    #[test]
    fn machines_that_start_at_the_same_time_share_the_keys_at_once() {
        let (root, machines) = (Folder::new(), 8);
        let (plan, errors) = (plan(&root), ErrorLog::kept().0);
        let start = Barrier::new(machines);
        let rings: Vec<_> = thread::scope(|scope| {
            let machine = || {
                let tickets = TicketKeys::new().unwrap();
                let fleet = Fleet::new(&plan, &tickets, &errors, None).unwrap().unwrap();
                start.wait();
                fleet.shared.exchange_keys().unwrap();
                tickets.shared_text().unwrap()
            };
            let all: Vec<_> = (0..machines).map(|_| scope.spawn(machine)).collect();
            all.into_iter().map(|machine| machine.join().unwrap()).collect()
        });
        assert!(rings.iter().all(|ring| *ring == rings[0]), "{rings:?}");
    }

    #[test]
    fn a_store_is_used_while_its_configuration_serves() {
        let root = Folder::new();
        let plan = plan(&root);
        let (tickets, (errors, _kept)) = (TicketKeys::new().unwrap(), ErrorLog::kept());
        let fleet = Fleet::new(&plan, &tickets, &errors, None).unwrap().unwrap();
        thread::sleep(Duration::from_millis(50));
        // The exchange has not begun, because the reload that prepared it may still fail.
        assert!(tickets.shared_text().is_none() && !root.path().join("entries").exists());
        fleet.serve(Vec::new(), None);
        assert!(eventually(|| tickets.shared_text().is_some()));
        // Another configuration serves, and a thread of this one is about to use keys.
        let ring = tickets.shared_text().unwrap();
        fleet.end();
        assert_eq!(fleet.shared.share(&ring), Ok(None));
        assert_eq!(tickets.shared_text(), None);
        let same = Fleet::new(&plan, &tickets, &errors, Some(&fleet)).unwrap().unwrap();
        assert!(Arc::ptr_eq(&same, &fleet));
    }
}

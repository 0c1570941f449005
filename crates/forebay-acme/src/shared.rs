//! Certificates, accounts and challenges in the store that several machines share.
//!
//! One machine at a time orders from an authority: the one that has the lock. All machines read the
//! certificate from the store. They keep a copy in their state directory, so that they can start
//! while the store is unreachable. Without the store, no machine orders, because the authority may
//! ask another machine for the answer to a challenge. A renewal begins at two thirds of a
//! certificate's life, so the store may be unreachable for weeks.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_conf::Acme;
use forebay_net::log::ErrorLog;
use forebay_net::tls::{Challenge, ChallengeAnswer, Challenges};
use forebay_store::{Store, StoreEntry, StoreError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::Kept;
use crate::schedule;
use crate::state::{self, Stored};

/// Interval at which all machines check the store for new certificates.
pub const LOOK: Duration = Duration::from_secs(30);
/// Pause before the next check of the store, while another machine orders.
const WAIT: Duration = Duration::from_secs(2);
/// Time after which a lock ends, unless its machine extends it every [`EXTEND`].
const LEASE: Duration = Duration::from_secs(30);
const EXTEND: Duration = Duration::from_secs(10);
/// Life of an answer to a challenge: longer than an order.
const ANSWER_LIFE: Duration = Duration::from_secs(900);
/// Time for which failures are remembered after the next attempt is due.
const FAILURE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Maximum pause, in seconds, that this machine accepts from the failures that another machine
/// saved.
const LONGEST_PAUSE: u64 = 24 * 3600;

/// Result of [`SharedState::take_turn`].
pub enum OrderTurn {
    /// This machine has the lock and orders now.
    Order,
    /// This machine must check the store again at this time.
    Wait(SystemTime),
}

/// The data in the store that ACME needs: accounts, certificates, locks, failures and answers to
/// challenges.
#[derive(Clone)]
pub struct SharedState {
    store: Store,
    /// True if machines may order different certificates at the same time.
    is_per_certificate: bool,
}

impl SharedState {
    pub fn new(store: Store) -> Self {
        Self { store, is_per_certificate: false }
    }

    /// Creates a state with one lock for each certificate. With [`SharedState::new`], there is one
    /// lock for each authority.
    pub fn for_each_certificate(store: Store) -> Self {
        Self { store, is_per_certificate: true }
    }

    /// Runs `job` on a thread for blocking work.
    async fn with<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || job(&store)).await;
        done.unwrap_or_else(|error| Err(StoreError::Away(error.to_string())))
    }

    fn notice<T>(&self, outcome: &Result<T, StoreError>, errors: &ErrorLog) {
        if let Some(line) = self.store.notice(outcome) {
            errors.warn(&line);
        }
    }

    /// Returns the saved account credentials, or `None` if no account is saved.
    pub async fn account(&self, acme: &Acme) -> Result<Option<String>, String> {
        let name = account_name(acme);
        let found = self.with(move |store| store.get(&name)).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.and_then(|entry| String::from_utf8(entry.value).ok()))
    }

    pub async fn save_account(&self, acme: &Acme, account: String) -> Result<(), String> {
        let name = account_name(acme);
        let saved = self.with(move |store| store.put(&name, account.as_bytes(), None)).await;
        saved.map_err(|error| error.to_string())
    }

    /// Stores the answer to requests for `token`, so that every machine can send the answer.
    pub async fn answer_request(&self, token: &str, reply: String) -> Result<(), String> {
        let name = token_name(token);
        let put = self.with(move |store| store.put(&name, reply.as_bytes(), Some(ANSWER_LIFE)));
        put.await.map_err(|error| error.to_string())
    }

    /// Stores the certificate that answers the challenge tls-alpn-01 for `name`. Every machine can
    /// then present this certificate when the authority connects.
    pub async fn answer_handshake(
        &self,
        name: &str,
        certificate: String,
        key: String,
    ) -> Result<(), String> {
        let (name, text) = (handshake_name(name), format!("{key}{certificate}"));
        let put = self.with(move |store| store.put(&name, text.as_bytes(), Some(ANSWER_LIFE)));
        put.await.map_err(|error| error.to_string())
    }

    /// Uses the certificate in the store if that certificate is newer than this machine's
    /// certificate. If this machine's certificate is newer, stores it.
    pub async fn refresh(&self, kept: &mut Kept, errors: &ErrorLog) {
        let name = certificate_name(&kept.wanted.acme);
        let found = self.with(move |store| store.get(&name)).await;
        self.notice(&found, errors);
        let Ok(entry) = found else { return };
        let theirs = entry.as_ref().and_then(|entry| self.parse(entry, kept, errors));
        match (theirs, &kept.stored) {
            (Some(theirs), ours)
                if ours.as_ref().is_none_or(|ours| theirs.not_after > ours.not_after) =>
            {
                take(kept, theirs, errors);
            }
            (theirs, Some(ours))
                if theirs.as_ref().is_none_or(|theirs| theirs.not_after < ours.not_after) =>
            {
                let text = ours.text();
                let name = certificate_name(&kept.wanted.acme);
                let replace = self
                    .with(move |store| store.replace(&name, entry.as_ref(), text.as_bytes(), None));
                self.notice(&replace.await, errors);
            }
            _ => {}
        }
    }

    fn parse(&self, entry: &StoreEntry, kept: &Kept, errors: &ErrorLog) -> Option<Stored> {
        let text = std::str::from_utf8(&entry.value).ok();
        let stored = text.and_then(|text| state::parse(text, &kept.wanted.acme));
        if stored.is_none() {
            let names = kept.wanted.acme.names.join(", ");
            errors.warn(&format!(
                "ACME: {names}: the store {} has no usable certificate under their name; another \
                 will replace it",
                self.store.place()
            ));
        }
        stored
    }

    /// Takes the lock for an order (see [`SharedState::lock_name`]). Returns [`OrderTurn::Wait`]
    /// without the lock in these cases:
    ///
    /// - Another machine has the lock.
    /// - Another machine has just obtained the certificate.
    /// - An order has failed on any machine, and the pause after the failure has not ended.
    /// - The store is unreachable.
    pub async fn take_turn(&self, kept: &mut Kept, errors: &ErrorLog) -> OrderTurn {
        let name = self.lock_name(&kept.wanted.acme);
        let locked = self.with(move |store| store.lock(&name, LEASE)).await;
        self.notice(&locked, errors);
        match locked {
            Err(_) => return OrderTurn::Wait(SystemTime::now() + WAIT * 5),
            Ok(false) => return OrderTurn::Wait(SystemTime::now() + WAIT),
            Ok(true) => {}
        }
        self.refresh(kept, errors).await;
        if kept.due <= SystemTime::now()
            && let Some((failures, due)) = self.failures(&kept.wanted.acme).await
        {
            (kept.failures, kept.due) = (failures, due);
        }
        if kept.due <= SystemTime::now() {
            return OrderTurn::Order;
        }
        self.unlock(&kept.wanted.acme, errors).await;
        OrderTurn::Wait(kept.due)
    }

    /// Extends the lock again and again, without end.
    pub async fn hold(&self, lock: &str) {
        loop {
            tokio::time::sleep(EXTEND).await;
            let name = lock.to_owned();
            // If the store is unreachable for longer than the lease, another machine may take the
            // lock and order the same certificate. This costs only one more order.
            let _ = self.with(move |store| store.lock(&name, LEASE)).await;
        }
    }

    /// Saves the outcome of an order, and releases the lock.
    pub async fn end_turn(&self, kept: &mut Kept, errors: &ErrorLog) {
        self.refresh(kept, errors).await;
        let name = failures_name(&kept.wanted.acme);
        let (failures, due) = (kept.failures, kept.due);
        let saved = self.with(move |store| {
            if failures == 0 {
                return store.remove(&name);
            }
            let seconds = due.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let life = due.duration_since(SystemTime::now()).unwrap_or_default() + FAILURE_LIFE;
            store.put(&name, format!("{failures} {seconds}").as_bytes(), Some(life))
        });
        self.notice(&saved.await, errors);
        self.unlock(&kept.wanted.acme, errors).await;
    }

    async fn unlock(&self, acme: &Acme, errors: &ErrorLog) {
        let name = self.lock_name(acme);
        let unlocked = self.with(move |store| store.unlock(&name)).await;
        self.notice(&unlocked, errors);
    }

    /// Returns the saved number of orders that have failed in a row, on all machines together, and
    /// the time of the next attempt. Returns `None` if the store has no such number, or is
    /// unreachable.
    async fn failures(&self, acme: &Acme) -> Option<(u32, SystemTime)> {
        let name = failures_name(acme);
        let entry = self.with(move |store| store.get(&name)).await.ok()??;
        let text = String::from_utf8(entry.value).ok()?;
        let (failures, due) = text.split_once(' ')?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let due = due.parse::<u64>().ok()?.min(now + LONGEST_PAUSE);
        Some((failures.parse().ok()?, UNIX_EPOCH + Duration::from_secs(due)))
    }

    /// Returns the name of the lock for an order of this certificate. The other certificates of the
    /// authority have the same lock, unless `is_per_certificate` is true.
    pub fn lock_name(&self, acme: &Acme) -> String {
        let authority = state::authority_name(acme);
        if self.is_per_certificate {
            format!("acme/{authority}/{}", state::certificate_name(acme))
        } else {
            format!("acme/{authority}")
        }
    }
}

/// Serves another machine's certificate.
fn take(kept: &mut Kept, theirs: Stored, errors: &ErrorLog) {
    let acme = &kept.wanted.acme;
    let names = acme.names.join(", ");
    let shown = kept.wanted.certificate.replace(theirs.chain.as_bytes(), theirs.key.as_bytes());
    if let Err(error) = shown {
        errors.warn(&format!("ACME: {names}: cannot use the certificate in the store: {error}"));
        return;
    }
    if let Err(error) = state::save(acme, &theirs.text()) {
        errors.warn(&format!("ACME: {names}: {error}; a start without the store lacks it"));
    }
    errors.info(&format!("ACME: {names}: uses the certificate in the store"));
    let now = SystemTime::now();
    // If this machine already had a certificate, another machine has just renewed it.
    let rest = if kept.stored.is_none() { now } else { schedule::rest(&theirs, now) };
    kept.renewed(theirs, rest);
}

fn account_name(acme: &Acme) -> String {
    format!("acme/{}/account.json", state::authority_name(acme))
}

fn certificate_name(acme: &Acme) -> String {
    format!("acme/{}/{}.pem", state::authority_name(acme), state::certificate_name(acme))
}

fn failures_name(acme: &Acme) -> String {
    format!("acme/{}/{}.failures", state::authority_name(acme), state::certificate_name(acme))
}

fn token_name(token: &str) -> String {
    format!("challenge/http/{token}")
}

fn handshake_name(name: &str) -> String {
    format!("challenge/tls/{}", name.to_ascii_lowercase())
}

/// Creates challenges whose answers may come from other machines. A separate thread reads these
/// answers from the store.
///
/// # Errors
/// Returns an error if the system cannot create the thread.
pub fn shared_challenges(store: &Store) -> io::Result<Arc<Challenges>> {
    let (challenges, questions) = Challenges::shared();
    let store = store.clone();
    // The thread ends when the challenges are dropped.
    thread::Builder::new().name("challenges".to_owned()).spawn(move || {
        for question in questions {
            if let Some(answer) = find(&store, &question.of) {
                let _ = question.answer.send(answer);
            }
        }
    })?;
    Ok(Arc::new(challenges))
}

fn find(store: &Store, of: &Challenge) -> Option<ChallengeAnswer> {
    let name = match of {
        Challenge::Token(token) => token_name(token),
        Challenge::Name(name) => handshake_name(name),
    };
    let text = String::from_utf8(store.get(&name).ok()??.value).ok()?;
    match of {
        // Send the stored text only if it is a key authorization: the token, a dot and a digest
        // (RFC 8555 section 8.1). Any other text in the store is not for clients.
        Challenge::Token(token) => {
            let digest = text.strip_prefix(token.as_str())?.strip_prefix('.')?;
            let is_digest = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let is_whole = digest.len() == 43 && digest.chars().all(is_digest);
            is_whole.then_some(ChallengeAnswer::Reply(text))
        }
        Challenge::Name(_) => Some(ChallengeAnswer::Certificate(
            CertificateDer::from_pem_slice(text.as_bytes()).ok()?,
            PrivateKeyDer::from_pem_slice(text.as_bytes()).ok()?,
        )),
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::tls::Authority;

    use super::*;

    #[test]
    fn each_handshake_of_an_authority_gets_the_answer_of_the_latest_order() {
        let (challenges, questions) = Challenges::shared();
        let answering = thread::spawn(move || {
            let orders = questions.into_iter().map(|question| {
                let identity = Authority::new("x").issue(&["h.example"]);
                let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
                let answer = ChallengeAnswer::Certificate(certificate.unwrap(), key.unwrap());
                question.answer.send(answer).unwrap();
            });
            orders.count()
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..2 {
            let asked = challenges.ask_for_config("h.example".to_owned());
            assert!(runtime.block_on(asked).is_some());
        }
        drop(challenges);
        assert_eq!(answering.join().unwrap(), 2);
    }
}

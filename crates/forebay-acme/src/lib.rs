//! Obtains and renews certificates with ACME (RFC 8555). One thread ([`Manager`]) does this for all
//! sites that need a certificate ([`Wanted`]).
//!
//! - `on_demand` obtains certificates when clients first name a host;
//! - `ask` asks the application if a host name may have a certificate;
//! - `dns_records` creates and removes TXT records with a program of the user;
//! - `issue` requests a certificate from the authority: account, order, challenges, download;
//! - `state` reads and writes the directory of accounts, certificates and keys;
//! - `shared` reads and writes accounts and certificates in the store that several machines share,
//!   so that only one machine orders;
//! - `schedule` computes the time of a renewal and the pause after a failure. The authority may ask for
//!   another time of renewal (ARI, RFC 9773).
//!
//! This crate serves no requests. The authority sends its challenges to the server, which takes the
//! answers from `Challenges`.
#![forbid(unsafe_code)]

mod ask;
mod dns_records;
mod issue;
mod on_demand;
mod schedule;
mod shared;
mod state;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use forebay_conf::{Acme, AcmeChallenge};
use forebay_net::log::ErrorLog;
use forebay_net::tls::{Challenges, Renewal, SiteCertificate};
use forebay_store::Store;
use tokio::sync::watch;

use schedule::Window;
use shared::{OrderTurn, SharedState};

pub use dns_records::wait_for_removal;
pub use on_demand::{AskTls, Demanded};
pub use shared::shared_challenges;
pub use state::{Stored, load};

/// Site that needs a certificate.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Names in the certificate, and settings of the authority.
    pub acme: Acme,
    /// Certificate that the listeners present. The manager replaces it with each new certificate.
    pub certificate: Arc<SiteCertificate>,
}

/// Handle of the thread that obtains and renews certificates. Dropping the handle ends the thread.
#[derive(Debug)]
pub struct Manager {
    stop: watch::Sender<bool>,
}

/// Maximum time until the thread reads the clock again. The clock may jump: an administrator may
/// set it, and the machine may be suspended.
const LOOK: Duration = Duration::from_secs(3600);

/// Limits on the authority's pause until the next question when to renew (RFC 9773, section 4.3.2).
const SHORTEST_ASK: Duration = Duration::from_secs(60);
const LONGEST_ASK: Duration = Duration::from_secs(24 * 3600);

impl Manager {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the thread or its event loop.
    pub fn start(
        wanted: Vec<Wanted>,
        front: ManagerFront,
        errors: ErrorLog,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("acme".to_owned()).spawn(move || {
            let ManagerFront { challenges, has_plain, store } = front;
            let shared = store.map(SharedState::new);
            let shared = shared.as_ref();
            let front = ChallengeFront { challenges: &challenges, has_plain, shared };
            runtime.block_on(keep(wanted, front, &errors, stopped));
        })?;
        Ok(Self { stop })
    }
}

impl Manager {
    /// Asks the thread to end. If an order is under way, the thread first removes its DNS records.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // The thread is not joined, because the caller may be a thread that serves requests and
        // must not wait.
        self.stop();
    }
}

/// Certificate with the time of its next renewal.
struct Kept {
    wanted: Wanted,
    /// The certificate that is in use.
    stored: Option<Stored>,
    /// Time of the next order.
    due: SystemTime,
    failures: u32,
    /// Reason of the last failure, if `failures` is not 0.
    error: Option<String>,
    /// Time in which the authority wants the certificate to be renewed, if it said so.
    window: Option<Window>,
    /// Time of the next question for `window`.
    ask: SystemTime,
}

impl Kept {
    fn new(wanted: Wanted, stored: Option<Stored>, failures: u32) -> Self {
        let due = stored.as_ref().map_or(SystemTime::UNIX_EPOCH, schedule::renewal);
        let ask = SystemTime::UNIX_EPOCH;
        Self { wanted, stored, due, failures, error: None, window: None, ask }
    }

    /// Begins to use a new certificate. `rest` is the earliest time of the next order.
    fn renewed(&mut self, stored: Stored, rest: SystemTime) {
        self.due = schedule::renewal(&stored).max(rest);
        (self.failures, self.error, self.window, self.ask) = (0, None, None, rest);
        self.stored = Some(stored);
    }

    /// Returns the rest of the life of the certificate in use. `None` if it has ended.
    fn left(&self, now: SystemTime) -> Option<Duration> {
        let left = self.stored.as_ref()?.not_after.duration_since(now).ok()?;
        (!left.is_zero()).then_some(left)
    }

    /// Asks the authority when to renew, and plans the renewal for then. Without an answer, the renewal
    /// stays where it is.
    async fn ask_for_window(&mut self, shared: Option<&SharedState>, errors: &ErrorLog) {
        let Some(stored) = &self.stored else { return };
        let acme = &self.wanted.acme;
        let names = acme.names.join(", ");
        let now = SystemTime::now();
        match issue::renewal_window(acme, shared, stored).await {
            Ok(None) => self.ask = now + LONGEST_ASK,
            Ok(Some((window, pause))) => {
                self.ask = now + pause.clamp(SHORTEST_ASK, LONGEST_ASK);
                // A new random time for each answer would gather the renewals at the window's end.
                if self.window != Some(window) {
                    self.window = Some(window);
                    let due = schedule::in_window(window, stored);
                    if due <= now && self.due > now {
                        errors.info(&format!("ACME: {names}: the authority wants a renewal now"));
                    }
                    if self.failures == 0 {
                        self.due = due;
                    }
                }
            }
            Err(why) => {
                self.ask = now + LOOK;
                errors.info(&format!(
                    "ACME: {names}: the authority does not say when to renew: {why}"
                ));
            }
        }
    }

    /// Shows the administrator what is planned.
    fn report(&self) {
        let Self { due, failures, error, .. } = self;
        let error = error.clone();
        let renewal = Renewal { due: *due, failures: *failures, error };
        self.wanted.certificate.plan_renewal(renewal);
    }
}

/// The parts of the server that the manager uses.
#[derive(Clone)]
pub struct ManagerFront {
    /// Answers that the server gives to authorities.
    pub challenges: Arc<Challenges>,
    /// True if a listener without TLS exists. The challenge http-01 needs such a listener.
    pub has_plain: bool,
    /// The store that machines share.
    pub store: Option<Store>,
}

/// The parts of the server that an order uses.
#[derive(Clone, Copy)]
struct ChallengeFront<'a> {
    /// Answers that the server gives to authorities.
    challenges: &'a Challenges,
    /// True if a listener without TLS exists.
    has_plain: bool,
    /// Certificates, locks and failures of all machines.
    shared: Option<&'a SharedState>,
}

/// Receives true when the manager is to end.
type Stopped = watch::Receiver<bool>;

/// Obtains and renews certificates, one order at a time, until `stopped` is true. Returns
/// immediately if `wanted` is empty.
async fn keep(
    wanted: Vec<Wanted>,
    front: ChallengeFront<'_>,
    errors: &ErrorLog,
    mut stopped: Stopped,
) {
    let mut all: Vec<Kept> = wanted
        .into_iter()
        .map(|wanted| {
            let stored = load(&wanted.acme).filter(|_| !wanted.certificate.is_empty());
            Kept::new(wanted, stored, 0)
        })
        .collect();
    loop {
        if let Some(shared) = front.shared {
            for kept in &mut all {
                shared.refresh(kept, errors).await;
            }
        }
        all.iter().for_each(Kept::report);
        let asking = all.iter().filter(|kept| kept.stored.is_some()).map(|kept| kept.ask).min();
        let Some(next) = all.iter_mut().min_by_key(|kept| kept.due) else { return };
        let now = SystemTime::now();
        if next.due > now {
            if asking.is_some_and(|asking| asking <= now) {
                // One question at a time: an authority that does not answer must not delay orders.
                let asking = all.iter_mut().filter(|kept| kept.stored.is_some());
                if let Some(kept) = asking.min_by_key(|kept| kept.ask) {
                    tokio::select! {
                        _ = stopped.wait_for(|stop| *stop) => return,
                        () = kept.ask_for_window(front.shared, errors) => {}
                    }
                }
                continue;
            }
            let look = if front.shared.is_some() { shared::LOOK } else { LOOK };
            let until = asking.map_or(next.due, |asking| asking.min(next.due));
            let wait = until.duration_since(now).unwrap_or_default().min(look);
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(wait) => continue,
            }
        }
        match front.shared {
            None => renew(next, front, errors, &mut stopped).await,
            Some(shared) => match shared.take_turn(next, errors).await {
                OrderTurn::Wait(until) => next.due = until,
                OrderTurn::Order => order_as_owner(next, front, errors, &mut stopped).await,
            },
        }
        if *stopped.borrow() {
            return;
        }
    }
}

/// Obtains one certificate, and meanwhile extends the lock that [`SharedState::take_turn`] has
/// taken. Then saves the outcome in the store, and releases the lock.
async fn order_as_owner(
    kept: &mut Kept,
    front: ChallengeFront<'_>,
    errors: &ErrorLog,
    stopped: &mut Stopped,
) {
    let Some(shared) = front.shared else { return };
    let lock = shared.lock_name(&kept.wanted.acme);
    tokio::select! {
        () = renew(kept, front, errors, stopped) => {}
        // `hold` extends the lock and never returns, so only `renew` ends the wait.
        () = shared.hold(&lock) => {}
    }
    shared.end_turn(kept, errors).await;
}

/// Obtains one certificate and starts to serve it. After a failure, logs the reason and sets the
/// time of the next attempt.
async fn renew(
    kept: &mut Kept,
    front: ChallengeFront<'_>,
    errors: &ErrorLog,
    stopped: &mut Stopped,
) {
    let ChallengeFront { challenges, has_plain, shared } = front;
    let acme = &kept.wanted.acme;
    let names = acme.names.join(", ");
    let challenge = challenge(acme, has_plain, kept.failures);
    let by = (challenge, kept.stored.as_ref());
    let outcome = issue::issue(acme, by, (challenges, shared), (errors, stopped)).await;
    if outcome.is_err() && *stopped.borrow() {
        return;
    }
    let outcome = outcome.and_then(|issued| {
        kept.wanted
            .certificate
            .replace(issued.chain.as_bytes(), issued.key.as_bytes())
            .map_err(|error| format!("cannot use the certificate from the authority: {error}"))?;
        let text = issued.text();
        let stored = state::parse(&text, acme).ok_or_else(|| {
            "the authority's certificate has other names than the order".to_owned()
        })?;
        // Serve the certificate even if it cannot be saved. Another order would count toward the
        // authority's rate limit, and its certificate could not be saved either.
        if let Err(error) = state::save(acme, &text) {
            errors.warn(&format!(
                "ACME: {names}: {error}; the next start orders another certificate"
            ));
        }
        Ok(stored)
    });
    match outcome {
        Ok(stored) => {
            errors.info(&format!("ACME: {names}: a certificate was issued by {}", acme.directory));
            let rest = schedule::rest(&stored, SystemTime::now());
            kept.renewed(stored, rest);
        }
        Err(why) => {
            let now = SystemTime::now();
            let pause = schedule::pause(kept.failures, kept.left(now));
            kept.failures += 1;
            kept.due = now + pause;
            errors.error(&format!(
                "ACME: {names}: no certificate: {why}; next attempt in {} s. {}",
                pause.as_secs(),
                advice(challenge)
            ));
            kept.error = Some(why);
        }
    }
}

/// Returns the challenge for the next attempt. If no challenge is configured, attempts alternate
/// between http-01 and tls-alpn-01. Without a plaintext listener, every attempt uses tls-alpn-01.
fn challenge(acme: &Acme, has_plain: bool, failures: u32) -> AcmeChallenge {
    match acme.challenge {
        Some(challenge) => challenge,
        None if has_plain && failures.is_multiple_of(2) => AcmeChallenge::Http01,
        None => AcmeChallenge::TlsAlpn01,
    }
}

fn advice(challenge: AcmeChallenge) -> &'static str {
    match challenge {
        AcmeChallenge::Http01 => {
            "The authority must reach this server under each name on port 80 (http-01)"
        }
        AcmeChallenge::TlsAlpn01 => {
            "The authority must reach this server under each name on port 443 (tls-alpn-01)"
        }
        AcmeChallenge::Dns01 => {
            "The authority must find the record that `dns_hook` creates, at the latest after \
             `dns_wait` (dns-01)"
        }
    }
}

//! Certificates by ACME (RFC 8555): who needs one ([`Wanted`]), and the thread that has them issued and
//! renewed ([`Manager`]).
//!
//! - `issue` speaks to the authority: account, order, challenges, certificate;
//! - `state` is the directory that accounts, certificates and keys are kept in;
//! - `schedule` says when a certificate is to be renewed, and how long to wait after a failure.
//!
//! Nothing here serves: challenges are answered by the engine, which is told of them by `Challenges`.
#![forbid(unsafe_code)]

mod issue;
mod schedule;
mod state;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use forebay_conf::{Acme, AcmeChallenge};
use forebay_engine::{Challenges, ErrorLog, SiteCertificate};
use tokio::sync::watch;

pub use state::{Stored, load};

/// A site that wants a certificate.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// For which names, and from whom.
    pub acme: Acme,
    /// Where it is shown.
    pub certificate: Arc<SiteCertificate>,
}

/// The thread that has certificates issued and renewed; it ends when this is dropped.
#[derive(Debug)]
pub struct Manager {
    stop: watch::Sender<bool>,
}

/// The clock is looked at so often, as it may be set, and the machine may have slept.
const LOOK: Duration = Duration::from_secs(3600);

impl Manager {
    /// Starts the thread. `has_plain` says whether there is a listener without TLS, which http-01 needs.
    ///
    /// # Errors
    /// Where the system refuses a thread or an event loop.
    pub fn start(
        wanted: Vec<Wanted>,
        challenges: Arc<Challenges>,
        has_plain: bool,
        errors: ErrorLog,
    ) -> std::io::Result<Self> {
        let (stop, mut stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("acme".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => {}
                    () = keep(wanted, &challenges, has_plain, &errors) => {}
                }
            });
            challenges.clear();
        })?;
        Ok(Self { stop })
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // The thread is not waited for: this may be a thread that serves.
        self.stop.send_replace(true);
    }
}

/// A certificate that is looked after.
struct Kept {
    wanted: Wanted,
    /// When there is something to do.
    due: SystemTime,
    failures: u32,
}

/// Keeps certificates for ever, one order at a time.
async fn keep(wanted: Vec<Wanted>, challenges: &Challenges, has_plain: bool, errors: &ErrorLog) {
    let now = SystemTime::now();
    let mut all: Vec<Kept> = wanted
        .into_iter()
        .map(|wanted| {
            let stored = load(&wanted.acme).filter(|_| !wanted.certificate.is_empty());
            let due = stored.map_or(now, |stored| schedule::renewal(&stored));
            Kept { wanted, due, failures: 0 }
        })
        .collect();
    while let Some(next) = all.iter_mut().min_by_key(|kept| kept.due) {
        let now = SystemTime::now();
        if let Ok(wait) = next.due.duration_since(now)
            && !wait.is_zero()
        {
            tokio::time::sleep(wait.min(LOOK)).await;
            continue;
        }
        renew(next, challenges, has_plain, errors).await;
    }
}

/// Has one certificate issued, and shown at once.
async fn renew(kept: &mut Kept, challenges: &Challenges, has_plain: bool, errors: &ErrorLog) {
    let acme = &kept.wanted.acme;
    let names = acme.names.join(", ");
    let challenge = challenge(acme, has_plain, kept.failures);
    let outcome = issue::issue(acme, challenge, challenges).await;
    challenges.clear();
    let outcome = outcome.and_then(|issued| {
        kept.wanted
            .certificate
            .replace(issued.chain.as_bytes(), issued.key.as_bytes())
            .map_err(|error| format!("the authority's certificate cannot be used: {error}"))?;
        let text = issued.text();
        let stored = state::parse(&text, acme)
            .ok_or_else(|| "the authority's certificate is for other names".to_owned())?;
        // It is shown all the same: to order another one would only use up what the authority allows.
        if let Err(error) = state::save(acme, &text) {
            errors
                .log(&format!("ACME: {names}: {error}; the next start orders another certificate"));
        }
        Ok(stored)
    });
    match outcome {
        Ok(stored) => {
            errors.log(&format!("ACME: {names}: a certificate was issued by {}", acme.directory));
            kept.failures = 0;
            // Where clocks differ, or the authority grants little, the new one may be due at once.
            kept.due = schedule::renewal(&stored).max(SystemTime::now() + LOOK);
        }
        Err(why) => {
            let pause = schedule::pause(kept.failures);
            kept.failures += 1;
            kept.due = SystemTime::now() + pause;
            errors.log(&format!(
                "ACME: {names}: no certificate: {why}; tried again in {} s. {}",
                pause.as_secs(),
                advice(challenge)
            ));
        }
    }
}

/// By what the names are proved to be ours: where nothing is said, the next attempt is made by the
/// other way.
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
            "The authority has to reach this server by each name on port 80 (http-01)"
        }
        AcmeChallenge::TlsAlpn01 => {
            "The authority has to reach this server by each name on port 443 (tls-alpn-01)"
        }
    }
}

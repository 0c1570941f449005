//! Obtains certificates when clients first name a host.
//!
//! A name without a saved certificate needs the application's permission. Forebay then takes the
//! certificate from the store that machines share, or orders one. The rate and the number of
//! concurrent orders are limited, so that a flood of names exhausts neither the authority nor this
//! machine.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use forebay_conf::{Acme, OnDemand};
use forebay_net::log::ErrorLog;
use forebay_net::tls::{ClientTls, DemandCertificates, RecentNames, SiteCertificate};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use crate::ask::ask;
use crate::shared::{OrderTurn, SharedState};
use crate::{ChallengeFront, Kept, Manager, ManagerFront, Stopped, Wanted};
use crate::{load, order_as_owner, renew, state};

/// Maximum number of simultaneous questions to the application.
const QUESTIONS: usize = 16;
/// Maximum number of names that wait for their question. Further names fail immediately, so that
/// names with saved certificates are still accepted.
const MOST_WAITING: usize = 512;
/// Validity of a permission from the application.
const PERMITTED: Duration = Duration::from_secs(600);
/// Validity of a refusal from the application.
const REFUSED: Duration = Duration::from_secs(60);
/// Time until the application is asked again after it gave no answer.
const UNANSWERED: Duration = Duration::from_secs(10);
/// Maximum number of names with failed orders that are remembered.
const MOST_FAILURES: usize = 10_000;
/// Maximum number of checks of the store while another machine orders the same certificate.
const LOOKS: usize = 30;
/// Minimum interval between log messages about names without a certificate.
const PERIOD: Duration = Duration::from_secs(10);

/// Settings and certificates of one or more sites that obtain certificates on demand.
#[derive(Clone, Debug)]
pub struct Demanded {
    pub settings: OnDemand,
    /// Certificates that the listeners present.
    pub certificates: Arc<DemandCertificates>,
    /// TLS of an https:// `ask`. A reload replaces the value.
    pub tls: AskTls,
}

/// TLS settings for requests to the application's `ask` URL.
#[derive(Clone, Debug, Default)]
pub struct AskTls(Arc<StdMutex<Option<Arc<ClientTls>>>>);

impl AskTls {
    /// Replaces the TLS settings of later requests.
    pub fn replace(&self, tls: Option<Arc<ClientTls>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = tls;
    }

    /// Returns the TLS settings of the next request; `None` if the URL does not begin with
    /// https://.
    pub fn now(&self) -> Option<Arc<ClientTls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Manager {
    /// Starts the thread that obtains certificates on demand.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the thread or its event loop.
    pub fn start_on_demand(
        demanded: Vec<Demanded>,
        front: ManagerFront,
        errors: ErrorLog,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let received = demanded.into_iter().map(|demanded| {
            let (sender, receiver) = mpsc::unbounded_channel();
            demanded.certificates.connect(sender);
            (demanded, receiver)
        });
        let received: Vec<_> = received.collect();
        thread::Builder::new().name("acme-demand".to_owned()).spawn(move || {
            let front = Rc::new(front);
            let local = LocalSet::new();
            for (demanded, receiver) in received {
                let issuer = Issuer::new(demanded, front.clone(), errors.clone());
                local.spawn_local(Rc::new(issuer).serve(receiver, stopped.clone()));
            }
            runtime.block_on(local);
        })?;
        Ok(Self { stop })
    }
}

/// Obtains certificates on demand, with the ACME settings of one or more sites.
struct Issuer {
    settings: OnDemand,
    tls: AskTls,
    certificates: Arc<DemandCertificates>,
    front: Rc<ManagerFront>,
    shared: Option<SharedState>,
    errors: ErrorLog,
    questions: Semaphore,
    waiting: Semaphore,
    orders: Semaphore,
    rate: RefCell<OrderRate>,
    permitted: RefCell<RecentNames>,
    failures: RefCell<HashMap<String, u32>>,
    /// Held by the first order, which creates the account.
    founding: Mutex<()>,
    has_account: Cell<bool>,
    notes: RefCell<Notes>,
}

/// Number of failures since the last log message, and the time of that message.
#[derive(Default)]
struct Notes {
    count: usize,
    logged: Option<Instant>,
}

/// The application's answer about a name.
enum Permission {
    Granted,
    Refused,
    Unknown(String),
}

impl Issuer {
    fn new(demanded: Demanded, front: Rc<ManagerFront>, errors: ErrorLog) -> Self {
        let Demanded { settings, certificates, tls } = demanded;
        let shared = front.store.clone().map(SharedState::for_each_certificate);
        Self {
            shared,
            certificates,
            tls,
            front,
            errors,
            questions: Semaphore::new(QUESTIONS),
            waiting: Semaphore::new(MOST_WAITING),
            orders: Semaphore::new(settings.concurrent),
            rate: RefCell::new(OrderRate::new(&settings)),
            permitted: RefCell::default(),
            failures: RefCell::default(),
            founding: Mutex::new(()),
            has_account: Cell::new(state::account(&settings.acme).is_some()),
            notes: RefCell::default(),
            settings,
        }
    }

    /// Obtains certificates until `stopped` is true, or until another manager takes over. Then
    /// waits until the current orders have ended and removed their DNS records.
    async fn serve(
        self: Rc<Self>,
        mut names: mpsc::UnboundedReceiver<String>,
        mut stopped: Stopped,
    ) {
        let mut tasks = JoinSet::new();
        let of_tasks = stopped.clone();
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => break,
                Some(_) = tasks.join_next() => {}
                name = names.recv() => {
                    // Stop, because another manager has taken over.
                    let Some(name) = name else { break };
                    // The number of tasks is limited by the number of names that may wait.
                    tasks.spawn_local(self.clone().obtain(name, of_tasks.clone()));
                }
            }
        }
        names.close();
        while tasks.join_next().await.is_some() {}
    }

    /// Obtains or renews the certificate of a name.
    async fn obtain(self: Rc<Self>, name: String, mut stopped: Stopped) {
        let _finish = Finish { certificates: &self.certificates, name: &name };
        let mut kept = self.kept(&name);
        if self.show(&kept) && kept.due > SystemTime::now() {
            return;
        }
        let permits = {
            let mut stopping = stopped.clone();
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => return,
                permits = self.admit(&mut kept) => permits,
            }
        };
        match permits {
            Ok(Admitted::Ordered) => {}
            Ok(Admitted::Order(_permit)) => self.order(&mut kept, &mut stopped).await,
            Err((why, pause)) => {
                self.certificates.refuse(&name, pause);
                return self.note(&name, &why);
            }
        }
        if *stopped.borrow() {
            return;
        }
        self.remember_failures(&name, kept.failures);
        if !self.show(&kept) {
            let pause = kept.due.duration_since(SystemTime::now()).unwrap_or(REFUSED);
            self.certificates.refuse(&name, pause);
        }
    }

    /// Waits until the certificate may be ordered. Returns [`Admitted::Ordered`] if another machine
    /// has already ordered the certificate.
    ///
    /// # Errors
    /// Fails if the application refuses the name or does not answer, or if the limit on the rate of
    /// orders is reached. The error has the reason, and the time until the next attempt.
    async fn admit(&self, kept: &mut Kept) -> Result<Admitted<'_>, (String, Duration)> {
        let name = kept.wanted.acme.names[0].clone();
        match self.permission(&name).await {
            Permission::Granted => {}
            Permission::Refused => return Err(("`ask` refuses it".to_owned(), REFUSED)),
            Permission::Unknown(why) => {
                let host = self.settings.ask.as_ref().map_or("", |ask| &ask.host);
                let why = format!("`ask` ({host}) fails: {why}");
                return Err((why, UNANSWERED));
            }
        }
        if let Some(shared) = &self.shared {
            shared.refresh(kept, &self.errors).await;
            if kept.due > SystemTime::now() {
                return Ok(Admitted::Ordered);
            }
        }
        if let Err(pause) = self.rate.borrow_mut().take() {
            let why = "the `rate` of orders is reached".to_owned();
            return Err((why, pause.clamp(Duration::from_secs(1), REFUSED)));
        }
        // `acquire` does not fail, because the semaphore is never closed.
        let permit = self.orders.acquire().await;
        permit.map(Admitted::Order).map_err(|_| ("the server stops".to_owned(), UNANSWERED))
    }

    /// Asks the application if the name may have a certificate. A permission is remembered for
    /// [`PERMITTED`]. The result is unknown if too many names wait, or if the application fails.
    /// Without an application, the name is permitted, because it is in the list of a site
    /// (`SiteDemand`).
    async fn permission(&self, name: &str) -> Permission {
        let Some(url) = &self.settings.ask else { return Permission::Granted };
        if self.permitted.borrow().contains(name) {
            return Permission::Granted;
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            return Permission::Unknown(format!("{MOST_WAITING} other names wait"));
        };
        let Ok(_permit) = self.questions.acquire().await else { return Permission::Refused };
        match ask(url, self.tls.now().as_deref(), name).await {
            Ok(true) => {
                self.permitted.borrow_mut().insert(name, PERMITTED);
                Permission::Granted
            }
            Ok(false) => Permission::Refused,
            Err(why) => Permission::Unknown(why),
        }
    }

    /// Orders the certificate. If another machine orders the same certificate, waits for the end of
    /// that order. Gives up after [`LOOKS`] checks of the store.
    async fn order(&self, kept: &mut Kept, stopped: &mut Stopped) {
        // Let only one order create the account: simultaneous first orders would create several
        // accounts.
        let founding = if self.has_account.get() { None } else { Some(self.founding.lock().await) };
        let ManagerFront { challenges, has_plain, .. } = &*self.front;
        let shared = self.shared.as_ref();
        let front = ChallengeFront { challenges, has_plain: *has_plain, shared };
        let Some(shared) = shared else {
            renew(kept, front, &self.errors, stopped).await;
            return self.look_for_account(kept.stored.is_some());
        };
        for _ in 0..LOOKS {
            match shared.take_turn(kept, &self.errors).await {
                OrderTurn::Order => {
                    order_as_owner(kept, front, &self.errors, stopped).await;
                    break;
                }
                // Another machine has obtained the certificate, or its order has failed. In both
                // cases, `due` is in the future, and this machine does not order now.
                OrderTurn::Wait(_) if kept.due > SystemTime::now() => break,
                OrderTurn::Wait(until) => {
                    let wait = until.duration_since(SystemTime::now()).unwrap_or_default();
                    tokio::select! {
                        _ = stopped.wait_for(|stop| *stop) => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
        self.look_for_account(kept.stored.is_some());
        drop(founding);
    }

    /// Sets `has_account` if the account exists, so that later orders do not wait for each other.
    /// `is_issued` is true if an order succeeded, which needs an account. A failed order may also
    /// have created the account, so the function looks for a saved account.
    fn look_for_account(&self, is_issued: bool) {
        let exists = is_issued || state::account(&self.settings.acme).is_some();
        self.has_account.set(self.has_account.get() || exists);
    }

    /// Returns the state of a name, with the saved certificate if there is one.
    fn kept(&self, name: &str) -> Kept {
        let acme = Acme { names: vec![name.to_owned()], ..self.settings.acme.clone() };
        let certificate = Arc::<SiteCertificate>::default();
        let stored = load(&acme).filter(|stored| {
            certificate.replace(stored.chain.as_bytes(), stored.key.as_bytes()).is_ok()
        });
        let failures = self.failures.borrow().get(name).copied().unwrap_or_default();
        Kept::new(Wanted { acme, certificate }, stored, failures)
    }

    /// Makes the listeners present the certificate. Returns false if there is no certificate, or if
    /// the certificate has expired.
    fn show(&self, kept: &Kept) -> bool {
        let Some(stored) = &kept.stored else { return false };
        if stored.not_after <= SystemTime::now() {
            return false;
        }
        let name = &kept.wanted.acme.names[0];
        let times = (stored.not_after, kept.due);
        self.certificates.show(name, &kept.wanted.certificate, times);
        true
    }

    fn remember_failures(&self, name: &str, count: u32) {
        let mut failures = self.failures.borrow_mut();
        if count == 0 {
            failures.remove(name);
            return;
        }
        if failures.len() >= MOST_FAILURES {
            failures.clear();
        }
        failures.insert(name.to_owned(), count);
    }

    /// Logs that a name has no certificate, at most once in [`PERIOD`].
    fn note(&self, name: &str, why: &str) {
        let mut notes = self.notes.borrow_mut();
        notes.count += 1;
        if notes.logged.is_some_and(|logged| logged.elapsed() < PERIOD) {
            return;
        }
        let count = match std::mem::take(&mut notes.count) {
            1 => String::new(),
            count => format!(" ({count} names since the last such line)"),
        };
        notes.logged = Some(Instant::now());
        self.errors.warn(&format!("ACME: {name}: no certificate on demand: {why}{count}"));
    }
}

/// Result of [`Issuer::admit`].
enum Admitted<'a> {
    /// Another machine has already ordered the certificate.
    Ordered,
    /// The certificate must be ordered, while this permit is kept.
    Order(tokio::sync::SemaphorePermit<'a>),
}

/// When dropped, ends the wait of the handshakes that need the certificate of `name`.
struct Finish<'a> {
    certificates: &'a DemandCertificates,
    name: &'a str,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.certificates.finish(self.name);
    }
}

/// Limits the rate of orders (GCRA).
struct OrderRate {
    /// Time between two orders at the configured rate.
    interval: Duration,
    /// Maximum time that an order may be early, compared with that rate (`burst`).
    ahead: Duration,
    /// Time at which the next order is due at that rate.
    next: Instant,
}

impl OrderRate {
    fn new(settings: &OnDemand) -> Self {
        let interval = settings.rate.period / settings.rate.requests.max(1);
        let ahead = interval.saturating_mul(settings.burst);
        Self { interval, ahead, next: Instant::now() }
    }

    /// Counts an order if the rate allows one now. Otherwise, the error is the time until the rate
    /// allows an order.
    fn take(&mut self) -> Result<(), Duration> {
        let now = Instant::now();
        let next = self.next.max(now);
        match (next - now).checked_sub(self.ahead) {
            Some(wait) if !wait.is_zero() => Err(wait),
            _ => {
                self.next = next + self.interval;
                Ok(())
            }
        }
    }
}

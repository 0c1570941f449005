//! Certificates that are obtained when a client first names a host.
//!
//! Serving threads look certificates up here. If a certificate is missing, the serving thread sends
//! the name to the ACME thread, and the handshake waits. Every collection is bounded, because
//! clients choose the names.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forebay_conf::HostPattern;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::tls::certificate::SiteCertificate;

/// Maximum number of names that the ACME thread has not finished.
const MOST_NAMES: usize = 1024;
/// Maximum number of handshakes that wait.
const MOST_HANDSHAKES: usize = 4096;
/// Maximum number of refused names that are remembered.
const MOST_REFUSED: usize = 10_000;
/// Pause before a due certificate is ordered again, if the order has failed.
const RENEWAL_PAUSE: Duration = Duration::from_secs(3600);

/// Certificates by name, shared by all threads.
pub struct DemandCertificates {
    /// Maximum number of certificates in memory.
    most: usize,
    /// Maximum wait of a handshake.
    wait: Duration,
    /// Number of waiting handshakes.
    handshakes: AtomicUsize,
    state: Mutex<DemandState>,
}

#[derive(Default)]
struct DemandState {
    shown: HashMap<Arc<str>, ShownCertificate>,
    /// Names by the time of their last use, the oldest first.
    used: BTreeMap<u64, Arc<str>>,
    /// Number of uses.
    clock: u64,
    refused: RecentNames,
    /// Names that the ACME thread has not finished. The value wakes the waiting handshakes.
    pending: HashMap<String, watch::Sender<()>>,
    /// Receives names whose certificates are missing or due. `None` until the thread has started.
    orders: Option<UnboundedSender<String>>,
}

/// A certificate in memory.
struct ShownCertificate {
    certified: Arc<CertifiedKey>,
    /// End of the certificate's validity.
    until: SystemTime,
    /// Due time of the renewal. The first use after this time orders the renewal.
    renew: SystemTime,
    /// The key in `used`.
    used: u64,
}

/// The result of waiting for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The certificate exists.
    Shown,
    /// No certificate may be obtained for the name now.
    Refused,
    /// The certificate did not come in time, or too many handshakes wait.
    Late,
}

/// Names that are remembered for a time. If there are too many, the oldest ones are forgotten.
#[derive(Default)]
pub struct RecentNames {
    until: HashMap<Arc<str>, Instant>,
    order: VecDeque<(Arc<str>, Instant)>,
}

impl RecentNames {
    /// Remembers a name for `time`.
    pub fn insert(&mut self, name: &str, time: Duration) {
        let (name, until) = (Arc::<str>::from(name), Instant::now() + time);
        self.until.insert(name.clone(), until);
        self.order.push_back((name, until));
        while self.order.len() > MOST_REFUSED
            && let Some((name, until)) = self.order.pop_front()
        {
            // Remove the name only if it was not inserted again.
            if self.until.get(&name) == Some(&until) {
                self.until.remove(&name);
            }
        }
    }

    /// Returns true if the name is remembered.
    pub fn contains(&self, name: &str) -> bool {
        self.until.get(name).is_some_and(|until| Instant::now() < *until)
    }
}

impl DemandCertificates {
    /// Creates an empty collection of at most `most` certificates. Handshakes wait for at most
    /// `wait`.
    pub fn new(most: usize, wait: Duration) -> Self {
        Self { most, wait, handshakes: AtomicUsize::new(0), state: Mutex::default() }
    }

    /// Sends names without a certificate to `orders` from now on. Forgets the names that were sent
    /// to the previous receiver and are not finished.
    pub fn connect(&self, orders: UnboundedSender<String>) {
        let mut state = self.state();
        state.pending.clear();
        state.orders = Some(orders);
    }

    /// Returns the certificate of a name, if it is in memory. If its renewal is due, orders the
    /// renewal.
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let mut state = self.state();
        let now = SystemTime::now();
        let (certified, is_due) = state.use_certificate(name, now)?;
        if is_due && state.order(name).is_some() {
            // Postpone the renewal, so that a failed order is not repeated at once.
            if let Some(shown) = state.shown.get_mut(name) {
                shown.renew = now + RENEWAL_PAUSE;
            }
        }
        Some(certified)
    }

    /// Orders the certificate of a name if needed. Waits until the certificate exists, the name is
    /// refused, or the time is over.
    async fn wait_for(&self, name: &str) -> Awaited {
        let mut changed = {
            let mut state = self.state();
            if state.has(name) {
                return Awaited::Shown;
            }
            if state.refused.contains(name) {
                return Awaited::Refused;
            }
            let Some(changed) = state.order(name) else { return Awaited::Late };
            changed
        };
        let Some(_place) = WaitingHandshake::new(&self.handshakes) else { return Awaited::Late };
        let shown = async {
            while changed.changed().await.is_ok() {
                if self.state().has(name) {
                    return;
                }
            }
        };
        let is_late = tokio::time::timeout(self.wait, shown).await.is_err();
        let state = self.state();
        if state.has(name) {
            Awaited::Shown
        } else if !is_late && state.refused.contains(name) {
            Awaited::Refused
        } else {
            Awaited::Late
        }
    }

    /// Stores a certificate, and wakes the handshakes that wait for it. The certificate is valid
    /// until `until`, and is renewed from `renew` on. If there are too many certificates, removes
    /// the least recently used one.
    pub fn show(
        &self,
        name: &str,
        certificate: &SiteCertificate,
        (until, renew): (SystemTime, SystemTime),
    ) {
        let Some(certified) = certificate.shown() else { return };
        let mut state = self.state();
        state.remove(name);
        state.clock += 1;
        let (name, used) = (Arc::<str>::from(name), state.clock);
        state.used.insert(used, name.clone());
        let shown = ShownCertificate { certified, until, renew, used };
        state.shown.insert(name.clone(), shown);
        while state.shown.len() > self.most {
            let Some((_, oldest)) = state.used.pop_first() else { break };
            state.shown.remove(&oldest);
        }
        if let Some(waiting) = state.pending.get(&*name) {
            waiting.send_replace(());
        }
    }

    /// Refuses certificates for `name` during `time`.
    pub fn refuse(&self, name: &str, time: Duration) {
        self.state().refused.insert(name, time);
    }

    /// Ends the wait of handshakes for a name.
    pub fn finish(&self, name: &str) {
        // The drop of the sender wakes the handshakes.
        self.state().pending.remove(name);
    }

    fn state(&self) -> MutexGuard<'_, DemandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DemandCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DemandCertificates").field("most", &self.most).finish_non_exhaustive()
    }
}

impl DemandState {
    /// Returns true if a valid certificate exists.
    fn has(&self, name: &str) -> bool {
        self.shown.get(name).is_some_and(|shown| SystemTime::now() < shown.until)
    }

    /// Returns a valid certificate, and true if its renewal is due. Removes an expired certificate.
    /// Returns `None` if there is no valid certificate.
    fn use_certificate(
        &mut self,
        name: &str,
        now: SystemTime,
    ) -> Option<(Arc<CertifiedKey>, bool)> {
        if self.shown.get(name).is_none_or(|shown| now >= shown.until) {
            self.remove(name);
            return None;
        }
        let shown = self.shown.get_mut(name)?;
        self.clock += 1;
        if let Some(name) = self.used.remove(&shown.used) {
            self.used.insert(self.clock, name);
        }
        shown.used = self.clock;
        Some((shown.certified.clone(), now >= shown.renew))
    }

    fn remove(&mut self, name: &str) {
        if let Some(shown) = self.shown.remove(name) {
            self.used.remove(&shown.used);
        }
    }

    /// Sends a name to the ACME thread, unless this name is already pending. Returns a receiver
    /// that is notified when the order for the name ends. Returns `None` if too many names are
    /// pending, or if the ACME thread does not run.
    fn order(&mut self, name: &str) -> Option<watch::Receiver<()>> {
        if let Some(pending) = self.pending.get(name) {
            return Some(pending.subscribe());
        }
        if self.pending.len() >= MOST_NAMES {
            return None;
        }
        self.orders.as_ref()?.send(name.to_owned()).ok()?;
        let (sender, receiver) = watch::channel(());
        self.pending.insert(name.to_owned(), sender);
        Some(receiver)
    }
}

/// Counts one waiting handshake until it is dropped.
struct WaitingHandshake<'a>(&'a AtomicUsize);

impl<'a> WaitingHandshake<'a> {
    /// Counts a waiting handshake, or returns `None` if too many handshakes wait.
    fn new(count: &'a AtomicUsize) -> Option<Self> {
        let this = Self(count);
        (count.fetch_add(1, Ordering::Relaxed) < MOST_HANDSHAKES).then_some(this)
    }
}

impl Drop for WaitingHandshake<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The certificates that one site obtains on demand, for the names of the site.
#[derive(Clone, Debug)]
pub struct SiteDemand {
    /// The certificates, which several sites may share.
    pub certificates: Arc<DemandCertificates>,
    /// The names of the site.
    pub names: Vec<HostPattern>,
}

impl SiteDemand {
    /// Waits until a certificate for the client's server name exists.
    pub async fn wait_for(&self, server_name: Option<&str>) -> Awaited {
        match self.name(server_name) {
            Some(name) => self.certificates.wait_for(&name).await,
            None => Awaited::Refused,
        }
    }

    /// Returns true if the certificate for this server name exists.
    pub fn is_ready(&self, server_name: &str) -> bool {
        self.name(Some(server_name)).is_some_and(|name| self.certificates.state().has(&name))
    }

    /// Returns true if both sites show the same certificate for every name.
    pub fn is_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.certificates, &other.certificates) && self.names == other.names
    }

    /// Returns the server name in lower case, if the site may have a certificate for it. Compares
    /// the name with the site's names, because the first site of a listener also gets handshakes
    /// for unknown names.
    fn name(&self, server_name: Option<&str>) -> Option<String> {
        let name = server_name?.to_ascii_lowercase();
        let is_own = self.names.is_empty() || self.names.iter().any(|own| own.matches(&name));
        (is_own && is_host_name(&name)).then_some(name)
    }
}

impl ResolvesServerCert for SiteDemand {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificates.certificate(&self.name(hello.server_name())?)
    }
}

/// Returns true for a name that an authority may issue a certificate for. Returns false for
/// addresses, wildcards and names with a final dot.
fn is_host_name(name: &str) -> bool {
    const LONGEST: usize = 253;
    const LONGEST_LABEL: usize = 63;
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Refuse a name whose last label is a number, because programs read it as an IPv4 address.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= LONGEST && name.split('.').all(is_label) && !is_number(last)
}

#[cfg(test)]
mod tests {
    use forebay_testkit::tls::Authority;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn certificates(most: usize) -> (Arc<DemandCertificates>, UnboundedReceiver<String>) {
        waiting(most, HOUR)
    }

    fn waiting(
        most: usize,
        wait: Duration,
    ) -> (Arc<DemandCertificates>, UnboundedReceiver<String>) {
        let certificates = Arc::new(DemandCertificates::new(most, wait));
        let (sender, receiver) = unbounded_channel();
        certificates.connect(sender);
        (certificates, receiver)
    }

    /// Returns a certificate with any name, which does not matter here.
    fn any_certificate() -> SiteCertificate {
        let (certificate, identity) =
            (SiteCertificate::default(), Authority::new("x").issue(&["x"]));
        certificate.replace(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap();
        certificate
    }

    fn show(certificates: &DemandCertificates, name: &str, renew: SystemTime) {
        certificates.show(name, &any_certificate(), (SystemTime::now() + HOUR, renew));
    }

    #[test]
    fn names_that_no_authority_issues_for_are_refused() {
        let label = "a".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "b".repeat(61));
        for name in ["a.example", "xn--bcher-kva.example", "1.a", "a-b.c", &longest] {
            assert!(is_host_name(name), "{name}");
        }
        let hostile = [
            "",
            ".",
            "a..b",
            "a.example.",
            ".a",
            "*.example",
            "1.2.3.4",
            "1",
            "a_b.c",
            "-a.b",
            "a-.b",
            "a b.c",
            "a/b.c",
            "::1",
            "[::1]",
            "a\n.b",
            "ä.example",
            &format!("{longest}b"),
            &format!("{label}a.example"),
        ];
        for name in hostile {
            assert!(!is_host_name(name), "{name:?}");
        }
    }

    #[tokio::test]
    async fn only_names_of_the_site_are_ordered() {
        let (certificates, mut orders) = waiting(10, Duration::from_millis(1));
        let names = vec![HostPattern::Suffix(".customers.example".into())];
        let site = SiteDemand { certificates, names };
        let other =
            ["other.example", "customers.example", "x.customers.example.", "*.customers.example"];
        for name in other {
            assert_eq!(site.wait_for(Some(name)).await, Awaited::Refused);
        }
        assert_eq!(site.wait_for(None).await, Awaited::Refused);
        assert!(orders.try_recv().is_err());
        assert_eq!(site.wait_for(Some("A.Customers.example")).await, Awaited::Late);
        assert_eq!(orders.try_recv().unwrap(), "a.customers.example");
    }

    #[tokio::test]
    async fn handshakes_for_one_name_wait_for_one_order() {
        let (certificates, mut orders) = certificates(10);
        let ordering = async {
            let name = orders.recv().await.unwrap();
            show(&certificates, &name, SystemTime::now() + HOUR);
            tokio::task::yield_now().await;
            certificates.finish(&name);
            assert!(orders.try_recv().is_err());
        };
        let wait = || certificates.wait_for("a.example");
        let (one, two, ()) = tokio::join!(wait(), wait(), ordering);
        assert_eq!((one, two), (Awaited::Shown, Awaited::Shown));
        assert_eq!(certificates.handshakes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_name_without_an_answer_is_late_and_a_refused_one_is_not_ordered_again() {
        let (certificates, mut orders) = waiting(10, Duration::from_millis(1));
        assert_eq!(certificates.wait_for("a.example").await, Awaited::Late);
        assert_eq!(orders.try_recv().unwrap(), "a.example");
        certificates.refuse("a.example", HOUR);
        certificates.finish("a.example");
        assert_eq!(certificates.wait_for("a.example").await, Awaited::Refused);
        assert!(orders.try_recv().is_err());
        // A receiver that has ended has the same effect as too many names.
        drop(orders);
        assert_eq!(certificates.wait_for("b.example").await, Awaited::Late);
    }

    #[test]
    fn a_flood_of_names_is_bounded() {
        let (certificates, mut orders) = certificates(10);
        for number in 0..100_000 {
            certificates.state().order(&format!("{number}.example"));
        }
        assert_eq!(certificates.state().pending.len(), MOST_NAMES);
        let mut count = 0;
        while orders.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, MOST_NAMES);
        for number in 0..2 * MOST_REFUSED {
            certificates.refuse(&format!("{number}.example"), HOUR);
        }
        let state = certificates.state();
        assert_eq!(
            (state.refused.until.len(), state.refused.order.len()),
            (MOST_REFUSED, MOST_REFUSED)
        );
        assert!(!state.refused.contains("0.example"));
    }

    #[test]
    fn the_least_recently_used_certificate_leaves_memory() {
        let (certificates, _orders) = certificates(2);
        let later = SystemTime::now() + HOUR;
        show(&certificates, "a.example", later);
        show(&certificates, "b.example", later);
        assert!(certificates.certificate("a.example").is_some());
        show(&certificates, "c.example", later);
        let has =
            ["a.example", "b.example", "c.example"].map(|name| certificates.state().has(name));
        assert_eq!(has, [true, false, true]);
        show(&certificates, "c.example", later);
        let state = certificates.state();
        assert_eq!((state.shown.len(), state.used.len()), (2, 2));
    }

    #[test]
    fn a_due_certificate_is_shown_and_renewed_once() {
        let (certificates, mut orders) = certificates(2);
        show(&certificates, "a.example", SystemTime::now());
        for _ in 0..10 {
            assert!(certificates.certificate("a.example").is_some());
        }
        assert_eq!(orders.try_recv().unwrap(), "a.example");
        assert!(orders.try_recv().is_err());
        certificates.finish("a.example");
        assert!(certificates.certificate("a.example").is_some());
        assert!(orders.try_recv().is_err(), "it failed a moment ago");
    }

    #[test]
    fn an_expired_certificate_is_not_shown() {
        let (certificates, _orders) = certificates(2);
        let past = SystemTime::now() - HOUR;
        certificates.show("a.example", &any_certificate(), (past, past));
        assert!(certificates.certificate("a.example").is_none());
        assert!(certificates.state().used.is_empty());
    }
}

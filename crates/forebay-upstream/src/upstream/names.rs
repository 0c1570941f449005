//! Resolves the names of backends, in a separate thread. Resolves a name again when the time to
//! live of its addresses ends.
//!
//! Requests use the addresses that were found last and never wait for DNS. If a name has no
//! addresses, only its backend is unavailable. A failed lookup keeps the last addresses for at most
//! [`STALE`], but a name that no longer exists loses them at once.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use forebay_conf::Address;
use forebay_net::log::ErrorLog;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Minimum and maximum time between two lookups of a name. The time to live of the addresses is
/// limited to this range.
const SOONEST: Duration = Duration::from_secs(1);
const LATEST: Duration = Duration::from_secs(3600);

/// Minimum and maximum time between two lookups after a failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Validity of addresses from the system's own lookup, which has no time to live.
const SYSTEM_VALIDITY: Duration = Duration::from_secs(30);

/// Time for which addresses stay in use if lookups fail.
const STALE: Duration = Duration::from_secs(3600);

/// Time to wait for the first answers at the start and at a reload.
const FIRST_ANSWERS: Duration = Duration::from_secs(3);

/// Maximum number of addresses of a name, so that a DNS reply cannot make a request try more
/// addresses.
const MOST: usize = 64;

/// Address of a backend.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A name, whose addresses may change.
    Name(Arc<Name>),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A backend's name and its current addresses. All threads share it.
#[derive(Debug)]
pub struct Name {
    host: String,
    port: u16,
    found: Mutex<ResolvedAddresses>,
    /// Signals the first result.
    first: Condvar,
    /// Number of changes of the addresses.
    generation: AtomicU64,
    /// Number of new connections so far. Each starts at the next address.
    turn: AtomicUsize,
}

#[derive(Debug, Default)]
struct ResolvedAddresses {
    addresses: Arc<[SocketAddr]>,
    /// Addresses that refused or failed a connection, with the time of the failure.
    failed: Vec<(SocketAddr, Instant)>,
    /// Reason why there is no address.
    reason: Option<String>,
    /// True after the first lookup.
    is_known: bool,
}

/// For this time after a failed connection to an address, other addresses are tried first.
const AVOIDED: Duration = Duration::from_secs(10);

impl Name {
    fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            found: Mutex::default(),
            first: Condvar::new(),
            generation: AtomicU64::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    fn found(&self) -> MutexGuard<'_, ResolvedAddresses> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of changes of the addresses. Connections that were opened before the last
    /// change are not kept.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the current addresses, in no particular order.
    pub fn addresses(&self) -> Arc<[SocketAddr]> {
        self.found().addresses.clone()
    }

    /// Returns the addresses in the order in which a new connection should try them. Each call
    /// begins with the next address, in rotation. Addresses that have refused or failed a
    /// connection in the last 10 s come last.
    ///
    /// # Errors
    /// Fails if the name has no address.
    pub fn in_turn(&self) -> io::Result<Vec<SocketAddr>> {
        let mut found = self.found();
        if found.addresses.is_empty() {
            let reason = found.reason.as_deref().unwrap_or("its name is not resolved yet");
            return Err(io::Error::new(io::ErrorKind::NotFound, reason.to_owned()));
        }
        let mut addresses = found.addresses.to_vec();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
        addresses.rotate_left(turn);
        if !found.failed.is_empty() {
            found.failed.retain(|(_, at)| at.elapsed() < AVOIDED);
            let has_failed = |address: &SocketAddr| found.failed.iter().any(|(a, _)| a == address);
            addresses.sort_by_key(has_failed);
        }
        Ok(addresses)
    }

    /// Records that a connection to `address` failed.
    pub fn record_failure(&self, address: SocketAddr) {
        let mut found = self.found();
        found.failed.retain(|(known, at)| *known != address && at.elapsed() < AVOIDED);
        if found.addresses.contains(&address) {
            found.failed.push((address, Instant::now()));
        }
    }

    /// Replaces the addresses. Returns true if they have changed.
    fn publish(&self, ips: impl IntoIterator<Item = IpAddr>, reason: Option<String>) -> bool {
        let mut addresses: Vec<_> =
            ips.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MOST);
        let mut found = self.found();
        let has_changed = !found.is_known || addresses[..] != found.addresses[..];
        if has_changed {
            found.addresses = addresses.into();
            found.failed.clear();
            self.generation.fetch_add(1, Ordering::Release);
        }
        found.reason = reason;
        found.is_known = true;
        drop(found);
        self.first.notify_all();
        has_changed
    }

    /// Waits for the first result of the name, at most until `deadline`.
    fn wait(&self, deadline: Instant) {
        let limit = deadline.saturating_duration_since(Instant::now());
        let found = self.found();
        drop(self.first.wait_timeout_while(found, limit, |found| !found.is_known));
    }
}

/// All names of backends, and the thread that resolves them. The thread starts with the first name,
/// and ends when `Names` is dropped.
pub struct Names {
    servers: Vec<SocketAddr>,
    errors: ErrorLog,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    names: BTreeMap<String, Weak<Name>>,
    /// Passes names to the thread. `None` before the thread has started.
    wanted: Option<UnboundedSender<Arc<Name>>>,
}

impl Names {
    /// Creates an empty set. `servers` are the DNS servers. If `servers` is empty, the system's DNS
    /// servers are used.
    pub fn new(servers: &[SocketAddr], errors: &ErrorLog) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.to_vec(),
            errors: errors.clone(),
            known: Mutex::default(),
        })
    }

    fn start(&self) -> io::Result<UnboundedSender<Arc<Name>>> {
        let (wanted, names) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (servers, errors) = (self.servers.clone(), self.errors.clone());
        std::thread::Builder::new().name("names".into()).spawn(move || {
            runtime.block_on(resolve_all(names, &servers, &errors));
        })?;
        Ok(wanted)
    }

    /// Returns true if this set was created with these DNS servers.
    pub fn uses(&self, servers: &[SocketAddr]) -> bool {
        self.servers == servers
    }

    /// Returns the endpoint of `address`. If it is a name, the thread resolves it from now on.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn endpoint(&self, address: &Address) -> io::Result<Endpoint> {
        let text = match address {
            Address::Unix(path) => return Ok(Endpoint::Unix(path.clone())),
            Address::Tcp(text) => text,
        };
        if let Ok(address) = text.parse() {
            return Ok(Endpoint::Tcp(address));
        }
        // The configuration has checked that there is a port.
        let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.names.retain(|_, name| name.strong_count() > 0);
        if let Some(name) = known.names.get(text).and_then(Weak::upgrade) {
            return Ok(Endpoint::Name(name));
        }
        let wanted = match known.wanted.take() {
            Some(wanted) => wanted,
            None => self.start()?,
        };
        let name = Arc::new(Name::new(host, port.parse().unwrap_or_default()));
        // The send cannot fail, because the thread receives as long as a sender exists.
        let _ = wanted.send(name.clone());
        known.wanted = Some(wanted);
        known.names.insert(text.clone(), Arc::downgrade(&name));
        Ok(Endpoint::Name(name))
    }
}

/// Waits for the first addresses of names, so that the first requests find these addresses. Returns
/// after three seconds even if some addresses are missing.
pub fn wait_for_names<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>) {
    let deadline = Instant::now() + FIRST_ANSWERS;
    for endpoint in endpoints {
        if let Endpoint::Name(name) = endpoint {
            name.wait(deadline);
        }
    }
}

async fn resolve_all(
    mut names: UnboundedReceiver<Arc<Name>>,
    servers: &[SocketAddr],
    errors: &ErrorLog,
) {
    let resolver = Arc::new(Lookup::new(servers));
    while let Some(name) = names.recv().await {
        tokio::spawn(keep_resolved(Arc::downgrade(&name), resolver.clone(), errors.clone()));
    }
}

/// Resolves a name as long as it is in use.
async fn keep_resolved(name: Weak<Name>, lookup: Arc<Lookup>, errors: ErrorLog) {
    let Some(host) = name.upgrade().map(|name| name.host.clone()) else { return };
    let (mut retry, mut last_success, mut was_failing) = (FIRST_RETRY, None, false);
    loop {
        let result = lookup.addresses(&host).await;
        let Some(name) = name.upgrade() else { return };
        let pause = match result {
            Ok((addresses, validity)) => {
                let is_first = last_success.is_none() && !was_failing;
                if name.publish(addresses, None) && !is_first {
                    errors.info(&format!("{host} now has the addresses {}", list(&name)));
                }
                (retry, last_success, was_failing) = (FIRST_RETRY, Some(Instant::now()), false);
                validity.clamp(SOONEST, LATEST)
            }
            Err(failure) => {
                let is_usable = !failure.is_final
                    && last_success.is_some_and(|at: Instant| at.elapsed() < STALE)
                    && !name.addresses().is_empty();
                let reason = format!("cannot resolve {host}: {}", failure.text);
                if !was_failing {
                    let effect = if is_usable {
                        "its last addresses stay in use"
                    } else {
                        "requests for it fail; check the name in `to`"
                    };
                    errors.warn(&format!("{reason}; {effect}"));
                }
                if !is_usable {
                    name.publish([], Some(reason));
                }
                was_failing = true;
                let pause = retry;
                retry = (2 * retry).min(LAST_RETRY);
                pause
            }
        };
        drop(name);
        tokio::time::sleep(pause).await;
    }
}

fn list(name: &Name) -> String {
    let addresses: Vec<_> = name.addresses().iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

/// A lookup without addresses.
struct Failure {
    text: String,
    /// True if the name does not exist or has no address. False if no server has answered.
    is_final: bool,
}

/// The ways to look up names.
pub(super) struct Lookup {
    /// `None` if the system has no usable DNS configuration.
    pub(super) dns: Option<TokioResolver>,
    /// True if the system's own lookup is tried after a failure, because only the system may know a
    /// name, for example through mDNS.
    uses_system: bool,
}

impl Lookup {
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        let builder = if servers.is_empty() {
            Resolver::builder_tokio().ok()
        } else {
            let servers = servers.iter().map(server).collect();
            let config = ResolverConfig::from_parts(None, Vec::new(), servers);
            Some(Resolver::builder_with_config(config, TokioRuntimeProvider::default()))
        };
        let dns = builder.and_then(|mut builder| {
            let options = builder.options_mut();
            // Disable the resolver's cache. Forebay itself keeps each answer for its time to live,
            // so a second cache would only delay changes.
            options.cache_size = 0;
            options.timeout = Duration::from_secs(2);
            builder.build().ok()
        });
        Self { dns, uses_system: servers.is_empty() }
    }

    /// Returns the addresses of a name, and the time for which they are valid.
    async fn addresses(&self, host: &str) -> Result<(Vec<IpAddr>, Duration), Failure> {
        let failure = match &self.dns {
            Some(dns) => match dns.lookup_ip(host).await {
                Ok(found) => {
                    let validity = found.valid_until().saturating_duration_since(Instant::now());
                    return Ok((found.iter().collect(), validity));
                }
                Err(error) => Failure::from(error),
            },
            None => Failure { text: "no DNS server is configured".to_owned(), is_final: false },
        };
        if !self.uses_system {
            return Err(failure);
        }
        match tokio::net::lookup_host((host, 0)).await {
            Ok(found) => Ok((found.map(|address| address.ip()).collect(), SYSTEM_VALIDITY)),
            Err(_) => Err(failure),
        }
    }
}

impl From<NetError> for Failure {
    fn from(error: NetError) -> Self {
        if error.is_nx_domain() {
            Self { text: "there is no such name".to_owned(), is_final: true }
        } else if error.is_no_records_found() {
            Self { text: "it has no address".to_owned(), is_final: true }
        } else {
            Self { text: error.to_string(), is_final: false }
        }
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.trust_negative_responses = true;
    let with_port = |connection: &mut ConnectionConfig| connection.port = address.port();
    server.connections.iter_mut().for_each(with_port);
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_used_in_turn_and_failed_ones_last() {
        let name = Name::new("app.internal", 80);
        let error = name.in_turn().unwrap_err();
        assert_eq!(error.to_string(), "its name is not resolved yet");
        assert!(name.publish(ips(&["127.0.0.3", "127.0.0.2", "127.0.0.2"]), None));
        let [two, three] = ["127.0.0.2:80", "127.0.0.3:80"].map(|text| text.parse().unwrap());
        assert_eq!(name.in_turn().unwrap(), [two, three]);
        assert_eq!(name.in_turn().unwrap(), [three, two]);
        name.record_failure(two);
        for _ in 0..3 {
            assert_eq!(name.in_turn().unwrap(), [three, two]);
        }
        name.record_failure("127.0.0.9:80".parse().unwrap());
        assert_eq!(name.found().failed.len(), 1, "no longer an address of the name");
    }

    #[test]
    fn only_a_change_counts_as_a_generation() {
        let name = Name::new("app.internal", 80);
        assert!(name.publish([], Some("cannot resolve it".to_owned())));
        assert_eq!(name.in_turn().unwrap_err().to_string(), "cannot resolve it");
        assert!(name.publish(ips(&["::1", "127.0.0.2"]), None));
        assert!(!name.publish(ips(&["127.0.0.2", "::1"]), None), "in another order");
        assert_eq!(name.generation(), 2);
        let many: Vec<_> =
            (0..1000).map(|n| IpAddr::from([10, 0, (n / 256) as u8, n as u8])).collect();
        assert!(name.publish(many, None));
        assert_eq!(name.addresses().len(), MOST);
    }
}

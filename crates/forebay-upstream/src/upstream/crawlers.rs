//! Verifies crawlers of search engines by DNS, as these recommend: the name of the client's address
//! must be in the domain of the search engine, and the addresses of this name must contain the
//! client's. The owner of an address chooses its name alone, so the first step proves nothing.
//!
//! Only clients that claim to be such a crawler are looked up, at most `MAX_LOOKUPS` at once; further
//! ones are not verified. So a crowd of forgers costs a bounded number of DNS queries, and cannot
//! displace the addresses that were verified.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_conf::Crawler;
use hickory_resolver::proto::rr::{Name, RData};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::names::Lookup;

/// Maximum number of lookups at once.
const MAX_LOOKUPS: usize = 32;
/// Maximum time of a lookup. A later answer still counts for the next request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Validity of a success and of a failure.
const VERIFIED: Duration = Duration::from_secs(24 * 3600);
const REFUTED: Duration = Duration::from_secs(600);
/// Maximum number of remembered successes and, apart from them, of failures.
const MAX_KNOWN: usize = 4096;
/// Maximum number of names of an address that are looked up.
const MAX_NAMES: usize = 4;

/// The verified and refuted crawlers, and the thread that looks them up. The thread starts with the
/// first question.
pub struct Crawlers {
    servers: Vec<SocketAddr>,
    /// End of the validity by address and crawler: successes, then failures.
    known: Mutex<[Known; 2]>,
    lookups: AtomicUsize,
    questions: Mutex<Option<UnboundedSender<Question>>>,
}

type Known = HashMap<(IpAddr, Crawler), Instant>;

struct Question {
    client: IpAddr,
    crawler: Crawler,
    answer: oneshot::Sender<Option<bool>>,
}

impl Crawlers {
    /// Creates an empty set, which asks these DNS servers, or those of the system if there are none.
    pub fn new(servers: &[SocketAddr]) -> Arc<Self> {
        Arc::new(Self {
            servers: servers.to_vec(),
            known: Mutex::default(),
            lookups: AtomicUsize::new(0),
            questions: Mutex::default(),
        })
    }

    /// Returns true if this set asks these DNS servers.
    pub fn uses(&self, servers: &[SocketAddr]) -> bool {
        self.servers == servers
    }

    /// Returns true if the client is the crawler. Waits for DNS if the address is new.
    pub async fn verify(self: &Arc<Self>, client: IpAddr, crawler: Crawler) -> bool {
        let client = client.to_canonical();
        if let Some(known) = self.known(client, crawler) {
            return known;
        }
        if self.lookups.fetch_add(1, Ordering::Relaxed) >= MAX_LOOKUPS {
            self.lookups.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let running = Running(self.clone());
        let (answer, answered) = oneshot::channel();
        if self.ask(Question { client, crawler, answer }).is_err() {
            return false;
        }
        let found = tokio::time::timeout(PATIENCE, answered).await;
        drop(running);
        let Ok(Ok(Some(is_verified))) = found else { return false };
        self.remember(client, crawler, is_verified);
        is_verified
    }

    fn known(&self, client: IpAddr, crawler: Crawler) -> Option<bool> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in =
            |of: &Known| of.get(&(client, crawler)).is_some_and(|until| Instant::now() < *until);
        let [verified, refuted] = &*known;
        if is_in(verified) { Some(true) } else { is_in(refuted).then_some(false) }
    }

    fn remember(&self, client: IpAddr, crawler: Crawler, is_verified: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, validity) = if is_verified { (0, VERIFIED) } else { (1, REFUTED) };
        let of = &mut known[at];
        if of.len() >= MAX_KNOWN {
            let now = Instant::now();
            of.retain(|_, until| now < *until);
        }
        if of.len() >= MAX_KNOWN {
            of.clear();
        }
        of.insert((client, crawler), Instant::now() + validity);
    }

    fn ask(&self, question: Question) -> io::Result<()> {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match questions.take() {
            Some(sender) => sender,
            None => self.start()?,
        };
        // The thread receives as long as a sender exists.
        let _ = sender.send(question);
        *questions = Some(sender);
        Ok(())
    }

    fn start(&self) -> io::Result<UnboundedSender<Question>> {
        let (sender, mut questions) = unbounded_channel::<Question>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let servers = self.servers.clone();
        std::thread::Builder::new().name("crawlers".into()).spawn(move || {
            runtime.block_on(async {
                let lookup = Arc::new(Lookup::new(&servers));
                while let Some(Question { client, crawler, answer }) = questions.recv().await {
                    let lookup = lookup.clone();
                    tokio::spawn(async move {
                        let _ = answer.send(lookup.is_crawler(client, crawler).await);
                    });
                }
            });
        })?;
        Ok(sender)
    }
}

/// Counts a lookup until its end, also if its client leaves.
struct Running(Arc<Crawlers>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lookups.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lookup {
    /// Returns true if a name of the address is in the crawler's domain, and has the address.
    /// Returns `None` if no DNS server has answered.
    async fn is_crawler(&self, client: IpAddr, crawler: Crawler) -> Option<bool> {
        let dns = self.dns.as_ref()?;
        let names = match dns.reverse_lookup(Name::from(client).to_string()).await {
            Ok(names) => names,
            Err(error) if error.is_nx_domain() || error.is_no_records_found() => {
                return Some(false);
            }
            Err(_) => return None,
        };
        let names = names.answers().iter().filter_map(|record| match &record.data {
            RData::PTR(name) => Some(name.0.to_string().to_ascii_lowercase()),
            _ => None,
        });
        let mut outcome = Some(false);
        for name in names.filter(|name| crawler.owns(name)).take(MAX_NAMES) {
            match dns.lookup_ip(name).await {
                Ok(found) if found.iter().any(|address| address == client) => return Some(true),
                Err(error) if !error.is_nx_domain() && !error.is_no_records_found() => {
                    outcome = None;
                }
                _ => {}
            }
        }
        outcome
    }
}

//! Reads the keys of `jwt` from a URL, in the background.
//!
//! A route's threads share the keys, and one thread at a time reads the URL: at the start, after
//! each `refresh`, and for a token with an unknown key. A client can send any number of such
//! tokens, so they cause at most one request per [`PAUSE`]. No request of a client waits for the
//! URL. Keys stay until a complete, valid set replaces them.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_conf::{self as conf, EncodedSlashes, Level};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::exchange::{Exchange, NoClient, Origin};
use forebay_server::reply::{Keep, Length, Recorder};
use forebay_wire::http1::{Http1Limits, RequestHead, RequestParser};
use forebay_wire::path::Slashes;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until, timeout};

use super::token_keys::{KeyRequests, LARGEST, TokenKeys};

/// Minimum time between two requests because of unknown keys or failures.
const PAUSE: Duration = Duration::from_secs(30);
/// Time between two requests as long as there are no keys.
const AT_START: Duration = Duration::from_secs(5);
/// Maximum time of a request, including its reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the keys of a route from their URL, on one thread.
pub struct KeySource {
    server: Box<dyn Origin>,
    settings: conf::Jwt,
    keys: Arc<TokenKeys>,
    thread: Rc<Thread>,
}

impl KeySource {
    /// Creates a source, and reads the keys in the background as long as the source exists.
    pub fn start(
        server: Box<dyn Origin>,
        settings: conf::Jwt,
        keys: Arc<TokenKeys>,
        thread: Rc<Thread>,
    ) -> Rc<Self> {
        let source = Rc::new(Self { server, settings, keys, thread });
        spawn_local(refresh(Rc::downgrade(&source)));
        source
    }

    /// Reads the keys in the background, because a token has an unknown key. Does nothing while a
    /// thread reads the keys, or within [`PAUSE`] after the last call that read them.
    pub fn find_unknown(self: &Rc<Self>) {
        let now = Instant::now();
        let may_ask = self.requests(|requests| {
            let may_ask = !requests.is_under_way && requests.not_before.is_none_or(|at| at <= now);
            if may_ask {
                requests.is_under_way = true;
                requests.not_before = Some(now + PAUSE);
            }
            may_ask
        });
        if may_ask {
            let source = self.clone();
            spawn_local(async move { source.read().await });
        }
    }

    fn requests<T>(&self, change: impl FnOnce(&mut KeyRequests) -> T) -> T {
        change(&mut self.keys.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the keys if they are due and no other thread reads them. Returns the time of the next
    /// attempt.
    async fn read_if_due(&self) -> Instant {
        let now = Instant::now();
        let is_due = self.requests(|requests| {
            let is_due = !requests.is_under_way && requests.due.is_none_or(|due| due <= now);
            requests.is_under_way |= is_due;
            is_due
        });
        if is_due {
            self.read().await;
        }
        let due = self.requests(|requests| requests.due);
        // If another thread reads the keys now, check again after a second.
        due.unwrap_or(now).max(Instant::now() + Duration::from_secs(1))
    }

    /// Reads the keys. The caller must first set `KeyRequests::is_under_way`.
    async fn read(&self) {
        let _ended = Ended(&self.keys);
        let outcome = match timeout(PATIENCE, self.ask()).await {
            Ok(Ok(text)) => {
                self.keys.replace(&self.settings, &text).map_err(|error| error.to_string())
            }
            Ok(Err(why)) => Err(why),
            Err(_) => Err(format!("no complete reply within {PATIENCE:?}")),
        };
        let refresh = self.settings.url().map_or(PAUSE, |url| url.refresh);
        let pause = match &outcome {
            Ok(()) => refresh,
            Err(_) if self.keys.now().is_empty() => AT_START,
            Err(_) => PAUSE,
        };
        self.requests(|requests| requests.due = Some(Instant::now() + pause));
        if let Err(why) = outcome {
            let url = self.settings.url().map(|url| {
                let server = url.proxy.upstream.to.first();
                format!("{}{}", server.map_or("", |server| &server.authority), url.target)
            });
            let url = url.unwrap_or_default();
            let text = format!("cannot read the keys of `jwt` from {url}: {why}");
            self.thread.log_limited(Level::Warn, &text);
        }
    }

    async fn ask(&self) -> Result<Vec<u8>, String> {
        let url = self.settings.url().ok_or("there is no URL")?;
        let request = request_for(&url.target).ok_or("the URL cannot be requested")?;
        let stream = NoClient::new(&self.thread).map_err(|error| error.to_string())?;
        let mut exchange = Exchange::of_copy(&stream, request, None);
        let recorder = Rc::new(WholeSet::default());
        exchange.reply.record(recorder.clone(), true);
        let outcome = tokio::select! {
            biased;
            outcome = self.server.serve(&mut exchange) => outcome,
            () = recorder.is_too_large.notified() => {
                Err(Fault::backend(502, format!("the reply is larger than {LARGEST} bytes")))
            }
        };
        let captured = exchange.reply.take_captured();
        exchange.detach();
        outcome.map_err(|fault| fault.to_string())?;
        let captured = captured.ok_or("there is no reply")?;
        match (captured.status, captured.body) {
            (200, Some(body)) => Ok(body),
            (200, None) => Err(format!("the reply is larger than {LARGEST} bytes")),
            (status @ 300..=399, _) => Err(format!(
                "a redirect (status {status}), which is not followed: write its target"
            )),
            (status, _) => Err(format!("status {status}")),
        }
    }
}

/// Clears `KeyRequests::is_under_way` when dropped, for example if the future is cancelled.
struct Ended<'a>(&'a TokenKeys);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut requests = self.0.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.is_under_way = false;
    }
}

/// Reads the keys whenever they are due, until the source is dropped.
async fn refresh(source: Weak<KeySource>) {
    let mut next = Instant::now();
    loop {
        sleep_until(next).await;
        let Some(source) = source.upgrade() else { return };
        next = source.read_if_due().await;
    }
}

/// Returns a GET for `target`.
fn request_for(target: &str) -> Option<Request> {
    let bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n".to_vec();
    let mut head = RequestHead::default();
    RequestParser::new(Http1Limits::default()).parse(&bytes, &mut head).ok()?;
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut request = Request::new(bytes, head, here.into(), here);
    request.prepare_path(EncodedSlashes::default(), Slashes::default()).ok()?;
    request.become_get_for(target.as_bytes());
    Some(request)
}

/// Recorder of a set of keys.
#[derive(Default)]
struct WholeSet {
    is_too_large: Notify,
}

impl Recorder for WholeSet {
    fn decide(&self, status: u16, _lines: &[u8], _length: Length) -> Keep {
        if status == 200 { Keep::Instead(LARGEST as usize) } else { Keep::Drop }
    }

    fn reserve(&self, bytes: usize) -> bool {
        bytes as u64 <= LARGEST
    }

    fn give_up(&self) {
        self.is_too_large.notify_one();
    }
}

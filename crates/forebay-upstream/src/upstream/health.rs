//! Health checks of backends. One thread checks all backends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::log::ErrorLog;
use forebay_net::tls::{Alpn, ClientTls};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::announce;
use super::{Endpoint, Group};

mod http1;
mod http2;

/// One backend to check.
pub struct HealthCheck {
    /// Group of the backend.
    pub group: Arc<Group>,
    /// Number of the backend in its group.
    pub index: usize,
    /// Address of the backend.
    pub endpoint: Endpoint,
    /// Name for messages.
    pub name: String,
    /// Value of `Host`.
    pub authority: String,
    /// True for HTTP/2 by prior knowledge.
    pub speaks_http2: bool,
    /// TLS settings, the host of the URL, and the HTTP versions to offer; `None` for plaintext.
    pub tls: Option<(Arc<ClientTls>, String, Alpn)>,
    /// PROXY header that the backend expects.
    pub send_proxy: Option<conf::ProxyHeader>,
    /// True if HTTP/1.1 replies with oddities count as failures.
    pub strict: bool,
    /// Request and interval of the check.
    pub health: conf::Health,
}

/// The thread that checks backends. It ends when `Checker` is dropped.
pub struct Checker {
    _stop: oneshot::Sender<()>,
}

impl Checker {
    /// Starts the thread. Returns `None`, and starts nothing, if there is nothing to check.
    pub fn start(checks: Vec<HealthCheck>, errors: &ErrorLog) -> io::Result<Option<Self>> {
        if checks.is_empty() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let errors = errors.clone();
        std::thread::Builder::new().name("health".into()).spawn(move || {
            runtime.block_on(async {
                for check in checks {
                    tokio::spawn(watch(check, errors.clone()));
                }
                let _ = stopped.await;
            });
        })?;
        Ok(Some(Self { _stop: stop }))
    }
}

/// Checks one backend at its interval, until the task is aborted. The backend becomes down after
/// `falls` failed checks in a row, and up again after `rises` successful checks in a row.
async fn watch(check: HealthCheck, errors: ErrorLog) {
    let HealthCheck { group, index, name, health, .. } = &check;
    let mut ticks = interval(health.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_well = group.is_well(*index);
    let mut in_a_row = 0;
    loop {
        ticks.tick().await;
        let answer = timeout(health.timeout, request(&check)).await;
        let answer = answer.unwrap_or_else(|_| Err(no_answer(health.timeout)));
        if answer.is_ok() == is_well {
            in_a_row = 0;
            continue;
        }
        in_a_row += 1;
        if in_a_row < if is_well { health.falls } else { health.rises } {
            continue;
        }
        in_a_row = 0;
        is_well = !is_well;
        group.set_well(*index, is_well);
        match answer {
            Ok(()) => errors.info(&format!("{name} is up again")),
            Err(reason) => errors.warn(&format!("{name} is down: {reason}")),
        }
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

/// Performs one check. Returns the reason if the check fails.
async fn request(check: &HealthCheck) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let health = &check.health;
    let mut search = TextSearch::new(health.body.as_deref());
    let at_port = |mut address: SocketAddr| {
        address.set_port(health.port.unwrap_or(address.port()));
        address
    };
    if health.path.is_empty() {
        return connect(check, at_port).await.map_err(text);
    }
    let status = match &check.endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect(at_port(*address)).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
        Endpoint::Name(name) => {
            let addresses: Vec<_> =
                name.in_turn().map_err(text)?.into_iter().map(at_port).collect();
            let stream = TcpStream::connect(&addresses[..]).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
    };
    if !health.statuses.contain(status) {
        return Err(format!("{} answered {status}", health.path));
    }
    if !search.has_found() {
        return Err(format!("the answer of {} does not contain the text of `body`", health.path));
    }
    Ok(())
}

/// Checks a backend of a `[[stream]]`: opens a connection and closes it.
async fn connect(
    check: &HealthCheck,
    at_port: impl Fn(SocketAddr) -> SocketAddr,
) -> io::Result<()> {
    let mut out = Vec::new();
    if let Some(version) = check.send_proxy {
        announce::append_local(&mut out, version);
    }
    match &check.endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).await?.write_all(&out).await,
        Endpoint::Tcp(address) => {
            TcpStream::connect(at_port(*address)).await?.write_all(&out).await
        }
        Endpoint::Name(name) => {
            let addresses: Vec<_> = name.in_turn()?.into_iter().map(at_port).collect();
            TcpStream::connect(&addresses[..]).await?.write_all(&out).await
        }
    }
}

/// Sends the check's request over `stream`, after the handshake of TLS if the backend speaks TLS.
async fn secure<S: AsyncRead + AsyncWrite + Unpin>(
    check: &HealthCheck,
    search: &mut TextSearch<'_>,
    stream: S,
) -> Result<u16, String> {
    let Some((tls, host, alpn)) = &check.tls else {
        return request_over(check, search, stream, check.speaks_http2).await;
    };
    let stream = tls.connect(stream, host, *alpn).await.map_err(|error| format!("TLS: {error}"))?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    request_over(check, search, stream, is_http2).await
}

/// Sends the check's request over `stream`. Returns the status of the reply, or the reason of a
/// failure.
async fn request_over<S: AsyncRead + AsyncWrite + Unpin>(
    check: &HealthCheck,
    search: &mut TextSearch<'_>,
    stream: S,
    is_http2: bool,
) -> Result<u16, String> {
    let HealthCheck { authority, health, .. } = check;
    if is_http2 {
        let scheme = if check.tls.is_some() { "https" } else { "http" };
        return http2::ask(scheme, authority, &health.path, search, stream).await;
    }
    let request = http1::request(&health.path, authority, check.send_proxy);
    http1::ask(&request, check.strict, search, stream).await
}

/// Search for a text in the first part of a body, which arrives in pieces.
struct TextSearch<'a> {
    text: &'a [u8],
    /// The end of the earlier pieces, shorter than the text.
    tail: Vec<u8>,
    read: usize,
    has_found: bool,
}

impl<'a> TextSearch<'a> {
    /// The longest part of a body that is searched, in bytes.
    const MOST: usize = 64 * 1024;

    /// Creates a search for `text`. If `text` is `None` or empty, the search is successful at once.
    fn new(text: Option<&'a str>) -> Self {
        let text = text.unwrap_or_default().as_bytes();
        Self { text, tail: Vec::new(), read: 0, has_found: text.is_empty() }
    }

    fn push(&mut self, data: &[u8]) {
        let data = &data[..data.len().min(Self::MOST - self.read)];
        self.read += data.len();
        self.tail.extend_from_slice(data);
        self.has_found |= memchr::memmem::find(&self.tail, self.text).is_some();
        let kept = self.tail.len().min(self.text.len().saturating_sub(1));
        self.tail.drain(..self.tail.len() - kept);
    }

    fn is_done(&self) -> bool {
        self.has_found || self.read == Self::MOST
    }

    fn has_found(&self) -> bool {
        self.has_found
    }
}

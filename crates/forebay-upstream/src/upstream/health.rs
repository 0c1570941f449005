//! Health checks of backends: one thread for all of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::log::ErrorLog;
use forebay_wire::http1::{Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::announce;
use super::{Endpoint, Group};

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
    /// PROXY header that the backend expects.
    pub send_proxy: Option<conf::ProxyHeader>,
    /// Request and interval of the check.
    pub health: conf::Health,
}

/// The thread that checks backends. It ends when `Checker` is dropped.
pub struct Checker {
    _stop: oneshot::Sender<()>,
}

impl Checker {
    /// Starts the thread, unless there is nothing to check.
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

/// Sends one check. Returns the reason if it fails.
async fn request(check: &HealthCheck) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let status = match &check.endpoint {
        Endpoint::Unix(path) => {
            request_over(check, UnixStream::connect(path).await.map_err(text)?).await?
        }
        Endpoint::Tcp(address) => {
            request_over(check, TcpStream::connect(address).await.map_err(text)?).await?
        }
        Endpoint::Name(name) => {
            let addresses = name.in_turn().map_err(text)?;
            request_over(check, TcpStream::connect(&addresses[..]).await.map_err(text)?).await?
        }
    };
    match status {
        200..=399 => Ok(()),
        _ => Err(format!("{} answered {status}", check.health.path)),
    }
}

async fn request_over<S: AsyncRead + AsyncWrite + Unpin>(
    check: &HealthCheck,
    mut stream: S,
) -> Result<u16, String> {
    if check.speaks_http2 {
        return http2::ask(&check.health.path, &check.authority, stream).await;
    }
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: forebay (health check)\r\n\
         Connection: close\r\n\r\n",
        check.health.path, check.authority
    );
    let mut out = Vec::new();
    if let Some(version) = check.send_proxy {
        announce::append_local(&mut out, version);
    }
    out.extend_from_slice(request.as_bytes());
    stream.write_all(&out).await.map_err(|error| error.to_string())?;
    let mut heads = ReplyReader::new(ResponseParser::new(Http1Limits::default(), false));
    let mut head = ResponseHead::default();
    let mut bytes = Vec::new();
    loop {
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return Err("it closed the connection without an answer".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        loop {
            match heads.read(&bytes, &mut head).map_err(|error| error.to_string())? {
                ReplyStep::Partial => break,
                ReplyStep::Interim(len) => drop(bytes.drain(..len)),
                ReplyStep::Final(_) => return Ok(head.status),
            }
        }
    }
}

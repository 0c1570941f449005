//! Sends log lines to syslog, or to the journal of systemd.
//!
//! Each service has its own thread, so that a service that hangs delays no other log. The queue of
//! each thread is bounded in bytes. Lines that do not fit are dropped and counted.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_conf::{LogSender, LogService};
use rustix::net::{RecvFlags, recv};

use super::LostAt;
use super::message::{LineKind, Messages};

/// Maximum number of bytes that wait for a service.
const QUEUED: usize = 4 << 20;
/// Time limit for one datagram, and for each read or write over TCP.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the next attempt after a failure, unless the service refused at once.
const PAUSE: Duration = Duration::from_secs(1);
/// Shortest time between two warnings about one service.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Before Forebay exits, it waits this long at most until a service has taken all lines.
const ENDING: Duration = Duration::from_secs(3);

/// Lines for a service, separated by line feeds.
struct Lines {
    kind: LineKind,
    text: Vec<u8>,
}

/// A service and its thread. Dropping the last handle ends the thread after all queued lines.
pub(super) struct Service {
    sender: Option<Sender<Lines>>,
    queued: Arc<AtomicUsize>,
    lost_at: LostAt,
    /// Disconnects when the thread has ended.
    ended: Mutex<Receiver<()>>,
}

impl Service {
    /// Starts the thread of a service.
    pub(super) fn start(to: &LogService, sender: &LogSender) -> io::Result<Arc<Self>> {
        let lost_at = match to {
            LogService::Journal(_) => LostAt::Journal,
            LogService::Unix(_) | LogService::Udp(_) | LogService::Tcp(_) => LostAt::Syslog,
        };
        let (lines, received) = channel::<Lines>();
        let queued = Arc::<AtomicUsize>::default();
        let mut connection = ServiceConnection::new(to, Messages::new(sender, to));
        let (for_thread, (ending, ended)) = (queued.clone(), channel::<()>());
        std::thread::Builder::new().name("log-service".into()).spawn(move || {
            let mut troubles = Troubles::new(lost_at);
            for lines in received {
                let outcome = connection.send(&lines);
                for_thread.fetch_sub(lines.text.len(), Ordering::Relaxed);
                if let Some(line) = troubles.note(&connection.name, outcome, Instant::now()) {
                    warn(&line);
                }
            }
            drop(ending);
        })?;
        let ended = Mutex::new(ended);
        Ok(Arc::new(Self { sender: Some(lines), queued, lost_at, ended }))
    }

    /// Queues lines. Never blocks. Drops and counts the lines if the queue is full.
    pub(super) fn send(&self, kind: LineKind, text: Vec<u8>) {
        let size = text.len();
        let is_full = self.queued.fetch_add(size, Ordering::Relaxed) + size > QUEUED;
        let sender = self.sender.as_ref().filter(|_| !is_full);
        let refused = match sender.map(|sender| sender.send(Lines { kind, text })) {
            Some(Ok(())) => return,
            Some(Err(error)) => count(&error.0.text),
            None => 1,
        };
        self.queued.fetch_sub(size, Ordering::Relaxed);
        self.lost_at.count(refused);
    }

    /// Waits until the thread has sent all queued lines, for a limited time.
    pub(super) fn finish(self: Arc<Self>) {
        let Some(mut service) = Arc::into_inner(self) else { return };
        service.sender = None;
        if let Ok(ended) = service.ended.lock() {
            let _ = ended.recv_timeout(ENDING);
        }
    }
}

fn count(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count().max(1) as u64
}

/// Lines that a service did not take.
struct Loss {
    lines: u64,
    error: io::Error,
}

/// Lost lines of one service, for warnings.
struct Troubles {
    lost_at: LostAt,
    /// Lines lost since the last warning that the service takes lines again.
    lost: u64,
    /// True if a warning says that the service does not take lines now.
    is_warned: bool,
    /// Time of the last warning that the service does not take lines.
    warned: Option<Instant>,
}

impl Troubles {
    fn new(lost_at: LostAt) -> Self {
        Self { lost_at, lost: 0, is_warned: false, warned: None }
    }

    /// Counts lost lines. Returns a warning for the first loss, and another when the service takes
    /// lines again. Otherwise returns `None`. After each warning of a loss, further losses cause no
    /// warning for [`WARNING_INTERVAL`].
    fn note(&mut self, name: &str, outcome: Result<(), Loss>, now: Instant) -> Option<String> {
        match outcome {
            Err(Loss { lines, error }) => {
                self.lost += lines;
                self.lost_at.count(lines);
                let is_due =
                    self.warned.is_none_or(|warned| now.duration_since(warned) > WARNING_INTERVAL);
                if self.is_warned || !is_due {
                    return None;
                }
                (self.is_warned, self.warned) = (true, Some(now));
                Some(format!("{name} does not take log lines, which are lost: {error}"))
            }
            Ok(()) if std::mem::take(&mut self.is_warned) => {
                let lost = std::mem::take(&mut self.lost);
                Some(format!("{name} takes log lines again; lines lost: up to {lost}"))
            }
            Ok(()) => None,
        }
    }
}

/// Writes a warning to standard error, because the error log itself may be lost.
fn warn(line: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "forebay: {line}");
}

/// The socket of a service.
enum ServiceSocket {
    /// Datagrams for a Unix socket. Each is sent by path, so that a restarted receiver gets the
    /// next one.
    Datagrams(Option<UnixDatagram>, PathBuf),
    Udp(Option<UdpSocket>, String),
    Tcp(Option<TcpStream>, String),
}

/// The connection to a service.
struct ServiceConnection {
    link: ServiceSocket,
    messages: Messages,
    /// Name of the service in warnings.
    name: String,
    /// End of the pause after a failure.
    pause: Option<Instant>,
}

impl ServiceConnection {
    fn new(to: &LogService, messages: Messages) -> Self {
        let (link, name) = match to {
            LogService::Unix(path) => (
                ServiceSocket::Datagrams(None, path.clone()),
                format!("syslog at {}", path.display()),
            ),
            LogService::Journal(path) => (
                ServiceSocket::Datagrams(None, path.clone()),
                format!("journald at {}", path.display()),
            ),
            LogService::Udp(host) => {
                (ServiceSocket::Udp(None, host.clone()), format!("syslog at udp://{host}"))
            }
            LogService::Tcp(host) => {
                (ServiceSocket::Tcp(None, host.clone()), format!("syslog at tcp://{host}"))
            }
        };
        Self { link, messages, name, pause: None }
    }

    /// Sends each line as a message. If the last attempt failed slowly (`took_time`), fails without
    /// an attempt for [`PAUSE`].
    fn send(&mut self, lines: &Lines) -> Result<(), Loss> {
        if self.pause.is_some_and(|end| Instant::now() < end) {
            let error = io::Error::other("it failed a moment ago");
            return Err(Loss { lines: count(&lines.text), error });
        }
        self.pause = None;
        let outcome = match &self.link {
            ServiceSocket::Tcp(..) => self.send_stream(lines),
            _ => self.send_datagrams(lines),
        };
        if outcome.as_ref().is_err_and(|loss| took_time(&loss.error)) {
            self.pause = Some(Instant::now() + PAUSE);
        }
        outcome
    }

    fn send_datagrams(&mut self, lines: &Lines) -> Result<(), Loss> {
        let mut lost: Option<Loss> = None;
        let mut left = count(&lines.text);
        self.messages.begin(lines.kind);
        for line in split(&lines.text) {
            left = left.saturating_sub(1);
            let message = self.messages.datagram(line);
            let outcome = match &mut self.link {
                ServiceSocket::Datagrams(socket, path) => opened(socket, open_datagrams)
                    .and_then(|socket| socket.send_to(message, path.as_path())),
                ServiceSocket::Udp(socket, host) => {
                    opened(socket, || connect_udp(host)).and_then(|socket| socket.send(message))
                }
                ServiceSocket::Tcp(..) => Ok(0),
            };
            let Err(error) = outcome else { continue };
            if let ServiceSocket::Udp(socket, _) = &mut self.link {
                // Resolve the name again, because it may have another address now.
                *socket = None;
            }
            let stops = took_time(&error);
            let before = lost.take().map_or(0, |loss| loss.lines);
            let lines = before + 1 + if stops { left } else { 0 };
            lost = Some(Loss { lines, error });
            if stops {
                break;
            }
        }
        lost.map_or(Ok(()), Err)
    }

    fn send_stream(&mut self, lines: &Lines) -> Result<(), Loss> {
        let ServiceSocket::Tcp(socket, host) = &mut self.link else { return Ok(()) };
        if socket.as_ref().is_some_and(has_ended) {
            *socket = None;
        }
        let mut frames = Vec::with_capacity(lines.text.len() * 2);
        self.messages.begin(lines.kind);
        for line in split(&lines.text) {
            self.messages.append_frame(line, &mut frames);
        }
        let outcome = opened(socket, || connect_tcp(host)).and_then(|stream| {
            use std::io::Write;
            stream.write_all(&frames)
        });
        outcome.map_err(|error| {
            // Reconnect, because the server may have received only a part of the last frame.
            *socket = None;
            Loss { lines: count(&lines.text), error }
        })
    }
}

/// Returns true if the attempt that failed with this error may have taken long. Returns false for
/// errors that come at once, such as a refused connection.
fn took_time(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        && error.raw_os_error() != Some(rustix::io::Errno::MSGSIZE.raw_os_error())
}

fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

/// Returns the socket, after `open` has opened it if needed.
fn opened<T>(socket: &mut Option<T>, open: impl FnOnce() -> io::Result<T>) -> io::Result<&mut T> {
    match socket {
        Some(socket) => Ok(socket),
        None => Ok(socket.insert(open()?)),
    }
}

fn open_datagrams() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn connect_udp(host: &str) -> io::Result<UdpSocket> {
    let address = resolve(host)?;
    let own = SocketAddr::new(
        if address.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        },
        0,
    );
    let socket = UdpSocket::bind(own)?;
    socket.connect(address)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn connect_tcp(host: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&resolve(host)?, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn resolve(host: &str) -> io::Result<SocketAddr> {
    let mut addresses = host.to_socket_addrs()?;
    addresses.next().ok_or_else(|| io::Error::other("its name has no address"))
}

/// Returns true if the server has closed the connection.
fn has_ended(stream: &TcpStream) -> bool {
    // Without this check, the first lines after a restart of the server would be lost without an
    // error.
    let outcome = recv(stream, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(outcome, Ok((_, 0)))
        || outcome.is_err_and(|error| error != rustix::io::Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_long_failure_is_warned_of_and_short_ones_seldom() {
        let mut troubles = Troubles::new(LostAt::Syslog);
        let start = Instant::now();
        let mut note = |second: u64, is_lost: bool| {
            let error = io::Error::other("away");
            let outcome = if is_lost { Err(Loss { lines: 1, error }) } else { Ok(()) };
            troubles.note("it", outcome, start + Duration::from_secs(second))
        };
        let away = Some("it does not take log lines, which are lost: away".to_owned());
        let again = |lost: u64| Some(format!("it takes log lines again; lines lost: up to {lost}"));
        assert_eq!(note(0, false), None);
        assert_eq!(note(1, true), away);
        assert_eq!(note(2, true), None);
        assert_eq!(note(3, false), again(2));
        // Another short failure follows.
        assert_eq!(note(4, true), None);
        assert_eq!(note(5, false), None);
        // A long failure follows.
        assert_eq!(note(6, true), None);
        assert_eq!(note(100, true), away);
        assert_eq!(note(101, false), again(3));
    }
}

//! Streams over UDP. The datagrams of one client address form a session, which has a socket of its
//! own to a backend. A session ends after a time without datagrams.
//!
//! If a reload closes the listener, its sessions end within a second, so that its address can be
//! used again.
//!
//! A datagram is lost if too many wait for its session, or if a limit on connections is reached.
//! UDP clients usually send again. The kernel gives all datagrams of a client to one thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf::Level;
use forebay_net::deadline::TICK;
use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::log::{ConnectionEnd, ConnectionEntry};
use forebay_net::thread::Thread;
use rustix::io::Errno;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::Instant;

use super::{DatagramBackend, Relay, RelayClient};
use crate::admission::Counted;
use crate::close_order::CloseOrder;
use crate::context::FrontContext;

/// Maximum number of a client's datagrams that wait for their session.
const WAITING: usize = 64;
/// Maximum size of a datagram in bytes.
const LARGEST: usize = 65_535;
/// The error for a datagram that is too large for the network path (EMSGSIZE).
const TOO_LARGE: i32 = Errno::MSGSIZE.raw_os_error();
/// Default time without datagrams after which a session ends.
const IDLE: Duration = Duration::from_secs(30);
/// Time without datagrams after which a session ends while the server stops.
const IDLE_AT_STOP: Duration = Duration::from_secs(1);

/// State that the sessions of one listener share.
struct SharedSocket {
    thread: Rc<Thread>,
    socket: UdpSocket,
    local: SocketAddr,
    sessions: RefCell<HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>>,
    /// The time of the close of the listener.
    closed: Cell<Option<Instant>>,
    /// Receives the datagrams of backends, one at a time.
    buffer: RefCell<Vec<u8>>,
}

/// Passes datagrams to sessions until `closed` completes.
pub(crate) async fn accept(
    context: &Rc<FrontContext>,
    socket: std::net::UdpSocket,
    index: usize,
    mut closed: CloseOrder,
) -> io::Result<()> {
    let shared = Rc::new(SharedSocket {
        thread: context.thread.clone(),
        local: socket.local_addr()?,
        socket: UdpSocket::from_std(socket)?,
        sessions: RefCell::default(),
        closed: Cell::new(None),
        buffer: RefCell::new(vec![0; LARGEST]),
    });
    let mut buffer = vec![0; LARGEST];
    loop {
        let received = tokio::select! {
            received = shared.socket.recv_from(&mut buffer) => received,
            () = closed.given() => {
                shared.closed.set(Some(Instant::now()));
                // Drop the senders, so that the sessions notice that no more datagrams come.
                shared.sessions.borrow_mut().clear();
                return Ok(());
            }
        };
        let Ok((length, client)) = received else {
            tokio::time::sleep(TICK / 10).await;
            continue;
        };
        let datagram = buffer[..length].to_vec();
        let session = shared.sessions.borrow().get(&client).cloned();
        match session {
            // If too many datagrams wait for this session, the new datagram is lost.
            Some(session) => drop(session.try_send(datagram)),
            None => begin(context, &shared, (index, client), datagram),
        }
    }
}

/// Begins the session of a new client. Drops the datagram if the access rules deny the client, or
/// if a limit on sessions is reached.
fn begin(
    context: &FrontContext,
    shared: &Rc<SharedSocket>,
    (index, client): (usize, SocketAddr),
    datagram: Vec<u8>,
) {
    let thread = &shared.thread;
    let Some(relay) = context.table().relay(index, None).cloned() else { return };
    if !relay.access.admits(Some(client.ip())) {
        return thread.log_limited(Level::Info, &format!("{client}: denied"));
    }
    let session_count = thread.load.has_room().then(|| SessionCount::new(thread)).flatten();
    let Some(session_count) = session_count else {
        return thread.counters.count_limit(Limit::Connections);
    };
    let mut counted = Counted::new(thread);
    // The default limit for each address does not apply to sessions. By forging the UDP address of
    // a client, an attacker could use up this limit and lock out the client. A DNS resolver also
    // needs many sessions.
    let is_limited = !thread.load.addresses.is_default();
    if is_limited && !counted.count_address(context, index, client.into()) {
        return;
    }
    let (sender, waiting) = mpsc::channel(WAITING);
    let _ = sender.try_send(datagram);
    shared.sessions.borrow_mut().insert(client, sender);
    let session = DatagramSession { shared: shared.clone(), relay, client, sent: 0, received: 0 };
    spawn_local(async move {
        session.run(waiting).await;
        drop((counted, session_count));
    });
}

/// Adds one UDP session to the count of all threads, until this value is dropped.
struct SessionCount(Rc<Thread>);

impl SessionCount {
    /// Counts a session, or returns `None` if there are too many sessions.
    fn new(thread: &Rc<Thread>) -> Option<Self> {
        thread.load.enter_session().then(|| Self(thread.clone()))
    }
}

impl Drop for SessionCount {
    fn drop(&mut self) {
        self.0.load.leave_session();
    }
}

struct DatagramSession {
    shared: Rc<SharedSocket>,
    relay: Rc<Relay>,
    client: SocketAddr,
    sent: u64,
    received: u64,
}

impl DatagramSession {
    async fn run(mut self, waiting: mpsc::Receiver<Vec<u8>>) {
        let started = Instant::now();
        let relay = self.relay.clone();
        let client = RelayClient { address: self.client.into(), server: self.shared.local };
        let (end, backend) = match relay.backends.open_datagrams(&client).await {
            Ok(backend) => (self.carry(&backend, waiting).await, Some(backend.name)),
            Err(fault) => {
                let message = format!("{}: {fault}", self.client);
                self.shared.thread.log_limited(Level::Warn, &message);
                (ConnectionEnd::NoBackend, None)
            }
        };
        self.shared.sessions.borrow_mut().remove(&self.client);
        self.shared.thread.log_connection(
            0,
            &ConnectionEntry {
                protocol: "UDP",
                client: self.client.into(),
                server_name: None,
                backend: backend.as_deref(),
                end,
                sent: self.sent,
                received: self.received,
                took: started.elapsed(),
            },
        );
    }

    /// Passes datagrams in both directions.
    async fn carry(
        &mut self,
        backend: &DatagramBackend,
        mut waiting: mpsc::Receiver<Vec<u8>>,
    ) -> ConnectionEnd {
        let (shared, relay) = (self.shared.clone(), self.relay.clone());
        let mut last = Instant::now();
        loop {
            let changed = shared.thread.changed.notified();
            let is_stopping = shared.thread.is_stopping();
            let idle = if is_stopping { IDLE_AT_STOP } else { relay.idle.unwrap_or(IDLE) };
            // After the listener has closed, the session ends at a fixed time, even if the backend
            // keeps sending.
            let end = shared.closed.get().map_or(last + idle, |closed| closed + IDLE_AT_STOP);
            let is_closed = shared.closed.get().is_some() && waiting.is_empty();
            let outcome = tokio::select! {
                datagram = waiting.recv(), if !is_closed => {
                    let Some(datagram) = datagram else { continue };
                    last = Instant::now();
                    self.received += datagram.len() as u64;
                    match backend.socket.send(&datagram).await {
                        Err(error) if is_lost_here(&error) => Ok(()),
                        outcome => outcome.map(drop),
                    }
                }
                ready = backend.socket.readable() => match ready {
                    Ok(()) => {
                        last = Instant::now();
                        self.answer(backend)
                    }
                    Err(error) => Err(error),
                },
                () = tokio::time::sleep_until(end) => {
                    return if is_stopping || is_closed { ConnectionEnd::Stopped } else { ConnectionEnd::Idle };
                }
                () = changed => Ok(()),
            };
            // An error here usually means that the backend's port is closed.
            if let Err(error) = outcome {
                relay.backends.datagrams_failed(backend, &error);
                return ConnectionEnd::Lost;
            }
        }
    }

    /// Passes one datagram of the backend to the client.
    fn answer(&mut self, backend: &DatagramBackend) -> io::Result<()> {
        let mut buffer = self.shared.buffer.borrow_mut();
        match backend.socket.try_recv(&mut buffer) {
            Ok(length) => {
                self.relay.backends.datagrams_answered(backend);
                // A datagram that the client's socket does not accept now is lost.
                if self.shared.socket.try_send_to(&buffer[..length], self.client).is_ok() {
                    self.sent += length as u64;
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns true if this machine could not send a datagram: it is too large for the network path, or
/// memory is short. The datagram is lost, but the backend has not failed.
fn is_lost_here(error: &io::Error) -> bool {
    error.raw_os_error() == Some(TOO_LARGE) || Fault::exhausted("send", error).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_this_machine_are_no_failures_of_the_backend() {
        for errno in [Errno::MSGSIZE, Errno::NOBUFS, Errno::NOMEM] {
            assert!(is_lost_here(&errno.into()), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NETUNREACH] {
            assert!(!is_lost_here(&errno.into()), "{errno}");
        }
    }
}

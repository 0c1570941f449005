//! Serves a stream's connection: selects the stream, connects to a backend and passes bytes on.
//!
//! If several streams share a listener, the server name in the ClientHello selects the stream. A
//! stream without `tls` passes the ClientHello on unchanged. Forebay reads the ClientHello as
//! strictly as possible (`forebay_wire::client_hello`), so that the backend finds the same name.
//!
//! A connection keeps its stream and its backend when the configuration is reloaded. When the
//! server stops, connections may continue for the grace period: a silent database connection may
//! wait for a long query.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use forebay_conf::Level;
use forebay_net::deadline::Activity;
use forebay_net::limit::Limit;
use forebay_net::log::{ConnectionEnd, ConnectionEntry};
use forebay_net::socket::Socket;
use forebay_wire::client_hello::{HelloError, HelloReader};

use super::{Relay, RelayBackend, RelayClient};
use crate::context::FrontContext;
use crate::handshake::accept_tls;
use crate::part::Accepted;
use crate::tunnel::{Bridge, BridgeEnd};

/// Size of the buffer for a ClientHello in bytes.
const HELLO: usize = 2048;

/// TLS alerts in plaintext: handshake not understood (50), and no such server name (112).
const DECODE_ERROR: &[u8] = &[0x15, 3, 3, 0, 2, 2, 50];
const UNRECOGNIZED_NAME: &[u8] = &[0x15, 3, 3, 0, 2, 2, 112];

/// Passes the bytes of a connection to a backend, and back, until both sides have ended. A time
/// limit, or the stop of the server, closes both sides earlier. `prefix` contains bytes that were
/// already read.
pub async fn serve_connection(
    context: &FrontContext,
    socket: Socket,
    accepted: Accepted,
    prefix: Vec<u8>,
) {
    let started = Instant::now();
    let thread = &accepted.thread;
    socket.limit_writes(thread.settings().timeouts.write);
    let Some((relay, hello)) = choose(context, &socket, &accepted, prefix).await else { return };
    let mut record = Record { backend: None, sent: 0, received: 0 };
    let end = relay.serve(context, &socket, &accepted, hello.bytes, &mut record).await;
    thread.log_connection(
        0,
        &ConnectionEntry {
            protocol: "TCP",
            client: accepted.peer,
            server_name: hello.name.as_deref(),
            backend: record.backend.as_deref(),
            end,
            sent: record.sent,
            received: record.received,
            took: started.elapsed(),
        },
    );
}

/// The bytes that a client sent first, and the server name in them.
struct Hello {
    name: Option<String>,
    bytes: Vec<u8>,
}

/// Values for the log that are known during a connection.
struct Record {
    backend: Option<Rc<str>>,
    sent: u64,
    received: u64,
}

/// Selects the stream of a connection. Returns `None` if the connection must be closed.
async fn choose(
    context: &FrontContext,
    socket: &Socket,
    accepted: &Accepted,
    prefix: Vec<u8>,
) -> Option<(Rc<Relay>, Hello)> {
    let (thread, listener) = (&accepted.thread, accepted.listener);
    if !context.table().relays(listener).iter().any(|relay| relay.needs_hello) {
        let relay = context.table().relay(listener, None)?.clone();
        return Some((relay, Hello { name: None, bytes: prefix }));
    }
    // The limit applies to the whole ClientHello, regardless of the number of reads.
    socket.limit_read(thread.settings().timeouts.head);
    let read = read_hello(socket, prefix).await;
    socket.set_activity(Activity::Busy);
    let (why, alert) = match read {
        Ok(hello) => match context.table().relay(listener, hello.name.as_deref()).cloned() {
            Some(relay) => {
                socket.unlimit_read();
                return Some((relay, hello));
            }
            None => {
                let name = hello.name.as_deref().unwrap_or("no name");
                (format!("no stream here has the server name: {name}"), UNRECOGNIZED_NAME)
            }
        },
        Err(error) => {
            if socket.is_overdue() && !thread.is_stopping() {
                thread.counters.count_limit(Limit::Head);
            }
            let broken = error.get_ref().and_then(|error| error.downcast_ref::<HelloError>());
            let alert = match broken? {
                HelloError::NotTls => &[],
                _ => DECODE_ERROR,
            };
            (error.to_string(), alert)
        }
    };
    thread.log_limited(Level::Info, &format!("{}: {why}: closed", accepted.peer));
    if !alert.is_empty() && socket.write_all(alert).await.is_ok() {
        socket.linger().await;
    }
    None
}

/// Reads a ClientHello. Until its first bytes arrive, the connection has no buffer and is idle.
async fn read_hello(socket: &Socket, mut bytes: Vec<u8>) -> io::Result<Hello> {
    let mut reader = HelloReader::default();
    loop {
        if bytes.is_empty() {
            socket.set_activity(Activity::Idle);
            socket.readable().await?;
        } else {
            socket.set_activity(Activity::PartialHead);
            if let Some(hello) = reader.read(&bytes).map_err(io::Error::other)? {
                return Ok(Hello { name: hello.server_name, bytes });
            }
        }
        if bytes.capacity() - bytes.len() < HELLO / 2 {
            bytes.reserve(HELLO);
        }
        if socket.read(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

impl Relay {
    /// Serves a connection whose first bytes were `prefix`.
    async fn serve(
        &self,
        context: &FrontContext,
        socket: &Socket,
        accepted: &Accepted,
        mut prefix: Vec<u8>,
        record: &mut Record,
    ) -> ConnectionEnd {
        if !self.access.admits(accepted.peer.ip()) {
            socket.reset();
            return ConnectionEnd::Denied;
        }
        if let Some(tls) = &self.tls {
            let prefix = std::mem::take(&mut prefix);
            let handshake = accept_tls(context, socket, prefix, |_, _| Some(tls.clone()));
            if Box::pin(handshake).await.is_none() {
                return ConnectionEnd::NoTls;
            }
            socket.unlimit_read();
        }
        socket.set_activity(Activity::Busy);
        let client = RelayClient { address: accepted.peer, server: accepted.local };
        let backend = tokio::select! {
            backend = self.backends.connect(&client) => backend,
            () = accepted.thread.ended() => {
                socket.reset();
                return ConnectionEnd::Stopped;
            }
        };
        match backend {
            Ok(backend) => self.carry(accepted, socket, backend, (prefix, record)).await,
            Err(fault) => {
                accepted.thread.log_limited(Level::Warn, &format!("{}: {fault}", accepted.peer));
                socket.reset();
                ConnectionEnd::NoBackend
            }
        }
    }

    /// Passes bytes in both directions.
    async fn carry(
        &self,
        accepted: &Accepted,
        socket: &Socket,
        backend: RelayBackend,
        (prefix, record): (Vec<u8>, &mut Record),
    ) -> ConnectionEnd {
        let thread = &accepted.thread;
        record.backend = Some(backend.name.clone());
        let idle = self.idle.unwrap_or_else(|| thread.settings().timeouts.tunnel_idle);
        socket.limit_writes(idle);
        backend.socket.limit_writes(idle);
        let bridge = Bridge::of_sockets(socket, &backend.socket, idle);
        let end = tokio::select! {
            end = bridge.carry(prefix, Vec::new()) => Some(end),
            () = thread.ended() => None,
        };
        (record.received, record.sent) = bridge.carried();
        match end {
            Some(BridgeEnd::Closed { is_client_unread }) => {
                if is_client_unread {
                    socket.linger().await;
                }
                ConnectionEnd::Closed
            }
            Some(BridgeEnd::Idle) => {
                thread.counters.count_limit(Limit::TunnelIdle);
                ConnectionEnd::Idle
            }
            Some(BridgeEnd::Lost) | None => {
                // A reset shows each side that the data is incomplete.
                socket.reset();
                backend.socket.reset();
                if end.is_some() { ConnectionEnd::Lost } else { ConnectionEnd::Stopped }
            }
        }
    }
}

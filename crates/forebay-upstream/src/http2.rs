//! HTTP/2 to backends (RFC 9113): shared connections. Prior knowledge (the configuration) or ALPN
//! selects HTTP/2.
//!
//! [`Http2Pool`] holds the connections of one thread to one backend. `connection` holds the state
//! that the streams of a connection share, and `run` is the task that reads and writes it. `stream`
//! is one request and its reply, or a tunnel. `request` builds the requests and passes the replies
//! on.
//!
//! Each connection belongs to one thread. If the backend allows no more streams, the pool opens
//! another connection. Until the backend's settings arrive, a connection carries one request; other
//! requests wait in order of arrival.
//!
//! If later settings allow no streams, the pool opens another connection. If the first settings
//! allow no streams, requests wait for new settings, for at most the connect timeout. After a
//! GOAWAY with an error code, streams without a reply fail at once.
//!
//! A backend has not processed a request if it refuses the stream (REFUSED_STREAM), or if the
//! identifier in its GOAWAY is lower than the stream's. Forebay then resends the request, whatever
//! its method, if the request's body is still available (`upstream/attempts.rs`).
//!
//! While bytes arrive, Forebay sends no PING, because gRPC servers count PINGs. If a reply is late
//! and nothing else arrived on its connection, Forebay sends a PING. Until the answer arrives, the
//! connection gets no requests. After 5 s without an answer, Forebay closes the connection.
//!
//! Tomcat ends connections with too much overhead: it counts small DATA frames that do not end a
//! stream, small window updates, resets and PINGs. So if the length of a body is known, its last
//! DATA frame ends the stream. Forebay updates a window after half of it is used. `:scheme` is
//! `https` only if the backend connection uses TLS, because Tomcat compares scheme and connection.

mod connection;
pub mod request;
mod run;
mod stream;

pub use stream::{Stream, StreamEvent, StreamTunnel};

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;

use crate::upstream::{self, Backend, ConnectionOrigin, Multiplexed};
use connection::Http2Connection;

// The connections of one thread to a backend that may speak HTTP/2.

/// Connection or stream that carries a request to the backend.
pub enum AssignedStream {
    /// An HTTP/1.1 connection that carries only this request.
    Alone(upstream::BackendConnection),
    /// A stream of a shared HTTP/2 connection.
    Shared(Stream),
}

impl AssignedStream {
    /// Returns the origin of the connection: new, kept after an earlier request, or shared.
    pub fn past(&self) -> ConnectionOrigin {
        match self {
            Self::Alone(connection) => connection.past(),
            Self::Shared(_) => ConnectionOrigin::Shared,
        }
    }
}

/// HTTP/2 connections of one thread to one backend.
pub struct Http2Pool {
    thread: Rc<Thread>,
    connections: Multiplexed<Http2Connection>,
    /// True if the configuration requires HTTP/2 (prior knowledge), so the version is not
    /// negotiated.
    has_prior_knowledge: bool,
    /// True if the last TLS connection negotiated HTTP/1.1.
    is_http1: Cell<bool>,
    idle_time: Duration,
}

/// HTTP/2 pools of one thread, by backend address and idle time. Routes share these pools.
#[derive(Default)]
pub struct Http2Pools(RefCell<HashMap<(String, Duration), Rc<Http2Pool>>>);

impl Http2Pools {
    /// Returns the pool of a plaintext backend; creates it with `make` if there is none.
    pub fn of(&self, key: (String, Duration), make: impl FnOnce() -> Http2Pool) -> Rc<Http2Pool> {
        self.0.borrow_mut().entry(key).or_insert_with(|| Rc::new(make())).clone()
    }
}

impl Http2Pool {
    /// Creates an empty pool, whose connections may be idle for `idle_time`.
    pub fn new(thread: Rc<Thread>, has_prior_knowledge: bool, idle_time: Duration) -> Self {
        let connections = Multiplexed::new(usize::MAX);
        Self { thread, connections, has_prior_knowledge, is_http1: Cell::new(false), idle_time }
    }

    /// Returns a connection or stream for one request to `backend`. `is_new` is true if an attempt
    /// on another connection has failed. After such a failure, and for a request that is not
    /// repeatable, first checks if the backend has closed idle connections.
    pub async fn place(
        &self,
        backend: &Backend,
        is_new: bool,
        is_repeatable: bool,
    ) -> Result<AssignedStream, Fault> {
        if is_new || !is_repeatable {
            for connection in self.connections.connections() {
                connection.look().await;
            }
        }
        let find = || match self.connections.find() {
            Some(stream) => Some(Some(AssignedStream::Shared(stream))),
            // The backend supports only HTTP/1.1, so the request needs its own connection. End the
            // wait for a stream.
            None => self.is_http1.get().then_some(None),
        };
        let acquire = async |is_first| backend.acquire_shared_permit(is_first).await;
        let open = async |right| {
            let connection = backend.connect_with_permit(right).await?;
            let is_uncounted = backend.is_beyond_limit(&connection);
            let place = self.take_up(backend, connection);
            Ok(Some(place)
                .filter(|place| !is_uncounted || matches!(place, AssignedStream::Shared(_))))
        };
        let found = self.connections.wait_for(backend, find, acquire, open).await;
        if let Some(place) = found.map_err(|fault| self.explain_refusal(backend, fault))? {
            return Ok(place);
        }
        let connection = if is_repeatable || is_new {
            backend.connect(is_new).await?
        } else {
            backend.connect_non_idempotent().await?
        };
        Ok(self.take_up(backend, connection))
    }

    /// Returns the fault of a request that got no stream. If the backend allows no streams, the
    /// fault says so. In this case, closes the connections without streams, so that later requests
    /// open new connections. Otherwise returns `fault`.
    fn explain_refusal(&self, backend: &Backend, fault: Fault) -> Fault {
        let mut refusing = self.connections.connections();
        refusing.retain(|connection| connection.is_refusing());
        if refusing.is_empty() || fault.limit != Some(Limit::MaxConnections) {
            return fault;
        }
        refusing.iter().for_each(|connection| connection.retire());
        let (name, limit) = (backend.name(), backend.connect_timeout());
        Fault::backend(
            503,
            format!(
                "{name} allows no streams (MAX_CONCURRENT_STREAMS = 0 in its SETTINGS), and has not \
                 changed that within {limit:?}"
            ),
        )
    }

    /// Turns a new connection into an [`AssignedStream`], depending on its HTTP version.
    fn take_up(
        &self,
        backend: &Backend,
        connection: upstream::BackendConnection,
    ) -> AssignedStream {
        if !self.has_prior_knowledge && !connection.is_http2 {
            self.is_http1.set(true);
            self.connections.capacity_changed().notify_one();
            return AssignedStream::Alone(connection);
        }
        self.is_http1.set(false);
        let capacity_changed = self.connections.capacity_changed().clone();
        let shared = Http2Connection::new(
            self.thread.clone(),
            backend,
            connection,
            self.idle_time,
            capacity_changed,
        );
        tokio::task::spawn_local(shared.clone().run());
        let stream = shared.reserve();
        self.connections.add(&shared);
        AssignedStream::Shared(stream)
    }
}

/// Retires all connections. Each connection closes when its requests have ended.
impl Drop for Http2Pool {
    fn drop(&mut self) {
        self.connections.connections().iter().for_each(|connection| connection.retire());
    }
}

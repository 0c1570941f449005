//! QUIC connection of a client (RFC 9000) without a socket: datagrams and timers on one side, events
//! of streams on the other. `quinn_proto` provides the protocol.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use forebay_wire::http3::ErrorCode;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, Event, StreamEvent, TransportConfig, VarInt, crypto,
};

use crate::SessionEnd;

/// Configuration of the QUIC connections of a session.
#[derive(Clone)]
pub struct Http3Config {
    endpoint: Arc<EndpointConfig>,
    client: ClientConfig,
    server_name: String,
}

pub(super) struct Quic {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    pub connection: Connection,
    /// Next datagram to send; empty if there is none.
    pub output: Vec<u8>,
    begun: Instant,
    pub is_established: bool,
    /// Time that the handshake took; `None` after the caller has taken the value.
    pub handshake: Option<Duration>,
}

/// Placeholder for the server's address, which `quinn_proto` requires. The caller's socket is
/// connected to the real address, so that no datagram of another address arrives.
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 443);

/// Maximum number of the server's unidirectional streams: the control stream, two for QPACK, and some
/// of unknown kinds.
const UNI_STREAMS: u32 = 8;

/// Maximum unread bytes of one stream, and of all streams. Browsers allow similar amounts.
const STREAM_WINDOW: u32 = 6 << 20;
const WINDOW: u32 = 15 << 20;

/// First TLS alert in the error codes of QUIC (RFC 9001 section 4.8).
const ALERTS: u64 = 0x100;

impl Http3Config {
    /// Creates the configuration from the TLS configuration of the client. The server's certificate
    /// must contain the name `server_name`.
    pub fn new(crypto: Arc<dyn crypto::ClientConfig>, server_name: String) -> Self {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(UNI_STREAMS.into())
            .stream_receive_window(STREAM_WINDOW.into())
            .receive_window(WINDOW.into())
            .datagram_receive_buffer_size(None)
            // Let only the server end an idle connection, as with TCP.
            .max_idle_timeout(None);
        let mut client = ClientConfig::new(crypto);
        client.transport_config(Arc::new(transport));
        Self { endpoint: Arc::new(EndpointConfig::default()), client, server_name }
    }
}

impl Quic {
    /// Begins a connection. The handshake starts with the first output.
    pub fn connect(config: &Http3Config, now: Instant) -> Result<Self, SessionEnd> {
        let mut endpoint = Endpoint::new(config.endpoint.clone(), None, true, None);
        let connected = endpoint.connect(now, config.client.clone(), SERVER, &config.server_name);
        let (handle, connection) = connected.map_err(|error| SessionEnd {
            reason: error.to_string(),
            alert: None,
            is_orderly: false,
        })?;
        Ok(Self {
            endpoint,
            handle,
            connection,
            output: Vec::new(),
            begun: now,
            is_established: false,
            handshake: None,
        })
    }

    /// Processes received datagrams, each of `size` bytes except for the last one.
    pub fn receive(&mut self, bytes: &[u8], size: usize, now: Instant) {
        let mut rest = BytesMut::from(bytes);
        let mut reply = Vec::new();
        while !rest.is_empty() {
            let datagram = rest.split_to(size.clamp(1, rest.len()));
            let event = self.endpoint.handle(now, SERVER, None, None, datagram, &mut reply);
            // Ignore other events. They ask for a reply to a packet of an unknown connection, and a
            // client need not send this reply.
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                self.connection.handle_event(event);
            }
        }
        self.exchange_events();
    }

    pub fn expire(&mut self, now: Instant) {
        if self.connection.poll_timeout().is_some_and(|at| at <= now) {
            self.connection.handle_timeout(now);
            self.exchange_events();
        }
    }

    /// Returns the next event of a stream, or `None` if no event is left. Fails if the connection
    /// has ended.
    pub fn poll(&mut self, now: Instant) -> Result<Option<StreamEvent>, SessionEnd> {
        loop {
            match self.connection.poll() {
                None => return Ok(None),
                Some(Event::Stream(event)) => return Ok(Some(event)),
                Some(Event::Connected) => {
                    self.is_established = true;
                    self.handshake = Some(now - self.begun);
                }
                Some(Event::ConnectionLost { reason }) => return Err(explain(&reason)),
                Some(_) => {}
            }
        }
    }

    /// Creates the next datagram, if the connection has something to send. Does nothing if the last
    /// datagram has not been sent yet.
    pub fn prepare(&mut self, now: Instant) {
        if self.output.is_empty() {
            // The result contains the datagram's destination, which a connected socket does not
            // need.
            let _ = self.connection.poll_transmit(now, 1, &mut self.output);
            self.exchange_events();
        }
    }

    pub fn close(&mut self, code: ErrorCode, now: Instant) {
        if !self.connection.is_closed() {
            self.connection.close(now, code.0.into(), Bytes::new());
        }
    }

    /// Passes events between the connection and its endpoint, such as new connection IDs.
    fn exchange_events(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
    }
}

/// Describes the end of a connection. The end is orderly if the server closed the connection
/// without an error, if it sent a stateless reset, or if the connection was idle for too long.
fn explain(reason: &ConnectionError) -> SessionEnd {
    let mut end = SessionEnd { reason: reason.to_string(), alert: None, is_orderly: false };
    match reason {
        ConnectionError::ApplicationClosed(close) => {
            let code = error_code(close.error_code);
            end.is_orderly = code == ErrorCode::NO_ERROR;
            end.reason = format!("the server closed the connection ({code})");
        }
        ConnectionError::ConnectionClosed(close) => {
            let code = u64::from(close.error_code);
            end.alert = code.checked_sub(ALERTS).and_then(|alert| u8::try_from(alert).ok());
            end.reason = format!("the server closed the connection: {close}");
        }
        ConnectionError::Reset => {
            end.is_orderly = true;
            end.reason = "the server no longer knows the connection (stateless reset)".to_owned();
        }
        ConnectionError::TimedOut => {
            end.is_orderly = true;
            end.reason = "the connection was idle for too long".to_owned();
        }
        ConnectionError::VersionMismatch => {
            end.reason = "the server does not support QUIC version 1".to_owned();
        }
        _ => {}
    }
    end
}

/// Converts an error code of QUIC to one of HTTP/3.
pub(super) fn error_code(code: VarInt) -> ErrorCode {
    ErrorCode(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
}

impl fmt::Debug for Http3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Config")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Quic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quic").field("is_established", &self.is_established).finish_non_exhaustive()
    }
}

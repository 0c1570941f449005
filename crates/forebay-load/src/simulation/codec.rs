//! Server sides of protocols for the simulation, HTTP/3 with `quinn_proto` on the virtual clock.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use forebay_testkit::tls::Authority;
use forebay_wire::fields::of_lines;
use forebay_wire::http3;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ServerConfig, Side, StreamEvent, StreamId,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::clock;

/// Output of a server: pieces of a stream, or datagrams.
pub type ServerOutput = VecDeque<Vec<u8>>;

/// Server side of one connection.
pub trait Codec: Send {
    /// Processes received bytes. Appends output that must not wait for a reply. Returns the IDs of
    /// the requests that are now complete.
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32>;

    /// Appends the reply to a request.
    fn reply(&mut self, id: u32, out: &mut ServerOutput);

    /// Returns the time at which the caller must call [`Codec::expire`], or `None` if there is no
    /// such time.
    fn timeout(&mut self) -> Option<Instant> {
        None
    }

    /// Does the work that is due now, such as the resending of lost data.
    fn expire(&mut self, _out: &mut ServerOutput) {}
}

/// HTTP/1.1 without bodies of requests.
#[derive(Default)]
pub struct Http1Codec(Vec<u8>);

/// WebSocket with short messages.
#[derive(Default)]
pub struct WebSocketCodec {
    unread: Vec<u8>,
    is_open: bool,
}

/// FastCGI, for one request at a time or several.
#[derive(Default)]
pub struct FastcgiCodec(Vec<u8>);

/// HTTP/2 with prior knowledge. Heads of requests are not decoded. Heads of replies need no
/// compression state.
#[derive(Default)]
pub struct Http2Codec {
    unread: Vec<u8>,
    is_open: bool,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Removes a head from the received bytes. Returns false if it is not complete.
fn take_head(unread: &mut Vec<u8>) -> bool {
    let Some(at) = memchr::memmem::find(unread, b"\r\n\r\n") else { return false };
    unread.drain(..at + 4);
    true
}

impl Codec for Http1Codec {
    fn receive(&mut self, bytes: &[u8], _: &mut ServerOutput) -> Vec<u32> {
        self.0.extend_from_slice(bytes);
        let mut ids = Vec::new();
        while take_head(&mut self.0) {
            ids.push(0);
        }
        ids
    }

    fn reply(&mut self, _: u32, out: &mut ServerOutput) {
        out.push_back(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n".to_vec());
    }
}

impl Codec for WebSocketCodec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.unread.extend_from_slice(bytes);
        if !self.is_open && take_head(&mut self.unread) {
            self.is_open = true;
            let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            out.push_back(head.into());
        }
        let mut ids = Vec::new();
        while self.is_open && self.unread.len() >= 6 {
            // A frame of a client has two bytes, a masking key of four, and its payload.
            self.unread.drain(..6 + usize::from(self.unread[1] & 0x7f));
            ids.push(0);
        }
        ids
    }

    fn reply(&mut self, _: u32, out: &mut ServerOutput) {
        out.push_back(b"\x81\x02ok".to_vec());
    }
}

impl Codec for FastcgiCodec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.0.extend_from_slice(bytes);
        let mut ids = Vec::new();
        while self.0.len() >= 8 {
            let word = |at: usize| u16::from_be_bytes([self.0[at], self.0[at + 1]]);
            let (kind, id, length) = (self.0[1], word(2), word(4));
            self.0.drain(..8 + usize::from(length));
            match kind {
                // The end of STDIN ends a request.
                5 if length == 0 => ids.push(u32::from(id)),
                // Answers GET_VALUES.
                9 => out.push_back(b"\x01\x0a\0\0\0\x12\0\0\x0f\x01FCGI_MPXS_CONNS1".to_vec()),
                _ => {}
            }
        }
        ids
    }

    fn reply(&mut self, id: u32, out: &mut ServerOutput) {
        let [.., high, low] = id.to_be_bytes();
        let stdout = b"Status: 200 OK\r\n\r\nok\n";
        let head = [1, 6, high, low, 0, stdout.len() as u8, 0, 0];
        let end = [1, 3, high, low, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        out.push_back([&head[..], stdout, &end].concat());
    }
}

impl Codec for Http2Codec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        self.unread.extend_from_slice(bytes);
        if !self.is_open && self.unread.starts_with(PREFACE) {
            self.unread.drain(..PREFACE.len());
            self.is_open = true;
            out.push_back(vec![0, 0, 0, 4, 0, 0, 0, 0, 0]);
        }
        let mut ids = Vec::new();
        while self.is_open && self.unread.len() >= 9 {
            let frame = &self.unread;
            let length = usize::from(frame[1]) << 8 | usize::from(frame[2]);
            let (kind, flags) = (frame[3], frame[4]);
            let id = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
            self.unread.drain(..9 + length);
            match kind {
                1 => ids.push(id),
                // Acknowledges SETTINGS.
                4 if flags & 1 == 0 => out.push_back(vec![0, 0, 0, 4, 1, 0, 0, 0, 0]),
                _ => {}
            }
        }
        ids
    }

    fn reply(&mut self, id: u32, out: &mut ServerOutput) {
        let id = id.to_be_bytes();
        // The reply is HEADERS with `:status: 200`, and DATA with the end of the stream.
        let head = [&[0, 0, 1, 1, 4][..], &id, &[0x88]].concat();
        out.push_back([&head[..], &[0, 0, 3, 0, 1], &id, b"ok\n"].concat());
    }
}

// Server side of HTTP/3 for the simulation, with `quinn_proto` on the virtual clock.

/// HTTP/3 connection whose requests have no bodies.
pub struct Http3Codec {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
}

const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// Returns the configuration of a server with a certificate of an unknown authority.
pub fn server_config() -> Arc<ServerConfig> {
    let identity = Authority::new("An authority").issue(&["127.0.0.1"]);
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    Arc::new(ServerConfig::with_crypto(Arc::new(crypto)))
}

impl Http3Codec {
    pub fn new(config: Arc<ServerConfig>) -> Self {
        let endpoint = Arc::new(EndpointConfig::default());
        Self { endpoint: Endpoint::new(endpoint, Some(config), true, None), connection: None }
    }

    /// Processes events and creates datagrams. Returns the indices of new streams of requests.
    fn drive(&mut self, out: &mut ServerOutput) -> Vec<u32> {
        let Some((handle, connection)) = &mut self.connection else { return Vec::new() };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        let mut ids = Vec::new();
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => {
                    let mut opening = Vec::new();
                    http3::opening(&mut opening, 32 * 1024);
                    let control = connection.streams().open(Dir::Uni).unwrap();
                    connection.send_stream(control).write(&opening).unwrap();
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    while let Some(id) = connection.streams().accept(Dir::Bi) {
                        read(connection, id);
                        ids.push(id.index() as u32);
                    }
                }
                _ => {}
            }
        }
        let mut datagram = Vec::new();
        while connection.poll_transmit(clock::now(), 1, &mut datagram).is_some() {
            out.push_back(std::mem::take(&mut datagram));
        }
        ids
    }
}

/// Reads and drops a request. The datagram that has just arrived contains the whole request.
fn read(connection: &mut Connection, id: StreamId) {
    let mut stream = connection.recv_stream(id);
    let mut chunks = stream.read(true).unwrap();
    while let Ok(Some(_)) = chunks.next(usize::MAX) {}
    let _ = chunks.finalize();
}

impl Codec for Http3Codec {
    fn receive(&mut self, bytes: &[u8], out: &mut ServerOutput) -> Vec<u32> {
        let (now, mut reply) = (clock::now(), Vec::new());
        match self.endpoint.handle(now, CLIENT, None, None, bytes.into(), &mut reply) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut reply, None);
                self.connection = accepted.ok();
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        self.drive(out)
    }

    fn reply(&mut self, id: u32, out: &mut ServerOutput) {
        let mut bytes = Vec::new();
        http3::head(&mut bytes, 200, of_lines(b"Content-Length: 3\r\n"));
        http3::data_header(&mut bytes, 3);
        bytes.extend_from_slice(b"ok\n");
        if let Some((_, connection)) = &mut self.connection {
            let stream = StreamId::new(Side::Client, Dir::Bi, id.into());
            let mut stream = connection.send_stream(stream);
            stream.write(&bytes).unwrap();
            stream.finish().unwrap();
        }
        self.drive(out);
    }

    fn timeout(&mut self) -> Option<Instant> {
        self.connection.as_mut().and_then(|(_, connection)| connection.poll_timeout())
    }

    fn expire(&mut self, out: &mut ServerOutput) {
        if let Some((_, connection)) = &mut self.connection {
            connection.handle_timeout(clock::now());
        }
        self.drive(out);
    }
}

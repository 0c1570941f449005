//! Server side of HTTP/3 for the simulation, with `quinn_proto` on the virtual clock.

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

use super::codec::{Codec, ServerOutput};
use crate::clock;

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

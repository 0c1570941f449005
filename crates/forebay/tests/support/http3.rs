//! A client that speaks HTTP/3 by the crate `h3`, and one that writes streams byte by byte.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use forebay_testkit::DEADLINE;
use forebay_testkit::tls::Authority;
use h3::client::{RequestStream, SendRequest};
use h3_quinn::OpenStreams;
use http::{Method, Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, RecvStream, SendStream};

/// A stream of the crate's.
pub type Exchange = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// Runs what a test does as a client.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(6 * DEADLINE, test).await };
    runtime.block_on(limited).expect("it ends in time")
}

/// A connection.
pub struct Client {
    pub quic: quinn::Connection,
    pub requests: SendRequest<OpenStreams, Bytes>,
    pub address: SocketAddr,
    /// Ends with the connection.
    pub driver: tokio::task::JoinHandle<()>,
}

/// What came.
pub struct Reply {
    pub head: Response<()>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A connection of QUIC to a server that has a certificate of `authority` for `name`.
pub async fn connect_quic(
    address: SocketAddr,
    name: &str,
    authority: &Authority,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    connect_from(&endpoint(), address, name, authority).await
}

/// As [`connect_quic`], from this socket.
pub async fn connect_from(
    endpoint: &Endpoint,
    address: SocketAddr,
    name: &str,
    authority: &Authority,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let mut config = authority.client_of(None, &[&rustls::version::TLS13]);
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.enable_early_data = true;
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    endpoint.connect_with(config, address, name).unwrap().await
}

/// A client's socket.
pub fn endpoint() -> Endpoint {
    Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

impl Client {
    pub async fn connect(address: SocketAddr, authority: &Authority) -> Self {
        Self::connect_from(&endpoint(), address, authority).await
    }

    pub async fn connect_from(
        endpoint: &Endpoint,
        address: SocketAddr,
        authority: &Authority,
    ) -> Self {
        let quic = connect_from(endpoint, address, "localhost", authority).await.unwrap();
        let connection = h3_quinn::Connection::new(quic.clone());
        let (mut driver, requests) = h3::client::new(connection).await.unwrap();
        let driver = tokio::spawn(async move {
            std::future::poll_fn(|context| driver.poll_close(context)).await;
        });
        Self { quic, requests, address, driver }
    }

    pub fn request(&self, method: Method, target: &str) -> http::request::Builder {
        let uri = format!("https://localhost:{}{target}", self.address.port());
        Request::builder().method(method).uri(uri)
    }

    /// A request that ends with its head.
    pub async fn ask(&self, method: Method, target: &str) -> Reply {
        let request = self.request(method, target).body(()).unwrap();
        let mut exchange = self.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        reply_to(&mut exchange).await
    }

    pub async fn get(&self, target: &str) -> Reply {
        self.ask(Method::GET, target).await
    }

    /// A request with a body.
    pub async fn post(&self, target: &str, body: &[u8]) -> Reply {
        let request = self.request(Method::POST, target).body(()).unwrap();
        let mut exchange = self.requests.clone().send_request(request).await.unwrap();
        for piece in body.chunks(100_000) {
            exchange.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        exchange.finish().await.unwrap();
        reply_to(&mut exchange).await
    }
}

/// All of a reply.
pub async fn reply_to(exchange: &mut Exchange) -> Reply {
    let head = exchange.recv_response().await.unwrap();
    let mut body = Vec::new();
    while let Some(mut piece) = exchange.recv_data().await.unwrap() {
        while piece.has_remaining() {
            let chunk = piece.chunk();
            body.extend_from_slice(chunk);
            let count = chunk.len();
            piece.advance(count);
        }
    }
    Reply { head, body }
}

/// Frames and field sections, written down by hand.
pub mod raw {
    /// A frame.
    pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend_from_slice(&(payload.len() as u32 | 0x8000_0000).to_be_bytes());
        out.extend_from_slice(payload);
        out
    }

    /// A frame of HEADERS with these fields, as literals.
    pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut section = vec![0, 0];
        for (name, value) in fields {
            number(&mut section, name.len(), 3, 0x20);
            section.extend_from_slice(name.as_bytes());
            number(&mut section, value.len(), 7, 0);
            section.extend_from_slice(value.as_bytes());
        }
        frame(1, &section)
    }

    fn number(out: &mut Vec<u8>, value: usize, bits: u32, pattern: u8) {
        let prefix = (1 << bits) - 1;
        if value < prefix {
            return out.push(pattern | value as u8);
        }
        out.push(pattern | prefix as u8);
        let mut rest = value - prefix;
        while rest >= 128 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
}

/// How a stream or its connection ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// With so many bytes.
    Finished(usize),
    /// The stream was reset with this code.
    Reset(u64),
    /// The connection was closed with this code.
    Closed(u64),
}

/// Sends `bytes` on a new stream, ended by FIN where it `ends`, and reads what comes.
pub async fn exchange_raw(quic: &quinn::Connection, bytes: &[u8], ends: bool) -> End {
    let (mut send, mut receive): (SendStream, RecvStream) = quic.open_bi().await.unwrap();
    // Where it fails the server has refused it, which reading shows.
    let _ = send.write_all(bytes).await;
    if ends {
        let _ = send.finish();
    }
    let mut count = 0;
    loop {
        match receive.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => count += chunk.bytes.len(),
            Ok(None) => return End::Finished(count),
            Err(quinn::ReadError::Reset(code)) => return End::Reset(code.into()),
            Err(quinn::ReadError::ConnectionLost(error)) => return End::Closed(code_of(&error)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The code that a server has closed a connection with.
pub fn code_of(error: &quinn::ConnectionError) -> u64 {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into(),
        other => panic!("{other}"),
    }
}

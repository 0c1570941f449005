//! Two HTTP/3 clients: one uses the crate `h3`, the other writes streams byte by byte.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use bytes::{Buf, Bytes};
use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::tls::{Authority, Identity};
use h3::client::{RequestStream, SendRequest};
use h3_quinn::OpenStreams;
use http::{Method, Request, Response};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};

use super::{Forebay, serve};

/// The code of a malformed request.
pub const MESSAGE_ERROR: u64 = 0x10e;

pub const SITE: &str = "[[site]]\nlisten = \"https://127.0.0.1:0\"\nhttp3 = true\n\
                    tls = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
pub const HELLO: &str = "[[site.route]]\nrespond = \"hello\"\n";

pub fn write_identity(folder: &Folder, identity: &Identity) {
    folder.write("cert.pem", &identity.certificate);
    folder.write("key.pem", &identity.key);
}

/// Returns a site with these routes, and the authority of its certificate.
pub fn site(folder: Folder, routes: &str) -> (Forebay, Authority) {
    site_after("", folder, routes)
}

/// As [`site`], with text before it.
pub fn site_after(first: &str, folder: Folder, routes: &str) -> (Forebay, Authority) {
    let authority = Authority::new("of the test");
    write_identity(&folder, &authority.issue(&["localhost"]));
    let forebay = serve(folder, &format!("{first}{SITE}{routes}"));
    (forebay, authority)
}

/// A backend with one HTTP/1.1 connection. `serve` gets the connection after the request's head.
pub fn backend<T: Send + 'static>(
    serve: impl FnOnce(String, BufReader<TcpStream>) -> T + Send + 'static,
) -> (String, thread::JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let route = format!("[[site.route]]\nproxy = \"http://{}\"\n", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0, "{head}");
        }
        serve(head, stream)
    });
    (route, serving)
}

/// Returns HEADERS of a GET, with its pseudo-fields and these fields.
pub fn with(path: &'static str, fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut all = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ];
    all.extend_from_slice(fields);
    raw::headers(&all)
}

/// A stream of the crate `h3`.
pub type Exchange = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// Runs the client of a test.
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

/// The parts of a reply that have arrived.
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

/// Returns a QUIC connection to a server that has a certificate of `authority` for `name`.
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
    endpoint.connect_with(config_of(authority), address, name).unwrap().await
}

/// Returns the configuration of a client that trusts `authority`.
pub fn config_of(authority: &Authority) -> ClientConfig {
    let mut config = authority.client_of(None, &[&rustls::version::TLS13]);
    config.alpn_protocols = vec![b"h3".to_vec()];
    config.enable_early_data = true;
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

/// As [`connect_quic`], to `localhost`. Each stream may get this many bytes before they are read.
pub async fn connect_with_window(
    address: SocketAddr,
    authority: &Authority,
    window: u32,
) -> quinn::Connection {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window));
    let mut config = config_of(authority);
    config.transport_config(Arc::new(transport));
    endpoint().connect_with(config, address, "localhost").unwrap().await.unwrap()
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

    /// Sends a request that ends with its head.
    pub async fn ask(&self, method: Method, target: &str) -> Reply {
        let request = self.request(method, target).body(()).unwrap();
        let mut exchange = self.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        reply_to(&mut exchange).await
    }

    pub async fn get(&self, target: &str) -> Reply {
        self.ask(Method::GET, target).await
    }

    /// Sends a request with a body.
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

/// Reads a complete reply.
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

/// Checks that a connection continues although a stream has ended.
pub async fn still_serves(client: &Client) {
    assert_eq!(client.get("/").await.text(), "hello");
}

/// Frames and field sections in their encoded form.
pub mod raw {
    /// Returns a frame.
    pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend_from_slice(&(payload.len() as u32 | 0x8000_0000).to_be_bytes());
        out.extend_from_slice(payload);
        out
    }

    /// Returns a HEADERS frame with these fields as literals.
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

/// The end of a stream or its connection.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The stream ended after this many bytes.
    Finished(usize),
    /// The stream was reset with this code.
    Reset(u64),
    /// The connection was closed with this code.
    Closed(u64),
}

/// Sends `bytes` on a new stream, with FIN if `ends`. Reads to the end.
pub async fn exchange_raw(quic: &quinn::Connection, bytes: &[u8], ends: bool) -> End {
    exchange_bytes(quic, bytes, ends).await.1
}

/// As [`exchange_raw`]. Also returns the bytes.
pub async fn exchange_bytes(quic: &quinn::Connection, bytes: &[u8], ends: bool) -> (Vec<u8>, End) {
    let (mut send, mut receive): (SendStream, RecvStream) = quic.open_bi().await.unwrap();
    // If this fails, the server has refused it, and the read below reports that.
    let _ = send.write_all(bytes).await;
    if ends {
        let _ = send.finish();
    }
    let mut came = Vec::new();
    let end = loop {
        match receive.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => came.extend_from_slice(&chunk.bytes),
            Ok(None) => break End::Finished(came.len()),
            Err(quinn::ReadError::Reset(code)) => break End::Reset(code.into()),
            Err(quinn::ReadError::ConnectionLost(error)) => break End::Closed(code_of(&error)),
            Err(error) => panic!("{error}"),
        }
    };
    (came, end)
}

/// Returns the code with which a server has closed a connection.
pub fn code_of(error: &quinn::ConnectionError) -> u64 {
    match error {
        quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into(),
        other => panic!("{other}"),
    }
}

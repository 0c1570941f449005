//! Load over HTTP/3 on a scripted server: counts, failures of streams and connections, and TLS.

mod support;

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay_load::{
    Arrivals, Check, Control, Error, Rate, Spec, Stop, TlsOptions, Turns, Url, fetch,
};
use forebay_testkit::tls::{Authority, Identity};
use forebay_wire::fields::of_lines;
use forebay_wire::http3;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, ServerConfig, TransportConfig};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use tokio::sync::Notify;

use support::{load, load_without_failure, spec};

/// Server that answers each request as its script says.
struct Server {
    address: SocketAddr,
    directory: tempfile::TempDir,
    requests: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
}

/// Number of a request, of its connection and of its stream, each from 0.
#[derive(Clone, Copy)]
struct Place {
    request: u64,
    connection: u64,
    /// Index of the stream on its connection.
    stream: u64,
}

/// Action of the server on a request.
enum Act {
    /// Sends these bytes and ends the stream.
    Send(Vec<u8>),
    /// Sends these bytes and resets the stream with this code.
    Reset(Vec<u8>, u32),
    /// Sends these bytes, ends the stream, and closes the idle connection without an error.
    Last(Vec<u8>),
    /// Sends these bytes and closes the connection with this code.
    Close(Vec<u8>, u32),
    /// Sends GOAWAY with this stream index, and no reply.
    Goaway(u64),
    /// Sends nothing.
    Wait,
    /// Closes the server's socket.
    Stop,
}

#[derive(Clone, Copy)]
struct Options {
    streams: u32,
    alpn: &'static [u8],
    /// First bytes of the server's unidirectional stream, instead of its settings.
    opening: Option<&'static [u8]>,
}

const USUAL: Options = Options { streams: 100, alpn: b"h3", opening: None };

impl Server {
    fn start(script: impl Fn(Place) -> Act + Send + Sync + 'static) -> Self {
        Self::with(USUAL, script)
    }

    fn with(options: Options, script: impl Fn(Place) -> Act + Send + Sync + 'static) -> Self {
        let authority = Authority::new("An authority");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), &authority.pem).unwrap();
        let config = server_config(&authority.issue(&["127.0.0.1"]), options);
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let (requests, connections) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let server = Self {
            address,
            directory,
            requests: requests.clone(),
            connections: connections.clone(),
        };
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let quinn = Arc::new(quinn::TokioRuntime);
                let endpoint = Endpoint::new(Default::default(), Some(config), socket, quinn);
                let (endpoint, script) = (endpoint.unwrap(), Arc::new(script));
                let stop = Arc::new(Notify::new());
                loop {
                    let incoming = tokio::select! {
                        incoming = endpoint.accept() => incoming.unwrap(),
                        () = stop.notified() => return,
                    };
                    let (script, requests) = (script.clone(), requests.clone());
                    let stop = stop.clone();
                    let connections = connections.clone();
                    tokio::spawn(async move {
                        let Ok(quic) = incoming.await else { return };
                        let connection = connections.fetch_add(1, Ordering::SeqCst);
                        let counts = (connection, &*requests);
                        serve(quic, options, counts, &*script, &stop).await;
                    });
                }
            });
        });
        server
    }

    fn url(&self) -> Url {
        Url::parse(&format!("https://{}/", self.address)).unwrap().over_http3().unwrap()
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.directory.path().join("ca.pem"))
    }

    /// Returns the settings for `n` requests, which trust the server's authority.
    fn spec(&self, n: u64) -> Spec {
        let tls = TlsOptions { ca: self.ca(), ..TlsOptions::default() };
        Spec { tls, ..spec(self.url(), n) }
    }

    /// Returns the settings for `n` requests over one connection with `streams` streams.
    fn over(&self, streams: usize, n: u64) -> Spec {
        Spec { connections: 1, streams, ..self.spec(n) }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

fn server_config(identity: &Identity, options: Options) -> ServerConfig {
    let Identity { certificate, key } = identity;
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    tls.alpn_protocols = vec![options.alpn.to_vec()];
    let crypto = QuicServerConfig::try_from(tls).unwrap();
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = TransportConfig::default();
    transport.max_concurrent_bidi_streams(options.streams.into());
    config.transport_config(Arc::new(transport));
    config
}

async fn serve(
    quic: quinn::Connection,
    options: Options,
    (connection, requests): (u64, &AtomicU64),
    script: &(dyn Fn(Place) -> Act + Send + Sync),
    stop: &Notify,
) {
    let mut opening = Vec::new();
    match options.opening {
        Some(bytes) => opening.extend_from_slice(bytes),
        None => http3::opening(&mut opening, 32 * 1024),
    }
    let Ok(mut control) = quic.open_uni().await else { return };
    let _ = control.write_all(&opening).await;
    for stream in 0.. {
        let Ok((mut send, mut recv)) = quic.accept_bi().await else { return };
        // Only whole requests count.
        if recv.read_to_end(1 << 20).await.is_err() {
            continue;
        }
        let request = requests.fetch_add(1, Ordering::SeqCst);
        match script(Place { request, connection, stream }) {
            Act::Send(bytes) => {
                tokio::spawn(async move {
                    let _ = send.write_all(&bytes).await;
                    let _ = send.finish();
                    let _ = send.stopped().await;
                });
            }
            Act::Reset(bytes, code) => {
                let _ = send.write_all(&bytes).await;
                let _ = send.reset(code.into());
            }
            Act::Last(bytes) => {
                let _ = send.write_all(&bytes).await;
                let _ = send.finish();
                // The client has acknowledged the whole stream.
                let _ = send.stopped().await;
                return quic.close(0x100u32.into(), b"");
            }
            Act::Close(bytes, code) => {
                let _ = send.write_all(&bytes).await;
                return quic.close(code.into(), b"");
            }
            Act::Goaway(index) => {
                let mut goaway = Vec::new();
                http3::goaway(&mut goaway, Some(index * 4));
                let _ = control.write_all(&goaway).await;
                tokio::spawn(async move {
                    let _held = (send, recv);
                    pending::<()>().await;
                });
            }
            Act::Stop => stop.notify_one(),
            Act::Wait => {
                tokio::spawn(async move {
                    let _held = (send, recv);
                    pending::<()>().await;
                });
            }
        }
    }
}

/// Returns the stream of a reply with this body.
fn reply(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = format!("Content-Length: {}\r\n", body.len());
    http3::head(&mut bytes, 200, of_lines(length.as_bytes()));
    http3::data_header(&mut bytes, body.len() as u64);
    bytes.extend_from_slice(body);
    bytes
}

fn hello() -> Act {
    Act::Send(reply(b"hello"))
}

#[test]
fn the_server_counts_what_we_count() {
    let server = Server::start(|_| hello());
    let check = Some(Check { status: 200, body_contains: Some(b"hell".to_vec()) });
    let mut total = 0;
    for (connections, streams, n) in [(1, 1, 1), (2, 1, 301), (3, 8, 500), (1, 90, 1000)] {
        let spec = Spec { connections, streams, check: check.clone(), ..server.spec(n) };
        let before = server.connections();
        let outcome = load_without_failure(&spec, n);
        total += n;
        assert_eq!((server.requests(), outcome.bytes.body), (total, 5 * n));
        assert_eq!(outcome.protocol.to_string(), "h3");
        let opened = server.connections() - before;
        let handshakes = outcome.handshakes.unwrap();
        assert_eq!((handshakes.full, handshakes.resumed), (opened, 0));
        assert_eq!(handshakes.time.unwrap().count(), opened);
    }
}

#[test]
fn no_more_streams_are_used_than_the_server_allows() {
    let server = Server::with(Options { streams: 3, ..USUAL }, |_| hello());
    load_without_failure(&server.over(50, 400), 400);
    assert_eq!((server.requests(), server.connections()), (400, 1));
}

#[test]
fn an_open_loop_and_pauses_spread_over_streams() {
    let server = Server::start(|_| hello());
    let rate = Some(Rate { per_second: 1_000.0, arrivals: Arrivals::Poisson });
    load_without_failure(&Spec { rate, ..server.over(8, 200) }, 200);
    let think = Some(Duration::from_millis(1));
    load_without_failure(&Spec { think, ..server.over(8, 200) }, 200);
    assert_eq!(server.requests(), 400);
}

#[test]
fn large_bodies_go_in_both_directions() {
    let body = vec![b'x'; 3_000_000];
    let long = body.clone();
    let server = Server::start(move |_| Act::Send(reply(&long)));
    let outcome = load_without_failure(&server.over(2, 4), 4);
    assert_eq!(outcome.bytes.body, 12_000_000);
    let upload =
        Spec { method: "POST".into(), body: body[..900_000].to_vec(), ..server.over(2, 4) };
    load_without_failure(&upload, 4);
    assert_eq!(server.requests(), 8);
}

#[test]
fn interim_replies_and_replies_without_a_body_are_complete() {
    let server = Server::start(|place| {
        let mut bytes = Vec::new();
        http3::head(&mut bytes, 103, of_lines(b"Link: x\r\n"));
        match place.request % 2 {
            0 => http3::head(&mut bytes, 304, of_lines(b"Content-Length: 9\r\n")),
            _ => bytes.extend(reply(b"hello")),
        }
        Act::Send(bytes)
    });
    let outcome = load_without_failure(&server.over(1, 40), 40);
    assert_eq!(outcome.requests.status, [(200, 20), (304, 20)].into());
    let head = Server::start(|_| {
        let mut bytes = Vec::new();
        http3::head(&mut bytes, 200, of_lines(b"Content-Length: 5\r\n"));
        Act::Send(bytes)
    });
    load_without_failure(&Spec { method: "HEAD".into(), ..head.spec(20) }, 20);
}

#[test]
fn a_stream_that_is_reset_or_malformed_fails_alone() {
    let malformed = || {
        let mut bytes = Vec::new();
        http3::head(&mut bytes, 200, of_lines(b"Content-Length: 3\r\n"));
        bytes
    };
    let server = Server::start(move |place| match place.request % 10 {
        3 => Act::Reset(Vec::new(), 0x10b),
        5 => Act::Reset(reply(b"hello")[..6].to_vec(), 0x102),
        7 => Act::Send(malformed()),
        _ => hello(),
    });
    let outcome = load(&server.over(4, 100)).unwrap();
    let failures = &outcome.requests.failures;
    assert_eq!((outcome.requests.completed, failures.read, failures.protocol), (70, 20, 10));
    assert!(outcome.first_failure.unwrap().contains("reset the stream (H3_REQUEST_REJECTED)"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_violation_ends_the_connection_and_the_next_one_is_opened() {
    // The fourth reply has a DATA frame before the head.
    let server = Server::start(|place| match place.request {
        3 => Act::Send(vec![0, 1, b'x']),
        _ => hello(),
    });
    let outcome = load(&server.over(1, 20)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.protocol), (19, 1));
    assert!(outcome.first_failure.unwrap().contains("frame out of place"));
    assert_eq!(server.connections(), 2);
    // The control stream begins with DATA instead of SETTINGS.
    let options = Options { opening: Some(&[0, 0, 1, 0]), ..USUAL };
    let wrong = Server::with(options, |_| Act::Wait);
    let outcome = load(&wrong.over(1, 5)).unwrap();
    assert_eq!(outcome.requests.failures.protocol, 5, "{outcome:?}");
    assert!(outcome.first_failure.unwrap().contains("no settings"));
}

#[test]
fn requests_that_a_goaway_leaves_unprocessed_are_sent_again() {
    let server = Server::start(|place| match (place.connection, place.stream) {
        (0, 10) => Act::Goaway(10),
        (0, 11..) => Act::Wait,
        _ => hello(),
    });
    let outcome = load(&server.over(4, 100)).unwrap();
    let requests = &outcome.requests;
    assert_eq!((requests.completed, requests.failed, requests.sent), (100, 0, 100), "{outcome:?}");
    assert_eq!(server.requests(), 100 + requests.resent);
    assert!((1..=4).contains(&requests.resent) && server.connections() == 2);
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_reply_is_a_failed_read() {
    let server = Server::start(|place| match place.request {
        5 => Act::Close(reply(b"hello")[..6].to_vec(), 0x102),
        _ => hello(),
    });
    let outcome = load(&server.over(1, 20)).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.read), (19, 1));
    let why = outcome.first_failure.unwrap();
    assert!(why.contains("the server closed the connection (H3_INTERNAL_ERROR)"), "{why}");
    assert_eq!(server.connections(), 2);
}

#[test]
fn another_address_and_another_name_than_those_of_the_url_are_used() {
    let server = Server::start(|_| hello());
    let url = Url::parse("https://a.test/").unwrap().over_http3().unwrap();
    let url = url.connected_to(&[server.address.to_string().parse().unwrap()]).unwrap();
    let spec = Spec { url, ..server.spec(4) };
    assert!(load(&spec).unwrap_err().to_string().contains("certificate"));
    let tls = TlsOptions { server_name: Some("127.0.0.1".to_owned()), ..spec.tls.clone() };
    load_without_failure(&Spec { tls, ..spec }, 4);
}

#[test]
fn an_idle_connection_that_the_server_closes_is_no_failure() {
    let server = Server::start(|place| match place.stream {
        1 => Act::Last(reply(b"hello")),
        _ => hello(),
    });
    // The close must arrive within this pause.
    let think = Some(Duration::from_secs(1));
    let outcome = load_without_failure(&Spec { think, ..server.over(1, 3) }, 3);
    assert_eq!((outcome.requests.resent, server.requests(), server.connections()), (0, 3, 2));
}

#[test]
fn a_request_without_a_reply_times_out() {
    let server = Server::start(|place| if place.request == 2 { Act::Wait } else { hello() });
    let timeout = Duration::from_millis(300);
    let outcome = load(&Spec { timeout, ..server.over(1, 10) }).unwrap();
    assert_eq!((outcome.requests.completed, outcome.requests.failures.timeout), (9, 1));
}

#[test]
fn without_keepalive_each_request_has_a_connection_of_its_own() {
    let server = Server::start(|_| hello());
    let full = Spec { keepalive: false, ..server.spec(20) };
    let handshakes = load_without_failure(&full, 20).handshakes.unwrap();
    assert_eq!((handshakes.full, handshakes.resumed, server.connections()), (20, 0, 20));
    let tls = TlsOptions { resume: true, ..full.tls.clone() };
    let handshakes = load_without_failure(&Spec { tls, ..full }, 20).handshakes.unwrap();
    assert_eq!((handshakes.full, handshakes.resumed), (2, 18), "one of each connection is full");
}

#[test]
fn connections_stay_open_between_turns() {
    let server = Server::start(|_| hello());
    let one_thread = Spec { threads: 1, streams: 4, ..server.spec(1) };
    let mut turns = Turns::new(&one_thread).unwrap();
    for turn in 1..=3 {
        let outcome = turns.run(Stop::Requests(80), None, &Control::default()).unwrap();
        assert_eq!((outcome.requests.completed, outcome.requests.failed), (80, 0));
        assert_eq!((server.requests(), server.connections()), (80 * turn, 2));
    }
}

#[test]
fn certificates_are_verified_and_protocols_agreed() {
    let server = Server::start(|_| hello());
    let error = load(&spec(server.url(), 4)).unwrap_err();
    assert!(matches!(error, Error::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("--insecure"), "{error}");
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    load_without_failure(&Spec { tls: tls.clone(), ..spec(server.url(), 4) }, 4);
    let url = Url::parse(&format!("https://localhost:{}/", server.address.port())).unwrap();
    let error = load(&Spec { url: url.over_http3().unwrap(), ..server.spec(1) }).unwrap_err();
    assert!(error.to_string().contains("localhost"), "{error}");
    let patience = Duration::from_secs(10);
    assert!(fetch(&server.url(), patience, &[]).is_err());
    let other = Server::with(Options { alpn: b"other", ..USUAL }, |_| hello());
    let error = load(&Spec { tls, ..spec(other.url(), 1) }).unwrap_err().to_string();
    assert!(error.contains("does not offer HTTP/3 (h3)"), "{error}");
}

#[test]
fn a_port_without_http3_is_named() {
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = |socket: &UdpSocket| {
        let url = format!("https://{}/", socket.local_addr().unwrap());
        Url::parse(&url).unwrap().over_http3().unwrap()
    };
    let silent = Spec { timeout: Duration::from_millis(200), ..spec(url(&socket), 1) };
    let silent = Spec { tls, ..silent };
    let error = load(&silent).unwrap_err().to_string();
    assert!(error.contains("did not answer over UDP"), "{error}");
    drop(socket);
    let closed = Spec { timeout: Duration::from_secs(15), ..silent };
    let error = load(&closed).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("over UDP") && text.contains("refused"), "{text}");
}

#[test]
fn a_host_name_with_an_address_without_server_is_loaded() {
    // The server listens on 127.0.0.1 only, while `localhost` may have ::1 first.
    let server = Server::start(|_| hello());
    let url = Url::parse(&format!("https://localhost:{}/", server.address.port())).unwrap();
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    let url = url.over_http3().unwrap();
    load_without_failure(&Spec { tls, url, ..server.spec(20) }, 20);
}

#[test]
fn requests_fail_at_once_after_the_server_has_stopped() {
    let server = Server::start(|place| if place.request == 9 { Act::Stop } else { hello() });
    let timeout = Duration::from_secs(1);
    let outcome = load(&Spec { timeout, ..server.over(1, 20) }).unwrap();
    assert_eq!(outcome.requests.completed, 9, "{outcome:?}");
    assert!(outcome.gave_up && outcome.requests.failures.connect > 0, "{outcome:?}");
    assert_eq!((server.requests(), server.connections()), (10, 1));
}

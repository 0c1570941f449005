//! Load on TLS servers: certificates, full and resumed handshakes, and the end of connections.

#[allow(dead_code, reason = "the tests of HTTP/2 use the rest")]
#[path = "http2/frames.rs"]
mod frames;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_load::{Error, SlowPeers, Spec, Stop, TlsOptions, Url, fetch};
use forebay_testkit::tls::{Authority, Identity};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use support::{load, load_without_failure, spec};

type TlsStream = StreamOwned<ServerConnection, TcpStream>;

/// Server with a certificate for 127.0.0.1, and the file of its certificate authority.
struct Server {
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Server {
    /// Runs `script` on each connection, after the handshake.
    fn start(
        versions: &[&'static SupportedProtocolVersion],
        script: impl Fn(&mut TlsStream) + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new("An authority");
        let identity = authority.issue(&["127.0.0.1"]);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), &authority.pem).unwrap();
        Self::with(&identity, directory, versions, script)
    }

    /// Works as [`Server::start`] does, with the given certificate and the directory of its
    /// authority.
    fn with(
        identity: &Identity,
        directory: tempfile::TempDir,
        versions: &[&'static SupportedProtocolVersion],
        script: impl Fn(&mut TlsStream) + Send + Sync + 'static,
    ) -> Self {
        Self::with_alpn(identity, directory, (versions, &[b"http/1.1"]), script)
    }

    /// Works as [`Server::with`] does, with these names of protocols.
    fn with_alpn(
        identity: &Identity,
        directory: tempfile::TempDir,
        (versions, alpn): (&[&'static SupportedProtocolVersion], &[&[u8]]),
        script: impl Fn(&mut TlsStream) + Send + Sync + 'static,
    ) -> Self {
        let Identity { certificate, key } = identity;
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        thread::spawn(move || {
            for tcp in listener.incoming() {
                let (tcp, config, script) = (tcp.unwrap(), config.clone(), script.clone());
                tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    let mut stream = StreamOwned::new(connection, tcp);
                    if stream.conn.complete_io(&mut stream.sock).is_ok() {
                        script(&mut stream);
                    }
                });
            }
        });
        Self { address, directory }
    }

    fn url(&self) -> Url {
        Url::parse(&format!("https://{}/", self.address)).unwrap()
    }

    fn ca(&self) -> Option<PathBuf> {
        Some(self.directory.path().join("ca.pem"))
    }

    /// Returns the settings for `n` requests, which trust the server's authority.
    fn spec(&self, n: u64) -> Spec {
        let tls = TlsOptions { ca: self.ca(), ..TlsOptions::default() };
        Spec { tls, ..spec(self.url(), n) }
    }
}

/// Reads one request without a body. Returns false if the client has closed.
fn request(stream: &mut TlsStream) -> bool {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return false,
        }
    }
    true
}

/// Answers each request with a body of this many bytes.
fn answer(stream: &mut TlsStream, length: usize) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let reply = [head.as_bytes(), &vec![b'x'; length]].concat();
    while request(stream) && stream.write_all(&reply).is_ok() {}
}

#[test]
fn a_kept_connection_shakes_hands_once() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let server = Server::start(&[version], |stream| answer(stream, 5));
        let outcome = load_without_failure(&server.spec(100), 100);
        let handshakes = outcome.handshakes.unwrap();
        // On a busy machine, one of the two connections may send all requests.
        assert!((1..=2).contains(&handshakes.full) && handshakes.resumed == 0, "{handshakes:?}");
        assert_eq!(handshakes.time.unwrap().count(), handshakes.full);
        assert_eq!(outcome.bytes.body, 500);
    }
}

#[test]
fn replies_of_many_records_arrive_whole() {
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 1_000_000));
    let outcome = load_without_failure(&server.spec(10), 10);
    assert_eq!(outcome.bytes.body, 10_000_000);
}

#[test]
fn sessions_are_resumed_where_that_is_wanted() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let server = Server::start(&[version], |stream| answer(stream, 5));
        let full = Spec { keepalive: false, ..server.spec(20) };
        let handshakes = load_without_failure(&full, 20).handshakes.unwrap();
        assert_eq!((handshakes.full, handshakes.resumed), (20, 0));
        let tls = TlsOptions { resume: true, ..full.tls.clone() };
        let handshakes = load_without_failure(&Spec { tls, ..full }, 20).handshakes.unwrap();
        assert_eq!(
            (handshakes.full, handshakes.resumed),
            (2, 18),
            "one of each connection is full"
        );
    }
}

#[test]
fn an_unknown_authority_is_refused_unless_that_is_wanted() {
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 5));
    let error = load(&spec(server.url(), 4)).unwrap_err();
    assert!(matches!(error, Error::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("--insecure"), "{error}");
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    load_without_failure(&Spec { tls, ..spec(server.url(), 4) }, 4);
    assert!(fetch(&server.url(), Duration::from_secs(10), &[]).is_err());
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 5));
    let url = Url::parse(&format!("https://localhost:{}/", server.address.port())).unwrap();
    let error = load(&Spec { url, ..server.spec(1) }).unwrap_err();
    assert!(error.to_string().contains("localhost"), "{error}");
}

#[test]
fn silent_closes_after_each_reply_are_no_failures_over_tls() {
    for is_notified in [true, false] {
        let server = Server::start(rustls::ALL_VERSIONS, move |stream| {
            if request(stream) {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                if is_notified {
                    stream.conn.send_close_notify();
                }
                let _ = stream.flush();
            }
        });
        let outcome = load_without_failure(&server.spec(30), 30);
        assert_eq!(outcome.handshakes.unwrap().full, 30, "{is_notified}");
    }
}

#[test]
fn the_certificate_is_for_the_url_or_for_the_given_name() {
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 5));
    let rules = [server.address.to_string().parse().unwrap()];
    let moved = |url: &str| Url::parse(url).unwrap().connected_to(&rules).unwrap();
    for (url, name, is_accepted) in [
        ("https://127.0.0.1:1/", None, true),
        ("https://a.test/", None, false),
        ("https://a.test/", Some("127.0.0.1"), true),
        ("https://127.0.0.1:1/", Some("b.test"), false),
    ] {
        let spec = Spec { url: moved(url), ..server.spec(4) };
        let tls = TlsOptions { server_name: name.map(str::to_owned), ..spec.tls.clone() };
        let spec = Spec { tls, ..spec };
        if is_accepted {
            load_without_failure(&spec, 4);
        } else {
            let error = load(&spec).unwrap_err().to_string();
            assert!(error.contains("certificate"), "{url} {name:?}: {error}");
        }
    }
}

#[test]
fn a_server_without_tls_or_http2_is_named() {
    let plain = support::Server::start(|peer| {
        peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        peer.wait_for_close();
    });
    let url = Url::parse(&format!("https://{}/", plain.address)).unwrap();
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    let error = load(&Spec { tls, stop: Stop::Requests(1), ..spec(url, 1) }).unwrap_err();
    assert!(matches!(error, Error::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("does not speak TLS on this port"), "{error}");
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 5));
    let error = load(&Spec { url: server.url().over_http2().unwrap(), ..server.spec(1) });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("does not offer HTTP/2 (h2)"), "{error}");
    let url = Url::parse(&format!("http://{}/", server.address)).unwrap();
    let outcome = load(&spec(url, 2)).unwrap();
    let why = outcome.first_failure.unwrap();
    assert!(why.contains("speaks TLS on this port: use https://"), "{why}");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_no_failed_connect() {
    let silent = support::Server::start(|peer| peer.wait_for_close());
    let url = Url::parse(&format!("https://{}/", silent.address)).unwrap();
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    let error = load(&Spec { tls, timeout: Duration::from_millis(100), ..spec(url, 1) });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("accepted the connection and did not answer"), "{error}");
}

/// Starts a server with the certificate that `openssl req -x509` makes by default.
fn self_signed() -> Option<Server> {
    if !forebay_testkit::peer::has(&["openssl"]) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"])
        .arg("-keyout")
        .arg(path("key.pem"))
        .arg("-out")
        .arg(path("ca.pem"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let identity = Identity { certificate: read("ca.pem"), key: read("key.pem") };
    let script = |stream: &mut TlsStream| answer(stream, 5);
    Some(Server::with(&identity, directory, rustls::ALL_VERSIONS, script))
}

#[test]
fn a_self_signed_certificate_that_the_user_names_is_trusted() {
    let Some(server) = self_signed() else { return };
    load_without_failure(&server.spec(4), 4);
    let error = load(&spec(server.url(), 4)).unwrap_err().to_string();
    assert!(error.contains("self-signed") && error.contains("--ca FILE"), "{error}");
    // The user named another self-signed certificate than the server's.
    let other = self_signed().unwrap();
    let tls = TlsOptions { ca: other.ca(), ..TlsOptions::default() };
    assert!(load(&Spec { tls, ..server.spec(1) }).is_err());
}

#[test]
fn an_end_without_close_notify_is_no_end_of_a_reply() {
    let unlimited = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    for (is_notified, completed) in [(true, 4), (false, 0)] {
        let server = Server::start(rustls::ALL_VERSIONS, move |stream| {
            if request(stream) && stream.write_all(unlimited).is_ok() {
                if is_notified {
                    stream.conn.send_close_notify();
                }
                let _ = stream.flush();
            }
        });
        let outcome = load(&server.spec(4)).unwrap();
        assert_eq!(outcome.requests.completed, completed, "{outcome:?}");
        assert_eq!(outcome.requests.failures.read, 4 - completed);
        if !is_notified {
            let why = outcome.first_failure.unwrap();
            assert!(why.contains("the server closed without close_notify"), "{why}");
        }
    }
    // This reply is complete by its own length.
    let server = Server::start(rustls::ALL_VERSIONS, |stream| {
        if request(stream) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let spec = Spec { keepalive: false, ..server.spec(4) };
    load_without_failure(&spec, 4);
}

#[test]
fn a_slow_reader_completes_its_requests() {
    let body = vec![b'x'; 20_000];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let reply = [head.as_bytes(), &body].concat();
    let server = Server::start(rustls::ALL_VERSIONS, move |stream| {
        while request(stream) && stream.write_all(&reply).is_ok() {}
    });
    let slow = SlowPeers { read: Some(50_000), send: None };
    let outcome = load_without_failure(&Spec { slow, connections: 2, ..server.spec(2) }, 2);
    // The pace is a maximum, so the time has a minimum on any machine.
    assert!(outcome.latency.min_us() >= 350_000, "{} us", outcome.latency.min_us());
}

#[test]
fn options_of_tls_need_tls() {
    let url = Url::parse("http://127.0.0.1:1/").unwrap();
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    let error = load(&Spec { tls, ..spec(url, 1) }).unwrap_err();
    assert!(error.to_string().contains("https://"), "{error}");
    let server = Server::start(rustls::ALL_VERSIONS, |stream| answer(stream, 5));
    let tls = TlsOptions { ca: Some("/nowhere/ca.pem".into()), ..TlsOptions::default() };
    let error = load(&Spec { tls, ..server.spec(1) }).unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[test]
fn grpc_uses_http2_over_tls() {
    let server = |alpn: &'static [u8]| {
        let authority = Authority::new("An authority");
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), &authority.pem).unwrap();
        let identity = authority.issue(&["127.0.0.1"]);
        Server::with_alpn(&identity, directory, (&[&rustls::version::TLS13], &[alpn]), |stream| {
            // A reply of trailers alone, with the status 0. `0x88` is `:status: 200`.
            let name = |name: &str| [&[name.len() as u8], name.as_bytes()].concat();
            let field = |n: &str, value: &str| [vec![0], name(n), name(value)].concat();
            let kind = field("content-type", "application/grpc");
            let block = [vec![0x88], kind, field("grpc-status", "0")].concat();
            let script =
                |place: frames::Place| frames::says(frames::frame(1, 5, place.stream, &block));
            let _ = frames::serve(stream, 0, b"", &script);
        })
    };
    let load_spec = |server: &Server| {
        let url = Url::parse(&format!("grpcs://{}/a.B/C", server.address)).unwrap();
        Spec { url, method: "POST".to_owned(), ..server.spec(20) }
    };
    let outcome = load_without_failure(&load_spec(&server(b"h2")), 20);
    let statuses = outcome.requests.grpc.unwrap().status;
    assert_eq!(statuses.into_values().collect::<Vec<_>>(), [20]);
    assert_eq!(outcome.handshakes.unwrap().full, 2);
    // A server without HTTP/2 cannot serve gRPC.
    let error = load(&load_spec(&server(b"http/1.1"))).unwrap_err().to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

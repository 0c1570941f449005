//! Floods of connections that close again: Forebay returns the memory that they used. They are
//! small by default; `examples/abuse/memory` opens thousands.

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use forebay_testkit::tls::Authority;
use rustix::process::{Resource, getrlimit};
use support::{Forebay, http3, proc, site};

/// Connections of each kind, unless `FOREBAY_FLOOD` has another number.
const FLOOD: usize = 500;

/// Lets large floods run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// The clients of a flood. Dropping them ends it.
type Flood = Vec<Box<dyn std::any::Any>>;

/// Clients over TCP that each send the beginning of a request.
fn beginnings(address: SocketAddr, count: usize, sent: &[u8]) -> Flood {
    let begin = |_| -> Box<dyn std::any::Any> {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(sent).unwrap();
        Box::new(client)
    };
    (0..count).map(begin).collect()
}

/// POST over HTTP/2, with a head whose fields are literals.
fn post_http2() -> Vec<u8> {
    let block = b"\x83\x86\x04\x04/cat\x01\x01h";
    let head = [&[0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1][..], block].concat();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], &head].concat()
}

/// The ClientHello of a client that never answers.
fn client_hello(authority: &Authority) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let config = std::sync::Arc::new(authority.client());
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

/// Clients over HTTP/3 whose request has no end.
struct Http3Clients {
    runtime: tokio::runtime::Runtime,
    endpoint: quinn::Endpoint,
    _streams: Vec<(quinn::SendStream, quinn::RecvStream)>,
}

impl Drop for Http3Clients {
    fn drop(&mut self) {
        self.endpoint.close(0u32.into(), b"");
        self.runtime.block_on(self.endpoint.wait_idle());
    }
}

fn posts_http3(address: SocketAddr, authority: &Authority, count: usize) -> Flood {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fields =
        [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", "/cat")];
    let head = http3::raw::headers(&fields);
    let (endpoint, streams) = runtime.block_on(async {
        let endpoint = http3::endpoint();
        let mut streams = Vec::new();
        for _ in 0..count {
            let quic = http3::connect_from(&endpoint, address, "localhost", authority).await;
            let (mut send, receive) = quic.unwrap().open_bi().await.unwrap();
            send.write_all(&head).await.unwrap();
            streams.push((send, receive));
        }
        (endpoint, streams)
    });
    vec![Box::new(Http3Clients { runtime, endpoint, _streams: streams })]
}

/// Compares memory before a flood with memory within a minute after it. It must fall below 1.5
/// times the first value, plus 3 MiB that a debug build and its allocator use once.
fn gives_memory_back(forebay: &Forebay, name: &str, flood: impl Fn(usize) -> Flood) {
    let wanted = std::env::var("FOREBAY_FLOOD").ok();
    let count = wanted.map_or(FLOOD, |text| text.parse().expect("FOREBAY_FLOOD is a number"));
    // The sockets of several floods exceed this process's limit on open files.
    let _alone = (count > 2_000).then(|| ALONE.lock());
    let pid = forebay.process.id();
    drop(flood(20));
    thread::sleep(Duration::from_secs(1));
    let before = proc::resident(pid);
    let most = before + before / 2 + (3 << 20);
    for round in 1..=2 {
        let clients = flood(count);
        // Waits until the server has accepted all of them: its memory then stops growing.
        let mut peak = 0;
        assert!(eventually(|| {
            thread::sleep(Duration::from_millis(200));
            let now = proc::resident(pid);
            std::mem::replace(&mut peak, now) >= now
        }));
        drop(clients);
        let deadline = Instant::now() + Duration::from_secs(60);
        while proc::resident(pid) > most && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
        }
        let after = proc::resident(pid);
        println!("| {name} | {count} | {round} | {before} | {peak} | {after} |");
        assert!(
            after <= most,
            "{name}: {before} bytes before, {peak}, {after} after round {round}"
        );
    }
}

#[test]
fn memory_of_a_flood_is_given_back_within_a_minute() {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 16);
    proc::limit_descriptors(std::process::id(), most);
    let cat = "[[site.route]]\ncgi = { program = \"/bin/cat\" }\n";
    let http1 = site(Folder::new(), cat);
    let http2 = site(Folder::new(), cat);
    let (tls, authority) = http3::site(Folder::new(), cat);
    let (http3, other) = http3::site(Folder::new(), cat);
    let post = b"POST /cat HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n0123456789";
    let hello = client_hello(&authority);
    let (http1, http2, tls) = (&http1, &http2, &tls);
    thread::scope(|scope| {
        let flood = |count| beginnings(http1.address, count, post);
        scope.spawn(move || gives_memory_back(http1, "HTTP/1.1, open POST", flood));
        let flood = |count| beginnings(http2.address, count, &post_http2());
        scope.spawn(move || gives_memory_back(http2, "HTTP/2, open POST", flood));
        let hello = &hello;
        let flood = |count| beginnings(tls.address, count, hello);
        scope.spawn(move || gives_memory_back(tls, "half handshakes", flood));
        let flood = |count| posts_http3(http3.address, &other, count);
        gives_memory_back(&http3, "HTTP/3, open POST", flood);
    });
}

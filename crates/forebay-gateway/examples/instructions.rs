//! Runs requests whose instructions `scripts/instructions` counts, with this command:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*::measured' \
//!     target/release/examples/instructions CASE REQUESTS
//! ```
//!
//! `measured` excludes the start and the first requests (`WARM_UP`).
//!
//! The gateway, its client and its backend run in one thread over memory links, so every run is
//! identical. The client and the backend do almost nothing: their messages are prepared, and they
//! look only for the end of what they receive. `CASE` is a name in [`CASES`]; without one, the
//! names are listed.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use forebay_gateway::{Origins, SiteTls, Starts};
use forebay_net::log::ErrorLog;
use forebay_net::memory::{Destination, Link};
use forebay_net::thread::Settings;
use forebay_server::memory_gateway::MemoryGateway;
use forebay_wire::http1::{self, RequestHead, RequestParser};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

const BROWSER: &str = "GET /small.html HTTP/1.1\r\nHost: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: de,en-US;q=0.7,en;q=0.3\r\nConnection: keep-alive\r\n\r\n";
const PAGE: &str = "<!DOCTYPE html>\n<title>A small page</title>\n<p>End";
const HTTP_REPLY: &str = "HTTP/1.1 200 OK\r\nServer: backend\r\n\
    Date: Sun, 22 Nov 2026 19:00:00 GMT\r\nContent-Type: text/html\r\nContent-Length: 50\r\n\r\n";
const STORED_REPLY: &str = "HTTP/1.1 200 OK\r\nServer: backend\r\n\
    Cache-Control: max-age=86400\r\nETag: \"6921f0a0-32\"\r\nContent-Type: text/html\r\n\
    Content-Length: 50\r\n\r\n";
const SCRIPT_REPLY: &str = "Content-Type: text/html\r\nX-Powered-By: PHP/8.2\r\n\r\n";

/// A case: a way of answering a request.
struct Case {
    name: &'static str,
    route: &'static str,
    client: Client,
    backend: Option<Peer>,
}

/// The repeated action of a peer.
struct Peer {
    /// End of a message to the peer.
    until: &'static [u8],
    /// Answer to that message.
    sends: fn() -> Vec<u8>,
}

enum Client {
    /// No requests: only the parser runs.
    Parser,
    /// Sends each request after the previous reply.
    Http1,
    /// Sends eight requests at once, and eight more after all replies.
    Http2,
}

const CASES: [Case; 8] = [
    Case { name: "parse_head", route: "respond = \"\"", client: Client::Parser, backend: None },
    Case { name: "small_file", route: "files = \"DIR\"", client: Client::Http1, backend: None },
    Case {
        name: "proxy",
        route: "proxy = \"http://127.0.0.1:8001\"",
        client: Client::Http1,
        backend: Some(Peer {
            until: b"\r\n\r\n",
            sends: || format!("{HTTP_REPLY}{PAGE}").into_bytes(),
        }),
    },
    Case {
        name: "proxy_limited",
        route: "proxy = \"http://127.0.0.1:8001\"\nwhen = { header.Accept = true }\n\
                request_headers = { \"X-Real-IP\" = \"{client}\" }\n\
                rate_limit = { rate = \"1000000/s\" }",
        client: Client::Http1,
        backend: Some(Peer {
            until: b"\r\n\r\n",
            sends: || format!("{HTTP_REPLY}{PAGE}").into_bytes(),
        }),
    },
    Case {
        name: "cache_hit",
        route: "proxy = \"http://127.0.0.1:8001\"\ncache = true",
        client: Client::Http1,
        // Only the first request reaches the backend.
        backend: Some(Peer {
            until: b"\r\n\r\n",
            sends: || format!("{STORED_REPLY}{PAGE}").into_bytes(),
        }),
    },
    Case {
        name: "fastcgi",
        route: "fastcgi = { to = \"127.0.0.1:8001\", root = \"/nowhere\", scripts = \"*\" }",
        client: Client::Http1,
        backend: Some(Peer { until: &[1, 5, 0, 1, 0, 0, 0, 0], sends: fastcgi_reply }),
    },
    Case {
        name: "ajp",
        route: "ajp = { to = \"127.0.0.1:8001\" }",
        client: Client::Http1,
        // This byte ends the attributes, and with them the request.
        backend: Some(Peer { until: &[0xff], sends: ajp_reply }),
    },
    Case {
        name: "http2_8_streams",
        route: "files = \"DIR\"",
        client: Client::Http2,
        backend: None,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let case = arguments.first().and_then(|name| CASES.iter().find(|case| case.name == *name));
    let count = arguments.get(1).and_then(|count| count.parse().ok());
    let (Some(case), Some(count)) = (case, count) else {
        CASES.iter().for_each(|case| println!("{}", case.name));
        return if arguments.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    let dir = tempfile::tempdir().expect("a directory for the page");
    std::fs::write(dir.path().join("small.html"), PAGE).expect("the page is written");
    let dir = dir.path().to_str().expect("a path in UTF-8");
    let text = format!(
        "[[site]]\nlisten = [\"127.0.0.1:80\"]\n[[site.route]]\npath = \"/*\"\n{}\n",
        case.route.replace("DIR", dir)
    );
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build_local(LocalOptions::default());
    let runtime = runtime.expect("a runtime");
    let mut conversation = runtime.block_on(async { Conversation::new(case, &text) });
    runtime.block_on(conversation.exchange(WARM_UP));
    measured(&runtime, Box::pin(conversation.exchange(count)));
    ExitCode::SUCCESS
}

/// Runs the measured part only.
#[inline(never)]
fn measured(runtime: &LocalRuntime, requests: Pin<Box<dyn Future<Output = ()> + '_>>) {
    runtime.block_on(requests);
}

fn parse_heads(count: usize) {
    let mut head = RequestHead::default();
    for _ in 0..count {
        let mut parser = RequestParser::new(http1::Http1Limits::default());
        let progress = parser.parse(black_box(BROWSER.as_bytes()), &mut head);
        assert!(progress.is_ok());
        black_box(&head);
    }
}

/// A gateway with one connection.
struct Conversation {
    case: &'static Case,
    _gateway: MemoryGateway,
    client: Link,
    /// First unused HTTP/2 stream; 0 before the connection has begun.
    stream: u32,
}

impl Conversation {
    fn new(case: &'static Case, text: &str) -> Self {
        let gateway = gateway(text);
        if let Some(peer) = &case.backend {
            let address = "127.0.0.1:8001".parse().expect("an address");
            let mut backend = gateway.network().listen(Destination::Tcp(address));
            tokio::task::spawn_local(async move {
                while let Some(link) = backend.recv().await {
                    tokio::task::spawn_local(serve(link, peer));
                }
            });
        }
        let client = gateway.connect(0, "192.0.2.7:4000".parse().expect("an address"));
        Self { case, _gateway: gateway, client, stream: 0 }
    }

    /// Sends `count` requests and reads the replies.
    async fn exchange(&mut self, count: usize) {
        match self.case.client {
            Client::Parser => parse_heads(count),
            Client::Http1 => ask(&self.client, count).await,
            Client::Http2 => ask_by_http2(&self.client, &mut self.stream, count).await,
        }
    }
}

fn gateway(text: &str) -> MemoryGateway {
    let plan = forebay_conf::parse(text, "instructions.toml", Path::new("/"));
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let settings = Settings {
        timeouts: plan.server.timeouts.clone(),
        limits: plan.server.limits.clone(),
        timing: false,
        is_timed: false,
        admin_hosts: Vec::new(),
        admin_token: None,
        spool_dir: None,
    };
    let listen: Vec<_> = plan.sites[0].listen.iter().cloned().map(Some).collect();
    let (errors, kept) = ErrorLog::kept();
    let log = plan.log.clone();
    let tls = SiteTls::load(&plan, None).expect("no certificate is read");
    let origins =
        Arc::new(Origins::new(plan, Arc::new(tls), &errors, Starts::Later).expect("origins"));
    MemoryGateway::new(settings, (&log, kept, errors), &origins.tables(), &listen)
}

async fn serve(link: Link, peer: &Peer) {
    let reply = (peer.sends)();
    let mut read = Vec::with_capacity(4096);
    while link.read(&mut read).await.is_ok_and(|count| count > 0) {
        if read.ends_with(peer.until) {
            read.clear();
            link.write(&reply).await.expect("the gateway reads");
        }
    }
}

async fn ask(client: &Link, count: usize) {
    let mut read = Vec::with_capacity(4096);
    for _ in 0..count {
        client.write(BROWSER.as_bytes()).await.expect("the gateway reads");
        read.clear();
        while !read.ends_with(b"<p>End") {
            let more = client.read(&mut read).await.expect("the gateway answers");
            assert!(more > 0 && read.len() < 4096, "{}", String::from_utf8_lossy(&read));
        }
        assert!(read.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&read));
    }
}

/// Number of requests before the measurement, which bring pools and tables to their final sizes.
const WARM_UP: usize = 400;
const STREAMS: usize = 8;
/// Flags of frames.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

async fn ask_by_http2(client: &Link, id: &mut u32, count: usize) {
    let mut out = Vec::new();
    if *id == 0 {
        out.extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        append_frame(&mut out, (4, 0), 0, &[]);
        *id = 1;
    }
    let mut read = Vec::with_capacity(64 * 1024);
    for _ in 0..count.div_ceil(STREAMS) {
        for _ in 0..STREAMS {
            append_frame(&mut out, (1, END_STREAM | END_HEADERS), *id, &header_block());
            *id += 2;
        }
        client.write(&out).await.expect("the gateway reads");
        let mut ended = 0;
        read.clear();
        out.clear();
        while ended < STREAMS {
            assert!(client.read(&mut read).await.expect("the gateway answers") > 0);
            ended += take_frames(&mut read, &mut out);
        }
    }
}

/// Removes whole frames from `read` and answers SETTINGS. Returns the number of streams that ended.
fn take_frames(read: &mut Vec<u8>, out: &mut Vec<u8>) -> usize {
    let (mut at, mut ended) = (0, 0);
    while let Some(frame) = read.get(at..at + 9) {
        let length =
            usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
        if read.len() < at + 9 + length {
            break;
        }
        match (frame[3], frame[4]) {
            (0, flags) => {
                let length = u32::try_from(length).expect("24 bits");
                append_frame(out, (8, 0), 0, &length.to_be_bytes());
                ended += usize::from(flags & END_STREAM);
            }
            (1, flags) => ended += usize::from(flags & END_STREAM),
            (4, 0) => append_frame(out, (4, 1), 0, &[]),
            (3 | 7, _) => panic!("the gateway ends a stream: {frame:?}"),
            _ => {}
        }
        at += 9 + length;
    }
    read.drain(..at);
    ended
}

fn append_frame(out: &mut Vec<u8>, (kind, flags): (u8, u8), stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// GET /small.html of www.example.org over http: indexed fields if the static table has them, else
/// literals outside of the dynamic table.
fn header_block() -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    let accept = "text/html,application/xhtml+xml";
    for (name, value) in [(0x04, "/small.html"), (0x01, "www.example.org"), (0x0f, accept)] {
        block.push(name);
        if name == 0x0f {
            // Index 19 (`accept`) of the static table, as an integer with a prefix of four bits.
            block.push(19 - 15);
        }
        block.push(u8::try_from(value.len()).expect("a short value"));
        block.extend(value.as_bytes());
    }
    block
}

fn fastcgi_reply() -> Vec<u8> {
    let record = |kind: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).expect("a small record").to_be_bytes();
        [&[1, kind, 0, 1, length[0], length[1], 0, 0], content].concat()
    };
    let text = format!("{SCRIPT_REPLY}{PAGE}");
    [record(6, text.as_bytes()), record(6, &[]), record(3, &[0; 8])].concat()
}

fn ajp_reply() -> Vec<u8> {
    let packet = |payload: &[u8]| {
        let length = u16::try_from(payload.len()).expect("a small packet").to_be_bytes();
        [&b"AB"[..], &length, payload].concat()
    };
    let mut length = String::new();
    write!(length, "{}", PAGE.len()).expect("a string takes all");
    // Status 200, "OK", one field: 0xA003, Content-Length.
    let size = u8::try_from(length.len()).expect("two digits");
    let mut head = vec![4, 0, 200, 0, 2, b'O', b'K', 0, 0, 1, 0xa0, 3, 0, size];
    head.extend(length.as_bytes());
    head.push(0);
    let size = u8::try_from(PAGE.len()).expect("a small page");
    let body = [&[3, 0, size], PAGE.as_bytes(), &[0]].concat();
    [packet(&head), packet(&body), packet(&[5, 1])].concat()
}

//! Scripted servers for the tests of the load generator.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Control, Error, Outcome, Spec, Stop, Url, run};

/// Maximum time that a scripted server waits for its client.
const PATIENCE: Duration = Duration::from_secs(20);

/// Server that runs a script on each connection.
pub struct Server {
    pub address: SocketAddr,
    requests: Arc<AtomicU64>,
    connections: Arc<AtomicU64>,
    closed: Arc<AtomicU64>,
}

/// Accepted connection, which the script receives.
pub struct Peer {
    /// Index of the connection, from 0.
    pub number: u64,
    stream: TcpStream,
    unread: Vec<u8>,
    requests: Arc<AtomicU64>,
}

impl Server {
    /// Listens on a free port and runs `script` on each connection, in a thread of its own. The
    /// connection closes when the script returns.
    pub fn start(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, connections) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let closed = Arc::new(AtomicU64::new(0));
        let server = Self {
            address,
            requests: requests.clone(),
            connections: connections.clone(),
            closed: closed.clone(),
        };
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, script) = (stream.unwrap(), script.clone());
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let (requests, closed) = (requests.clone(), closed.clone());
                thread::spawn(move || {
                    script(&mut Peer { number, stream, unread: Vec::new(), requests });
                    closed.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    /// Starts a server that answers each request on a kept-alive connection with `reply`.
    pub fn answering(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::start(move |peer| {
            while peer.request().is_some() {
                peer.send(&reply);
            }
        })
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("http://{}/", self.address)).unwrap()
    }

    /// Returns the number of requests read so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Waits until the server has closed `count` connections.
    pub fn wait_for_closed(&self, count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.closed.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < until, "the server does not close its connections");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Peer {
    /// Reads the head and body of the next request. Returns `None` if the client has closed the
    /// connection.
    pub fn request(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(len) = complete(&self.unread) {
                self.requests.fetch_add(1, Ordering::SeqCst);
                return Some(self.unread.drain(..len).collect());
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(n) if n > 0 => self.unread.extend_from_slice(&buffer[..n]),
                _ => return None,
            }
        }
    }

    /// Reads `n` bytes. Returns `None` if the client has closed the connection.
    pub fn some(&mut self, n: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; n];
        self.stream.read_exact(&mut bytes).ok().map(|()| bytes)
    }

    /// Sends bytes. If the client has closed the connection, the next read fails.
    pub fn send(&mut self, bytes: &[u8]) {
        self.send_all(bytes);
    }

    /// Sends bytes. Returns false if the client has closed the connection.
    pub fn send_all(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends bytes one by one, each in its own TCP segment.
    pub fn trickle(&mut self, bytes: &[u8]) {
        self.stream.set_nodelay(true).unwrap();
        bytes.chunks(1).for_each(|byte| self.send(byte));
    }

    /// Waits until the client closes the connection.
    pub fn wait_for_close(&mut self) {
        while self.stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
    }
}

fn complete(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text
        .split_once("content-length: ")
        .map_or(0, |(_, rest)| rest.split_once("\r\n").unwrap().0.parse().unwrap());
    (bytes.len() >= head + length).then_some(head + length)
}

/// Returns the settings for `n` requests over 2 connections on 2 threads. No test except those of
/// timeouts should reach the timeout.
pub fn spec(url: Url, n: u64) -> Spec {
    let timeout = Duration::from_secs(15);
    Spec { connections: 2, threads: 2, stop: Stop::Requests(n), timeout, ..Spec::new(url) }
}

/// Runs the load to its end.
pub fn load(spec: &Spec) -> Result<Outcome, Error> {
    run(spec, &Control::default())
}

/// Runs the load to its end. Asserts that all `n` requests completed.
pub fn load_without_failure(spec: &Spec, n: u64) -> Outcome {
    let outcome = load(spec).unwrap();
    let requests = &outcome.requests;
    assert_eq!((requests.completed, requests.failed), (n, 0), "{outcome:?}");
    assert_eq!(requests.sent, n, "{outcome:?}");
    assert_eq!(outcome.latency.count(), n);
    outcome
}

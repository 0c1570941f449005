//! A backend that answers each request with the bytes of that request.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A running backend. Each reply has status 200 and `X-Request: n`, the number of the request among
/// all. Its body is the whole request with head and framing.
pub struct Echo {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopping: AtomicBool,
    /// Number of complete requests.
    whole: AtomicUsize,
    connections: AtomicUsize,
    /// Requests per connection before the backend closes it without notice; 0: no limit.
    per_connection: usize,
}

impl Echo {
    pub fn start() -> Self {
        Self::closing_after(0)
    }

    /// Starts a backend that closes each connection after this many replies, without notice.
    pub fn closing_after(per_connection: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { per_connection, ..Shared::default() });
        let for_acceptor = shared.clone();
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if for_acceptor.stopping.load(Ordering::SeqCst) {
                    return;
                }
                for_acceptor.connections.fetch_add(1, Ordering::SeqCst);
                let shared = for_acceptor.clone();
                thread::spawn(move || drop(serve_connection(stream, &shared)));
            }
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a route that passes all requests to the backend.
    pub fn route(&self) -> String {
        format!("[[site.route]]\nproxy = \"{}\"\n", self.url())
    }

    /// Returns the number of complete requests.
    pub fn whole(&self) -> usize {
        self.shared.whole.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _wake = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve_connection(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut bytes = Vec::new();
    let mut served = 0;
    loop {
        let end = loop {
            if let Some(end) = whole_request(&bytes) {
                break end;
            }
            let mut piece = [0; 16 * 1024];
            match stream.read(&mut piece)? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&piece[..count]),
            }
        };
        let count = shared.whole.fetch_add(1, Ordering::SeqCst) + 1;
        let request: Vec<_> = bytes.drain(..end).collect();
        let to_head = request.starts_with(b"HEAD ");
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Request: {count}\r\n\r\n",
            request.len()
        );
        stream.write_all(head.as_bytes())?;
        if !to_head {
            stream.write_all(&request)?;
        }
        served += 1;
        if served == shared.per_connection {
            return Ok(());
        }
    }
}

/// Returns the length of the request at the start of `bytes`, if it is complete.
fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head = find(bytes, b"\r\n\r\n")? + 4;
    let fields = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    if fields.contains("\r\ntransfer-encoding: chunked\r\n") {
        return whole_chunks(&bytes[head..]).map(|length| head + length);
    }
    let length = fields
        .split_once("\r\ncontent-length: ")
        .and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok())
        .unwrap_or(0);
    (bytes.len() >= head + length).then_some(head + length)
}

fn whole_chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        at += line + 2 + size + 2;
        if at > bytes.len() {
            return None;
        }
        if size == 0 {
            return Some(at);
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Returns the body of an echoed request without its framing.
pub fn body_of(request: &[u8]) -> Vec<u8> {
    let head = find(request, b"\r\n\r\n").expect("a head") + 4;
    let fields = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let rest = &request[head..];
    if !fields.contains("\r\ntransfer-encoding: chunked\r\n") {
        return rest.to_vec();
    }
    let (mut at, mut body) = (0, Vec::new());
    loop {
        let line = find(&rest[at..], b"\r\n").expect("a chunk");
        let size = std::str::from_utf8(&rest[at..at + line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        at += line + 2;
        body.extend_from_slice(&rest[at..at + size]);
        at += size + 2;
    }
}

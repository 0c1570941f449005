//! Backends that break the rules of their protocol on request, and follow them otherwise. `/N` gets
//! the case with that number. Every other path gets a reply with the id of its request.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_testkit::port;
use forebay_testkit::stream::{Address, TestStream};

use super::identity;

/// A way to break the rules.
pub struct Case {
    pub name: &'static str,
    /// Bytes of the answer.
    pub sends: Vec<u8>,
    /// True if each byte is sent separately.
    pub drips: bool,
    pub then: Then,
    pub expect: Expect,
}

/// Behaviour after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Reads the next request.
    Keep,
    Close,
    Reset,
    /// Does nothing until the other side closes.
    Hang,
}

/// The reply that the client may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// An error page, or the backend's own reply, with this status.
    Status(u16),
    /// Status 200 with exactly this body.
    Body(&'static str),
    /// A connection that ends in the middle of the reply.
    Cut,
    /// A cut-off connection, or an error page if nothing had been sent yet.
    CutOr(u16),
}

/// The protocol of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Fastcgi,
}

/// A running backend.
pub struct Hostile {
    address: Address,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Hostile {
    pub fn start(protocol: Protocol, cases: &Arc<Vec<Case>>) -> Self {
        let (listener, address) = port::listener();
        let stopping = Arc::new(AtomicBool::new(false));
        let (flag, cases) = (stopping.clone(), cases.clone());
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let cases = cases.clone();
                thread::spawn(move || {
                    drop(serve_connection(TestStream::Tcp(stream), protocol, &cases));
                });
            }
        });
        Self { address: address.into(), stopping, acceptor: Some(acceptor) }
    }

    /// Returns host and port.
    pub fn authority(&self) -> String {
        match &self.address {
            Address::Tcp(address) => address.to_string(),
            Address::Unix(path) => panic!("{} has no port", path.display()),
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _wake = TestStream::connect(&self.address, Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve_connection(mut stream: TestStream, protocol: Protocol, cases: &[Case]) -> io::Result<()> {
    stream.set_patience(forebay_testkit::DEADLINE)?;
    let mut unread = Vec::new();
    loop {
        let target = match protocol {
            Protocol::Http => read_http(&mut stream, &mut unread)?,
            Protocol::Fastcgi => read_fastcgi(&mut stream, &mut unread)?,
        };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let case = path[1..].parse::<usize>().ok().and_then(|number| cases.get(number));
        let Some(case) = case else {
            let body = identity::body(query.trim_start_matches("id="));
            stream.write_all(&good(protocol, &body))?;
            continue;
        };
        if case.drips {
            case.sends.chunks(1).try_for_each(|byte| stream.write_all(byte))?;
        } else {
            stream.write_all(&case.sends)?;
        }
        match case.then {
            Then::Keep => {}
            Then::Close => return Ok(()),
            Then::Reset => {
                stream.reset();
                return Ok(());
            }
            Then::Hang => {
                while stream.read(&mut [0; 16 * 1024])? > 0 {}
                return Ok(());
            }
        }
    }
}

/// Returns a reply that follows the rules.
pub fn good(protocol: Protocol, body: &str) -> Vec<u8> {
    match protocol {
        Protocol::Http => {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
        }
        Protocol::Fastcgi => {
            let head = stdout("Content-Type: text/plain\r\n\r\n");
            [head, stdout(body), stdout(""), end(0)].concat()
        }
    }
}

/// Returns a record of request 1.
pub fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    record_of(1, 1, kind, content)
}

/// Returns a record of any version and request.
pub fn record_of(version: u8, id: u8, kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("it fits a record").to_be_bytes();
    [&[version, kind, 0, id, length[0], length[1], 0, 0], content].concat()
}

/// Returns a record of standard output.
pub fn stdout(text: &str) -> Vec<u8> {
    record(6, text.as_bytes())
}

/// Returns the end of the request, with this protocol status.
pub fn end(status: u8) -> Vec<u8> {
    record(3, &[0, 0, 0, 0, status, 0, 0, 0])
}

/// Reads a head. The bytes after it may be a body that nobody reads.
fn read_http(stream: &mut TestStream, unread: &mut Vec<u8>) -> io::Result<String> {
    let end = loop {
        match unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None => fill(stream, unread)?,
        }
    };
    let head: Vec<u8> = unread.drain(..end).collect();
    let head = String::from_utf8_lossy(&head);
    Ok(head.split(' ').nth(1).unwrap_or("/").to_owned())
}

/// Reads records up to the end of the parameters and, if it is empty, of standard input.
fn read_fastcgi(stream: &mut TestStream, unread: &mut Vec<u8>) -> io::Result<String> {
    let mut params = Vec::new();
    loop {
        while unread.len() < 8 {
            fill(stream, unread)?;
        }
        let content = usize::from(u16::from_be_bytes([unread[4], unread[5]]));
        let (kind, length) = (unread[1], 8 + content + usize::from(unread[6]));
        while unread.len() < length {
            fill(stream, unread)?;
        }
        let record: Vec<u8> = unread.drain(..length).collect();
        match kind {
            4 => params.extend_from_slice(&record[8..8 + content]),
            // The first record of a body, or the end of an empty one. The rest may come before the
            // next request.
            5 if !params.is_empty() => return Ok(request_uri(&params)),
            _ => {}
        }
    }
}

/// The value follows its name directly. The next byte is a length below 32, which is not printable.
fn request_uri(params: &[u8]) -> String {
    const NAME: &[u8] = b"REQUEST_URI";
    let at = params.windows(NAME.len()).position(|bytes| bytes == NAME).expect("it is always sent");
    let value = params[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_graphic());
    value.map(|byte| char::from(*byte)).collect()
}

fn fill(stream: &mut TestStream, unread: &mut Vec<u8>) -> io::Result<()> {
    let mut bytes = [0; 16 * 1024];
    let count = stream.read(&mut bytes)?;
    unread.extend_from_slice(&bytes[..count]);
    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

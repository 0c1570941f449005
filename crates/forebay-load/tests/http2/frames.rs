//! Server that answers with raw frames, without an HTTP/2 codec.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use forebay_load::Url;

const PATIENCE: Duration = Duration::from_secs(20);
const PREFACE: usize = 24;

/// Bytes to write after a request; `closes` is true if the connection closes then.
pub struct Says {
    pub bytes: Vec<u8>,
    pub closes: bool,
}

/// Position of a request: index of its connection, its index on the connection, and its stream ID.
/// Indices start at 0.
#[derive(Clone, Copy)]
pub struct Place {
    pub connection: u64,
    pub request: u64,
    pub stream: u32,
}

pub struct FrameServer {
    url: Url,
    connections: Arc<AtomicU64>,
}

impl FrameServer {
    pub fn start(
        settings: &'static [u8],
        script: impl Fn(Place) -> Says + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("h2c://{}/", listener.local_addr().unwrap())).unwrap();
        let connections = Arc::new(AtomicU64::new(0));
        let server = Self { url, connections: connections.clone() };
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let (stream, script) = (stream.unwrap(), script.clone());
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_nodelay(true).unwrap();
                // The script ends when the client closes the connection.
                thread::spawn(move || serve(stream, number, settings, &*script).ok());
            }
        });
        server
    }

    pub fn url(&self) -> Url {
        self.url.clone()
    }

    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Answers the requests of a connection until the client closes it.
pub fn serve(
    mut stream: impl Read + Write,
    connection: u64,
    settings: &[u8],
    script: &impl Fn(Place) -> Says,
) -> std::io::Result<()> {
    stream.read_exact(&mut [0; PREFACE])?;
    stream.write_all(&frame(4, 0, 0, settings))?;
    let mut request = 0;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        stream.read_exact(&mut vec![0; length])?;
        let id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        match (header[3], header[4]) {
            (1, _) => {
                let says = script(Place { connection, request, stream: id });
                request += 1;
                stream.write_all(&says.bytes)?;
                if says.closes {
                    return Ok(());
                }
            }
            (4, 0) => stream.write_all(&frame(4, 1, 0, b""))?,
            _ => {}
        }
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns a complete reply with status 200 and no body.
pub fn reply(stream: u32) -> Vec<u8> {
    frame(1, 5, stream, &[0x88])
}

/// Returns the head of a reply with status 200. The body must follow.
pub fn head(stream: u32) -> Vec<u8> {
    frame(1, 4, stream, &[0x88])
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(3, 0, stream, &code.to_be_bytes())
}

pub fn goaway(last: u32, code: u32) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Returns a reaction that writes `bytes` and keeps the connection open.
pub fn says(bytes: Vec<u8>) -> Says {
    Says { bytes, closes: false }
}

//! A FastCGI application that follows the script of a test, record by record.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;

pub const BEGIN: u8 = 1;
pub const ABORT: u8 = 2;
pub const PARAMS: u8 = 4;
pub const STDIN: u8 = 5;
pub const GET_VALUES: u8 = 9;

/// A listening application. Its threads end with their connections.
pub struct Application {
    path: PathBuf,
    accepted: Arc<AtomicUsize>,
    _folder: Folder,
}

/// A connection from the web server.
pub struct Connection {
    stream: UnixStream,
    /// The number of the connection, from 0.
    pub number: usize,
    open: HashMap<u16, Asked>,
}

/// A request.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub id: u16,
    pub keeps: bool,
    /// Name-value pairs in their encoded form.
    pub params: Vec<u8>,
    pub body: Vec<u8>,
}

#[derive(Debug)]
pub struct Record {
    pub kind: u8,
    pub id: u16,
    pub content: Vec<u8>,
}

impl Application {
    /// Runs `serve` in a thread for each connection.
    pub fn start(serve: impl Fn(&mut Connection) + Send + Sync + 'static) -> Self {
        let folder = Folder::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("the folder is new");
        let accepted = Arc::new(AtomicUsize::new(0));
        let (count, serve) = (accepted.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let number = count.fetch_add(1, Ordering::AcqRel);
                stream.set_read_timeout(Some(DEADLINE)).expect("a deadline above zero");
                stream.set_write_timeout(Some(DEADLINE)).expect("a deadline above zero");
                let serve = serve.clone();
                let mut connection = Connection { stream, number, open: HashMap::new() };
                thread::spawn(move || serve(&mut connection));
            }
        });
        Self { path, accepted, _folder: folder }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }
}

impl Connection {
    /// Returns the next record; `None` if the web server has closed.
    pub fn record(&mut self) -> Option<Record> {
        let mut header = [0; 8];
        self.stream.read_exact(&mut header).ok()?;
        let length = u16::from_be_bytes([header[4], header[5]]);
        let mut content = vec![0; usize::from(length) + usize::from(header[6])];
        self.stream.read_exact(&mut content).ok()?;
        content.truncate(length.into());
        let id = u16::from_be_bytes([header[2], header[3]]);
        Some(Record { kind: header[1], id, content })
    }

    /// Returns the next complete request. Requests may be interleaved. Records without a request
    /// are dropped.
    pub fn asked(&mut self) -> Option<Asked> {
        loop {
            let Record { kind, id, content } = self.record()?;
            match (kind, self.open.get_mut(&id)) {
                (BEGIN, None) => {
                    let asked = Asked { id, keeps: content[2] & 1 == 1, ..Asked::default() };
                    self.open.insert(id, asked);
                }
                (BEGIN, Some(_)) => panic!("request {id} begins twice"),
                (PARAMS, Some(asked)) => asked.params.extend(content),
                (STDIN, Some(_)) if content.is_empty() => return self.open.remove(&id),
                (STDIN, Some(asked)) => asked.body.extend(content),
                _ => {}
            }
        }
    }

    /// Sends bytes. Ignores errors, because the web server may have closed.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _gone = self.stream.write_all(bytes.as_ref());
    }

    /// Sends a complete reply with this text.
    pub fn answer(&mut self, id: u16, text: &str) {
        self.send([stdout(id, &format!("Content-Type: text/plain\n\n{text}")), end(id)].concat());
    }
}

impl Asked {
    /// Returns the value of QUERY_STRING: the bytes between its name and the lengths of the next
    /// pair.
    pub fn query(&self) -> String {
        let name = b"QUERY_STRING";
        let at = self.params.windows(name.len()).position(|part| part == name).expect("it is sent");
        let length = usize::from(self.params[at - 1]);
        let start = at + name.len();
        String::from_utf8(self.params[start..start + length].to_vec()).expect("ASCII")
    }
}

pub fn record(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let (id, length) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
    [&[1, kind, id[0], id[1], length[0], length[1], 0, 0], content].concat()
}

pub fn stdout(id: u16, text: &str) -> Vec<u8> {
    record(6, id, text.as_bytes())
}

pub fn end(id: u16) -> Vec<u8> {
    end_with(id, 0)
}

/// Returns END_REQUEST with this protocol status: 1 cannot multiplex, 2 overloaded.
pub fn end_with(id: u16, status: u8) -> Vec<u8> {
    record(3, id, &[0, 0, 0, 0, status, 0, 0, 0])
}

/// Returns the answer to GET_VALUES.
pub fn values(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (name, value) in pairs {
        content.extend([name.len() as u8, value.len() as u8]);
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(value.as_bytes());
    }
    record(10, 0, &content)
}

//! Server that follows a script, for behaviour that no real server shows on demand.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::port;
use crate::stream::{Address, TestStream};
use crate::{DEADLINE, POLL};

/// Action of a scripted server on a connection.
#[derive(Clone, Debug)]
pub enum ScriptStep {
    /// Reads until the unread bytes contain an empty line. Consumes all bytes up to and including
    /// this line.
    ReadHead,
    /// Reads and consumes this number of bytes.
    Read(usize),
    /// Reads and consumes as many bytes as these. The step fails if the bytes differ.
    Expect(Vec<u8>),
    /// Reads until the other side closes its sending direction. The step fails after a reset.
    ReadToEnd,
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes one by one, each with a separate write.
    SendByteByByte(Vec<u8>),
    /// Waits for this time, as tests of timeouts require. Other steps wait only for the other side.
    Pause(Duration),
    /// Notifies the test that the script has come to this step.
    Signal(Sender<()>),
    /// Closes the sending direction (a half-close). Later steps can still read.
    FinishSending,
    /// Closes the connection, with a reset on TCP. This step ends the script.
    Reset,
}

impl ScriptStep {
    /// Returns a [`ScriptStep::Send`] with the given text or bytes.
    pub fn send(bytes: impl AsRef<[u8]>) -> Self {
        Self::Send(bytes.as_ref().to_vec())
    }

    /// Returns a [`ScriptStep::Expect`] with the given text or bytes.
    pub fn expect(bytes: impl AsRef<[u8]>) -> Self {
        Self::Expect(bytes.as_ref().to_vec())
    }
}

/// Record of one connection.
#[derive(Debug, Default)]
pub struct Record {
    /// All bytes that the server received.
    pub received: Vec<u8>,
    /// First step that failed, with the reason. The server closed the connection at this step.
    pub failure: Option<String>,
}

/// Scripted server that listens on an address. The first connection follows the first script, the
/// second connection the second, and so on. At the end of its script, each connection is closed. If
/// there is no script left, a connection is accepted and closed at once.
#[derive(Debug)]
pub struct ScriptedBackend {
    address: Address,
    stopping: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    acceptor: Option<JoinHandle<Vec<Record>>>,
    _folder: Option<Folder>,
}

impl ScriptedBackend {
    /// Starts a server that listens on a free port of the loopback address.
    pub fn tcp(scripts: impl Into<Vec<Vec<ScriptStep>>>) -> Self {
        let (listener, address) = port::listener();
        listener.set_nonblocking(true).expect("a new socket takes the non-blocking mode");
        let accept =
            move || TcpListener::accept(&listener).map(|(stream, _)| TestStream::Tcp(stream));
        Self::start(Address::Tcp(address), None, scripts.into(), accept)
    }

    /// Starts a server that listens on a Unix socket in a folder of its own.
    pub fn unix(scripts: impl Into<Vec<Vec<ScriptStep>>>) -> Self {
        let folder = Folder::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("the folder is new");
        listener.set_nonblocking(true).expect("a new socket takes the non-blocking mode");
        let accept = move || listener.accept().map(|(stream, _)| TestStream::Unix(stream));
        Self::start(Address::Unix(path), Some(folder), scripts.into(), accept)
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the port of a server on TCP.
    ///
    /// # Panics
    /// Panics if the server listens on a Unix socket.
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) => address.port(),
            Address::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    /// Returns the path of a server on a Unix socket.
    ///
    /// # Panics
    /// Panics if the server listens on TCP.
    pub fn path(&self) -> &Path {
        match &self.address {
            Address::Unix(path) => path,
            Address::Tcp(address) => panic!("{address} has no path"),
        }
    }

    /// Waits for the first connection.
    ///
    /// # Panics
    /// Panics if no connection arrives before the deadline.
    pub fn wait_for_connection(&self) {
        let has_come = || self.accepted.load(Ordering::Acquire) > 0;
        assert!(crate::process::eventually(has_come), "nobody connected to {:?}", self.address);
    }

    /// Stops listening, and waits until all active scripts have ended. Returns the records of all
    /// connections, in the order of their arrival.
    pub fn records(mut self) -> Vec<Record> {
        self.stop()
    }

    /// Works as [`ScriptedBackend::records`] does, and requires that all scripts succeeded.
    ///
    /// # Panics
    /// Panics if a step failed, or if no connection came for a script.
    pub fn finish(mut self) -> Vec<Record> {
        let records = self.stop();
        for (index, record) in records.iter().enumerate() {
            if let Some(failure) = &record.failure {
                panic!("connection {index}: {failure}");
            }
        }
        records
    }

    fn start(
        address: Address,
        folder: Option<Folder>,
        scripts: Vec<Vec<ScriptStep>>,
        accept: impl Fn() -> io::Result<TestStream> + Send + 'static,
    ) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicUsize::new(0));
        let (flag, count) = (Arc::clone(&stopping), Arc::clone(&accepted));
        let counting_accept = move || {
            accept().inspect(|_| {
                count.fetch_add(1, Ordering::Release);
            })
        };
        let acceptor = thread::spawn(move || serve(scripts, &flag, counting_accept));
        Self { address, stopping, accepted, acceptor: Some(acceptor), _folder: folder }
    }

    fn stop(&mut self) -> Vec<Record> {
        self.stopping.store(true, Ordering::Release);
        let records = self.acceptor.take().map(JoinHandle::join);
        records.map_or_else(Vec::new, |records| records.expect("the acceptor does not panic"))
    }
}

impl Drop for ScriptedBackend {
    fn drop(&mut self) {
        // The thread is not joined, because one of its scripts may wait until the deadline.
        self.stopping.store(true, Ordering::Release);
    }
}

/// Accepts connections until `stopping` is set, then collects the records. A script without a
/// connection counts as a failure.
fn serve(
    scripts: Vec<Vec<ScriptStep>>,
    stopping: &AtomicBool,
    accept: impl Fn() -> io::Result<TestStream>,
) -> Vec<Record> {
    let mut waiting = scripts.into_iter();
    let mut running = Vec::new();
    loop {
        // Read the flag before the accept, so that a connection that came before the stop is
        // served.
        let is_last = stopping.load(Ordering::Acquire);
        match accept() {
            Ok(stream) => {
                let script = waiting.next();
                running.push(thread::spawn(move || script.map(|steps| follow(stream, &steps))));
            }
            Err(_) if is_last => break,
            Err(_) => thread::sleep(POLL),
        }
    }
    let joined = running.into_iter().map(|thread| thread.join().expect("a script does not panic"));
    let mut records: Vec<_> = joined.map(Option::unwrap_or_default).collect();
    records.extend(
        waiting
            .map(|_| Record { failure: Some("nobody connected".to_owned()), ..Record::default() }),
    );
    records
}

/// Follows a script to its end, or to the first step that fails.
fn follow(stream: TestStream, steps: &[ScriptStep]) -> Record {
    let mut connection = ScriptedConnection { stream, record: Record::default(), taken: 0 };
    if let Err(error) = set_up(&connection.stream) {
        connection.record.failure = Some(format!("the connection cannot be set up: {error}"));
        return connection.record;
    }
    for (index, step) in steps.iter().enumerate() {
        if matches!(step, ScriptStep::Reset) {
            let ScriptedConnection { stream, record, .. } = connection;
            stream.reset();
            return record;
        }
        if let Err(error) = connection.perform(step) {
            connection.record.failure = Some(format!("step {index}, {step:?}: {error}"));
            break;
        }
    }
    connection.record
}

/// Makes the connection blocking, because it may inherit the non-blocking mode of its listener.
fn set_up(stream: &TestStream) -> io::Result<()> {
    match stream {
        TestStream::Tcp(stream) => stream.set_nonblocking(false)?,
        TestStream::Tls(stream) => stream.sock.set_nonblocking(false)?,
        TestStream::Unix(stream) => stream.set_nonblocking(false)?,
    }
    stream.set_patience(DEADLINE)
}

struct ScriptedConnection {
    stream: TestStream,
    record: Record,
    /// Number of received bytes that the steps so far have consumed.
    taken: usize,
}

impl ScriptedConnection {
    fn perform(&mut self, step: &ScriptStep) -> io::Result<()> {
        match step {
            ScriptStep::ReadHead => self.read_head(),
            ScriptStep::Read(count) => self.read(*count).map(drop),
            ScriptStep::Expect(bytes) => self.expect(bytes),
            ScriptStep::ReadToEnd => {
                while self.fill()? > 0 {}
                self.taken = self.record.received.len();
                Ok(())
            }
            ScriptStep::Send(bytes) => self.stream.write_all(bytes),
            ScriptStep::SendByteByByte(bytes) => {
                bytes.chunks(1).try_for_each(|byte| self.stream.write_all(byte))
            }
            ScriptStep::Pause(time) => {
                let until = Instant::now() + *time;
                while let Some(left) = until.checked_duration_since(Instant::now()) {
                    thread::sleep(left);
                }
                Ok(())
            }
            ScriptStep::Signal(test) => {
                // Ignore an error: if the test has ended, the receiver no longer exists.
                let _ = test.send(());
                Ok(())
            }
            ScriptStep::FinishSending => self.stream.finish_sending(),
            ScriptStep::Reset => unreachable!("handled by the caller, who owns the stream"),
        }
    }

    fn read_head(&mut self) -> io::Result<()> {
        loop {
            let unread = &self.record.received[self.taken..];
            if let Some(at) = unread.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                self.taken += at + 4;
                return Ok(());
            }
            self.fill_or_fail()?;
        }
    }

    fn read(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.record.received.len() - self.taken < count {
            self.fill_or_fail()?;
        }
        self.taken += count;
        Ok(&self.record.received[self.taken - count..self.taken])
    }

    fn expect(&mut self, bytes: &[u8]) -> io::Result<()> {
        let actual = self.read(bytes.len())?;
        if actual == bytes {
            return Ok(());
        }
        let what = format!("came instead: {:?}", actual.escape_ascii().to_string());
        Err(io::Error::new(ErrorKind::InvalidData, what))
    }

    fn fill_or_fail(&mut self) -> io::Result<()> {
        match self.fill()? {
            0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "the other side closed")),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = self.stream.read(&mut bytes)?;
        self.record.received.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Client;

    const REPLY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    #[test]
    fn each_connection_follows_its_script() {
        let backend = ScriptedBackend::tcp([
            vec![
                ScriptStep::ReadHead,
                ScriptStep::send(REPLY),
                ScriptStep::expect("abc"),
                ScriptStep::ReadToEnd,
            ],
            vec![ScriptStep::ReadHead, ScriptStep::SendByteByByte(REPLY.into())],
        ]);
        let mut first = Client::connect(backend.address());
        assert_eq!(first.get("/1").text(), "ok");
        let mut second = Client::connect(backend.address());
        assert_eq!(second.get("/2").text(), "ok");
        assert!(second.is_closed());
        first.send("abcdef");
        first.finish_sending();
        assert!(first.is_closed());
        let records = backend.finish();
        assert!(records[0].received.ends_with(b"\r\n\r\nabcdef"));
        assert!(records[1].received.starts_with(b"GET /2 "));
    }

    #[test]
    fn a_unix_socket_serves_as_well() {
        let backend = ScriptedBackend::unix([vec![
            ScriptStep::Read(4),
            ScriptStep::send("pong"),
            ScriptStep::FinishSending,
        ]]);
        let mut client = Client::connect(backend.path());
        client.send("ping");
        assert_eq!(client.rest(), b"pong");
        assert_eq!(backend.finish()[0].received, b"ping");
    }

    #[test]
    fn a_reset_is_a_reset() {
        let backend = ScriptedBackend::tcp([vec![ScriptStep::ReadHead, ScriptStep::Reset]]);
        let error = Client::connect(backend.address()).try_get("/").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        backend.finish();
    }

    #[test]
    fn errors_are_recorded() {
        let backend =
            ScriptedBackend::tcp([vec![ScriptStep::expect("abc")], vec![ScriptStep::ReadHead]]);
        let mut client = Client::connect(backend.address());
        client.send("abd");
        assert!(client.is_closed());
        let records = backend.records();
        assert!(records[0].failure.as_ref().unwrap().contains("came instead: \"abd\""));
        assert_eq!(records[1].failure.as_deref(), Some("nobody connected"));
    }
}

//! A gate to a server. While it is open, connections reach the server. While it is closed, it
//! refuses connections, as if the server had been killed. It keeps its port.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_testkit::port::free_port;
use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

pub struct Gate {
    shared: Arc<Shared>,
    port: u16,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    listener: Socket,
    server: SocketAddr,
    is_ended: AtomicBool,
    /// Number of bytes that were passed to the server.
    passed: AtomicUsize,
    /// Both ends of the connections since the gate was opened.
    ends: Mutex<Vec<TcpStream>>,
}

impl Gate {
    /// Returns an open gate to the server on this loopback port.
    pub fn to(server: u16) -> Self {
        let (listener, port) = bind();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
        let (is_ended, passed) = (AtomicBool::new(false), AtomicUsize::new(0));
        let shared =
            Arc::new(Shared { listener, server, is_ended, passed, ends: Mutex::default() });
        shared.listener.listen(BACKLOG).unwrap();
        let accepting = Some(thread::spawn({
            let shared = shared.clone();
            move || accept_all(&shared)
        }));
        Self { shared, port, accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of bytes that were passed to the server so far.
    pub fn passed(&self) -> usize {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// Refuses connections from now on, and cuts off the open ones.
    pub fn close(&self) {
        let mut ends = self.shared.ends.lock().unwrap();
        // The socket stays bound, but no longer listens, so accepting fails.
        let _ = self.shared.listener.shutdown(Shutdown::Both);
        for end in ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub fn open(&self) {
        self.shared.listener.listen(BACKLOG).unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::SeqCst);
        self.close();
        drop(self.accepting.take().map(JoinHandle::join));
    }
}

/// The socket keeps a port that was chosen by number when it ceases to listen.
fn bind() -> (Socket, u16) {
    for _ in 0..20 {
        let (port, socket) = (free_port(), Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
        // It listens again while earlier connections end.
        socket.set_reuse_address(true).unwrap();
        if socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).is_ok() {
            return (socket, port);
        }
    }
    panic!("no port stayed free");
}

fn accept_all(shared: &Arc<Shared>) {
    while !shared.is_ended.load(Ordering::SeqCst) {
        let Ok((client, _)) = shared.listener.accept() else {
            // The gate is closed until it is opened again.
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let client = TcpStream::from(client);
        let Ok(server) = TcpStream::connect(shared.server) else { continue };
        let copy = |stream: &TcpStream| stream.try_clone().unwrap();
        shared.ends.lock().unwrap().extend([copy(&client), copy(&server)]);
        let (from_client, to_client) = (copy(&client), client);
        let (to_server, from_server) = (copy(&server), server);
        let passing = shared.clone();
        thread::spawn(move || {
            pass(from_client, to_server, |n| {
                passing.passed.fetch_add(n, Ordering::SeqCst);
            });
        });
        thread::spawn(move || pass(from_server, to_client, drop));
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, count: impl Fn(usize)) {
    let mut buffer = [0; 16_384];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        count(n);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

//! Backends that are names. Forebay resolves them again at their time to live, uses all their
//! addresses, and tolerates names that do not resolve. The real resolver asks a DNS server of the
//! test.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, serve_file};

/// Reply of the DNS server to every question about IPv4 addresses.
#[derive(Clone)]
enum Answer {
    Addresses(Vec<Ipv4Addr>),
    NoSuchName,
    ServerFailure,
    Silence,
}

/// A DNS server on loopback with one answer for all names, at a time to live of one second.
struct Dns {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
}

impl Dns {
    fn start(answer: Answer) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(answer));
        let asked = Arc::<AtomicUsize>::default();
        let (current, count) = (answer.clone(), asked.clone());
        thread::spawn(move || {
            let mut bytes = [0; 1500];
            while let Ok((len, client)) = socket.recv_from(&mut bytes) {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = current.lock().unwrap().clone();
                if let Some(reply) = reply_to(&bytes[..len], &answer) {
                    let _ = socket.send_to(&reply, client);
                }
            }
        });
        Self { address, answer, asked }
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }
}

/// Returns the reply to a query of one question (RFC 1035 section 4).
fn reply_to(query: &[u8], answer: &Answer) -> Option<Vec<u8>> {
    let name_end = 12 + query[12..].iter().position(|&byte| byte == 0)? + 1;
    let question = &query[12..name_end + 4];
    let asks_for_ipv4 = question[question.len() - 4..] == [0, 1, 0, 1];
    let (code, addresses) = match answer {
        Answer::Addresses(addresses) if asks_for_ipv4 => (0, &addresses[..]),
        Answer::Addresses(_) => (0, &[][..]),
        Answer::NoSuchName => (3, &[][..]),
        Answer::ServerFailure => (2, &[][..]),
        Answer::Silence => return None,
    };
    // Identifier, a reply with recursion, one question, and the number of answers.
    let mut reply = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8];
    reply.extend([0; 4]);
    reply.extend(question);
    for address in addresses {
        // The name of the question, type A, class IN, one second, four bytes.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend(address.octets());
    }
    Some(reply)
}

/// An HTTP server that answers each request with its own address, and keeps connections.
struct Server {
    requests: Arc<AtomicUsize>,
    /// Connections are closed after their next reply.
    is_leaving: Arc<AtomicBool>,
}

impl Server {
    fn start(address: Ipv4Addr, port: u16) -> Self {
        let listener = TcpListener::bind((address, port)).unwrap();
        let (requests, is_leaving) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, leaving) = (requests.clone(), is_leaving.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (count, leaving) = (count.clone(), leaving.clone());
                thread::spawn(move || answer_all(&stream, &address.to_string(), &count, &leaving));
            }
        });
        Self { requests, is_leaving }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn answer_all(stream: &TcpStream, body: &str, count: &AtomicUsize, leaving: &AtomicBool) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    while lines.by_ref().take_while(|line| !line.is_empty()).count() > 0 {
        count.fetch_add(1, Ordering::SeqCst);
        let is_last = leaving.load(Ordering::SeqCst);
        let close = if is_last { "Connection: close\r\n" } else { "" };
        let head = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: {}\r\n\r\n", body.len());
        let mut out = stream;
        if out.write_all(format!("{head}{body}").as_bytes()).is_err() || is_last {
            return;
        }
    }
}

const TWO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const THREE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// A port that is free on both addresses.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind((THREE, *port)).is_ok();
    let any = || TcpListener::bind((TWO, 0)).unwrap().local_addr().unwrap().port();
    (0..100).map(|_| any()).find(is_free).expect("a free port")
}

fn in_front_of(dns: &Dns, port: u16) -> Forebay {
    let configuration = format!(
        "[server]\ndns_servers = \"{}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/static\"\nrespond = {{ status = 204 }}\n\
         [[site.route]]\nproxy = \"http://app.forebay.test:{port}\"\n",
        dns.address
    );
    serve_file(Folder::new(), &configuration)
}

#[test]
fn a_name_without_an_address_fails_its_own_requests_alone_until_it_appears() {
    for answer in [Answer::NoSuchName, Answer::ServerFailure] {
        let dns = Dns::start(answer);
        let port = free_port();
        let server = Server::start(TWO, port);
        let forebay = in_front_of(&dns, port);
        assert_eq!(forebay.get("/static").status, 204);
        assert_eq!(forebay.get("/").status, 502, "{}", forebay.output());
        let is_logged = || forebay.output().contains("cannot resolve app.forebay.test");
        assert!(eventually(is_logged), "{}", forebay.output());
        dns.set(Answer::Addresses(vec![TWO]));
        assert!(eventually(|| forebay.get("/").status == 200), "{}", forebay.output());
        assert!(server.requests() > 0);
        forebay.stop();
    }
}

#[test]
fn a_changed_address_is_used_under_load_without_a_failure() {
    let dns = Dns::start(Answer::Addresses(vec![TWO]));
    let port = free_port();
    let (old, new) = (Server::start(TWO, port), Server::start(THREE, port));
    let forebay = in_front_of(&dns, port);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                while !is_over.load(Ordering::SeqCst) {
                    let reply = client.get("/");
                    assert_eq!(reply.status, 200, "{}\n{}", reply.text(), forebay.output());
                }
            });
        }
        assert!(eventually(|| old.requests() > 100));
        assert_eq!(new.requests(), 0);
        dns.set(Answer::Addresses(vec![THREE]));
        assert!(eventually(|| new.requests() > 100), "{}", forebay.output());
        old.is_leaving.store(true, Ordering::SeqCst);
        let at_change = old.requests();
        assert!(eventually(|| new.requests() > 1000));
        is_over.store(true, Ordering::SeqCst);
        // At most the requests that were active at the change.
        assert!(old.requests() <= at_change + 4, "kept connections to the former address");
    });
    let is_logged = || forebay.output().contains("now has the addresses 127.0.0.3");
    assert!(eventually(is_logged), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn all_addresses_are_used_and_one_that_refuses_costs_nothing() {
    let dns = Dns::start(Answer::Addresses(vec![TWO, THREE]));
    let port = free_port();
    let (two, three) = (Server::start(TWO, port), Server::start(THREE, port));
    two.is_leaving.store(true, Ordering::SeqCst);
    three.is_leaving.store(true, Ordering::SeqCst);
    let forebay = in_front_of(&dns, port);
    for _ in 0..20 {
        assert_eq!(forebay.get("/").status, 200);
    }
    assert_eq!((two.requests(), three.requests()), (10, 10));
    // Nothing listens on the second address.
    dns.set(Answer::Addresses(vec![TWO, Ipv4Addr::new(127, 0, 0, 4)]));
    let has_changed = || forebay.output().contains("127.0.0.4");
    assert!(eventually(has_changed), "{}", forebay.output());
    for _ in 0..20 {
        assert_eq!(forebay.get("/").status, 200, "{}", forebay.output());
    }
    assert_eq!(three.requests(), 10);
    forebay.stop();
}

#[test]
fn a_silent_dns_server_leaves_the_last_addresses_in_use() {
    let dns = Dns::start(Answer::Addresses(vec![TWO]));
    let port = free_port();
    let server = Server::start(TWO, port);
    let forebay = in_front_of(&dns, port);
    assert_eq!(forebay.get("/").status, 200);
    dns.set(Answer::Silence);
    let asked = dns.asked.load(Ordering::SeqCst);
    assert!(eventually(|| dns.asked.load(Ordering::SeqCst) > asked));
    assert!(eventually(|| forebay.output().contains("its last addresses stay in use")));
    assert_eq!(forebay.get("/").status, 200);
    assert!(server.requests() >= 2);
    // A name that no longer exists is a different case.
    dns.set(Answer::NoSuchName);
    assert!(eventually(|| forebay.get("/").status == 502), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_server_without_dns_starts_in_time_and_serves_the_rest() {
    let dns = Dns::start(Answer::Silence);
    let forebay = in_front_of(&dns, free_port());
    assert_eq!(forebay.get("/static").status, 204);
    assert_eq!(forebay.get("/").status, 502);
    forebay.stop();
}

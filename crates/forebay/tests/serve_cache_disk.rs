//! Stored replies on disk: a server that is killed under load serves them after its restart, and each
//! body is right.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use serde_json::Value;
use support::load::load;
use support::{Forebay, command, proc, serve, write_configuration};

/// Number of different pages.
const PAGES: usize = 120;
/// Number of kills.
const KILLS: usize = 2;
/// Replies between two kills.
const BETWEEN: usize = 400;

/// A backend whose pages consist of one line, repeated. Each POST changes all lines.
struct Pages {
    address: SocketAddr,
    version: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Pages {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (version, asked) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counters = (version.clone(), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (version, asked) = counters.clone();
                thread::spawn(move || answer(stream, &version, &asked));
            }
        });
        Self { address, version, asked }
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

/// Answers the requests of one connection.
fn answer(mut stream: TcpStream, version: &AtomicUsize, asked: &AtomicUsize) -> Option<()> {
    let mut unread = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).ok().filter(|&read| read > 0)?;
            unread.extend_from_slice(&piece[..read]);
        };
        let head = String::from_utf8(unread.drain(..end).collect()).ok()?;
        let mut words = head.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        asked.fetch_add(1, Ordering::SeqCst);
        if method == "POST" {
            version.fetch_add(1, Ordering::SeqCst);
        }
        let number: usize = target.trim_start_matches('/').parse().unwrap_or(0);
        let line = format!("{target} {}\n", version.load(Ordering::SeqCst));
        // Every third page is too large for the memory.
        let size = if number.is_multiple_of(3) { 100_000 } else { 2_000 };
        let body = line.repeat(size / line.len());
        let (etag, length) = (line.trim_end(), body.len());
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nETag: \"{etag}\"\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).ok()?;
    }
}

/// Checks that a page is of one piece, and returns its version.
fn check(target: &str, reply: &Reply) -> usize {
    assert_eq!(reply.status, 200);
    let text = reply.text();
    let first = text.lines().next().expect("a page has lines");
    assert!(text.lines().all(|line| line == first), "{target}: a mixed page");
    let version = first.strip_prefix(target).and_then(|rest| rest.strip_prefix(' '));
    version.unwrap_or_else(|| panic!("{target} got {first}")).parse().expect("a number")
}

struct Site {
    forebay: Forebay,
    admin: SocketAddr,
}

fn configuration(pages: &Pages, admin: SocketAddr) -> String {
    format!(
        "[server]\nadmin = \"{admin}\"\nadmin_token = \"0123456789abcdef\"\n\
         cache_memory = \"1MiB\"\ncache_dir = \"{{tmp}}/cache\"\ncache_disk = \"16MiB\"\n[[site]]\n\
         listen = \"127.0.0.1:0\"\n[[site.route]]\nproxy = \"http://{}\"\ncache = true\n",
        pages.address
    )
}

impl Site {
    /// Starts a server, and waits until its index is complete.
    fn start(folder: Folder, pages: &Pages) -> Self {
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let site = Self { forebay: serve(folder, &configuration(pages, admin)), admin };
        assert!(eventually(|| site.disk()["state"] == "ready"), "{}", site.forebay.output());
        site
    }

    fn disk(&self) -> Value {
        let status = Client::connect(self.admin).get("/status");
        let status: Value = serde_json::from_str(status.text()).expect("JSON");
        status["cache"]["disk"].clone()
    }

    /// Ends the server with SIGKILL.
    fn kill(self) -> Folder {
        proc::kill(self.forebay.process.id());
        self.forebay.process.wait();
        self.forebay.folder
    }
}

#[test]
fn a_server_that_is_killed_under_load_serves_right_pages_after_its_restart() {
    let pages = Pages::start();
    let mut site = Site::start(Folder::new(), &pages);
    for round in 0..KILLS {
        let turn = AtomicUsize::new(0);
        let ask = |client: &mut Client| {
            let target = format!("/{}", turn.fetch_add(7, Ordering::Relaxed) % PAGES);
            let reply = client.try_get(&target)?;
            check(&target, &reply);
            Ok(reply)
        };
        let counts = load(&site.forebay, 4, ask, |replies| {
            let is_enough = || {
                replies.load(Ordering::Relaxed) >= BETWEEN
                    && site.disk()["replies"].as_u64() > Some(30)
            };
            assert!(eventually(is_enough), "{}", site.disk());
        });
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}");
        // A writer is busy at this moment, because new pages come.
        let version = pages.version.load(Ordering::SeqCst);
        let mut client = site.forebay.connect();
        client.send(format!(
            "POST /{round} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        ));
        client.reply();
        for page in 0..20 {
            let target = format!("/{}", page + 1000 * round);
            for _ in 0..2 {
                check(&target, &client.get(&target));
            }
        }
        site = Site::start(site.kill(), &pages);
        pages.asked();
        let kept = site.disk()["replies"].as_u64().expect("a number");
        assert!(kept > 30, "{}", site.disk());
        let mut client = site.forebay.connect();
        for page in 0..PAGES {
            let target = format!("/{page}");
            let got = check(&target, &client.get(&target));
            if page == round {
                assert!(got > version, "{target} was changed before the kill");
            }
        }
        assert_eq!(site.disk()["broken"], 0, "{}", site.disk());
        let hits = site.disk()["hits"].as_u64().expect("a number");
        assert!(hits > 30, "{}", site.disk());
        assert!(pages.asked() <= PAGES - 30);
    }
    let (_, folder) = site.forebay.stop();
    let mode = fs::metadata(folder.path().join("cache")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn two_processes_share_a_directory_one_after_the_other() {
    let pages = Pages::start();
    let old = Site::start(Folder::new(), &pages);
    let mut client = old.forebay.connect();
    for _ in 0..2 {
        client.get("/1");
        client.get("/2");
    }
    assert!(eventually(|| old.disk()["replies"] == 2));
    // As after an upgrade in place, the second process starts before the first one ends.
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let file = write_configuration(&old.forebay.folder, &configuration(&pages, admin));
    let mut process = Process::start(command(&[file.to_str().unwrap()]));
    process.wait_for_output("another process uses");
    process.wait_until_listening(admin);
    let disk = || {
        let status = Client::connect(admin).get("/status");
        let status: Value = serde_json::from_str(status.text()).expect("JSON");
        status["cache"]["disk"].clone()
    };
    assert_eq!(disk()["state"], "waiting for another process");
    let mut client = Client::connect(admin);
    client.send(
        "POST /cache/purge?url=http://localhost/1 HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer 0123456789abcdef\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(client.reply().status, 200);
    let (_, _folder) = old.forebay.stop();
    assert!(eventually(|| disk()["state"] == "ready"), "{}", process.output());
    let output = process.output();
    let address = output.split("serving http://").nth(1).and_then(|rest| rest.lines().next());
    let address: SocketAddr = address.expect("it serves").parse().expect("an address");
    pages.asked();
    let mut client = Client::connect(address);
    check("/2", &client.get("/2"));
    assert_eq!(pages.asked(), 0, "served from the disk of the other process");
    check("/1", &client.get("/1"));
    assert_eq!(pages.asked(), 1, "purged");
    assert_eq!(process.stop().status.code(), Some(0));
}

#[test]
fn a_directory_that_something_else_uses_is_refused() {
    let pages = Pages::start();
    let folder = Folder::new();
    folder.write("cache/letter.txt", "dear");
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let file = write_configuration(&folder, &configuration(&pages, admin));
    let exit = Process::start(command(&[file.to_str().unwrap()])).wait();
    assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
    assert!(exit.output.contains("files that are not of a cache"), "{}", exit.output);
    assert!(folder.path().join("cache/letter.txt").exists());
}

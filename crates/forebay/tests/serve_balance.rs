//! Several backends of one route of `forebay serve`: their selection, and failures.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::echo::Echo;
use support::{Forebay, site};

/// A backend that answers with its name, and closes after each reply.
struct Named {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    unwell: AtomicBool,
    /// Requests for `/slow` wait while this is set.
    held: AtomicBool,
    waiting: AtomicUsize,
    stopping: AtomicBool,
}

impl Named {
    fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let state = shared.clone();
                thread::spawn(move || drop(answer(stream, name, &state)));
            }
        });
        Self { address, state }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.state.held.store(false, Ordering::SeqCst);
        let _wake = TcpStream::connect(self.address);
    }
}

fn answer(stream: TcpStream, name: &str, state: &State) -> std::io::Result<()> {
    stream.set_read_timeout(Some(forebay_testkit::DEADLINE))?;
    let mut reader = BufReader::new(&stream);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
    }
    if request.starts_with("GET /slow") {
        state.waiting.fetch_add(1, Ordering::SeqCst);
        while state.held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(2));
        }
    }
    let is_check = request.starts_with("GET /healthz");
    let status = if is_check && state.unwell.load(Ordering::SeqCst) { 503 } else { 200 };
    let length = name.len();
    let reply = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{name}"
    );
    (&stream).write_all(reply.as_bytes())
}

/// Returns an address without a listener.
fn nobody() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn proxy(to: &str, more: &str) -> Forebay {
    site(Folder::new(), &format!("[[site.route]]\n[site.route.proxy]\nto = [{to}]\n{more}\n"))
}

/// Returns the names of the backends that answer this many requests, each on its own connection.
fn names(forebay: &Forebay, count: usize) -> String {
    (0..count).map(|_| forebay.get("/").text().to_owned()).collect()
}

#[test]
fn backends_take_turns_by_weight_whatever_thread_a_client_is_on() {
    let (a, b) = (Named::start("a"), Named::start("b"));
    let to = format!("{{ url = \"{}\", weight = 3 }}, \"{}\"", a.url(), b.url());
    let forebay = proxy(&to, "");
    assert_eq!(names(&forebay, 8), "aabaaaba");
    let mut client = forebay.connect();
    let kept: String = (0..4).map(|_| client.get("/").text().to_owned()).collect();
    assert_eq!(kept, "aaba");
    forebay.stop();
}

#[test]
fn nobody_notices_a_backend_that_is_gone() {
    let echo = Echo::start();
    let mut forebay = proxy(&format!("\"{}\", \"{}\"", nobody(), echo.url()), "");
    for _ in 0..5 {
        assert_eq!(forebay.get("/").status, 200);
        let post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(forebay.ask(post).status, 200);
    }
    let message = "is left out for 10s: cannot connect";
    // The test may read the log line later than the replies.
    forebay.wait_for_output(message);
    let output = forebay.output();
    assert_eq!(output.matches(message).count(), 1, "{output}");
    forebay.stop();
}

#[test]
fn backends_are_asked_how_they_are() {
    let (a, b) = (Named::start("a"), Named::start("b"));
    let mut forebay = proxy(
        &format!("\"{}\", \"{}\"", a.url(), b.url()),
        "health = { path = \"/healthz\", interval = \"20ms\", rises = 2, falls = 2 }",
    );
    assert_eq!(names(&forebay, 4), "abab");
    b.state.unwell.store(true, Ordering::SeqCst);
    forebay.wait_for_output("is down: /healthz answered 503");
    assert_eq!(names(&forebay, 4), "aaaa");
    forebay.signal(rustix::process::Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    b.state.unwell.store(false, Ordering::SeqCst);
    forebay.wait_for_output("is up again");
    let both = names(&forebay, 2);
    assert!(both == "ab" || both == "ba", "{both}");
    forebay.stop();
}

#[test]
fn a_backend_is_up_only_with_the_expected_status_and_text() {
    let (a, b) = (Named::start("a"), Named::start("b"));
    b.state.unwell.store(true, Ordering::SeqCst);
    let servers = format!("\"{}\", \"{}\"", a.url(), b.url());
    let health = "path = \"/healthz\", interval = \"20ms\", falls = 2";
    let keys = format!("health = {{ {health}, statuses = [503], body = \"b\" }}");
    let mut forebay = proxy(&servers, &keys);
    forebay.wait_for_output("is down: /healthz answered 200");
    assert_eq!(names(&forebay, 2), "bb");
    forebay.stop();
    // The health checks of both servers go to the port of one of them.
    let port = b.url().rsplit(':').next().unwrap().to_owned();
    let keys = format!("health = {{ {health}, statuses = \"5xx\", body = \"a\", port = {port} }}");
    let mut forebay = proxy(&format!("\"{}\", \"{}\"", a.url(), nobody()), &keys);
    for _ in 0..2 {
        forebay.wait_for_output("is down: the answer of /healthz does not contain the text");
    }
    forebay.stop();
}

#[test]
fn a_backend_that_hangs_is_down() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let a = Named::start("a");
    let mut forebay = proxy(
        &format!("\"{}\", \"http://{}\"", a.url(), silent.local_addr().unwrap()),
        "health = { path = \"/\", interval = \"20ms\", timeout = \"500ms\" }",
    );
    forebay.wait_for_output("is down: no answer within 500ms");
    assert_eq!(names(&forebay, 4), "aaaa");
    forebay.stop();
}

#[test]
fn the_backend_with_fewer_requests_is_chosen() {
    let (a, b) = (Named::start("a"), Named::start("b"));
    let to = format!("\"{}\", \"{}\"", a.url(), b.url());
    let forebay = proxy(&to, "balance = \"least-connections\"");
    for backend in [&a, &b] {
        backend.state.held.store(true, Ordering::SeqCst);
    }
    let mut slow: Vec<_> = (0..6).map(|_| forebay.connect()).collect();
    for client in &mut slow {
        client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    let waiting = |backend: &Named| backend.state.waiting.load(Ordering::SeqCst);
    assert!(eventually(|| (waiting(&a), waiting(&b)) == (3, 3)), "shared out evenly");
    b.state.held.store(false, Ordering::SeqCst);
    // A client may get its reply just before the request counts as finished.
    assert!(eventually(|| names(&forebay, 5) == "bbbbb"));
    assert_eq!(names(&forebay, 5), "bbbbb");
    a.state.held.store(false, Ordering::SeqCst);
    let replies: String = slow.iter_mut().map(|client| client.reply().text().to_owned()).collect();
    assert_eq!(replies.matches('a').count(), 3, "{replies}");
    assert!(eventually(|| names(&forebay, 1) == "a"), "both are asked again");
}

/// Serves one connection at a time, until it closes. Each reply is the target of the request.
fn one_connection_at_a_time(listener: TcpListener) {
    for stream in listener.incoming().flatten() {
        let mut reader = BufReader::new(stream);
        let mut target = None;
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
            match line.trim_end() {
                "" => {
                    let target = target.take().unwrap_or_default();
                    let length = String::len(&target);
                    let reply =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{target}");
                    if reader.get_mut().write_all(reply.as_bytes()).is_err() {
                        break;
                    }
                }
                first if target.is_none() => {
                    target = first.split(' ').nth(1).map(str::to_owned);
                }
                _ => {}
            }
            line.clear();
        }
    }
}

#[test]
fn two_routes_share_the_one_connection_that_a_backend_takes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The thread ends with the process of the test.
    thread::spawn(move || one_connection_at_a_time(listener));
    let forebay = support::serve_file(
        Folder::new(),
        &format!(
            "[server]\nthreads = 1\ntimeouts = {{ reply_idle = \"2s\" }}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/a/*\"\nproxy = \"{url}\"\n\
             [[site.route]]\npath = \"/b/*\"\nproxy = \"{url}\"\n"
        ),
    );
    for target in ["/a/1", "/b/2", "/a/3", "/b/4"] {
        let reply = forebay.get(target);
        assert_eq!((reply.status, reply.text()), (200, target), "{}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn two_routes_and_two_threads_share_the_connections_that_are_allowed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The thread ends with the process of the test.
    thread::spawn(move || one_connection_at_a_time(listener));
    let forebay = support::serve_file(
        Folder::new(),
        &format!(
            "[server]\nthreads = 2\ntimeouts = {{ reply_idle = \"2s\", connect = \"20s\" }}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/a/*\"\nproxy = {{ to = \"{url}\", max_connections = 1 }}\n\
             [[site.route]]\npath = \"/b/*\"\nproxy = {{ to = \"{url}\", keepalive = 3 }}\n"
        ),
    );
    let clients = 6;
    thread::scope(|scope| {
        for n in 0..clients {
            let forebay = &forebay;
            scope.spawn(move || {
                for (at, method) in
                    ["GET", "POST", "GET", "POST"].iter().cycle().take(12).enumerate()
                {
                    let target = format!("/{}/{n}-{at}", if at % 3 == 0 { "a" } else { "b" });
                    let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n");
                    let reply = forebay.ask(format!("{head}Content-Length: 0\r\n\r\n"));
                    assert_eq!(
                        (reply.status, reply.text()),
                        (200, &*target),
                        "{}",
                        forebay.output()
                    );
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn a_request_that_no_connection_becomes_free_for_is_refused() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = format!("\"http://{}\"", silent.local_addr().unwrap());
    let forebay = proxy(&to, "max_connections = 1\nconnect_timeout = \"200ms\"");
    let mut first = forebay.connect();
    first.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut stream = silent.accept().unwrap().0;
    let refused = forebay.get("/b");
    assert_eq!(refused.status, 503, "{}", forebay.output());
    assert!(eventually(|| forebay.output().contains("are busy")), "{}", forebay.output());
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx").unwrap();
    assert_eq!(first.reply().text(), "x");
}

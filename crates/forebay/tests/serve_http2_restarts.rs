//! `forebay serve` with Tomcats and Jettys over HTTP/2 that are killed, stopped and started again
//! under load.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;

use support::{Forebay, pattern, site};

/// Records the number of the request, and answers with the request's body.
const ECHO: &str = r#"<%@ page session="false" contentType="application/octet-stream" trimDirectiveWhitespaces="true"
    import="java.nio.file.*" %><%
Files.writeString(Paths.get(application.getRealPath("/ran")), request.getQueryString() + "\n",
    StandardOpenOption.CREATE, StandardOpenOption.APPEND);
request.getInputStream().transferTo(response.getOutputStream());
out.clear();
out = pageContext.pushBody();
%>"#;

const CLIENTS: usize = 8;

/// Counts of the clients until they are stopped.
#[derive(Default)]
struct Load {
    answered: AtomicUsize,
    /// The number of each other result.
    failed: Mutex<BTreeMap<String, usize>>,
    has_ended: AtomicBool,
}

impl Load {
    /// Posts one body after the other, each over its own connection.
    fn run(&self, forebay: &Forebay, client: usize) {
        for n in 0.. {
            if self.has_ended.load(Ordering::Relaxed) {
                return;
            }
            let body = pattern(1 + (client * 1000 + n * 37) % 50_000);
            match post(forebay, &format!("{client}-{n}"), &body) {
                Ok(reply) if reply.status == 200 => {
                    assert!(reply.body == body, "{client}-{n}: another body");
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                // A server that stops drops its application before its last requests, and answers 404.
                Ok(reply) => {
                    let is_clean = matches!(reply.status, 404 | 502 | 503 | 504);
                    assert!(is_clean, "{reply:?}{}", forebay.output());
                    self.fail(format!("{} {:?}", reply.status, reply.header("server")));
                }
                // A reply that had begun is cut off, and never left open.
                Err(error) => {
                    let is_late =
                        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock);
                    assert!(!is_late, "{client}-{n} hangs: {}", forebay.output());
                    self.fail(error.kind().to_string());
                }
            }
        }
    }

    /// Waits for this many more answers.
    fn wait_for(&self, more: usize) {
        let wanted = self.answered.load(Ordering::Relaxed) + more;
        let until = Instant::now() + Duration::from_secs(120);
        while self.answered.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < until, "the load has stopped");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn fail(&self, how: String) {
        *self.failed.lock().unwrap().entry(how).or_default() += 1;
    }

    /// Takes the failures since the last call.
    fn failed(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut *self.failed.lock().unwrap())
    }
}

/// Ends the load, even if an assertion has failed, because the test waits for the clients.
struct End<'a>(&'a Load);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Relaxed);
    }
}

fn post(forebay: &Forebay, id: &str, body: &[u8]) -> io::Result<Reply> {
    let length = body.len();
    let head =
        format!("POST /echo.jsp?{id} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let mut client = Client::try_connect(&Address::Tcp(forebay.address))?;
    client.try_send(&[head.as_bytes(), body].concat())?;
    client.try_reply()
}

/// Returns the number of times that either server has run each request.
fn runs(peers: &[&Peer]) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for peer in peers {
        let ran = fs::read_to_string(peer.folder().path().join("webapps/ROOT/ran")).unwrap();
        ran.lines().for_each(|id| *runs.entry(id.to_owned()).or_default() += 1);
    }
    runs
}

#[test]
fn a_restart_of_tomcat_fails_only_posts_that_were_under_way_and_none_runs_twice() {
    let start = || peer::tomcat_http2(&[("echo.jsp", ECHO)], "maxConcurrentStreams=\"100\"");
    restart_under_load(start, peer::restart_tomcat);
}

#[test]
fn a_restart_of_jetty_fails_only_posts_that_were_under_way_and_none_runs_twice() {
    let start = || peer::jetty_http2(&[("echo.jsp", ECHO)], 100);
    restart_under_load(start, peer::restart_jetty);
}

/// Stops one of two servers, then kills it, and starts it again each time, while clients continue.
fn restart_under_load(start: impl Fn() -> Option<Peer>, restart: fn(Folder, &Address) -> Peer) {
    let Some(first) = start() else { return };
    let second = start().expect("the first is there");
    let to = [&first, &second].map(|peer| format!("\"h2c://127.0.0.1:{}\"", peer.port()));
    let forebay = site(
        Folder::new(),
        &format!("[[site.route]]\nproxy = {{ to = [{}], fail_timeout = \"1s\" }}\n", to.join(", ")),
    );
    let (address, load) = (first.address().clone(), Load::default());
    let first = thread::scope(|scope| {
        let (forebay, load) = (&forebay, &load);
        let _end = End(load);
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || load.run(forebay, client))));
        load.wait_for(200);
        assert_eq!(load.failed(), BTreeMap::new(), "{}", forebay.output());
        let mut first = first;
        for end in [peer::stop, peer::kill] {
            let folder = end(first);
            // The other server answers.
            load.wait_for(100);
            let failed = load.failed();
            // A client may get 404 because the application is missing, then send another request
            // and be cut off.
            assert!(
                failed.values().sum::<usize>() <= 2 * CLIENTS,
                "{failed:?} failed: {}",
                forebay.output()
            );
            first = restart(folder, &address);
            load.wait_for(200);
            assert_eq!(load.failed(), BTreeMap::new(), "{}", forebay.output());
        }
        first
    });
    let runs = runs(&[&first, &second]);
    let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(runs.len() >= load.answered.into_inner(), "what was answered was run");
    forebay.stop();
}

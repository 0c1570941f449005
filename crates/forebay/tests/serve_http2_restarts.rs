//! `forebay serve` in front of Tomcats by HTTP/2 that are killed, stopped and started again under load.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;

use support::{Forebay, pattern, site};

/// Writes down which request it runs, and answers with the request's body.
const ECHO: &str = r#"<%@ page session="false" contentType="application/octet-stream" trimDirectiveWhitespaces="true"
    import="java.nio.file.*" %><%
Files.writeString(Path.of(application.getRealPath("/ran")), request.getQueryString() + "\n",
    StandardOpenOption.CREATE, StandardOpenOption.APPEND);
request.getInputStream().transferTo(response.getOutputStream());
out.clear();
out = pageContext.pushBody();
%>"#;

const CLIENTS: usize = 8;

/// What clients count until they are told to end.
#[derive(Default)]
struct Load {
    answered: AtomicUsize,
    failed: AtomicUsize,
    has_ended: AtomicBool,
}

impl Load {
    /// Posts one body after the other, over a connection each.
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
                // A Tomcat that stops drops its application before its last requests, and answers 404.
                Ok(reply) => {
                    let is_clean = matches!(reply.status, 404 | 502 | 503 | 504);
                    assert!(is_clean, "{reply:?}{}", forebay.output());
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
                // A reply that had begun is broken off, and never left hanging.
                Err(error) => {
                    let is_late =
                        matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock);
                    assert!(!is_late, "{client}-{n} hangs: {}", forebay.output());
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits until so many more have been answered.
    fn wait_for(&self, more: usize) {
        let wanted = self.answered.load(Ordering::Relaxed) + more;
        let until = Instant::now() + Duration::from_secs(120);
        while self.answered.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < until, "the load has stopped");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many have failed since this was asked last.
    fn failed(&self) -> usize {
        self.failed.swap(0, Ordering::Relaxed)
    }
}

/// Ends the load, also where an assertion has failed, as the clients are waited for.
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

/// How often each request has been run by either.
fn runs(tomcats: &[&Peer]) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for tomcat in tomcats {
        let ran = fs::read_to_string(tomcat.folder().path().join("webapps/ROOT/ran")).unwrap();
        ran.lines().for_each(|id| *runs.entry(id.to_owned()).or_default() += 1);
    }
    runs
}

#[test]
fn a_restart_fails_only_posts_that_were_under_way_and_none_runs_twice() {
    let tomcat = || peer::tomcat_http2(&[("echo.jsp", ECHO)], "maxConcurrentStreams=\"100\"");
    let Some(first) = tomcat() else { return };
    let second = tomcat().expect("the first is there");
    let to = [&first, &second].map(|tomcat| format!("\"h2c://127.0.0.1:{}\"", tomcat.port()));
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
        assert_eq!(load.failed(), 0, "{}", forebay.output());
        let mut first = first;
        for end in [peer::stop_tomcat, peer::kill_tomcat] {
            let folder = end(first);
            // The other one answers.
            load.wait_for(100);
            let failed = load.failed();
            // A client may be answered 404 by the application's absence, ask again and be cut off.
            assert!(failed <= 2 * CLIENTS, "{failed} failed: {}", forebay.output());
            first = peer::restart_tomcat(folder, &address);
            load.wait_for(200);
            assert_eq!(load.failed(), 0, "{}", forebay.output());
        }
        first
    });
    let runs = runs(&[&first, &second]);
    let twice: Vec<_> = runs.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(runs.len() >= load.answered.into_inner(), "what was answered was run");
    forebay.stop();
}

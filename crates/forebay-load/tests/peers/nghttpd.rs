//! Load on nghttpd, the HTTP/2 server of the authors of nghttp2.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Check, Control, Spec, Stop, Url, fetch, run};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// Private nghttpd process. Dropping it ends the process.
struct Nghttpd {
    process: Child,
    _folder: TempDir,
    port: u16,
}

impl Nghttpd {
    /// Starts nghttpd. Prints a line and returns `None` if it is not installed.
    fn start() -> Option<Self> {
        let program = forebay_testkit::peer::installed("nghttpd")?;
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(folder.path().join("page.html"), "A page of nghttpd.\n".repeat(5_000)).unwrap();
        let process = Command::new(program)
            .args(["--no-tls", "--address=127.0.0.1", "--max-concurrent-streams=20"])
            .arg("--echo-upload")
            .arg("-d")
            .arg(folder.path())
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { process, _folder: folder, port };
        let give_up = Instant::now() + PATIENCE;
        while fetch(&server.url(), PATIENCE, &[]).is_err() {
            assert!(Instant::now() < give_up, "nghttpd does not answer");
            thread::yield_now();
        }
        Some(server)
    }

    fn url(&self) -> Url {
        Url::parse(&format!("h2c://127.0.0.1:{}/page.html", self.port)).unwrap()
    }
}

impl Drop for Nghttpd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn nghttpd_serves_what_we_count_on_more_streams_than_it_allows() {
    let Some(server) = Nghttpd::start() else { return };
    for (method, n, streams) in [("GET", 2_000, 32), ("HEAD", 10_000, 32), ("GET", 100, 1)] {
        let spec = Spec {
            method: method.to_owned(),
            connections: 8,
            streams,
            stop: Stop::Requests(n),
            timeout: PATIENCE,
            check: Some(Check { status: 200, body_contains: None }),
            ..Spec::new(server.url())
        };
        let outcome = run(&spec, &Control::default()).unwrap();
        assert_eq!(outcome.requests.completed, n, "{:?}", outcome.first_failure);
        let body = if method == "GET" { 19 * 5_000 } else { 0 };
        assert_eq!(outcome.bytes.body, n * body);
    }
}

#[test]
fn nghttpd_gives_back_the_bodies_that_it_gets() {
    let Some(server) = Nghttpd::start() else { return };
    let body: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
    let spec = Spec {
        method: "POST".to_owned(),
        connections: 2,
        streams: 8,
        stop: Stop::Requests(100),
        timeout: PATIENCE,
        check: Some(Check { status: 200, body_contains: Some(body[100_000..].to_vec()) }),
        body,
        ..Spec::new(server.url())
    };
    let outcome = run(&spec, &Control::default()).unwrap();
    assert_eq!(outcome.requests.completed, 100, "{:?}", outcome.first_failure);
    assert_eq!(outcome.bytes.body, 100 * 200_000);
}

//! Load on nginx. Its counts must equal those of the load generator.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Check, Control, Outcome, Spec, Stop, Url, fetch, run};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// Private nginx process. Dropping it stops the process.
struct Nginx {
    process: Child,
    folder: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts nginx. Prints a line and returns `None` if it is not installed.
    fn start() -> Option<Self> {
        let program = forebay_testkit::peer::installed("nginx")?;
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(folder.path().join("page.html"), "A page of nginx.\n".repeat(40)).unwrap();
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration(folder.path(), port)).unwrap();
        let process = Command::new(program)
            .arg("-e")
            .arg(folder.path().join("error.log"))
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let nginx = Self { process, folder, port };
        let give_up = Instant::now() + PATIENCE;
        while fetch(&nginx.url("/status"), PATIENCE, &[]).is_err() {
            let log = fs::read_to_string(nginx.folder.path().join("error.log"));
            assert!(Instant::now() < give_up, "nginx does not answer: {log:?}");
            thread::yield_now();
        }
        Some(nginx)
    }

    fn url(&self, target: &str) -> Url {
        Url::parse(&format!("http://127.0.0.1:{}{target}", self.port)).unwrap()
    }

    /// Returns the number of requests that nginx has counted, including the one that queries it.
    fn requests(&self) -> u64 {
        let status = fetch(&self.url("/status"), PATIENCE, &[]).unwrap();
        let text = String::from_utf8(status.body).unwrap();
        text.lines().nth(2).unwrap().split_whitespace().nth(2).unwrap().parse().unwrap()
    }

    /// Runs `spec`. Asserts that nginx counted exactly the requests that were sent.
    fn load(&self, spec: &Spec) -> Outcome {
        let before = self.requests();
        let outcome = run(spec, &Control::default()).unwrap();
        let counted = self.requests() - before - 1;
        let sent = outcome.requests.sent + outcome.requests.resent;
        match spec.stop {
            Stop::Requests(_) => assert_eq!(counted, sent, "{outcome:?}"),
            // Requests that are active at the end may not reach nginx before the connection closes.
            Stop::Duration(_) => {
                assert!((outcome.requests.completed..=sent).contains(&counted), "{outcome:?}");
            }
        }
        assert_eq!(outcome.requests.failed, 0, "{outcome:?}");
        outcome
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // After SIGTERM, the master process ends its workers. After SIGKILL, they would continue to
        // run.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
        events {{ worker_connections 256; }}
        http {{
          access_log {folder}/access.log; keepalive_requests 100;
          client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
          uwsgi_temp_path {folder}; scgi_temp_path {folder};
          server {{
            listen 127.0.0.1:{port}; root {folder};
            location /status {{ stub_status; access_log off; }}
            location /limited {{ return 503; }}
          }}
        }}"
    )
}

#[test]
fn nginx_counts_the_requests_that_we_count() {
    let Some(nginx) = Nginx::start() else { return };
    for (n, connections, threads, keepalive) in
        [(5000, 10, 2, true), (2001, 7, 3, true), (1, 1, 1, true), (500, 4, 2, false)]
    {
        let check = Some(Check { status: 200, body_contains: Some(b"page of nginx".to_vec()) });
        let stop = Stop::Requests(n);
        let base = Spec::new(nginx.url("/page.html"));
        let outcome = nginx.load(&Spec { connections, threads, keepalive, stop, check, ..base });
        assert_eq!(outcome.requests.completed, n);
        assert_eq!(outcome.bytes.body, n * 17 * 40);
    }
    // nginx has one worker, which logs a request before it counts the next one. This test has just
    // requested the count, so all earlier requests are in the log.
    let log = fs::read_to_string(nginx.folder.path().join("access.log")).unwrap();
    assert_eq!(log.lines().count(), 5000 + 2001 + 1 + 500);
}

#[test]
fn nginx_counts_the_requests_of_a_duration() {
    let Some(nginx) = Nginx::start() else { return };
    let stop = Stop::Duration(Duration::from_millis(500));
    let outcome = nginx.load(&Spec { stop, ..Spec::new(nginx.url("/page.html")) });
    assert!(outcome.requests.completed > 0);
}

#[test]
fn nginx_error_pages_and_head_are_replies() {
    let Some(nginx) = Nginx::start() else { return };
    let stop = Stop::Requests(300);
    for (method, target, status) in
        [("GET", "/limited", 503), ("GET", "/none", 404), ("HEAD", "/page.html", 200)]
    {
        let base = Spec::new(nginx.url(target));
        let outcome = nginx.load(&Spec { method: method.into(), stop, ..base });
        assert_eq!(outcome.requests.status.get(&status), Some(&300), "{outcome:?}");
        assert_eq!(outcome.bytes.body == 0, method == "HEAD");
    }
}

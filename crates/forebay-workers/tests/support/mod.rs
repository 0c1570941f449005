//! Shared parts of this crate's tests: a directory of scripts, an application over it, requests.
#![allow(dead_code, missing_docs)]

use forebay_workers::{
    App, AppSpec, Body, EndKind, Kind, Lease, LeaseEvent, PerlMode, WorkerFault, Workers,
};
use rustix::process::{Pid, Signal, kill_process};
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Maximum wait. A test that hangs fails after this time.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub struct Scripts {
    pub dir: tempfile::TempDir,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Scripts {
    pub fn new() -> Scripts {
        Scripts { dir: tempfile::tempdir().unwrap(), lines: Arc::default() }
    }

    /// Writes an executable script; returns its path.
    pub fn add(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_string()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a specification with one worker and mode registry, after `change`.
    pub fn spec(&self, change: impl FnOnce(&mut AppSpec)) -> AppSpec {
        let dir = self.dir.path().to_path_buf();
        let mut spec = AppSpec::new(
            "test",
            Kind::PerlCgi { dir, mode: PerlMode::Registry, preload: Vec::new() },
        );
        spec.workers = Workers { min: 1, max: 1 };
        spec.request_timeout = DEADLINE;
        spec.queue_timeout = DEADLINE;
        change(&mut spec);
        spec
    }

    pub fn start(&self, change: impl FnOnce(&mut AppSpec)) -> App {
        let lines = self.lines.clone();
        App::start(self.spec(change), move |_, line| lines.lock().unwrap().push(line.to_string()))
            .unwrap()
    }

    /// Starts one worker that runs scripts in this mode.
    pub fn start_mode(&self, mode: PerlMode) -> App {
        let dir = self.dir.path().to_path_buf();
        self.start(|spec| spec.kind = Kind::PerlCgi { dir, mode, preload: Vec::new() })
    }

    /// Returns everything logged so far.
    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits until the log has `text`.
    pub async fn logged(&self, text: &str) {
        until(&format!("log has {text:?}"), || self.log().contains(text)).await;
    }
}

/// Waits until another thread or process makes `condition` true.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn block(script: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [("SCRIPT_FILENAME", script), ("REQUEST_METHOD", "GET")].iter().chain(more)
    {
        block.extend_from_slice(name.as_bytes());
        block.push(0);
        block.extend_from_slice(value.as_bytes());
        block.push(0);
    }
    block
}

/// The end of a request and all that the script printed.
pub type Reply = Result<(EndKind, String), WorkerFault>;

pub async fn finish(lease: &mut Lease) -> Reply {
    let mut output = Vec::new();
    loop {
        let event = tokio::time::timeout(DEADLINE, lease.read(&mut output)).await;
        if let LeaseEvent::End(kind) = event.expect("a reply in time")? {
            return Ok((kind, String::from_utf8_lossy(&output).into_owned()));
        }
    }
}

pub async fn request(app: &App, script: &str, more: &[(&str, &str)], body: Body<'_>) -> Reply {
    let block = block(script, more);
    let mut lease = app.checkout_for(&block, body).await.expect("a worker");
    lease.send(&block, body).await?;
    finish(&mut lease).await
}

/// Returns the output of a GET that must succeed.
pub async fn get(app: &App, script: &str) -> String {
    let (kind, output) = request(app, script, &[], Body::Empty).await.expect("a reply");
    assert_eq!(kind, EndKind::Ok, "output: {output}");
    output
}

/// Kills a process, if it still exists.
pub fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

pub fn exists(pid: u32) -> bool {
    // A zombie counts as ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Runs the futures concurrently on this thread.
pub async fn join_all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for place in &mut futures {
            if place.as_mut().is_some_and(|future| future.as_mut().poll(context).is_ready()) {
                *place = None;
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

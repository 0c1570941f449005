//! A separate server that answers test requests with a configuration.
//!
//! This server is another process of the same program. The server listens on Unix sockets in a
//! private directory. It therefore needs no free port, and no visitor can reach it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum time until the server is ready, and maximum time of each reply.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Server for the tests. Dropping this value ends the server.
pub struct TestServer(Child);

impl TestServer {
    /// Starts this program as a server that listens on sockets in `dir`. Returns when the server
    /// accepts connections. If the server ends instead, the error is the server's error output.
    pub fn start(file: &Path, dir: &Path) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("serve").arg(file).arg("--test-sockets").arg(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let stderr = child.stderr.take();
        let server = Self(child);
        let lines = lines_of(stderr.ok_or("no standard error")?);
        let until = Instant::now() + PATIENCE;
        let mut said = String::new();
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("forebay: serving ") => return Ok(server),
                Ok(line) => said = format!("{said}{line}\n"),
                Err(RecvTimeoutError::Disconnected) => return Err(said.trim_end().to_owned()),
                Err(RecvTimeoutError::Timeout) => return Err("it does not start".into()),
            }
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // The server ends when its standard input ends, so close the pipe.
        drop(self.0.stdin.take());
        let until = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the lines of the server's standard error as they arrive. A thread reads all of them, so
/// that the server never waits for a reader.
fn lines_of(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

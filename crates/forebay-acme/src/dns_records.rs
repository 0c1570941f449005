//! TXT records for the challenge dns-01, which a program of the user creates and removes.
//!
//! Forebay calls the program as the ACME client lego does (provider `exec`): `HOOK present NAME
//! VALUE`, and `HOOK cleanup NAME VALUE` after the order. NAME ends with a dot. Programs for lego,
//! which exist for most providers, therefore work here.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Time limit for one call of the program. DNS providers answer within seconds, but some programs wait
/// until the record is visible.
const CALL_LIMIT: Duration = Duration::from_secs(180);

/// Maximum number of bytes of the program's error output that are kept.
const LONGEST_OUTPUT: u64 = 16 * 1024;

/// Time limit for reading the last output of a program that has ended.
const LAST_OUTPUT: Duration = Duration::from_millis(100);

/// Number of records whose `cleanup` call has not ended. A record counts from before its `present`
/// call, even if this call fails.
static EXISTING: AtomicUsize = AtomicUsize::new(0);

/// DNS records that the user's program (`dns_hook`) was asked to create.
pub struct DnsRecords {
    /// The program and its first arguments.
    hook: Vec<String>,
    /// Name and value of each record, also if the call to create the record failed.
    created: Vec<(String, String)>,
}

impl DnsRecords {
    /// Creates an empty list. `hook` is the program and its first arguments.
    pub fn new(hook: &[String]) -> Self {
        Self { hook: hook.to_owned(), created: Vec::new() }
    }

    /// Creates the record that proves control of the host `name`. Fails if the program fails or
    /// takes too long. Even then, the record may exist, and `remove_all` removes it.
    pub async fn create(&mut self, name: &str, value: String) -> Result<(), String> {
        let name = format!("_acme-challenge.{name}.");
        // Store the record before the call, because a call may create the record and then fail.
        self.created.push((name.clone(), value.clone()));
        EXISTING.fetch_add(1, Ordering::Relaxed);
        self.call("present", &name, &value).await
    }

    /// Removes all records. Returns the reason for each record that could not be removed.
    pub async fn remove_all(mut self) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, value) in std::mem::take(&mut self.created) {
            failures.extend(self.call("cleanup", &name, &value).await.err());
            EXISTING.fetch_sub(1, Ordering::Relaxed);
        }
        failures
    }

    async fn call(&self, action: &str, name: &str, value: &str) -> Result<(), String> {
        let Some((program, arguments)) = self.hook.split_first() else {
            return Err("no `dns_hook` is configured".to_owned());
        };
        let failed = |why: String| format!("{program} {action} {name}: {why}");
        let mut command = Command::new(program);
        // Pass the value unchanged even if it begins with a hyphen. The ACME client lego does so,
        // and the program may be written for lego.
        command.args(arguments).args([action, name, value]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.kill_on_drop(true).spawn().map_err(|error| failed(error.to_string()))?;
        match tokio::time::timeout(CALL_LIMIT, end_of(&mut child)).await {
            Err(_) => Err(failed(format!("no end within {} s", CALL_LIMIT.as_secs()))),
            Ok(outcome) => outcome.map_err(failed),
        }
    }
}

/// Waits until the program ends. Returns an error if the program fails. The error has the exit
/// status, and the last line in the first 16 KiB of the program's error output.
async fn end_of(child: &mut Child) -> Result<(), String> {
    let mut text = Vec::new();
    let stderr = child.stderr.take();
    let status = {
        let reading = async {
            if let Some(stderr) = stderr {
                read_into(&mut text, stderr).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(reading);
        let status = tokio::select! {
            status = child.wait() => status,
            () = &mut reading => unreachable!("the future never ends"),
        };
        // Wait only briefly: a process that the program started may keep the pipe open for ever.
        let _ = tokio::time::timeout(LAST_OUTPUT, reading).await;
        status.map_err(|error| error.to_string())?
    };
    if status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(format!("{status}: {}", last.trim().escape_debug()))
}

/// Reads all error output, so that the program never waits for a reader. Keeps only the first 16
/// KiB.
async fn read_into(text: &mut Vec<u8>, stderr: impl AsyncRead + Unpin) {
    let mut stream = stderr.take(LONGEST_OUTPUT);
    // Ignore a read error: the exit status of the program decides if the call has failed.
    let _ = stream.read_to_end(text).await;
    let _ = tokio::io::copy(&mut stream.into_inner(), &mut tokio::io::sink()).await;
}

/// Waits until all `cleanup` calls of this process have ended, but at most for `limit`. Blocks the
/// thread. Call this at the end of the process, after the managers were dropped.
pub fn wait_for_removal(limit: Duration) {
    let deadline = Instant::now() + limit;
    while EXISTING.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> DnsRecords {
        DnsRecords::new(&["/bin/sh", "-c", script, "hook"].map(str::to_owned))
    }

    #[tokio::test]
    async fn a_program_creates_records_and_removes_them() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let mut records = sh(&format!("echo \"$*\" >> {}", log.display()));
        records.create("a.example", "one".to_owned()).await.unwrap();
        records.create("b.example", "-two".to_owned()).await.unwrap();
        assert!(records.remove_all().await.is_empty());
        let called = "present _acme-challenge.a.example. one\n\
             present _acme-challenge.b.example. -two\n\
             cleanup _acme-challenge.a.example. one\n\
             cleanup _acme-challenge.b.example. -two\n";
        assert_eq!(std::fs::read_to_string(log).unwrap(), called);
    }

    #[tokio::test]
    async fn a_failure_has_the_last_line_of_the_program() {
        let mut records = sh("echo first >&2; echo no token >&2; echo >&2; exit 3");
        let error = records.create("a.example", "v".to_owned()).await.unwrap_err();
        assert_eq!(error, "/bin/sh present _acme-challenge.a.example.: exit status: 3: no token");
        assert_eq!(records.remove_all().await.len(), 1, "it may have created the record");
        let mut none = DnsRecords::new(&["/no/such/program".to_owned()]);
        assert!(none.create("a", "v".to_owned()).await.unwrap_err().contains("/no/such/program"));
        let mut leaves = sh("sleep 30 & exit 0");
        assert_eq!(leaves.create("a", "v".to_owned()).await, Ok(()));
        let mut rings = sh("printf 'a\\007b' >&2; exit 1");
        let error = rings.create("a", "v".to_owned()).await.unwrap_err();
        assert!(error.ends_with("a\\u{7}b"), "{error}");
        let mut loud = sh("head -c 1000000 /dev/zero >&2");
        assert_eq!(loud.create("a", "v".to_owned()).await, Ok(()));
    }
}

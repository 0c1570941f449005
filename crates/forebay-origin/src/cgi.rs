//! CGI scripts: a process for each request (RFC 3875).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_engine::{ErrorLog, Exchange, Fault, Origin, Reply, Request, Serving, Thread};
use forebay_wire::cgi;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::nph::NphReply;
use crate::script::{NoScript, Script, Scripts};
use crate::script_reply::{OutputLimit, PAUSE, ScriptReply};
use crate::spool::Spooled;

/// What a pipe holds without a reader.
const PIPE: usize = 64 * 1024;
/// Bytes of error output that are logged for one request.
const LOGGED: usize = 64 * 1024;

/// Variables of our own environment that scripts get, where they are set.
pub const PASSED: [&str; 3] = ["PATH", "TZ", "LD_LIBRARY_PATH"];

/// A directory of CGI scripts, as one thread knows it.
pub struct Cgi {
    thread: Rc<Thread>,
    settings: conf::Cgi,
    scripts: Scripts,
    /// Processes that may run at once, over all threads.
    room: Arc<Semaphore>,
}

impl Cgi {
    /// Runs the scripts that `settings` names; `room` is shared by all threads.
    pub fn new(thread: Rc<Thread>, settings: conf::Cgi, room: Arc<Semaphore>) -> Self {
        let scripts = Scripts::new(settings.dir.clone());
        Self { thread, settings, scripts, room }
    }

    async fn run(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let script =
            self.scripts.find(exchange.request.rest(), self.thread.second()).map_err(no_script)?;
        let body = Spooled::take(&mut exchange.body).await?;
        let deadline = Instant::now() + self.settings.timeout;
        let permit = self.enter(deadline).await?;
        let mut process = self.spawn(&exchange.request, &script, &body)?;
        let limit = OutputLimit::new(self.settings.max_output, Fault::app);
        let mut output = Output::of(&script, &exchange.request, limit);
        let relayed = relay(&mut process, &mut output, &mut exchange.reply);
        let outcome = tokio::time::timeout_at(deadline, relayed).await;
        match outcome {
            Ok(Ok(())) => {
                // A script may go on after its reply; its place is free when it ends.
                tokio::task::spawn_local(process.outlive(deadline, permit));
                Ok(())
            }
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::app(
                504,
                format!(
                    "{} took longer than {:?}; it was ended",
                    script.file.display(),
                    self.settings.timeout
                ),
            )),
        }
    }

    async fn enter(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, Fault> {
        match tokio::time::timeout_at(deadline, self.room.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Fault::app(503, "too many CGI processes are running")),
        }
    }

    fn spawn(&self, request: &Request, script: &Script, body: &Spooled) -> Result<Process, Fault> {
        let file = &script.file;
        let stdin = stdin(body)
            .map_err(|error| Fault::us(500, format!("cannot hand over a body: {error}")))?;
        let mut command = Command::new(file);
        command
            .env_clear()
            .envs(
                PASSED.iter().filter_map(|&name| std::env::var_os(name).map(|value| (name, value))),
            )
            .current_dir(file.parent().unwrap_or(Path::new("/")))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let request = script.describe(request, self.scripts.dir(), body.len());
        cgi::variables(&request, &mut Variables(&mut command));
        command.envs(&self.settings.env);
        let mut child = command.spawn().map_err(|error| cannot_run(file, &error))?;
        if let Some(stderr) = child.stderr.take() {
            let name = file.display().to_string();
            tokio::task::spawn_local(log_stderr(stderr, name, self.thread.errors.clone()));
        }
        Ok(Process { child: Some(child) })
    }
}

impl Origin for Cgi {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.run(exchange))
    }
}

/// Passes variables to a process as its environment.
struct Variables<'a>(&'a mut Command);

impl cgi::Sink for Variables<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        self.0.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
}

/// A running script. Dropped early, it ends with all the processes it started.
struct Process {
    child: Option<Child>,
}

impl Process {
    /// Waits for the end, and ends the process at the deadline; `permit` is held until then.
    async fn outlive(mut self, deadline: Instant, permit: OwnedSemaphorePermit) {
        if let Some(child) = &mut self.child
            && tokio::time::timeout_at(deadline, child.wait()).await.is_ok()
        {
            self.child = None;
        }
        drop(permit);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let pid = child.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(pid) = pid {
            // The leader has not been waited for, so its number still is this group's.
            let _ = kill_process_group(pid, Signal::KILL);
            tokio::task::spawn_local(async move { child.wait().await });
        }
    }
}

/// The output of a script: a CGI reply, or that of a script which speaks HTTP itself (NPH).
enum Output {
    Parsed(ScriptReply),
    Raw(NphReply),
}

impl Output {
    fn of(script: &Script, request: &Request, limit: OutputLimit) -> Self {
        let name = script.file.file_name().unwrap_or_default();
        if name.as_bytes().starts_with(b"nph-") {
            return Self::Raw(NphReply::new(request.method() == b"HEAD", limit));
        }
        Self::Parsed(ScriptReply::new(limit))
    }

    fn is_waiting(&self) -> bool {
        match self {
            Self::Parsed(script) => script.has_output(),
            Self::Raw(nph) => nph.has_output(),
        }
    }

    async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.feed(output, reply).await,
            Self::Raw(nph) => nph.feed(output, reply).await,
        }
    }

    async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.flush(reply).await,
            Self::Raw(nph) => nph.flush(reply).await,
        }
    }

    async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.finish(reply).await,
            Self::Raw(nph) => nph.finish(reply).await,
        }
    }
}

async fn relay(process: &mut Process, output: &mut Output, reply: &mut Reply) -> Result<(), Fault> {
    let stdout = process.child.as_mut().and_then(|child| child.stdout.take());
    let mut stdout = stdout.ok_or_else(|| Fault::us(500, "a script without output"))?;
    let mut buffer = Vec::with_capacity(PIPE / 4);
    loop {
        buffer.clear();
        let read = tokio::select! {
            biased;
            read = stdout.read_buf(&mut buffer) => Some(read),
            () = tokio::time::sleep(PAUSE), if output.is_waiting() => None,
        };
        match read {
            Some(Ok(0)) => return output.finish(reply).await,
            Some(Ok(_)) => output.feed(&buffer, reply).await?,
            Some(Err(error)) => {
                return Err(Fault::us(500, format!("cannot read a script's output: {error}")));
            }
            None => output.flush(reply).await?,
        }
    }
}

/// A small body waits in a pipe, a larger one in a file: no task has to feed it.
fn stdin(body: &Spooled) -> io::Result<Stdio> {
    match body {
        Spooled::Empty => Ok(Stdio::null()),
        Spooled::Memory(memory) if memory.len() <= PIPE => {
            let (reader, mut writer) = io::pipe()?;
            writer.write_all(memory)?;
            Ok(reader.into())
        }
        Spooled::Memory(memory) => {
            let mut file = tempfile::tempfile()?;
            file.write_all(memory)?;
            rewind(file)
        }
        Spooled::File(file, _) => rewind(file.try_clone()?),
    }
}

fn rewind(mut file: File) -> io::Result<Stdio> {
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// The status for a path without a script.
pub fn no_script(reason: NoScript) -> Fault {
    match reason {
        NoScript::NotFound => Fault::client(404, "no such script").not_mine(),
        NoScript::NotAFile => Fault::client(403, "a directory, not a script").not_mine(),
    }
}

fn cannot_run(file: &Path, error: &io::Error) -> Fault {
    let file = file.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Fault::app(403, format!("cannot run {file}: no permission; try chmod +x {file}"))
        }
        io::ErrorKind::NotFound => Fault::app(
            500,
            format!("cannot run {file}: the interpreter that its first line names is not there"),
        ),
        _ if error.raw_os_error() == Some(8) => Fault::app(
            500,
            format!("cannot run {file}: neither a program nor a script with a #! line"),
        ),
        _ => Fault::us(500, format!("cannot run {file}: {error}")),
    }
}

async fn log_stderr(mut stderr: ChildStderr, name: String, errors: ErrorLog) {
    let mut text = Vec::new();
    let mut left = LOGGED;
    loop {
        let read = stderr.read_buf(&mut text).await;
        let ended = matches!(read, Ok(0) | Err(_));
        while let Some(end) = memchr::memchr(b'\n', &text) {
            errors.say(&format!("{name}: {}", String::from_utf8_lossy(&text[..end])));
            text.drain(..=end);
        }
        if ended || text.len() > LOGGED {
            if !text.is_empty() {
                errors.say(&format!("{name}: {}", String::from_utf8_lossy(&text)));
            }
            if ended {
                return;
            }
            text.clear();
        }
        left = left.saturating_sub(read.unwrap_or(0));
        if left == 0 {
            errors.say(&format!("{name}: more error output is not logged"));
            // Read on without logging, so that the script is not stopped by a full pipe.
            let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
            return;
        }
    }
}

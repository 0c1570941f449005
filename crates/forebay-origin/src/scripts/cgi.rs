//! CGI scripts: a process for each request (RFC 3875).
//!
//! The output of a killed script ends like the output of any other script. So Forebay waits for the
//! exit status after the end of output: at most 50 ms, because a script may close its output and
//! continue.
//!
//! Children get the limit on open files that Forebay had at its start. Forebay sets it with
//! `prlimit` just after their start. To set the limit before their start would require `fork`,
//! which takes 13 ms instead of 0.9 ms if Forebay uses 100 MB.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{self as conf, Level};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::log::ErrorLog;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::spool::Spooled;
use forebay_upstream::output::Output;
use forebay_upstream::reply_pump::ReplyPump;
use forebay_upstream::script::{NoScript, Script, Scripts};
use forebay_upstream::script_reply::OutputLimit;
use forebay_wire::cgi;
use forebay_workers::{
    HelpedLaunch, Helper, Launch, Launcher, OutputLines, Severity, give_back_descriptors,
    on_all_processors,
};
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::Pid;
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::scripts::child::ScriptChild;
use crate::scripts::interpreter::{first_line, named_program};
use crate::scripts::reaper::ScriptReaper;

/// Capacity of a pipe, in bytes.
const PIPE: usize = 64 * 1024;
/// Maximum wait for the exit status after the end of output. A script that continues for longer is
/// not awaited here.
// A killed process closes its output a moment before its exit status is available.
const ENDING: Duration = Duration::from_millis(50);
/// Bytes of error output to log per request.
const LOGGED: usize = 64 * 1024;

/// Variables that scripts inherit from Forebay's environment, if set.
pub const PASSED: [&str; 3] = ["PATH", "TZ", "LD_LIBRARY_PATH"];

/// Variables that the scripts of applications inherit from Forebay's environment, if set.
pub const PASSED_BY_APPS: [&str; 5] = ["PATH", "TZ", "LD_LIBRARY_PATH", "PERL5LIB", "PYTHONPATH"];

/// Origin for a directory of CGI scripts. Each thread has one.
pub struct Cgi {
    thread: Rc<Thread>,
    settings: conf::Cgi,
    scripts: Scripts,
    processes: Processes,
    /// If one program handles all paths: the paths that name the program, so PATH_INFO is empty.
    exact: Vec<Vec<u8>>,
}

/// State of script processes that all threads share.
#[derive(Clone)]
pub struct Processes {
    /// Limits the number of running processes; each holds a permit.
    pub room: Arc<Semaphore>,
    /// Ends the processes together with Forebay.
    pub reaper: Arc<ScriptReaper>,
    /// User and limits of the processes.
    pub launcher: Arc<Launcher>,
    /// Variables that the processes inherit from Forebay's environment.
    pub passed: &'static [&'static str],
}

impl Cgi {
    /// Creates the origin for `scripts`, configured by `settings`. If the route runs one program
    /// for all paths, PATH_INFO is empty for the paths in `exact`.
    pub fn new(
        thread: Rc<Thread>,
        settings: conf::Cgi,
        processes: Processes,
        (scripts, exact): (Scripts, Vec<Vec<u8>>),
    ) -> Self {
        Self { thread, settings, scripts, processes, exact }
    }

    async fn run(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        if let Some(program) = &self.settings.program {
            let script = Script::one_for_all(program, &exchange.request, &self.exact);
            return self.run_script(exchange, &script).await;
        }
        let script =
            self.scripts.find(exchange.request.rest(), self.thread.second()).map_err(no_script)?;
        self.run_script(exchange, &script).await
    }

    /// Starts `script`, and sends its output to the client. Ends the script and fails at the time
    /// limit.
    pub async fn run_script(&self, exchange: &mut Exchange, script: &Script) -> Result<(), Fault> {
        let body = exchange.body.spool().await?;
        let deadline = Instant::now() + self.settings.timeout;
        exchange.enter(Step::Connect);
        let permit = self.enter(deadline).await?;
        let mut process = self.spawn(&exchange.request, script, &body)?;
        exchange.enter(Step::Origin);
        let limit = OutputLimit::new(self.settings.max_output, Fault::app, &self.thread);
        let output = Output::of(script, &exchange.request, limit);
        let relayed = relay(&mut process, ReplyPump::new(output, &mut exchange.reply));
        let outcome = tokio::time::timeout_at(deadline, relayed).await;
        match outcome {
            Ok(Ok(())) => {
                // A script may continue after its reply, so hold the permit until the script ends.
                tokio::task::spawn_local(outlive(process.child.take(), deadline, permit));
                Ok(())
            }
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(Fault::app(
                504,
                format!(
                    "{} took longer than {:?} and was ended",
                    script.file.display(),
                    self.settings.timeout
                ),
            )
            .limited_by(Limit::Timeout)),
        }
    }

    async fn enter(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, Fault> {
        match tokio::time::timeout_at(deadline, self.processes.room.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Fault::app(503, "too many CGI processes are running")
                .limited_by(Limit::MaxProcesses)),
        }
    }

    fn spawn(
        &self,
        request: &Request,
        script: &Script,
        body: &Spooled,
    ) -> Result<ScriptProcess, Fault> {
        let file = &script.file;
        let Processes { launcher, passed, .. } = &self.processes;
        if !launcher.is_direct() {
            // Check here if the script can run, because the launcher could report a problem only in
            // the log.
            obstacle(file).map_or(Ok(()), Err)?;
        }
        let dir = self.thread.settings().spool_dir();
        let stdin = stdin(body, &dir).map_err(|error| match body {
            Spooled::Empty => cannot_run(file, &error),
            _ => cannot_hand_over(&error),
        })?;
        let (stdout, its_stdout) = pipe(launcher).map_err(|error| cannot_run(file, &error))?;
        let (stderr, its_stderr) = pipe(launcher).map_err(|error| cannot_run(file, &error))?;
        // Do everything that may fail before the start. A script that runs without a
        // `ScriptProcess` would never be ended.
        let stdout = ChildStdout::from_std(stdout.into()).map_err(|e| cannot_run(file, &e))?;
        let stderr = ChildStderr::from_std(stderr.into()).map_err(|e| cannot_run(file, &e))?;
        let mut command = Command::from(launcher.command(file.as_os_str()));
        command
            .env_clear()
            .envs(
                passed.iter().filter_map(|&name| std::env::var_os(name).map(|value| (name, value))),
            )
            .current_dir(file.parent().unwrap_or(Path::new("/")))
            .process_group(0);
        let request = script.describe(request, self.scripts.dir(), body.length());
        cgi::variables(&request, &mut Variables(&mut command));
        command.envs(&self.settings.env);
        let descriptors = [stdin, its_stdout, its_stderr];
        let child = match launcher.helped(file.as_os_str()) {
            Some((helper, launch)) => start_by(helper, &launch, &command, &descriptors),
            None => self.start_here(command, descriptors),
        };
        let child = child.map_err(|error| cannot_run(file, &error))?;
        let name = file.display().to_string();
        let errors = self.thread.errors.clone();
        tokio::task::spawn_local(log_stderr(stderr, name.clone(), errors));
        Ok(ScriptProcess { child, stdout, name, thread: self.thread.clone() })
    }

    fn start_here(
        &self,
        mut command: Command,
        descriptors: [OwnedFd; 3],
    ) -> io::Result<ScriptChild> {
        let [stdin, stdout, stderr] = descriptors;
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let child = on_all_processors(|| command.spawn())?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(leader) = leader.filter(|_| !self.processes.launcher.limits_files()) {
            give_back_descriptors(leader);
        }
        Ok(ScriptChild::own(child, self.processes.reaper.clone()))
    }
}

/// Starts the program of `launch` through the helper, with directory and environment of `command`.
fn start_by(
    helper: &Helper,
    launch: &Launch,
    command: &Command,
    descriptors: &[OwnedFd; 3],
) -> io::Result<ScriptChild> {
    let command = command.as_std();
    let variables = command.get_envs();
    let request = HelpedLaunch {
        launch,
        dir: command.get_current_dir().unwrap_or(Path::new("/")),
        env: variables.filter_map(|(name, value)| Some((name.into(), value?.into()))).collect(),
        descriptors: &descriptors.each_ref().map(AsFd::as_fd),
    };
    ScriptChild::helped(helper.launch(&request)?.child()?)
}

impl Origin for Cgi {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.run(exchange))
    }
}

/// Adds variables to a process's environment.
struct Variables<'a>(&'a mut Command);

impl cgi::Sink for Variables<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        self.0.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
    }
}

/// A running script. If this value is dropped early, the script ends with all processes that it
/// started.
struct ScriptProcess {
    child: ScriptChild,
    stdout: ChildStdout,
    name: String,
    thread: Rc<Thread>,
}

impl Drop for ScriptProcess {
    fn drop(&mut self) {
        if self.child.is_running() {
            self.thread.log_limited_with(Level::Info, || {
                format!("{} is stopped, because nobody waits for its reply", self.name)
            });
        }
    }
}

/// Waits for the end of a script, and ends it at the deadline. Holds `permit` until then.
async fn outlive(mut child: ScriptChild, deadline: Instant, permit: OwnedSemaphorePermit) {
    let _ = tokio::time::timeout_at(deadline, child.wait()).await;
    drop(child);
    drop(permit);
}

/// Sends the output of a script to the client until its end. If a signal ended the script, cuts the
/// reply off.
async fn relay(process: &mut ScriptProcess, mut pump: ReplyPump<'_>) -> Result<(), Fault> {
    let ScriptProcess { child, stdout, .. } = process;
    let mut buffer = Vec::with_capacity(PIPE / 4);
    loop {
        buffer.clear();
        match pump.next(async || stdout.read_buf(&mut buffer).await).await? {
            Ok(0) => {
                return match signal_of_end(child, &mut pump).await? {
                    None => pump.finish().await,
                    Some(signal) => {
                        let message = format!("the script was ended by signal {signal}");
                        pump.cut_off(Fault::app(502, message)).await
                    }
                };
            }
            Ok(_) => pump.feed(&buffer).await?,
            Err(error) => {
                return Err(Fault::us(500, format!("cannot read a script's output: {error}")));
            }
        }
    }
}

/// Returns the signal that ended the script. Returns `None` if the script ended without a signal,
/// or still runs [`ENDING`] after the end of its output.
async fn signal_of_end(
    child: &mut ScriptChild,
    pump: &mut ReplyPump<'_>,
) -> Result<Option<i32>, Fault> {
    // The output of a killed script ends like a complete one: only the exit status shows that the
    // reply may be incomplete.
    let ended = match tokio::time::timeout(ENDING / 5, child.wait()).await {
        Ok(ended) => ended,
        Err(_) => {
            pump.flush().await?;
            let rest = ENDING * 4 / 5;
            let Ok(ended) = tokio::time::timeout(rest, child.wait()).await else {
                return Ok(None);
            };
            ended
        }
    };
    Ok(ended.ok().and_then(|status| status.signal()))
}

/// Creates a pipe for a script's output. Returns Forebay's end and the script's.
fn pipe(launcher: &Launcher) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    launcher.hand_over(&writer)?;
    Ok((reader.into(), writer.into()))
}

/// Returns the script's input: a pipe for a small body, a file for a larger one, so that no task
/// has to write it.
fn stdin(body: &Spooled, dir: &Path) -> io::Result<OwnedFd> {
    match body {
        Spooled::Empty => Ok(File::open("/dev/null")?.into()),
        Spooled::Memory(memory) => {
            if memory.len() <= PIPE {
                let (reader, mut writer) = io::pipe()?;
                // A user with many pipes gets smaller pipes (pipe-user-pages-soft in pipe(7)), so
                // check the capacity. The pipe has no reader yet, so a write of more bytes would
                // block forever.
                if fcntl_getpipe_size(&writer)? >= memory.len() {
                    writer.write_all(memory)?;
                    return Ok(reader.into());
                }
            }
            let mut file = tempfile::tempfile_in(dir)?;
            file.write_all(memory)?;
            rewind(file)
        }
        Spooled::File(file, _) => rewind(file.try_clone()?),
    }
}

fn rewind(mut file: File) -> io::Result<OwnedFd> {
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// Returns the fault of a path without a script.
pub fn no_script(reason: NoScript) -> Fault {
    match reason {
        NoScript::NotFound => Fault::client(404, "no such script").decline(Decline::IfFallback),
        NoScript::Data => {
            Fault::client(403, "a file, but not a script").decline(Decline::IfFallback)
        }
        NoScript::NotAFile => {
            Fault::client(403, "a directory, not a script").decline(Decline::IfFallback)
        }
    }
}

/// Returns the fault if no user can run `file`, because it is not executable or because the program
/// in its first line is missing.
pub fn obstacle(file: &Path) -> Option<Fault> {
    let mode = std::fs::metadata(file).map_or(0, |found| found.permissions().mode());
    if mode & 0o111 == 0 {
        return Some(cannot_run(file, &io::ErrorKind::PermissionDenied.into()));
    }
    let line = first_line(file)?;
    let program = Path::new(named_program(&line));
    let is_there = program.is_file();
    (!is_there).then(|| cannot_run(file, &io::ErrorKind::NotFound.into()))
}

/// Returns the fault for the kernel's error.
fn cannot_run(file: &Path, error: &io::Error) -> Fault {
    // The message quotes the first line of the script, because the cause may be an invisible
    // character in this line.
    let line = first_line(file);
    let file = file.display();
    let line = line.as_deref();
    match error.kind() {
        io::ErrorKind::PermissionDenied => Fault::app(403, not_permitted(file, line)),
        io::ErrorKind::NotFound => Fault::app(500, format!("cannot run {file}: {}", absent(line))),
        _ if error.raw_os_error() == Some(8) => Fault::app(
            500,
            format!("cannot run {file}: neither a program nor a script with a #! line"),
        ),
        _ => Fault::exhausted(format_args!("run {file}"), error)
            .unwrap_or_else(|| Fault::us(500, format!("cannot run {file}: {error}"))),
    }
}

/// Returns the message for a script that the kernel does not permit to run. Names the file whose
/// mode is probably the reason.
fn not_permitted(file: std::path::Display<'_>, line: Option<&str>) -> String {
    let path = file.to_string();
    let mode = std::fs::metadata(&path).map_or(0, |found| found.permissions().mode());
    if mode & 0o111 == 0 {
        return format!(
            "cannot run {file}: no permission, as it has no run bit; try chmod +x {file}"
        );
    }
    let program = line.map(named_program);
    let program = program.filter(|program| {
        let found = std::fs::metadata(program);
        found.is_ok_and(|found| !found.is_file() || found.permissions().mode() & 0o111 == 0)
    });
    match (program, line) {
        (Some(program), Some(line)) => format!(
            "cannot run {file}: no permission, as {program}, which its first line {line:?} names, is \
             no program that may be run"
        ),
        _ => format!(
            "cannot run {file}: no permission; its run bit (mode {:o}) is not for this user, a \
             directory above it may not be entered, or its file system is mounted noexec",
            mode & 0o7777
        ),
    }
}

/// Describes the missing interpreter or file.
fn absent(line: Option<&str>) -> String {
    match line {
        Some(line) if line.ends_with('\r') => format!(
            "its first line, {line:?}, ends in a carriage return, which counts as a part of the \
             interpreter's name; save it with Unix line ends (sed -i 's/\\r$//')"
        ),
        Some(line) => {
            format!(
                "its first line, {line:?}, names an interpreter that does not exist; install it, \
                     or correct the line"
            )
        }
        None => "the file is gone, or the loader that it names does not exist".to_owned(),
    }
}

fn cannot_hand_over(error: &io::Error) -> Fault {
    Fault::exhausted("hand over a body", error)
        .unwrap_or_else(|| Fault::us(500, format!("cannot hand over a body: {error}")))
}

/// Logs the error output of a script until its end, or until 64 KiB have arrived.
async fn log_stderr(mut stderr: ChildStderr, name: String, errors: ErrorLog) {
    let log = |line: &str| {
        let (level, line) = Severity::of_line(line);
        errors.output(level, &format!("{name}: {line}"));
    };
    let (mut lines, mut bytes) = (OutputLines::default(), Vec::new());
    let mut left = LOGGED;
    while left > 0 {
        bytes.clear();
        if matches!(stderr.read_buf(&mut bytes).await, Ok(0) | Err(_)) {
            return lines.end(log);
        }
        lines.push(&bytes, log);
        left = left.saturating_sub(bytes.len());
    }
    lines.end(log);
    errors.warn(&format!("{name}: further error output is not logged"));
    // Read on without logging, so that a full pipe does not block the script.
    let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
}

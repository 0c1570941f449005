//! The supervisor's operations on instances, which are the processes of a program. Requests connect
//! to an instance directly. Each instance has a guardian, which carries out the supervisor's orders.
//!
//! An instance that opens its own socket is ready when it listens. An instance that inherits a
//! socket is ready when it has accepted a connection, or after one second.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_process::cgroup::LimitedCgroup;
use forebay_process::descendants::Usage;
use forebay_process::{Child, Identity, Person};
use tempfile::TempDir;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::instance::{Instance, InstanceEnd};
use super::instance_pool::InstancePool;
use super::start::{self, Seat, Started as StartedInstance};
use super::{Listening, ProgramSpec, ready};
use crate::error::{Exit, refused_start};
use crate::supervisor::{End, Event, Fault, New, ProcessKind, Rules, Snapshot, Started};
use crate::sys;

/// The instances of one program.
pub(super) struct InstanceKind {
    pub(super) spec: ProgramSpec,
    pub(super) rules: Rules,
    pub(super) identity: Option<Identity>,
    pub(super) cgroup: Option<LimitedCgroup>,
    pub(super) pool: Arc<InstancePool>,
    /// The sockets of processes that have ended by themselves, for the next processes.
    pub(super) seats: Vec<Seat>,
}

/// One instance and its guardian.
pub(super) struct Process {
    instance: Arc<Instance>,
    guardian: Rc<Child>,
    /// The socket for orders to the guardian.
    link: Rc<UnixStream>,
    /// The end of the program, if the guardian has reported it.
    exit: Option<Exit>,
    /// The socket that Forebay opened for the process.
    seat: Option<Seat>,
    /// The process has ended by itself, and has left its socket to the next one.
    has_left_seat: bool,
    _room: Option<TempDir>,
}

impl ProgramSpec {
    /// Returns the rules by which the supervisor replaces processes of the program.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            name: self.name.clone(),
            workers: self.workers,
            first_alone: false,
            max_requests: self.max_requests,
            max_age: self.max_age,
            max_memory: self.max_memory,
            max_cpu: self.max_cpu,
            idle_timeout: self.idle_timeout,
            start_timeout: self.start_timeout,
            stop_timeout: self.stop_timeout,
            stop_outlasts_grace: true,
            drain_timeout: Some(self.drain_timeout),
            request_timeout: None,
            watch: self.watch.clone(),
            watch_at_reload: self.watch_at_reload.clone(),
        }
    }
}

impl ProcessKind for InstanceKind {
    type Process = Process;
    type Ready = ();
    const NOUN: (&'static str, &'static str) = ("process", "processes");

    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn start(&mut self, new: New<()>) -> io::Result<Started<InstanceKind>> {
        let person = self.identity.as_ref().map_or_else(Person::current, Person::of);
        if let Some(refused) = self.spec.refusal(&person) {
            return Err(refused_start(&refused));
        }
        let cgroup = self.cgroup.as_ref().map(LimitedCgroup::path);
        let seat = match self.seats.pop() {
            Some(seat) => Some(seat),
            None => Seat::open(self.spec.listen)?,
        };
        let started = start::start(&self.spec, self.identity.as_ref(), cgroup, seat.as_ref());
        let StartedInstance { guardian, at_end, link, log, place, room } =
            started.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", self.spec.run[0]))
            })?;
        let inode = seat.as_ref().and_then(|seat| seat.inode.clone());
        let link = Rc::new(UnixStream::from_std(link)?);
        let guardian = Rc::new(guardian);
        let stderr_name = guardian.pid().as_raw_pid().cast_unsigned();
        let instance =
            Arc::new(Instance::new(new.id, (place.clone(), inode), stderr_name, new.limit));
        let reports = tokio::task::spawn_local(report(instance.clone(), link.clone(), new.events));
        let listen = self.spec.listen;
        let to_share = link.clone();
        let warm_up = self.spec.warm_up.clone();
        let ready = async move {
            match listen {
                Listening::Socket | Listening::Port => {
                    // Most programs let only their own user connect, so the guardian may have to
                    // share the socket.
                    ready::listens(&place, || order(&to_share, b's')).await;
                }
                _ => ready::takes_connections(&place).await,
            }
            for target in &warm_up {
                ready::answers(&place, target).await;
            }
            Some(())
        };
        Ok(Started {
            process: Process {
                instance,
                guardian: guardian.clone(),
                link,
                exit: None,
                seat,
                has_left_seat: false,
                _room: room,
            },
            stderr: log,
            stderr_name,
            ready: Box::pin(ready),
            reaped: Box::pin(await_end(at_end, guardian, reports)),
        })
    }

    fn add(&self, process: &Process) {
        self.pool.add(process.instance.clone());
    }

    fn pid(&self, process: &Process) -> u32 {
        process.instance.life.pid()
    }

    fn usage(&self, process: &Process) -> Usage {
        process.instance.usage()
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        self.pool.snapshots()
    }

    fn missing(&self) -> usize {
        // Clients may wait in the queues of sockets that no process has.
        self.pool.waiting().div_ceil(self.spec.connections) + self.seats.len()
    }

    fn serve(&self, process: &Process, (): ()) {
        self.pool.serve(process.instance.id);
    }

    fn retire(&self, process: &Process) {
        self.pool.retire(process.instance.id);
    }

    fn request_stop(&self, process: &Process) -> bool {
        order(&process.link, b't');
        true
    }

    fn force(&self, process: &Process, _: Option<Fault>) {
        order(&process.link, b'k');
    }

    /// Kills the guardian and its process group. The program ends together with its guardian, which
    /// then sends no more reports.
    fn force_again(&self, process: &Process) {
        process.guardian.kill_group();
    }

    fn program_ended(&mut self, process: &mut Process, exit: Exit, was_stopped: bool) {
        let has_served = self.pool.serves(process.instance.id)
            && process.instance.requests.load(Ordering::Relaxed) > 0;
        // Send no further requests to a socket on which no process listens.
        self.pool.retire(process.instance.id);
        process.exit = Some(exit);
        let seat = process.seat.take();
        if exit == Exit::Code(0) && has_served {
            process.has_left_seat = seat.is_some();
            self.seats.extend(seat);
        }
        process.instance.life.ended(InstanceEnd::of(exit, was_stopped));
    }

    /// An end that the supervisor has not requested is a crash, unless the next process continues
    /// where this one has ended.
    fn may_end(&self, process: &Process, _: Exit) -> bool {
        process.has_left_seat
    }

    fn describe_end(&self, process: &Process, reaped: Exit, why: Option<Fault>) -> End {
        let why = match why {
            Some(Fault::NotReady) if self.spec.warm_up.is_empty() => {
                "it did not listen within start_timeout"
            }
            Some(Fault::NotReady) => "it did not listen and warm up within start_timeout",
            Some(Fault::Silent) => "nothing was heard of it within request_timeout",
            Some(Fault::Refused) => "it refused a connection",
            Some(Fault::RequestTimeout | Fault::Unexpected) | None => "unasked",
        };
        let text = match (self.pid(process), process.exit) {
            (0, _) => format!("cannot start {}: its guardian ended, {reaped}", self.spec.run[0]),
            (pid, Some(exit)) => format!("process {pid} ended, {exit}: {why}{}", hint(exit)),
            (pid, None) => format!("process {pid} ended with its guardian, {reaped}: {why}"),
        };
        End { text, was_killed: process.exit.is_some_and(Exit::was_killed) }
    }

    fn remove(&mut self, process: Process, reaped: Exit, crashed: bool) {
        // The guardian may have been killed together with its program, for example because their
        // control group has no memory left. The guardian has then reported no end of the program.
        process.instance.life.ended(InstanceEnd::of(reaped, !crashed));
        self.pool.remove(process.instance.id, crashed);
    }

    fn begin_crash_loop(&self, why: String) {
        self.pool.begin_crash_loop(why);
    }

    fn let_wait(&self) {
        self.pool.let_wait();
    }

    fn close(&self) {
        self.pool.close();
    }
}

/// Sends an order of one byte. The byte always fits, because the guardian reads orders at once.
/// Calls the kernel directly, because the runtime would need a poll first to know that the socket
/// is writable.
fn order(link: &UnixStream, order: u8) {
    use rustix::net::{SendFlags, send};
    let _ = send(link, &[order], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Returns the usual reason for an exit code, for the log.
fn hint(exit: Exit) -> &'static str {
    match exit {
        Exit::Code(0) => " (a program has to stay in the foreground)",
        _ => "",
    }
}

// Reads the reports that a guardian sends about its program, and waits for the guardian's end. A
// guardian is the process that starts a server program, and ends all processes of the program.

/// Time limit for reading the last reports of a guardian after the guardian has ended.
const LAST_REPORTS: Duration = Duration::from_secs(1);

/// Reads the reports of a guardian until the guardian closes its end of `link`. Stores the
/// program's process id in `instance`, and sends the end of the program to `events`.
pub(super) async fn report(
    instance: Arc<Instance>,
    link: Rc<UnixStream>,
    events: mpsc::UnboundedSender<Event<()>>,
) {
    let mut text = Vec::new();
    let mut chunk = [0; 256];
    while link.readable().await.is_ok() {
        match link.try_read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => text.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            match Report::parse(&String::from_utf8_lossy(&line)) {
                Some(Report::Started(pid)) => instance.life.set_pid(pid),
                Some(Report::Ended(exit)) => {
                    let _ = events.send(Event::ProgramEnded(instance.id, exit));
                }
                None => {}
            }
        }
    }
}

/// A report of a guardian about its program.
enum Report {
    /// Process id of the program.
    Started(u32),
    Ended(Exit),
}

impl Report {
    fn parse(line: &str) -> Option<Report> {
        let (word, number) = line.trim_end().split_once(' ')?;
        Some(match word {
            "pid" => Report::Started(number.parse().ok()?),
            "exit" => Report::Ended(Exit::Code(number.parse().ok()?)),
            "signal" => Report::Ended(Exit::Signal(number.parse().ok()?)),
            _ => return None,
        })
    }
}

/// Waits until the guardian has ended, and reaps it. Then waits, for 1 s at most, until `reports`
/// has read the guardian's last reports.
pub(super) async fn await_end(
    at_end: OwnedFd,
    guardian: Rc<Child>,
    reports: JoinHandle<()>,
) -> Exit {
    let readable = sys::register(at_end, Interest::READABLE);
    let status = loop {
        if let Ok(at_end) = &readable {
            let _ = at_end.readable().await;
        }
        match guardian.reap() {
            Ok(Some(status)) => break status,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    // `reports` usually ends now, because the guardian has closed its end of the socket. This end
    // may still be open if another process holds it, or if the guardian lives after the helper was
    // killed. Aborting `reports` closes the gateway's end, and a living guardian then ends its
    // program.
    let task = reports.abort_handle();
    let _ = tokio::time::timeout(LAST_REPORTS, reports).await;
    task.abort();
    status.into()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_programs_exit_is_known_before_its_guardians() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (link, its_link) = std::os::unix::net::UnixStream::pair().unwrap();
        link.set_nonblocking(true).unwrap();
        let mut process = Command::new("sh")
            .args(["-c", "echo pid 5 >&0; echo exit 7 >&0; exit 3"])
            .stdin(Stdio::from(OwnedFd::from(its_link)))
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&process);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // The reports and the end are available at the same time.
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        let (events, mut reported) = mpsc::unbounded_channel();
        let place = crate::program::ProcessAddress::Unix("/nowhere".into());
        let instance = Arc::new(Instance::new(1, (place, None), 0, u64::MAX));
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let link = Rc::new(UnixStream::from_std(link).unwrap());
            let reports = tokio::task::spawn_local(report(instance.clone(), link, events));
            let guardian = Rc::new(Child::Own(pid));
            assert_eq!(await_end(pidfd, guardian, reports).await, Exit::Code(3));
            assert_eq!(instance.life.pid(), 5);
            assert!(matches!(reported.try_recv(), Ok(Event::ProgramEnded(1, Exit::Code(7)))));
        });
        assert!(process.wait().is_err(), "it was reaped");
    }
}

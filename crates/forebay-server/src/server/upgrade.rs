//! Replaces the running program on SIGUSR2, without losing a connection.
//!
//! The old process starts the new one and passes it all sockets (`forebay_net::handover`). After
//! the new process has started its applications, the old process stops accepting connections and
//! finishes its requests. If the new process does not become ready, nothing changes.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_net::handover::launcher::{Launcher, Program, RootAccess};
use forebay_net::handover::{Handover, Heritage, ListenerKind, SocketCopies, Takeover};
use forebay_net::listen::{FormerDatagrams, Listener};
use forebay_net::systemd::STARTER_PORT;
use forebay_net::tls::TicketKeys;
use forebay_process::started_descriptors;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::{Reloads, Server, Signalled, Signals, StartError};

/// Time limit for the start of the new process: the default of systemd's `TimeoutStartSec`.
const PATIENCE: Duration = Duration::from_secs(90);

/// Time limit for the end of an attempt after a signal to stop.
const STOPPING: Duration = Duration::from_secs(1);

/// Predecessor and successor of this process.
pub(super) struct Succession {
    /// Starts successors. `None` during the start of a successor, or if this process cannot start
    /// one.
    launcher: Option<Launcher>,
    program: Option<Program>,
    /// The predecessor, until it lets this process serve.
    takeover: Option<Takeover>,
    /// The predecessor's UDP sockets, on which it still receives the packets of its connections.
    formers: Vec<FormerDatagrams>,
    /// Completes when the predecessor has ended.
    predecessor: Option<oneshot::Receiver<()>>,
    /// True if SIGUSR2 arrived before the end of the predecessor.
    is_postponed: bool,
    /// Connection to the successor, which notices when this connection closes.
    successor: Option<Handover>,
    admin: Option<SocketCopies>,
    /// Keys that the successor gets.
    tickets: Option<TicketKeys>,
    /// Stops the administrator's listener when it is dropped.
    admin_stop: Option<UnixStream>,
}

impl Succession {
    pub(super) fn new(admin: Option<&Listener>, formers: Vec<FormerDatagrams>) -> io::Result<Self> {
        let copy = |listener: &Listener| {
            let copies = SocketCopies::of(String::new(), std::slice::from_ref(listener))?;
            io::Result::Ok(SocketCopies { kind: ListenerKind::Admin, ..copies })
        };
        Ok(Self {
            launcher: None,
            program: None,
            takeover: None,
            formers,
            predecessor: None,
            is_postponed: false,
            successor: None,
            admin: admin.map(copy).transpose()?,
            tickets: None,
            admin_stop: None,
        })
    }

    pub(super) fn set_launcher(&mut self, launcher: Launcher, program: Program) {
        (self.launcher, self.program) = (Some(launcher), Some(program));
    }

    pub(super) fn set_tickets(&mut self, tickets: TicketKeys) {
        self.tickets = Some(tickets);
    }

    pub(super) fn set_takeover(&mut self, takeover: Takeover) {
        self.takeover = Some(takeover);
    }

    /// Returns true if this process has taken over from a predecessor, and the predecessor still
    /// runs.
    pub(super) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Returns one end of a socket pair. This process closes the other end when the thread of the
    /// admin listener must stop.
    pub(super) fn admin_stopped(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.admin_stop = Some(ours);
        Ok(theirs)
    }

    /// Starts the process that stays root to start successors. Does nothing if upgrades are not
    /// enabled.
    pub(super) fn keep_root(&mut self) -> io::Result<()> {
        if let Some(program) = &self.program {
            self.launcher = None;
            self.launcher = Some(Launcher::root(program)?);
        }
        Ok(())
    }

    pub(super) fn root_access(&self) -> Option<RootAccess> {
        self.launcher.as_ref()?.access()
    }

    /// Returns the reason why this process cannot be replaced, or `None` if it can.
    fn obstacle(&self) -> Option<&'static str> {
        if forebay_process::is_below_init() {
            return Some("Forebay runs as process 1 of a container: replace the container");
        }
        if std::env::var_os(STARTER_PORT).is_some() {
            return Some("start_server starts new versions: send SIGHUP to it");
        }
        self.launcher.is_none().then_some("this process cannot start another one")
    }
}

fn take(place: &Mutex<Option<Attempt>>) -> Option<Attempt> {
    place.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The state of an attempt to start a successor.
struct Attempt {
    launcher: Launcher,
    handover: Handover,
    copies: Vec<Option<SocketCopies>>,
    admin: Option<SocketCopies>,
    heritage: Heritage,
}

impl Attempt {
    /// Starts a successor, passes it the sockets, and lets it serve when it is ready. Returns the
    /// successor's process ID. Blocks.
    fn run(&mut self, theirs: OwnedFd) -> Result<u32, String> {
        let start = self.launcher.start(theirs);
        start.map_err(|error| format!("cannot start the new process: {error}"))?;
        let listeners = self.copies.iter().flatten().chain(&self.admin);
        let offered = self.handover.offer(listeners, &self.heritage, PATIENCE);
        let outcome = offered.and_then(|id| self.handover.go().map(|()| id));
        outcome.map_err(|error| match self.launcher.end() {
            Ok(how) if !how.is_empty() => format!("{error} ({how})"),
            _ => error.to_string(),
        })
    }
}

impl Server {
    /// Waits for a signal, for a change by the administrator, or for the end of the predecessor.
    pub(super) async fn next(&mut self, signals: &mut Signals, reloads: &mut Reloads) -> Signalled {
        let end = async {
            match &mut self.succession.predecessor {
                Some(ended) => drop(ended.await),
                None => pending().await,
            }
        };
        tokio::select! {
            signalled = signals.next() => signalled,
            () = end => Signalled::Alone,
            Some(request) = reloads.requests.recv() => Signalled::Requested(request),
        }
    }

    /// Waits until the predecessor, if any, lets this process serve.
    pub(super) fn confirm_takeover(&mut self) -> Result<(), StartError> {
        let Some(takeover) = self.succession.takeover.take() else { return Ok(()) };
        takeover.confirm().map_err(StartError::Takeover)?;
        for former in &self.succession.formers {
            if let Err(error) = former.begin() {
                self.errors().error(&format!("HTTP/3 loses connections of the upgrade: {error}"));
            }
        }
        let (sender, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("predecessor".into());
        let outcome = thread.spawn(move || {
            takeover.wait_for_end();
            let _ = sender.send(());
        });
        // If the thread cannot start, `ended` completes at once, as if the old process had ended.
        if let Err(error) = outcome {
            self.errors().error(&format!("cannot wait for the end of the old process: {error}"));
        }
        self.succession.predecessor = Some(ended);
        self.errors().info(&format!("process {} has taken over", std::process::id()));
        Ok(())
    }

    /// Takes over the UDP packets of the predecessor, which has ended. Returns the upgrade signal
    /// that was postponed, if any.
    pub(super) fn end_takeover(&mut self) -> Option<Signalled> {
        self.succession.predecessor = None;
        for former in self.succession.formers.drain(..) {
            if let Err(error) = former.release() {
                self.writer.errors().error(&format!("cannot divide UDP packets: {error}"));
            }
        }
        self.errors().info("the old process has ended");
        std::mem::take(&mut self.succession.is_postponed).then_some(Signalled::Upgrade)
    }

    /// Starts a successor and lets it take over. On failure, logs the reason. The error contains a
    /// signal that arrived during the attempt, if any. If this process's own predecessor still
    /// runs, postpones the upgrade and returns an error.
    pub(super) fn upgrade(
        &mut self,
        runtime: &Runtime,
        signals: &mut Signals,
    ) -> Result<(), Option<Signalled>> {
        if self.succession.predecessor.is_some() {
            self.succession.is_postponed = true;
            self.errors().info("the upgrade waits for the end of the old process");
            return Err(None);
        }
        let obstacle = self.succession.obstacle();
        let Some(launcher) = self.succession.launcher.take_if(|_| obstacle.is_none()) else {
            return Err(self.keep_serving(obstacle.unwrap_or("an upgrade has begun"), None));
        };
        self.notify.status("starting a new process");
        let (outcome, signalled) = runtime.block_on(self.attempt(signals, launcher));
        let (id, handover) = match outcome {
            Ok(successor) => successor,
            Err(why) => return Err(self.keep_serving(&why, signalled)),
        };
        self.notify.succeeded_by(id);
        self.succession.successor = Some(handover);
        self.succession.admin_stop = None;
        let own = std::process::id();
        let message = format!("process {id} serves from now on; {own} finishes its requests");
        self.errors().info(&message);
        if let Some(Signalled::Reload) = signalled {
            self.errors().warn("SIGHUP arrived during the upgrade; send it again if needed");
        }
        Ok(())
    }

    /// Logs the reason of a failed upgrade. Returns `signalled` unchanged.
    fn keep_serving(&self, why: &str, signalled: Option<Signalled>) -> Option<Signalled> {
        let own = std::process::id();
        self.errors().error(&format!("not upgraded, process {own} keeps serving: {why}"));
        self.notify.status("serving; the last upgrade failed");
        signalled
    }

    /// Starts a successor on a separate thread, and waits until it serves. Returns the successor's
    /// process ID, or the reason of a failure. Also returns a signal that arrived during the
    /// attempt, which the caller must handle.
    async fn attempt(
        &mut self,
        signals: &mut Signals,
        launcher: Launcher,
    ) -> (Result<(u32, Handover), String>, Option<Signalled>) {
        let ends = Handover::new().and_then(|(ours, theirs)| Ok((ours.try_clone()?, ours, theirs)));
        let (control, handover, theirs) = match ends {
            Ok(ends) => ends,
            Err(error) => {
                self.succession.launcher = Some(launcher);
                return (Err(error.to_string()), None);
            }
        };
        let (copies, admin) = (std::mem::take(&mut self.copies), self.succession.admin.take());
        // Share the attempt with the thread that runs it. If this thread cannot start, this
        // function takes the launcher and the sockets back.
        let keys = self.succession.tickets.as_ref().map(TicketKeys::to_text).unwrap_or_default();
        let heritage = Heritage { descriptors: started_descriptors(), keys };
        let attempt = Attempt { launcher, handover, copies, admin, heritage };
        let shared = Arc::new(Mutex::new(Some(attempt)));
        let theirs_and_place = (theirs, shared.clone());
        let (sender, mut outcome) = oneshot::channel();
        let thread = std::thread::Builder::new().name("upgrade".into()).spawn(move || {
            let (theirs, place) = theirs_and_place;
            if let Some(mut attempt) = take(&place) {
                let outcome = attempt.run(theirs);
                let _ = sender.send((attempt, outcome));
            }
        });
        if let Err(error) = thread {
            if let Some(Attempt { launcher, copies, admin, .. }) = take(&shared) {
                self.succession.launcher = Some(launcher);
                (self.copies, self.succession.admin) = (copies, admin);
            }
            return (Err(format!("cannot start a thread: {error}")), None);
        }
        let mut left = None;
        let stopped = sleep(Duration::MAX);
        tokio::pin!(stopped);
        let outcome = loop {
            tokio::select! {
                outcome = &mut outcome => break outcome,
                // The launcher may hang, for example because a file system does not answer. This
                // must not delay a stop. The thread then keeps the sockets until this process ends.
                () = &mut stopped => {
                    return (Err("its start hangs, and this process stops".to_owned()), left);
                }
                signal = signals.next() => match signal {
                    Signalled::Stop => {
                        control.stop();
                        stopped.as_mut().reset(Instant::now() + STOPPING);
                        left = Some(Signalled::Stop);
                    }
                    Signalled::Reopen => self.writer.reopen(),
                    Signalled::Reload => {
                        self.errors().warn(
                            "SIGHUP waits: a new process is starting; its start ends the wait",
                        );
                        left = left.or(Some(Signalled::Reload));
                    }
                    Signalled::Upgrade => self.errors().warn(
                        "SIGUSR2 has no effect: another new process is starting already",
                    ),
                    _ => {}
                },
            }
        };
        let Ok((attempt, outcome)) = outcome else {
            return (Err("the thread of the upgrade failed; restart Forebay".to_owned()), left);
        };
        let Attempt { launcher, handover, copies, admin, .. } = attempt;
        self.succession.launcher = Some(launcher);
        (self.copies, self.succession.admin) = (copies, admin);
        (outcome.map(|id| (id, handover)), left)
    }
}

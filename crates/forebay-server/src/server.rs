//! The server: opens sockets, starts threads and handles signals. Signals stop the server without
//! losing a request, reload the configuration and reopen the access log.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_admin::{Admin, Control, Meters, MetricsExport};
use forebay_conf::{self as conf, Listen, SocketAccess};
use forebay_net::address_limit::AddressLimit;
use forebay_net::counters::Counters;
use forebay_net::handover::launcher::{Launcher, Program, RootAccess};
use forebay_net::handover::{SocketCopies, Takeover, TakeoverError};
use forebay_net::listen::{ListenError, Listener, Loads, Sockets};
use forebay_net::log::{ErrorLog, Reopener, Writer};
use forebay_net::log_opener::Opener;
use forebay_net::privileges::{Identity, PrivilegeError};
use forebay_net::systemd::{InheritError, Inherited, Notify};
use forebay_net::thread::{Settings, Thread};
use forebay_net::tls::TicketKeys;
use forebay_process::{RootEvent, keep_to, seal_root};
use rustix::process::{getpid, kill_process};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::serving::{Change, Stage, Tables, ThreadStart};

mod reload;
mod upgrade;

pub use reload::{Prepare, Reload, ReloadRequest, Reloads};
use upgrade::Succession;

/// Reason why the server could not start.
#[derive(Debug)]
pub enum StartError {
    /// The server cannot listen on an address.
    Listen(ListenError),
    /// The service manager's sockets cannot be used.
    Inherit(InheritError),
    /// The access log cannot be opened.
    Log(io::Error),
    /// Root's privileges cannot be given up.
    Privileges(PrivilegeError),
    /// The system refused a thread, an event loop, a copy of a socket, or a signal handler.
    System(io::Error),
    /// The processes that stay root have ended, which this process cannot start again.
    LostRoot,
    /// The running server does not hand over to this process.
    Takeover(TakeoverError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Inherit(error) => error.fmt(f),
            Self::Log(error) => write!(f, "cannot open the access log: {error}"),
            Self::Privileges(error) => error.fmt(f),
            Self::System(error) => write!(f, "cannot start: {error}"),
            Self::Takeover(error) => error.fmt(f),
            Self::LostRoot => f.write_str("the processes that stay root have ended"),
        }
    }
}

impl std::error::Error for StartError {}

/// Time limit for the end of the threads after their requests have ended or were aborted.
const ENDING: Duration = Duration::from_secs(1);

/// Server settings that a reload may change.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Addresses to listen on.
    pub listen: Vec<Listen>,
    /// Mode and owner of each Unix socket.
    pub sockets: Sockets,
    /// Time and size limits.
    pub settings: Settings,
    /// Destinations and formats of the access logs, and settings of the error log.
    pub log: conf::Log,
    /// Time from a signal to stop until no more connections are accepted.
    pub drain_delay: Duration,
}

/// A server with open sockets that accepts no connections yet.
pub struct Server {
    /// Sockets by address, then by thread. Empty after the threads have started.
    listeners: Vec<Vec<Listener>>,
    addresses: Vec<Listen>,
    /// Configured address of each listener. `None` for a closed listener.
    listens: Vec<Option<Listen>>,
    /// Copies of each listener's sockets, for an upgrade. `None` for a closed listener.
    copies: Vec<Option<SocketCopies>>,
    threads: usize,
    /// CPU of each thread. A thread without an entry may run on any CPU.
    processors: Vec<usize>,
    wanted: Wanted,
    writer: Writer,
    admin: Option<Listener>,
    /// What metrics are read from. `None` before the threads have started.
    meters: Option<Arc<Meters>>,
    /// The export of metrics to a collector.
    metrics: Option<MetricsExport>,
    /// True while load balancers may send clients.
    is_ready: Arc<AtomicBool>,
    /// Predecessor and successor of this process.
    succession: Succession,
    notify: Notify,
    runtime: Rc<Runtime>,
    /// True after the processes that stay root were lost.
    lost_root: Arc<AtomicBool>,
    /// `None` after serving has begun.
    early_signals: Option<EarlySignals>,
}

impl Server {
    /// Opens the access logs and all sockets that the service manager did not pass. The user of
    /// `identity` becomes the owner of new log files.
    pub fn open(
        wanted: Wanted,
        threads: usize,
        admin: Option<(Listen, SocketAccess)>,
        mut inherited: Inherited,
        identity: Option<&Identity>,
    ) -> Result<Self, StartError> {
        // Each thread has a descriptor for each listener. An upgrade needs a copy of all these
        // descriptors.
        raise_descriptors();
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        let mut listens = Vec::new();
        for listen in &wanted.listen {
            let here = chosen_port(listen, &listens, &addresses);
            let opened = inherited.open_or_claim(&here, threads, &wanted.sockets);
            for (address, sockets) in opened.map_err(StartError::Listen)? {
                listeners.push(sockets);
                addresses.push(address);
                listens.push(Some(listen.clone()));
            }
        }
        let former_admin = admin.as_ref().and_then(|(listen, _)| inherited.claim_admin(listen));
        let formers = inherited.take_formers();
        inherited.finish().map_err(StartError::Inherit)?;
        let open_admin = |(listen, access)| match former_admin {
            Some(listener) => Ok(listener),
            None => forebay_admin::open(&listen, access),
        };
        let admin = admin.map(open_admin).transpose().map_err(StartError::Listen)?;
        let copies = copy_sockets(&listens, &listeners).map_err(StartError::System)?;
        let writer = Writer::start(&wanted.log, identity.and_then(Identity::numbers));
        let writer = writer.map_err(StartError::Log)?;
        let notify = Notify::from_environment();
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(StartError::System)?;
        let early_signals =
            runtime.block_on(async { EarlySignals::new() }).map_err(StartError::System)?;
        Ok(Self {
            listeners,
            addresses,
            listens,
            copies,
            threads,
            processors: Vec::new(),
            wanted,
            writer,
            succession: Succession::new(admin.as_ref(), formers).map_err(StartError::System)?,
            admin,
            meters: None,
            metrics: None,
            is_ready: Arc::default(),
            notify,
            runtime: Rc::new(runtime),
            lost_root: Arc::default(),
            early_signals: Some(early_signals),
        })
    }

    /// Makes SIGUSR2 start `program`, which then takes over from this process. Call this before
    /// [`Self::become_user`].
    pub fn enable_upgrades(&mut self, program: Program) {
        self.succession.set_launcher(Launcher::direct(program.clone()), program);
    }

    /// Sets the keys that a successor of this process takes over.
    pub fn set_tickets(&mut self, tickets: TicketKeys) {
        self.succession.set_tickets(tickets);
    }

    /// Makes this process the successor of another process. [`Self::run`] then waits until that
    /// process lets this one serve.
    pub fn take_over(&mut self, takeover: Takeover) {
        self.succession.set_takeover(takeover);
    }

    /// Becomes another user permanently. First starts two processes that remain root: one reopens
    /// logs, and the other starts successors.
    pub fn become_user(&mut self, identity: &Identity) -> Result<(), StartError> {
        let logs = self.wanted.log.paths();
        if let Some((user, group)) = identity.numbers().filter(|_| !logs.is_empty()) {
            match Opener::start(&logs, user, group) {
                Ok(opener) => self.writer.set_opener(opener),
                // The start fails without /proc, for example. Continue, because the server can run
                // without this process. But a log that the new user may not open cannot be rotated.
                Err(error) => self.errors().error(&format!(
                    "cannot start the process that reopens access logs as root: {error}; put the log in \
                     a directory of the server's user, or restart to rotate it"
                )),
            }
        }
        if identity.numbers().is_some()
            && let Err(error) = self.succession.keep_root()
        {
            self.errors().error(&format!(
                "cannot start the process that starts new versions as root: {error}; SIGUSR2 will \
                 have no effect, and reloads read no file that only root may read"
            ));
        }
        let (errors, lost) = (self.errors(), self.lost_root.clone());
        let report = move |event| match event {
            RootEvent::Restarted(text) => errors.error(&text),
            RootEvent::Lost(text) => {
                errors.error(&format!("{text}; Forebay ends, so that it can be started anew"));
                lost.store(true, Ordering::Relaxed);
                let _ = kill_process(getpid(), rustix::process::Signal::TERM);
            }
        };
        seal_root(report).map_err(StartError::System)?;
        identity.assume().map_err(StartError::Privileges)
    }

    /// Returns the access to files that only root may read, for a server that has become another
    /// user.
    pub fn root_access(&self) -> Option<RootAccess> {
        self.succession.root_access()
    }

    /// Binds thread n to the CPU at index n of the list. Threads with no entry in the list may run
    /// on any CPU.
    pub fn keep_to(&mut self, processors: Vec<usize>) {
        self.processors = processors;
    }

    /// Returns the addresses, with the ports that the system chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Returns a handle to the error log.
    pub fn errors(&self) -> ErrorLog {
        self.writer.errors()
    }

    /// Serves until SIGINT or SIGTERM, then finishes current requests for at most `grace`.
    ///
    /// A second SIGINT or SIGTERM aborts the requests. SIGUSR1 reopens the access logs. SIGHUP
    /// loads the configuration again. If the new configuration is invalid, the current one remains.
    /// SIGUSR2 starts a new process, which takes over. `control` is called when the administrator
    /// requests the status or the restart of an application. `reloads` loads configurations, and
    /// receives the administrator's changes.
    pub fn run(
        mut self,
        tables: Tables,
        control: Arc<dyn Control>,
        grace: Duration,
        ready: impl FnOnce(),
        mut reloads: Reloads,
    ) -> Result<(), StartError> {
        let (runtime, early) = (self.runtime.clone(), self.early_signals.take());
        let signals = runtime.block_on(async { Signals::new(early) });
        let mut signals = signals.map_err(StartError::System)?;
        let (stage, _) = watch::channel(Stage::Opening);
        let threads = self.spawn(&tables, control, grace, &stage).map_err(StartError::System)?;
        drop(tables);
        self.confirm_takeover()?;
        stage.send_replace(Stage::Serving);
        self.is_ready.store(true, Ordering::Relaxed);
        ready();
        // If there is a predecessor, let it report the start to the service manager. The service
        // manager does not accept messages of this process yet.
        if !self.succession.has_predecessor() {
            self.notify.ready("serving");
        }
        let mut left = None;
        let last = loop {
            let signalled = left.take();
            match signalled
                .unwrap_or_else(|| runtime.block_on(self.next(&mut signals, &mut reloads)))
            {
                Signalled::Stop => break Stage::Stopping,
                Signalled::Reopen => self.writer.reopen(),
                Signalled::Reload => {
                    let prepare = Box::new(reloads.prepare());
                    let reloaded = self.reload(&runtime, &mut signals, &threads, prepare);
                    (reloads.signalled)(reloaded.0.as_ref().err().map(String::as_str));
                    left = reloaded.1;
                }
                Signalled::Requested(ReloadRequest { prepare, outcome }) => {
                    let reloaded = self.reload(&runtime, &mut signals, &threads, prepare);
                    left = reloaded.1;
                    // The signal to stop has interrupted the change, so its outcome is unknown.
                    // Send no outcome.
                    if !matches!(left, Some(Signalled::Stop)) {
                        let _ = outcome.send(reloaded.0);
                    }
                }
                Signalled::Upgrade => match self.upgrade(&runtime, &mut signals) {
                    Ok(()) => break Stage::Leaving,
                    Err(signalled) => left = signalled,
                },
                Signalled::Alone => left = self.end_takeover(),
            }
        };
        // Let waiting changes of the administrator fail at once.
        drop(reloads);
        if last == Stage::Stopping {
            runtime.block_on(self.drain(&mut signals));
        }
        // Drop the copies for upgrades: a listener closes only after the last copy of its socket.
        self.copies.clear();
        stage.send_replace(last);
        self.wait_for_end(&runtime, signals, &stage, grace);
        if stage.receiver_count() == 0 {
            for thread in threads.handles {
                let _ = thread.join();
            }
        }
        if let Some(metrics) = self.metrics.take() {
            metrics.finish();
        }
        let has_lost = self.lost_root.load(Ordering::Relaxed);
        if has_lost { Err(StartError::LostRoot) } else { Ok(()) }
    }

    /// Continues to serve for the configured time, or until another signal to stop. During this
    /// time, readiness checks fail, so that load balancers select other servers.
    async fn drain(&self, signals: &mut Signals) {
        self.is_ready.store(false, Ordering::Relaxed);
        self.notify.stopping();
        let delay = self.wanted.drain_delay;
        if delay.is_zero() {
            return;
        }
        self.errors().info(&format!("not ready any more; stops in {delay:?}"));
        let end = tokio::time::sleep(delay);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                signal = signals.next() => match signal {
                    Signalled::Stop => return,
                    Signalled::Reopen => self.writer.reopen(),
                    _ => {}
                },
            }
        }
    }

    fn wait_for_end(
        &self,
        runtime: &Runtime,
        signals: Signals,
        stage: &watch::Sender<Stage>,
        grace: Duration,
    ) {
        let second = wait_for_second(signals, self.writer.reopener());
        runtime.block_on(async {
            let second_signal = async {
                if second.await.is_err() {
                    // The thread of `wait_for_second` could not start, so wait forever.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = stage.closed() => {}
                () = second_signal => {}
                () = tokio::time::sleep(grace + ENDING) => {}
            }
            // The threads have `ENDING` to end the processes of scripts and to release everything
            // else that they own.
            stage.send_replace(Stage::Ending);
            let _ = tokio::time::timeout(ENDING, stage.closed()).await;
        });
    }

    /// Starts, changes or ends the export of metrics.
    fn export_metrics(&mut self) -> io::Result<()> {
        let wanted = self.wanted.log.metrics.as_ref();
        let Some(meters) = self.meters.as_ref() else { return Ok(()) };
        if self.metrics.as_ref().map(MetricsExport::settings) != wanted {
            let start = |settings| {
                let errors = self.errors();
                MetricsExport::start(settings, meters.clone(), move |level, line| {
                    errors.log(level, line);
                })
            };
            self.metrics = wanted.map(start).transpose()?;
        }
        Ok(())
    }

    /// Starts the serving threads and, if configured, the thread that serves the admin listener.
    /// Moves the sockets to the serving threads.
    fn spawn(
        &mut self,
        tables: &Tables,
        control: Arc<dyn Control>,
        grace: Duration,
        stage: &watch::Sender<Stage>,
    ) -> io::Result<Threads> {
        let (hands, received): (Vec<_>, Vec<_>) =
            (0..self.threads).map(|_| mpsc::unbounded_channel()).unzip();
        let limits = &self.wanted.settings.limits;
        let most = most_connections(limits);
        let per_address = AddressLimit::of(limits.connections_per_address, most);
        let loads = Arc::new(Loads::new(hands, most, per_address));
        let counters: Vec<Arc<Counters>> = (0..self.threads).map(|_| Arc::default()).collect();
        let (of_threads, started) = (counters.clone(), Instant::now());
        let meters =
            Arc::new(Meters { threads: of_threads, loads: loads.clone(), control, started });
        self.meters = Some(meters.clone());
        if let Err(error) = self.export_metrics() {
            self.errors().error(&format!("metrics are not exported: {error}"));
        }
        if let Some(listener) = self.admin.take() {
            let hosts = self.wanted.settings.admin_hosts.clone();
            let token = self.wanted.settings.admin_token.clone();
            let stopped = self.succession.admin_stopped()?;
            let is_ready = self.is_ready.clone();
            let admin = Admin { meters, hosts, token, is_ready, stopped };
            std::thread::Builder::new()
                .name("admin".into())
                .spawn(move || Arc::new(admin).serve(&listener))?;
        }
        let mut threads =
            Threads { handles: Vec::new(), changes: Vec::new(), loads: loads.clone() };
        for (index, handed) in received.into_iter().enumerate() {
            let processor = self.processors.get(index).copied();
            let listeners: Vec<_> = self.listeners.iter_mut().filter_map(Vec::pop).collect();
            let (changes, changed) = mpsc::unbounded_channel();
            let serving = ThreadStart {
                listeners,
                listens: self.listens.clone(),
                handed,
                changes: changed,
                stage: stage.subscribe(),
                tables: tables.clone(),
                grace,
            };
            let settings = self.wanted.settings.clone();
            let (errors, log) = (self.writer.errors(), self.writer.access(&self.wanted.log));
            let loads = loads.clone();
            let counters = counters[index].clone();
            threads.changes.push(changes);
            threads.handles.push(
                std::thread::Builder::new().name(format!("serve-{index}")).spawn(move || {
                    if let Some(processor) = processor
                        && let Err(error) = keep_to(processor)
                    {
                        errors.warn(&format!("cannot keep to processor {processor}: {error}"));
                    }
                    let thread =
                        Rc::new(Thread::new(settings, errors, log, loads, index, counters));
                    serving.run(thread);
                })?,
            );
        }
        Ok(threads)
    }
}

/// Copies the sockets of all listeners.
fn copy_sockets(
    listens: &[Option<Listen>],
    listeners: &[Vec<Listener>],
) -> io::Result<Vec<Option<SocketCopies>>> {
    let copy = |(listen, sockets): (&Option<Listen>, &Vec<Listener>)| {
        let configured = listen.as_ref().map(ToString::to_string).unwrap_or_default();
        SocketCopies::of(configured, sockets).map(Some)
    };
    listens.iter().zip(listeners).map(copy).collect()
}

/// Returns the address to open for `wanted`. An HTTP/3 listener that belongs to a TLS listener gets
/// the port of that listener, which the kernel may have chosen. All other addresses remain
/// unchanged.
fn chosen_port(wanted: &Listen, listens: &[Option<Listen>], addresses: &[Listen]) -> Listen {
    let is_beside = |listen: &Listen| listen.beside_for_http3().as_ref() == Some(wanted);
    let mut opened = listens.iter().zip(addresses);
    let found = opened.find(|(listen, _)| listen.as_ref().is_some_and(is_beside));
    found.and_then(|(_, address)| address.beside_for_http3()).unwrap_or_else(|| wanted.clone())
}

/// Starts a thread that waits for the second signal to stop. At the time [`ENDING`] after this
/// signal, the thread ends the process, even if other threads are blocked. Guardian processes then
/// end the processes of applications.
fn wait_for_second(mut signals: Signals, log: Reopener) -> oneshot::Receiver<()> {
    let (seen, second) = oneshot::channel();
    // If the thread cannot start, a second signal has no effect, and the grace period applies.
    let _ = std::thread::Builder::new().name("second-signal".into()).spawn(move || {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            loop {
                match signals.next().await {
                    Signalled::Stop => return,
                    Signalled::Reopen => log.reopen(),
                    Signalled::Reload
                    | Signalled::Upgrade
                    | Signalled::Alone
                    | Signalled::Requested(_) => {}
                }
            }
        });
        let _ = seen.send(());
        std::thread::sleep(ENDING);
        std::process::exit(0);
    });
    second
}

/// The main thread's handles to the serving threads.
struct Threads {
    handles: Vec<std::thread::JoinHandle<()>>,
    changes: Vec<mpsc::UnboundedSender<Change>>,
    loads: Arc<Loads>,
}

/// Meaning of a signal.
enum Signalled {
    Stop,
    Reopen,
    Reload,
    Upgrade,
    /// No signal: the predecessor of this process has ended.
    Alone,
    /// No signal: the administrator wants a change.
    Requested(ReloadRequest),
}

/// Signals that are handled as soon as the sockets are open.
struct EarlySignals {
    // Applications may take a while to start after the sockets are open. Without these handlers, a
    // signal would end the process during this time.
    reopen: Signal,
    reload: Signal,
    upgrade: Signal,
    /// SIGXFSZ is only caught, so that it does not end the process.
    _file_too_large: Signal,
}

impl EarlySignals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            reopen: signal(SignalKind::user_defined1())?,
            reload: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
            _file_too_large: signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
        })
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    early: EarlySignals,
}

impl Signals {
    fn new(early: Option<EarlySignals>) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            early: early.map_or_else(EarlySignals::new, Ok)?,
        })
    }

    async fn next(&mut self) -> Signalled {
        tokio::select! {
            _ = self.interrupt.recv() => Signalled::Stop,
            _ = self.terminate.recv() => Signalled::Stop,
            _ = self.early.reopen.recv() => Signalled::Reopen,
            _ = self.early.reload.recv() => Signalled::Reload,
            _ = self.early.upgrade.recv() => Signalled::Upgrade,
        }
    }
}

/// Returns the limit on client connections.
fn most_connections(limits: &conf::Limits) -> usize {
    const OTHERS: u64 = 64;
    let descriptors = raise_descriptors();
    match limits.connections {
        // Each client may need a second descriptor for a backend, and files need some descriptors.
        0 => (descriptors.saturating_sub(OTHERS) / 2).max(1) as usize,
        most => most,
    }
}

/// Raises the soft limit on descriptors to the hard limit. Returns the soft limit that now applies.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(1 << 20);
    let raised = Rlimit { current: Some(wanted), maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted,
        Err(_) => current.unwrap_or(wanted),
    }
}

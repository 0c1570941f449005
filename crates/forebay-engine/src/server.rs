//! Starting threads, accepting connections, and stopping without losing a request.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf::{self as conf, Listen};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::admin::{self, Admin, AppsStatus};
use crate::conversation::converse;
use crate::counters::Counters;
use crate::deadline::TICK;
use crate::exchange::Client;
use crate::listen::{self, Handed, ListenError, Listener, Loads};
use crate::log::{ErrorLog, Writer};
use crate::route::Table;
use crate::socket::Socket;
use crate::thread::{Settings, Thread};

/// Makes the table of one thread; called on that thread, inside its event loop.
pub type Tables = Arc<dyn Fn(&Rc<Thread>) -> Table + Send + Sync>;

/// Why serving could not start.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be listened on.
    Listen(ListenError),
    /// The access log cannot be opened.
    Log(io::Error),
    /// The system refused a thread or an event loop.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(error) => error.fmt(f),
            Self::Log(error) => write!(f, "cannot open the access log: {error}"),
            Self::System(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// How long threads may take to end when they have nothing more to do.
const ENDING: Duration = Duration::from_secs(1);

/// How far serving is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    Stopping,
    /// Whatever is under way is given up.
    Ending,
}

/// A server whose sockets are open and which takes no connection yet.
pub struct Server {
    /// By address, then by thread.
    listeners: Vec<Vec<Listener>>,
    addresses: Vec<Listen>,
    threads: usize,
    settings: Settings,
    log: conf::Log,
    writer: Writer,
    admin: Option<std::net::TcpListener>,
}

impl Server {
    /// Opens the sockets and the access log.
    pub fn open(
        listen: &[Listen],
        threads: usize,
        settings: Settings,
        log: conf::Log,
        admin: Option<SocketAddr>,
    ) -> Result<Self, StartError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in listen {
            let (address, sockets) = listen::open(address, threads).map_err(StartError::Listen)?;
            listeners.push(sockets);
            addresses.push(address);
        }
        let admin = admin.map(admin::open).transpose().map_err(StartError::Listen)?;
        let writer = Writer::start(&log.access).map_err(StartError::Log)?;
        Ok(Self { listeners, addresses, threads, settings, log, writer, admin })
    }

    /// The addresses listened on, with the ports that the system chose.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    /// Where errors are told.
    pub fn errors(&self) -> ErrorLog {
        self.writer.errors()
    }

    /// Serves until SIGINT or SIGTERM, then until the requests under way are answered, `grace` at
    /// the most. A second signal gives them up. SIGUSR1 opens the access log anew. `apps` is asked
    /// when the administrator wants to know.
    pub fn run(
        mut self,
        tables: Tables,
        apps: AppsStatus,
        grace: Duration,
        ready: impl FnOnce(),
    ) -> Result<(), StartError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(StartError::System)?;
        let mut signals = runtime.block_on(async { Signals::new() }).map_err(StartError::System)?;
        let (stage, _) = watch::channel(Stage::Serving);
        let threads = self.spawn(&tables, apps, grace, &stage).map_err(StartError::System)?;
        ready();
        runtime.block_on(async {
            signals.wait_for_stop(&self.writer).await;
            stage.send_replace(Stage::Stopping);
            tokio::select! {
                () = stage.closed() => {}
                () = signals.wait_for_stop(&self.writer) => {}
                () = tokio::time::sleep(grace + ENDING) => {}
            }
            // What ends with its thread, such as the processes of scripts, has this long.
            stage.send_replace(Stage::Ending);
            let _ = tokio::time::timeout(ENDING, stage.closed()).await;
        });
        if stage.receiver_count() == 0 {
            for thread in threads {
                let _ = thread.join();
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        tables: &Tables,
        apps: AppsStatus,
        grace: Duration,
        stage: &watch::Sender<Stage>,
    ) -> io::Result<Vec<std::thread::JoinHandle<()>>> {
        let (hands, received): (Vec<_>, Vec<_>) =
            (0..self.threads).map(|_| mpsc::unbounded_channel()).unzip();
        let limits = &self.settings.limits;
        let most = match limits.connections {
            0 => connections_by_descriptors(),
            most => most,
        };
        let loads = Arc::new(Loads::new(hands, most, limits.connections_per_address));
        let counters: Vec<Arc<Counters>> = (0..self.threads).map(|_| Arc::default()).collect();
        let is_timed = self.admin.is_some();
        if let Some(listener) = self.admin.take() {
            let (threads, loads, started) = (counters.clone(), loads.clone(), Instant::now());
            let admin = Admin { threads, loads, apps, started };
            std::thread::Builder::new()
                .name("admin".into())
                .spawn(move || admin.serve(&listener))?;
        }
        let mut threads = Vec::new();
        for (index, handed) in received.into_iter().enumerate() {
            let listeners: Vec<_> = self.listeners.iter_mut().filter_map(Vec::pop).collect();
            let runtime_thread = RuntimeThread {
                listeners,
                handed,
                stage: stage.subscribe(),
                tables: tables.clone(),
                grace,
            };
            let settings = self.settings.clone();
            let (errors, log) = (self.writer.errors(), self.writer.access(&self.log));
            let loads = loads.clone();
            let counters = counters[index].clone();
            threads.push(std::thread::Builder::new().name(format!("serve-{index}")).spawn(
                move || {
                    let thread = Rc::new(Thread::new(
                        settings, errors, log, loads, index, counters, is_timed,
                    ));
                    runtime_thread.run(thread);
                },
            )?);
        }
        Ok(threads)
    }
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    reopen: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }

    async fn wait_for_stop(&mut self, writer: &Writer) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.reopen.recv() => writer.reopen(),
            }
        }
    }
}

/// What one serving thread starts with.
struct RuntimeThread {
    listeners: Vec<Listener>,
    handed: mpsc::UnboundedReceiver<Handed>,
    stage: watch::Receiver<Stage>,
    tables: Tables,
    grace: Duration,
}

impl RuntimeThread {
    fn run(self, thread: Rc<Thread>) {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => self.serve(&runtime, thread),
            Err(error) => thread.errors.say(&format!("cannot start a serving thread: {error}")),
        }
    }

    fn serve(mut self, runtime: &LocalRuntime, thread: Rc<Thread>) {
        runtime.block_on(async move {
            *thread.table.borrow_mut() = Rc::new((self.tables)(&thread));
            let mut tasks = Vec::new();
            for (listener, socket) in self.listeners.into_iter().enumerate() {
                tasks.push(tokio::task::spawn_local(accept_all(thread.clone(), socket, listener)));
            }
            tasks.push(tokio::task::spawn_local(take_handed(thread.clone(), self.handed)));
            let ticking = tokio::task::spawn_local(tick(thread.clone()));
            let _ = self.stage.wait_for(|stage| *stage != Stage::Serving).await;
            for task in tasks {
                task.abort();
            }
            // Listeners close when their aborted tasks are dropped, at the next turn.
            tokio::task::yield_now().await;
            thread.stop();
            tokio::select! {
                () = drain(&thread, self.grace) => {}
                _ = self.stage.wait_for(|stage| *stage == Stage::Ending) => {}
            }
            ticking.abort();
            thread.log.hand_over();
        });
    }
}

async fn tick(thread: Rc<Thread>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        thread.tick();
    }
}

async fn drain(thread: &Thread, grace: Duration) {
    let deadline = tokio::time::Instant::now() + grace;
    while thread.load.connections(thread.index) > 0 && tokio::time::Instant::now() < deadline {
        thread.deadlines.close_idle();
        tokio::time::sleep(TICK / 10).await;
    }
}

async fn accept_all(thread: Rc<Thread>, listener: Listener, index: usize) {
    let outcome = match listener {
        Listener::Tcp(listener) => match TcpListener::from_std(listener) {
            Ok(listener) => accept_tcp(&thread, listener, index).await,
            Err(error) => error,
        },
        Listener::Unix(listener) => match UnixListener::from_std(listener) {
            Ok(listener) => accept_unix(&thread, listener, index).await,
            Err(error) => error,
        },
    };
    thread.errors.say(&format!("a listener gave up: {outcome}"));
}

async fn accept_tcp(thread: &Rc<Thread>, listener: TcpListener, index: usize) -> io::Error {
    let own = match listener.local_addr() {
        Ok(address) => address,
        Err(error) => return error,
    };
    loop {
        wait_for_room(thread).await;
        match listener.accept().await {
            Ok((stream, peer)) => place(thread, stream, peer, own, index),
            Err(error) => pause_after(thread, &error).await,
        }
    }
}

/// Starts the conversation here, or gives it to a thread with less to do.
fn place(thread: &Rc<Thread>, stream: TcpStream, peer: SocketAddr, own: SocketAddr, index: usize) {
    match thread.load.lighter_than(thread.index) {
        Some(other) => {
            if let Ok(stream) = stream.into_std() {
                thread.load.hand(other, Handed { stream, peer, listener: index });
            }
        }
        None => {
            let own =
                if own.ip().is_unspecified() { stream.local_addr().unwrap_or(own) } else { own };
            let socket = Socket::tcp(stream, &thread.deadlines);
            start(thread, socket, peer, own, index);
        }
    }
}

async fn take_handed(thread: Rc<Thread>, mut handed: mpsc::UnboundedReceiver<Handed>) {
    while let Some(Handed { stream, peer, listener }) = handed.recv().await {
        if let Ok(stream) = TcpStream::from_std(stream)
            && let Ok(own) = stream.local_addr()
        {
            let socket = Socket::tcp(stream, &thread.deadlines);
            start(&thread, socket, peer, own, listener);
        }
    }
}

async fn accept_unix(thread: &Rc<Thread>, listener: UnixListener, index: usize) -> io::Error {
    // Programs that look at the client's address expect one, and the client is on this machine.
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    loop {
        wait_for_room(thread).await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let socket = Socket::unix(stream, &thread.deadlines);
                start(thread, socket, local, local, index);
            }
            Err(error) => pause_after(thread, &error).await,
        }
    }
}

/// At the limit connections wait in the kernel's queue, as with HAProxy's maxconn.
async fn wait_for_room(thread: &Thread) {
    while !thread.load.has_room() {
        tokio::time::sleep(TICK / 10).await;
    }
}

/// Out of descriptors or memory: accepting again at once would only burn the processor.
async fn pause_after(thread: &Thread, error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        return;
    }
    thread.errors.say(&format!("cannot accept: {error}"));
    tokio::time::sleep(TICK).await;
}

fn start(thread: &Rc<Thread>, socket: Socket, peer: SocketAddr, local: SocketAddr, index: usize) {
    let Some(counted) = Counted::new(thread, peer.ip()) else {
        socket.reset();
        return;
    };
    thread.counters.count_connection();
    let client = Rc::new(Client::new(socket, thread.clone(), peer, local));
    tokio::task::spawn_local(async move {
        converse(client, index).await;
        drop(counted);
    });
}

/// A connection that is counted until it is dropped, even by a panic.
struct Counted(Rc<Thread>, IpAddr);

impl Counted {
    /// `None` where the address has too many connections.
    fn new(thread: &Rc<Thread>, address: IpAddr) -> Option<Self> {
        thread.load.enter(thread.index, address).then(|| Self(thread.clone(), address))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.load.leave(self.0.index, self.1);
    }
}

/// As many client connections as there are descriptors for, with one to a backend for each and
/// some for files. The soft limit is raised as far as it goes.
fn connections_by_descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(1 << 20);
    let raised = Rlimit { current: Some(wanted), maximum };
    let limit = if setrlimit(Resource::Nofile, raised).is_ok() {
        wanted
    } else {
        current.unwrap_or(wanted)
    };
    (limit.saturating_sub(OTHERS) / 2).max(1) as usize
}

//! A serving thread for tests, with connections in memory (`forebay_net::memory`).

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{self as conf, Listen};
use forebay_net::address_limit::AddressLimit;
use forebay_net::counters::{Counters, Totals};
use forebay_net::limit::Limit;
use forebay_net::listen::{Loads, Message};
use forebay_net::log::{ErrorLog, Kept};
use forebay_net::memory::{Link, Network};
use forebay_net::socket::Socket;
use forebay_net::thread::{Settings, Thread};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::accept::start;
use crate::admission::make_room;
use crate::context::FrontContext;
use crate::serving::{Tables, drain, spawn_tasks};

/// Time limit for current requests after [`MemoryGateway::stop`].
const GRACE: Duration = Duration::from_secs(30);

/// Serves connections in memory, as a thread serves sockets. Use this in a local tokio runtime.
pub struct MemoryGateway {
    context: Rc<FrontContext>,
    log: Kept,
    tasks: [JoinHandle<()>; 2],
    /// Keeps the channel for messages of other threads open.
    _handed: mpsc::UnboundedReceiver<Message>,
}

impl MemoryGateway {
    /// Creates a gateway. `tables` creates the table of sites for the listeners in `listen`. `log`
    /// contains the settings of the access log, and the values that [`ErrorLog::kept`] returns.
    pub fn new(
        settings: Settings,
        log: (&conf::Log, Kept, ErrorLog),
        tables: &Tables,
        listen: &[Option<Listen>],
    ) -> Self {
        let (format, log, errors) = log;
        let (hand, handed) = mpsc::unbounded_channel();
        let limits = &settings.limits;
        let most = limits.connections;
        let per_address = AddressLimit::of(limits.connections_per_address, most);
        let loads = Loads::new(vec![hand], most, per_address);
        let access = errors.access(format);
        let counters: Arc<Counters> = Arc::default();
        let mut thread = Thread::new(settings, errors, access, Arc::new(loads), 0, counters);
        thread.network = Some(Rc::default());
        let thread = Rc::new(thread);
        let table = tables(&thread, listen);
        let tasks = spawn_tasks(&thread);
        let context = Rc::new(FrontContext::new(thread, table));
        Self { context, log, tasks, _handed: handed }
    }

    /// Returns the network on which backends listen.
    pub fn network(&self) -> &Network {
        self.context.thread.network.as_ref().expect("a gateway in memory has its network")
    }

    /// Opens a client connection from `peer` to the listener with this number.
    pub fn connect(&self, listener: usize, peer: SocketAddr) -> Link {
        let (near, far) = Link::pair();
        let local = SocketAddr::from(([127, 0, 0, 1], 80));
        let context = self.context.clone();
        let begin = move || {
            let socket = Socket::memory(near, &context.thread.deadlines);
            start(&context, socket, peer.into(), local, listener);
        };
        if self.context.thread.load.has_room() {
            begin();
            return far;
        }
        let context = self.context.clone();
        tokio::task::spawn_local(async move {
            make_room(&context, listener, Some(peer.ip())).await;
            begin();
        });
        far
    }

    /// Limits the idle connections to backends, as the descriptor limit does.
    pub fn limit_idle(&self, most: usize) {
        self.context.thread.idle_room.limit(most);
    }

    /// Returns the number of client connections.
    pub fn connections(&self) -> usize {
        self.context.thread.load.connections(0)
    }

    /// Uses another table from the next request on, as after a reload.
    pub fn adopt(&self, tables: &Tables, listen: &[Option<Listen>]) {
        self.context.replace_table(tables(&self.context.thread, listen));
    }

    /// Closes idle connections, and lets current requests finish.
    pub fn stop(&self) {
        self.context.thread.stop();
        let context = self.context.clone();
        tokio::task::spawn_local(async move { drain(&context.thread, GRACE).await });
    }

    /// Ends the connections of `[[stream]]`, as at the end of the grace period.
    pub fn end(&self) {
        self.context.thread.end();
    }

    /// Returns how often `limit` was reached.
    pub fn reached(&self, limit: Limit) -> u64 {
        Totals::of(std::slice::from_ref(&self.context.thread.counters)).limits.0[limit as usize]
    }

    /// Returns the errors logged since the last call.
    pub fn errors(&self) -> Vec<String> {
        self.log.errors()
    }

    /// Returns the access log lines written since the last call.
    pub fn access_lines(&self) -> Vec<String> {
        self.context.thread.hand_over_log();
        self.log.access_lines()
    }

    /// Returns the access log lines written since the last call, each with the number of its log.
    pub fn numbered_lines(&self) -> Vec<(usize, String)> {
        self.context.thread.hand_over_log();
        self.log.numbered_lines()
    }
}

impl Drop for MemoryGateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

//! Runs the event loop of a serving thread, from the first connection to the last.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_conf::Listen;
use forebay_net::deadline::TICK;
use forebay_net::listen::{Listener, Message};
use forebay_net::log::AccessLog;
use forebay_net::thread::{Settings, Thread};
use forebay_process::leave_processor;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::accept::Accepting;
use crate::context::FrontContext;
use crate::route::Table;

/// Creates the table of one thread for these listeners. A closed listener is `None`. The thread
/// calls this inside its event loop.
pub type Tables = Arc<dyn Fn(&Rc<Thread>, &[Option<Listen>]) -> Table + Send + Sync>;

/// Stage of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The listeners are not open yet.
    Opening,
    /// Requests are accepted.
    Serving,
    /// Current requests are finished.
    Stopping,
    /// Current requests are finished, and another process accepts new requests.
    Leaving,
    /// Current requests are aborted.
    Ending,
}

/// Initial state of a thread.
pub struct ThreadStart {
    /// The thread's sockets, by listener index.
    pub listeners: Vec<Listener>,
    /// Address of each listener.
    pub listens: Vec<Option<Listen>>,
    /// Messages from other threads.
    pub handed: mpsc::UnboundedReceiver<Message>,
    /// Configuration changes.
    pub changes: mpsc::UnboundedReceiver<Change>,
    /// Current stage.
    pub stage: watch::Receiver<Stage>,
    /// Creates the table.
    pub tables: Tables,
    /// Time limit for current requests when the server stops.
    pub grace: Duration,
}

/// A configuration change.
pub struct Change {
    /// Time and size limits.
    pub settings: Settings,
    /// Access logs with the new formats.
    pub log: AccessLog,
    /// Creates the table.
    pub tables: Tables,
    /// Address of each listener. `None` for a closed listener.
    pub listens: Vec<Option<Listen>>,
    /// Listeners to open, with their indexes.
    pub opened: Vec<(usize, Listener)>,
    /// Indexes of listeners to close.
    pub closed: Vec<usize>,
    /// Dropped when the change has been applied.
    pub acknowledge: std::sync::mpsc::Sender<()>,
}

/// Maximum number of socket events that the event loop reports at a time.
// The requests of all reported sockets are read before the first request is answered. Each request
// needs a buffer, and hundreds of buffers would not fit into the CPU cache.
const EVENTS: usize = 64;

impl ThreadStart {
    /// Serves until the stage changes, then until current requests are answered.
    pub fn run(self, thread: Rc<Thread>) {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_io_events_per_tick(EVENTS)
            .event_interval(2 * EVENTS as u32)
            .max_blocking_threads(2)
            // Threads for blocking work inherit the CPU of this thread. Let them run on any CPU.
            .on_thread_start(leave_processor)
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => self.serve(&runtime, thread),
            Err(error) => thread.errors.error(&format!("cannot start a serving thread: {error}")),
        }
    }

    fn serve(mut self, runtime: &LocalRuntime, thread: Rc<Thread>) {
        runtime.block_on(async move {
            let table = (self.tables)(&thread, &self.listens);
            let context = Rc::new(FrontContext::new(thread.clone(), table));
            // `tables` keeps the applications of the first configuration alive. Drop it, so that
            // they can end after a reload.
            drop(self.tables);
            let mut accepting = Accepting::new(&context, self.handed);
            // Accept no connection before the stage changes. A successor waits here until its
            // predecessor lets it serve. If the takeover fails, the successor ends without having
            // accepted a connection.
            if self.stage.wait_for(|stage| *stage != Stage::Opening).await.is_err() {
                return;
            }
            for (index, listener) in self.listeners.into_iter().enumerate() {
                accepting.open(index, listener);
            }
            let tasks = spawn_tasks(&thread);
            loop {
                tokio::select! {
                    _ = self.stage.wait_for(|stage| *stage != Stage::Serving) => break,
                    Some(change) = self.changes.recv() => change.apply(&context, &mut accepting),
                }
            }
            let leaves = *self.stage.borrow() == Stage::Leaving;
            if leaves {
                accepting.leave().await;
            } else {
                accepting.stop().await;
            }
            // Let the event loop drop the aborted tasks of the listeners. This drop closes the
            // listeners.
            tokio::task::yield_now().await;
            if leaves {
                thread.leave();
            } else {
                thread.stop();
            }
            tokio::select! {
                () = drain(&thread, self.grace) => {}
                _ = self.stage.wait_for(|stage| *stage == Stage::Ending) => {}
            }
            thread.end();
            if thread.load.connections(thread.index) > 0 {
                // Connections of `[[stream]]` end now. Wait until their tasks have logged them.
                tokio::time::sleep(TICK / 10).await;
            }
            tasks.into_iter().for_each(|task| task.abort());
            thread.hand_over_log();
        });
    }
}

impl Change {
    /// Replaces table and settings between two requests. Connections stay open.
    fn apply(self, context: &FrontContext, accepting: &mut Accepting) {
        // Apply the settings first, because the new table creates origins, which read the settings.
        context.thread.adopt_settings(self.settings, self.log);
        context.replace_table((self.tables)(&context.thread, &self.listens));
        for (index, listener) in self.opened {
            accepting.open(index, listener);
        }
        for index in self.closed {
            accepting.close(index);
        }
        drop(self.acknowledge);
    }
}

/// Starts the thread's permanent tasks besides its connections.
pub fn spawn_tasks(thread: &Rc<Thread>) -> [JoinHandle<()>; 2] {
    let (ticking, sending) = (tick(thread.clone()), send(thread.clone()));
    [tokio::task::spawn_local(ticking), tokio::task::spawn_local(sending)]
}

/// Sends the queued output of the thread's sockets after all ready tasks have run.
async fn send(thread: Rc<Thread>) {
    poll_fn::<(), _>(|context| {
        thread.deadlines.poll_send(context);
        Poll::Pending
    })
    .await;
}

/// Advances the thread's clock and deadlines while there are connections, or unused memory to
/// release.
async fn tick(thread: Rc<Thread>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        thread.tick();
        if thread.is_idle() {
            thread.deadlines.rest().await;
            interval.reset();
        }
    }
}

pub async fn drain(thread: &Thread, grace: Duration) {
    let deadline = tokio::time::Instant::now() + grace;
    while thread.load.connections(thread.index) > 0 && tokio::time::Instant::now() < deadline {
        thread.deadlines.close_idle();
        tokio::time::sleep(TICK / 10).await;
    }
}

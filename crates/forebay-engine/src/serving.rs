//! One serving thread: its event loop, from the first connection to the last.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_conf::Listen;
use forebay_process::leave_processor;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::accept::Accepting;
use crate::context::FrontContext;
use crate::deadline::TICK;
use crate::listen::{Listener, Message};
use crate::log::AccessLog;
use crate::route::Table;
use crate::thread::{Settings, Thread};

/// Makes the table of one thread for these listeners, of which those that were closed are `None`;
/// called on that thread, inside its event loop.
pub type Tables = Arc<dyn Fn(&Rc<Thread>, &[Option<Listen>]) -> Table + Send + Sync>;

/// How far serving is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Requests are taken.
    Serving,
    /// Requests under way are answered.
    Stopping,
    /// Whatever is under way is given up.
    Ending,
}

/// What a thread starts with.
pub struct Serving {
    /// Its sockets, by index of the listener.
    pub listeners: Vec<Listener>,
    /// Where they listen.
    pub listens: Vec<Option<Listen>>,
    /// Connections from other threads.
    pub handed: mpsc::UnboundedReceiver<Message>,
    /// Other configurations.
    pub changes: mpsc::UnboundedReceiver<Change>,
    /// How far serving is.
    pub stage: watch::Receiver<Stage>,
    /// Makes the table.
    pub tables: Tables,
    /// How long requests under way may take at the end.
    pub grace: Duration,
}

/// Another configuration.
pub struct Change {
    /// Time and size limits.
    pub settings: Settings,
    /// What lines of the access log look like.
    pub log: AccessLog,
    /// Makes the table.
    pub tables: Tables,
    /// Where each listener listens; `None` where it is closed.
    pub listens: Vec<Option<Listen>>,
    /// Listeners to open, with their indexes.
    pub opened: Vec<(usize, Listener)>,
    /// Indexes of listeners to close.
    pub closed: Vec<usize>,
    /// Dropped when all this is done.
    pub acknowledge: std::sync::mpsc::Sender<()>,
}

/// Sockets that are heard of at a time. Each has its request read before the first is answered, so
/// this many buffers are in use; with hundreds they would not stay in the cache.
const EVENTS: usize = 64;

impl Serving {
    /// Serves until the stage is one of stopping, then until the requests under way are answered.
    pub fn run(self, thread: Rc<Thread>) {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_io_events_per_tick(EVENTS)
            .event_interval(2 * EVENTS as u32)
            .max_blocking_threads(2)
            // Threads for blocking work inherit this one's processor, and need not keep to it.
            .on_thread_start(leave_processor)
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => self.serve(&runtime, thread),
            Err(error) => thread.errors.log(&format!("cannot start a serving thread: {error}")),
        }
    }

    fn serve(mut self, runtime: &LocalRuntime, thread: Rc<Thread>) {
        runtime.block_on(async move {
            let table = (self.tables)(&thread, &self.listens);
            let context = Rc::new(FrontContext::new(thread.clone(), table));
            // What the first configuration started ends when another takes its place.
            drop(self.tables);
            let mut accepting = Accepting::new(&context, self.handed);
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
            accepting.stop();
            // Listeners close when their aborted tasks are dropped, at the next turn.
            tokio::task::yield_now().await;
            thread.stop();
            tokio::select! {
                () = drain(&thread, self.grace) => {}
                _ = self.stage.wait_for(|stage| *stage == Stage::Ending) => {}
            }
            tasks.into_iter().for_each(|task| task.abort());
            thread.hand_over_log();
        });
    }
}

impl Change {
    /// Swaps table and settings between two requests; connections stay as they are.
    fn apply(self, context: &FrontContext, accepting: &mut Accepting) {
        // First: origins look at the settings when they are made.
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

/// What a thread does beside its connections, for ever.
pub fn spawn_tasks(thread: &Rc<Thread>) -> [JoinHandle<()>; 2] {
    let (ticking, sending) = (tick(thread.clone()), send(thread.clone()));
    [tokio::task::spawn_local(ticking), tokio::task::spawn_local(sending)]
}

/// Sends what the sockets of the thread have gathered, after each turn.
async fn send(thread: Rc<Thread>) {
    poll_fn(|context| {
        thread.deadlines.poll_send(context);
        Poll::Pending
    })
    .await
}

/// Moves the thread's clock and deadlines on, while it has connections or something to trim.
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

async fn drain(thread: &Thread, grace: Duration) {
    let deadline = tokio::time::Instant::now() + grace;
    while thread.load.connections(thread.index) > 0 && tokio::time::Instant::now() < deadline {
        thread.deadlines.close_idle();
        tokio::time::sleep(TICK / 10).await;
    }
}

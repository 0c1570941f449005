//! Replaces the running configuration on SIGHUP.
//!
//! A separate thread loads and checks the configuration, resolves backends and starts changed
//! applications. Then the main thread opens new listeners and logs. If any of these steps fails,
//! nothing changes. Afterwards every serving thread builds its own table of sites, and replaces its
//! table, settings and log formats between two requests.
//!
//! A request keeps its site, and each site holds a token of its configuration. When nothing holds
//! the old token any longer, the applications of the old configuration are stopped. An application
//! with an unchanged definition keeps its processes. A group of backends keeps its state if its
//! name or its backends are unchanged.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use forebay_conf::Listen;
use forebay_net::address_limit::AddressLimit;
use forebay_net::handover::SocketCopies;
use forebay_net::listen;
use forebay_net::listen::Listener;
use forebay_net::log::Writer;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use super::{Server, Signalled, Signals, Threads, Wanted, chosen_port, most_connections};
use crate::serving::Change;
use crate::serving::Tables;

/// Time that a reload waits for the threads. Slower threads apply the configuration later.
const PATIENCE: Duration = Duration::from_secs(10);

/// A configuration that replaces the running one.
pub struct Reload {
    /// Addresses, settings and log of the server.
    pub wanted: Wanted,
    /// Creates the table of each thread.
    pub tables: Tables,
    /// Called when every thread uses the configuration. Current requests may still use the old
    /// tables.
    pub done: Box<dyn FnOnce() + Send>,
}

/// Loads another configuration and starts its new applications, or returns an error.
pub type Prepare = Box<dyn FnOnce() -> Result<Reload, String> + Send>;

/// Takes note of the outcome of a reload: the reason of a failure, or `None`.
pub type NoteOutcome = Box<dyn Fn(Option<&str>)>;

/// A change that the administrator wants.
pub struct ReloadRequest {
    /// Loads the changed configuration.
    pub prepare: Prepare,
    /// Receives the outcome. If the server stops first, no outcome is sent.
    pub outcome: std::sync::mpsc::Sender<Result<(), String>>,
}

/// The sources of other configurations.
pub struct Reloads {
    /// Loads the configuration on SIGHUP.
    pub on_signal: Arc<dyn Fn() -> Result<Reload, String> + Send + Sync>,
    /// Called after SIGHUP.
    pub signalled: NoteOutcome,
    /// The administrator's changes. The server applies one at a time.
    pub requests: mpsc::UnboundedReceiver<ReloadRequest>,
}

impl Reloads {
    pub(super) fn prepare(&self) -> impl FnOnce() -> Result<Reload, String> + Send + use<> {
        let prepare = self.on_signal.clone();
        move || prepare()
    }
}

/// Listeners for one thread, with their indexes.
type Opened = Vec<(usize, Listener)>;

/// Listeners that a reload adds.
struct New {
    /// Configured addresses. Their indexes follow the indexes of the existing listeners.
    listens: Vec<Listen>,
    /// Actual addresses.
    addresses: Vec<Listen>,
    /// The listeners of each thread.
    opened: Vec<Opened>,
    /// Copies of the sockets.
    copies: Vec<Option<SocketCopies>>,
}

impl Server {
    /// Loads and applies another configuration. Returns the outcome, and logs an error. Also
    /// returns a signal that arrived during the reload, which the caller must handle.
    pub(super) fn reload(
        &mut self,
        runtime: &Runtime,
        signals: &mut Signals,
        threads: &Threads,
        prepare: Prepare,
    ) -> (Result<(), String>, Option<Signalled>) {
        self.notify.reloading();
        let Some((prepared, again)) = runtime.block_on(self.prepared(signals, prepare)) else {
            return (Err("Forebay stops".to_owned()), Some(Signalled::Stop));
        };
        let outcome = prepared.and_then(|reload| self.adopt(threads, reload));
        match &outcome {
            Ok(()) => {
                self.errors().info("serving by the configuration as it is now");
                self.notify.ready("serving by the configuration as it is now");
            }
            Err(why) => {
                let why = why.trim_end();
                self.errors()
                    .error(&format!("not reloaded, the old configuration stays in use: {why}"));
                self.notify.ready("serving; the last reload failed");
            }
        }
        (outcome, again)
    }

    /// Prepares another configuration on a separate thread. Also returns a signal that arrived
    /// during the preparation. Returns `None` after a signal to stop, without waiting for the
    /// thread.
    async fn prepared(
        &self,
        signals: &mut Signals,
        prepare: Prepare,
    ) -> Option<(Result<Reload, String>, Option<Signalled>)> {
        // Starting an application may take long, and must not delay a stop.
        let (sender, mut outcome) = oneshot::channel();
        let thread = std::thread::Builder::new().name("reload".into());
        if let Err(error) = thread.spawn(move || sender.send(prepare()).is_ok()) {
            return Some((Err(format!("cannot start a thread: {error}")), None));
        }
        let mut again = None;
        loop {
            tokio::select! {
                outcome = &mut outcome => {
                    let failed = |_| Err("reading the configuration failed".to_owned());
                    return Some((outcome.unwrap_or_else(failed), again));
                }
                signal = signals.next() => match signal {
                    Signalled::Stop => return None,
                    Signalled::Reopen => self.writer.reopen(),
                    // The file may have changed after the thread read it, so reload once more.
                    Signalled::Reload => {
                        self.errors().warn("SIGHUP waits: the last reload is not complete yet");
                        again = again.or(Some(Signalled::Reload));
                    }
                    signal => {
                        if matches!(signal, Signalled::Upgrade) {
                            self.errors().warn("SIGUSR2 waits: a reload is not complete yet");
                        }
                        again = Some(signal);
                    }
                },
            }
        }
    }

    /// Applies the configuration. If a step fails, returns an error and changes nothing.
    fn adopt(&mut self, threads: &Threads, reload: Reload) -> Result<(), String> {
        let Reload { wanted, tables, done } = reload;
        // Perform all steps that may fail before the first change.
        let New { listens: new, addresses, opened, copies } = self.open_new(&wanted)?;
        let other_logs = if wanted.log.has_destinations_of(&self.wanted.log) {
            None
        } else {
            Some(
                Writer::open(&wanted.log)
                    .map_err(|error| format!("cannot open an access log: {error}"))
                    .map_err(|why| self.with_advice(why))?,
            )
        };
        self.listens.extend(new.into_iter().map(Some));
        self.addresses.extend(addresses);
        self.copies.extend(copies);
        let mut closed = Vec::new();
        for (at, index) in self.listens.iter_mut().enumerate() {
            if index.as_ref().is_some_and(|listen| !wanted.listen.contains(listen)) {
                *index = None;
                self.copies[at] = None;
                closed.push(at);
            }
        }
        self.name_kept_accesses(&wanted);
        if let Err(error) = self.writer.set_traces(&wanted.log) {
            self.errors().error(&format!("traces keep their settings: {error}"));
        }
        // Switch the log writer before the threads, because a changed thread sends lines for the
        // new logs.
        let has_other_logs = other_logs.is_some();
        if let Some(targets) = other_logs {
            self.writer.switch(targets);
        }
        self.send_change(threads, &wanted, tables, opened, closed);
        if has_other_logs {
            self.writer.retire();
        }
        self.wanted = wanted;
        if let Err(error) = self.export_metrics() {
            self.errors().error(&format!("the export of metrics keeps its settings: {error}"));
        }
        done();
        Ok(())
    }

    /// Logs the Unix sockets whose configured mode or owner has changed. The new values do not
    /// apply, because mode and owner are set only when a socket is created.
    fn name_kept_accesses(&self, wanted: &Wanted) {
        for (path, access) in &wanted.sockets {
            if self.wanted.sockets.get(path).is_some_and(|before| before != access) {
                self.errors().warn(&format!(
                    "`socket_mode`, `socket_user` and `socket_group` of unix:{} change only with \
                     a restart",
                    path.display()
                ));
            }
        }
    }

    /// Adds advice to the error of a log that only root may open. Root's process opens only the logs
    /// of the start.
    fn with_advice(&self, why: String) -> String {
        if self.root_access().is_none() || !why.contains("Permission denied") {
            return why;
        }
        format!(
            "{why}; this process has given up root, so send it SIGUSR2, which starts a new process as \
             root and loses no request"
        )
    }

    /// Opens the listeners that the configuration adds.
    fn open_new(&self, wanted: &Wanted) -> Result<New, String> {
        let listens = wanted.listen.iter().cloned();
        let new: Vec<_> =
            listens.filter(|listen| !self.listens.contains(&Some(listen.clone()))).collect();
        let mut opened: Vec<Opened> = (0..self.threads).map(|_| Vec::new()).collect();
        let (mut listens, mut addresses) = (self.listens.clone(), self.addresses.clone());
        let mut copies = Vec::new();
        for (index, listen) in (self.listens.len()..).zip(&new) {
            let here = chosen_port(listen, &listens, &addresses);
            let (address, sockets) = self.open_one(&here, wanted)?;
            let copy = SocketCopies::of(listen.to_string(), &sockets);
            copies.push(Some(copy.map_err(|error| format!("cannot copy a socket: {error}"))?));
            listens.push(Some(listen.clone()));
            addresses.push(address);
            opened.iter_mut().zip(sockets).for_each(|(own, socket)| own.push((index, socket)));
        }
        let addresses = addresses.split_off(self.addresses.len());
        Ok(New { listens: new, addresses, opened, copies })
    }

    /// Opens a listener, as root if this process may not.
    fn open_one(&self, listen: &Listen, wanted: &Wanted) -> Result<listen::Opened, String> {
        let error = match listen::open(listen, self.threads, &wanted.sockets) {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        match self.root_access() {
            Some(root) if error.error.kind() == io::ErrorKind::PermissionDenied => root
                .open(listen, self.threads)
                .map_err(|error| format!("cannot listen on {listen}: {error}")),
            _ => Err(error.to_string()),
        }
    }

    /// Sends the configuration to the threads, and waits until they have applied it. After
    /// [`PATIENCE`], logs a warning and waits no longer.
    fn send_change(
        &self,
        threads: &Threads,
        wanted: &Wanted,
        tables: Tables,
        opened: Vec<Opened>,
        closed: Vec<usize>,
    ) {
        let limits = &wanted.settings.limits;
        let most = most_connections(limits);
        let per_address = AddressLimit::of(limits.connections_per_address, most);
        threads.loads.limit(most, per_address);
        let (acknowledge, acknowledged) = std::sync::mpsc::channel();
        for (changes, opened) in threads.changes.iter().zip(opened) {
            // Ignore a failure, which means that the thread has ended and needs no change.
            let _ = changes.send(Change {
                settings: wanted.settings.clone(),
                log: self.writer.access(&wanted.log),
                tables: tables.clone(),
                listens: self.listens.clone(),
                opened,
                closed: closed.clone(),
                acknowledge: acknowledge.clone(),
            });
        }
        drop((tables, acknowledge));
        // The threads send no message. The wait ends when each thread has dropped its sender.
        if acknowledged.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            self.errors().warn(
                "a thread is too busy to apply the new configuration now; it will do so later",
            );
        }
    }
}

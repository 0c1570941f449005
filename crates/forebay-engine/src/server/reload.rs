//! SIGHUP: another configuration takes the place of the one that is served by.
//!
//! A thread of its own reads and checks the configuration, looks up backends and starts changed
//! applications, so that the main thread can still stop the server; the main thread then opens new
//! listeners and logs. Whatever fails leaves all as it was. Every thread then builds its own table
//! of sites and swaps it, with settings and log format, between two requests.
//!
//! A request keeps the site that it was given, and sites hold a token: when the count of the old
//! one is zero, no request can reach an old application, and the application is stopped. The number
//! of processes survives where a route in the same place does the same as before; the state of a
//! group survives by its name, or by its addresses.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use forebay_conf::Listen;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{Server, Signalled, Signals, Tables, Threads, Wanted, chosen_port, most_connections};
use crate::listen::{self, Listener};
use crate::log::Writer;
use crate::serving::Change;

/// How long a reload waits for the threads before it leaves them to it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Another configuration to serve by.
pub struct Reload {
    /// Addresses, settings and log of the server.
    pub wanted: Wanted,
    /// Makes its tables.
    pub tables: Tables,
    /// Called when every thread serves by it. Requests under way may still use the old tables.
    pub done: Box<dyn FnOnce() + Send>,
}

/// Reads another configuration and starts what is new in it; the error, where that fails.
pub type Prepare = Arc<dyn Fn() -> Result<Reload, String> + Send + Sync>;

/// Listeners that one thread opens, with their indexes.
type Opened = Vec<(usize, Listener)>;

/// What is to be listened on and was not.
struct New {
    /// As configured, with indexes behind those that there are.
    listens: Vec<Listen>,
    /// The addresses that became of it.
    addresses: Vec<Listen>,
    /// The listeners of each thread.
    opened: Vec<Opened>,
}

impl Server {
    /// Serves by another configuration, or logs why not; the signal that came meanwhile and is left
    /// to handle.
    pub(super) fn reload(
        &mut self,
        runtime: &Runtime,
        signals: &mut Signals,
        threads: &Threads,
        prepare: &Prepare,
    ) -> Option<Signalled> {
        self.notify.reloading();
        let Some((prepared, is_repeated)) = runtime.block_on(self.prepared(signals, prepare))
        else {
            return Some(Signalled::Stop);
        };
        match prepared.and_then(|reload| self.adopt(threads, reload)) {
            Ok(()) => {
                self.errors().log("serving by the configuration as it is now");
                self.notify.ready("serving by the configuration as it is now");
            }
            Err(why) => {
                let why = why.trim_end();
                self.errors().log(&format!("not reloaded, everything stays as it was: {why}"));
                self.notify.ready("serving; the last reload failed");
            }
        }
        is_repeated.then_some(Signalled::Reload)
    }

    /// Has another configuration prepared, on a thread of its own: an application may take its time
    /// to start, and whoever wants to stop is not to wait for it. With it, whether another SIGHUP
    /// came. `None` where the signal was to stop: then it ends with the process, if not before.
    async fn prepared(
        &self,
        signals: &mut Signals,
        prepare: &Prepare,
    ) -> Option<(Result<Reload, String>, bool)> {
        let (sender, mut outcome) = oneshot::channel();
        let prepare = prepare.clone();
        let thread = std::thread::Builder::new().name("reload".into());
        if let Err(error) = thread.spawn(move || sender.send(prepare()).is_ok()) {
            return Some((Err(format!("cannot start a thread: {error}")), false));
        }
        let mut is_repeated = false;
        loop {
            tokio::select! {
                outcome = &mut outcome => {
                    let failed = |_| Err("reading the configuration failed".to_owned());
                    return Some((outcome.unwrap_or_else(failed), is_repeated));
                }
                signal = signals.next() => match signal {
                    Signalled::Stop => return None,
                    Signalled::Reopen => self.writer.reopen(),
                    // It may have been read before it was changed once more.
                    Signalled::Reload => is_repeated = true,
                },
            }
        }
    }

    /// Takes the configuration over; an error leaves everything as it was.
    fn adopt(&mut self, threads: &Threads, reload: Reload) -> Result<(), String> {
        let Reload { wanted, tables, done } = reload;
        // All that may fail comes first.
        let New { listens: new, addresses, opened } = self.open_new(&wanted)?;
        let other_log = match wanted.log.access == self.wanted.log.access {
            true => None,
            false => Some(
                Writer::open(&wanted.log.access)
                    .map_err(|error| format!("cannot open the access log: {error}"))?,
            ),
        };
        self.listens.extend(new.into_iter().map(Some));
        self.addresses.extend(addresses);
        let mut closed = Vec::new();
        for (at, index) in self.listens.iter_mut().enumerate() {
            if index.as_ref().is_some_and(|listen| !wanted.listen.contains(listen)) {
                *index = None;
                closed.push(at);
            }
        }
        self.name_kept_accesses(&wanted);
        self.send_change(threads, &wanted, tables, opened, closed);
        if let Some(target) = other_log {
            self.writer.switch(target);
        }
        self.wanted = wanted;
        done();
        Ok(())
    }

    /// Logs the Unix sockets whose mode or owner should change, which is set when a socket is made.
    fn name_kept_accesses(&self, wanted: &Wanted) {
        for (path, access) in &wanted.sockets {
            if self.wanted.sockets.get(path).is_some_and(|before| before != access) {
                self.errors().log(&format!(
                    "`socket_mode`, `socket_user` and `socket_group` of unix:{} change with a restart \
                     only",
                    path.display()
                ));
            }
        }
    }

    /// Opens what is to be listened on and was not.
    fn open_new(&self, wanted: &Wanted) -> Result<New, String> {
        let listens = wanted.listen.iter().cloned();
        let new: Vec<_> =
            listens.filter(|listen| !self.listens.contains(&Some(listen.clone()))).collect();
        let mut opened: Vec<Opened> = (0..self.threads).map(|_| Vec::new()).collect();
        let (mut listens, mut addresses) = (self.listens.clone(), self.addresses.clone());
        for (index, listen) in (self.listens.len()..).zip(&new) {
            let here = chosen_port(listen, &listens, &addresses);
            let (address, sockets) = listen::open(&here, self.threads, &wanted.sockets)
                .map_err(|error| error.to_string())?;
            listens.push(Some(listen.clone()));
            addresses.push(address);
            opened.iter_mut().zip(sockets).for_each(|(own, socket)| own.push((index, socket)));
        }
        let addresses = addresses.split_off(self.addresses.len());
        Ok(New { listens: new, addresses, opened })
    }

    /// Has the threads serve by what is `wanted`, and waits for them.
    fn send_change(
        &self,
        threads: &Threads,
        wanted: &Wanted,
        tables: Tables,
        opened: Vec<Opened>,
        closed: Vec<usize>,
    ) {
        let limits = &wanted.settings.limits;
        threads.loads.limit(most_connections(limits), limits.connections_per_address);
        let (acknowledge, acknowledged) = std::sync::mpsc::channel();
        for (changes, opened) in threads.changes.iter().zip(opened) {
            // A thread that has ended has nothing to change.
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
        // Nothing is ever sent: the wait ends when every thread has dropped its end.
        if acknowledged.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            self.errors().log("a thread is too busy to take the new configuration; it will");
        }
    }
}

//! How processes end, asked or unasked, and what follows.

use super::{Ending, Supervisor, has_proved, order};
use crate::error::Exit;
use crate::program::instance::End;
use crate::program::instance_pool::{Snapshot, Stage};
use crate::starts::Failed;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use tokio::time::Instant;

/// How long a guardian may take to end what it guards, once it was told to do so by force.
const FORCE: Duration = Duration::from_secs(12);

impl Supervisor {
    /// The process gets no further request, and ends when it has had its last one, or `until` then.
    pub(super) fn retire(&mut self, id: u64, until: Instant) {
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.ending = Ending::Draining(until);
            self.pool.retire(id);
        }
    }

    /// Another process takes its place. Where it has further requests these are given their time,
    /// since it may have been slow with one alone.
    pub(super) fn end_hung(&mut self, id: u64, has_others: bool) {
        let (now, drain_timeout) = (Instant::now(), self.spec.drain_timeout);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !matches!(entry.ending, Ending::No) {
            return;
        }
        entry.fault = Some("nothing was heard of it within request_timeout");
        if !has_others {
            entry.ending = Ending::Forced(now + FORCE);
            order(&entry.link, b'k');
            return;
        }
        entry.ending = Ending::Draining(now + drain_timeout);
        let pid = entry.instance.life.pid();
        self.starts.log(&format!(
            "nothing was heard of process {pid} within request_timeout; it is replaced, and may \
             finish its other requests"
        ));
    }

    /// The process said that it is about to end, which it may once its requests are done.
    pub(super) fn let_go(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.ending = Ending::Draining(Instant::now() + self.spec.drain_timeout);
        }
    }

    pub(super) fn end_unreachable(&mut self, id: u64) {
        let force_at = Instant::now() + self.spec.stop_timeout;
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.fault = Some("it refused a connection");
            entry.ending = Ending::Asked(force_at);
            order(&entry.link, b't');
        }
    }

    pub(super) fn ended(&mut self, id: u64, guardian: Exit) {
        let Some(entry) = self.entries.remove(&id) else { return };
        let was_asked = entry.fault.is_none() && !matches!(entry.ending, Ending::No);
        let fell = !was_asked && self.closing.is_none();
        // The guardian may have been killed with its program, as by a control group without memory.
        entry.instance.life.ended(End::of(guardian, !fell));
        self.pool.remove(id, fell);
        if let Some(old) = entry.replaces.and_then(|old| self.entries.get_mut(&old)) {
            old.is_being_replaced = false;
        }
        if !fell {
            return;
        }
        let why = entry.fault.unwrap_or("unasked");
        let text = match (entry.instance.life.pid(), entry.exit) {
            (0, _) => format!("cannot start {}: its guardian ended, {guardian}", self.spec.run[0]),
            (pid, Some(exit)) => format!("process {pid} ended, {exit}: {why}{}", hint(exit)),
            (pid, None) => format!("process {pid} ended with its guardian, {guardian}: {why}"),
        };
        // A process that serves and gets SIGKILL or SIGTERM was killed from outside, which is no
        // fault of its own.
        let was_killed = matches!(entry.exit, Some(Exit::Signal(9 | 15)));
        if has_proved(&entry.instance, entry.was_ready) || entry.was_ready && was_killed {
            self.starts.log(&text);
        } else {
            self.start_failed(&text, &entry.stderr.last_lines());
        }
    }

    /// A start came to nothing: waits before the next.
    pub(super) fn start_failed(&mut self, text: &str, last_lines: &str) {
        match self.starts.failed(text, last_lines) {
            Failed::Loop(why) if !self.serves() => self.pool.begin_crash_loop(why),
            Failed::Loop(_) | Failed::Paused => {}
        }
        // What is there runs on by the old files until they change again.
        self.outdated.clear();
    }

    fn serves(&self) -> bool {
        self.pool.snapshot().iter().any(|snapshot| snapshot.stage == Stage::Serving)
    }

    /// Takes the end of a process, or its failure to start, one step further.
    pub(super) fn advance(&mut self, snapshot: &Snapshot, now: Instant) {
        let (start_timeout, stop_timeout) = (self.spec.start_timeout, self.spec.stop_timeout);
        let until = self.closing.as_ref().map(|closing| closing.until);
        let Some(entry) = self.entries.get_mut(&snapshot.instance.id) else { return };
        match entry.ending {
            Ending::No => {
                let is_late = snapshot.stage == Stage::Starting
                    && snapshot.instance.started + start_timeout <= now;
                if is_late {
                    entry.fault = Some("it did not listen within start_timeout");
                    entry.ending = Ending::Forced(now + FORCE);
                    order(&entry.link, b'k');
                }
            }
            Ending::Draining(limit) => {
                let limit = until.map_or(limit, |until| until.min(limit));
                if snapshot.under_way == 0 || limit <= now {
                    entry.ending = Ending::Asked(now + stop_timeout);
                    order(&entry.link, b't');
                }
            }
            Ending::Asked(limit) if limit <= now => {
                entry.ending = Ending::Forced(now + FORCE);
                order(&entry.link, b'k');
            }
            Ending::Forced(limit) if limit <= now => {
                // The program goes with its guardian; so does the pipe that would tell.
                let guardian = Pid::from_raw(snapshot.instance.guardian as i32);
                let _ = guardian.map(|guardian| kill_process(guardian, Signal::KILL));
                entry.ending = Ending::Forced(now + FORCE);
            }
            Ending::Asked(_) | Ending::Forced(_) => {}
        }
    }
}

/// What an exit code says of itself.
fn hint(exit: Exit) -> &'static str {
    match exit {
        Exit::Code(0) => " (a program has to stay in the foreground)",
        _ => "",
    }
}

//! Ends processes. Also handles the end of each process, whether it was requested or not.

use super::{Ending, Fault, ProcessEntry, ProcessKind, Stage, Supervisor};
use crate::error::Exit;
use crate::starts::Failed;
use std::time::Duration;
use tokio::time::Instant;

/// A process that ends within this time and has had no request counts as a failed start.
const EARLY: Duration = Duration::from_secs(1);
/// Time between two attempts to kill a process. This time is longer than the 10 s that a guardian
/// may need to end its processes.
const FORCE: Duration = Duration::from_secs(12);

/// The next step to end a process.
pub(super) enum Step {
    Stop,
    Force(Option<Fault>),
    ForceAgain,
}

impl<K: ProcessKind> Supervisor<K> {
    /// Stops giving requests to the process. The process ends after its last request, or when its
    /// drain timeout is over.
    pub(super) fn retire(&mut self, id: u64) {
        let limit = self.drain_end();
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.ending = Ending::Draining(limit);
            self.kind.retire(&entry.process);
        }
    }

    /// Returns the time at which a process that is retired now has to end, even with active
    /// requests. Returns `None` if such a process may finish its requests without a limit.
    fn drain_end(&self) -> Option<Instant> {
        self.kind.rules().drain_timeout.map(|limit| Instant::now() + limit)
    }

    /// Replaces a process that does not answer. A process with other requests gets time to finish
    /// them, because only the request that timed out may be slow. A process without other requests
    /// is killed at once.
    pub(super) fn end_hung(&mut self, id: u64, has_others: bool) {
        let limit = self.drain_end();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !matches!(entry.ending, Ending::No) {
            return;
        }
        entry.fault = Some(Fault::Silent);
        if !has_others {
            entry.ending = Ending::Forced(Instant::now() + FORCE);
            self.kind.force(&entry.process, entry.fault);
            return;
        }
        entry.ending = Ending::Draining(limit);
        let (noun, pid) = (K::NOUN.0, self.kind.pid(&entry.process));
        self.starts.log(&format!(
            "nothing was heard of {noun} {pid} within request_timeout; it is replaced, and may \
             finish its other requests"
        ));
    }

    /// Lets a process that has announced its end finish its requests.
    pub(super) fn let_go(&mut self, id: u64) {
        let limit = self.drain_end();
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.ending = Ending::Draining(limit);
        }
    }

    pub(super) fn end_unreachable(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id)
            && matches!(entry.ending, Ending::No)
        {
            entry.fault = Some(Fault::Refused);
            self.take(id, Step::Stop, Instant::now());
        }
    }

    pub(super) fn program_ended(&mut self, id: u64, exit: Exit) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let was_stopped = entry.ending.was_stopped();
        self.kind.program_ended(&mut entry.process, exit, was_stopped);
        if was_stopped {
            return;
        }
        if matches!(entry.ending, Ending::No) || !exit.is_orderly() {
            entry.fault.get_or_insert(Fault::Unexpected);
        }
        entry.ending = Ending::Stopping(Instant::now() + self.kind.rules().stop_timeout);
    }

    pub(super) fn ended(&mut self, id: u64, reaped: Exit) {
        self.refresh();
        let Some(entry) = self.entries.remove(&id) else { return };
        if let Some(old) = entry.replaces.and_then(|old| self.entries.get_mut(&old)) {
            old.is_being_replaced = false;
        }
        let was_stopped = entry.fault.is_none() && entry.ending.was_stopped();
        let has_crashed =
            self.closing.is_none() && !was_stopped && !self.kind.may_end(&entry.process, reaped);
        let (has_proved, last_lines) = (entry.has_proved(), entry.stderr.last_lines());
        let end = has_crashed.then(|| self.kind.describe_end(&entry.process, reaped, entry.fault));
        self.kind.remove(entry.process, reaped, has_crashed);
        match end {
            // If SIGKILL or SIGTERM ended a process that was ready, the signal came from outside.
            // In this case, the start has not failed.
            Some(end) if has_proved || entry.was_ready && end.was_killed => {
                self.starts.log(&end.text);
            }
            Some(end) => self.start_failed(&end.text, &last_lines),
            None => {}
        }
    }

    /// Handles a failed start: pauses before the next one.
    pub(super) fn start_failed(&mut self, text: &str, last_lines: &str) {
        match self.starts.failed(text, last_lines) {
            Failed::Loop(why) if !self.serves() => self.kind.begin_crash_loop(why),
            Failed::Loop(_) | Failed::Paused => {}
        }
        // Do not replace processes with old files now, because replacements may not start either.
        // These processes keep running until the files change again.
        self.outdated.clear();
    }

    /// Takes the next step to end a process, or to give up its start.
    pub(super) fn advance(&mut self, id: u64, now: Instant) {
        let stop_timeout = self.kind.rules().stop_timeout;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.seen.stage == Stage::Ending && !entry.ending.was_stopped() {
            entry.ending = Ending::Stopping(now + stop_timeout);
        }
        let Some(entry) = self.entries.get(&id) else { return };
        if let Some((_, step)) = self.next_step(entry).filter(|(at, _)| *at <= now) {
            self.take(id, step, now);
        }
    }

    /// Returns the next step for a process if nothing else happens, and the time of this step.
    /// Returns `None` if no step is planned.
    pub(super) fn next_step(&self, entry: &ProcessEntry<K::Process>) -> Option<(Instant, Step)> {
        let rules = self.kind.rules();
        let closing = self.closing.as_ref().map(|closing| closing.until);
        let busy_end =
            entry.seen.busy_since.zip(rules.request_timeout).map(|(since, limit)| since + limit);
        let overdue = busy_end.map(|at| (at, Step::Force(Some(Fault::RequestTimeout))));
        match entry.ending {
            Ending::No if entry.seen.stage == Stage::Starting => {
                Some((entry.started + rules.start_timeout, Step::Force(Some(Fault::NotReady))))
            }
            Ending::No => overdue,
            Ending::Draining(_) if entry.seen.under_way == 0 => Some((entry.started, Step::Stop)),
            Ending::Draining(limit) => {
                let limit = limit.into_iter().chain(closing).min().map(|at| (at, Step::Stop));
                limit.into_iter().chain(overdue).min_by_key(|step| step.0)
            }
            Ending::Stopping(limit) => {
                let closing = closing.filter(|_| !rules.stop_outlasts_grace);
                Some((closing.map_or(limit, |until| until.min(limit)), Step::Force(None)))
            }
            Ending::Forced(limit) => Some((limit, Step::ForceAgain)),
        }
    }

    /// Takes `step` to end process `id`, and sets the time of the next step.
    fn take(&mut self, id: u64, step: Step, now: Instant) {
        let stop_timeout = self.kind.rules().stop_timeout;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match step {
            Step::Stop if self.kind.request_stop(&entry.process) => {
                entry.ending = Ending::Stopping(now + stop_timeout);
                return;
            }
            Step::Stop => self.kind.force(&entry.process, None),
            Step::Force(fault) => {
                entry.fault = entry.fault.or(fault);
                self.kind.force(&entry.process, fault);
            }
            Step::ForceAgain => self.kind.force_again(&entry.process),
        }
        entry.ending = Ending::Forced(now + FORCE);
    }
}

impl Ending {
    fn was_stopped(self) -> bool {
        matches!(self, Ending::Stopping(_) | Ending::Forced(_))
    }
}

impl<P> ProcessEntry<P> {
    /// Returns true if the start of the process succeeded: the process became ready, and it has had
    /// a request or has run for [`EARLY`].
    pub(super) fn has_proved(&self) -> bool {
        self.was_ready && (self.seen.requests > 0 || self.started.elapsed() >= EARLY)
    }
}

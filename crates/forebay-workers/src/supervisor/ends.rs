//! How workers end, asked or unasked, and what follows.

use super::Supervisor;
use crate::error::Exit;
use crate::spec::Kind;
use crate::starts::Failed;
use crate::worker::{Facts, Killed, WorkerState};
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// A worker that has not said that it is ready by then is killed.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A worker that was told to end and has not by then is killed.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that ends sooner than this, without a request, counts as a failed start.
const EARLY: Duration = Duration::from_secs(1);

impl Supervisor {
    pub(super) fn ended(&mut self, id: u64, status: ExitStatus) {
        self.pool.remove(id);
        let Some(entry) = self.entries.remove(&id) else { return };
        let facts = &entry.facts;
        if let Some(guard) = &mut self.guard {
            guard.forget(facts.pid);
        }
        if facts.state() == WorkerState::Starting
            && let Some(old) = entry.replaces.and_then(|old| self.entries.get(&old))
        {
            old.facts.replacing.store(false, Ordering::Relaxed);
        }
        let how = Exit::from(status);
        let expected = facts.state() == WorkerState::Ending
            || matches!(facts.killed(), Some(Killed::Shutdown | Killed::LeaseDropped))
            || self.is_end_of_script(facts, how);
        // A ready worker that gets SIGKILL or SIGTERM has an enemy, not a fault.
        let was_fit = has_proved(facts)
            || facts.state() != WorkerState::Starting && matches!(how, Exit::Signal(9 | 15));
        if expected || self.closing.is_some() {
            return;
        }
        self.pool.count_crash();
        let why = match facts.killed() {
            Some(Killed::RequestTimeout) => "a request took longer than allowed",
            Some(Killed::WroteWhileIdle) => "it wrote while it had no request",
            Some(Killed::BrokeProtocol) => "it broke the rules of its sockets",
            Some(Killed::DidNotStart) => "it did not become ready",
            Some(Killed::DidNotEnd) => "it did not end when told to",
            _ if facts.state() == WorkerState::Starting => "it did not become ready",
            _ => "unasked",
        };
        let text = format!("worker {} ended, {how}: {why}", facts.pid.as_raw_nonzero());
        if was_fit {
            self.starts.say(&text);
        } else {
            self.start_failed(&text, &entry.stderr.last_lines());
        }
    }

    /// A CGI script may replace its process by another program, or end it: as a process of its own
    /// it would have ended well.
    fn is_end_of_script(&self, facts: &Facts, how: Exit) -> bool {
        matches!(self.spec.kind, Kind::PerlCgi { .. } | Kind::PythonCgi { .. })
            && facts.state() == WorkerState::Busy
            && facts.killed().is_none()
            && matches!(how, Exit::Code(0))
    }

    /// A start came to nothing: waits before the next.
    pub(super) fn start_failed(&mut self, text: &str, last_lines: &str) {
        match self.starts.failed(text, last_lines) {
            Failed::Loop(why) if self.serving() == 0 => self.pool.begin_crash_loop(why),
            Failed::Loop(_) | Failed::Paused => {}
        }
        // Those that are left run on by the old files, until these change again.
        self.outdated.clear();
    }

    /// When this worker is killed, if nothing happens before, and why.
    pub(super) fn deadline(&self, facts: &Facts) -> Option<(Instant, Killed)> {
        let own = match facts.state() {
            WorkerState::Starting => Some((facts.since() + START_TIMEOUT, Killed::DidNotStart)),
            WorkerState::Busy if facts.tunnels.load(Ordering::Relaxed) => None,
            WorkerState::Busy => {
                Some((facts.since() + self.spec.request_timeout, Killed::RequestTimeout))
            }
            WorkerState::Ending => Some((facts.since() + END_TIMEOUT, Killed::DidNotEnd)),
            WorkerState::Idle => None,
        };
        let closing = self.closing.as_ref().map(|closing| (closing.until, Killed::Shutdown));
        own.into_iter().chain(closing).filter(|_| facts.killed().is_none()).min_by_key(|own| own.0)
    }
}

/// The worker's start was a success: it has had a request, or has lasted.
pub(super) fn has_proved(facts: &Facts) -> bool {
    facts.state() != WorkerState::Starting
        && (facts.requests.load(Ordering::Relaxed) > 0 || facts.started.elapsed() >= EARLY)
}

//! How workers end, asked or unasked, and what follows.

use super::Supervisor;
use crate::error::Exit;
use crate::spec::Kind;
use crate::starts::Failed;
use crate::worker::{Killed, WorkerShared, WorkerState};
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
        let shared = &entry.shared;
        if let Some(reaper) = &mut self.group_reaper {
            reaper.forget(shared.pid);
        }
        if shared.state() == WorkerState::Starting
            && let Some(old) = entry.replaces.and_then(|old| self.entries.get(&old))
        {
            old.shared.replacing.store(false, Ordering::Relaxed);
        }
        let how = Exit::from(status);
        let expected = shared.state() == WorkerState::Ending
            || matches!(shared.killed(), Some(Killed::Shutdown | Killed::LeaseDropped))
            || self.is_end_of_script(shared, how);
        // A ready worker that gets SIGKILL or SIGTERM was killed from outside, which is no fault of
        // its own.
        let was_fit = has_proved(shared)
            || shared.state() != WorkerState::Starting && matches!(how, Exit::Signal(9 | 15));
        if expected || self.closing.is_some() {
            return;
        }
        self.pool.count_crash();
        let why = match shared.killed() {
            Some(Killed::RequestTimeout) => "a request took longer than allowed",
            Some(Killed::WroteWhileIdle) => "it wrote while it had no request",
            Some(Killed::BrokeProtocol) => "it broke the rules of its sockets",
            Some(Killed::DidNotStart) => "it did not become ready",
            Some(Killed::DidNotEnd) => "it did not end when told to",
            _ if shared.state() == WorkerState::Starting => "it did not become ready",
            _ => "unasked",
        };
        let text = format!("worker {} ended, {how}: {why}", shared.pid.as_raw_nonzero());
        if was_fit {
            self.starts.log(&text);
        } else {
            self.start_failed(&text, &entry.stderr.last_lines());
        }
    }

    /// A CGI script may replace its process by another program, or end it: as a process of its own
    /// it would have ended well.
    fn is_end_of_script(&self, shared: &WorkerShared, how: Exit) -> bool {
        matches!(self.spec.kind, Kind::PerlCgi { .. } | Kind::PythonCgi { .. })
            && shared.state() == WorkerState::Busy
            && shared.killed().is_none()
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
    pub(super) fn deadline(&self, shared: &WorkerShared) -> Option<(Instant, Killed)> {
        let own = match shared.state() {
            WorkerState::Starting => Some((shared.since() + START_TIMEOUT, Killed::DidNotStart)),
            WorkerState::Busy if shared.tunnels.load(Ordering::Relaxed) => None,
            WorkerState::Busy => {
                Some((shared.since() + self.spec.request_timeout, Killed::RequestTimeout))
            }
            WorkerState::Ending => Some((shared.since() + END_TIMEOUT, Killed::DidNotEnd)),
            WorkerState::Idle => None,
        };
        let closing = self.closing.as_ref().map(|closing| (closing.until, Killed::Shutdown));
        own.into_iter().chain(closing).filter(|_| shared.killed().is_none()).min_by_key(|own| own.0)
    }
}

/// The worker's start was a success: it has had a request, or has lasted.
pub(super) fn has_proved(shared: &WorkerShared) -> bool {
    shared.state() != WorkerState::Starting
        && (shared.requests.load(Ordering::Relaxed) > 0 || shared.started.elapsed() >= EARLY)
}

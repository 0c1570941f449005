//! Ends CGI scripts, and what they have started, when this process is killed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_workers::GroupReaper;
use rustix::process::Pid;

/// One [`GroupReaper`] for the scripts of all routes, started with the first of them.
#[derive(Debug, Default)]
pub struct ScriptReaper(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Watching(GroupReaper),
    /// It cannot be started, or is not wanted any more.
    Off,
}

impl ScriptReaper {
    /// The process group that `leader` leads is not to outlive us.
    pub fn watch(&self, leader: Pid) {
        let mut state = self.state();
        if matches!(*state, State::Unused) {
            *state = GroupReaper::start().map_or(State::Off, State::Watching);
        }
        if let State::Watching(reaper) = &mut *state {
            reaper.watch(leader);
        }
    }

    /// It has ended, and its number may be another's soon.
    pub fn forget(&self, leader: Pid) {
        if let State::Watching(reaper) = &mut *self.state() {
            reaper.forget(leader);
        }
    }

    /// Ends what is watched still, for good.
    pub fn close(&self) {
        *self.state() = State::Off;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

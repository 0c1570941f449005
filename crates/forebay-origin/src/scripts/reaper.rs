//! Ends CGI scripts and their children if Forebay is killed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_workers::GroupReaper;
use rustix::process::Pid;

/// Ends the scripts of all routes, with their children, if Forebay is killed. The start of the
/// first script also starts the [`GroupReaper`].
#[derive(Debug, Default)]
pub struct ScriptReaper(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Watching(GroupReaper),
    /// The reaper cannot be started or is no longer needed.
    Off,
}

impl ScriptReaper {
    /// Adds the process group of `leader`, which must not outlive Forebay.
    pub fn watch(&self, leader: Pid) {
        let mut state = self.state();
        if matches!(*state, State::Unused) {
            *state = GroupReaper::start().map_or(State::Off, State::Watching);
        }
        if let State::Watching(reaper) = &*state {
            reaper.watch(leader);
        }
    }

    /// Removes an ended process group, whose number may be reused.
    pub fn forget(&self, leader: Pid) {
        if let State::Watching(reaper) = &*self.state() {
            reaper.forget(leader);
        }
    }

    /// Ends the remaining process groups and the reaper.
    pub fn close(&self) {
        *self.state() = State::Off;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

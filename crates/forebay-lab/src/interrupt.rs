//! Signals such as Ctrl-C. The first signal asks the experiment to end. The second signal ends this
//! program at once. The keeper of each server (a process, see `keeper`) still ends the server and
//! removes its files.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use procfs::process::Process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Flag that a signal has arrived, and the number of the signal.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP. A signal that was ignored when the program started
    /// (for example because of `nohup`) stays ignored.
    pub fn watch() -> io::Result<Self> {
        let interrupt = Self::default();
        let ignored = Process::myself().and_then(|process| process.status());
        let ignored = ignored.map_or(0, |status| status.sigign);
        let heeded = |signal: &i32| ignored & (1 << (signal - 1)) == 0;
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(heeded) {
            flag::register_conditional_shutdown(signal, 128 + signal, interrupt.is_set.clone())?;
            flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            flag::register(signal, interrupt.is_set.clone())?;
        }
        Ok(interrupt)
    }

    /// Returns true if a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, so that it can cancel a running load.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_set.clone()
    }

    /// Returns 128 plus the number of the signal that arrived. A shell reports this exit code for a
    /// program that the signal ended.
    pub fn exit_code(&self) -> u8 {
        128u8.saturating_add(self.signal.load(Ordering::Relaxed) as u8)
    }
}

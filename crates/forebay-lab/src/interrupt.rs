//! Ctrl-C and its kin: the first asks the experiment to end, the second ends this program at once
//! (its keepers tidy up all the same).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use procfs::process::Process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal has come, and which.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP from now on, but for those that were to be ignored
    /// from the start, as `nohup` has it.
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

    /// Whether one has come.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The exit code that a shell expects of a program ended by the signal that came.
    pub fn exit_code(&self) -> u8 {
        128u8.saturating_add(self.signal.load(Ordering::Relaxed) as u8)
    }
}

//! Signals such as Ctrl-C. The first signal asks the experiment to end. The second ends this
//! program at once, and its keepers still clean up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use procfs::process::Process;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Flag for a received signal, and its number.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Starts to watch for SIGINT, SIGTERM and SIGHUP, except for signals that were ignored at the
    /// start (for example by `nohup`).
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

    /// Returns the flag itself, for a load that it cancels.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_set.clone()
    }

    /// Returns the exit code that a shell expects from a program ended by this signal.
    pub fn exit_code(&self) -> u8 {
        128u8.saturating_add(self.signal.load(Ordering::Relaxed) as u8)
    }
}

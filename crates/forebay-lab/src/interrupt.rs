//! Ctrl-C and its kin: the first asks the experiment to end, the second ends this program at once
//! (its keepers tidy up all the same).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether a signal has come, and which.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP from now on.
    pub fn watch() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, 128 + signal, interrupt.came.clone())?;
            flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            flag::register(signal, interrupt.came.clone())?;
        }
        Ok(interrupt)
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// The exit code that a shell expects of a program ended by the signal that came.
    pub fn exit_code(&self) -> u8 {
        128u8.saturating_add(self.signal.load(Ordering::Relaxed) as u8)
    }
}

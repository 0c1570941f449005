//! Signals that a live view handles: those that end the run, and those that stop the program.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::low_level::{emulate_default_handler, pipe};
use signal_hook::{SigId, flag, low_level::unregister};

/// Signals that end the run. `Interrupt` handles them, and the view only restores the terminal.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals whose default action follows after the terminal is restored: Ctrl-Z and Ctrl-\.
const STOPS: [i32; 2] = [SIGTSTP, SIGQUIT];

/// Signals that have arrived.
pub struct Notices {
    reader: UnixStream,
    ended: Arc<AtomicBool>,
    stopped: [Arc<AtomicBool>; 2],
    registered: Vec<SigId>,
}

/// Wakes a thread in [`Notices::wait`].
pub struct Waker(UnixStream);

impl Waker {
    pub fn wake(&self) {
        // If the pipe is full, the thread wakes anyway.
        let _ = io::Write::write(&mut &self.0, b"x");
    }
}

/// Starts to watch signals.
pub fn watch() -> io::Result<(Notices, Waker)> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    writer.set_nonblocking(true)?;
    let mut notices = Notices {
        reader,
        ended: Arc::default(),
        stopped: Default::default(),
        registered: Vec::new(),
    };
    let ended = ENDS.iter().map(|signal| (*signal, &notices.ended));
    let flags: Vec<_> = ended.chain(STOPS.into_iter().zip(&notices.stopped)).collect();
    let mut registered = Vec::new();
    for (signal, is_set) in flags {
        // Register flags before the pipe, so that a flag is set when the pipe wakes the thread. A
        // program that `nohup` starts ignores SIGHUP. A signal that the program ignores at its
        // start ends only the view, not the run.
        registered.push(flag::register(signal, is_set.clone())?);
    }
    for signal in ENDS.into_iter().chain(STOPS).chain([SIGWINCH]) {
        registered.push(pipe::register(signal, writer.try_clone()?)?);
    }
    notices.registered = registered;
    Ok((notices, Waker(writer)))
}

/// Performs the default action of a signal, which ends or stops this program. After a stop, returns
/// when the program continues (SIGCONT).
pub fn obey(signal: i32) {
    let _ = emulate_default_handler(signal);
}

impl Notices {
    /// Waits for a signal or a [`Waker`], at most for `timeout`, which is less than a second.
    pub fn wait(&self, timeout: Duration) {
        let limit = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&limit));
        while matches!(io::Read::read(&mut &self.reader, &mut [0; 64]), Ok(64)) {}
    }

    /// Returns true if a signal that ends the view has arrived.
    pub fn ends(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns SIGTSTP or SIGQUIT if that signal has arrived since the last call, otherwise `None`.
    /// The caller restores the terminal, then passes the signal to [`obey`].
    pub fn take_stop(&self) -> Option<i32> {
        let arrived = |is_set: &Arc<AtomicBool>| is_set.swap(false, Ordering::Relaxed);
        STOPS.into_iter().zip(&self.stopped).find(|(_, is_set)| arrived(is_set)).map(|(s, _)| s)
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            unregister(id);
        }
    }
}

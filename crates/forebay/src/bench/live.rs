//! Live view of `forebay bench` in a terminal. A separate thread draws it from counts that the load
//! threads post once per second, so that drawing does not affect the load.

mod screen;
mod view;
mod widgets;

use std::io::{self, IsTerminal};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Control, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::low_level::{emulate_default_handler, pipe, unregister};
use signal_hook::{SigId, flag};

use screen::Screen;
use view::View;

/// Interval between two frames.
const FRAME: Duration = Duration::from_millis(200);

/// Time before the view takes the screen. A shorter run shows only its report.
const DELAY: Duration = Duration::from_millis(400);

/// Returns the reason why this terminal cannot show the view. Returns `None` if the terminal can
/// show it.
pub fn obstacle() -> Option<&'static str> {
    let term = std::env::var("TERM").unwrap_or_default();
    if !io::stderr().is_terminal() || !io::stdout().is_terminal() {
        return Some("standard output and standard error must be a terminal");
    }
    (term.is_empty() || term == "dumb").then_some("the terminal (TERM) cannot move the cursor")
}

/// Runs `load` and draws its progress on the screen of the terminal.
///
/// # Errors
/// Fails before the load if the signals of the terminal cannot be watched.
pub fn watch<T>(spec: &Spec, control: &Control, load: impl FnOnce() -> T) -> io::Result<T> {
    let (notices, waker) = watch_signals()?;
    let over = AtomicBool::new(false);
    Ok(thread::scope(|scope| {
        let painter = scope.spawn(|| paint(spec, control, &over, &notices));
        // The drop of `end` wakes the painter, even if the load panics.
        let end = LoadEnd { over: &over, waker };
        let result = load();
        drop(end);
        // Ignore a panic of the view: the terminal is restored, and `result` is complete.
        let _ = painter.join();
        result
    }))
}

/// When dropped, reports the end of the load to the painter.
struct LoadEnd<'a> {
    over: &'a AtomicBool,
    waker: Waker,
}

impl Drop for LoadEnd<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Draws frames until the load is over, or until a signal ends the view. If the terminal fails, the
/// load continues without a view.
fn paint(spec: &Spec, control: &Control, over: &AtomicBool, notices: &Notices) {
    let start = Instant::now();
    let mut view = View::new(spec, start);
    let mut screen = None;
    let mut wait = DELAY;
    loop {
        notices.wait(wait);
        wait = FRAME;
        // After the first signal, return, which restores the terminal. A second signal ends the
        // program at once, without a chance to restore the terminal.
        if over.load(Ordering::Acquire)
            || notices.ends()
            || control.cancelled.load(Ordering::Relaxed)
        {
            return;
        }
        if let Some(signal) = notices.take_stop() {
            // Dropping the screen restores the terminal.
            screen = None;
            obey(signal);
            continue;
        }
        view.update(control, Instant::now());
        if start.elapsed() < DELAY || !screen::is_foreground() {
            continue;
        }
        if screen.is_none() {
            screen = Screen::enter(io::stderr()).ok();
        }
        let Some(screen) = &mut screen else { return };
        if screen.draw(&view).is_err() {
            return;
        }
    }
}

// Signals that a live view handles: those that end the run, and those that stop the program.

/// Signals that end the run. `Interrupt` handles them, and the view only restores the terminal.
const ENDS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals whose default action follows after the terminal is restored: Ctrl-Z and Ctrl-\.
const STOPS: [i32; 2] = [SIGTSTP, SIGQUIT];

/// Signals that have arrived.
struct Notices {
    reader: UnixStream,
    ended: Arc<AtomicBool>,
    stopped: [Arc<AtomicBool>; 2],
    registered: Vec<SigId>,
}

/// Wakes a thread in [`Notices::wait`].
struct Waker(UnixStream);

impl Waker {
    pub fn wake(&self) {
        // If the pipe is full, the thread wakes anyway.
        let _ = io::Write::write(&mut &self.0, b"x");
    }
}

/// Starts to watch signals.
fn watch_signals() -> io::Result<(Notices, Waker)> {
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
fn obey(signal: i32) {
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

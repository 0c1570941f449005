//! Live view of `forebay bench` in a terminal. A separate thread draws it from counts that the load
//! threads post once per second, so that drawing does not affect the load.

mod screen;
mod signals;
mod view;
mod widgets;

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Control, Spec};

use screen::Screen;
use signals::{Notices, Waker};
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
    let (notices, waker) = signals::watch()?;
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
            signals::obey(signal);
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

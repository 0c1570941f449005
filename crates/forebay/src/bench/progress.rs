//! Progress bar of `forebay bench`. A separate thread draws it, so that drawing does not affect the
//! load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_load::{Control, Stop};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval at which the bar is drawn.
const PERIOD: Duration = Duration::from_millis(200);

/// Runs `load`. If `show` is true, draws its progress on standard error.
pub fn watch<T>(show: bool, stop: Stop, control: &Control, load: impl FnOnce() -> T) -> T {
    if !show {
        return load();
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let painter = scope.spawn(|| draw(stop, control, &over));
        let result = load();
        over.store(true, Ordering::Release);
        painter.thread().unpark();
        result
    })
}

/// Draws the progress bar until `over` is set.
fn draw(stop: Stop, control: &Control, over: &AtomicBool) {
    let length = match stop {
        Stop::Requests(n) => n,
        Stop::Duration(duration) => duration.as_millis() as u64,
    };
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("[{wide_bar}] {percent:>3}%  {msg}")
        .expect("the template is a constant that indicatif accepts");
    bar.set_style(style.progress_chars("=> "));
    let start = Instant::now();
    let mut last = (start, 0);
    while !over.load(Ordering::Acquire) {
        thread::park_timeout(PERIOD);
        let completed = control.completed.load(Ordering::Relaxed);
        let failed = control.failed.load(Ordering::Relaxed);
        let elapsed = last.0.elapsed().as_secs_f64();
        let rate = (completed - last.1) as f64 / elapsed.max(1e-3);
        last = (Instant::now(), completed);
        bar.set_message(format!(
            "{} completed, {} failed, {} requests/s",
            HumanCount(completed),
            HumanCount(failed),
            HumanCount(rate as u64),
        ));
        bar.set_position(match stop {
            Stop::Requests(_) => completed + failed,
            Stop::Duration(_) => start.elapsed().as_millis() as u64,
        });
    }
    bar.finish_and_clear();
}

//! State of the live view: the counts of all load threads, added up by second.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_load::{Control, Latency, Requests, Second, Spec, Stop, ThreadSeconds};

use crate::bench::report::clean;

/// Seconds that the charts show. Older seconds are dropped.
const WINDOW: usize = 300;

/// State of the live view.
pub struct View {
    /// Method and URL, or the number of requests.
    pub title: String,
    /// Connections and threads.
    pub load: String,
    pub stop: Stop,
    pub elapsed: Duration,
    pub completed: u64,
    pub failed: u64,
    /// Latencies of all completed requests, to 2 digits.
    pub latency: Latency,
    pub first_failure: Option<String>,
    start: Instant,
    threads: Vec<Option<ThreadSeconds>>,
    seconds: VecDeque<Point>,
    /// Index of the first second in `seconds`.
    base: usize,
}

/// Counts of one second.
#[derive(Clone, Debug, Default)]
pub struct Point {
    pub second: Second,
    /// 50th, 90th and 99th percentile in microseconds; `None` if no request was completed.
    pub percentiles: Option<[u64; 3]>,
    /// Number of threads that have posted their counts of this second.
    posts: usize,
}

/// Percentiles of the chart.
pub const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0)];

impl View {
    /// Creates the view of a run that starts at `start`.
    pub fn new(spec: &Spec, start: Instant) -> Self {
        let title = match spec.parts.len() {
            0 => format!("{} {}", spec.method, spec.url),
            parts if spec.servers() > 1 => {
                format!("{parts} requests on {} servers", spec.servers())
            }
            parts => format!("{parts} requests on {}", spec.url.endpoint()),
        };
        let threads = spec.load_threads();
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let connections = spec.connections;
        Self {
            title: clean(&title),
            load: format!(
                "{connections} connection{}, {threads} thread{}",
                plural(connections),
                plural(threads)
            ),
            stop: spec.stop,
            elapsed: Duration::ZERO,
            completed: 0,
            failed: 0,
            latency: Latency::coarse(),
            first_failure: None,
            start,
            threads: vec![None; threads],
            seconds: VecDeque::new(),
            base: 0,
        }
    }

    /// Updates the view with the counts that the load threads have posted.
    pub fn update(&mut self, control: &Control, now: Instant) {
        self.elapsed = now.saturating_duration_since(self.start);
        self.completed = control.completed.load(Ordering::Relaxed);
        self.failed = control.failed.load(Ordering::Relaxed);
        for post in control.live.as_ref().map(|live| live.take()).unwrap_or_default() {
            self.add(post);
        }
    }

    fn add(&mut self, mut post: ThreadSeconds) {
        for (index, second) in (post.first..).zip(std::mem::take(&mut post.seconds)) {
            self.latency.merge(&second.latency());
            self.add_second(index, second);
        }
        if self.first_failure.is_none() {
            self.first_failure = post.first_failure.as_deref().map(clean);
        }
        if let Some(thread) = self.threads.get_mut(post.thread) {
            *thread = Some(post);
        }
    }

    fn add_second(&mut self, index: usize, second: Second) {
        // A paused thread may post its counts late. Ignore a second that the charts no longer show.
        let Some(mut place) = index.checked_sub(self.base) else { return };
        if place >= WINDOW {
            let surplus = place + 1 - WINDOW;
            self.seconds.drain(..surplus.min(self.seconds.len()));
            self.base += surplus;
            place = WINDOW - 1;
        }
        if self.seconds.len() <= place {
            self.seconds.resize_with(place + 1, Point::default);
        }
        let point = &mut self.seconds[place];
        point.posts += 1;
        point.second.completed += second.completed;
        point.second.failed += second.failed;
        let mut latency = point.second.latency();
        latency.merge(&second.latency());
        if !latency.is_empty() {
            point.second.histogram = latency.encode();
            let value = |(_, percent)| latency.percentile_us(percent);
            point.percentiles = Some(PERCENTILES.map(value));
        }
    }

    /// Returns the seconds that the charts show, with their indices. Leaves out a second while
    /// threads may still post its counts: until all threads have posted, or until two later seconds
    /// exist. The second rule is for threads that have ended, which never post.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = (usize, &Point)> {
        let threads = self.threads.len();
        let is_over = move |place: usize, point: &Point| {
            point.posts >= threads || place + 2 < self.seconds.len()
        };
        let seconds = self.seconds.iter().enumerate();
        let shown = seconds.filter(move |(place, point)| is_over(*place, point));
        shown.map(move |(place, point)| (self.base + place, point))
    }

    /// Returns the counts that the threads have posted: replies by status, failures by kind.
    pub fn requests(&self) -> Requests {
        let mut sum = Requests::default();
        self.threads.iter().flatten().for_each(|thread| sum.add(&thread.requests));
        sum
    }

    /// Returns the share of the run that is over, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let share = match self.stop {
            Stop::Requests(n) => (self.completed + self.failed) as f64 / n.max(1) as f64,
            Stop::Duration(whole) => self.elapsed.as_secs_f64() / whole.as_secs_f64().max(1e-9),
        };
        share.clamp(0.0, 1.0)
    }
}

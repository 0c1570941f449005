//! Measures the time that each request spends in each step. The times are measured only if `timing`
//! of `[server]` is on, or if a log or a trace contains such times.
//!
//! A request is in exactly one step at any time. If a request enters a step several times (for
//! example, to wait for the body), the times of the step add up.
//!
//! Entering a step reads the clock. Without a measurement, entering a step only tests a null
//! pointer.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// A step in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From the first byte of the request head to its last byte.
    Head,
    /// Determining the client, the site and the route.
    Route,
    /// Waiting for the request's body.
    Body,
    /// Waiting for a connection to a backend or for a process.
    Connect,
    /// Processing by the origin, until the head of its reply arrives.
    Origin,
    /// From the head of the reply to its last byte.
    Reply,
}

impl Step {
    /// All steps, in order.
    pub const ALL: [Self; 6] =
        [Self::Head, Self::Route, Self::Body, Self::Connect, Self::Origin, Self::Reply];

    /// Returns the name of the step in `Server-Timing` and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Route => "route",
            Self::Body => "body",
            Self::Connect => "connect",
            Self::Origin => "origin",
            Self::Reply => "reply",
        }
    }
}

/// The steps of one request.
pub struct Steps {
    current: Step,
    since: Instant,
    took: [Option<Duration>; Step::ALL.len()],
    /// Each step with its start, if the request may be traced.
    marks: Option<Vec<(Step, Instant)>>,
}

/// Maximum number of recorded starts of steps. The last recorded step includes all later steps.
const MOST_MARKS: usize = 32;

impl Steps {
    /// Starts to measure a request whose head begins to arrive.
    pub fn begin() -> Self {
        Self { current: Step::Head, since: Instant::now(), took: Default::default(), marks: None }
    }

    /// Records the start of each step from now on.
    fn record(&mut self) {
        self.marks = Some(vec![(self.current, self.since)]);
    }

    /// Returns the steps with their starts. The result is empty if the starts were not recorded.
    pub fn marks(&self) -> &[(Step, Instant)] {
        self.marks.as_deref().unwrap_or_default()
    }

    /// Enters another step. Returns the previous step.
    #[inline(never)]
    pub fn enter(&mut self, step: Step) -> Step {
        let now = Instant::now();
        let took = self.took[self.current as usize].get_or_insert_default();
        *took += now.duration_since(self.since);
        self.since = now;
        if let Some(marks) = &mut self.marks
            && marks.len() < MOST_MARKS
            && step != self.current
        {
            marks.push((step, now));
        }
        std::mem::replace(&mut self.current, step)
    }

    /// Enters the step `to`, if the request is still in `from`.
    pub fn go_back(&mut self, from: Step, to: Step) {
        if self.current == from {
            self.enter(to);
        }
    }

    /// Appends the value of a `Server-Timing` field (<https://www.w3.org/TR/server-timing/>): the
    /// finished steps, in milliseconds.
    pub fn append_value(&self, out: &mut String) {
        for (step, took) in self.ended() {
            let comma = if out.is_empty() { "" } else { ", " };
            let millis = took.as_secs_f64() * 1e3;
            let _ = write!(out, "{comma}{};dur={millis:.3}", step.name());
        }
    }

    /// Returns the time of the steps `Connect` and `Origin`: from the start of the wait for a
    /// connection until the head of the origin's reply arrives.
    pub fn upstream_time(&self) -> Duration {
        let of = |step: Step| self.took[step as usize].unwrap_or_default();
        of(Step::Connect) + of(Step::Origin)
    }

    /// Returns the time of the step `Connect`: the wait for a process or a connection.
    pub fn queue_time(&self) -> Duration {
        self.took[Step::Connect as usize].unwrap_or_default()
    }

    /// Returns the finished steps with their durations.
    pub fn ended(&self) -> impl Iterator<Item = (Step, Duration)> {
        Step::ALL.into_iter().zip(self.took).filter_map(|(step, took)| Some((step, took?)))
    }
}

/// Measures the steps of a connection's current request. Nothing is measured before
/// [`StepTimer::begin`].
#[derive(Default)]
pub struct StepTimer(RefCell<Option<Box<Steps>>>);

impl StepTimer {
    /// Starts to measure a request whose head begins to arrive.
    pub fn begin(&self) {
        *self.0.borrow_mut() = Some(Box::new(Steps::begin()));
    }

    /// Records the start of each step of the current request from now on.
    pub fn record(&self) {
        if let Some(steps) = &mut *self.0.borrow_mut() {
            steps.record();
        }
    }

    /// Enters another step. Returns the previous step, or `None` if no request is measured.
    #[inline]
    pub fn enter(&self, step: Step) -> Option<Step> {
        self.0.borrow_mut().as_mut().map(|steps| steps.enter(step))
    }

    /// Returns to the step `to`, if the request is still in `from`.
    pub fn go_back(&self, from: Step, to: Option<Step>) {
        if let (Some(steps), Some(to)) = (&mut *self.0.borrow_mut(), to) {
            steps.go_back(from, to);
        }
    }

    /// Returns the value of a `Server-Timing` field. Returns `None` if no request is measured.
    pub fn value(&self) -> Option<String> {
        let steps = self.0.borrow();
        let mut value = String::new();
        steps.as_ref()?.append_value(&mut value);
        Some(value)
    }

    /// Stops the measurement and returns the steps. Returns `None` if no request is measured.
    pub fn take(&self) -> Option<Box<Steps>> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_are_listed_in_order() {
        let mut steps = Steps::begin();
        assert_eq!(steps.enter(Step::Origin), Step::Head);
        let before = steps.enter(Step::Body);
        steps.go_back(Step::Body, before);
        assert_eq!(steps.current, Step::Origin);
        steps.enter(Step::Body);
        // The reply begins before the whole body has arrived.
        steps.enter(Step::Reply);
        steps.go_back(Step::Body, before);
        assert_eq!(steps.current, Step::Reply);
        let ended: Vec<_> = steps.ended().map(|(step, _)| step).collect();
        assert_eq!(ended, [Step::Head, Step::Body, Step::Origin]);
        let mut value = String::new();
        steps.append_value(&mut value);
        let names: Vec<_> = value.split(", ").map(|part| part.split(';').next().unwrap()).collect();
        assert_eq!(names, ["head", "body", "origin"], "{value}");
    }
}

//! Where a request spends its time, measured only where `timing` of `[server]` is on.
//!
//! At each moment a request is in one step. A step that is entered again (a body is waited for more
//! than once) adds up.
//!
//! Entering a step reads the clock; with `timing` off it tests a null pointer. A limit that a
//! request hits travels in its `Fault` to the one place that counts it.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// A step in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// From the first byte of the request head to its last.
    Head,
    /// Finding the client, the site and the route.
    Route,
    /// Waiting for the request's body.
    Body,
    /// Waiting for a connection to a backend, or for a process.
    Connect,
    /// The origin at work, until the head of its reply is there.
    Origin,
    /// From the head of the reply to its last byte.
    Reply,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Head, Self::Route, Self::Body, Self::Connect, Self::Origin, Self::Reply];

    /// What fields and metrics call it.
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
}

impl Steps {
    /// A request whose head begins to come in now.
    pub fn begin() -> Self {
        Self { current: Step::Head, since: Instant::now(), took: Default::default() }
    }

    /// Another step begins; the one that it follows.
    #[inline(never)]
    pub fn enter(&mut self, step: Step) -> Step {
        let now = Instant::now();
        let took = self.took[self.current as usize].get_or_insert_default();
        *took += now.duration_since(self.since);
        self.since = now;
        std::mem::replace(&mut self.current, step)
    }

    /// As [`Steps::enter`], if `from` is what the request is in still.
    pub fn go_back(&mut self, from: Step, to: Step) {
        if self.current == from {
            self.enter(to);
        }
    }

    /// Appends the value of a `Server-Timing` field (<https://www.w3.org/TR/server-timing/>): the
    /// steps that have ended, in milliseconds.
    pub fn append_value(&self, out: &mut String) {
        for (step, took) in self.ended() {
            let comma = if out.is_empty() { "" } else { ", " };
            let millis = took.as_secs_f64() * 1e3;
            let _ = write!(out, "{comma}{};dur={millis:.3}", step.name());
        }
    }

    /// The steps that have ended, and how long they took.
    pub fn ended(&self) -> impl Iterator<Item = (Step, Duration)> {
        Step::ALL.into_iter().zip(self.took).filter_map(|(step, took)| Some((step, took?)))
    }
}

/// Where the request under way spends its time, if that is measured.
#[derive(Default)]
pub struct StepTimer(RefCell<Option<Box<Steps>>>);

impl StepTimer {
    /// The head of a request begins to come in.
    pub fn begin(&self) {
        *self.0.borrow_mut() = Some(Box::new(Steps::begin()));
    }

    /// The request comes to another step; the one before.
    #[inline]
    pub fn enter(&self, step: Step) -> Option<Step> {
        self.0.borrow_mut().as_mut().map(|steps| steps.enter(step))
    }

    /// The request is in the step `to` again, if it is in `from`.
    pub fn go_back(&self, from: Step, to: Option<Step>) {
        if let (Some(steps), Some(to)) = (&mut *self.0.borrow_mut(), to) {
            steps.go_back(from, to);
        }
    }

    /// The value of a `Server-Timing` field; `None` where nothing is measured.
    pub fn value(&self) -> Option<String> {
        let steps = self.0.borrow();
        let mut value = String::new();
        steps.as_ref()?.append_value(&mut value);
        Some(value)
    }

    /// Measures no more; what was measured.
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
        // The reply has begun while the body still came.
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

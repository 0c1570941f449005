//! The streams of a connection, and the request that each has taken up.

use std::collections::VecDeque;
use std::time::Instant;

/// The streams of a connection by their state.
#[derive(Debug)]
pub struct Streams {
    pub all: Vec<Stream>,
    pub idle: Vec<usize>,
    /// In the order in which they are to be started.
    pub waiting: VecDeque<usize>,
    resting: usize,
    pub under_way: usize,
}

/// A stream and the request that it has taken up.
#[derive(Clone, Debug)]
pub struct Stream {
    pub state: State,
    /// It has had its first request.
    pub begun: bool,
    /// From when its latency counts.
    pub due: Instant,
    /// When a resting request begins to wait; when one that does not rest has failed.
    pub until: Instant,
    /// The connection's reads when it was started.
    pub reads: u64,
    /// It was started before, on a connection that has ended.
    pub is_retry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    /// Its request is not due yet.
    Resting,
    /// Its request waits for a connection with room for it.
    Waiting,
    UnderWay,
}

impl Streams {
    pub fn new(count: usize, now: Instant) -> Self {
        let idle = Stream {
            state: State::Idle,
            begun: false,
            due: now,
            until: now,
            reads: 0,
            is_retry: false,
        };
        Self {
            all: vec![idle; count],
            idle: (0..count).rev().collect(),
            waiting: VecDeque::new(),
            resting: 0,
            under_way: 0,
        }
    }

    /// Streams whose requests want room that they do not have yet.
    pub fn claims(&self) -> usize {
        self.waiting.len() + self.resting
    }

    pub fn is_idle(&self) -> bool {
        self.idle.len() == self.all.len()
    }

    /// The stream's request waits, and has failed at `deadline`.
    pub fn wait(&mut self, stream: usize, deadline: Instant) {
        (self.all[stream].state, self.all[stream].until) = (State::Waiting, deadline);
        self.waiting.push_back(stream);
    }

    /// The stream's request is to wait from `begin`.
    pub fn rest(&mut self, stream: usize, begin: Instant) {
        (self.all[stream].state, self.all[stream].until) = (State::Resting, begin);
        self.resting += 1;
    }

    /// Requests that are due wait from now on.
    pub fn end_rest(&mut self, now: Instant, deadline: Instant) {
        if self.resting == 0 {
            return;
        }
        for stream in 0..self.all.len() {
            if self.all[stream].state == State::Resting && self.all[stream].until <= now {
                self.resting -= 1;
                self.wait(stream, deadline);
            }
        }
    }

    /// Requests that are not due yet are given up.
    pub fn end_resting(&mut self) {
        for stream in 0..self.all.len() {
            if self.all[stream].state == State::Resting {
                self.release(stream);
            }
        }
    }

    /// The request of a stream that waits or is under way has come to an end.
    pub fn release(&mut self, stream: usize) {
        match self.all[stream].state {
            State::Waiting => self.waiting.retain(|&other| other != stream),
            State::UnderWay => self.under_way -= 1,
            State::Resting => self.resting -= 1,
            State::Idle => return,
        }
        self.all[stream].state = State::Idle;
        self.idle.push(stream);
    }
}

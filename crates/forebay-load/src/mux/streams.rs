//! The streams of a connection, each with the request that it has taken.

use std::collections::VecDeque;
use std::time::Instant;

/// The streams of a connection, grouped by state.
#[derive(Debug)]
pub struct Streams {
    pub all: Vec<MuxStream>,
    pub idle: Vec<usize>,
    /// In the order of their start.
    pub waiting: VecDeque<usize>,
    resting: usize,
    pub under_way: usize,
}

/// A stream and its current request.
#[derive(Clone, Debug)]
pub struct MuxStream {
    pub state: MuxStreamState,
    /// Index of the request.
    pub request: usize,
    /// The stream has had its first request in this turn.
    pub begun: bool,
    /// Start of the request's latency.
    pub due: Instant,
    /// In state `Resting`, the time when the request is due; otherwise its timeout.
    pub until: Instant,
    /// Value of the connection's `reads` at the start of the request.
    pub reads: u64,
    /// The request was started before, on a connection that has ended.
    pub is_retry: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuxStreamState {
    Idle,
    /// The request is not due yet.
    Resting,
    /// The request waits for a connection with capacity.
    Waiting,
    UnderWay,
}

impl Streams {
    pub fn new(count: usize, now: Instant) -> Self {
        let idle = MuxStream {
            state: MuxStreamState::Idle,
            request: 0,
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

    /// Returns the number of streams whose requests need capacity that they do not have yet.
    pub fn claims(&self) -> usize {
        self.waiting.len() + self.resting
    }

    pub fn is_idle(&self) -> bool {
        self.idle.len() == self.all.len()
    }

    /// Queues the stream's request. The request times out at `deadline`.
    pub fn wait(&mut self, stream: usize, deadline: Instant) {
        (self.all[stream].state, self.all[stream].until) = (MuxStreamState::Waiting, deadline);
        self.waiting.push_back(stream);
    }

    /// Delays the stream's request until `begin`.
    pub fn rest(&mut self, stream: usize, begin: Instant) {
        (self.all[stream].state, self.all[stream].until) = (MuxStreamState::Resting, begin);
        self.resting += 1;
    }

    /// Queues the requests that are due.
    pub fn end_rest(&mut self, now: Instant, deadline: Instant) {
        if self.resting == 0 {
            return;
        }
        for stream in 0..self.all.len() {
            if self.all[stream].state == MuxStreamState::Resting && self.all[stream].until <= now {
                self.resting -= 1;
                self.wait(stream, deadline);
            }
        }
    }

    /// Drops the requests that are not due yet.
    pub fn end_resting(&mut self) {
        for stream in 0..self.all.len() {
            if self.all[stream].state == MuxStreamState::Resting {
                self.release(stream);
            }
        }
    }

    /// Ends the request of a stream.
    pub fn release(&mut self, stream: usize) {
        match self.all[stream].state {
            MuxStreamState::Waiting => self.waiting.retain(|&other| other != stream),
            MuxStreamState::UnderWay => self.under_way -= 1,
            MuxStreamState::Resting => self.resting -= 1,
            MuxStreamState::Idle => return,
        }
        self.all[stream].state = MuxStreamState::Idle;
        self.idle.push(stream);
    }
}

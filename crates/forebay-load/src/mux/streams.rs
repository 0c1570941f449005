//! Streams of a connection, each with the request that it has taken.

use std::collections::VecDeque;
use std::time::Instant;

/// Streams of a connection, grouped by state.
#[derive(Debug)]
pub struct Streams {
    pub all: Vec<MuxStream>,
    pub idle: Vec<usize>,
    /// Streams whose requests are due. The request of the first stream starts next.
    pub waiting: VecDeque<usize>,
    resting: usize,
    pub under_way: usize,
}

/// Stream and its current request.
#[derive(Clone, Debug)]
pub struct MuxStream {
    pub state: MuxStreamState,
    /// Index of the request.
    pub request: usize,
    /// True if the stream has taken its first request in this turn.
    pub begun: bool,
    /// Time at which the request was due. Its latency counts from this time.
    pub due: Instant,
    /// In state `Resting`, the time at which the request is due; otherwise, the end of its time
    /// limit.
    pub until: Instant,
    /// Value of the connection's `reads` when the request was started.
    pub reads: u64,
    /// True if the request was started before, on a connection that has ended.
    pub is_retry: bool,
    /// True if the stream rests after a request that could not be encoded.
    pub is_unsendable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuxStreamState {
    Idle,
    /// The request of the stream is not due yet.
    Resting,
    /// The request is due and waits for a connection with capacity.
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
            is_unsendable: false,
        };
        Self {
            all: vec![idle; count],
            idle: (0..count).rev().collect(),
            waiting: VecDeque::new(),
            resting: 0,
            under_way: 0,
        }
    }

    /// Returns the number of streams whose requests have not started yet.
    pub fn claims(&self) -> usize {
        self.waiting.len() + self.resting
    }

    pub fn is_idle(&self) -> bool {
        self.idle.len() == self.all.len()
    }

    /// Queues the stream's request, whose time limit ends at `deadline`.
    pub fn wait(&mut self, stream: usize, deadline: Instant) {
        (self.all[stream].state, self.all[stream].until) = (MuxStreamState::Waiting, deadline);
        self.waiting.push_back(stream);
    }

    /// Lets the stream's request wait until `begin`.
    pub fn rest(&mut self, stream: usize, begin: Instant) {
        (self.all[stream].state, self.all[stream].until) = (MuxStreamState::Resting, begin);
        self.resting += 1;
    }

    /// Queues the requests that are due by now. If a stream rests because its request could not be
    /// encoded, it becomes idle.
    pub fn end_rest(&mut self, now: Instant, deadline: Instant) {
        if self.resting == 0 {
            return;
        }
        for stream in 0..self.all.len() {
            if self.all[stream].state == MuxStreamState::Resting && self.all[stream].until <= now {
                if self.all[stream].is_unsendable {
                    self.release(stream);
                    continue;
                }
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

    /// Makes a stream idle again after the end of its request.
    pub fn release(&mut self, stream: usize) {
        match self.all[stream].state {
            MuxStreamState::Waiting => self.waiting.retain(|&other| other != stream),
            MuxStreamState::UnderWay => self.under_way -= 1,
            MuxStreamState::Resting => self.resting -= 1,
            MuxStreamState::Idle => return,
        }
        self.all[stream].is_unsendable = false;
        self.all[stream].state = MuxStreamState::Idle;
        self.idle.push(stream);
    }
}

//! HTTP/2 connection as server or client: converts bytes to events, and calls to bytes.
//!
//! The caller passes its input to [`Connection::receive`] until no event is returned. When it has
//! nothing else to do, it writes [`Connection::output`], which collects the frames of all streams.
//! Received data is not copied: an event contains a range of the input. [`Connection::send_data`]
//! accepts as much data as windows, priorities and the size of the output allow.
//! [`Connection::poll_writable`] returns the next stream that may send.
//!
//! The connection has no clock; the caller passes the time. [`Config`] limits the memory of a
//! stream and a connection, and a budget (`budget.rs`) limits the cost of a peer.

mod block;
pub mod budget;
mod config;
mod control;
mod data;
mod event;
mod flow;
mod identifiers;
mod output;
mod past;
mod queue;
mod receive;
mod round_trip;
mod send;
mod streams;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::{Abuse, ErrorCode, Http2Error, Rule};
use super::frame::{self, PREFACE, settings};
use super::hpack::{Decoder, Encoder};
use super::{Head, Priority};

use block::Fragments;
use budget::Budget;
use flow::{DEFAULT_WINDOW, Inbound, LARGEST_WINDOW};
use identifiers::Identifiers;
use output::Output;
use past::PastStreams;
use queue::Queue;
use round_trip::RoundTrip;
use streams::{Stream, Streams};

pub use config::Config;
pub use event::{Cause, Event, ReceivedEvent};
pub use send::{RequestPseudo, SendError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// Settings of the peer, its acknowledgement of ours, and its GOAWAY.
#[derive(Clone, Copy, Debug)]
struct Peer {
    streams: u32,
    window: u32,
    frame: usize,
    extended_connect: bool,
    is_draining: bool,
    /// Number of our SETTINGS frames that it has not acknowledged.
    settings_unacknowledged: u32,
}

impl Peer {
    /// Takes an acknowledgement of our settings. Returns false if none was expected.
    fn acknowledge(&mut self) -> bool {
        let is_expected = self.settings_unacknowledged > 0;
        if is_expected {
            self.settings_unacknowledged -= 1;
        }
        is_expected
    }
}

/// State of the input: between frames, or within a frame whose payload is processed as it arrives.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// The preface is incomplete.
    Preface,
    /// The next frame must be SETTINGS.
    FirstFrame,
    Frames,
    Data(DataFrame),
    Failed,
}

/// DATA frame that has arrived partly.
#[derive(Clone, Copy, Debug)]
struct DataFrame {
    stream: u32,
    left: u32,
    padding: u32,
    end: bool,
}

/// HTTP/2 connection. See the module documentation.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    config: Box<Config>,
    reading: Reading,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// Number of bytes by which the windows of `streams` exceed their limit.
    lent: u32,
    identifiers: Identifiers,
    past: PastStreams,
    fragments: Fragments,
    events: VecDeque<Event>,
    /// PRIORITY_UPDATE for streams that are not open yet.
    priorities: VecDeque<(u32, Priority)>,
    #[expect(clippy::vec_box, reason = "events carry them boxed")]
    heads: Vec<Box<Head>>,
    inbound: Inbound,
    send_window: i64,
    peer: Peer,
    round_trip: RoundTrip,
    queue: Queue,
    budget: Budget,
    out: Output,
}

impl Connection {
    /// Creates the server's side. Its settings are in the output.
    pub fn server(config: Config) -> Self {
        let mut connection = Self::new(Role::Server, Reading::Preface, config);
        let config = &connection.config;
        let window = connection.config.stream_window;
        let mut pairs = vec![
            (settings::MAX_CONCURRENT_STREAMS, config.streams),
            (settings::MAX_HEADER_LIST_SIZE, config.list.size as u32),
            (settings::NO_RFC7540_PRIORITIES, 1),
        ];
        if config.head.extended_connect {
            pairs.push((settings::ENABLE_CONNECT_PROTOCOL, 1));
        }
        connection.greet(pairs, window);
        connection
    }

    /// Creates the client's side. Preface and settings are in the output.
    pub fn client(config: Config) -> Self {
        let mut connection = Self::new(Role::Client, Reading::FirstFrame, config);
        let window = connection.config.stream_window;
        connection.out.bytes.extend_from_slice(PREFACE);
        let list = connection.config.list.size as u32;
        let pairs = vec![(settings::ENABLE_PUSH, 0), (settings::MAX_HEADER_LIST_SIZE, list)];
        connection.greet(pairs, window);
        connection
    }

    fn new(role: Role, reading: Reading, mut config: Config) -> Self {
        for window in [
            &mut config.stream_window,
            &mut config.stream_window_limit,
            &mut config.connection_window,
            &mut config.connection_window_limit,
        ] {
            *window = (*window).clamp(DEFAULT_WINDOW, LARGEST_WINDOW as u32);
        }
        config.stream_window_limit = config.stream_window_limit.max(config.stream_window);
        let most = LARGEST_WINDOW as u32 - config.stream_window_limit;
        config.shared_window_limit = config.shared_window_limit.min(most);
        Self {
            role,
            reading,
            decoder: Decoder::default(),
            encoder: Encoder::new(config.encoder_table),
            streams: Streams::default(),
            lent: 0,
            identifiers: Identifiers::new(),
            past: PastStreams::default(),
            fragments: Fragments::default(),
            events: VecDeque::new(),
            priorities: VecDeque::new(),
            heads: Vec::new(),
            inbound: Inbound::new(DEFAULT_WINDOW),
            send_window: DEFAULT_WINDOW.into(),
            peer: Peer {
                streams: if role == Role::Client { 100 } else { 0 },
                window: DEFAULT_WINDOW,
                frame: frame::DEFAULT_FRAME,
                extended_connect: false,
                is_draining: false,
                settings_unacknowledged: 1,
            },
            round_trip: RoundTrip::default(),
            queue: Queue::default(),
            budget: Budget::default(),
            out: Output::default(),
            config: Box::new(config),
        }
    }

    fn greet(&mut self, mut pairs: Vec<(u16, u32)>, window: u32) {
        if window != DEFAULT_WINDOW {
            pairs.push((settings::INITIAL_WINDOW_SIZE, window));
        }
        frame::settings_frame(&mut self.out.bytes, &pairs);
        let increment = self.inbound.open_to(self.config.connection_window);
        if increment > 0 {
            frame::window_update(&mut self.out.bytes, 0, increment);
        }
    }

    /// Takes a head of an event back, to reuse its memory.
    pub fn recycle(&mut self, mut head: Box<Head>) {
        const KEPT: usize = 32;
        const LARGEST: usize = 8 * 1024;
        if self.heads.len() < KEPT && head.fields.allocated() <= LARGEST {
            head.clear();
            self.heads.push(head);
        }
    }

    /// Returns the bytes to write, of all streams.
    pub fn output(&self) -> &[u8] {
        self.out.unwritten()
    }

    /// Reports that this many bytes of the output were written.
    pub fn wrote(&mut self, len: usize) {
        self.out.wrote(len);
    }

    /// Returns true if input is accepted. If the peer does not read our output, [`Self::receive`]
    /// accepts nothing.
    pub fn can_receive(&self) -> bool {
        self.out.len() < self.config.output_limit
    }

    /// Returns true if a header block is incomplete.
    pub fn is_within_block(&self) -> bool {
        self.fragments.open().is_some()
    }

    /// Returns the number of streams that are open or have unconsumed data.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns true if one side has sent GOAWAY and no stream is left. The connection may be closed
    /// after the output is written.
    pub fn is_finished(&self) -> bool {
        matches!(self.reading, Reading::Failed) || self.streams.is_empty() && self.is_going_away()
    }

    /// Returns true if one side has sent GOAWAY.
    fn is_going_away(&self) -> bool {
        self.identifiers.is_limited() || self.peer.is_draining
    }

    /// Returns true if the peer accepts extended CONNECT (client).
    pub fn peer_takes_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Sends a PING unless one is active. Its reply measures the round trip and shows that the peer
    /// is alive.
    pub fn ping(&mut self, now: Instant) {
        if self.round_trip.start(now) {
            frame::ping(&mut self.out.bytes, control::MEASURE, false);
        }
    }

    /// Returns the time of the PING without a reply, if there is one.
    pub fn unanswered_ping(&self) -> Option<Instant> {
        self.round_trip.unanswered()
    }

    /// Returns the fastest measured round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.fastest()
    }

    /// Returns a stream that has had data but no window for as long as `limit` returns for its
    /// identifier. Small window updates do not restart the time: the stream must have sent 4 KiB.
    pub fn stalled(&self, now: Instant, limit: impl Fn(u32) -> Duration) -> Option<u32> {
        let is_stalled = |stream: &&Stream| {
            stream
                .stall
                .is_some_and(|stall| now.saturating_duration_since(stall.since) >= limit(stream.id))
        };
        self.streams.iter().find(is_stalled).map(|stream| stream.id)
    }

    /// Frees memory that an idle connection does not need: all buffers, and the unused part of the
    /// compression tables.
    pub fn shrink(&mut self) {
        self.decoder.shrink();
        self.encoder.shrink();
        self.streams.shrink();
        self.queue.shrink();
        self.events.shrink_to_fit();
        self.past.shrink();
        self.priorities.shrink_to_fit();
        self.heads = Vec::new();
        self.fragments.shrink();
        self.out.shrink();
    }

    /// Returns the number of bytes that the connection uses, including itself.
    pub fn allocated(&self) -> usize {
        let heads: usize = self.heads.iter().map(|head| head.fields.allocated()).sum();
        size_of::<Self>()
            + size_of::<Config>()
            + self.decoder.allocated()
            + self.encoder.allocated()
            + self.streams.allocated()
            + self.queue.allocated()
            + self.events.capacity() * size_of::<Event>()
            + self.past.allocated()
            + self.priorities.capacity() * size_of::<(u32, Priority)>()
            + heads
            + self.heads.capacity() * size_of::<Box<Head>>()
            + self.heads.len() * size_of::<Head>()
            + self.fragments.allocated()
            + self.out.bytes.capacity()
    }

    /// Pays for a frame. A peer without budget loses its connection.
    fn charge(&mut self, price: u32, abuse: Abuse, now: Instant) -> Result<(), Http2Error> {
        if self.budget.spend(price, now) {
            return Ok(());
        }
        Err(Http2Error::connection(Rule::Abuse(abuse)))
    }

    /// Removes a stream that both sides have ended, after all its data is consumed.
    fn close_if_done(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() && stream.inbound.held() == 0 {
            self.budget.earn(budget::STREAM_DONE);
            self.remove(id);
        }
    }

    /// Handles the end of one half of a stream.
    fn ended(&mut self, id: u32) {
        if self.streams.close(id) {
            self.close_if_done(id);
        }
    }

    /// Removes a stream, and frees its part of the connection's window.
    fn remove(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(id)?;
        self.inbound.consume(stream.inbound.held());
        self.lent -= stream.inbound.beyond(self.config.stream_window_limit);
        if stream.is_queued {
            self.queue.remove(id, stream.priority);
        }
        self.past.add_closed(id);
        Some(stream)
    }

    /// Resets a stream and removes it. Its later frames are dropped.
    fn reset_with(&mut self, id: u32, code: ErrorCode) {
        frame::reset(&mut self.out.bytes, id, code);
        self.remove(id);
        self.past.add_reset(id);
    }

    /// Announces the consumed part of the connection's window.
    fn update_window(&mut self, now: Instant) {
        let limit = self.config.connection_window_limit;
        if let Some(increment) = self.inbound.update(now, self.round_trip.fastest(), limit) {
            frame::window_update(&mut self.out.bytes, 0, increment);
            self.measure(now);
        }
    }

    /// Measures the round trip unless it is known.
    fn measure(&mut self, now: Instant) {
        if self.round_trip.fastest().is_none() {
            self.ping(now);
        }
    }
}

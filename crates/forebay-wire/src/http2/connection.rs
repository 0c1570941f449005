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

pub mod budget;
mod config;
mod control;
mod data;
mod event;
mod flow;
mod queue;
mod receive;
mod send;
mod streams;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::error::{Abuse, ErrorCode, Http2Error, Rule};
use super::frame::{self, PREFACE, settings};
use super::hpack::{Decoder, Encoder};
use super::{Head, Priority};

use budget::Budget;
use flow::{DEFAULT_WINDOW, Inbound, LARGEST_WINDOW};
use queue::Queue;
use streams::{Stream, Streams};

pub use config::Config;
pub use event::{Cause, Event, Step};
pub use send::{RequestPseudo, SendError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// Settings of the peer.
#[derive(Clone, Copy, Debug)]
struct PeerSettings {
    streams: u32,
    window: u32,
    frame: usize,
    extended_connect: bool,
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

/// Header block that continues in CONTINUATION frames.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    stream: u32,
    end_stream: bool,
    frames: usize,
}

/// Number of closed streams that are remembered, to distinguish their frames from those of streams
/// that were never open.
const CLOSED: usize = 16;

/// HTTP/2 connection. See the module documentation.
#[derive(Debug)]
// More than 20 fields: not divided yet. Each frame uses most of them, so a division has to be
// measured with `make instructions`.
pub struct Connection {
    role: Role,
    config: Box<Config>,
    reading: Reading,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// Number of open streams that the client opened.
    active: u32,
    /// Number of bytes by which the windows of `streams` exceed their limit.
    lent: u32,
    /// The highest stream that the client has opened.
    last_opened: u32,
    /// Streams that we have reset recently. Their frames are dropped.
    reset: VecDeque<u32>,
    /// The highest stream that was removed from `reset`.
    reset_forgotten: u32,
    /// Streams that were closed recently, as a ring buffer, and its next position.
    closed: [u32; CLOSED],
    next_closed: usize,
    /// The received part of a header block.
    block: Vec<u8>,
    open_block: Option<OpenBlock>,
    events: VecDeque<Event>,
    /// PRIORITY_UPDATE for streams that are not open yet.
    priorities: VecDeque<(u32, Priority)>,
    #[expect(clippy::vec_box, reason = "events carry them boxed")]
    heads: Vec<Box<Head>>,
    inbound: Inbound,
    send_window: i64,
    peer: PeerSettings,
    settings_unacknowledged: u32,
    /// Start of our active PING, and the fastest measured round trip.
    ping: Option<Instant>,
    round_trip: Option<Duration>,
    queue: Queue,
    /// The stream that `poll_writable` returned last.
    turn: u32,
    budget: Budget,
    /// Streams above these limits are not accepted: `accept_to` for the peer's streams,
    /// `peer_accepts_to` for ours.
    accept_to: u32,
    peer_accepts_to: u32,
    is_draining: bool,
    out: Vec<u8>,
    /// Number of bytes at the start of `out` that are written.
    written: usize,
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
        connection.out.extend_from_slice(PREFACE);
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
            active: 0,
            lent: 0,
            last_opened: 0,
            reset: VecDeque::new(),
            reset_forgotten: 0,
            closed: [0; CLOSED],
            next_closed: 0,
            block: Vec::new(),
            open_block: None,
            events: VecDeque::new(),
            priorities: VecDeque::new(),
            heads: Vec::new(),
            inbound: Inbound::new(DEFAULT_WINDOW),
            send_window: DEFAULT_WINDOW.into(),
            peer: PeerSettings {
                streams: if role == Role::Client { 100 } else { 0 },
                window: DEFAULT_WINDOW,
                frame: frame::DEFAULT_FRAME,
                extended_connect: false,
            },
            settings_unacknowledged: 1,
            ping: None,
            round_trip: None,
            queue: Queue::default(),
            turn: 0,
            budget: Budget::default(),
            accept_to: u32::MAX,
            peer_accepts_to: u32::MAX,
            is_draining: false,
            out: Vec::new(),
            written: 0,
            config: Box::new(config),
        }
    }

    fn greet(&mut self, mut pairs: Vec<(u16, u32)>, window: u32) {
        if window != DEFAULT_WINDOW {
            pairs.push((settings::INITIAL_WINDOW_SIZE, window));
        }
        frame::settings_frame(&mut self.out, &pairs);
        let increment = self.inbound.open_to(self.config.connection_window);
        if increment > 0 {
            frame::window_update(&mut self.out, 0, increment);
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
        &self.out[self.written..]
    }

    /// Reports that this many bytes of the output were written.
    pub fn wrote(&mut self, len: usize) {
        self.written = self.written.saturating_add(len).min(self.out.len());
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        } else if self.written > self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Returns true if input is accepted. If the peer does not read our output, [`Self::receive`]
    /// accepts nothing.
    pub fn can_receive(&self) -> bool {
        self.output().len() < self.config.output_limit
    }

    /// Returns true if a header block is incomplete.
    pub fn is_within_block(&self) -> bool {
        self.open_block.is_some()
    }

    /// Returns the number of streams that are open or have unconsumed data.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns true if one side has sent GOAWAY and no stream is left. The connection may be closed
    /// after the output is written.
    pub fn is_finished(&self) -> bool {
        matches!(self.reading, Reading::Failed)
            || self.streams.is_empty() && (self.accept_to < u32::MAX || self.is_draining)
    }

    /// Returns true if the peer accepts extended CONNECT (client).
    pub fn peer_takes_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Sends a PING unless one is active. Its reply measures the round trip and shows that the peer
    /// is alive.
    pub fn ping(&mut self, now: Instant) {
        if self.ping.is_none() {
            self.ping = Some(now);
            frame::ping(&mut self.out, control::MEASURE, false);
        }
    }

    /// Returns the time of the PING without a reply, if there is one.
    pub fn unanswered_ping(&self) -> Option<Instant> {
        self.ping
    }

    /// Returns the fastest measured round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
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
        self.reset.shrink_to_fit();
        self.priorities.shrink_to_fit();
        self.heads = Vec::new();
        if self.open_block.is_none() {
            self.block = Vec::new();
        }
        self.out.drain(..self.written);
        self.written = 0;
        self.out.shrink_to_fit();
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
            + self.reset.capacity() * size_of::<u32>()
            + self.priorities.capacity() * size_of::<(u32, Priority)>()
            + heads
            + self.heads.capacity() * size_of::<Box<Head>>()
            + self.heads.len() * size_of::<Head>()
            + self.block.capacity()
            + self.out.capacity()
    }

    /// Pays for a frame. A peer without budget loses its connection.
    fn charge(&mut self, price: u32, abuse: Abuse, now: Instant) -> Result<(), Http2Error> {
        if self.budget.spend(price, now) {
            return Ok(());
        }
        Err(Http2Error::connection(Rule::Abuse(abuse)))
    }

    /// Returns true if the client of this connection can open `stream`.
    fn is_client_stream(stream: u32) -> bool {
        !stream.is_multiple_of(2)
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
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() {
            self.active -= 1;
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
        self.closed[self.next_closed] = id;
        self.next_closed = (self.next_closed + 1) % CLOSED;
        Some(stream)
    }

    /// Resets a stream and removes it. Its later frames are dropped.
    fn reset_with(&mut self, id: u32, code: ErrorCode) {
        const REMEMBERED: usize = 64;
        frame::reset(&mut self.out, id, code);
        if let Some(stream) = self.remove(id)
            && !stream.is_closed()
        {
            self.active -= 1;
        }
        if self.reset.len() == REMEMBERED {
            let forgotten = self.reset.pop_front().unwrap_or_default();
            self.reset_forgotten = self.reset_forgotten.max(forgotten);
        }
        self.reset.push_back(id);
    }

    /// Returns true if we have reset this stream and still remember it.
    fn was_reset(&self, id: u32) -> bool {
        id <= self.reset_forgotten || self.reset.contains(&id)
    }

    /// Announces the consumed part of the connection's window.
    fn update_window(&mut self, now: Instant) {
        let limit = self.config.connection_window_limit;
        if let Some(increment) = self.inbound.update(now, self.round_trip, limit) {
            frame::window_update(&mut self.out, 0, increment);
            self.measure(now);
        }
    }

    /// Measures the round trip unless it is known.
    fn measure(&mut self, now: Instant) {
        if self.round_trip.is_none() {
            self.ping(now);
        }
    }
}

//! A connection, server or client: bytes in, events out; calls in, bytes out.
//!
//! The caller gives what it read to [`Connection::receive`], again and again until an event comes
//! no more, and writes [`Connection::output`], in which the frames of all streams gather, once it
//! has nothing else to do. Data is not copied on its way in: an event names a range of the input.
//! On its way out [`Connection::send_data`] takes what windows, priorities and the size of the
//! output allow; [`Connection::poll_writable`] names the stream whose turn it is to go on.
//!
//! There is no clock: where time matters the caller passes it. What a stream and a connection may
//! hold is bounded by [`Config`]; what a peer may cost us, by a budget (`budget.rs`).

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

/// What the peer's settings say.
#[derive(Clone, Copy, Debug)]
struct PeerSettings {
    streams: u32,
    window: u32,
    frame: usize,
    extended_connect: bool,
}

/// Where the input is: between frames, or within one whose payload is taken as it comes.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// The first so many bytes of the preface have been read.
    Preface,
    /// The next frame must be SETTINGS.
    FirstFrame,
    Frames,
    Data(DataFrame),
    Failed,
}

/// A DATA frame of which some has come.
#[derive(Clone, Copy, Debug)]
struct DataFrame {
    stream: u32,
    left: u32,
    padding: u32,
    end: bool,
}

/// A header block that goes on in CONTINUATION frames.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    stream: u32,
    end_stream: bool,
    frames: usize,
}

/// Streams that are remembered as closed, so that a frame for one is told from one for a stream that
/// was never open.
const CLOSED: usize = 16;

/// One HTTP/2 connection. See the module.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    config: Box<Config>,
    reading: Reading,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams,
    /// Streams that are not closed, of those that the client opened.
    active: u32,
    /// Bytes by which windows of `streams` are beyond their limit.
    lent: u32,
    /// The highest stream that the client has opened.
    last_opened: u32,
    /// Streams that we have reset lately: what comes for them is dropped.
    reset: VecDeque<u32>,
    /// The highest stream that `reset` has forgotten.
    reset_forgotten: u32,
    /// Streams that were closed lately, and where the next one goes.
    closed: [u32; CLOSED],
    next_closed: usize,
    /// Of a header block what has come.
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
    /// A PING of ours that measures, and what the fastest one took.
    ping: Option<Instant>,
    round_trip: Option<Duration>,
    queue: Queue,
    /// The stream that `poll_writable` named last.
    turn: u32,
    budget: Budget,
    /// Streams above this are not taken (ours to the peer: `accept_to`; the peer's to us).
    accept_to: u32,
    peer_accepts_to: u32,
    is_draining: bool,
    out: Vec<u8>,
    /// Bytes at the beginning of `out` that are written.
    written: usize,
}

impl Connection {
    /// The server's side; its settings are in the output.
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

    /// The client's side; preface and settings are in the output.
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

    /// Takes a head back that an event brought, so that its memory serves another.
    pub fn recycle(&mut self, mut head: Box<Head>) {
        const KEPT: usize = 32;
        const LARGEST: usize = 8 * 1024;
        if self.heads.len() < KEPT && head.fields.allocated() <= LARGEST {
            head.clear();
            self.heads.push(head);
        }
    }

    /// Bytes to write, of all streams.
    pub fn output(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// So many bytes of the output are written.
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

    /// Whether the peer reads what we write: if not, [`Self::receive`] takes nothing either.
    pub fn can_receive(&self) -> bool {
        self.output().len() < self.config.output_limit
    }

    /// Whether a header block has begun and goes on in frames to come.
    pub fn is_within_block(&self) -> bool {
        self.open_block.is_some()
    }

    /// Streams that are open, or whose data is not consumed.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether one of the sides goes away and no stream is left: the connection may be closed once
    /// the output is written.
    pub fn is_finished(&self) -> bool {
        matches!(self.reading, Reading::Failed)
            || self.streams.is_empty() && (self.accept_to < u32::MAX || self.is_draining)
    }

    /// Whether the peer takes extended CONNECT (client).
    pub fn peer_takes_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Sends a PING, unless one is under way: its answer measures the round trip and shows that the
    /// peer lives.
    pub fn ping(&mut self, now: Instant) {
        if self.ping.is_none() {
            self.ping = Some(now);
            frame::ping(&mut self.out, control::MEASURE, false);
        }
    }

    /// Since when a PING waits for its answer.
    pub fn unanswered_ping(&self) -> Option<Instant> {
        self.ping
    }

    /// The fastest round trip that was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// A stream that has had data and no window for as long as `limit` says of its number, if there
    /// is one. Updates by a few bytes do not make it younger: it must have sent 4 KiB since.
    pub fn stalled(&self, now: Instant, limit: impl Fn(u32) -> Duration) -> Option<u32> {
        let is_stalled = |stream: &&Stream| {
            stream
                .stall
                .is_some_and(|stall| now.saturating_duration_since(stall.since) >= limit(stream.id))
        };
        self.streams.iter().find(is_stalled).map(|stream| stream.id)
    }

    /// Gives back what an idle connection does not need: all buffers, but not the tables of the
    /// compression, which are reduced to what is in them.
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

    /// Bytes that the connection takes, its own included.
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

    /// Pays for a frame; a peer that has spent its budget is sent away.
    fn charge(&mut self, price: u32, abuse: Abuse, now: Instant) -> Result<(), Http2Error> {
        if self.budget.spend(price, now) {
            return Ok(());
        }
        Err(Http2Error::connection(Rule::Abuse(abuse)))
    }

    /// Whether the client of this connection could have opened `stream`.
    fn is_client_stream(stream: u32) -> bool {
        !stream.is_multiple_of(2)
    }

    /// Removes a stream that neither side needs, once all its data is consumed.
    fn close_if_done(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() && stream.inbound.held() == 0 {
            self.budget.earn(budget::STREAM_DONE);
            self.remove(id);
        }
    }

    /// One half of a stream has ended.
    fn ended(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() {
            self.active -= 1;
            self.close_if_done(id);
        }
    }

    /// Forgets a stream; what it held of the connection's window is free.
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

    /// Resets a stream and forgets it. What comes for it from now on is dropped.
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

    /// Whether we have reset this stream, as far as we remember.
    fn was_reset(&self, id: u32) -> bool {
        id <= self.reset_forgotten || self.reset.contains(&id)
    }

    /// Announces what is consumed of the connection's window.
    fn update_window(&mut self, now: Instant) {
        let limit = self.config.connection_window_limit;
        if let Some(increment) = self.inbound.update(now, self.round_trip, limit) {
            frame::window_update(&mut self.out, 0, increment);
            self.measure(now);
        }
    }

    /// Measures the round trip, unless it is known.
    fn measure(&mut self, now: Instant) {
        if self.round_trip.is_none() {
            self.ping(now);
        }
    }
}

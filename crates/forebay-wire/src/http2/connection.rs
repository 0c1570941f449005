//! HTTP/2 connection as server or client. The connection converts received bytes to events, and
//! method calls to bytes for the peer.
//!
//! The caller passes received bytes to [`Connection::receive`] until no event is returned. When the
//! caller has no other work, it writes [`Connection::output`], which collects the frames of all
//! streams. Received data is not copied: an event contains a range of the input.
//! [`Connection::send_data`] accepts as much data as the windows, the priorities and the size of
//! the output allow. [`Connection::poll_writable`] returns the next stream that may send.
//!
//! The connection has no clock; the caller passes the time. [`Config`] limits the memory of a
//! stream and of the connection. A budget (`budget.rs`) limits the work that a peer can cause.

pub mod budget;
mod control;
mod flow;
mod receive;
mod send;
mod streams;

pub use send::{RequestPseudo, SendError};

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::{Abuse, ErrorCode, HeadRule, Http2Error, Rule};
use super::frame::{self, PREFACE, settings};
use super::held_heads::Heads;
use super::hpack::{DEFAULT_TABLE, Decoder, Encoder, ListLimits};
use super::{Head, HeadLimits, HeldHeads, Priority};
use budget::Budget;
use control::RoundTrip;
use flow::{DEFAULT_WINDOW, Inbound, LARGEST_WINDOW};
use receive::Fragments;
use send::{Output, Queue};
use streams::{Identifiers, PastStreams, Stream, Streams};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// State of the peer: its settings, its acknowledgements of our settings, and its GOAWAY.
#[derive(Clone, Copy, Debug)]
struct Peer {
    streams: u32,
    window: u32,
    frame: usize,
    extended_connect: bool,
    is_draining: bool,
    /// Number of our SETTINGS frames that the peer has not acknowledged.
    settings_unacknowledged: u32,
}

impl Peer {
    /// Counts an acknowledgement of our settings. Returns false if no acknowledgement was expected.
    fn acknowledge(&mut self) -> bool {
        let is_expected = self.settings_unacknowledged > 0;
        if is_expected {
            self.settings_unacknowledged -= 1;
        }
        is_expected
    }
}

/// State of the input: between frames, or within a DATA frame, whose payload is processed as it
/// arrives.
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

/// Unprocessed rest of a DATA frame that has arrived partly.
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
    /// Sum of the bytes by which the receive windows of the `streams` exceed `stream_window_limit`.
    lent: u32,
    identifiers: Identifiers,
    past: PastStreams,
    fragments: Fragments,
    events: VecDeque<Event>,
    /// PRIORITY_UPDATE frames for streams that are not open yet.
    priorities: VecDeque<(u32, Priority)>,
    heads: Heads,
    inbound: Inbound,
    send_window: i64,
    peer: Peer,
    round_trip: RoundTrip,
    queue: Queue,
    budget: Budget,
    out: Output,
}

impl Connection {
    /// Creates the server's side of a connection. The output contains its settings.
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

    /// Creates the client's side of a connection. The output contains the preface and the settings.
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
        let held = if config.limits_heads {
            HeldHeads::new(config.list.size, config.streams)
        } else {
            HeldHeads::unlimited()
        };
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
            heads: Heads::new(held),
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

    /// Takes the head of an event from the caller, and reuses the memory of the head.
    pub fn recycle(&mut self, head: Box<Head>) {
        self.heads.give(head);
    }

    /// Records that the caller no longer needs heads or trailers of requests. `counted` is the sum
    /// of their [`Head::counted`].
    pub fn release_heads(&mut self, counted: usize) {
        self.heads.held.release(counted);
    }

    /// Returns the bytes that the caller must write to the socket.
    pub fn output(&self) -> &[u8] {
        self.out.unwritten()
    }

    /// Removes the first `len` bytes of the output, because the caller has written them.
    pub fn wrote(&mut self, len: usize) {
        self.out.wrote(len);
    }

    /// Returns true if [`Self::receive`] accepts input. Returns false while too much output is
    /// unwritten, for example because the peer does not read.
    pub fn can_receive(&self) -> bool {
        self.out.len() < self.config.output_limit
    }

    /// Returns true if a header block has started and its last CONTINUATION frame has not arrived.
    pub fn is_within_block(&self) -> bool {
        self.fragments.open().is_some()
    }

    /// Returns the number of streams that are open, or closed with unconsumed data.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns true if the connection has failed, or if one side has sent GOAWAY and no stream is
    /// left. The caller may close the connection after it has written the output.
    pub fn is_finished(&self) -> bool {
        matches!(self.reading, Reading::Failed) || self.streams.is_empty() && self.is_going_away()
    }

    /// Returns true if one side has sent GOAWAY.
    fn is_going_away(&self) -> bool {
        self.identifiers.is_limited() || self.peer.is_draining
    }

    /// Returns true if the server accepts extended CONNECT. Only a client calls this.
    pub fn peer_takes_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Sends a PING unless an earlier one is unanswered. The peer's reply measures the round trip
    /// and shows that the peer is alive.
    pub fn ping(&mut self, now: Instant) {
        if self.round_trip.start(now) {
            frame::ping(&mut self.out.bytes, control::MEASURE, false);
        }
    }

    /// Returns the time at which the unanswered PING was sent, or `None` if every PING was
    /// answered.
    pub fn unanswered_ping(&self) -> Option<Instant> {
        self.round_trip.unanswered()
    }

    /// Returns the fastest measured round trip, or `None` before the first measurement.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.fastest()
    }

    /// Returns a stream that has data to send, but has waited too long for a window. `limit`
    /// returns the permitted time for a stream. This time starts anew only after the stream has
    /// sent 4 KiB, so that a peer cannot extend the wait with small window updates. Returns `None`
    /// if no stream has waited too long.
    pub fn stalled(&self, now: Instant, limit: impl Fn(u32) -> Duration) -> Option<u32> {
        let is_stalled = |stream: &&Stream| {
            stream
                .stall
                .is_some_and(|stall| now.saturating_duration_since(stall.since) >= limit(stream.id))
        };
        self.streams.iter().find(is_stalled).map(|stream| stream.id)
    }

    /// Frees memory that an idle connection does not need: all buffers, and the unused part of the
    /// HPACK tables.
    pub fn shrink(&mut self) {
        self.decoder.shrink();
        self.encoder.shrink();
        self.streams.shrink();
        self.queue.shrink();
        self.events.shrink_to_fit();
        self.past.shrink();
        self.priorities.shrink_to_fit();
        self.heads.shrink();
        self.fragments.shrink();
        self.out.shrink();
    }

    /// Returns the number of bytes that the connection occupies, including `self`.
    pub fn allocated(&self) -> usize {
        size_of::<Self>()
            + size_of::<Config>()
            + self.decoder.allocated()
            + self.encoder.allocated()
            + self.streams.allocated()
            + self.queue.allocated()
            + self.events.capacity() * size_of::<Event>()
            + self.past.allocated()
            + self.priorities.capacity() * size_of::<(u32, Priority)>()
            + self.heads.allocated()
            + self.fragments.allocated()
            + self.out.bytes.capacity()
    }

    /// Subtracts `price` from the peer's budget (see `budget.rs`). If the budget is too small,
    /// returns an error that ends the connection.
    fn charge(&mut self, price: u32, abuse: Abuse, now: Instant) -> Result<(), Http2Error> {
        if self.budget.spend(price, now) {
            return Ok(());
        }
        Err(Http2Error::connection(Rule::Abuse(abuse)))
    }

    /// Removes a stream that both sides have ended, if all its data is consumed.
    fn close_if_done(&mut self, id: u32) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() && stream.inbound.held() == 0 {
            self.budget.earn(budget::STREAM_DONE);
            self.remove(id);
        }
    }

    /// Handles the end of one direction of a stream. If both directions have ended, and all data of
    /// the stream is consumed, removes the stream.
    fn ended(&mut self, id: u32) {
        if self.streams.close(id) {
            self.close_if_done(id);
        }
    }

    /// Removes and returns a stream, or returns `None` if it does not exist. The unconsumed bytes
    /// of the stream count as consumed in the window of the connection.
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

    /// Resets a stream and removes it. Later frames of this stream are dropped.
    fn reset_with(&mut self, id: u32, code: ErrorCode) {
        frame::reset(&mut self.out.bytes, id, code);
        self.remove(id);
        self.past.add_reset(id);
    }

    /// Sends a window update for the connection, if at least half of its window was consumed.
    fn update_window(&mut self, now: Instant) {
        let limit = self.config.connection_window_limit;
        if let Some(increment) = self.inbound.update(now, self.round_trip.fastest(), limit) {
            frame::window_update(&mut self.out.bytes, 0, increment);
            self.measure(now);
        }
    }

    /// Sends a PING to measure the round trip, unless a round trip was measured before.
    fn measure(&mut self, now: Instant) {
        if self.round_trip.fastest().is_none() {
            self.ping(now);
        }
    }
}

/// Limits and sizes of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of concurrent streams that a client may open.
    pub streams: u32,
    /// Limits of the fields of a received message.
    pub list: ListLimits,
    /// Further limits of received requests.
    pub head: HeadLimits,
    /// True if a server limits the total size of the request heads that its caller holds; see
    /// [`HeldHeads`]. The caller must then call
    /// [`Connection::release_heads`](Connection::release_heads).
    pub limits_heads: bool,
    /// Initial receive window of a stream in bytes, at least 65,535.
    pub stream_window: u32,
    /// Maximum receive window of a stream in bytes, at least [`Self::stream_window`].
    pub stream_window_limit: u32,
    /// Space above [`Self::stream_window_limit`] for the receive windows of all streams together,
    /// in bytes. Each stream gets at most an equal part. 0 disables this feature.
    pub shared_window_limit: u32,
    /// Initial receive window of the connection in bytes, at least 65,535.
    pub connection_window: u32,
    /// Maximum receive window of the connection in bytes.
    pub connection_window_limit: u32,
    /// Maximum size of the encoder's HPACK table in bytes.
    pub encoder_table: usize,
    /// `send_data` accepts no data while this many bytes wait to be written.
    pub output: usize,
    /// `receive` accepts no input while this many bytes wait to be written.
    pub output_limit: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            streams: 128,
            list: ListLimits { size: 32 * 1024, fields: 100 },
            head: HeadLimits { target: 8 * 1024, get_body: false, extended_connect: true },
            limits_heads: false,
            stream_window: DEFAULT_WINDOW,
            stream_window_limit: 1024 * 1024,
            shared_window_limit: 0,
            connection_window: 1024 * 1024,
            connection_window_limit: 16 * 1024 * 1024,
            encoder_table: DEFAULT_TABLE,
            output: 64 * 1024,
            output_limit: 512 * 1024,
        }
    }
}

/// Result of [`Connection::receive`](Connection::receive).
#[derive(Debug, Default)]
pub struct ReceivedEvent {
    /// Number of input bytes that were consumed.
    pub consumed: usize,
    /// Event in the consumed bytes. `None` if the caller must first provide more input, or write
    /// output.
    pub event: Option<Event>,
}

/// Event that a connection reports.
#[derive(Debug)]
pub enum Event {
    /// A request (server) or a final reply (client).
    Head {
        /// Stream of the head.
        stream: u32,
        /// The head, which the caller returns with
        /// [`Connection::recycle`](Connection::recycle). A server's caller releases it when
        /// the request has been answered
        /// ([`Connection::release_heads`](Connection::release_heads)).
        head: Box<Head>,
        /// True if the stream ends with the head.
        end: bool,
    },
    /// An interim reply, status 100 to 199 (client).
    Interim {
        /// Stream of the head.
        stream: u32,
        /// The head, which the caller returns with
        /// [`Connection::recycle`](Connection::recycle).
        head: Box<Head>,
    },
    /// A well-formed request that is not supported (server). `rule` determines the status of the
    /// reply.
    Unacceptable {
        /// Stream of the request.
        stream: u32,
        /// The head as far as it was read, which the caller returns with
        /// [`Connection::recycle`](Connection::recycle).
        head: Box<Head>,
        /// The violated rule.
        rule: HeadRule,
        /// True if the stream ends with the head.
        end: bool,
    },
    /// Data of a message. The caller reopens the window with
    /// [`Connection::consume`](Connection::consume).
    Data {
        /// Stream of the data.
        stream: u32,
        /// Position of the data in the input of
        /// [`Connection::receive`](Connection::receive).
        data: Range<usize>,
        /// True if the stream ends with this data.
        end: bool,
    },
    /// Trailers, which end the stream.
    Trailers {
        /// Stream of the trailers.
        stream: u32,
        /// The fields, which the caller returns and releases as the head.
        head: Box<Head>,
    },
    /// The stream was reset.
    Reset {
        /// Identifier of the stream.
        stream: u32,
        /// Cause of the reset.
        cause: Cause,
    },
    /// We refused a stream for which no event was reported before.
    Refused {
        /// Identifier of the stream.
        stream: u32,
        /// The violated rule.
        rule: Rule,
    },
    /// The peer sent GOAWAY: it opens or accepts no more streams. For each stream that the peer has
    /// not processed, an [`Event::Reset`] precedes this event.
    Goaway {
        /// Error code in the GOAWAY frame.
        code: ErrorCode,
    },
    /// The peer's settings have arrived or changed.
    Settings,
}

/// Cause of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer reset the stream.
    Peer(ErrorCode),
    /// The peer violated this rule, so we reset the stream.
    Rule(Rule),
    /// The peer sent GOAWAY and has not processed the stream. The caller may resend the request on
    /// another connection.
    Unprocessed,
}

//! A request's body, cut into data packets as the container asks for them.

use std::cell::Cell;

use forebay_engine::{Body, Fault};
use forebay_wire::ajp13::{END_OF_BODY, data_header, most_data};
use forebay_wire::http1::RequestFraming;
use tokio::sync::Notify;

/// What is left of a body, and how it is sent.
pub struct Packets {
    framing: RequestFraming,
    most: usize,
    /// Bytes not yet sent, where the length is known.
    left: u64,
    /// Read from the client and not yet sent, from `start` on.
    carry: Vec<u8>,
    start: usize,
    /// Whether bytes behind the first packet were sent, which are kept nowhere.
    is_past_first: bool,
}

impl Packets {
    /// All of a body of this framing, in packets of `packet_size` bytes at the most.
    pub fn new(framing: RequestFraming, packet_size: usize) -> Self {
        let most = most_data(packet_size);
        let left = length_of(framing);
        Self { framing, most, left, carry: Vec::new(), start: 0, is_past_first: false }
    }

    /// Whether all that was sent is kept by the caller.
    pub fn is_at_hand(&self) -> bool {
        !self.is_past_first
    }

    /// Appends the packet that a container gets unasked: none where the length is unknown or 0.
    pub async fn append_first(&mut self, out: &mut Vec<u8>, body: &mut Body) -> Result<(), Fault> {
        if self.left > 0 { self.append(out, self.most, body).await } else { Ok(()) }
    }

    /// Appends the packet that a container gets when it asks for `requested` bytes: as many where
    /// the length is known, else what has come; the end marker behind the last byte.
    pub async fn append_next(
        &mut self,
        out: &mut Vec<u8>,
        requested: usize,
        body: &mut Body,
    ) -> Result<(), Fault> {
        self.is_past_first = true;
        self.append(out, requested, body).await
    }

    /// Makes ready for another container, which is to be sent the first packet again, after `body`
    /// was rewound.
    pub async fn rewind(&mut self, body: &mut Body) -> Result<(), Fault> {
        if !self.is_past_first {
            return Ok(());
        }
        (self.left, self.start, self.is_past_first) = (length_of(self.framing), 0, false);
        self.carry.clear();
        self.append_first(&mut Vec::new(), body).await
    }

    async fn append(
        &mut self,
        out: &mut Vec<u8>,
        requested: usize,
        body: &mut Body,
    ) -> Result<(), Fault> {
        let is_counted = self.framing != RequestFraming::Chunked;
        let mut wanted = requested.min(self.most);
        if is_counted {
            wanted = wanted.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        let header = out.len();
        out.extend_from_slice(&data_header(0));
        let start = out.len();
        while out.len() - start < wanted {
            let room = wanted - (out.len() - start);
            if self.start < self.carry.len() {
                let carried = &self.carry[self.start..];
                let taken = carried.len().min(room);
                out.extend_from_slice(&carried[..taken]);
                self.start += taken;
                continue;
            }
            if !is_counted && out.len() > start {
                break;
            }
            let Some(piece) = body.next().await? else { break };
            let (now, later) = piece.split_at(piece.len().min(room));
            out.extend_from_slice(now);
            self.carry.clear();
            self.carry.extend_from_slice(later);
            self.start = 0;
        }
        let length = out.len() - start;
        if length == 0 {
            out.truncate(header);
            out.extend_from_slice(END_OF_BODY);
            return Ok(());
        }
        out[header..start].copy_from_slice(&data_header(length));
        self.left = self.left.saturating_sub(length as u64);
        if is_counted && self.left == 0 {
            // Nothing more comes; the body has yet to find that out.
            body.next().await?;
        }
        Ok(())
    }
}

fn length_of(framing: RequestFraming) -> u64 {
    match framing {
        RequestFraming::Length(length) => length,
        RequestFraming::None | RequestFraming::Chunked => 0,
    }
}

/// How many bytes of the body the container waits for: set by who reads the reply, taken by who sends.
#[derive(Default)]
pub struct BodyDemand {
    length: Cell<Option<usize>>,
    changed: Notify,
}

impl BodyDemand {
    /// The container demands a packet; false where it has not got the one before.
    pub fn raise(&self, length: usize) -> bool {
        let is_first = self.length.replace(Some(length)).is_none();
        self.changed.notify_one();
        is_first
    }

    /// Waits until the container demands a packet.
    pub async fn wait(&self) -> usize {
        loop {
            if let Some(length) = self.length.get() {
                return length;
            }
            self.changed.notified().await;
        }
    }

    /// The container has got the packet.
    pub fn meet(&self) {
        self.length.set(None);
    }

    /// Whether the container waits.
    pub fn is_pending(&self) -> bool {
        self.length.get().is_some()
    }
}

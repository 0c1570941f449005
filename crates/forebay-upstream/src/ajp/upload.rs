//! Divides a request's body into the data packets that the container requests.

use std::cell::Cell;

use forebay_net::fault::Fault;
use forebay_server::body::Body;
use forebay_wire::ajp13::{END_OF_BODY, data_header, most_data};
use forebay_wire::http1::RequestFraming;
use tokio::sync::Notify;

/// The state of sending a request's body in packets, with the received bytes that were not sent
/// yet.
pub struct Packets {
    framing: RequestFraming,
    most: usize,
    /// Bytes not sent yet, if the length is known.
    left: u64,
    /// Bytes read from the client. Bytes from `start` on were not sent yet.
    carry: Vec<u8>,
    start: usize,
    /// True if more than the first packet was sent. The caller stores only the first packet.
    is_past_first: bool,
}

impl Packets {
    /// Creates the packets of a body with this framing, of at most `packet_size` bytes each.
    pub fn new(framing: RequestFraming, packet_size: usize) -> Self {
        let most = most_data(packet_size);
        let left = length_of(framing);
        Self { framing, most, left, carry: Vec::new(), start: 0, is_past_first: false }
    }

    /// Returns true if the body can be resent without reading it again. This is the case if at most
    /// the first packet was sent, because the caller stores this packet.
    pub fn is_at_hand(&self) -> bool {
        !self.is_past_first
    }

    /// Appends the first packet, which Forebay sends without a request of the container. Appends
    /// nothing if the length of the body is unknown or 0.
    pub async fn append_first(&mut self, out: &mut Vec<u8>, body: &mut Body) -> Result<(), Fault> {
        if self.left > 0 { self.append(out, self.most, body).await } else { Ok(()) }
    }

    /// Appends the packet for a container's request of `requested` bytes. If the body's length is
    /// known, first waits for `requested` bytes, or for the rest of the body if it is shorter. If
    /// the length is unknown, waits for at least one byte, and appends the bytes that have arrived.
    /// At the end of the body, appends an empty packet.
    pub async fn append_next(
        &mut self,
        out: &mut Vec<u8>,
        requested: usize,
        body: &mut Body,
    ) -> Result<(), Fault> {
        self.is_past_first = true;
        self.append(out, requested, body).await
    }

    /// Prepares to send the body again, to another container. The caller has rewound `body`, and
    /// resends the first packet itself. So this function reads and drops the bytes of the first
    /// packet.
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
            // All bytes were read. One more call is necessary, so that `body` recognizes its end.
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

/// Number of body bytes that the container requests. The reader of the reply sets the number, and
/// the sender of the body clears it.
#[derive(Default)]
pub struct BodyDemand {
    length: Cell<Option<usize>>,
    changed: Notify,
}

impl BodyDemand {
    /// Records that the container requests `length` bytes. Returns false if the container's
    /// previous request is not fulfilled.
    pub fn raise(&self, length: usize) -> bool {
        let is_first = self.length.replace(Some(length)).is_none();
        self.changed.notify_one();
        is_first
    }

    /// Waits until the container requests a packet. Returns the number of requested bytes.
    pub async fn wait(&self) -> usize {
        loop {
            if let Some(length) = self.length.get() {
                return length;
            }
            self.changed.notified().await;
        }
    }

    /// Records that the requested packet was sent.
    pub fn meet(&self) {
        self.length.set(None);
    }

    /// Returns true if the container waits for a packet.
    pub fn is_pending(&self) -> bool {
        self.length.get().is_some()
    }
}

//! Joins large sends of QUIC connections, so that fewer system calls are needed.
//!
//! `quinn` passes at most 10 packets at once to its socket. While a connection sends more, this
//! module collects up to `MOST_PACKETS` packets of this connection. The kernel then gets all these
//! packets with one `sendmsg`, as segments of equal size (GSO). On loopback, a joined send with 40
//! packets took a third of the CPU time of four sends with 10 packets. This third includes the copy
//! of the packets.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use quinn::udp::{EcnCodepoint, Transmit};

/// Number of packets of a full send of `quinn`. After a smaller send, a connection has nothing more
/// to send.
const FULL_SEND: usize = 10;

/// Maximum packets of a joined send. The kernel allows 64.
pub(super) const MOST_PACKETS: usize = 40;

/// Maximum bytes of a joined send. The kernel allows 65,507 over IPv4.
const MOST_BYTES: usize = 60_000;

/// Maximum number of joined sends that wait at the same time. This number and `MOST_BYTES` limit
/// the memory of a socket to 480 kB, regardless of the number of connections.
const MOST_BATCHES: usize = 8;

/// Maximum number of empty buffers that are kept.
const SPARE: usize = 2;

/// Passes datagrams to the kernel. Fails with `WouldBlock` if the socket has no room.
type SendNow<'a> = &'a mut dyn FnMut(&Transmit<'_>) -> io::Result<()>;

/// Batches of joined packets that wait to be sent over one socket.
#[derive(Debug, Default)]
pub(super) struct JoinedSends {
    batches: Vec<Batch>,
    spare: Vec<Vec<u8>>,
}

/// Packets to one address.
#[derive(Debug)]
struct Batch {
    destination: SocketAddr,
    src_ip: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    segment_size: usize,
    bytes: Vec<u8>,
    /// True if the last send was full, so that the connection probably has more to send.
    may_grow: bool,
    /// True if packets were added after the last call of `flush`.
    has_grown: bool,
}

/// Result of [`JoinedSends::flush`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// No packets wait.
    All,
    /// Some sends wait for further packets.
    SomeWait,
    /// The socket has no room.
    Blocked,
}

impl Batch {
    /// Returns true if `transmit` can follow the packets of this batch in one system call.
    fn takes(&self, transmit: &Transmit<'_>) -> bool {
        // The kernel splits a send into segments of one size. Only the last segment may be shorter,
        // so no packet can follow a shorter segment.
        let is_whole = self.bytes.len().is_multiple_of(self.segment_size);
        let size = segment_size(transmit);
        let is_last = transmit.segment_size.is_none() && size < self.segment_size;
        let length = self.bytes.len() + transmit.contents.len();
        is_whole
            && (size == self.segment_size || is_last)
            && self.ecn == transmit.ecn
            && self.src_ip == transmit.src_ip
            && length <= most_bytes(self.segment_size)
    }

    fn add(&mut self, transmit: &Transmit<'_>) {
        self.bytes.extend_from_slice(transmit.contents);
        let length = self.bytes.len() + FULL_SEND * self.segment_size;
        self.may_grow = is_full(transmit) && length <= most_bytes(self.segment_size);
        self.has_grown = true;
    }

    fn as_transmit(&self) -> Transmit<'_> {
        Transmit {
            destination: self.destination,
            ecn: self.ecn,
            contents: &self.bytes,
            segment_size: Some(self.segment_size),
            src_ip: self.src_ip,
        }
    }
}

impl JoinedSends {
    /// Sends a transmit, or keeps it to join it with later transmits. Fails with `WouldBlock` if
    /// the socket has no space and the transmit was not kept. The caller must then send the
    /// transmit again later.
    pub fn send(&mut self, transmit: &Transmit<'_>, send_now: SendNow<'_>) -> io::Result<()> {
        let is_same = |batch: &Batch| batch.destination == transmit.destination;
        if let Some(at) = self.batches.iter().position(is_same) {
            let batch = &mut self.batches[at];
            if batch.takes(transmit) {
                batch.add(transmit);
                if !batch.may_grow {
                    // The batch has accepted the transmit. If the socket has no room, `flush` sends
                    // the batch later.
                    let _ = self.send_batch(at, send_now);
                }
                return Ok(());
            }
            // Send the batch first, because a client may treat packets that arrive out of order as
            // lost.
            self.send_batch(at, send_now)?;
        }
        if !is_full(transmit) || 2 * transmit.contents.len() > MOST_BYTES {
            return send_now(transmit);
        }
        if self.batches.len() >= MOST_BATCHES {
            self.send_batch(0, send_now)?;
        }
        let mut batch = Batch {
            destination: transmit.destination,
            src_ip: transmit.src_ip,
            ecn: transmit.ecn,
            segment_size: segment_size(transmit),
            bytes: self.spare.pop().unwrap_or_else(|| Vec::with_capacity(MOST_BYTES)),
            may_grow: true,
            has_grown: true,
        };
        batch.add(transmit);
        self.batches.push(batch);
        Ok(())
    }

    /// Sends the batches that got no packets since the previous call, and the batches that accept
    /// no more packets.
    pub fn flush(&mut self, send_now: SendNow<'_>) -> Flushed {
        let mut at = 0;
        while let Some(batch) = self.batches.get_mut(at) {
            let has_grown = std::mem::take(&mut batch.has_grown);
            if has_grown && batch.may_grow {
                at += 1;
            } else if self.send_batch(at, send_now).is_err() {
                return Flushed::Blocked;
            }
        }
        if self.is_empty() { Flushed::All } else { Flushed::SomeWait }
    }

    /// Returns true if no batch waits.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Sends a batch and removes it. If the socket has no space, keeps the batch and returns an
    /// error. After an error of another kind, drops the packets: QUIC resends the data of lost
    /// packets.
    fn send_batch(&mut self, at: usize, send_now: SendNow<'_>) -> io::Result<()> {
        let result = send_now(&self.batches[at].as_transmit());
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            self.batches[at].may_grow = false;
            return result;
        }
        let mut bytes = self.batches.remove(at).bytes;
        if self.spare.len() < SPARE {
            bytes.clear();
            self.spare.push(bytes);
        }
        Ok(())
    }
}

fn segment_size(transmit: &Transmit<'_>) -> usize {
    transmit.segment_size.unwrap_or(transmit.contents.len()).max(1)
}

fn most_bytes(segment_size: usize) -> usize {
    MOST_BYTES.min(MOST_PACKETS * segment_size)
}

/// Returns true if `transmit` has the maximum length. The connection then probably has more to
/// send.
fn is_full(transmit: &Transmit<'_>) -> bool {
    transmit.contents.len() == FULL_SEND * segment_size(transmit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1452;

    /// A socket that records its sends, while it has room.
    #[derive(Default)]
    struct Recorder {
        sent: Vec<(u16, Vec<u8>)>,
        is_blocked: bool,
    }

    impl Recorder {
        fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
            if self.is_blocked {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.sent.push((transmit.destination.port(), transmit.contents.to_vec()));
            Ok(())
        }

        /// Returns the numbers of packets that were sent to each port.
        fn packets(&mut self) -> Vec<(u16, usize)> {
            let packets = |(port, bytes): (u16, Vec<u8>)| (port, bytes.len().div_ceil(SIZE));
            self.sent.drain(..).map(packets).collect()
        }
    }

    fn transmit(port: u16, contents: &[u8]) -> Transmit<'_> {
        Transmit {
            destination: SocketAddr::from(([127, 0, 0, 1], port)),
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: (contents.len() > SIZE).then_some(SIZE),
            src_ip: None,
        }
    }

    #[test]
    fn full_sends_of_a_connection_are_joined_up_to_the_limit() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let mut expected = Vec::new();
        for byte in 0..8 {
            let full = [byte; 10 * SIZE];
            expected.extend_from_slice(&full);
            joined.send(&transmit(1, &full), &mut |send| socket.send(send)).unwrap();
        }
        assert!(joined.is_empty());
        let sent: Vec<u8> = socket.sent.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        assert!(sent == expected, "bytes differ");
        assert_eq!(socket.packets(), [(1, 40), (1, 40)]);
    }

    #[test]
    fn a_short_packet_ends_a_joined_send() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let bytes = [7; 10 * SIZE];
        for length in [10 * SIZE, 3 * SIZE - 1, 10 * SIZE, 9 * SIZE, 10 * SIZE, SIZE - 1] {
            joined.send(&transmit(1, &bytes[..length]), &mut |send| socket.send(send)).unwrap();
            assert_eq!(joined.is_empty(), length < bytes.len());
        }
        assert_eq!(socket.packets(), [(1, 13), (1, 19), (1, 11)]);
        // A longer datagram, such as a probe for a larger packet size, is sent alone.
        joined.send(&transmit(1, &bytes), &mut |send| socket.send(send)).unwrap();
        let probe = Transmit { segment_size: None, ..transmit(1, &bytes[..SIZE + 1]) };
        joined.send(&probe, &mut |send| socket.send(send)).unwrap();
        let lengths: Vec<usize> = socket.sent.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lengths, [10 * SIZE, SIZE + 1]);
    }

    #[test]
    fn small_sends_leave_at_once_and_in_order() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let bytes = [7; 10 * SIZE];
        let mut send = |transmit| joined.send(&transmit, &mut |send| socket.send(send)).unwrap();
        send(transmit(1, &bytes[..4 * SIZE]));
        send(transmit(1, &bytes));
        // This is a send of another connection.
        send(transmit(2, &bytes[..SIZE]));
        // These sends cannot be joined: they have other ECN marks, another size, or another source
        // address.
        send(Transmit { ecn: None, ..transmit(1, &bytes) });
        send(Transmit { segment_size: Some(SIZE - 1), ..transmit(1, &bytes[..10 * (SIZE - 1)]) });
        let src_ip = Some([127, 0, 0, 2].into());
        send(Transmit { src_ip, ..transmit(1, &bytes) });
        send(transmit(1, &bytes[..1]));
        assert!(joined.is_empty());
        assert_eq!(socket.packets(), [(1, 4), (2, 1), (1, 10), (1, 10), (1, 10), (1, 10), (1, 1)]);
    }

    #[test]
    fn a_batch_that_has_not_grown_is_sent_at_the_second_flush() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let full = [7; 10 * SIZE];
        joined.send(&transmit(1, &full), &mut |send| socket.send(send)).unwrap();
        assert_eq!(joined.flush(&mut |send| socket.send(send)), Flushed::SomeWait);
        joined.send(&transmit(2, &full), &mut |send| socket.send(send)).unwrap();
        assert_eq!(joined.flush(&mut |send| socket.send(send)), Flushed::SomeWait);
        assert_eq!(socket.packets(), [(1, 10)]);
        assert_eq!(joined.flush(&mut |send| socket.send(send)), Flushed::All);
        assert_eq!(socket.packets(), [(2, 10)]);
    }

    #[test]
    fn a_socket_without_room_loses_and_repeats_nothing() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let full = [7; 10 * SIZE];
        for _ in 0..3 {
            joined.send(&transmit(1, &full), &mut |send| socket.send(send)).unwrap();
        }
        socket.is_blocked = true;
        // The batch accepts these packets, but the blocked socket does not send the batch.
        joined.send(&transmit(1, &full[..SIZE / 2]), &mut |send| socket.send(send)).unwrap();
        assert_eq!(joined.flush(&mut |send| socket.send(send)), Flushed::Blocked);
        for next in [&full[..], &full[..SIZE]] {
            let refused = joined.send(&transmit(1, next), &mut |send| socket.send(send));
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        socket.is_blocked = false;
        joined.send(&transmit(1, &full[..SIZE]), &mut |send| socket.send(send)).unwrap();
        assert_eq!(joined.flush(&mut |send| socket.send(send)), Flushed::All);
        assert_eq!(socket.packets(), [(1, 31), (1, 1)]);
    }

    #[test]
    fn many_connections_use_a_bounded_amount_of_memory() {
        let (mut joined, mut socket) = (JoinedSends::default(), Recorder::default());
        let full = [7; 10 * SIZE];
        for port in 1..=1000 {
            joined.send(&transmit(port, &full), &mut |send| socket.send(send)).unwrap();
            assert!(joined.batches.len() <= MOST_BATCHES);
        }
        while joined.flush(&mut |send| socket.send(send)) != Flushed::All {}
        assert_eq!(socket.packets(), (1..=1000).map(|port| (port, 10)).collect::<Vec<_>>());
        assert!(joined.spare.len() <= SPARE);
        // Segments that are too large to be joined leave at once.
        let large = vec![7; 10 * 4000];
        let large = Transmit { segment_size: Some(4000), ..transmit(1, &large) };
        joined.send(&large, &mut |send| socket.send(send)).unwrap();
        assert!(joined.is_empty());
    }
}

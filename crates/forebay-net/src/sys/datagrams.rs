//! Assigns QUIC datagrams to the sockets that share an address with SO_REUSEPORT.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{sock_filter, sock_fprog};

/// Assignment of connection IDs to the UDP sockets of one process.
///
/// `cid` is a connection ID that the process has generated. `cid[0] % count` is the number of a
/// thread, and `cid[1]` is the process's tag. The socket of thread `n` has position `(n + shift) %
/// sockets` in the kernel's list of the process's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Number of sockets.
    pub sockets: usize,
    /// Divisor of the first byte: the number of sockets, at most 255.
    pub count: u8,
    /// Position of the socket that the remainder 0 selects.
    pub shift: usize,
    /// Second byte of every connection ID.
    pub tag: u8,
}

/// Attaches a BPF filter that selects one of the sockets that share an address. The sockets are
/// numbered in the order of their binding. All packets of a connection then reach the same socket
/// even if the client's address changes. Without a filter, the kernel selects by a hash of both
/// addresses.
///
/// If `former` is given, the first sockets belong to the former process, which only finishes its
/// connections. The former process gets all packets with a tag other than `own.tag`. But packets of
/// the types Initial and 0-RTT go to the new process, because the client has chosen their IDs.
///
/// Call this for one of the sockets after all sockets are bound.
pub fn attach_reuseport_filter(
    socket: BorrowedFd<'_>,
    own: Routing,
    former: Option<Routing>,
) -> io::Result<()> {
    let mut program = match former {
        None => program_of_one(own),
        Some(former) => program_of_two(own, former),
    };
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the descriptor is open while borrowed. The kernel copies and verifies the program
    // before the call returns, and the length is that of the array.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const JUMP_IF_BITS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_A;

/// Bit of a packet's first byte: the header is long (RFC 9000 section 17.2).
const LONG: u32 = 0x80;
/// Bit of a long header's first byte: the type is Handshake or Retry, not Initial or 0-RTT.
const LATER: u32 = 0x20;
/// Position of the connection ID in a packet with a short header.
const SHORT_ID: u32 = 1;
/// Position of the connection ID in a packet with a long header. The version and the length of the
/// ID precede the ID.
const LONG_ID: u32 = 6;

fn step(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Returns the steps that turn the first byte of a connection ID into a socket's number. `first` is
/// the number of the process's first socket.
fn select(routing: Routing, first: usize) -> [sock_filter; 5] {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    [
        step(MODULO, 0, 0, u32::from(routing.count.max(1))),
        step(ADD, 0, 0, number(routing.shift)),
        step(MODULO, 0, 0, number(routing.sockets.max(1))),
        step(ADD, 0, 0, number(first)),
        step(RETURN, 0, 0, 0),
    ]
}

// If the datagram is too short for a load, the kernel ends the program with result 0, which selects
// the first socket.
fn program_of_one(own: Routing) -> Vec<sock_filter> {
    let mut program = vec![
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_BITS, 2, 0, LONG),
        step(LOAD_BYTE, 0, 0, SHORT_ID),
        step(JUMP, 0, 0, 1),
        step(LOAD_BYTE, 0, 0, LONG_ID),
    ];
    program.extend(select(own, 0));
    program
}

fn program_of_two(own: Routing, former: Routing) -> Vec<sock_filter> {
    let tag = u32::from(own.tag);
    let mut program = vec![
        step(LOAD_BYTE, 0, 0, 0),
        step(JUMP_IF_BITS, 9, 0, LONG),
        // The packet has a short header. Compare its tag with the tag of this process.
        step(LOAD_BYTE, 0, 0, SHORT_ID + 1),
        step(JUMP_IF_EQUAL, 5, 0, tag),
        step(LOAD_BYTE, 0, 0, SHORT_ID),
        // The tag differs, so select a socket of the former process.
        step(MODULO, 0, 0, u32::from(former.count.max(1))),
        step(ADD, 0, 0, former.shift as u32),
        step(MODULO, 0, 0, former.sockets.max(1) as u32),
        step(RETURN, 0, 0, 0),
        // The tag is equal, so use the connection ID to select a socket of this process.
        step(LOAD_BYTE, 0, 0, SHORT_ID),
        step(JUMP, 0, 0, 5),
        // The packet has a long header.
        step(JUMP_IF_BITS, 0, 3, LATER),
        step(LOAD_BYTE, 0, 0, LONG_ID + 1),
        step(JUMP_IF_EQUAL, 1, 0, tag),
        step(JUMP, 0, 0, 6),
        step(LOAD_BYTE, 0, 0, LONG_ID),
    ];
    program.extend(select(own, former.sockets));
    // The packet has a long header with another tag, so select a socket of the former process.
    program.push(step(LOAD_BYTE, 0, 0, LONG_ID));
    program.extend(select(former, 0));
    program
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn datagrams_go_to_the_socket_of_their_connection_whoever_sends_them() {
        let mut address: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let sockets: Vec<UdpSocket> = (0..3)
            .map(|_| {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
                socket.set_reuse_port(true).unwrap();
                socket.bind(&address.into()).unwrap();
                address = socket.local_addr().unwrap().as_socket().unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                socket.into()
            })
            .collect();
        let routing = Routing { sockets: 3, count: 3, shift: 0, tag: 0 };
        attach_reuseport_filter(sockets[0].as_fd(), routing, None).unwrap();
        for id in 0..30u8 {
            for datagram in [&[0x40, id, 9, 9, 9, 9, 9, 9][..], &[0xc0, 0, 0, 0, 1, 8, id, 9, 9]] {
                let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                sender.send_to(datagram, address).unwrap();
                let mut received = [0; 20];
                let count = sockets[usize::from(id % 3)].recv(&mut received).unwrap();
                assert_eq!(&received[..count], datagram);
            }
        }
        // A datagram that is too short goes to the first socket.
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.send_to(&[0xc0], address).unwrap();
        assert_eq!(sockets[0].recv(&mut [0; 20]).unwrap(), 1);
    }
}

//! Assigns QUIC datagrams to the sockets that share an address with SO_REUSEPORT.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{sock_filter, sock_fprog};

/// Attaches a BPF filter that selects a socket by the first byte of the connection ID, modulo
/// `count`. The sockets are numbered in the order of binding. All packets of a connection then
/// reach the same socket, even if the client's address changes.
///
/// Call this for one of the sockets after all sockets are bound.
pub fn attach_reuseport_filter(socket: BorrowedFd<'_>, count: u32) -> io::Result<()> {
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const JUMP_IF: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
    const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_A;
    let step = |code: u32, jt, k| sock_filter { code: code as u16, jt, jf: 0, k };
    // If the datagram is too short for a load, the kernel ends the program with result 0.
    let mut program = [
        step(LOAD_BYTE, 0, 0),
        // In a long header (RFC 9000 section 17.2), version and length precede the connection ID.
        step(JUMP_IF, 2, 0x80),
        step(LOAD_BYTE, 0, 1),
        step(JUMP, 0, 1),
        step(LOAD_BYTE, 0, 6),
        step(MODULO, 0, count.max(1)),
        step(RETURN, 0, 0),
    ];
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
        attach_reuseport_filter(sockets[0].as_fd(), 3).unwrap();
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

//! Finds the processes of a server that Forebay did not start, by its listening socket.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use forebay_process::descendants::{Stat, descendants};
use procfs::net::{self, TcpState};
use procfs::process::{FDTarget, all_processes};

/// Programs that open listening sockets for other programs. Their descendants include more than
/// the server.
const STARTERS: [&str; 3] = ["systemd", "init", "dockerd"];

/// Returns the processes that listen at `HOST:PORT` or `unix:PATH` on this machine. Leaves out
/// process 1 and programs in `STARTERS`. If a process and its parent listen at the address, returns
/// only the parent.
///
/// Returns none if this user cannot see the processes. Also returns none if this program is one of
/// these processes, or a descendant of such a process.
pub fn listeners(address: &str) -> Vec<i32> {
    let sockets = match address.strip_prefix("unix:") {
        Some(path) => unix_sockets(Path::new(path)),
        None => tcp_sockets(address),
    };
    if sockets.is_empty() {
        return Vec::new();
    }
    let holders: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .flatten()
        .filter(|process| {
            let mut files = process.fd().into_iter().flatten().flatten();
            files.any(|file| matches!(file.target, FDTarget::Socket(at) if sockets.contains(&at)))
        })
        .filter_map(|process| Stat::of(process.pid()))
        .filter(|stat| stat.pid != 1 && !STARTERS.contains(&stat.name.as_str()))
        .collect();
    let pids: BTreeSet<i32> = holders.iter().map(|stat| stat.pid).collect();
    let roots = holders.iter().filter(|stat| !pids.contains(&stat.parent));
    let roots: Vec<i32> = roots.map(|stat| stat.pid).collect();
    let own = std::process::id() as i32;
    let is_above =
        |root: &i32| *root == own || descendants(*root).iter().any(|stat| stat.pid == own);
    if roots.iter().any(is_above) { Vec::new() } else { roots }
}

/// Returns the inodes of TCP sockets that accept connections for `address`.
fn tcp_sockets(address: &str) -> BTreeSet<u64> {
    let wanted: Vec<SocketAddr> = address
        .to_socket_addrs()
        .into_iter()
        .flatten()
        .filter(|address| is_local(address.ip()))
        .collect();
    let accepts = |listening: SocketAddr| {
        wanted.iter().any(|wanted| {
            listening.port() == wanted.port()
                && (listening.ip() == wanted.ip() || listening.ip().is_unspecified())
        })
    };
    let entries = net::tcp().into_iter().chain(net::tcp6()).flatten();
    let listening = entries.filter(|entry| entry.state == TcpState::Listen);
    listening.filter(|entry| accepts(entry.local_address)).map(|entry| entry.inode).collect()
}

fn unix_sockets(path: &Path) -> BTreeSet<u64> {
    let entries = net::unix().into_iter().flatten();
    entries.filter(|entry| entry.path.as_deref() == Some(path)).map(|entry| entry.inode).collect()
}

/// Returns true if `address` belongs to this machine: a socket can be bound only to such an
/// address.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_server_is_found_by_its_port_and_its_children_are_below_it() {
        // The parent listens, and its child inherits the socket.
        let script = "use IO::Socket::INET; $| = 1;\
            my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die;\
            my $child = fork; if (!$child) { sleep 60; exit }\
            print $s->sockport, \"\\n\"; <STDIN>; kill TERM => $child; waitpid $child, 0;";
        let mut server = Command::new("perl")
            .args(["-MIO::Socket::INET", "-e", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let found = listeners(&format!("127.0.0.1:{}", port.trim()));
        drop(server.stdin.take());
        let pid = server.id() as i32;
        server.wait().unwrap();
        assert_eq!(found, [pid]);
    }

    #[test]
    fn a_server_in_this_process_and_one_elsewhere_are_not_watched() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listeners(&address.to_string()).is_empty());
        // Documentation addresses (RFC 5737) belong to no machine.
        assert!(listeners(&format!("192.0.2.1:{}", address.port())).is_empty());
        assert!(listeners("unix:/no/such/socket").is_empty());
    }
}

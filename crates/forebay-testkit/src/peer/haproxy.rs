//! HAProxy: <https://docs.haproxy.org/>.

use std::net::Ipv4Addr;
use std::process::Command;

use super::{Peer, filled_in, installed, on_free_port_when};
use crate::DEADLINE;
use crate::process::Process;
use crate::stream::{Address, TestStream};

/// Configuration before the caller's part.
const DEFAULTS: &str = "defaults
    mode http
    timeout connect 10s
    timeout client 10s
    timeout server 10s
";

/// Starts HAProxy with the given sections, which contain `{port}` in `bind 127.0.0.1:{port}`.
/// Returns `None` and reports a skip if HAProxy is not installed.
pub fn haproxy(sections: &str) -> Option<Peer> {
    let program = installed("haproxy")?;
    let start = |folder: &_, port| {
        let text = filled_in(&format!("{DEFAULTS}{sections}\n"), folder, port);
        let file = folder.write("haproxy.cfg", text);
        let mut command = Command::new(&program);
        command.arg("-db").arg("-f").arg(file);
        Process::start(command)
    };
    // In the foreground, HAProxy writes no process ID, but it ends if the port is in use.
    Some(on_free_port_when(start, |_, port| {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
        TestStream::connect(&address, DEADLINE).is_ok()
    }))
}

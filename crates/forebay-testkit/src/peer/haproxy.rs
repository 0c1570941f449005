//! HAProxy: <https://docs.haproxy.org/>.

use std::net::Ipv4Addr;
use std::process::Command;

use super::{Peer, filled_in, installed, on_free_port_when};
use crate::DEADLINE;
use crate::process::Process;
use crate::stream::{Address, TestStream};

/// Configuration that precedes the sections of the test.
const DEFAULTS: &str = "defaults
    mode http
    timeout connect 10s
    timeout client 10s
    timeout server 10s
";

/// Starts HAProxy with the given sections, which must contain `bind 127.0.0.1:{port}`. A free port
/// replaces `{port}`. If HAProxy is not installed, reports the test as skipped and returns `None`.
pub fn haproxy(sections: &str) -> Option<Peer> {
    let program = installed("haproxy")?;
    let start = |folder: &_, port| {
        let text = filled_in(&format!("{DEFAULTS}{sections}\n"), folder, port);
        let file = folder.write("haproxy.cfg", text);
        let mut command = Command::new(&program);
        command.arg("-db").arg("-f").arg(file);
        Process::start(command)
    };
    // HAProxy in the foreground writes no process ID, so try to connect. HAProxy ends if another
    // process uses the port.
    Some(on_free_port_when(start, |_, port| {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
        TestStream::connect(&address, DEADLINE).is_ok()
    }))
}

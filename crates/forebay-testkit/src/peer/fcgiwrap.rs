//! fcgiwrap: <https://github.com/gnosek/fcgiwrap>.

use std::process::Command;

use super::{Peer, installed, on_socket};
use crate::process::Process;

/// Starts fcgiwrap with this many processes on a Unix socket. It runs the script that the request's
/// `SCRIPT_FILENAME` names. Returns `None` and reports a skip if it is not installed.
pub fn fcgiwrap(children: usize) -> Option<Peer> {
    let program = installed("fcgiwrap")?;
    Some(on_socket(|_, socket| {
        let mut command = Command::new(&program);
        command.arg("-f").arg("-c").arg(children.to_string());
        command.arg("-s").arg(format!("unix:{}", socket.display()));
        Process::start(command)
    }))
}

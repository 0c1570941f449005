//! fcgiwrap: <https://github.com/gnosek/fcgiwrap>.

use std::process::Command;

use super::{Peer, installed, on_socket};
use crate::process::Process;

/// Starts fcgiwrap with `children` processes on a Unix socket. For each request, fcgiwrap runs the
/// script that `SCRIPT_FILENAME` names. If fcgiwrap is not installed, reports the test as skipped
/// and returns `None`.
pub fn fcgiwrap(children: usize) -> Option<Peer> {
    let program = installed("fcgiwrap")?;
    Some(on_socket(|_, socket| {
        let mut command = Command::new(&program);
        command.arg("-f").arg("-c").arg(children.to_string());
        command.arg("-s").arg(format!("unix:{}", socket.display()));
        Process::start(command)
    }))
}

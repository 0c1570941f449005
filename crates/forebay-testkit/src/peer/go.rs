//! Servers in Go, of `scripts/go`.

use std::process::Command;

use super::{Peer, built_from_go, on_free_port};
use crate::process::Process;

/// Starts the server of `scripts/go/routeguide`, which speaks gRPC. Returns `None`, and reports the
/// skip, if it has not been built.
pub fn routeguide() -> Option<Peer> {
    let program = built_from_go("routeguide")?;
    Some(on_free_port(|folder, port| {
        let mut command = Command::new(&program);
        command.args(["serve", &port.to_string()]).arg(folder.path().join("pid"));
        Process::start(command)
    }))
}

//! Servers written in Go, from `scripts/go`.

use std::process::Command;

use super::{Peer, built_from_go, on_free_port};
use crate::process::Process;

/// Starts the gRPC server of `scripts/go/routeguide`. If this server has not been built, reports
/// the test as skipped and returns `None`.
pub fn routeguide() -> Option<Peer> {
    let program = built_from_go("routeguide")?;
    Some(on_free_port(|folder, port| {
        let mut command = Command::new(&program);
        command.args(["serve", &port.to_string()]).arg(folder.path().join("pid"));
        Process::start(command)
    }))
}

/// Starts the receiver of the OpenTelemetry Collector, from `scripts/go/collector`, which prints each
/// export as a line of JSON. If it has not been built, reports the test as skipped and returns
/// `None`.
pub fn otlp_collector() -> Option<Peer> {
    let program = built_from_go("otlp-collector")?;
    Some(on_free_port(|folder, port| {
        let mut command = Command::new(&program);
        command.arg(format!("127.0.0.1:{port}")).arg(folder.path().join("pid"));
        Process::start(command)
    }))
}

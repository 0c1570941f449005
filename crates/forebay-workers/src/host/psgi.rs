//! The host and the command line of workers for a PSGI application.

use super::Host;
use super::perl::BOOTSTRAP;
use std::path::Path;
use std::process::Command;

/// The source of the host. A worker first reads this source from the control socket.
pub(super) const HOST: &str = include_str!("../../../../hosts/psgi.pl");

/// Returns the host that runs the application in `file`.
pub(super) fn host(app: &str, file: &Path, parent: u32) -> Host {
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP]).arg(file).args([&parent.to_string(), app]);
    Host::new(command, HOST)
}

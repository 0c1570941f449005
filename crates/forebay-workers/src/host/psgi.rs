//! The host and the command line of workers for a PSGI application.

use super::Host;
use super::perl::{BOOTSTRAP, PROOFS};
use crate::proofs::ProofKey;
use std::path::Path;
use std::process::Command;

/// The source of the host. A worker first reads this source from the control socket.
pub(super) const HOST: &str = include_str!("../../../../hosts/psgi.pl");

/// The additional part for mode `prove`.
const PROVING: &str = include_str!("../../../../hosts/psgi-proving.pl");

/// Returns the host that runs the application in `file`.
pub(super) fn host(app: &str, file: &Path, parent: u32, proof: &ProofKey) -> Host {
    let mut command = Command::new("perl");
    command.args(["-e", BOOTSTRAP]).arg(file).args([&parent.to_string(), app]);
    if proof.key.is_empty() {
        return Host::new(command, HOST);
    }
    let ProofKey { key, salt, shows_values } = proof;
    let source = format!(
        "{{\n{HOST}\n{PROVING}\n($proof_key, $proof_salt, $shows_values, $application_file) = \
         ('{key}', '{salt}', {}, $ARGV[0]);\n}}\n{{\n{PROOFS}\n}}\n",
        u8::from(*shows_values)
    );
    Host::new(command, &source)
}

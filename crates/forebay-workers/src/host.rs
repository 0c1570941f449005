//! The language hosts, which are the programs that workers run. Each kind of application has its
//! host.

mod mod_perl;
mod perl;
mod python;

use crate::proofs::ProofKey;
use crate::spec::{AppSpec, Kind};
use std::process::Command;

/// The program of a worker.
pub(crate) struct Host {
    /// The interpreter and its arguments. The caller adds descriptors and environment.
    pub(crate) command: Command,
    /// The first message on the worker's control socket: the length of the host's source (4 bytes,
    /// big-endian), then the source. The message must fit a socket's buffer.
    pub(crate) first_message: Vec<u8>,
}

impl Host {
    /// Returns the program (interpreter and script) that the workers of the application `spec` run.
    /// The process `parent` starts each worker. If `parent` ends, the worker ends as well. `proof`
    /// is for mode `prove`.
    pub(crate) fn of(spec: &AppSpec, parent: u32, proof: &ProofKey) -> Host {
        match &spec.kind {
            Kind::PerlCgi { mode, preload, .. } => {
                perl::host(&spec.name, (*mode, preload), parent, proof)
            }
            Kind::Psgi { file, .. } => perl::psgi_host(&spec.name, file, parent, proof),
            Kind::ModPerl { preload, switches, directives, .. } => {
                mod_perl::host(spec, (preload, switches, directives), parent)
            }
            Kind::PythonCgi { mode, python, .. } => {
                python::cgi_host(python.as_deref(), *mode, parent, proof)
            }
            Kind::Wsgi { module, python, .. } => {
                python::wsgi_host(python.as_deref(), module, parent, proof)
            }
        }
    }

    /// Returns a host whose `command` reads the program `source` from its standard input, and runs
    /// this program.
    pub(crate) fn new(command: Command, source: &str) -> Host {
        let mut first_message = Vec::with_capacity(4 + source.len());
        first_message.extend_from_slice(&(source.len() as u32).to_be_bytes());
        first_message.extend_from_slice(source.as_bytes());
        Host { command, first_message }
    }
}

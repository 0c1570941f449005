//! Errors that prevent a run of the load generator.

use std::{fmt, io};

/// Error that prevents a run. A failed request is no such error, but is counted in the outcome.
#[derive(Debug)]
pub enum Error {
    /// The settings of the run are invalid. The text says why.
    Invalid(String),
    /// The host name could not be resolved.
    Resolve {
        /// Host and port.
        endpoint: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// No connect succeeded during the run.
    Unreachable {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// The TLS handshake failed: the server does not speak TLS, did not answer, supports no common
    /// protocol version, or has a certificate that is not trusted. `source` says which of these is
    /// the case, and what to do.
    Handshake {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// Error of the last handshake.
        source: io::Error,
    },
    /// A FastCGI application does not take several requests on a connection.
    NotMultiplexed {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// The application's answer, or the reason why there is none.
        source: io::Error,
    },
    /// The system refused a resource that the load generator needs.
    System {
        /// Operation that failed, as text for the message.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Resolve { endpoint, source } => write!(
                f,
                "cannot resolve the host of {endpoint} ({source}): check its spelling and the \
                 name service"
            ),
            Self::Unreachable { endpoint, source } => write!(
                f,
                "cannot connect to {endpoint} ({source}): check that the server runs and \
                 listens on this address"
            ),
            Self::Handshake { endpoint, source } => {
                write!(f, "the TLS handshake with {endpoint} failed: {source}")
            }
            Self::NotMultiplexed { endpoint, source } => write!(
                f,
                "{endpoint} does not take several requests on a connection ({source}): leave out \
                 --streams"
            ),
            Self::System { what, source } => write!(f, "{what} failed: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Invalid(_) => None,
            Self::Resolve { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Handshake { source, .. }
            | Self::NotMultiplexed { source, .. }
            | Self::System { source, .. } => Some(source),
        }
    }
}

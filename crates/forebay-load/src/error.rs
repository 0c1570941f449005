//! Errors that prevent a run.

use std::{fmt, io};

/// Error that prevents a run. Failed requests are not an error but part of the outcome.
#[derive(Debug)]
pub enum Error {
    /// The specification is invalid. The text says why.
    Invalid(String),
    /// The host name could not be resolved.
    Resolve {
        /// The host and port.
        endpoint: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Not a single connect succeeded.
    Unreachable {
        /// The host and port, or the socket path.
        endpoint: String,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// The server does not speak TLS or did not answer, client and server did not agree, or the
    /// certificate is not trusted. The source says which, and what to do.
    Handshake {
        /// The host and port, or the socket path.
        endpoint: String,
        /// Error of the last handshake.
        source: io::Error,
    },
    /// The system refused a resource that the load generator itself needs.
    System {
        /// The failed operation, for the message.
        what: &'static str,
        /// The system's error.
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
            | Self::System { source, .. } => Some(source),
        }
    }
}

//! Why a run could not take place.

use std::{fmt, io};

/// Why a run could not take place. Failed requests are no error but part of the outcome.
#[derive(Debug)]
pub enum Error {
    /// The specification is not one that can be run; what is wrong with it.
    Invalid(String),
    /// The host name could not be resolved.
    Resolve {
        /// The host and port.
        endpoint: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No connection could be made, not one.
    Unreachable {
        /// The host and port, or the socket path.
        endpoint: String,
        /// What the last attempt ended with.
        source: io::Error,
    },
    /// Client and server could not agree on TLS, or the server's certificate is not trusted.
    Handshake {
        /// The host and port, or the socket path.
        endpoint: String,
        /// What the last handshake ended with.
        source: io::Error,
    },
    /// The system refused something that the load generator itself needs.
    System {
        /// What it was wanted for.
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
                "the host of {endpoint} could not be found ({source}): check its spelling and the \
                 name service"
            ),
            Self::Unreachable { endpoint, source } => write!(
                f,
                "{endpoint} could not be reached ({source}): check that the server runs and \
                 listens there"
            ),
            Self::Handshake { endpoint, source } => write!(
                f,
                "the TLS handshake with {endpoint} failed ({source}): a certificate of an authority \
                 of your own is trusted with --ca FILE, any with --insecure"
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
            | Self::System { source, .. } => Some(source),
        }
    }
}

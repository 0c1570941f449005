//! Failures of a request: their cause, and advice on retries.

use std::borrow::Cow;
use std::fmt;
use std::io;

use forebay_wire::http1::{HeadError, HttpError};
use rustix::io::Errno;

use crate::limit::Limit;

/// The party that caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client sent invalid data or disconnected.
    Client,
    /// A backend was unreachable or sent an invalid answer.
    Backend,
    /// An application that Forebay runs failed.
    App,
    /// Forebay itself or the machine failed.
    Us,
}

/// Advice on sending the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Do not send the request again, because it may have been processed.
    No,
    /// Send the request again only if the connection was reused and ended without a byte of the
    /// reply.
    IfReused,
    /// Send the request again, because it was not processed.
    Yes,
    /// Send the request again, over any connection to the same backend. The backend refused one of
    /// several requests on a connection, or closed the connection before it processed this request.
    Unprocessed,
    /// Send the request to another backend. The status of the reply requires this, and the request
    /// may be sent twice.
    OtherBackend,
}

/// The routes that may answer a request that an origin has declined. An origin declines only before
/// it touches the body or the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// No route. Forebay sends the error reply of the fault.
    No,
    /// With `fallback = true`, or if the route has matched a suffix within the path (`.php` in
    /// `/x.php/y`): the routes after the origin's route. Otherwise, with `fallback_to`: all routes,
    /// for the path in this key.
    IfFallback,
    /// The routes after the origin's route, with or without `fallback`.
    Always,
}

/// Reason why a request could not be answered as intended.
#[derive(Debug)]
pub struct Fault {
    /// The party that caused the fault.
    pub side: Side,
    /// Status of the error reply, if no reply has begun.
    pub status: u16,
    /// Advice on sending the request again.
    pub retry: Retry,
    /// The limit that was reached. The server counts the limit when it answers with the fault.
    pub limit: Option<Limit>,
    /// Description for the log.
    pub message: Cow<'static, str>,
    /// The routes that may answer instead of the origin.
    pub decline: Decline,
    /// True if the backend has cancelled its stream (RST_STREAM with CANCEL). The client's stream
    /// is cancelled, too.
    pub is_cancelled: bool,
    /// True if the declined path is in the directory of a `files` route, and later script routes
    /// must not run its file.
    pub is_kept_from_scripts: bool,
}

impl Fault {
    /// Creates a fault that the client caused.
    pub fn client(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Client, status, message.into())
    }

    /// Creates the fault for a client that exceeded the time limit `limit`, or that disconnected.
    /// No reply to a disconnected client is possible.
    pub fn client_closed(error: &io::Error, limit: Limit) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                Self::client(408, format!("client: {error}")).limited_by(limit)
            }
            _ => Self::client(499, format!("client: {error}")),
        }
    }

    /// Creates a fault that a backend caused.
    pub fn backend(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Backend, status, message.into())
    }

    /// Creates a fault that an application caused.
    pub fn app(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::App, status, message.into())
    }

    /// Creates a fault that Forebay or the machine caused.
    pub fn us(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Us, status, message.into())
    }

    /// Creates the fault for a body longer than its `Content-Length`.
    pub fn longer_than_announced() -> Self {
        Self::backend(502, "the reply is longer than its Content-Length")
    }

    /// Creates the fault for a body that ended `left` bytes before its `Content-Length`.
    pub fn shorter_than_announced(left: u64) -> Self {
        Self::backend(502, format!("the reply ended {left} bytes short"))
    }

    /// Creates a temporary fault if `error` means that a resource of the machine or process is
    /// exhausted. `what` completes "cannot ..." in the message. Returns `None` for other errors.
    pub fn exhausted(what: impl fmt::Display, error: &io::Error) -> Option<Self> {
        let errno = Errno::from_io_error(error)?;
        let instead = match errno {
            Errno::MFILE => "raise the limit on open files (ulimit -n, LimitNOFILE of systemd)",
            Errno::NFILE => "the system's limit on open files (fs.file-max) is reached",
            Errno::ADDRNOTAVAIL => "no local port is free; a Unix socket needs none",
            Errno::NOMEM | Errno::NOBUFS => "the machine is out of memory",
            Errno::AGAIN => "the limit on processes (ulimit -u, TasksMax of systemd) is reached",
            _ => return None,
        };
        Some(Self::us(503, format!("cannot {what}: {error}: {instead}")))
    }

    /// Creates the fault of a buffer for which there is no memory.
    pub fn out_of_memory() -> Self {
        Self::us(503, "no memory for a buffer: the machine or its control group is out of memory")
    }

    /// Sets the advice on retries.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the limit that caused the fault.
    pub fn limited_by(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Records that the backend has cancelled the stream. The cancellation does not count as a
    /// failure of the backend.
    pub fn cancelled(mut self) -> Self {
        self.is_cancelled = true;
        self
    }

    /// Lets another route answer the request. Call this only before the body or reply is touched.
    pub fn decline(mut self, decline: Decline) -> Self {
        self.decline = decline;
        self
    }

    /// Returns true if another route may answer.
    pub fn is_declined(&self) -> bool {
        self.decline != Decline::No
    }

    /// Records that later script routes must not run the requested file (key `scripts` of a files
    /// route).
    pub fn kept_from_scripts(mut self) -> Self {
        self.is_kept_from_scripts = true;
        self
    }

    fn new(side: Side, status: u16, message: Cow<'static, str>) -> Self {
        Self {
            side,
            status,
            retry: Retry::No,
            limit: None,
            message,
            decline: Decline::No,
            is_cancelled: false,
            is_kept_from_scripts: false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl From<HeadError> for Fault {
    fn from(error: HeadError) -> Self {
        let fault = Self::client(error.status(), error.to_string());
        match error {
            HeadError::TargetTooLong => fault.limited_by(Limit::Target),
            _ => fault,
        }
    }
}

impl From<HttpError> for Fault {
    fn from(error: HttpError) -> Self {
        Self::client(400, error.to_string())
    }
}

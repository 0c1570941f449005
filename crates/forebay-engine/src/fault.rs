//! What went wrong with a request: who is at fault, and whether trying again may help.

use std::borrow::Cow;
use std::fmt;
use std::io;

use forebay_wire::http1::{HeadError, HttpError};
use rustix::io::Errno;

use crate::limit::Limit;

/// Who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client sent something wrong, or went away.
    Client,
    /// A backend could not be reached or answered wrongly.
    Backend,
    /// An application that Forebay runs failed.
    App,
    /// Forebay itself, or the machine it runs on.
    Us,
}

/// Whether the same request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may have been acted on.
    No,
    /// Only when it went over a connection that had been used before, and died without a byte.
    IfReused,
    /// It was not acted on.
    Yes,
    /// As `Yes`, over whatever connection to the same backend: one of several requests on a
    /// connection was refused, or left by a backend that closes it.
    Unprocessed,
}

/// Why a request could not be answered as it should have been.
#[derive(Debug)]
pub struct Fault {
    /// Who is at fault.
    pub side: Side,
    /// The status to answer with while no reply has begun.
    pub status: u16,
    /// Whether the request may be sent again.
    pub retry: Retry,
    /// The limit that was run into.
    pub limit: Option<Limit>,
    /// What happened, for the log.
    pub message: Cow<'static, str>,
    /// The origin has nothing for this request, and has touched neither body nor reply: a route
    /// that falls back leaves the request to the routes below.
    pub is_not_mine: bool,
    /// As `is_not_mine`, and a route below has it: those are tried wherever the route falls back
    /// to.
    pub is_for_below: bool,
    /// The backend has cancelled its stream (RST_STREAM with CANCEL), which the client is sent, too.
    pub is_cancelled: bool,
    /// As `is_not_mine`, and what is asked for is in a directory of files that script routes below
    /// may not run.
    pub is_kept_from_scripts: bool,
}

impl Fault {
    /// The client is at fault.
    pub fn client(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Client, status, message.into())
    }

    /// The client went away, so that there is nobody to answer, or ran into `limit`.
    pub fn client_closed(error: &io::Error, limit: Limit) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                Self::client(408, format!("client: {error}")).limited_by(limit)
            }
            _ => Self::client(499, format!("client: {error}")),
        }
    }

    /// A backend is at fault.
    pub fn backend(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Backend, status, message.into())
    }

    /// An application is at fault.
    pub fn app(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::App, status, message.into())
    }

    /// We are at fault.
    pub fn us(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Us, status, message.into())
    }

    /// An origin gives a longer body than its `Content-Length`.
    pub(crate) fn longer_than_announced() -> Self {
        Self::backend(502, "the reply is longer than its Content-Length")
    }

    /// The body that an origin gave ended so many bytes before its `Content-Length`.
    pub(crate) fn shorter_than_announced(left: u64) -> Self {
        Self::backend(502, format!("the reply ended {left} bytes short"))
    }

    /// The machine or the process has no more of what it takes to do `what` ("connect to x"): the
    /// fault of nobody else, and it may pass. `None` where `error` means something else.
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

    /// The same fault with other advice on trying again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same fault, for which this limit is the reason.
    pub fn limited_by(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Marks a stream that the backend has cancelled, which does not count against the backend.
    pub fn cancelled(mut self) -> Self {
        self.is_cancelled = true;
        self
    }

    /// The same fault, which another route may not have. Only before the body or the reply was
    /// touched.
    pub fn not_mine(mut self) -> Self {
        self.is_not_mine = true;
        self
    }

    /// The same fault, where it is known that the routes below are to be tried.
    pub fn for_below(mut self) -> Self {
        self.is_for_below = true;
        self.not_mine()
    }

    /// Returns this fault for a route whose files the script routes below may not run.
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
            is_not_mine: false,
            is_for_below: false,
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

//! The reasons why a request gets no worker or no complete reply.

use forebay_process::StartError;
use nix::sys::signal::Signal;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The reason why a request gets no worker. The gateway replies with status 503.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The queue is at its limit.
    QueueFull,
    /// No worker became free in time.
    QueueTimeout,
    /// The workers end right after each start. Contains the reason, and the last lines of their
    /// standard error.
    CrashLoop(String),
    /// A worker had already read the request, but was killed because of another request.
    WorkerLost,
    /// [`App::shutdown`](crate::App::shutdown) was called.
    ShuttingDown,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::QueueFull => f.write_str("all workers are busy and the queue is full"),
            Unavailable::QueueTimeout => f.write_str("no worker became free in time"),
            Unavailable::CrashLoop(lines) => {
                write!(f, "the workers end as soon as they are started: {lines}")
            }
            Unavailable::WorkerLost => f.write_str("the worker was ended before it had answered"),
            Unavailable::ShuttingDown => f.write_str("the application is being shut down"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// The loss of a worker in the middle of a request. The reply is missing or incomplete.
#[derive(Debug)]
pub enum WorkerFault {
    /// The worker ended before the script did.
    Died {
        /// The exit code of the worker, or the signal that killed it.
        exit: Exit,
        /// True if a part of the reply had already arrived.
        any_output: bool,
        /// True if the script was not started. Another worker may then get the request.
        retry: bool,
    },
    /// The request took longer than `request_timeout`.
    Timeout {
        /// True if a part of the reply had already arrived.
        any_output: bool,
    },
    /// The body could not be read from the file that [`Body::File`](crate::Body::File) names.
    Body(std::io::Error),
    /// The worker or Forebay violated the protocol that they use on the worker's sockets. Contains
    /// a description of the unexpected bytes, or of Forebay's wrong call.
    Protocol(String),
}

impl WorkerFault {
    /// Returns true if the script cannot have been started, so that another worker may get the
    /// request.
    pub fn may_retry(&self) -> bool {
        matches!(self, WorkerFault::Died { retry: true, .. })
    }
}

impl fmt::Display for WorkerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerFault::Died { exit, .. } => write!(f, "the worker ended: {exit}"),
            WorkerFault::Timeout { .. } => f.write_str("the script took longer than allowed"),
            WorkerFault::Body(error) => write!(f, "the request body could not be read: {error}"),
            WorkerFault::Protocol(seen) => write!(f, "the worker's sockets: {seen}"),
        }
    }
}

impl std::error::Error for WorkerFault {}

/// The exit code of a process, or the signal that killed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// This signal killed the process.
    Signal(i32),
}

impl Exit {
    /// Returns true if the process had finished (exit code 0), or was asked to end (SIGTERM).
    pub(crate) fn is_orderly(self) -> bool {
        matches!(self, Exit::Code(0) | Exit::Signal(15))
    }

    /// Returns true if SIGKILL or SIGTERM ended the process. Usually, another process has sent such
    /// a signal.
    pub(crate) fn was_killed(self) -> bool {
        matches!(self, Exit::Signal(9 | 15))
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or(-1)),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => match Signal::try_from(*signal) {
                Ok(name) => write!(f, "signal {signal} ({name})"),
                Err(_) => write!(f, "signal {signal}"),
            },
        }
    }
}

/// The error of a process that is not started because its user may not run it.
pub(crate) fn refused_start(refused: &StartError) -> io::Error {
    let text = format!("{}; {}", refused.what(), refused.advice());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_by_their_names() {
        assert_eq!(Exit::Signal(11).to_string(), "signal 11 (SIGSEGV)");
        assert_eq!(Exit::Signal(60).to_string(), "signal 60", "one of real time has none");
        assert_eq!(Exit::Code(3).to_string(), "exit code 3");
    }
}

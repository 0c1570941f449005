//! What went wrong with a request: who is at fault, and whether trying again may help.

use std::borrow::Cow;
use std::fmt;
use std::io;

use forebay_wire::http1::{HeadError, HttpError};

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
    /// What happened, for the log.
    pub message: Cow<'static, str>,
    /// The origin has nothing for this request, and has touched neither body nor reply: a route
    /// that falls back leaves the request to the routes below.
    pub is_not_mine: bool,
}

impl Fault {
    /// The client is at fault.
    pub fn client(status: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Side::Client, status, message.into())
    }

    /// The client went away: there is nobody to answer.
    pub fn client_gone(error: &io::Error) -> Self {
        let status = if error.kind() == io::ErrorKind::TimedOut { 408 } else { 499 };
        Self::client(status, format!("client: {error}"))
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

    /// The same fault with other advice on trying again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same fault, which another route may not have. Only before the body or the reply was
    /// touched.
    pub fn not_mine(mut self) -> Self {
        self.is_not_mine = true;
        self
    }

    fn new(side: Side, status: u16, message: Cow<'static, str>) -> Self {
        Self { side, status, retry: Retry::No, message, is_not_mine: false }
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
        Self::client(error.status(), error.to_string())
    }
}

impl From<HttpError> for Fault {
    fn from(error: HttpError) -> Self {
        Self::client(400, error.to_string())
    }
}

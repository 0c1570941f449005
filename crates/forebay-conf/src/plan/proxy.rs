//! A route to HTTP servers.

use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Upstream};

/// HTTP servers, and what they are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The servers.
    pub upstream: Arc<Upstream>,
    /// The `Host` that servers are told. Default [`HostField::Client`].
    pub host: HostField,
    /// What is cut from the front of the path; begins with `/`.
    pub strip_prefix: Option<String>,
    /// What becomes of redirections and cookies that servers make for themselves. Default
    /// [`Redirects::Rewrite`].
    pub redirect: Redirects,
    /// Between two reads of a reply. `None`: as the server's [`super::Timeouts::reply_idle`].
    pub reply_timeout: Option<Duration>,
}

impl Proxy {
    /// A route to these servers, with every default.
    pub fn new(to: Vec<Backend>) -> Self {
        Self {
            upstream: Arc::new(Upstream::new(to)),
            host: HostField::default(),
            strip_prefix: None,
            redirect: Redirects::default(),
            reply_timeout: None,
        }
    }
}

/// What becomes of redirections and cookies that servers make for themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// They are rewritten to how clients reach the server.
    #[default]
    Rewrite,
    /// They pass as they are.
    Off,
}

/// The `Host` that servers are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostField {
    /// What the client sent.
    #[default]
    Client,
    /// [`Backend::authority`].
    Backend,
}

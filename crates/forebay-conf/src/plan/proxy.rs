//! A route to HTTP servers.

use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Upstream};

/// HTTP servers, and changes to the requests and replies that they exchange with clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The servers.
    pub upstream: Arc<Upstream>,
    /// The `Host` that servers get. Default [`HostField::Client`].
    pub host: HostField,
    /// The prefix that is removed from the path; begins with `/`.
    pub strip_prefix: Option<String>,
    /// The treatment of redirects and cookies that contain the server's own address. Default
    /// [`Redirects::Rewrite`].
    pub redirect: Redirects,
    /// Between two reads of a reply. `None`: as the server's [`super::Timeouts::reply_idle`].
    pub reply_timeout: Option<Duration>,
}

impl Proxy {
    /// Returns a route to these servers, with every default.
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

/// The treatment of redirects and cookies that contain the server's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// They are rewritten to the address that clients use.
    #[default]
    Rewrite,
    /// They are passed on unchanged.
    Off,
}

/// The `Host` that servers get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostField {
    /// The client's Host.
    #[default]
    Client,
    /// [`Backend::authority`].
    Backend,
}

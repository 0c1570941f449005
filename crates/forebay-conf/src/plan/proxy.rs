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
    /// The prefix that is removed from the path. It begins with `/`.
    pub strip_prefix: Option<String>,
    /// The treatment of redirects and cookies that contain the server's own address. Default
    /// [`Redirects::Rewrite`].
    pub redirect: Redirects,
    /// The longest time between two reads of a reply. `None`: [`super::Timeouts::reply_idle`]
    /// applies.
    pub reply_timeout: Option<Duration>,
    /// The longest time without data on an upgraded connection. `None`:
    /// [`super::Timeouts::tunnel_idle`] applies.
    pub tunnel_idle: Option<Duration>,
}

impl Proxy {
    /// Returns a route to these servers, with the default of every setting.
    pub fn new(to: Vec<Backend>) -> Self {
        Self {
            upstream: Arc::new(Upstream::new(to)),
            host: HostField::default(),
            strip_prefix: None,
            redirect: Redirects::default(),
            reply_timeout: None,
            tunnel_idle: None,
        }
    }
}

/// The treatment of redirects and cookies that contain the server's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// Redirects and cookies are rewritten to the address that clients use.
    #[default]
    Rewrite,
    /// Redirects and cookies are passed on unchanged.
    Off,
}

/// The `Host` that servers get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostField {
    /// The client's own `Host`.
    #[default]
    Client,
    /// The server's [`Backend::authority`].
    Backend,
}

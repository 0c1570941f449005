//! AJP 1.3: routes to servlet containers, and listeners that act as a container.

use std::sync::Arc;
use std::time::Duration;

use super::Upstream;
use super::secret::Secret;

/// Servlet containers that speak AJP 1.3, and the distribution of requests among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ajp {
    /// The containers.
    pub upstream: Arc<Upstream>,
    /// The secret that the containers require. `None`: they require no secret.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, including its header: 8192 (the default) to 65,536.
    pub packet_size: usize,
    /// The times at which a container gets a ping. Default [`Ping::Off`].
    pub ping: Ping,
    /// The longest time between two reads of a reply. `None`: [`super::Timeouts::reply_idle`]
    /// applies.
    pub reply_timeout: Option<Duration>,
}

/// The requirements of an `ajp://` listener for the web servers that connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AjpFront {
    /// The secret that each request must contain. `None`: no secret is required.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, including its header: 8192 (the default) to 65,536.
    pub packet_size: usize,
}

/// The times at which a container gets a ping, which tests if the container answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ping {
    /// After each new connection.
    Connect,
    /// Before each request.
    Always,
    /// Never.
    #[default]
    Off,
}

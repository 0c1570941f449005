//! AJP 1.3: routes to servlet containers, and listeners that act as a container.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Upstream;

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

/// A secret that Forebay shares with a peer, an authority or an application. `Debug` does not print
/// the secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Returns a secret with the bytes of this text.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the bytes of the secret.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

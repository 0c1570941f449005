//! AJP 1.3: a route to servlet containers, and a listener in a container's place.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Upstream;

/// Servlet containers that are spoken to by AJP 1.3, and how requests are shared out among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ajp {
    /// The containers.
    pub upstream: Arc<Upstream>,
    /// What they ask of whoever passes requests on.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, its header included: 8192, the default, to 65,536.
    pub packet_size: usize,
    /// When they are asked whether they answer. Default [`Ping::Off`].
    pub ping: Ping,
    /// Between two reads of a reply. `None`: as the server's [`super::Timeouts::reply_idle`].
    pub reply_timeout: Option<Duration>,
}

/// What web servers have to keep to that pass requests on to an `ajp://` listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AjpFront {
    /// What each request has to bring along. `None`: nothing.
    pub secret: Option<Secret>,
    /// The largest packet in bytes, its header included: 8192, the default, to 65,536.
    pub packet_size: usize,
}

/// When a container is asked whether it answers before it is sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ping {
    /// Over each new connection.
    Connect,
    /// Before each request.
    Always,
    /// Never.
    #[default]
    Off,
}

/// What only those know who may pass requests on. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret of these bytes.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

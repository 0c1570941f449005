//! A stream: TCP connections and UDP datagrams that Forebay passes to servers.

use std::sync::Arc;
use std::time::Duration;

use super::{Access, Clients, HostPattern, Listen, NetworkList, Tls, Upstream};

/// A stream: its listeners, and the servers that its connections go to.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The listeners, each a [`Listen::Stream`]. Never empty.
    pub listen: Vec<Listen>,
    /// The server names of the clients. Never empty. [`HostPattern::Any`] accepts any name, and
    /// clients that send no name.
    pub sni: Vec<HostPattern>,
    /// The certificate for clients. `None`: bytes are passed on unread.
    pub tls: Option<Tls>,
    /// The servers.
    pub upstream: Arc<Upstream>,
    /// The longest time without bytes in either direction. `None`: the server's
    /// [`super::Timeouts::tunnel_idle`] for TCP, and 30 s for UDP.
    pub idle_timeout: Option<Duration>,
    /// True if connections begin with a PROXY header. All streams of a listener have the same
    /// value.
    pub proxy_protocol: bool,
    /// Peers whose PROXY header is trusted. If empty, all peers are trusted.
    pub trusted_proxies: Vec<Clients>,
    /// Lists of further trusted proxies.
    pub proxy_lists: Vec<Arc<NetworkList>>,
    /// The clients that may use the stream. Only the rules about addresses are set.
    pub access: Access,
    /// Number of the stream's first line in its file, from 1.
    pub line: usize,
    /// The included file that contains the stream; `None` for the configuration file itself.
    pub file: Option<String>,
}

impl Relay {
    /// Returns true if Forebay must read the start of the client's TLS handshake: to find the
    /// server name, or to decrypt.
    pub fn needs_hello(&self) -> bool {
        self.tls.is_some() || self.sni != [HostPattern::Any]
    }
}

//! The backends of a stream.

use forebay_conf as conf;
use forebay_server::relay::{Connecting, RelayBackend, RelayBackends, RelayClient};

use crate::upstream::{Upstream, announce, stable_hash};

/// A thread's connections to the backends of one stream.
pub struct RelayUpstream {
    upstream: Upstream,
    send_proxy: Option<conf::ProxyHeader>,
    /// True if the client's address selects the backend.
    is_hashed: bool,
}

impl RelayUpstream {
    /// Creates the backends of `upstream`, configured by `plan`.
    pub fn new(upstream: Upstream, plan: &conf::Upstream) -> Self {
        let is_hashed = plan.balance == conf::Balance::Hash;
        Self { upstream, send_proxy: plan.send_proxy, is_hashed }
    }
}

impl RelayBackends for RelayUpstream {
    fn connect<'a>(&'a self, client: &'a RelayClient) -> Connecting<'a> {
        Box::pin(async move {
            let mut greeting = Vec::new();
            if let Some(version) = self.send_proxy {
                announce::append_client(&mut greeting, version, client.address, client.server);
            }
            let key = self.is_hashed.then(|| {
                let mut address = Vec::new();
                client.address.append(&mut address);
                stable_hash(&address)
            });
            let opened = self.upstream.open(key, &greeting).await?;
            let name = opened.backend.shared_name();
            let (socket, permit) = opened.connection.into_parts();
            Ok(RelayBackend { socket, name, held: Box::new((permit, opened.in_flight)) })
        })
    }
}

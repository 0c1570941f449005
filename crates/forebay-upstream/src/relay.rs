//! The backends of a `[[stream]]`, which passes TCP connections or UDP datagrams on.

use std::io;

use forebay_conf as conf;
use forebay_server::relay::{
    Connecting, DatagramBackend, RelayBackend, RelayBackends, RelayClient,
};

use super::upstream;
use crate::upstream::{Upstream, stable_hash};

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

impl RelayUpstream {
    /// Returns the key that selects the backend of a client; `None` if the backend does not depend
    /// on the client.
    fn key(&self, client: &RelayClient) -> Option<u64> {
        self.is_hashed.then(|| {
            let mut address = Vec::new();
            client.address.append(&mut address);
            stable_hash(&address)
        })
    }
}

impl RelayBackends for RelayUpstream {
    fn connect<'a>(&'a self, client: &'a RelayClient) -> Connecting<'a, RelayBackend> {
        Box::pin(async move {
            let mut greeting = Vec::new();
            if let Some(version) = self.send_proxy {
                upstream::append_proxy_header(
                    &mut greeting,
                    version,
                    client.address,
                    client.server,
                );
            }
            let opened = self.upstream.open(self.key(client), &greeting).await?;
            let name = opened.backend.shared_name();
            let (socket, permit) = opened.connection.into_parts();
            Ok(RelayBackend { socket, name, held: Box::new((permit, opened.in_flight)) })
        })
    }

    fn open_datagrams<'a>(&'a self, client: &'a RelayClient) -> Connecting<'a, DatagramBackend> {
        Box::pin(async move {
            let opened = self.upstream.open_datagrams(self.key(client)).await?;
            let (socket, index, in_flight) = opened;
            let name = self.upstream.shared_name(index);
            Ok(DatagramBackend { socket, index, name, held: Box::new(in_flight) })
        })
    }

    fn datagrams_answered(&self, backend: &DatagramBackend) {
        self.upstream.datagrams_answered(backend.index);
    }

    fn datagrams_failed(&self, backend: &DatagramBackend, error: &io::Error) {
        self.upstream.datagrams_failed(backend.index, error);
    }
}

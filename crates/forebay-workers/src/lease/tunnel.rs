//! Workers that take a client's connection over: the output socket becomes one end of a tunnel.

use super::Lease;
use tokio::task::JoinHandle;

/// A worker at the far end of a tunnel. It ends when this is dropped, or once it has said that it
/// is done with the request; what it wrote before can still be read.
pub struct Tunnelled(JoinHandle<()>);

impl Tunnelled {
    pub(super) fn new(mut lease: Lease) -> Tunnelled {
        Tunnelled(tokio::task::spawn_local(async move {
            lease.done().await;
            // Its sockets have carried what no other request may see: dropping the lease ends it.
            drop(lease);
        }))
    }
}

impl Drop for Tunnelled {
    fn drop(&mut self) {
        self.0.abort();
    }
}

//! A worker that takes over a client's connection. Its output socket becomes one end of a tunnel.

use super::Lease;
use tokio::task::JoinHandle;

/// A worker at the far end of a tunnel. The worker ends when this value is dropped, or after the
/// worker has reported the end of the request. Output that the worker wrote before its end can
/// still be read.
pub struct Tunnelled(JoinHandle<()>);

impl Tunnelled {
    pub(super) fn new(mut lease: Lease) -> Tunnelled {
        Tunnelled(tokio::task::spawn_local(async move {
            lease.done().await;
            // The worker's sockets have carried data that no other request may see. Dropping the
            // lease ends the worker.
            drop(lease);
        }))
    }
}

impl Drop for Tunnelled {
    fn drop(&mut self) {
        self.0.abort();
    }
}

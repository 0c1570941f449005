//! The order to close a listener.

use tokio::sync::oneshot;

/// The order to close a listener, which takes effect after the event loop has reported the
/// connections in the listener's queue.
pub struct CloseOrder {
    order: oneshot::Receiver<()>,
    is_given: bool,
}

impl CloseOrder {
    pub fn new(order: oneshot::Receiver<()>) -> Self {
        Self { order, is_given: false }
    }

    /// Waits for the order.
    pub async fn given(&mut self) {
        if !self.is_given {
            let _ = (&mut self.order).await;
            self.is_given = true;
        }
    }

    /// Waits for the order, and then for the event loop's next report about sockets. The caller
    /// must accept the connections of this report before it waits again.
    pub async fn wait(&mut self) {
        self.given().await;
        // The order may arrive before the event loop has reported a connection in the queue. A
        // close of the listener would then reset this connection.
        tokio::task::yield_now().await;
    }
}

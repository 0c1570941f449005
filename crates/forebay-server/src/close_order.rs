//! The command to close a listener.

use tokio::sync::oneshot;

/// Treatment of the connections in the queue of a listener that closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// This process accepts them.
    Empty,
    /// Another process accepts them.
    Leave,
}

/// The command to close a listener. The command takes effect after the event loop has reported the
/// connections in the listener's queue.
pub struct CloseOrder {
    order: oneshot::Receiver<Closing>,
    given: Option<Closing>,
}

impl CloseOrder {
    pub fn new(order: oneshot::Receiver<Closing>) -> Self {
        Self { order, given: None }
    }

    /// Waits for the command to close the listener.
    pub async fn given(&mut self) {
        if self.given.is_none() {
            self.given = Some((&mut self.order).await.unwrap_or(Closing::Empty));
        }
    }

    /// Returns true after the command [`Closing::Leave`]. The listener must then not accept another
    /// connection.
    pub fn is_left(&mut self) -> bool {
        if self.given.is_none() {
            self.given = self.order.try_recv().ok();
        }
        self.given == Some(Closing::Leave)
    }

    /// Waits for the command to close the listener, and then for the event loop's next report about
    /// sockets. The caller must accept the connections of this report before the caller waits
    /// again.
    pub async fn wait(&mut self) {
        self.given().await;
        // The command may arrive before the event loop has reported a connection in the queue.
        // Closing the listener at once would reset this connection.
        tokio::task::yield_now().await;
    }
}

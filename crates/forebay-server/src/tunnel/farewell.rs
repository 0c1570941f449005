//! Ends a WebSocket with a close frame when the server stops.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::message_bounds::MessageBounds;

use super::End;

/// A WebSocket without bytes for this time gets a close frame. Exception: if the client has sent the
/// last message, see [`LOOKS_IF_ASKED`].
pub(super) const QUIET: Duration = Duration::from_millis(500);

/// Number of [`QUIET`] intervals to wait if the client has sent the last message, because an answer
/// may follow. All these intervals together are shorter than the time after which a quiet tunnel
/// ends.
const LOOKS_IF_ASKED: u32 = 5;

/// Time after the stop during which Forebay waits for a quiet moment. Afterwards, a close frame
/// follows the next message of a busy WebSocket.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A close frame with the code 1001: the server goes away (RFC 6455 section 7.4.1).
const GOING_AWAY: [u8; 4] = [0x88, 2, 0x03, 0xe9];

/// State of a WebSocket's close frame, and the position in the frames to the client.
#[derive(Default)]
pub(super) struct Farewell {
    bounds: Cell<MessageBounds>,
    is_writing: Cell<bool>,
    /// True if the client has sent bytes after the last message of the backend.
    pub(super) is_asked: Rc<Cell<bool>>,
    /// True if a close frame must follow the next message.
    pub(super) is_urgent: Cell<bool>,
    /// True after the close frame, or after the end of the backend's bytes.
    pub(super) is_closed: Cell<bool>,
}

impl Farewell {
    /// Sends bytes of the backend to the client. If these bytes end a message and `is_urgent` is
    /// set, sends a close frame in the same write. So a client that awaits an answer receives the
    /// message before the close frame.
    pub(super) async fn pass(&self, client: End<'_>, data: &[u8]) -> io::Result<()> {
        let mut bounds = self.bounds.get();
        bounds.pass(data);
        self.bounds.set(bounds);
        self.is_writing.set(true);
        let is_message = bounds.is_between_messages();
        self.is_asked.set(self.is_asked.get() && !is_message);
        let is_last = self.is_urgent.get() && is_message;
        let outcome = if is_last {
            self.is_closed.set(true);
            client.write_all(&[data, &GOING_AWAY].concat()).await
        } else {
            client.write_all(data).await
        };
        self.is_writing.set(false);
        outcome
    }

    /// Returns the number of [`QUIET`] intervals without bytes that must precede a close frame.
    pub(super) fn looks(&self) -> u32 {
        if self.is_asked.get() { LOOKS_IF_ASKED } else { 1 }
    }

    /// Returns true if a close frame may be sent now.
    pub(super) fn may_follow(&self) -> bool {
        !self.is_closed.get() && !self.is_writing.get() && self.bounds.get().is_between_messages()
    }

    /// Sends a close frame. Bytes of the backend are dropped from now on. The client's answer still
    /// reaches the backend, which then closes, too.
    pub(super) async fn close(&self, client: End<'_>) -> io::Result<()> {
        self.is_closed.set(true);
        client.write_all(&GOING_AWAY).await
    }
}

//! Opens a connection for one client of a stream.

use std::cell::Cell;

use forebay_net::fault::{Fault, Side};

use super::{Attempt, Backend, BackendConnection, InFlight, Upstream, bit};

/// A connection to a backend for one client.
pub struct Opened<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// The connection, after `greeting` was written.
    pub connection: BackendConnection,
    /// Counts the client as active.
    pub in_flight: InFlight,
}

impl Upstream {
    /// Opens a connection to the backend that the group selects, and writes `greeting`. Tries every
    /// other backend if this fails, because no byte of the client was sent yet. If the hash of a
    /// key is given, it selects the backend.
    pub(crate) async fn open(
        &self,
        key: Option<u64>,
        greeting: &[u8],
    ) -> Result<Opened<'_>, Fault> {
        let (mut tried, mut last) = (0, None);
        while let Some(index) = self.group.pick((None, key), tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            let (backend, group) = (&self.backends[index], &*self.group);
            let begun = Cell::new(group.begin_timing());
            let attempt = Attempt { backend, index, tried, group, begun };
            match greet(attempt.backend, greeting).await {
                Ok(connection) => {
                    attempt.answered();
                    return Ok(Opened { backend: attempt.backend, connection, in_flight });
                }
                Err(fault) if fault.side != Side::Backend => return Err(fault),
                Err(fault) => {
                    self.count(&attempt, &fault);
                    last = Some(fault);
                }
            }
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a stream without backends")))
    }
}

async fn greet(backend: &Backend, greeting: &[u8]) -> Result<BackendConnection, Fault> {
    let connection = backend.connect(true).await?;
    // The protocol may have no reply, so the wait for one shows nothing.
    connection.forget_wait();
    if !greeting.is_empty() {
        let written = connection.socket.write_all(greeting).await;
        written.map_err(|error| backend.lost(&error))?;
    }
    Ok(connection)
}

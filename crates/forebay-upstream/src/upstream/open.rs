//! Opens a connection to a backend for one client of a `[[stream]]`.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use forebay_net::fault::{Fault, Side};
use tokio::net::UdpSocket;

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
    /// Opens a connection to the backend that the group selects, and writes `greeting`. After a
    /// failure of a backend, tries the other backends, because no byte of the client was sent yet.
    /// `key`, if given, is a hash that selects the backend.
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
            let attempt = Attempt { backend, number: index as u8, tried, group, begun };
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

impl Upstream {
    /// Opens a UDP socket to the backend that the group selects. After a failure of a backend,
    /// tries the other backends. Also returns the backend's number, and a guard that counts the
    /// client as active.
    pub(crate) async fn open_datagrams(
        &self,
        key: Option<u64>,
    ) -> Result<(UdpSocket, usize, InFlight), Fault> {
        let (mut tried, mut last) = (0, None);
        while let Some(index) = self.group.pick((None, key), tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            match self.backends[index].open_datagrams().await {
                Ok(socket) => return Ok((socket, index, in_flight)),
                Err(fault) if fault.side != Side::Backend => return Err(fault),
                Err(fault) => {
                    self.count_datagrams(index, &fault);
                    last = Some(fault);
                }
            }
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a stream without backends")))
    }

    /// Returns the name of a backend for the log.
    pub(crate) fn shared_name(&self, index: usize) -> Rc<str> {
        self.backends[index].shared_name()
    }

    /// Records that a backend has sent a datagram: it is up.
    pub(crate) fn datagrams_answered(&self, index: usize) {
        self.group.succeeded(index);
    }

    /// Counts a failure of a backend over UDP.
    pub(crate) fn datagrams_failed(&self, index: usize, error: &io::Error) {
        self.count_datagrams(index, &self.backends[index].refused_datagrams(error));
    }

    fn count_datagrams(&self, index: usize, fault: &Fault) {
        let (backend, group) = (&self.backends[index], &*self.group);
        let begun = Cell::new(None);
        let attempt = Attempt { backend, number: index as u8, tried: 0, group, begun };
        self.count(&attempt, fault);
    }
}

async fn greet(backend: &Backend, greeting: &[u8]) -> Result<BackendConnection, Fault> {
    let connection = backend.connect(true).await?;
    // In some protocols, the backend sends nothing first. So do not measure the wait for its first
    // byte.
    connection.forget_wait();
    if !greeting.is_empty() {
        let written = connection.socket.write_all(greeting).await;
        written.map_err(|error| backend.lost(&error))?;
    }
    Ok(connection)
}

//! Shared connections of one thread to an application, if the application supports them.
//!
//! With `multiplex = "auto"`, Forebay sends FCGI_GET_VALUES over a connection, and then closes this
//! connection. If no answer arrives within 250 ms, Forebay does not multiplex, and asks again after
//! five minutes. Each thread has an equal part of `max_connections`, so that no thread waits for
//! another.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::Fault;
use forebay_net::thread::Thread;
use forebay_wire::fastcgi::{self, Decoder, RecordEvent};
use tokio::time::Instant;

use super::INBOX;
use super::mux_connection::{MuxConnection, RequestStream};
use crate::upstream::{Backend, BackendConnection, Multiplexed, SharedConnection};

/// Time limit of the application's answer.
const ASKING: Duration = Duration::from_millis(250);
/// Time after which an application without an answer is asked again: it may have been busy or
/// starting.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// Multiplexed FastCGI connections of one thread to one backend.
pub struct MuxPool {
    thread: Rc<Thread>,
    connections: Multiplexed<MuxConnection>,
    /// Support for multiplexing, as far as known.
    support: Cell<MuxSupport>,
    max_streams: Cell<usize>,
    max_buffered: usize,
}

/// Forebay's knowledge about an application's support for multiplexing.
#[derive(Clone, Copy, Debug)]
enum MuxSupport {
    Yes,
    No,
    /// The application was not asked.
    Unknown,
    /// The application was asked at this time and has not answered.
    Silent(Instant),
}

impl MuxSupport {
    /// Returns true if Forebay must not multiplex now.
    fn is_no(self, now: Instant) -> bool {
        match self {
            Self::Yes | Self::Unknown => false,
            Self::No => true,
            Self::Silent(since) => now < since + ASK_AGAIN,
        }
    }
}

impl MuxPool {
    /// Creates an empty pool. With `multiplex = "auto"`, the pool opens shared connections only
    /// after the application has confirmed that it multiplexes.
    pub fn new(thread: Rc<Thread>, settings: &conf::Fastcgi) -> Self {
        let is_auto = settings.multiplex == conf::Multiplex::Auto;
        Self {
            thread,
            connections: Multiplexed::new(settings.max_shared),
            support: Cell::new(if is_auto { MuxSupport::Unknown } else { MuxSupport::Yes }),
            max_streams: Cell::new(settings.max_streams),
            max_buffered: settings.max_buffered,
        }
    }

    /// Returns a stream for another request; `None` if the application does not multiplex.
    pub async fn stream(&self, backend: &Backend) -> Result<Option<RequestStream>, Fault> {
        // No permit is necessary, because `max_connections` is divided among the threads in
        // advance.
        let acquire = async |_| Ok(());
        let open = async |()| self.open(backend).await;
        self.connections.wait_for(backend, || self.find(), acquire, open).await
    }

    /// Returns a stream of a new connection, or `None` if the application does not multiplex.
    async fn open(&self, backend: &Backend) -> Result<Option<RequestStream>, Fault> {
        if !matches!(self.support.get(), MuxSupport::Yes) && !self.query_support(backend).await? {
            return Ok(None);
        }
        let (thread, name) = (self.thread.clone(), backend.name().to_owned());
        let limits = (self.max_streams.get(), self.max_buffered);
        let shared =
            MuxConnection::new(thread, name, limits, self.connections.capacity_changed().clone());
        let connection = backend.connect(true).await?;
        connection.forget_wait();
        tokio::task::spawn_local(shared.clone().run(connection));
        let stream = shared.begin();
        self.connections.add(&shared);
        Ok(stream)
    }

    /// Opens a connection to ask the application if it multiplexes. Stores the answer. Returns true
    /// if the application multiplexes.
    async fn query_support(&self, backend: &Backend) -> Result<bool, Fault> {
        if let MuxSupport::Silent(_) = self.support.get() {
            // The application did not answer an earlier query. Record the time of this new query,
            // so that other requests use unshared connections and do not wait for the answer.
            self.support.set(MuxSupport::Silent(Instant::now()));
        }
        let answer = query_support(backend.connect(true).await?).await;
        let (support, what) = match answer {
            Answer::Yes(most) => {
                self.max_streams.set(self.max_streams.get().min(most));
                self.support.set(MuxSupport::Yes);
                return Ok(true);
            }
            Answer::No => (MuxSupport::No, "does not multiplex requests"),
            Answer::Silence => (
                MuxSupport::Silent(Instant::now()),
                "does not say whether it can multiplex requests",
            ),
        };
        self.support.set(support);
        self.thread.errors.warn(&format!("{} {what}", backend.name()));
        Ok(false)
    }

    /// Stops multiplexing, because the application has refused a second request on a connection.
    pub fn give_up(&self) {
        self.support.set(MuxSupport::No);
        self.connections.capacity_changed().notify_one();
    }

    /// Returns a stream without waiting. Returns `Some(None)` if the application does not
    /// multiplex, and `None` if no connection can take another request.
    fn find(&self) -> Option<Option<RequestStream>> {
        if self.support.get().is_no(Instant::now()) {
            return Some(None);
        }
        self.connections.find().map(Some)
    }
}

/// Answer of an application.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The application takes this many requests at once on a connection.
    Yes(usize),
    /// The application takes one request at a time, or does not understand the question.
    No,
    /// No answer arrived in time, or the application closed the connection without an answer.
    Silence,
}

/// Asks the application over `connection`, and then closes the connection.
async fn query_support(connection: BackendConnection) -> Answer {
    let has_spoken = Cell::new(false);
    let query = async {
        let socket = &connection.socket;
        let mut out = Vec::new();
        fastcgi::get_values(&mut out, &["FCGI_MPXS_CONNS", "FCGI_MAX_REQS"]);
        socket.write_all(&out).await.ok()?;
        let (mut decoder, mut inbox) = (Decoder::multiplexed(), Vec::with_capacity(INBOX));
        loop {
            if inbox.len() == inbox.capacity() {
                inbox.reserve(INBOX);
            }
            if socket.read(&mut inbox).await.ok()? == 0 {
                return None;
            }
            has_spoken.set(true);
            let Ok(step) = decoder.decode(&inbox) else { return Some(Answer::No) };
            match step.event {
                Some(RecordEvent::Values(range)) => {
                    return Some(streams_of(&inbox[range]).map_or(Answer::No, Answer::Yes));
                }
                Some(_) => return Some(Answer::No),
                None => drop(inbox.drain(..step.consumed)),
            }
        }
    };
    let answer = tokio::time::timeout(ASKING, query).await.ok().flatten();
    answer.unwrap_or(if has_spoken.get() { Answer::No } else { Answer::Silence })
}

/// Returns the number of simultaneous requests that the application accepts on a connection.
/// Returns `None` if the application does not multiplex.
fn streams_of(values: &[u8]) -> Option<usize> {
    let pairs = fastcgi::pairs(values)?;
    let value = |wanted: &[u8]| {
        let found = pairs.iter().find(|(name, _)| &values[name.clone()] == wanted);
        found.map(|(_, value)| &values[value.clone()])
    };
    if value(b"FCGI_MPXS_CONNS") != Some(b"1") {
        return None;
    }
    let most =
        value(b"FCGI_MAX_REQS").and_then(|most| std::str::from_utf8(most).ok()?.parse().ok());
    Some(most.unwrap_or(usize::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_silent_is_asked_again_later() {
        let now = Instant::now();
        assert!(MuxSupport::Silent(now).is_no(now + ASK_AGAIN / 2));
        assert!(!MuxSupport::Silent(now).is_no(now + ASK_AGAIN));
        assert!(MuxSupport::No.is_no(now + ASK_AGAIN), "it has said so");
        assert!(!MuxSupport::Unknown.is_no(now) && !MuxSupport::Yes.is_no(now));
    }

    #[test]
    fn what_an_application_says_of_itself() {
        let said = |pairs: &[(&str, &str)]| {
            let mut values = Vec::new();
            for (name, value) in pairs {
                values.extend([name.len() as u8, value.len() as u8]);
                values.extend_from_slice(name.as_bytes());
                values.extend_from_slice(value.as_bytes());
            }
            streams_of(&values)
        };
        assert_eq!(said(&[("FCGI_MPXS_CONNS", "1"), ("FCGI_MAX_REQS", "7")]), Some(7));
        assert_eq!(said(&[("FCGI_MPXS_CONNS", "1")]), Some(usize::MAX));
        assert_eq!(said(&[("FCGI_MAX_REQS", "0"), ("FCGI_MPXS_CONNS", "1")]), Some(1));
        assert_eq!(said(&[("FCGI_MPXS_CONNS", "0"), ("FCGI_MAX_REQS", "7")]), None);
        assert_eq!(said(&[("FCGI_MAX_REQS", "7")]), None);
        assert_eq!(said(&[]), None);
        assert_eq!(streams_of(b"\x0f\x7f"), None);
    }
}

//! The connections of one thread to an application that are shared by requests, and whether it has
//! such connections at all.
//!
//! `"auto"` asks by FCGI_GET_VALUES over a connection that is then thrown away, takes 250 ms of
//! silence for a no, and keeps the answer for five minutes. Each thread has connections of its own,
//! an equal share of `max_connections`: a thread with none would wait until another is idle.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_engine::{Fault, Thread};
use forebay_wire::fastcgi::{self, Decoder, Event};
use tokio::time::Instant;

use super::INBOX;
use super::mux_connection::{MuxConnection, Stream};
use crate::upstream::{Backend, Connection, Multiplexed, SharedConnection};

/// How long an application may take to say what it can do.
const ASKING: Duration = Duration::from_millis(250);
/// When one that has said nothing is asked again: it may have been busy or still starting.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The connections of one thread to one backend.
pub struct MuxPool {
    thread: Rc<Thread>,
    connections: Multiplexed<MuxConnection>,
    /// Whether the application multiplexes.
    support: Cell<MuxSupport>,
    max_streams: Cell<usize>,
    max_buffered: usize,
}

/// What is known about whether an application multiplexes.
#[derive(Clone, Copy, Debug)]
enum MuxSupport {
    Yes,
    No,
    /// It has not been asked.
    Unknown,
    /// It was asked then, and has not said.
    Silent(Instant),
}

impl MuxSupport {
    /// Whether it is taken not to, for now at least.
    fn is_no(self, now: Instant) -> bool {
        match self {
            Self::Yes | Self::Unknown => false,
            Self::No => true,
            Self::Silent(since) => now < since + ASK_AGAIN,
        }
    }
}

impl MuxPool {
    /// Connections as `settings` have them, to be opened only where the application says that it can, if
    /// they have it asked.
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

    /// A place for one more request; `None` where the application does not multiplex.
    pub async fn stream(&self, backend: &Backend) -> Result<Option<Stream>, Fault> {
        // No permit: `max_connections` is divided among the threads beforehand.
        let acquire = async |_| Ok(());
        let open = async |()| self.open(backend).await;
        self.connections.wait_for(backend, || self.find(), acquire, open).await
    }

    /// A place on a new connection.
    async fn open(&self, backend: &Backend) -> Result<Option<Stream>, Fault> {
        if !matches!(self.support.get(), MuxSupport::Yes) && !self.query_support(backend).await? {
            return Ok(None);
        }
        let (thread, name) = (self.thread.clone(), backend.name().to_owned());
        let limits = (self.max_streams.get(), self.max_buffered);
        let shared = MuxConnection::new(thread, name, limits, self.connections.room().clone());
        let connection = backend.connect(true).await?;
        connection.forget_wait();
        tokio::task::spawn_local(shared.clone().run(connection));
        let stream = shared.begin();
        self.connections.add(&shared);
        Ok(stream)
    }

    /// Asks whether the application multiplexes.
    async fn query_support(&self, backend: &Backend) -> Result<bool, Fault> {
        if let MuxSupport::Silent(_) = self.support.get() {
            // Other requests do not wait for what it says this time.
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
        self.thread.errors.log(&format!("{} {what}", backend.name()));
        Ok(false)
    }

    /// The application has refused to multiplex, whatever was said: it is not tried again.
    pub fn give_up(&self) {
        self.support.set(MuxSupport::No);
        self.connections.room().notify_one();
    }

    /// What is known without waiting.
    fn find(&self) -> Option<Option<Stream>> {
        if self.support.get().is_no(Instant::now()) {
            return Some(None);
        }
        self.connections.find().map(Some)
    }
}

/// What an application says of itself.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// It takes so many requests at once on a connection.
    Yes(usize),
    /// One at a time, or it does not know the question.
    No,
    /// Nothing in time, or it closed the connection without a word.
    Silence,
}

/// Asks, over a connection that is then closed (as php-fpm does itself).
async fn query_support(connection: Connection) -> Answer {
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
                Some(Event::Values(range)) => {
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

/// How many requests at once an application says to take; `None` where it does not multiplex.
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

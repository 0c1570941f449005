//! The connections of one thread to an application that are shared by requests, and whether it has
//! such connections at all.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_engine::{Fault, Limit, Thread};
use forebay_wire::fastcgi::{self, Decoder, Event};
use tokio::sync::Notify;

use super::INBOX;
use super::line::{Line, Stream};
use crate::connect::{Backend, Connection};

/// How long an application may take to say what it can do.
const ASKING: Duration = Duration::from_millis(250);

/// The lines of one thread to one backend.
pub struct Lines {
    thread: Rc<Thread>,
    open: RefCell<Vec<Rc<Line>>>,
    /// Whoever opens a line or asks, since many requests may find none at the same time.
    opening: tokio::sync::Mutex<()>,
    /// A line has room again, or is no more.
    room: Rc<Notify>,
    /// Whether the application multiplexes; `None` where it is to be asked.
    can: Cell<Option<bool>>,
    /// Lines at once: other threads need connections, too.
    most: usize,
    max_streams: Cell<usize>,
    max_buffered: usize,
}

impl Lines {
    /// Lines as `settings` have them, to be opened only where the application says that it can, if
    /// they have it asked.
    pub fn new(thread: Rc<Thread>, settings: &conf::Fastcgi) -> Self {
        let is_asked = settings.multiplex == conf::Multiplex::Auto;
        Self {
            thread,
            open: RefCell::default(),
            opening: tokio::sync::Mutex::default(),
            room: Rc::default(),
            can: Cell::new(if is_asked { None } else { Some(true) }),
            most: settings.max_shared,
            max_streams: Cell::new(settings.max_streams),
            max_buffered: settings.max_buffered,
        }
    }

    /// A place for one more request; `None` where the application does not multiplex.
    pub async fn stream(&self, backend: &Backend) -> Result<Option<Stream>, Fault> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let limit = self.thread.settings().timeouts.connect;
        match tokio::time::timeout(limit, self.wait_for_stream(backend)).await {
            Ok(outcome) => outcome,
            Err(_) if self.is_full() => Err(backend.busy()),
            Err(_) => {
                let message = format!("cannot connect to {} within {limit:?}", backend.name());
                Err(Fault::backend(504, message).limited_by(Limit::Connect))
            }
        }
    }

    /// A place on a line that gets room, or on a new one.
    async fn wait_for_stream(&self, backend: &Backend) -> Result<Option<Stream>, Fault> {
        let _opening = self.opening.lock().await;
        loop {
            // Another request may have opened one meanwhile, or learned that none is to be had.
            if let Some(found) = self.find() {
                return Ok(found);
            }
            if !self.is_full() {
                return self.open(backend).await;
            }
            self.room.notified().await;
        }
    }

    /// A place on a new line.
    async fn open(&self, backend: &Backend) -> Result<Option<Stream>, Fault> {
        if self.can.get().is_none() {
            let answer = ask(backend.connect(true).await?).await;
            self.can.set(Some(answer.is_some()));
            let Some(most) = answer else {
                let name = backend.name();
                self.thread.errors.say(&format!("{name} does not multiplex requests"));
                return Ok(None);
            };
            self.max_streams.set(self.max_streams.get().min(most));
        }
        let (thread, name) = (self.thread.clone(), backend.name().to_owned());
        let limits = (self.max_streams.get(), self.max_buffered);
        let line = Line::new(thread, name, limits, self.room.clone());
        let connection = backend.connect(true).await?;
        tokio::task::spawn_local(line.clone().run(connection));
        let stream = line.begin();
        self.open.borrow_mut().push(line);
        Ok(stream)
    }

    /// Whether no further line may be opened.
    fn is_full(&self) -> bool {
        self.open.borrow().iter().filter(|line| !line.is_broken()).count() >= self.most
    }

    /// The application has refused to multiplex, whatever was said: it is not tried again.
    pub fn give_up(&self) {
        self.can.set(Some(false));
        self.room.notify_one();
    }

    /// What is known without waiting.
    fn find(&self) -> Option<Option<Stream>> {
        if self.can.get() == Some(false) {
            return Some(None);
        }
        let mut open = self.open.borrow_mut();
        open.retain(|line| !line.is_broken());
        open.iter().find_map(Line::begin).map(Some)
    }
}

/// Asks, over a connection that is then closed (as php-fpm does itself), how many requests the
/// application takes at once on one. `None`: no more than one, or it does not say.
async fn ask(connection: Connection) -> Option<usize> {
    let conversation = async {
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
            let step = decoder.decode(&inbox).ok()?;
            match step.event {
                Some(Event::Values(range)) => return streams_of(&inbox[range]),
                Some(_) => return None,
                None => drop(inbox.drain(..step.consumed)),
            }
        }
    };
    tokio::time::timeout(ASKING, conversation).await.ok()?
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

//! Reads a request's body.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use forebay_net::deadline::{TICK, Ticks};
use forebay_net::fault::Fault;
use forebay_net::limit::{Limit, Reserved};
use forebay_net::socket::BUFFER;
use forebay_net::thread::Settings;
use forebay_net::timing::Step;
use forebay_wire::http1::{BodyDecoder, HttpError, RequestFraming, RequestHead};

use crate::spool::{Spool, Spooled};
use crate::stream::Stream;

/// Number of bytes to read at once after a read has filled the buffer.
// Compared with `BUFFER`, this size reduces Forebay's CPU time for an HTTP/1.1 upload by 15 %. The
// backend receives larger pieces, which reduces the backend's CPU time by 27 %.
const LARGE_READ: usize = 4 * BUFFER;

/// Observes the pieces of a body while the origin reads them.
pub trait BodyTap {
    /// Takes a copy of a piece. Returns false to observe no more of the body.
    fn piece(&mut self, piece: &[u8]) -> bool;

    /// Forgets all pieces, because the origin reads the body again from its start.
    fn restart(&mut self);

    /// Ends the observation after the last piece.
    fn end(self: Box<Self>);
}

/// The body of a request. The origin reads the body piece by piece.
pub struct Body {
    stream: Option<Stream>,
    inbox: Vec<u8>,
    /// Start of the bytes in `inbox` that are not decoded yet.
    start: usize,
    decoder: BodyDecoder,
    framing: RequestFraming,
    limit: u64,
    read: u64,
    /// Length of the request's head.
    head_len: usize,
    /// Total time spent waiting for the client.
    waited: Ticks,
    /// Maximum time between two reads, if the route has a limit of its own.
    idle: Option<Duration>,
    expect_continue: bool,
    is_discarded: bool,
    /// True if the last read filled `inbox`.
    was_full: bool,
    /// True if all bytes that were read from the body are still in `inbox`.
    in_hand: bool,
    /// Payload of chunks that arrived together, or the piece of `whole` that was read last.
    gathered: Vec<u8>,
    /// The complete body, if it was buffered, and the number of its bytes that the origin has read.
    whole: Option<Box<(Spooled, u64)>>,
    /// Observes the body, if the route copies requests.
    tap: Option<Box<dyn BodyTap>>,
    /// The memory of the buffers in the total of all requests. `None` until the body has to wait
    /// for the client.
    reserved: Option<Reserved>,
    /// The memory of the part that [`Body::spool`] has read.
    spooled: usize,
}

impl Body {
    pub fn new(stream: &Stream) -> Self {
        Self {
            stream: Some(stream.clone()),
            inbox: Vec::new(),
            start: 0,
            decoder: BodyDecoder::request(RequestFraming::None),
            framing: RequestFraming::None,
            limit: u64::MAX,
            read: 0,
            head_len: 0,
            waited: 0,
            idle: None,
            expect_continue: false,
            is_discarded: false,
            was_full: false,
            in_hand: true,
            gathered: Vec::new(),
            whole: None,
            tap: None,
            reserved: None,
            spooled: 0,
        }
    }

    /// Creates a body that has arrived completely.
    pub(crate) fn of_bytes(stream: &Stream, bytes: Vec<u8>) -> Self {
        let framing = RequestFraming::Length(bytes.len() as u64);
        let whole = Some(Box::new((Spooled::Memory(bytes), 0)));
        Self { framing, whole, ..Self::new(stream) }
    }

    /// Sets the maximum time between two reads. `None` means the limit of the server.
    pub fn limit_idle(&mut self, idle: Option<Duration>) {
        self.idle = idle;
    }

    /// Lets `tap` observe the pieces that the origin reads from now on.
    pub fn observe(&mut self, tap: Box<dyn BodyTap>) {
        self.tap = Some(tap);
    }

    pub fn attach(&mut self, stream: &Stream) {
        self.stream = Some(stream.clone());
        self.begin(RequestFraming::None);
    }

    pub fn detach(&mut self) {
        self.stream = None;
        self.inbox = Vec::new();
        self.gathered = Vec::new();
        self.whole = None;
        self.tap = None;
        self.reserved = None;
    }

    /// Prepares to read the body of `head`. If the request has a body, moves all bytes after the
    /// head from `bytes` to this body, including bytes of a following request.
    pub fn prepare(&mut self, head: &RequestHead, bytes: &mut Vec<u8>) {
        self.begin(head.framing);
        self.head_len = head.len;
        self.expect_continue = head.expect_continue;
        let stream = self.stream();
        stream.set_has_input(head.framing != RequestFraming::None || bytes.len() > head.len);
        self.decoder = stream.body_decoder(head.framing);
        if head.framing != RequestFraming::None {
            self.inbox.extend_from_slice(&bytes[head.len..]);
            bytes.truncate(head.len);
        }
    }

    fn begin(&mut self, framing: RequestFraming) {
        self.inbox.clear();
        self.start = 0;
        self.framing = framing;
        self.decoder = BodyDecoder::request(framing);
        self.limit = u64::MAX;
        self.read = 0;
        self.waited = 0;
        self.idle = None;
        self.expect_continue = false;
        self.is_discarded = false;
        self.was_full = false;
        self.in_hand = true;
        self.whole = None;
        self.tap = None;
        self.reserved = None;
        self.spooled = 0;
    }

    /// Reads the complete body, so that a slow upload does not occupy the origin. Does nothing if
    /// the body has a known length and has already arrived. After the call, the body has a known
    /// length and can be resent.
    pub async fn buffer(&mut self) -> Result<(), Fault> {
        if let RequestFraming::Length(length) = self.framing
            && length <= (self.inbox.len() - self.start) as u64
        {
            return Ok(());
        }
        let whole = self.spool().await?;
        if let Some(length) = whole.length() {
            self.framing = RequestFraming::Length(length);
            self.whole = Some(Box::new((whole, 0)));
        }
        Ok(())
    }

    /// Reads and returns the complete body, so that a slow upload does not occupy a process of the
    /// application.
    pub async fn spool(&mut self) -> Result<Spooled, Fault> {
        if self.framing() == RequestFraming::None {
            return Ok(Spooled::Empty);
        }
        let length = match self.framing {
            RequestFraming::Length(length) => Some(length),
            _ => None,
        };
        let mut spool = Spool::new(self.spool_dir(), length);
        loop {
            let Some(piece) = self.next().await? else { break };
            spool.push(piece)?;
            self.spooled = spool.memory();
            self.reserve()?;
        }
        spool.finish()
    }

    /// Counts the memory of the body's buffers in the total of all requests and replies. Fails if
    /// the total is at its limit.
    fn reserve(&mut self) -> Result<(), Fault> {
        let bytes = self.inbox.capacity() + self.gathered.capacity() + self.spooled;
        let thread = self.stream.as_ref().expect("a body is read while its stream is attached");
        let thread = thread.thread();
        let reserved =
            self.reserved.get_or_insert_with(|| Reserved::new(thread.load.buffered.clone()));
        reserved.set(bytes, thread.settings().limits.buffer_total).map_err(|_| {
            let why = "the buffers of all requests and replies have reached buffer_total of \
                       [server.limits]";
            Fault::us(503, why).limited_by(Limit::BufferTotal)
        })
    }

    /// Returns the next piece of a buffered body, or `None` at the end of the body.
    fn next_of_whole(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(whole) = &mut self.whole else { return Ok(None) };
        let (spooled, at) = &mut **whole;
        self.gathered.resize(4 * BUFFER, 0);
        let n = spooled.read_at(*at, &mut self.gathered).map_err(|error| {
            Fault::us(500, format!("cannot read a request body that was kept: {error}"))
        })?;
        *at += n as u64;
        self.gathered.truncate(n);
        let is_last = n == 0 || spooled.length() == Some(*at);
        show(&mut self.tap, &self.gathered, is_last);
        Ok((n > 0).then_some(&self.gathered[..]))
    }

    /// Returns the directory for spooled bodies.
    pub fn spool_dir(&self) -> PathBuf {
        self.stream().thread().settings().spool_dir()
    }

    /// Goes back to the start of the body, so that the body can be resent. Returns false if a part
    /// of it is no longer in memory.
    pub fn rewind(&mut self) -> bool {
        if !self.is_in_hand() {
            // Stop the observer in `tap`. It has lost the start of the body, and would take the
            // unread rest for a complete body.
            self.tap = None;
            return false;
        }
        if let Some(tap) = &mut self.tap {
            tap.restart();
        }
        if let Some(whole) = &mut self.whole {
            whole.1 = 0;
        } else {
            self.start = 0;
            self.read = 0;
            self.decoder = self.stream().body_decoder(self.framing);
        }
        true
    }

    /// Returns true if [`Body::rewind`] would succeed now.
    pub fn is_in_hand(&self) -> bool {
        self.whole.is_some() || self.in_hand
    }

    /// Returns true if the complete body is buffered, so that [`Body::rewind`] always succeeds.
    pub fn is_buffered(&self) -> bool {
        let left = || (self.inbox.len() - self.start) as u64;
        let arrived =
            |length| self.in_hand && self.start == 0 && self.read == 0 && length <= left();
        match self.framing {
            RequestFraming::None => true,
            RequestFraming::Length(length) => self.whole.is_some() || arrived(length),
            RequestFraming::Chunked => self.whole.is_some(),
        }
    }

    /// Sets the maximum length of the body. Fails at once if the announced length is larger.
    /// Otherwise [`Body::next`] fails after `limit` bytes.
    pub fn limit(&mut self, limit: u64) -> Result<(), Fault> {
        self.limit = limit;
        match self.framing {
            RequestFraming::Length(length) if length > limit => Err(too_large(limit)),
            _ => Ok(()),
        }
    }

    /// Returns the framing of the body for the origin. A discarded body has the framing `None`.
    pub fn framing(&self) -> RequestFraming {
        if self.is_discarded { RequestFraming::None } else { self.framing }
    }

    /// Returns true if the rest of the body is at most `limit` bytes and needs no `100 Continue`.
    pub(crate) fn is_small(&self, limit: u64) -> bool {
        match self.framing {
            RequestFraming::None => true,
            RequestFraming::Length(length) => !self.expect_continue && length - self.read <= limit,
            RequestFraming::Chunked => false,
        }
    }

    /// Treats the request as one without a body from now on. Unread bytes are discarded later.
    pub(crate) fn discard_for_redirect(&mut self) {
        self.is_discarded = true;
    }

    /// Sets the size of a refused request: a head of `received` bytes, and no body. Without this
    /// call, the log would contain the size of the previous request on the connection.
    pub(crate) fn forget(&mut self, received: usize) {
        (self.head_len, self.read) = (received, 0);
    }

    /// Returns the number of bytes of the request's head and of the body so far.
    pub fn bytes(&self) -> u64 {
        self.head_len as u64 + self.read
    }

    /// Returns true if the body has been read to its end.
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Returns true if the client waits for `100 Continue`, and Forebay has not sent it.
    pub(crate) fn is_continue_pending(&self) -> bool {
        self.expect_continue
    }

    /// Returns the next piece, or `None` after the last piece. The payloads of all chunks that have
    /// arrived form one piece. Fails if no further bytes arrive within the time limits for bodies.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.whole.is_some() {
            return self.next_of_whole();
        }
        let data = loop {
            let step = self.decoder.decode(&self.inbox[self.start..])?;
            let base = self.start;
            self.start += step.consumed;
            if !step.data.is_empty() {
                break base + step.data.start..base + step.data.end;
            }
            if step.done {
                if let Some(stream) = &self.stream {
                    stream.set_has_input(self.start < self.inbox.len());
                }
                show(&mut self.tap, b"", true);
                return Ok(None);
            }
            self.receive().await?;
        };
        let is_gathered = self.framing == RequestFraming::Chunked && self.gather(&data)?;
        let piece = if is_gathered { &self.gathered } else { &self.inbox[data] };
        self.read += piece.len() as u64;
        if self.read > self.limit {
            return Err(too_large(self.limit));
        }
        show(&mut self.tap, piece, self.decoder.is_done());
        Ok(Some(piece))
    }

    /// Returns the trailers that may be forwarded, as lines that end in CRLF. Call this after the
    /// last piece. Over HTTP/2 and HTTP/3, first waits until the client has ended the request,
    /// because trailers may follow the body.
    pub async fn trailers(&mut self) -> Result<Vec<u8>, Fault> {
        while !self.stream().has_request_ended() {
            self.receive().await?;
        }
        Ok(self.trailers_so_far())
    }

    /// Returns the trailers received so far. If the body was buffered and had no announced length,
    /// the result contains all trailers of the request.
    pub fn trailers_so_far(&self) -> Vec<u8> {
        let mut trailers = self.stream().request_trailers();
        trailers.extend_from_slice(self.decoder.trailers());
        trailers
    }

    /// Copies the payload `first`, and the payloads of the chunks received after it, to `gathered`.
    /// Returns false if no further payload was received. The chunks stay in `inbox` for
    /// [`Body::rewind`].
    fn gather(&mut self, first: &Range<usize>) -> Result<bool, HttpError> {
        self.gathered.clear();
        while self.start < self.inbox.len() {
            let step = self.decoder.decode(&self.inbox[self.start..])?;
            let base = self.start;
            self.start += step.consumed;
            if step.data.is_empty() {
                break;
            }
            if self.gathered.is_empty() {
                self.gathered.extend_from_slice(&self.inbox[first.clone()]);
            }
            let data = base + step.data.start..base + step.data.end;
            self.gathered.extend_from_slice(&self.inbox[data]);
        }
        Ok(!self.gathered.is_empty())
    }

    /// Reads more of the body into `inbox`. Fails if the client exceeds a time limit or closes the
    /// connection.
    async fn receive(&mut self) -> Result<(), Fault> {
        let stream = self.stream.as_ref().expect("a body is read while its stream is attached");
        if std::mem::take(&mut self.expect_continue) {
            let sent = stream.send_continue().await;
            sent.map_err(|error| Fault::client_closed(&error, Limit::Write))?;
        }
        if self.start > 0 {
            self.in_hand = false;
            self.inbox.drain(..self.start);
            self.start = 0;
        }
        let settings = stream.thread().settings();
        let idle = self.idle.unwrap_or(settings.timeouts.body_idle);
        let (patience, limit) = match self.left_by_rate(&settings, idle) {
            Some(left) if left < idle => (left, Limit::BodyRate),
            _ => (idle, Limit::BodyIdle),
        };
        if patience.is_zero() {
            return Err(Fault::client(408, "slow body").limited_by(limit));
        }
        let deadlines = &stream.thread().deadlines;
        let (step, began) = (stream.enter(Step::Body), deadlines.now());
        let read = loop {
            let mut readable = pin!(stream.body_readable(patience));
            let ready = match poll_fn(|context| Poll::Ready(readable.as_mut().poll(context))).await
            {
                Poll::Ready(ready) => ready,
                Poll::Pending => {
                    // Thousands of uploads may wait for their clients, so they hold no buffers
                    // without content. `gathered` has been passed on.
                    self.gathered = Vec::new();
                    let thread = stream.thread();
                    if self.inbox.is_empty() {
                        thread.keep_buffer(std::mem::take(&mut self.inbox));
                    } else {
                        self.inbox.shrink_to_fit();
                    }
                    if let Some(reserved) = &mut self.reserved {
                        let _ = reserved.set(self.inbox.capacity() + self.spooled, u64::MAX);
                    }
                    let ready = readable.await;
                    if self.inbox.capacity() == 0 {
                        self.inbox = thread.take_buffer();
                    }
                    ready
                }
            };
            grow(&mut self.inbox, self.was_full)?;
            match ready {
                Err(error) => break Err(error),
                Ok(()) => match stream.read_body_now(&mut self.inbox, patience).await {
                    // The event loop has reported bytes that an earlier read has taken.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    read => break read,
                },
            }
        };
        self.waited += deadlines.now() - began;
        stream.timer().go_back(Step::Body, step);
        match read {
            Ok(0) if self.decoder.ends_at_close() => {
                self.decoder.close();
                Ok(())
            }
            Ok(0) => Err(Fault::client(499, "the client closed in the middle of its request")),
            Ok(_) => {
                self.was_full = self.inbox.len() == self.inbox.capacity();
                self.reserve()
            }
            Err(error) => Err(Fault::client_closed(&error, limit)),
        }
    }

    fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("a body is read while its stream is attached")
    }

    /// Returns the remaining time to wait for the client, or `None` if no minimum body rate is set.
    /// The client may take `idle` plus the number of received bytes divided by the minimum rate.
    fn left_by_rate(&self, settings: &Settings, idle: Duration) -> Option<Duration> {
        let rate = settings.limits.body_rate;
        let earned = Duration::from_millis(self.read.saturating_mul(1000).checked_div(rate)?);
        let allowed = idle.saturating_add(earned);
        // Count only the time spent waiting for the client, because a backend may be slow to accept
        // the body.
        Some(allowed.saturating_sub(TICK.saturating_mul(self.waited)))
    }

    /// Reads and drops the rest of the body, if it is at most `limit` bytes. Returns true if the
    /// connection can be reused.
    pub async fn discard(&mut self, limit: u64) -> Result<bool, Fault> {
        if self.is_done() {
            return Ok(true);
        }
        let left = match self.framing {
            RequestFraming::Length(length) => length - self.read,
            _ => 0,
        };
        if self.expect_continue || left > limit {
            return Ok(false);
        }
        let most = self.read.saturating_add(limit).min(self.limit);
        while self.next().await?.is_some() {
            if self.read > most {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves the bytes received after the body into `bytes`. Returns false if there was no body.
    pub(crate) fn take_rest(&mut self, bytes: &mut Vec<u8>) -> bool {
        if self.framing == RequestFraming::None {
            return false;
        }
        bytes.clear();
        bytes.extend_from_slice(&self.inbox[self.start..]);
        if self.inbox.capacity() > 4 * BUFFER {
            self.inbox = Vec::new();
        }
        self.begin(RequestFraming::None);
        true
    }
}

/// Shows a piece of the body to `tap`, if there is one. Removes `tap` after the last piece, or if
/// `tap` wants no more pieces.
fn show(tap: &mut Option<Box<dyn BodyTap>>, piece: &[u8], is_last: bool) {
    let Some(observer) = tap else { return };
    if !observer.piece(piece) {
        *tap = None;
    } else if is_last && let Some(tap) = tap.take() {
        tap.end();
    }
}

/// Makes room for the next read. `was_full` is true if the last one filled the buffer.
fn grow(inbox: &mut Vec<u8>, was_full: bool) -> Result<(), Fault> {
    let more = if was_full && inbox.len() < LARGE_READ {
        LARGE_READ - inbox.len()
    } else if inbox.capacity() - inbox.len() < BUFFER / 4 {
        BUFFER
    } else {
        return Ok(());
    };
    inbox.try_reserve(more).map_err(|_| Fault::out_of_memory())
}

fn too_large(limit: u64) -> Fault {
    Fault::client(413, format!("the request body is larger than the max_body of {limit} bytes"))
        .limited_by(Limit::MaxBody)
}

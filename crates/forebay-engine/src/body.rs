//! Reading a request's body.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use forebay_wire::http1::{BodyDecoder, HttpError, RequestFraming, RequestHead};

use crate::deadline::{TICK, Ticks};
use crate::fault::Fault;
use crate::limit::Limit;
use crate::socket::BUFFER;
use crate::spool::{Spool, Spooled};
use crate::stream::Stream;
use crate::thread::Settings;
use crate::timing::Step;

/// Bytes that are read at a time once a read has filled the buffer: an upload by HTTP/1.1 takes 0.85 of
/// the CPU for them, and the backend, which gets as large pieces, 0.73.
const LARGE_READ: usize = 4 * BUFFER;

/// A request's body, read piece by piece as the origin wants it.
pub struct Body {
    stream: Option<Stream>,
    inbox: Vec<u8>,
    /// Where the bytes not yet decoded start in `inbox`.
    start: usize,
    decoder: BodyDecoder,
    framing: RequestFraming,
    limit: u64,
    read: u64,
    /// How long the client was waited for.
    waited: Ticks,
    expect_continue: bool,
    is_discarded: bool,
    /// Whether the last read has filled `inbox`.
    was_full: bool,
    /// Whether all that was read of the body is still in `inbox`.
    in_hand: bool,
    /// Chunks that came together, as one piece; or the piece of `whole` that was read last.
    gathered: Vec<u8>,
    /// All of it, where it was taken in before it is forwarded, and how much has been forwarded.
    whole: Option<Box<(Spooled, u64)>>,
}

impl Body {
    pub(crate) fn new(stream: &Stream) -> Self {
        Self {
            stream: Some(stream.clone()),
            inbox: Vec::new(),
            start: 0,
            decoder: BodyDecoder::request(RequestFraming::None),
            framing: RequestFraming::None,
            limit: u64::MAX,
            read: 0,
            waited: 0,
            expect_continue: false,
            is_discarded: false,
            was_full: false,
            in_hand: true,
            gathered: Vec::new(),
            whole: None,
        }
    }

    pub(crate) fn attach(&mut self, stream: &Stream) {
        self.stream = Some(stream.clone());
        self.begin(RequestFraming::None);
    }

    pub(crate) fn detach(&mut self) {
        self.stream = None;
        self.inbox = Vec::new();
        self.gathered = Vec::new();
        self.whole = None;
    }

    /// Makes ready for the body of `head`, whose first bytes may stand behind it in `bytes`.
    pub(crate) fn prepare(&mut self, head: &RequestHead, bytes: &mut Vec<u8>) {
        self.begin(head.framing);
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
        self.expect_continue = false;
        self.is_discarded = false;
        self.was_full = false;
        self.in_hand = true;
        self.whole = None;
    }

    /// Takes all of the body in, unless it is in hand, before any of it is forwarded: a slow upload
    /// then holds nobody but itself. From then on it has a length, and can be sent again.
    pub(crate) async fn buffer(&mut self) -> Result<(), Fault> {
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

    /// Takes all of the body in, for an origin whose process must not be held by a slow upload.
    pub async fn spool(&mut self) -> Result<Spooled, Fault> {
        if self.framing() == RequestFraming::None {
            return Ok(Spooled::Empty);
        }
        let mut spool = Spool::new(self.spool_dir());
        while let Some(piece) = self.next().await? {
            spool.push(piece)?;
        }
        spool.finish()
    }

    /// The next piece of a body that was taken in.
    fn next_of_whole(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Some(whole) = &mut self.whole else { return Ok(None) };
        let (spooled, at) = &mut **whole;
        self.gathered.resize(4 * BUFFER, 0);
        let n = spooled.read_at(*at, &mut self.gathered).map_err(|error| {
            Fault::us(500, format!("cannot read a request body that was kept: {error}"))
        })?;
        *at += n as u64;
        self.gathered.truncate(n);
        Ok((n > 0).then_some(&self.gathered[..]))
    }

    /// Where it is spooled.
    pub fn spool_dir(&self) -> PathBuf {
        self.stream().thread().settings().spool_dir()
    }

    /// Goes back to the start, so that the body can be sent once more; `false` where it has come
    /// in pieces of which some are gone.
    pub fn rewind(&mut self) -> bool {
        if let Some(whole) = &mut self.whole {
            whole.1 = 0;
            return true;
        }
        if self.in_hand {
            self.start = 0;
            self.read = 0;
            self.decoder = self.stream().body_decoder(self.framing);
        }
        self.in_hand
    }

    /// Refuses bodies of more than `limit` bytes, at once where the length is known.
    pub(crate) fn limit(&mut self, limit: u64) -> Result<(), Fault> {
        self.limit = limit;
        match self.framing {
            RequestFraming::Length(length) if length > limit => Err(too_large(limit)),
            _ => Ok(()),
        }
    }

    /// How the body ends.
    pub fn framing(&self) -> RequestFraming {
        if self.is_discarded { RequestFraming::None } else { self.framing }
    }

    /// Whether the rest can surely be read within `limit` bytes, without asking the client for it.
    pub(crate) fn is_small(&self, limit: u64) -> bool {
        match self.framing {
            RequestFraming::None => true,
            RequestFraming::Length(length) => !self.expect_continue && length - self.read <= limit,
            RequestFraming::Chunked => false,
        }
    }

    /// From now on the request is one without a body. What was not read still is discarded later.
    pub(crate) fn discard_for_redirect(&mut self) {
        self.is_discarded = true;
    }

    /// Whether all of it has been read.
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Whether nothing has been sent to a client that waits for `100 Continue`.
    pub(crate) fn is_continue_pending(&self) -> bool {
        self.expect_continue
    }

    /// The next piece, all that is in hand of chunks; `None` behind the last. Waits as long as the
    /// time limit for bodies allows.
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
        Ok(Some(piece))
    }

    /// The trailers that may be passed on, as lines that end in CRLF. Call it after the last piece: where
    /// the request does not end with its body, it waits for that end.
    pub async fn trailers(&mut self) -> Result<Vec<u8>, Fault> {
        while !self.stream().has_request_ended() {
            self.receive().await?;
        }
        Ok(self.trailers_so_far())
    }

    /// Those that have come: all there will be, where the body was taken in and no length announced.
    pub fn trailers_so_far(&self) -> Vec<u8> {
        let mut trailers = self.stream().request_trailers();
        trailers.extend_from_slice(self.decoder.trailers());
        trailers
    }

    /// Puts the payload `first` and that of the chunks behind it, as far as they have come,
    /// together in `gathered`; false where there is no more than `first`. The chunks themselves
    /// stay as they are, for [`Body::rewind`].
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
        if self.was_full && self.inbox.len() < LARGE_READ {
            self.inbox.reserve(LARGE_READ - self.inbox.len());
        } else if self.inbox.capacity() - self.inbox.len() < BUFFER / 4 {
            self.inbox.reserve(BUFFER);
        }
        let settings = stream.thread().settings();
        let (patience, limit) = match self.left_by_rate(&settings) {
            Some(left) if left < settings.timeouts.body_idle => (left, Limit::BodyRate),
            _ => (settings.timeouts.body_idle, Limit::BodyIdle),
        };
        if patience.is_zero() {
            return Err(Fault::client(408, "slow body").limited_by(limit));
        }
        let deadlines = &stream.thread().deadlines;
        let (step, began) = (stream.enter(Step::Body), deadlines.now());
        let read = stream.read(&mut self.inbox, patience).await;
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
                Ok(())
            }
            Err(error) => Err(Fault::client_closed(&error, limit)),
        }
    }

    fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("a body is read while its stream is attached")
    }

    /// How much longer the client may be waited for, where bodies have to come in at some rate: the
    /// idle time, and a second for each second's worth of bytes. Only waiting for the client
    /// counts, as a backend may be slow to take what has come.
    fn left_by_rate(&self, settings: &Settings) -> Option<Duration> {
        let rate = settings.limits.body_rate;
        let earned = Duration::from_millis(self.read.saturating_mul(1000).checked_div(rate)?);
        let allowed = settings.timeouts.body_idle.saturating_add(earned);
        Some(allowed.saturating_sub(TICK.saturating_mul(self.waited)))
    }

    /// Reads and drops the rest, if that is at most `limit` bytes; whether the connection can go
    /// on.
    pub(crate) async fn discard(&mut self, limit: u64) -> Result<bool, Fault> {
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

    /// Puts what came behind the body into `bytes`; `false` where there was no body.
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

fn too_large(limit: u64) -> Fault {
    Fault::client(413, format!("the request body is larger than the max_body of {limit} bytes"))
        .limited_by(Limit::MaxBody)
}

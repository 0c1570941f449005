//! Records replies of origins, for caches and for requests that Forebay itself sends.
//!
//! A cache sets a [`Recorder`] on the reply before the origin answers. The recorder sees the head
//! as the origin wrote it: before the route's rules, compression and the fields of the connection.

use std::rc::Rc;

use forebay_net::fault::Fault;

use super::{Length, Reply, ReplyPhase};

/// Decides if a reply is recorded, when the head of the reply is complete.
pub trait Recorder {
    /// Decides if a reply with this status, these field lines and this body length is recorded. The
    /// lines do not contain `Content-Length`.
    fn decide(&self, status: u16, lines: &[u8], length: Length) -> Keep;

    /// Appends field lines to a reply that the client gets.
    fn append_fields(&self, _lines: &mut Vec<u8>) {}

    /// Reserves memory for `bytes` more bytes of a copy. Returns false at a memory limit.
    fn reserve(&self, bytes: usize) -> bool;

    /// Takes the next bytes of a body that is too large for the memory. The first call gets the
    /// first bytes of the body. Returns false if the recorder cannot store them.
    fn spill(&self, _bytes: &[u8]) -> bool {
        false
    }

    /// Reports that the origin has requested an internal redirect to `target` instead of sending a
    /// reply. The recorder sees no head and no body.
    fn redirected(&self, _target: &[u8]) {}

    /// Reports that the body can no longer be recorded.
    fn give_up(&self) {}

    /// Reports the number of body bytes that were dropped, because of [`Keep::Drop`].
    fn dropped(&self, _bytes: usize) {}
}

/// Treatment of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The client gets the reply, and no copy is made.
    No,
    /// The client gets the reply. The cache gets a copy if the body has at most this many bytes. A
    /// longer body goes to [`Recorder::spill`].
    Copy(usize),
    /// The client gets the reply. All bytes of the body go to [`Recorder::spill`].
    Spill,
    /// The cache gets the reply instead of the client, and then answers the client. If the body has
    /// more than this many bytes, the body is discarded.
    Instead(usize),
    /// The reply is discarded. The cache answers the client.
    Drop,
}

/// A reply that the origin has written.
#[derive(Debug)]
pub struct Captured {
    /// Status code.
    pub status: u16,
    /// Field lines of the origin, without `Content-Length`.
    pub lines: Vec<u8>,
    /// Body. `None` if it was not recorded, was too long, or did not arrive completely.
    pub body: Option<Vec<u8>>,
    /// True if the recorder has the complete body.
    pub is_spilled: bool,
    /// True if the reply was not sent to the client.
    pub is_withheld: bool,
}

/// State of a reply that is recorded.
pub(super) struct Capture {
    recorder: Rc<dyn Recorder>,
    keep: Option<Keep>,
    status: u16,
    lines: Vec<u8>,
    body: Vec<u8>,
    length: Length,
    /// Number of body bytes that the recorder has.
    spilled: u64,
    is_spilled: bool,
    /// True as long as all body bytes could be recorded.
    is_kept: bool,
    is_whole: bool,
    /// True if no client waits for the reply.
    is_silent: bool,
}

impl Capture {
    fn limit(&self) -> Option<usize> {
        match self.keep {
            Some(Keep::Copy(most) | Keep::Instead(most)) if self.is_kept && !self.is_spilled => {
                Some(most)
            }
            _ => None,
        }
    }

    // Keep this function out of its caller, because replies without a capture would also pay for
    // its code.
    #[inline(never)]
    pub(super) fn push(&mut self, data: &[u8]) {
        if self.keep == Some(Keep::Drop) {
            return self.recorder.dropped(data.len());
        }
        if self.is_spilled && self.is_kept {
            return self.spill(data);
        }
        let Some(most) = self.limit() else { return };
        let is_reserved = matches!(self.length, Length::Known(_));
        let fits = self.body.len() + data.len() <= most;
        if !fits || !is_reserved && !self.recorder.reserve(data.len()) {
            self.is_spilled = true;
            let body = std::mem::take(&mut self.body);
            self.spill(&body);
            self.spill(data);
            return;
        }
        self.body.extend_from_slice(data);
    }

    /// Gives bytes to the recorder.
    fn spill(&mut self, data: &[u8]) {
        if self.is_kept {
            if self.recorder.spill(data) {
                self.spilled += data.len() as u64;
            } else {
                self.lose_body();
            }
        }
    }

    pub(super) fn lose_body(&mut self) {
        self.is_kept = false;
        self.body = Vec::new();
        self.recorder.give_up();
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent
    }

    pub(super) fn note_redirect(&self, target: &[u8]) {
        self.recorder.redirected(target);
    }

    fn is_withheld(&self) -> bool {
        matches!(self.keep, Some(Keep::Instead(_) | Keep::Drop))
            || self.is_silent && self.keep == Some(Keep::Spill)
    }

    /// Returns a fault if a withheld body is shorter or longer than the origin announced.
    fn check_length(&self) -> Result<(), Fault> {
        let Length::Known(length) = self.length else { return Ok(()) };
        let is_kept = self.is_kept && matches!(self.keep, Some(Keep::Instead(_) | Keep::Spill));
        match length.checked_sub(self.body.len() as u64 + self.spilled) {
            _ if !is_kept => Ok(()),
            Some(0) => Ok(()),
            Some(left) => Err(Fault::shorter_than_announced(left)),
            None => Err(Fault::longer_than_announced()),
        }
    }
}

impl Reply {
    /// Asks `recorder` if the origin's reply is to be recorded. `is_silent` is true if no client
    /// waits for the reply.
    pub fn record(&mut self, recorder: Rc<dyn Recorder>, is_silent: bool) {
        self.capture = Some(Box::new(Capture {
            recorder,
            keep: None,
            status: 0,
            lines: Vec::new(),
            body: Vec::new(),
            length: Length::None,
            spilled: 0,
            is_spilled: false,
            is_kept: true,
            is_whole: false,
            is_silent,
        }));
    }

    /// Takes the recorded reply; `None` if nothing was recorded. If the reply was not sent to the
    /// client, another reply can begin.
    pub fn take_captured(&mut self) -> Option<Captured> {
        let mut capture = self.capture.take()?;
        capture.keep?;
        let is_withheld = capture.is_withheld();
        if is_withheld {
            self.empty();
            self.phase = ReplyPhase::Waiting;
            self.status = 0;
        }
        let has_body = capture.limit().is_some() && capture.is_whole;
        Some(Captured {
            status: capture.status,
            lines: capture.lines,
            body: has_body.then_some(std::mem::take(&mut capture.body)),
            is_spilled: capture.is_spilled && capture.is_kept && capture.is_whole,
            is_withheld,
        })
    }

    /// Passes the head to the recorder. Returns true if the client does not get the reply.
    pub(super) fn capture_head(&mut self, length: Length) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        if capture.keep.is_some() {
            return false;
        }
        let lines = &self.out[self.fields..];
        let keep = match capture.recorder.decide(self.status, lines, length) {
            Keep::No if capture.is_silent => Keep::Drop,
            Keep::Copy(most) if capture.is_silent => Keep::Instead(most),
            keep => keep,
        };
        let keep = match (keep, length) {
            (Keep::Copy(_) | Keep::Instead(_), Length::Known(length))
                if !capture.recorder.reserve(usize::try_from(length).unwrap_or(usize::MAX)) =>
            {
                capture.recorder.give_up();
                if capture.is_silent { Keep::Drop } else { Keep::No }
            }
            (keep, _) => keep,
        };
        (capture.keep, capture.status, capture.length) = (Some(keep), self.status, length);
        capture.is_spilled = keep == Keep::Spill;
        capture.lines.extend_from_slice(lines);
        if capture.is_withheld() {
            self.withhold();
            return true;
        }
        capture.recorder.append_fields(&mut self.out);
        if matches!(keep, Keep::Copy(_)) {
            // Other requests may wait for the recorded copy. Let the backlog store the reply, so
            // that a slow client does not delay the copy.
            self.is_buffered = true;
        }
        false
    }

    /// Records the end of the origin's body. Fails if a withheld body is shorter or longer than
    /// announced.
    pub(super) fn capture_end(&mut self) -> Result<(), Fault> {
        let Some(capture) = &mut self.capture else { return Ok(()) };
        capture.check_length()?;
        capture.is_whole = true;
        Ok(())
    }

    /// Discards the recorded reply. At the next head, the recorder decides again if the reply is
    /// recorded.
    pub(super) fn restart_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.keep = None;
            capture.lines.clear();
            capture.body.clear();
            (capture.is_kept, capture.is_whole) = (true, false);
            (capture.is_spilled, capture.spilled) = (false, 0);
        }
    }
}

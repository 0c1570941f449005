//! Collects, compresses and writes the body of a reply, with as few system calls as possible.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::socket::BUFFER;

use super::pace::Delayed;
use super::{Framing, Length, Reply, ReplyPhase};
use crate::compress::SLICE;
use crate::part::Part;

/// Maximum bytes that are collected before they are written.
const GATHER: usize = 2 * BUFFER;

/// Outcome of [`Reply::collect`].
enum Collected {
    /// The bytes were added, or the client does not want them.
    Done,
    /// The bytes must be compressed.
    Compress,
    /// The bytes must be written.
    Write,
}

impl Reply {
    /// Buffers a complete reply with these field lines. The server finishes the reply, so the
    /// caller must not. Returns false, and does nothing, if the reply is too large, or if a filter
    /// or compression may change it.
    pub fn buffer_reply(&mut self, status: u16, lines: &[u8], body: &[u8]) -> bool {
        self.buffer_lines(status, lines, (body, false), |_| {})
    }

    /// Buffers a complete reply as [`Reply::buffer_reply`] does, and returns false in the same
    /// cases. `lines` must contain a `Date`. `append` adds some short lines.
    pub fn buffer_stored(
        &mut self,
        status: u16,
        lines: &[u8],
        body: &[u8],
        append: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        self.buffer_lines(status, lines, (body, true), append)
    }

    fn buffer_lines(
        &mut self,
        status: u16,
        lines: &[u8],
        (body, has_date): (&[u8], bool),
        append: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        // The status line, the server's own fields and the framing need less than `BUFFER / 8`
        // bytes.
        const ROOM: usize = GATHER - BUFFER / 8;
        if self.offer.is_some() || self.next_filter.is_some() || lines.len() + body.len() > ROOM {
            return false;
        }
        self.begin(status, b"");
        self.out.extend_from_slice(lines);
        append(&mut self.out);
        self.skip_sendfile_scan();
        self.end_head(Length::Known(body.len() as u64), has_date);
        self.capture_body(body);
        if matches!(self.admit(body), Ok(true)) {
            self.out.extend_from_slice(body);
        }
        true
    }

    /// Adds body bytes, and writes all collected bytes when there are enough. [`Reply::flush`] and
    /// [`Reply::finish`] write the bytes earlier.
    pub async fn push(&mut self, data: &[u8]) -> Result<(), Fault> {
        self.capture_body(data);
        if self.filter.is_some() {
            // Box the future, so that replies without a filter reserve no memory for it.
            return Box::pin(self.push_filtered(data)).await;
        }
        match self.collect(data)? {
            Collected::Done => Ok(()),
            Collected::Compress => self.compress(data).await,
            Collected::Write => self.write_out(data, None).await,
        }
    }

    /// Adds body bytes without passing them to the cache or the filter.
    pub(super) async fn push_plain(&mut self, data: &[u8]) -> Result<(), Fault> {
        match self.collect(data)? {
            Collected::Done => Ok(()),
            Collected::Compress => self.compress(data).await,
            Collected::Write => self.write_out(data, None).await,
        }
    }

    /// Adds body bytes if this needs no compression and no write. Otherwise adds nothing: the
    /// result names the step that the caller must take. Fails if the bytes exceed the announced
    /// length.
    fn collect(&mut self, data: &[u8]) -> Result<Collected, Fault> {
        if self.compressor.is_some() {
            return Ok(Collected::Compress);
        }
        if !self.admit(data)? {
            return Ok(Collected::Done);
        }
        if self.out.len() + data.len() > GATHER {
            return Ok(Collected::Write);
        }
        self.out.extend_from_slice(data);
        Ok(Collected::Done)
    }

    /// Sends the body that [`Reply::end_head_of_whole`] received, or its compressed copy.
    pub async fn push_whole(&mut self, data: &[u8]) -> Result<(), Fault> {
        match self.compressed.take() {
            Some(compressed) => self.push(&compressed).await,
            None => self.push(data).await,
        }
    }

    /// Adds body bytes and writes all collected bytes.
    pub async fn send(&mut self, data: &[u8]) -> Result<(), Fault> {
        self.capture_body(data);
        if self.filter.is_some() {
            Box::pin(self.push_filtered(data)).await?;
            return self.flush().await;
        }
        if self.compressor.is_some() {
            self.compress(data).await?;
            return self.flush().await;
        }
        if self.admit(data)? { self.write_out(data, None).await } else { self.flush().await }
    }

    /// Writes all collected bytes.
    pub async fn flush(&mut self) -> Result<(), Fault> {
        if let Some(compressor) = &mut self.compressor {
            let before = self.out.len();
            compressor.flush(&mut self.out)?;
            self.body_bytes += (self.out.len() - before) as u64;
        }
        if self.out.is_empty() && !self.has_head {
            return Ok(());
        }
        self.write_out(b"", None).await
    }

    /// Sends `length` bytes of `file` from `offset` on as body.
    pub async fn send_file(&mut self, file: &File, offset: u64, length: u64) -> Result<(), Fault> {
        if let Some(capture) = &mut self.capture {
            capture.lose_body();
        }
        if self.filter.is_some() || self.compressor.is_some() {
            return self.change_file(file, offset, length).await;
        }
        debug_assert!(self.framing != Framing::Open, "files have a length");
        self.flush().await?;
        self.drain().await?;
        match &mut self.framing {
            Framing::None => return Ok(()),
            Framing::Length(left) => *left = left.saturating_sub(length),
            Framing::Open => {}
        }
        let ends = self.framing == Framing::Length(0);
        self.body_bytes += length;
        let (mut offset, mut left) = (offset, length);
        loop {
            let count = match &mut self.pace {
                Some(pace) => Box::pin(pace.wait(left)).await,
                None => left,
            };
            left -= count;
            let ends = ends && left == 0;
            let sent = self.stream().send_file(file.as_fd(), offset, count, ends).await;
            self.written(sent)?;
            offset += count;
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Ends the reply and writes all collected bytes.
    pub async fn finish(&mut self) -> Result<(), Fault> {
        self.finish_with(b"").await
    }

    /// Ends the reply as [`Reply::finish`] does, with these trailer fields, each ending in CRLF.
    /// The caller guarantees that the client accepts trailers. Over HTTP/1.1, trailers are sent
    /// only after a chunked body.
    pub async fn finish_with(&mut self, trailers: &[u8]) -> Result<(), Fault> {
        if let Framing::Length(left @ 1..) = self.framing {
            return Err(Fault::shorter_than_announced(left));
        }
        self.capture_end()?;
        if self.filter.is_some() {
            Box::pin(self.end_filter()).await?;
        }
        if let Some(compressor) = self.compressor.take() {
            let before = self.out.len();
            compressor.finish(&mut self.out)?;
            self.body_bytes += (self.out.len() - before) as u64;
        }
        self.phase = ReplyPhase::Done;
        let mut trailers = trailers.to_vec();
        if let Some(rules) = self.applied.as_ref().filter(|_| !trailers.is_empty()) {
            rules.remove_from(&mut trailers, 0);
        }
        if self.framing != Framing::Open && self.out.is_empty() && !self.has_head {
            return Ok(());
        }
        self.write_out(b"", Some(&trailers)).await
    }

    fn capture_body(&mut self, data: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.push(data);
        }
    }

    /// Subtracts the length of `data` from the announced length. Returns false if there is nothing
    /// to write: `data` is empty, or the client gets no body. Fails if `data` exceeds the announced
    /// length.
    fn admit(&mut self, data: &[u8]) -> Result<bool, Fault> {
        debug_assert!(self.phase == ReplyPhase::Body, "the body comes between head and end");
        if self.framing == Framing::None || data.is_empty() {
            return Ok(false);
        }
        if let Framing::Length(left) = &mut self.framing {
            *left = left.checked_sub(data.len() as u64).ok_or_else(Fault::longer_than_announced)?;
        }
        self.body_bytes += data.len() as u64;
        Ok(true)
    }

    /// Compresses body bytes. The result is written when enough bytes have been collected.
    async fn compress(&mut self, data: &[u8]) -> Result<(), Fault> {
        debug_assert!(self.phase == ReplyPhase::Body, "the body comes between head and end");
        for slice in data.chunks(SLICE) {
            let Some(compressor) = &mut self.compressor else { return Ok(()) };
            let before = self.out.len();
            let is_due = compressor.push(slice, &mut self.out)?;
            self.body_bytes += (self.out.len() - before) as u64;
            if self.out.len() > GATHER {
                self.write_out(b"", None).await?;
            }
            // Compression takes a hundred times as long as copying, so let other tasks run between
            // the slices.
            if is_due {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Sends a range of a file through the filter and the compressor, in slices. Other tasks can
    /// run between two slices.
    async fn change_file(&mut self, file: &File, from: u64, length: u64) -> Result<(), Fault> {
        let mut slice = vec![0; SLICE];
        let mut done = 0;
        while done < length {
            let wanted = SLICE.min(usize::try_from(length - done).unwrap_or(SLICE));
            let read = file.read_at(&mut slice[..wanted], from + done);
            let read =
                read.map_err(|error| Fault::us(500, format!("cannot read a file: {error}")))?;
            if read == 0 {
                return Err(Fault::us(500, "a file became shorter while it was sent"));
            }
            if self.filter.is_some() {
                Box::pin(self.push_filtered(&slice[..read])).await?;
            } else {
                self.compress(&slice[..read]).await?;
            }
            done += read as u64;
        }
        Ok(())
    }

    /// Writes the collected bytes and then `data`. `last` has the trailers if the reply ends here.
    async fn write_out(&mut self, data: &[u8], last: Option<&[u8]>) -> Result<(), Fault> {
        if self.has_head && self.refuses_tunnel() {
            // The head has not been written, so an error reply can replace this reply.
            return Err(Fault::client(
                501,
                "an extended CONNECT to an origin that opens no tunnel",
            ));
        }
        self.is_written = true;
        // A body of known length ends with its last byte, which also ends the reply.
        let has_all = matches!(self.framing, Framing::None | Framing::Length(0));
        let last = last.or((self.phase == ReplyPhase::Body && has_all).then_some(b""));
        let mut delayed = self.delay_body(data);
        // The compiler inlines a future only if it has one caller. So one loop writes the parts,
        // with and without a bandwidth limit.
        loop {
            let (data, last) = match (&mut delayed, &mut self.pace) {
                // Box the future, so that replies without a limit reserve no memory for it.
                (Some(delayed), Some(pace)) => Box::pin(delayed.next(pace, last)).await,
                _ => (data, last),
            };
            let part = Part {
                status: self.head_status,
                has_head: self.has_head,
                fields_at: self.fields,
                gathered: &self.out,
                body_at: self.body_at,
                data,
                is_chunked: self.is_chunked(),
                last,
                may_wait: self.phase == ReplyPhase::Done && self.keep_alive && last.is_some(),
            };
            let stream = self.stream();
            let written = if stream.write_later(&part) {
                Ok(())
            } else {
                stream.write(part, self.is_buffered).await
            };
            let has_head = self.has_head;
            self.empty();
            self.written(written)?;
            if has_head && self.stream().lost().is_some() {
                // The client has left before it got any of the reply.
                self.status = 499;
            }
            if delayed.as_ref().is_none_or(|delayed| delayed.is_empty()) {
                return Ok(());
            }
        }
    }

    /// Handles the outcome of a write. Ignores an error if the request runs on without its client.
    fn written(&self, outcome: io::Result<()>) -> Result<(), Fault> {
        match outcome {
            Err(error) if !self.stream().lose(&error) => {
                Err(Fault::client_closed(&error, Limit::Write))
            }
            _ => Ok(()),
        }
    }

    /// Returns the collected body bytes followed by `data`, so that the caller can delay them.
    /// Returns `None` if the route does not limit the speed, or if there are no body bytes.
    fn delay_body(&mut self, data: &[u8]) -> Option<Box<Delayed>> {
        let is_limited = self.pace.is_some() && (!data.is_empty() || self.out.len() > self.body_at);
        is_limited.then(|| {
            let mut body = self.out.split_off(self.body_at);
            body.extend_from_slice(data);
            Box::new(Delayed::new(body))
        })
    }

    /// Waits until the client has accepted all written bytes.
    pub async fn drain(&self) -> Result<(), Fault> {
        let drained = self.stream().drain().await;
        self.written(drained)
    }
}

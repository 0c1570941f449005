//! Sends a reply on a stream of HTTP/3.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::slice;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use forebay_net::socket::BUFFER;
use forebay_wire::fields;
use forebay_wire::http2::budget;
use forebay_wire::http3::{self, ErrorCode};
use quinn::WriteError;
use rustix::buffer::spare_capacity;

use super::send_fairness::WaitingStream;
use crate::http3::stream::Http3;
use crate::part::Head;

/// Maximum bytes per read from a file.
const PIECE: usize = 2 * BUFFER;

/// Maximum bytes of a head and a part of a body that QUIC gets as one piece. Each piece costs an
/// allocation.
const ONE_WRITE: u64 = 4096;

/// Number of write timeouts after which a blocked stream is reset, even if the client accepts data
/// of other streams.
const PATIENCE: u32 = 10;

impl Http3 {
    pub(crate) fn send_continue(&self) -> io::Result<()> {
        self.send_reply(100, b"", false)
    }

    /// Sends a head. `ends` is true if no body follows. Returns an error if the stream is lost.
    pub(crate) fn send_head(&self, head: &Head<'_>, ends: bool) -> io::Result<()> {
        if !self.is_tunnel.get() {
            return self.send_reply(head.status, head.lines, ends);
        }
        let (status, lines) = head.of_tunnel()?;
        self.send_reply(status, &lines, ends && status >= 300)
    }

    /// Writes a head to `frames`. The next write sends the head together with body bytes. For a
    /// tunnel, sends the head at once. Returns an error if the stream is lost.
    pub(crate) fn begin_head(&self, head: &Head<'_>) -> io::Result<()> {
        if self.is_tunnel.get() {
            return self.send_head(head, false);
        }
        self.append_head(head.status, head.lines)
    }

    fn send_reply(&self, status: u16, lines: &[u8], ends: bool) -> io::Result<()> {
        self.append_head(status, lines)?;
        self.flush(ends && status >= 200)
    }

    fn append_head(&self, status: u16, lines: &[u8]) -> io::Result<()> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        http3::head(&mut self.frames.borrow_mut(), status, fields::of_lines(lines));
        Ok(())
    }

    /// Writes as many bytes of `frames` as QUIC accepts. `end` is true at the end of the reply.
    fn flush(&self, end: bool) -> io::Result<()> {
        if end {
            self.has_finished.set(true);
        }
        let mut context = Context::from_waker(Waker::noop());
        match self.poll_frames(&mut context) {
            Poll::Ready(outcome) => outcome,
            // The next write or wait sends the rest.
            Poll::Pending => Ok(()),
        }
    }

    /// Sends frames that QUIC did not accept earlier, for example a head before a pause of the
    /// origin.
    pub(crate) fn poll_leftover(&self, context: &mut Context<'_>) {
        if !self.frames.borrow().is_empty() && !self.is_closed.get() {
            // Ignore the error, because `poll_frames` has then marked the stream as closed.
            let _ = self.poll_frames(context);
        }
    }

    fn poll_frames(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.frames.borrow().is_empty() {
            let mut frames = self.frames.borrow_mut();
            let written = Pin::new(&mut *self.send.borrow_mut()).poll_write(context, &frames);
            match ready!(written) {
                Ok(count) => drop(frames.drain(..count)),
                Err(error) => {
                    drop(frames);
                    return Poll::Ready(Err(self.write_failed(&error)));
                }
            }
        }
        if self.has_finished.get() {
            // Ignore a failure, which means that the stream was reset. Other code detects the
            // reset.
            let _ = self.send.borrow_mut().finish();
        }
        Poll::Ready(Ok(()))
    }

    fn write_failed(&self, error: &WriteError) -> io::Error {
        match error {
            WriteError::Stopped(_) => self.cancel(),
            _ => self.is_closed.set(true),
        }
        self.lost()
    }

    /// Sends some bytes of the non-empty `pieces`. Returns 0 if QUIC accepts no bytes. If `end` is
    /// true, the last byte of `pieces` ends the reply. Returns an error if the stream is lost.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>], end: bool) -> io::Result<u64> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        if self.frame_left.get() == 0 {
            let length = pieces.iter().map(|piece| piece.len() as u64).sum();
            let mut frames = self.frames.borrow_mut();
            http3::data_header(&mut frames, length);
            self.connection.earn(budget::DATA_SENT);
            if frames.len() as u64 + length <= ONE_WRITE {
                pieces.iter().for_each(|piece| frames.extend_from_slice(piece));
                drop(frames);
                self.flush(end)?;
                return Ok(length);
            }
            self.frame_left.set(length);
        }
        let mut context = Context::from_waker(Waker::noop());
        if self.poll_frames(&mut context)?.is_pending() {
            return Ok(0);
        }
        let mut total = 0;
        for (at, piece) in pieces.iter().enumerate() {
            let is_last = end && at + 1 == pieces.len();
            let taken = self.try_write_piece(piece, &mut context)?;
            total += taken as u64;
            if taken < piece.len() {
                break;
            }
            if is_last {
                self.flush(true)?;
            }
        }
        Ok(total)
    }

    /// Sends some bytes of a piece, at most to the end of the current DATA frame.
    fn try_write_piece(&self, piece: &[u8], context: &mut Context<'_>) -> io::Result<usize> {
        let mut total = 0;
        while total < piece.len() && self.frame_left.get() > 0 {
            let most = usize::try_from(self.frame_left.get()).unwrap_or(usize::MAX);
            let rest = &piece[total..];
            let rest = &rest[..rest.len().min(most)];
            let written = Pin::new(&mut *self.send.borrow_mut()).poll_write(context, rest);
            match written {
                Poll::Ready(Ok(count)) => {
                    total += count;
                    self.frame_left.set(self.frame_left.get() - count as u64);
                }
                Poll::Ready(Err(error)) => return Err(self.write_failed(&error)),
                Poll::Pending => break,
            }
        }
        Ok(total)
    }

    pub(crate) async fn write_through(
        &self,
        mut pieces: &mut [IoSlice<'_>],
        end: bool,
    ) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            match self.try_write(pieces, end)? {
                0 => self.wait_for_room().await?,
                n => IoSlice::advance_slices(&mut pieces, n as usize),
            }
        }
        Ok(())
    }

    /// Waits until QUIC accepts bytes. Resets the stream and returns an error in two cases. In the
    /// first, the client accepts no data of any stream for one write timeout. In the second, the
    /// client accepts no data of this stream for `PATIENCE` write timeouts.
    pub(crate) async fn wait_for_room(&self) -> io::Result<()> {
        let thread = &self.connection.accepted.thread;
        let own = self.tunnel_idle.get().or(self.write_limit.get());
        let limit = own.unwrap_or(thread.settings().timeouts.write);
        let (mut progress, mut left) = (self.connection.progress(), PATIENCE);
        let mut waiting = WaitingStream::new(&self.connection.waiting);
        loop {
            let room = poll_fn(|context| self.poll_room(context, &mut waiting));
            if let Ok(outcome) = thread.deadlines.timeout(limit, room).await {
                return outcome;
            }
            left -= 1;
            let now = self.connection.progress();
            if !now.is_beyond(progress) || left == 0 {
                self.is_expired.set(true);
                self.is_closed.set(true);
                self.give_up(ErrorCode::REQUEST_CANCELLED);
                return Err(self.lost());
            }
            progress = now;
        }
    }

    /// Completes when QUIC accepts bytes. If several streams wait, one of them sends first
    /// (`send_fairness.rs`).
    fn poll_room(
        &self,
        context: &mut Context<'_>,
        waiting: &mut WaitingStream<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closed.get() {
            return Poll::Ready(Err(self.lost()));
        }
        if waiting.lets_others_go() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_frames(context))?;
        // The write of an empty slice completes when QUIC accepts bytes.
        match ready!(Pin::new(&mut *self.send.borrow_mut()).poll_write(context, b"")) {
            Ok(_) => Poll::Ready(Ok(())),
            Err(WriteError::ClosedStream) if self.has_finished.get() => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.write_failed(&error))),
        }
    }

    /// Ends the reply with these trailers. Does nothing if the reply has ended. Returns an error if
    /// the stream is lost.
    pub(crate) fn send_end(&self, trailers: &[u8]) -> io::Result<()> {
        if self.has_finished.get() {
            return Ok(());
        }
        if self.is_closed.get() {
            return Err(self.lost());
        }
        if !trailers.is_empty() {
            http3::trailers(&mut self.frames.borrow_mut(), fields::of_lines(trailers));
        }
        self.flush(true)
    }

    pub(crate) async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        mut offset: u64,
        mut length: u64,
        ends: bool,
    ) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        // Announce the whole file as one DATA frame. If a read fails, the caller resets the stream,
        // so the frame may remain incomplete.
        http3::data_header(&mut self.frames.borrow_mut(), length);
        self.frame_left.set(length);
        while length > 0 {
            let size = PIECE.min(usize::try_from(length).unwrap_or(PIECE));
            let mut piece = Vec::with_capacity(size);
            rustix::io::pread(file, spare_capacity(&mut piece), offset)?;
            // The vector may have a larger capacity than `size`, so the read may return more bytes.
            // Drop the extra bytes.
            piece.truncate(size);
            if piece.is_empty() {
                // The file became shorter after its length was sent to the client.
                return Err(ErrorKind::UnexpectedEof.into());
            }
            offset += piece.len() as u64;
            length -= piece.len() as u64;
            self.connection.earn(budget::DATA_SENT);
            self.send_piece(piece.into()).await?;
        }
        if ends {
            self.flush(true)?;
        }
        Ok(())
    }

    /// Sends a part of the current DATA frame. QUIC keeps the bytes without a copy.
    async fn send_piece(&self, mut piece: Bytes) -> io::Result<()> {
        while !piece.is_empty() {
            if self.is_closed.get() {
                return Err(self.lost());
            }
            match self.poll_piece(&mut Context::from_waker(Waker::noop()), &mut piece) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => self.wait_for_room().await?,
            }
        }
        Ok(())
    }

    /// Moves at least one byte of `piece` to QUIC.
    fn poll_piece(&self, context: &mut Context<'_>, piece: &mut Bytes) -> Poll<io::Result<()>> {
        ready!(self.poll_frames(context))?;
        let before = piece.len();
        let mut send = self.send.borrow_mut();
        let written = pin!(send.write_chunks(slice::from_mut(piece))).poll(context);
        if let Err(error) = ready!(written) {
            return Poll::Ready(Err(self.write_failed(&error)));
        }
        let taken = (before - piece.len()) as u64;
        self.frame_left.set(self.frame_left.get() - taken);
        Poll::Ready(Ok(()))
    }

    /// Marks the stream as a tunnel. The client may then keep its window closed for up to `idle`.
    pub(crate) fn begin_tunnel(&self, idle: Duration) {
        self.tunnel_idle.set(Some(idle));
    }

    pub(crate) fn finish_writing(&self) {
        // Ignore an error: the client may have disconnected.
        let _ = self.send_end(b"");
    }
}

//! Writes to a client. The backlog stores bytes that the client does not accept at once.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::Poll;

use forebay_net::limit::Limit;

use super::Stream;
use crate::backlog::{PauseReason, Queue};

impl Stream {
    /// Writes all of `pieces` as fast as the client accepts them. If `keeps`, the backlog stores
    /// the bytes that the client does not accept at once. Ends the reply if `ends`.
    pub(crate) async fn write_pieces(
        &self,
        pieces: &mut [IoSlice<'_>],
        keeps: bool,
        ends: bool,
    ) -> io::Result<()> {
        if keeps {
            return self.write_or_keep(pieces, ends).await;
        }
        self.drain().await?;
        self.write_through(pieces, ends).await
    }

    /// Writes the bytes that the client accepts, and stores the rest. Waits only if the backlog is
    /// full.
    async fn write_or_keep(&self, mut pieces: &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        self.yield_to_readers().await;
        let mut is_counted = false;
        loop {
            if !self.has_backlog() {
                self.write_now(&mut pieces, ends)?;
            }
            let has_failed = self.keep(&mut pieces);
            if pieces.is_empty() {
                return Ok(());
            }
            // Count a reached limit once. Do not count if the backlog's file could not be written,
            // because no limit was then reached.
            if !has_failed && !std::mem::replace(&mut is_counted, true) {
                self.count_full();
            }
            // Wait only if the client accepts no bytes now.
            match self.write_backlog()? {
                PauseReason::Blocked => self.wait_for_room().await?,
                PauseReason::Turn => tokio::task::yield_now().await,
            }
        }
    }

    /// Returns true if bytes wait until the client accepts them.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog().0.borrow().is_some()
    }

    /// Writes the backlog as fast as the client accepts bytes, until the backlog is empty. Returns
    /// an error if the client accepts no bytes in time, or if the connection fails.
    pub async fn drain(&self) -> io::Result<()> {
        while self.has_backlog() {
            match self.write_backlog()? {
                PauseReason::Blocked => self.wait_for_room().await?,
                PauseReason::Turn => tokio::task::yield_now().await,
            }
        }
        Ok(())
    }

    /// Writes the backlog whenever it is not empty. Returns only if the connection fails, here or in
    /// a write of the origin.
    ///
    /// Nothing wakes this future when the origin adds bytes to the backlog. So each time that the
    /// request's task wakes up, it must poll the origin's future first and this future afterwards.
    pub(crate) async fn drain_for_ever(&self) -> io::Error {
        loop {
            poll_fn(|_| {
                if self.has_backlog() || self.lost().is_some() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            })
            .await;
            if let Some(kind) = self.lost() {
                return kind.into();
            }
            if let Err(error) = self.drain().await {
                return error;
            }
        }
    }

    /// Stores as many bytes as the limits of the backlog allow, and removes them from `pieces`.
    /// Returns true if the backlog's file could not be written.
    fn keep(&self, pieces: &mut &mut [IoSlice<'_>]) -> bool {
        if pieces.is_empty() {
            return false;
        }
        let mut state = self.backlog().0.borrow_mut();
        let queue = state.get_or_insert_with(|| Box::new(Queue::new(self.thread())));
        while let Some(piece) = pieces.first() {
            let wanted = piece.len();
            let kept = queue.append(piece, self.thread());
            IoSlice::advance_slices(pieces, kept);
            if kept < wanted {
                break;
            }
        }
        let has_failed = queue.has_failed;
        if queue.is_empty() {
            *state = None;
        }
        has_failed
    }

    /// Stores trailers that end the reply after the backlog. Returns false if the backlog is empty.
    pub(crate) fn keep_end(&self, trailers: &[u8]) -> bool {
        let mut state = self.backlog().0.borrow_mut();
        state.as_mut().is_some_and(|queue| {
            queue.trailers = Some(trailers.to_vec());
            true
        })
    }

    fn write_backlog(&self) -> io::Result<PauseReason> {
        let mut state = self.backlog().0.borrow_mut();
        let Some(queue) = state.as_mut() else { return Ok(PauseReason::Blocked) };
        let progress = queue.write(|pieces| self.try_write(pieces, false))?;
        if queue.is_empty() {
            let trailers = queue.trailers.take();
            *state = None;
            if let Some(trailers) = trailers {
                self.send_end(&trailers)?;
            }
        }
        Ok(progress)
    }

    fn count_full(&self) {
        let settings = self.thread().settings();
        let limits = &settings.limits;
        let is_total = self.thread().load.buffered.bytes() >= limits.buffer_total;
        let limit = if is_total { Limit::BufferTotal } else { Limit::BufferFile };
        self.thread().counters.count_limit(limit);
    }
}

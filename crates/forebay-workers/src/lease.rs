//! One request on one worker.
//!
//! In the first millisecond of a request, only a control message wakes the gateway: the worker's
//! report that it waits for a request. The gateway then reads all output. Most requests end this
//! way. If a request takes longer, the gateway watches the output socket from then on, until a
//! request of this worker is short again.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::control;
use crate::control::{Body, END_MARKER, MARK, Mark, MarkerSearch, Reply, Then};
use crate::error::{Exit, WorkerFault};
use crate::shared::AppShared;
use crate::sys;
use crate::worker::{Heard, Killed, Worker};

/// An error message shows at most this many bytes of an invalid message.
const SHOWN: usize = 16;
/// [`Lease::read`] returns at once when it has this many bytes of output.
const ENOUGH: usize = 64 * 1024;
/// Time for which a script may continue after no client waits for its reply any more.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// The result of [`Lease::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// This many bytes of the script's output were appended.
    Output(usize),
    /// The script has ended and all its output was delivered.
    End(EndKind),
}

/// The end of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// The script ended by itself.
    Ok,
    /// The script could not be run, or died. Contains the HTTP status; the log has the reason.
    /// Exception: if the script had already printed a complete CGI header, the client should get
    /// the printed reply, as with CGI and mod_perl.
    Status(u16),
    /// The script failed in the middle of a reply, so the reply must not be treated as complete.
    Aborted,
}

/// The right to use a worker for one request. If the lease is dropped between [`send`](Lease::send)
/// and [`LeaseEvent::End`], the worker and the processes of its script are killed. The supervisor
/// then starts a new worker. Exception: a worker that has already read its next request continues.
pub struct Lease {
    app: Arc<AppShared>,
    /// `None` after the worker was returned to the pool.
    worker: Option<Worker>,
    /// The start of the end marker that follows the output of this request.
    mark: Mark,
    /// True if the request was in the worker's prefetch queue before this lease got the worker.
    /// False after `send`.
    has_request: bool,
    sent: bool,
    any_output: bool,
    /// Bytes that may be the start of an end marker.
    held: Vec<u8>,
    /// A message from the control socket. The lease keeps the message until it has read the output
    /// that the worker wrote before it.
    pending_control: Option<Reply>,
    /// The end of the script. When this is set, the lease has no worker any more.
    end: Option<EndKind>,
    /// Set after the worker has closed its control socket. The value is true if the worker had not
    /// read all bytes in this socket.
    closed: Option<bool>,
    /// True if the worker has announced output.
    is_waiting: bool,
}

impl Lease {
    pub(crate) fn new(app: Arc<AppShared>, worker: Worker, mark: Mark) -> Lease {
        Lease {
            app,
            worker: Some(worker),
            mark,
            has_request: false,
            sent: false,
            any_output: false,
            held: Vec::new(),
            pending_control: None,
            end: None,
            closed: None,
            is_waiting: false,
        }
    }

    /// Returns the lease of a request that was in the worker's prefetch queue.
    pub(crate) fn of_begun(app: Arc<AppShared>, worker: Worker, mark: Mark) -> Lease {
        let mut lease = Lease::new(app, worker, mark);
        (lease.has_request, lease.sent) = (true, true);
        lease
    }

    /// Sends the request to the worker. `block` contains NUL-terminated names and values
    /// alternately. One of the names is SCRIPT_FILENAME, and its value is an absolute path.
    ///
    /// Call this once. After a fault that [may be retried](WorkerFault::may_retry), drop the lease
    /// and check out another one.
    pub async fn send(&mut self, block: &[u8], body: Body<'_>) -> Result<(), WorkerFault> {
        let Some(worker) = self.worker.as_ref().filter(|_| self.has_request || !self.sent) else {
            return Err(WorkerFault::Protocol("a lease is for one request".into()));
        };
        worker.shared.begin_request(block);
        if std::mem::take(&mut self.has_request) {
            return Ok(());
        }
        self.sent = true;
        if let Some((head, body)) = control::parts(block, body, self.mark)
            && worker.shared.prefetch.put(&[&head, block, body])
        {
            worker.shared.open.store(true, Ordering::Relaxed);
            return Ok(());
        }
        match stream_request(worker, block, body, self.mark).await {
            Ok(()) => Ok(()),
            Err(SendFault::TooBig) => {
                Err(WorkerFault::Protocol("the environment is too big".into()))
            }
            Err(SendFault::Body(error)) => Err(WorkerFault::Body(error)),
            // The worker has not received the whole request, so it cannot run the script.
            Err(SendFault::Socket) => Err(self.lost(true).await),
        }
    }

    /// Waits for output or for the end of the script, and appends output to `buf`. Returns output
    /// when the script has ended or pauses, or when there are at least 64 KiB. A script blocks
    /// while its output is not read.
    ///
    /// The future may be dropped before it is ready. `buf` then contains the output so far. The
    /// number of bytes in a later [`LeaseEvent::Output`] does not include this output.
    pub async fn read(&mut self, buf: &mut Vec<u8>) -> Result<LeaseEvent, WorkerFault> {
        let start = buf.len();
        loop {
            if let Some(kind) = self.end {
                return match buf.len() - start {
                    0 => Ok(LeaseEvent::End(kind)),
                    output => Ok(LeaseEvent::Output(output)),
                };
            }
            let Some(worker) = self.worker.as_ref().filter(|_| self.sent) else {
                return Err(WorkerFault::Protocol(
                    "a lease that was not sent, or has ended".into(),
                ));
            };
            let has_output = buf.len() > start;
            let is_there = self.is_waiting || self.pending_control.is_some();
            let wake = if worker.carryover.is_empty() && !is_there {
                readable(worker, self.closed.is_some(), has_output).await
            } else {
                Ok(Wake::Output)
            };
            let wake = wake.map_err(no_watch)?;
            // Read output before messages of the control socket. The worker writes all output
            // before the message about the end, so no output is lost.
            let before = buf.len();
            self.is_waiting = false;
            let ended = self.take_output(buf)?;
            self.any_output |= buf.len() > before;
            if let Some(worker) = &mut self.worker
                && (buf.len() > before || matches!(wake, Wake::Pause) || self.closed.is_some())
            {
                worker.output.watch().map_err(no_watch)?;
            }
            if self.end.is_some() || buf.len() > before && buf.len() - start < ENOUGH {
                continue;
            }
            if buf.len() > start {
                self.go_on(buf)?;
                return Ok(LeaseEvent::Output(buf.len() - start));
            }
            match (self.pending_control.take(), wake) {
                (Some(Reply::Ready), _) => return Err(self.confused(b"R")),
                (Some(said), _) => self.finish(said),
                (None, Wake::Exit) => return self.outlive(buf).await,
                (None, _) if ended => return self.outlive(buf).await,
                (None, Wake::Control) => self.listen()?,
                (None, Wake::Output | Wake::Pause) => {}
            }
        }
    }

    /// Returns true if the end of the script is known. The next [`read`](Lease::read) then returns
    /// without waiting. After [`LeaseEvent::Output`], true means that the reply is complete, and
    /// false means that more output may follow.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the process id of the worker, for the log. Returns `None` after the end of the
    /// script is known.
    pub fn pid(&self) -> Option<u32> {
        Some(self.worker.as_ref()?.shared.pid.as_raw_nonzero().get() as u32)
    }

    /// Turns the output socket into one end of a tunnel. From then on the caller reads and writes
    /// this socket, and the request has no time limit. Appends to `buf` the bytes that have already
    /// arrived. Fails if the script has ended, or if the socket cannot be copied.
    pub fn into_tunnel(mut self, buf: &mut Vec<u8>) -> io::Result<(UnixStream, Tunnelled)> {
        let Some(worker) = self.worker.as_mut().filter(|_| self.end.is_none()) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        worker.output.stop_watching();
        let socket = UnixStream::from(worker.output.as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        worker.shared.tunnels.store(true, Ordering::Relaxed);
        buf.append(&mut self.held);
        Ok((socket, Tunnelled::new(self)))
    }

    /// Asks the worker to end, with SIGTERM, because no client waits for the reply any more. A worker
    /// that still runs after a second is killed.
    pub async fn abandon(mut self) {
        self.take_begun();
        // A worker that has already begun the next request has finished this one, and continues.
        if self.go_on(&mut Vec::new()).is_ok()
            && let Some(worker) = &self.worker
        {
            worker.shared.terminate();
        }
        let _ = tokio::time::timeout(LAST_MOMENT, self.drop_output()).await;
    }

    /// Lets a request run to its end that the worker has taken although nobody waits for it any more.
    /// Ending the worker would cost more than the request.
    pub(crate) async fn run_unheard(mut self) {
        self.take_begun();
        self.drop_output().await;
    }

    fn take_begun(&self) {
        if let Some(worker) = self.worker.as_ref().filter(|_| self.has_request) {
            worker.shared.begin_request(b"");
        }
    }

    async fn drop_output(&mut self) {
        let mut output = Vec::new();
        while let Ok(LeaseEvent::Output(_)) = self.read(&mut output).await {
            output.clear();
        }
    }

    /// Waits until the worker reports the end of the request, or has ended.
    pub(crate) async fn done(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        // Skip a `Waiting` message, which the worker has sent for the previous request.
        while let Ok(Heard::Said(Reply::Waiting)) = worker.heard().await {}
    }

    /// Appends available output to `buf`, up to the end of the request. If the end marker is
    /// complete, records the end. Returns true at the end of the output socket, or if the lease has
    /// no worker.
    fn take_output(&mut self, buf: &mut Vec<u8>) -> Result<bool, WorkerFault> {
        let Some(worker) = &mut self.worker else { return Ok(true) };
        let start = buf.len();
        buf.append(&mut self.held);
        let received = if worker.carryover.is_empty() {
            receive_output(worker, buf)
        } else {
            buf.append(&mut worker.carryover);
            None
        };
        // A stream socket returns all bytes that it has, so a short read means that the socket is
        // empty.
        if received.is_some_and(|received| received > 0) && buf.len() < buf.capacity() {
            worker.output.forget_readiness();
        }
        match control::find_end_marker(&buf[start..], self.mark) {
            // At the end of the socket, keep the bytes that may be the start of an end marker. Only
            // the exit code of the process shows if these bytes are output.
            _ if received == Some(0) => self.held = buf.split_off(start),
            MarkerSearch::Nothing => {}
            MarkerSearch::Start(at) => self.held = buf.split_off(start + at),
            MarkerSearch::EndMarker(at, Some(reply)) => {
                let message = &buf[start + at + MARK..start + at + END_MARKER];
                if message.first_chunk().copied().is_some_and(control::was_prefetched) {
                    worker.shared.count_prefetched();
                }
                worker.carryover.extend_from_slice(&buf[start + at + END_MARKER..]);
                buf.truncate(start + at);
                self.finish(reply);
            }
            MarkerSearch::EndMarker(at, None) => return Err(self.confused(&buf[start + at..])),
        }
        Ok(received == Some(0))
    }

    /// Reads a message from the control socket. Does nothing if there is no message. An invalid
    /// message is a fault.
    fn listen(&mut self) -> Result<(), WorkerFault> {
        let Some(worker) = &mut self.worker else { return Ok(()) };
        // Read only one message, because the second may concern the next request.
        match worker.hear() {
            Heard::Nothing => {}
            Heard::Said(Reply::Waiting) => self.is_waiting = true,
            Heard::Said(said) => self.pending_control = Some(said),
            Heard::Nonsense(bytes, len) => return Err(self.confused(&bytes[..len])),
            Heard::Closed { unread } => self.closed = Some(unread),
        }
        Ok(())
    }

    /// Takes back the requests that follow in the prefetch queue, because the current request takes
    /// long or its client is slow.
    ///
    /// If the worker has already read a following request, the worker has finished the current
    /// request. The remaining output of the current request is then in the socket. This function
    /// reads this output, and returns the worker to the pool.
    fn go_on(&mut self, buf: &mut Vec<u8>) -> Result<(), WorkerFault> {
        let Some(worker) = &self.worker else { return Ok(()) };
        let shared = worker.shared.clone();
        if !shared.open.swap(false, Ordering::Relaxed) || !self.app.pool.withdraw(&shared) {
            return Ok(());
        }
        while self.end.is_none() {
            let (before, held) = (buf.len(), self.held.len());
            self.take_output(buf)?;
            if self.end.is_none() && buf.len() + self.held.len() == before + held {
                return Err(self.confused(b"nothing"));
            }
        }
        Ok(())
    }

    /// Records the end of the script, and returns the worker to the pool. If the worker still
    /// cleans up, a task returns the worker later.
    fn finish(&mut self, reply: Reply) {
        let (kind, then) = match reply {
            Reply::Failed { status, then } => (EndKind::Status(status), then),
            Reply::Ended(then) => (EndKind::Ok, then),
            Reply::Aborted(then) => (EndKind::Aborted, then),
            Reply::Ready | Reply::Waiting => (EndKind::Ok, Then::Ends),
        };
        self.end = Some(kind);
        let Some(mut worker) = self.worker.take() else { return };
        // The next request probably takes as long as this one.
        if worker.shared.since().elapsed() < PAUSE {
            worker.output.stop_watching();
        }
        if (kind, then) == (EndKind::Status(503), Then::Ends) {
            self.app.count_unfit(&worker);
        }
        match then {
            Then::Waits => {}
            Then::CleansUp => match self.pending_control.take() {
                // In rare cases, the worker's message about the completed cleanup arrives before
                // the lease has read the end marker.
                Some(Reply::Ready) => {}
                Some(_) => worker.shared.retired.store(true, Ordering::Relaxed),
                None => {
                    // Without a runtime, no task can wait for the cleanup. The function then drops
                    // the worker, which ends its process.
                    if let Ok(runtime) = Handle::try_current() {
                        runtime.spawn(await_cleanup(self.app.clone(), worker));
                    }
                    return;
                }
            },
            Then::Ends => worker.shared.retired.store(true, Ordering::Relaxed),
        }
        self.app.give_back(worker);
    }

    fn confused(&self, message: &[u8]) -> WorkerFault {
        if let Some(worker) = &self.worker {
            worker.shared.kill(Killed::BrokeProtocol);
        }
        let message = &message[..message.len().min(SHOWN)];
        WorkerFault::Protocol(format!("unexpected bytes {message:?}"))
    }

    /// Handles a process that has ended in the middle of the request. Returns a fault, with one
    /// exception: the script may have replaced the process by another program (`exec`). If this
    /// program has written output and ended with exit code 0, the script has ended normally. `held`
    /// is then output, not the start of an end marker.
    async fn outlive(&mut self, buf: &mut Vec<u8>) -> Result<LeaseEvent, WorkerFault> {
        let fault = self.lost(self.closed == Some(true)).await;
        let has_written = self.any_output || !self.held.is_empty();
        if !matches!(fault, WorkerFault::Died { exit: Exit::Code(0), .. } if has_written) {
            return Err(fault);
        }
        self.worker = None;
        self.end = Some(EndKind::Ok);
        // If `held` contains a complete mark, the process has ended while it wrote the end marker.
        // In this case, `held` is not output.
        if self.held.is_empty() || self.held.len() >= MARK {
            return Ok(LeaseEvent::End(EndKind::Ok));
        }
        let rest = self.held.len();
        buf.append(&mut self.held);
        Ok(LeaseEvent::Output(rest))
    }

    /// Waits for the end of a lost worker, and returns the fault. `unread` is true if the worker
    /// never received the complete request.
    async fn lost(&mut self, unread: bool) -> WorkerFault {
        let Some(worker) = &self.worker else {
            return WorkerFault::Protocol("a lease that has ended".into());
        };
        let exit = worker.shared.exited().await.into();
        let any_output = self.any_output;
        let unread = worker.shared.prefetch.had_not_read(self.mark) || unread;
        self.app.pool.rescue(&worker.shared);
        match worker.shared.killed() {
            Some(Killed::RequestTimeout) => WorkerFault::Timeout { any_output },
            _ => WorkerFault::Died { exit, any_output, retry: unread && !any_output },
        }
    }
}

/// Returns the fault for a runtime that cannot watch a socket.
fn no_watch(error: io::Error) -> WorkerFault {
    WorkerFault::Protocol(error.to_string())
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(worker) = &self.worker else { return };
        let shared = worker.shared.clone();
        if !self.sent {
            self.app.give_back(self.worker.take().expect("it is there"));
            return;
        }
        // If the worker has already read the next request, the worker has finished this request.
        // `go_on` then reads the remaining output of this request, and the worker continues.
        if self.go_on(&mut Vec::new()).is_err() || self.worker.is_some() {
            shared.kill(Killed::LeaseDropped);
            self.app.pool.rescue(&shared);
        }
    }
}

// Waits for workers that clean up after the end of a reply.

/// Waits until a worker has cleaned up after a request, and returns the worker to the pool. The
/// time limit of the request also covers the cleanup. A worker that sends an unexpected message is
/// killed.
async fn await_cleanup(app: Arc<AppShared>, mut worker: Worker) {
    loop {
        let Ok(heard) = worker.heard().await else { return };
        match heard {
            Heard::Said(Reply::Waiting) => {}
            Heard::Said(Reply::Ready) => break,
            Heard::Said(said) if said.is_of_cleanup() => {
                worker.shared.retired.store(true, Ordering::Relaxed);
                break;
            }
            // The worker has died, and the supervisor handles its end.
            Heard::Closed { .. } => return,
            Heard::Nothing | Heard::Said(_) | Heard::Nonsense(..) => {
                return worker.shared.kill(Killed::BrokeProtocol);
            }
        }
    }
    app.give_back(worker);
}

// Waits for messages and output of a worker, and reads the output.

/// Number of bytes by which a full buffer grows.
const READ_AT_ONCE: usize = 64 * 1024;
/// A buffer with less free space than this, in bytes, counts as full.
const LEAST_ROOM: usize = 8 * 1024;
/// When a worker is silent for this time, the gateway forwards the output so far, and watches the
/// worker's process. Most requests end earlier.
const PAUSE: Duration = Duration::from_millis(1);

/// The reason why [`readable`] has returned.
enum Wake {
    /// The output socket may contain output.
    Output,
    /// The worker may have sent a message, or closed its control socket.
    Control,
    /// The worker was silent for a [`PAUSE`].
    Pause,
    /// The worker has ended. Its sockets do not always show the end, because its children may keep
    /// them open for a long time.
    Exit,
}

/// Waits until there may be something to read, or until the worker has ended. If the caller has
/// output to forward (`has_output`), waits for at most one [`PAUSE`]. Also waits for at most one
/// [`PAUSE`] if the runtime does not watch the output socket yet. The caller then lets the runtime
/// watch the socket, and calls this function again. `closed` is true if the control socket is at
/// its end.
async fn readable(worker: &Worker, closed: bool, has_output: bool) -> io::Result<Wake> {
    let input = || {
        std::future::poll_fn(|context| {
            if let Poll::Ready(outcome) = worker.output.poll_readable(context) {
                return Poll::Ready(outcome.map(|()| Wake::Output));
            }
            if closed {
                return Poll::Pending;
            }
            worker.control.poll_readable(context).map_ok(|()| Wake::Control)
        })
    };
    if has_output || !worker.output.is_watched() {
        let outcome = tokio::time::timeout(PAUSE, input()).await;
        return outcome.unwrap_or(Ok(Wake::Pause));
    }
    tokio::select! {
        biased;
        outcome = input() => outcome,
        _ = worker.shared.exited() => Ok(Wake::Exit),
    }
}

/// Appends available output to `buf` and returns the number of bytes. Returns 0 at the end of the
/// socket or after an error, and `None` if no output is available now.
fn receive_output(worker: &Worker, buf: &mut Vec<u8>) -> Option<usize> {
    if buf.capacity() - buf.len() < LEAST_ROOM {
        buf.reserve(READ_AT_ONCE);
    }
    worker.output.receive(buf).unwrap_or(Some(0))
}

// Sends a request to a worker, which may read it slowly.

const BODY_CHUNK: usize = 64 * 1024;

/// The reason why a request could not be sent to the worker.
enum SendFault {
    TooBig,
    Body(io::Error),
    Socket,
}

/// Sends a request over the control socket, because it does not fit the worker's prefetch queue.
async fn stream_request(
    worker: &Worker,
    block: &[u8],
    body: Body<'_>,
    mark: Mark,
) -> Result<(), SendFault> {
    let (in_memory, length) = match body {
        Body::Empty => (&[][..], 0),
        Body::Bytes(bytes) => (bytes, bytes.len() as u64),
        Body::File(_, length) => (&[][..], length),
    };
    let head = control::head(block.len(), length, mark).ok_or(SendFault::TooBig)?;
    send_all(worker, &[&head, block, in_memory]).await?;
    match body {
        Body::File(file, length) => send_file(worker, file, length).await,
        _ => Ok(()),
    }
}

/// Sends the first `length` bytes of `file` as the body of the request, in pieces.
async fn send_file(worker: &Worker, file: &File, length: u64) -> Result<(), SendFault> {
    let mut chunk = vec![0; BODY_CHUNK.min(usize::try_from(length).unwrap_or(BODY_CHUNK))];
    let mut at = 0;
    while at < length {
        let want = chunk.len().min(usize::try_from(length - at).unwrap_or(usize::MAX));
        match file.read_at(&mut chunk[..want], at) {
            Ok(0) => return Err(SendFault::Body(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => {
                send_all(worker, &[&chunk[..read]]).await?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SendFault::Body(error)),
        }
    }
    Ok(())
}

/// Sends all parts. While the socket's buffer is full, waits until the worker reads.
async fn send_all<const N: usize>(worker: &Worker, parts: &[&[u8]; N]) -> Result<(), SendFault> {
    let mut slices = parts.map(IoSlice::new);
    let mut left = &mut slices[..];
    let mut waiter = None;
    loop {
        while left.first().is_some_and(|slice| slice.is_empty()) {
            left = &mut left[1..];
        }
        if left.is_empty() {
            return Ok(());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&worker.control, left, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_writable(worker, &mut waiter).await?,
            Err(_) => return Err(SendFault::Socket),
        }
    }
}

/// Waits until the control socket is writable. Waits on a copy of the descriptor, so that the
/// socket itself stays registered for reading only.
async fn wait_writable(
    worker: &Worker,
    waiter: &mut Option<AsyncFd<Arc<OwnedFd>>>,
) -> Result<(), SendFault> {
    if waiter.is_none() {
        let copy = worker.control.as_fd().try_clone_to_owned().map_err(SendFault::Body)?;
        *waiter = Some(sys::register(copy, Interest::WRITABLE).map_err(SendFault::Body)?);
    }
    let Some(waiter) = waiter else { return Ok(()) };
    waiter.writable().await.map_err(SendFault::Body)?.clear_ready();
    Ok(())
}

// A worker that takes over a client's connection. Its output socket becomes one end of a tunnel.

/// A worker at the far end of a tunnel. The worker ends when this value is dropped, or after the
/// worker has reported the end of the request. Output that the worker wrote before its end can
/// still be read.
pub struct Tunnelled(JoinHandle<()>);

impl Tunnelled {
    fn new(mut lease: Lease) -> Tunnelled {
        Tunnelled(tokio::task::spawn_local(async move {
            lease.done().await;
            // The worker's sockets have carried data that no other request may see. Dropping the
            // lease ends the worker.
            drop(lease);
        }))
    }
}

impl Drop for Tunnelled {
    fn drop(&mut self) {
        self.0.abort();
    }
}

//! One request on one worker.

mod receive;
mod send;

use crate::app::Shared;
use crate::control::{self, REPLY, Reply, Then};
use crate::error::{Exit, WorkerFault};
use crate::tunnel::Tunnelled;
use crate::worker::{Killed, Worker};
use receive::{Wake, readable, receive, receive_output};
use send::{SendFault, send_all, send_file};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a message that could not be understood that an error shows.
const SHOWN: usize = 16;

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// None.
    Empty,
    /// In memory.
    Bytes(&'a [u8]),
    /// The first so many bytes of a file; the file's position does not matter.
    File(&'a File, u64),
}

/// What [`Lease::read`] has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// So many bytes of the script's output were appended.
    Output(usize),
    /// The script has ended and all its output was delivered.
    End(EndKind),
}

/// How a script ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndKind {
    /// By itself.
    Ok,
    /// It could not be run, or died; the HTTP status for a reply without output. The reason is in
    /// the log. What a script has printed before it died counts, as with CGI and mod_perl: if the
    /// CGI header is complete, send that reply.
    Status(u16),
    /// It failed in the middle of a reply that must not be taken for whole.
    Aborted,
}

/// A worker for one request. Dropped before [`Event::End`] has come, it kills the worker with the
/// processes that the script has started, and another is started in its place.
pub struct Lease {
    app: Arc<Shared>,
    /// `None` once the worker has gone back.
    worker: Option<Worker>,
    sent: bool,
    any_output: bool,
    /// What the worker said; its output may not be drained yet.
    end: Option<Reply>,
    /// Bytes of output that still come on the control socket.
    inline: usize,
    /// What the worker said when it had cleaned up, if that has come already.
    cleaned_up: Option<Reply>,
    drained: bool,
}

impl Lease {
    pub(crate) fn new(app: Arc<Shared>, worker: Worker) -> Lease {
        Lease {
            app,
            worker: Some(worker),
            sent: false,
            any_output: false,
            end: None,
            inline: 0,
            cleaned_up: None,
            drained: false,
        }
    }

    /// Hands the request over: `env_block` is NUL-terminated names and values in turn and must have
    /// SCRIPT_FILENAME, an absolute path. Call it once. After a fault that
    /// [may be retried](WorkerFault::may_retry) drop the lease and check out another.
    pub async fn send(&mut self, env_block: &[u8], body: Body<'_>) -> Result<(), WorkerFault> {
        let (in_memory, length) = match body {
            Body::Empty => (&[][..], 0),
            Body::Bytes(bytes) => (bytes, bytes.len() as u64),
            Body::File(_, length) => (&[][..], length),
        };
        let head = control::head(env_block.len(), length)
            .ok_or_else(|| WorkerFault::Protocol("the environment is too big".into()))?;
        let Some(worker) = self.worker.as_ref().filter(|_| !self.sent) else {
            return Err(WorkerFault::Protocol("a lease is for one request".into()));
        };
        self.sent = true;
        worker.facts.begin_request(env_block);
        let mut sent = send_all(worker, &[&head, env_block, in_memory]).await;
        if let (Ok(()), Body::File(file, length)) = (&sent, body) {
            sent = send_file(worker, file, length).await;
        }
        match sent {
            Ok(()) => Ok(()),
            Err(SendFault::Body(error)) => Err(WorkerFault::Body(error)),
            // The whole request did not arrive, so the script cannot run.
            Err(SendFault::Socket) => Err(self.lost(true).await),
        }
    }

    /// Waits for output or the end. Output is appended to `buf`, which grows by at most 64 KiB; a
    /// gateway that does not call this holds the script back. May be cancelled and called again.
    pub async fn read(&mut self, buf: &mut Vec<u8>) -> Result<Event, WorkerFault> {
        loop {
            if let Some(reply) = self.end.filter(|_| self.inline == 0) {
                return match self.drain(buf)? {
                    0 => Ok(Event::End(self.finish(reply))),
                    read => Ok(Event::Output(read)),
                };
            }
            let Some(worker) = self.worker.as_mut().filter(|_| self.sent) else {
                return Err(WorkerFault::Protocol(
                    "a lease that was not sent, or has ended".into(),
                ));
            };
            let wake = readable(worker).await;
            let wake = wake.map_err(|error| WorkerFault::Protocol(error.to_string()))?;
            let worker = &*worker;
            let before = buf.len();
            match receive(&worker.control, buf) {
                Ok(Some(0)) => return self.outlive(buf, false).await,
                Err(_) => return self.outlive(buf, true).await,
                Ok(Some(_)) => match self.understand(buf, before)? {
                    0 => continue,
                    inline => return Ok(Event::Output(inline)),
                },
                Ok(None) if self.end.is_some() => continue,
                Ok(None) => {}
            }
            if let Some(read) = receive_output(worker, buf).filter(|&read| read > 0) {
                self.any_output = true;
                if buf.len() < buf.capacity() {
                    worker.output.forget_readiness();
                }
                return Ok(Event::Output(read));
            }
            if matches!(wake, Wake::Exit) {
                return Err(self.lost(false).await);
            }
        }
    }

    /// True if the end of the script is known and the next [`read`](Lease::read) returns without
    /// waiting. After [`Event::Output`] it tells a reply that is complete from one that goes on.
    pub fn has_ended(&self) -> bool {
        self.end.is_some() && self.inline == 0
    }

    /// The process id of the worker, for the log; `None` after the end.
    pub fn pid(&self) -> Option<u32> {
        Some(self.worker.as_ref()?.facts.pid.as_raw_nonzero().get() as u32)
    }

    /// Makes the output socket one end of a tunnel: what it carries from now on, both ways, is the
    /// caller's, and no time is counted any more.
    pub fn into_tunnel(self) -> io::Result<(UnixStream, Tunnelled)> {
        let Some(worker) = self.worker.as_ref().filter(|_| self.end.is_none()) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let socket = UnixStream::from(worker.output.as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        worker.facts.tunnels.store(true, Ordering::Relaxed);
        Ok((socket, Tunnelled::new(self)))
    }

    /// Waits until the worker has said something, or has ended.
    pub(crate) async fn control_readable(&self) {
        let Some(worker) = &self.worker else { return };
        let control = &worker.control;
        // An error means that the runtime is gone.
        let _ = std::future::poll_fn(|context| control.poll_readable(context)).await;
    }

    /// Reads output that was written before the end; 0 when there is no more.
    fn drain(&mut self, buf: &mut Vec<u8>) -> Result<usize, WorkerFault> {
        let Some(worker) = self.worker.as_ref().filter(|_| !self.drained) else {
            return Ok(0);
        };
        let read = receive_output(worker, buf).unwrap_or(0);
        // A stream socket gives all that it has: room left over means that it is empty.
        self.drained = read == 0 || buf.len() < buf.capacity();
        self.any_output |= read > 0;
        Ok(read)
    }

    fn finish(&mut self, reply: Reply) -> EndKind {
        let (kind, then) = match reply {
            Reply::Failed { status, then } => (EndKind::Status(status), then),
            Reply::Ended(then) | Reply::Whole { then, .. } => (EndKind::Ok, then),
            Reply::Aborted(then) => (EndKind::Aborted, then),
            Reply::Ready => (EndKind::Ok, Then::Ends),
        };
        if let Some(worker) = self.worker.take() {
            worker.control.forget_readiness();
            let Worker { facts, control, output } = worker;
            let worker = Worker { facts, control, output: output.silence() };
            match (then, self.cleaned_up) {
                (Then::Waits, _) | (Then::CleansUp, Some(Reply::Ready)) => {}
                (Then::CleansUp, None) => {
                    tokio::task::spawn_local(await_cleanup(self.app.clone(), worker));
                    return kind;
                }
                (Then::Ends, _) | (Then::CleansUp, Some(_)) => {
                    worker.facts.retired.store(true, Ordering::Relaxed);
                }
            }
            self.app.give_back(worker);
        }
        kind
    }

    /// Takes in what was received from the control socket, `buf` from `start` on: a message, or
    /// more of the output behind one. Returns how much output there is, which alone stays in `buf`.
    fn understand(&mut self, buf: &mut Vec<u8>, start: usize) -> Result<usize, WorkerFault> {
        if self.end.is_none() {
            let message = buf[start..].first_chunk().copied();
            match message.and_then(Reply::parse) {
                Some(Reply::Ready) | None => return Err(self.confused(&buf[start..])),
                Some(reply) => self.end = Some(reply),
            }
            if let Some(Reply::Whole { length, .. }) = self.end {
                self.inline = length.into();
                self.drained = true;
            }
            buf.drain(start..start + REPLY);
        }
        let output = self.inline.min(buf.len() - start);
        self.inline -= output;
        if buf.len() > start + output {
            let behind = &buf[start + output..];
            self.cleaned_up = Reply::parse_after_cleanup(behind);
            if self.cleaned_up.is_none() || !self.end.is_some_and(Reply::cleans_up) {
                return Err(self.confused(behind));
            }
            buf.truncate(start + output);
        }
        self.any_output |= output > 0;
        Ok(output)
    }

    fn confused(&self, message: &[u8]) -> WorkerFault {
        if let Some(worker) = &self.worker {
            worker.facts.kill(Killed::BrokeProtocol);
        }
        let message = &message[..message.len().min(SHOWN)];
        WorkerFault::Protocol(format!("unexpected bytes {message:?}"))
    }

    /// The control socket has closed in the middle of the request. A script that has replaced its
    /// process with exec goes on writing; only the end of the process is the end.
    async fn outlive(&mut self, buf: &mut Vec<u8>, unread: bool) -> Result<Event, WorkerFault> {
        while let Some(worker) = &mut self.worker {
            worker.output.listen().map_err(|error| WorkerFault::Protocol(error.to_string()))?;
            match receive_output(worker, buf) {
                Some(0) => break,
                Some(read) => {
                    self.any_output = true;
                    return Ok(Event::Output(read));
                }
                None if worker.facts.has_exited() => break,
                None => {
                    let output = &worker.output;
                    let more = std::future::poll_fn(|context| output.poll_readable(context));
                    tokio::select! {
                        more = more => {
                            more.map_err(|error| WorkerFault::Protocol(error.to_string()))?;
                        }
                        _ = worker.facts.exited() => {}
                    }
                }
            }
        }
        match self.lost(unread).await {
            WorkerFault::Died { exit: Exit::Code(0), any_output: true, .. } => {
                self.worker = None;
                Ok(Event::End(EndKind::Ok))
            }
            fault => Err(fault),
        }
    }

    /// How the worker was lost. `unread`: the request never reached it whole.
    async fn lost(&mut self, unread: bool) -> WorkerFault {
        let Some(worker) = &self.worker else {
            return WorkerFault::Protocol("a lease that has ended".into());
        };
        let exit = worker.facts.exited().await.into();
        let any_output = self.any_output;
        match worker.facts.killed() {
            Some(Killed::RequestTimeout) => WorkerFault::Timeout { any_output },
            _ => WorkerFault::Died { exit, any_output, retry: unread && !any_output },
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        if self.sent {
            worker.facts.kill(Killed::LeaseDropped);
        } else {
            self.app.give_back(worker);
        }
    }
}

/// Waits for a worker that cleans up after a request whose reply is done, and takes it back. Its time
/// counts as that of the request.
async fn await_cleanup(app: Arc<Shared>, worker: Worker) {
    let mut message = [0; REPLY];
    let received = loop {
        if std::future::poll_fn(|context| worker.control.poll_readable(context)).await.is_err() {
            return;
        }
        if let Some(received) = worker.control.receive(&mut message[..]).unwrap_or(Some(0)) {
            break received;
        }
    };
    match Reply::parse_after_cleanup(&message[..received]) {
        Some(Reply::Ready) => worker.control.forget_readiness(),
        Some(_) => worker.facts.retired.store(true, Ordering::Relaxed),
        // It has died, which its supervisor sees.
        None if received == 0 => return,
        None => return worker.facts.kill(Killed::BrokeProtocol),
    }
    app.give_back(worker);
}

//! The simulated process of a worker.

use super::{Attempts, one_of};
use crate::control::{self, HEAD};
use crate::link::{Link, Output};
use crate::prefetch::PrefetchQueue;
use crate::worker::{Worker, WorkerShared};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, send, socketpair};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

/// The status of a process that SIGKILL has killed.
pub(super) const KILLED: i32 = 9;

/// A simulated worker process.
pub(super) struct Host {
    pub(super) shared: Arc<WorkerShared>,
    /// The worker's ends of its sockets. `None` after the end of the worker.
    pub(super) ends: Option<Ends>,
    /// Set until the worker is ready. Also contains the id of the worker that it replaces, if any.
    pub(super) starting: Option<(Worker, Option<u64>)>,
    work: Work,
    /// True if the worker has had a request since its last `Waiting` message.
    says_waiting: bool,
    /// Bytes of a request received over the control socket.
    received: Vec<u8>,
    status: i32,
    pub(super) is_reaped: bool,
    pub(super) longest_piece: usize,
}

pub(super) struct Ends {
    control: OwnedFd,
    output: OwnedFd,
    prefetch: OwnedFd,
}

enum Work {
    Waiting,
    /// Contains the bytes left to write, and the number of the next step.
    Replying(Vec<u8>, u8),
    CleaningUp,
}

impl Host {
    /// Creates a worker with its sockets. Its process is simulated by the test.
    pub(super) fn start(id: u64, limit: u64, replaces: Option<u64>) -> Host {
        let pair = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
        };
        let ((control, its_control), (output, its_output)) = (pair(), pair());
        let (prefetch, its_prefetch) = PrefetchQueue::pair().unwrap();
        let shared = Arc::new(WorkerShared::without_process(id, prefetch, limit));
        let (control, output) = (Link::new(control).unwrap(), Output::new(output).unwrap());
        let worker = Worker::new(shared.clone(), control, output);
        Host {
            shared,
            ends: Some(Ends { control: its_control, output: its_output, prefetch: its_prefetch }),
            starting: Some((worker, replaces)),
            work: Work::Waiting,
            says_waiting: false,
            received: Vec::new(),
            status: 0,
            is_reaped: false,
            longest_piece: 100_000,
        }
    }

    pub(super) fn is_retired(&self) -> bool {
        self.shared.retired.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns true if the worker has nothing left to do: it has ended if it has to end, and
    /// otherwise waits for a request. A worker has to end if it is retired, or if `all_end` is
    /// true.
    pub(super) fn is_at_rest(&self, all_end: bool) -> bool {
        let ends = self.is_retired() || all_end;
        matches!(self.work, Work::Waiting) && self.ends.is_some() != ends
    }

    pub(super) fn limit_pieces(&mut self) {
        self.longest_piece = *one_of(&[1, 7, 5000, 100_000]);
    }

    /// Closes the worker's sockets. A later step reports its end.
    pub(super) fn die(&mut self, status: i32) {
        if self.ends.take().is_some() {
            (self.status, self.work) = (status, Work::Waiting);
        }
    }

    pub(super) fn advance(&mut self, attempts: &Attempts) {
        if self.shared.killed().is_some() {
            self.die(KILLED);
        }
        if self.ends.is_none() {
            self.shared.report_end(ExitStatus::from_raw(self.status));
            self.is_reaped = true;
            return;
        }
        match &mut self.work {
            Work::Waiting => self.take_request(attempts),
            Work::Replying(..) => self.reply(),
            Work::CleaningUp => {
                let ends = self.ends.as_ref().unwrap();
                // The socket cannot be full: a worker sends one message at a time.
                if send(&ends.control, b"R\0\0\0", SendFlags::NOSIGNAL).is_err() {
                    return self.die(0);
                }
                self.work = Work::Waiting;
            }
        }
    }

    /// Reads the next request from the prefetch queue, or else from the control socket. After a
    /// request, sends `Waiting` once before it reads the control socket.
    fn take_request(&mut self, attempts: &Attempts) {
        let ends = self.ends.as_ref().unwrap();
        let mut message = vec![0; control::LARGEST];
        if let Ok((read, _)) = recv(&ends.prefetch, &mut message[..], RecvFlags::DONTWAIT) {
            assert!(read >= HEAD, "not even a head");
            return self.begin(&message[..read], attempts);
        }
        if std::mem::take(&mut self.says_waiting)
            && send(&ends.control, b"W\0\0\0", SendFlags::NOSIGNAL).is_err()
        {
            return self.die(0);
        }
        match recv(&ends.control, &mut message[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return self.die(0),
            Ok((read, _)) => self.received.extend_from_slice(&message[..read]),
            Err(_) => return,
        }
        if self.received.len() >= HEAD && self.received.len() == request_length(&self.received) {
            let request = std::mem::take(&mut self.received);
            self.begin(&request, attempts);
        }
    }

    /// Begins a request: checks that it has not run before, and chooses a random reply and end.
    fn begin(&mut self, request: &[u8], attempts: &Attempts) {
        assert_eq!(request.len(), request_length(request), "two requests in one, or half of one");
        let mark = request[HEAD - 16..HEAD].to_vec();
        let block: Vec<&[u8]> = request[HEAD..].split(|&byte| byte == 0).collect();
        let number: usize = str::from_utf8(&block[1][1..]).unwrap().parse().unwrap();
        self.says_waiting = true;
        let attempt = &mut attempts.borrow_mut()[number];
        attempt.runs += 1;
        assert_eq!(attempt.runs, 1, "request {number} runs again");
        let length = *one_of(&[0, 1, 10, 1000, 20_000, 150_000]);
        attempt.reply = format!("{number};").into_bytes().repeat(length / 3);
        let (kind, then) = (*one_of(b"EEEEEA"), *one_of(&[0, 0, 0, 0, 0, 1, 2]));
        let mut left = attempt.reply.clone();
        left.extend(mark);
        left.extend([kind, then | (4 * fastrand::u8(..2)), 0, 0]);
        self.work = Work::Replying(left, then);
    }

    /// Writes a random piece of the reply and of the end marker. After the last piece, waits, ends
    /// or cleans up, as the marker announces.
    fn reply(&mut self) {
        let (Some(ends), Work::Replying(left, then)) = (&self.ends, &mut self.work) else { return };
        let piece = fastrand::usize(1..=left.len().min(self.longest_piece));
        match send(&ends.output, &left[..piece], SendFlags::NOSIGNAL) {
            Ok(sent) => drop(left.drain(..sent)),
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => return self.die(KILLED),
        }
        if left.is_empty() {
            match then {
                0 => self.work = Work::Waiting,
                1 => self.die(0),
                _ => self.work = Work::CleaningUp,
            }
        }
    }
}

/// Returns the length of a request, as its head states it.
fn request_length(request: &[u8]) -> usize {
    let block = u32::from_be_bytes(request[..4].try_into().unwrap()) as usize;
    let body = u64::from_be_bytes(request[4..12].try_into().unwrap()) as usize;
    HEAD + block + body
}

//! UDP socket and timers of a QUIC endpoint that runs on one thread.

use std::future::Future;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use quinn::udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Sleep, sleep_until};

use super::joined_sends::{Flushed, JoinedSends, MOST_PACKETS};

/// Runtime of a QUIC endpoint. All its tasks run on the thread that creates the endpoint.
#[derive(Debug)]
pub(super) struct ThreadRuntime;

/// UDP socket that joins large sends.
#[derive(Debug)]
struct JoiningSocket {
    io: UdpSocket,
    state: UdpSocketState,
    unsent: Mutex<JoinedSends>,
    /// Waker of the task that sends what waits in `unsent`. `None` after the task was woken.
    sender: Mutex<Option<Waker>>,
    /// True if the latest send found no room.
    is_blocked: AtomicBool,
}

impl Runtime for ThreadRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(LazyTimer { sleep: Box::pin(sleep_until(at.into())), at })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = Arc::new(JoiningSocket {
            state: UdpSocketState::new((&socket).into())?,
            io: UdpSocket::from_std(socket)?,
            unsent: Mutex::default(),
            sender: Mutex::default(),
            is_blocked: AtomicBool::new(false),
        });
        tokio::spawn(Sender { socket: Arc::downgrade(&socket), poller: None });
        Ok(socket)
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

impl JoiningSocket {
    fn unsent(&self) -> MutexGuard<'_, JoinedSends> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_now(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent =
            self.io.try_io(Interest::WRITABLE, || self.state.send((&self.io).into(), transmit));
        self.is_blocked.store(is_blocked(&sent), Ordering::Relaxed);
        sent
    }

    fn sender(&self) -> MutexGuard<'_, Option<Waker>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_blocked<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

impl AsyncUdpSocket for JoiningSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut unsent = self.unsent();
        if self.state.max_gso_segments() < MOST_PACKETS && unsent.is_empty() {
            return self.send_now(transmit);
        }
        let sent = unsent.send(transmit, &mut |transmit| self.send_now(transmit));
        if !unsent.is_empty()
            && let Some(sender) = self.sender().take()
        {
            sender.wake();
        }
        sent
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        received: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(context))?;
            let receive = || self.state.recv((&self.io).into(), buffers, received);
            // Ignore errors. `WouldBlock` means that no datagram has arrived. The next turn of the
            // loop then waits. Any other error is the result of an earlier send, and the kernel
            // reports it only once.
            let Ok(count) = self.io.try_io(Interest::READABLE, receive) else { continue };
            if count < buffers.len().min(BATCH_SIZE) {
                // The kernel has no more datagrams, so do not ask again until it reports new
                // datagrams. The event loop of this thread receives these reports, so none can be
                // missed.
                let is_empty = || Err::<(), _>(ErrorKind::WouldBlock.into());
                let _ = self.io.try_io(Interest::READABLE, is_empty);
            }
            return Poll::Ready(Ok(count));
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

impl Drop for JoiningSocket {
    fn drop(&mut self) {
        // Wake the sending task, which ends because the socket no longer exists.
        if let Some(sender) = self.sender().take() {
            sender.wake();
        }
    }
}

/// Future that completes when a socket has room.
type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Wait of one task until a socket has room.
struct Poller {
    socket: Arc<JoiningSocket>,
    writable: Option<Writable>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.writable.is_none() && !self.socket.is_blocked.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let socket = self.socket.clone();
        let writable = self
            .writable
            .get_or_insert_with(|| Box::pin(async move { socket.io.writable().await }));
        let outcome = ready!(writable.as_mut().poll(context));
        self.writable = None;
        self.socket.is_blocked.store(false, Ordering::Relaxed);
        Poll::Ready(outcome)
    }
}

/// Task that sends the packets that wait in a socket.
struct Sender {
    socket: Weak<JoiningSocket>,
    /// Used while the socket has no room.
    poller: Option<Pin<Box<dyn UdpPoller>>>,
}

impl Future for Sender {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(socket) = self.socket.upgrade() else { return Poll::Ready(()) };
        loop {
            let flushed = socket.unsent().flush(&mut |transmit| socket.send_now(transmit));
            match flushed {
                Flushed::All => {
                    self.poller = None;
                    *socket.sender() = Some(context.waker().clone());
                }
                // Let the tasks that are ready now run first, because they may send more.
                Flushed::SomeWait => context.waker().wake_by_ref(),
                Flushed::Blocked => {
                    let poller =
                        self.poller.get_or_insert_with(|| socket.clone().create_io_poller());
                    // An error ends the wait, too. The next send reports the error.
                    if poller.as_mut().poll_writable(context).is_ready() {
                        continue;
                    }
                }
            }
            return Poll::Pending;
        }
    }
}

/// Timer that is cheap to set to a later time.
// `quinn` sets the timer of a connection after almost every packet, nearly always to a later time.
// `reset` then stores the later time, but leaves tokio's timer unchanged. When this timer ends too
// early, `poll` sets it to the later time.
#[derive(Debug)]
struct LazyTimer {
    sleep: Pin<Box<Sleep>>,
    at: Instant,
}

impl AsyncTimer for LazyTimer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.at = at;
        if at < self.sleep.deadline().into_std() {
            self.sleep.as_mut().reset(at.into());
        }
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Future::poll(self.sleep.as_mut(), context));
            let at = self.at;
            if tokio::time::Instant::now().into_std() >= at {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(at.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    const SIZE: usize = 1200;

    fn socket() -> Arc<dyn AsyncUdpSocket> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        ThreadRuntime.wrap_udp_socket(socket).unwrap()
    }

    #[tokio::test]
    async fn joined_sends_arrive_whole_and_in_order() {
        let (from, to) = (socket(), socket());
        let destination = to.local_addr().unwrap();
        let mut poller = from.clone().create_io_poller();
        let (packets, mut sent) = (93, 0);
        let bytes: Vec<u8> = (0..packets).flat_map(|number| [number; SIZE]).collect();
        let mut received = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        while received.len() < bytes.len() {
            if sent < bytes.len() {
                poll_fn(|context| poller.as_mut().poll_writable(context)).await.unwrap();
                let contents = &bytes[sent..bytes.len().min(sent + 10 * SIZE)];
                let transmit = Transmit {
                    destination,
                    ecn: None,
                    contents,
                    segment_size: Some(SIZE),
                    src_ip: None,
                };
                match from.try_send(&transmit) {
                    Ok(()) => sent += contents.len(),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                if sent < 40 * SIZE {
                    continue;
                }
            }
            let mut meta = [RecvMeta::default()];
            let count = poll_fn(|context| {
                let mut buffers = [IoSliceMut::new(&mut buffer)];
                to.poll_recv(context, &mut buffers, &mut meta)
            });
            assert_eq!(count.await.unwrap(), 1);
            received.extend_from_slice(&buffer[..meta[0].len]);
        }
        assert!(received == bytes, "packets are lost or out of order");
    }

    #[tokio::test]
    async fn a_datagram_after_the_last_one_is_noticed() {
        let to = socket();
        let from = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for number in 0..20u8 {
            from.send_to(&[number], to.local_addr().unwrap()).unwrap();
            let mut meta = [RecvMeta::default(); 2];
            let (mut first, mut second) = ([0; 2000], [0; 2000]);
            let count = poll_fn(|context| {
                let mut buffers = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                to.poll_recv(context, &mut buffers, &mut meta)
            });
            assert_eq!((count.await.unwrap(), first[0]), (1, number));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_ends_at_the_last_time_that_was_set() {
        let begin = ThreadRuntime.now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut timer = ThreadRuntime.new_timer(after(1000));
        let ends = async |timer: &mut Pin<Box<dyn AsyncTimer>>| {
            poll_fn(|context| timer.as_mut().poll(context)).await;
            ThreadRuntime.now() - begin
        };
        // Set a later time, an earlier time, a past time, and again a later time.
        timer.as_mut().reset(after(3000));
        assert_eq!(ends(&mut timer).await, Duration::from_secs(3));
        timer.as_mut().reset(after(9000));
        timer.as_mut().reset(after(5000));
        assert_eq!(ends(&mut timer).await, Duration::from_secs(5));
        timer.as_mut().reset(after(4000));
        assert_eq!(ends(&mut timer).await, Duration::from_secs(5));
        timer.as_mut().reset(after(6000));
        assert_eq!(ends(&mut timer).await, Duration::from_secs(6));
    }
}

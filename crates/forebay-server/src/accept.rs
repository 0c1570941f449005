//! Accepts connections, distributes them among threads, and starts a task for each connection.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay_net::deadline::{Activity, TICK};
use forebay_net::fault::Fault;
use forebay_net::listen::{Handed, Listener, Message};
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_net::tls::TlsSession;
use forebay_wire::ClientAddress;
use forebay_wire::proxy_protocol::{self, Announced};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};

use crate::admission::{Counted, make_room};
use crate::close_order::{CloseOrder, Closing};
use crate::context::FrontContext;
use crate::front::{Protocol, serve_connection};
use crate::handshake::accept_tls;
use crate::part::Accepted;
use crate::route::Table;
use crate::{http3, relay};

/// Minimum interval between log messages while connections cannot be accepted.
const REMINDER: Duration = Duration::from_secs(10);

/// Maximum time to accept the connections in the listeners' queues when the server stops.
const EMPTYING: Duration = Duration::from_millis(200);

/// The listeners of one thread, each with its own task.
pub struct Accepting {
    context: Rc<FrontContext>,
    listeners: HashMap<usize, OpenListener>,
    /// Closes the inbox of messages from other threads.
    close_inbox: oneshot::Sender<()>,
}

/// The task of a listener.
struct OpenListener {
    task: JoinHandle<()>,
    close: oneshot::Sender<Closing>,
}

impl Accepting {
    /// Starts to receive messages from other threads.
    pub fn new(context: &Rc<FrontContext>, handed: mpsc::UnboundedReceiver<Message>) -> Self {
        let inbox = Inbox { context: context.clone(), messages: handed };
        let (close_inbox, closed) = oneshot::channel();
        spawn_local(take_handed(inbox, closed));
        Self { context: context.clone(), listeners: HashMap::new(), close_inbox }
    }

    /// Starts to accept connections from a listener.
    pub fn open(&mut self, index: usize, listener: Listener) {
        let (close, closed) = oneshot::channel();
        let closed = CloseOrder::new(closed);
        let task = spawn_local(accept_all(self.context.clone(), listener, index, closed));
        self.listeners.insert(index, OpenListener { task, close });
    }

    /// Closes a listener after the connections in its queue have been accepted.
    pub fn close(&mut self, index: usize) {
        if let Some(OpenListener { close, .. }) = self.listeners.remove(&index) {
            let _ = close.send(Closing::Empty);
        }
    }

    /// Accepts no more connections, because another process now accepts all connections to the
    /// listeners. This process still completes the QUIC handshakes that it has begun.
    pub async fn leave(self) {
        for OpenListener { close, .. } in self.listeners.into_values() {
            // A task may hold an accepted connection that waits in `make_room`. The task serves
            // this connection before it ends.
            let _ = close.send(Closing::Leave);
        }
        let _ = self.close_inbox.send(());
        tokio::task::yield_now().await;
    }

    /// Closes all listeners after the connections in their queues have been accepted. A listener
    /// closes after `EMPTYING` at the latest, even if its queue is not empty. Connections that
    /// other threads pass on are still served, because their clients are already connected.
    pub async fn stop(self) {
        let deadline = tokio::time::Instant::now() + EMPTYING;
        let mut tasks = Vec::new();
        for OpenListener { task, close, .. } in self.listeners.into_values() {
            let _ = close.send(Closing::Empty);
            tasks.push(task);
        }
        for mut task in tasks {
            // With many new clients, a queue may never be empty. So abort the task at the deadline.
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
            }
        }
        let _ = self.close_inbox.send(());
    }
}

/// Accepts clients of a listener of any kind, until the listener must close or fails.
async fn accept_all(
    context: Rc<FrontContext>,
    listener: Listener,
    index: usize,
    closed: CloseOrder,
) {
    let outcome = match listener {
        Listener::Tcp(listener) => match TcpListener::from_std(listener) {
            Ok(listener) => accept_tcp(&context, listener, index, closed).await,
            Err(error) => Err(error),
        },
        Listener::Udp(socket) => http3::listen::accept(&context, socket, index, closed).await,
        Listener::Datagrams(socket) => {
            relay::datagrams::accept(&context, socket, index, closed).await
        }
        Listener::Unix(listener) => match UnixListener::from_std(listener) {
            Ok(listener) => accept_unix(&context, listener, index, closed).await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = outcome {
        context.thread.errors.error(&format!("a listener gave up: {error}"));
    }
}

async fn accept_tcp(
    context: &Rc<FrontContext>,
    listener: TcpListener,
    index: usize,
    mut closed: CloseOrder,
) -> io::Result<()> {
    let own = listener.local_addr()?;
    let mut pauses = Pauses::default();
    while !closed.is_left() {
        tokio::select! {
            // Accept queued connections before the listener closes.
            biased;
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    pauses.end(&context.thread);
                    make_room(context, index, Some(peer.ip())).await;
                    place(context, stream, peer, own, index);
                }
                Err(error) => pauses.after(&context.thread, &error).await,
            },
            () = closed.wait() => return Ok(()),
        }
    }
    Ok(())
}

/// Serves the connection on this thread, or passes it to a thread with fewer connections.
fn place(
    context: &Rc<FrontContext>,
    stream: TcpStream,
    peer: SocketAddr,
    own: SocketAddr,
    index: usize,
) {
    let thread = &context.thread;
    let stream = match thread.load.lighter_than(thread.index) {
        None => stream,
        Some(other) => {
            let Ok(stream) = stream.into_std() else { return };
            let handed = Handed { stream, peer, listener: index };
            // While the server stops, its threads end one by one. If the other thread has ended,
            // `hand` fails, and this thread serves the connection.
            let Err(Handed { stream, .. }) = thread.load.hand(other, handed) else { return };
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            stream
        }
    };
    let own = if own.ip().is_unspecified() { stream.local_addr().unwrap_or(own) } else { own };
    let socket = Socket::tcp(stream, &thread.deadlines);
    start(context, socket, peer.into(), own, index);
}

/// Receiver of messages from other threads. These messages can contain connections. The drop of an
/// inbox subtracts these connections from the thread's number of connections.
struct Inbox {
    context: Rc<FrontContext>,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.messages.close();
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Connection(_) = message {
                // `hand` has counted this connection for this thread. Subtract it, because a
                // stopping thread waits until its count is zero.
                self.context.thread.load.leave(self.context.thread.index);
            }
        }
    }
}

/// Serves connections from other threads, and closes an idle connection if another thread needs
/// room. When `closed` completes, closes the inbox, and serves the connections that are left in the
/// inbox.
async fn take_handed(mut inbox: Inbox, mut closed: oneshot::Receiver<()>) {
    let context = inbox.context.clone();
    let mut is_closed = false;
    loop {
        let message = tokio::select! {
            message = inbox.messages.recv() => message,
            _ = &mut closed, if !is_closed => {
                is_closed = true;
                inbox.messages.close();
                continue;
            }
        };
        let Some(message) = message else { return };
        let Message::Connection(Handed { stream, peer, listener }) = message else {
            if !context.thread.close_oldest() {
                // No connection of this thread can be closed. So wake `make_room`, which then asks
                // another thread.
                context.thread.load.pressure.notify();
            }
            continue;
        };
        if let Ok(stream) = TcpStream::from_std(stream)
            && let Ok(own) = stream.local_addr()
        {
            let socket = Socket::tcp(stream, &context.thread.deadlines);
            start(&context, socket, peer.into(), own, listener);
        }
        // Undo the count of `hand`, because `start` counts the connection again.
        context.thread.load.leave(context.thread.index);
    }
}

/// Accepts clients of a Unix socket until `closed` completes. This thread serves all of them.
async fn accept_unix(
    context: &Rc<FrontContext>,
    listener: UnixListener,
    index: usize,
    mut closed: CloseOrder,
) -> io::Result<()> {
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let mut pauses = Pauses::default();
    while !closed.is_left() {
        tokio::select! {
            biased;
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    pauses.end(&context.thread);
                    make_room(context, index, None).await;
                    let socket = Socket::unix(stream, &context.thread.deadlines);
                    start(context, socket, ClientAddress::Unix, local, index);
                }
                Err(error) => pauses.after(&context.thread, &error).await,
            },
            () = closed.wait() => return Ok(()),
        }
    }
    Ok(())
}

/// State of a listener while connections cannot be accepted.
#[derive(Default)]
struct Pauses {
    /// Time of the last log message.
    warned: Option<Instant>,
    /// True if idle backend connections were closed to free descriptors for the next accept.
    has_freed: bool,
}

impl Pauses {
    /// Handles a failed accept. Does nothing if the client aborted the connection, or if a signal
    /// interrupted the call. If descriptors have run out, closes idle backend connections.
    ///
    /// If descriptors have run out and no backend connection is idle, waits for a tick. Also waits
    /// after all other errors. Logs the errors that cause a wait at most once in [`REMINDER`].
    async fn after(&mut self, thread: &Thread, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
            return;
        }
        if thread.frees_descriptors(error) {
            self.has_freed = true;
            return;
        }
        if self.warned.is_none_or(|warned| warned.elapsed() >= REMINDER) {
            self.warned = Some(Instant::now());
            let fault = Fault::exhausted("accept connections", error);
            let message = fault.map(|fault| fault.to_string());
            let message = message.unwrap_or_else(|| format!("cannot accept connections: {error}"));
            thread.errors.error(&format!("{message}; they wait"));
        }
        // Without descriptors or memory, an immediate retry would only waste CPU time. The
        // connection stays in the kernel's queue.
        tokio::time::sleep(TICK).await;
    }

    fn end(&mut self, thread: &Thread) {
        if std::mem::take(&mut self.has_freed) {
            thread.warn_freed();
        }
        if self.warned.take().is_some() {
            thread.errors.info("connections are accepted again");
        }
    }
}

/// Serves a connection in its own task. Resets the connection if the client's address already has
/// the maximum number of connections.
pub fn start(
    context: &Rc<FrontContext>,
    socket: Socket,
    peer: ClientAddress,
    local: SocketAddr,
    index: usize,
) {
    socket.set_counted();
    if context.table().is_proxied(index) {
        spawn_local(start_proxied(context.clone(), socket, peer, local, index));
        return;
    }
    let mut counted = Counted::new(&context.thread);
    if !counted.count_address(context, index, peer) {
        socket.reset();
        return;
    }
    let thread = context.thread.clone();
    let accepted = Accepted { thread, peer, local, listener: index, tls: None };
    let context = context.clone();
    if context.table().is_stream(index) {
        spawn_local(async move {
            relay::serve::serve_connection(&context, socket, accepted, Vec::new()).await;
            drop(counted);
        });
        return;
    }
    if context.table().is_https(index) {
        spawn_local(async move {
            serve_secured(&context, socket, accepted, Vec::new()).await;
            drop(counted);
        });
        return;
    }
    let protocol = protocol(&context, index);
    spawn_local(async move {
        serve_connection(&context, socket, accepted, protocol, Vec::new()).await;
        drop(counted);
    });
}

/// Serves a connection that begins with a PROXY header. Closes the connection if the header is
/// missing or invalid, or if `peer` is not a trusted proxy.
async fn start_proxied(
    context: Rc<FrontContext>,
    socket: Socket,
    peer: ClientAddress,
    local: SocketAddr,
    index: usize,
) {
    let thread = context.thread.clone();
    let mut counted = Counted::new(&thread);
    if !context.table().may_announce(index, peer) {
        thread.errors.info(&format!("{peer} is not in `trusted_proxies`: closed"));
        return;
    }
    let (announced, prefix) = match read_announcement(&thread, &socket).await {
        Ok(read) => read,
        Err(_) if socket.is_evicted() => return,
        Err(error) => {
            thread.errors.info(&format!("{peer}: {error}: closed"));
            return;
        }
    };
    let (peer, local) = match announced {
        Announced::Local => (peer, local),
        Announced::Client { source, destination } => (source.into(), destination),
    };
    if !counted.count_address(&context, index, peer) {
        socket.reset();
        return;
    }
    socket.unlimit_read();
    let is_stream = context.table().is_stream(index);
    let is_https = context.table().is_https(index);
    let protocol = protocol(&context, index);
    let accepted = Accepted { thread, peer, local, listener: index, tls: None };
    if is_stream {
        return Box::pin(relay::serve::serve_connection(&context, socket, accepted, prefix)).await;
    }
    if is_https {
        return serve_secured(&context, socket, accepted, prefix).await;
    }
    serve_connection(&context, socket, accepted, protocol, prefix).await;
}

/// Returns the protocol of a listener without TLS.
fn protocol(context: &FrontContext, index: usize) -> Protocol {
    if context.table().ajp(index).is_some() { Protocol::Ajp } else { Protocol::Any }
}

/// Performs the TLS handshake of a connection, and then serves the connection.
async fn serve_secured(
    context: &Rc<FrontContext>,
    socket: Socket,
    accepted: Accepted,
    prefix: Vec<u8>,
) {
    // Box the handshake, so that its memory is freed before requests are served.
    let (listener, local) = (accepted.listener, accepted.local.ip());
    let select =
        |table: &Table, name: Option<&str>| table.tls(listener, name, Some(local)).cloned();
    let tls = Box::pin(accept_tls(context, &socket, prefix, select)).await;
    let Some(tls) = tls else { return };
    let is_http2 = socket.tls().is_some_and(TlsSession::is_http2);
    let protocol = if is_http2 { Protocol::Http2 } else { Protocol::Http1 };
    let accepted = Accepted { tls: Some(tls), ..accepted };
    serve_connection(context, socket, accepted, protocol, Vec::new()).await;
}

/// Reads the PROXY header. Returns the header and the bytes that were read after it.
async fn read_announcement(thread: &Thread, socket: &Socket) -> io::Result<(Announced, Vec<u8>)> {
    // The time limit is the same as for a request head.
    socket.limit_read(thread.settings().timeouts.head);
    socket.set_activity(Activity::Idle);
    let mut bytes = Vec::with_capacity(2 * proxy_protocol::LARGEST);
    loop {
        if socket.read(&mut bytes).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no PROXY header came"));
        }
        let decoded = proxy_protocol::decode(&bytes);
        socket.set_activity(Activity::PartialHead);
        if let Some((announced, length)) = decoded.map_err(io::Error::other)? {
            socket.set_activity(Activity::Busy);
            bytes.drain(..length);
            return Ok((announced, bytes));
        }
    }
}

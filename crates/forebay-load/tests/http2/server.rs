//! Server of the `h2` crate, on its own thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use forebay_load::Url;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response, request::Parts};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

/// Reaction of the server to a request.
pub enum Act {
    /// Replies with this body, and does not read the request's body.
    Body(&'static [u8]),
    /// Replies with the body of the request.
    Echo,
}

/// Behaviour of the server.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Value of SETTINGS_MAX_CONCURRENT_STREAMS.
    pub streams: Option<u32>,
    /// Number of replies that are collected and sent together.
    pub together: usize,
    /// Number of requests after which the connection shuts down gracefully.
    pub goes_away_after: Option<u64>,
}

pub struct Http2Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

type Script = dyn Fn(u64, u64) -> Act + Send + Sync;

struct Shared {
    options: Options,
    script: Box<Script>,
    barrier: Option<Barrier>,
    requests: AtomicU64,
    connections: AtomicU64,
    body_bytes: AtomicU64,
    active: AtomicU64,
    most: AtomicU64,
    last: Mutex<Option<Parts>>,
}

impl Http2Server {
    /// Starts the server. The server calls `script` with the indices of connection and request,
    /// both from 0.
    pub fn start(
        options: Options,
        script: impl Fn(u64, u64) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            options,
            script: Box::new(script),
            barrier: (options.together > 1).then(|| Barrier::new(options.together)),
            requests: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            active: AtomicU64::new(0),
            most: AtomicU64::new(0),
            last: Mutex::new(None),
        });
        let server = Self { address, shared: shared.clone() };
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    tokio::spawn(connection(socket, shared.clone()));
                }
            });
        });
        server
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("h2c://{}/", self.address)).unwrap()
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of request body bytes that the server read.
    pub fn body_bytes(&self) -> u64 {
        self.shared.body_bytes.load(Ordering::SeqCst)
    }

    /// Returns the maximum number of requests that were active at the same time.
    pub fn most_streams(&self) -> u64 {
        self.shared.most.load(Ordering::SeqCst)
    }

    pub fn last_head(&self) -> Parts {
        self.shared.last.lock().unwrap().clone().unwrap()
    }
}

async fn connection(socket: TcpStream, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
    let mut builder = h2::server::Builder::new();
    if let Some(streams) = shared.options.streams {
        builder.max_concurrent_streams(streams);
    }
    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else { return };
    let mut served = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        let request_number = shared.requests.fetch_add(1, Ordering::SeqCst);
        let active = shared.active.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(active, Ordering::SeqCst);
        let act = (shared.script)(number, request_number);
        let shared_too = shared.clone();
        tokio::spawn(async move {
            // An error means that the client disconnected, which the client counts itself.
            let _ = reply(request, respond, act, &shared_too).await;
        });
        served += 1;
        if shared.options.goes_away_after == Some(served) {
            connection.graceful_shutdown();
        }
    }
}

async fn reply(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    act: Act,
    shared: &Shared,
) -> Result<(), h2::Error> {
    let (head, mut incoming) = request.into_parts();
    *shared.last.lock().unwrap() = Some(head);
    if let Some(barrier) = &shared.barrier {
        barrier.wait().await;
    }
    let response = Response::builder().header("x-from", "h2").body(()).unwrap();
    let mut body = Vec::new();
    match act {
        Act::Body(bytes) => body.extend_from_slice(bytes),
        Act::Echo => {
            while let Some(piece) = incoming.data().await {
                let piece = piece?;
                body.extend_from_slice(&piece);
                incoming.flow_control().release_capacity(piece.len())?;
            }
            shared.body_bytes.fetch_add(body.len() as u64, Ordering::SeqCst);
        }
    }
    shared.active.fetch_sub(1, Ordering::SeqCst);
    let stream = respond.send_response(response, false)?;
    send(stream, body.into()).await
}

async fn send(mut stream: SendStream<Bytes>, mut body: Bytes) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(room) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Ok(());
        };
        let room = room?.min(body.len());
        stream.send_data(body.split_to(room), body.is_empty())?;
    }
    Ok(())
}

//! Waits until a process of a program is ready.

use super::ProcessAddress;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Pause after the first attempt to connect. Each further pause is twice as long, up to
/// `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// A process with an inherited socket counts as ready after this time.
const LIVED: Duration = Duration::from_secs(1);
/// Bytes of a status line up to its status.
const START: usize = "HTTP/1.1 200".len();

/// Waits until the process listens, without a time limit. If this user may not connect to the
/// socket, calls `share`, which asks the guardian to let this user connect.
pub(super) async fn listens(place: &ProcessAddress, share: impl Fn()) {
    let mut pause = FIRST_PAUSE;
    while let Err(error) = connect(place).await {
        if error.kind() == io::ErrorKind::PermissionDenied {
            share();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits until the process accepts connections from its inherited socket, for at most [`LIVED`].
/// The kernel lets clients connect before the process accepts. So this function opens an empty
/// connection, and waits until the process closes it.
pub(super) async fn takes_connections(place: &ProcessAddress) {
    let closed = async {
        match connect(place).await {
            Ok(mut stream) => stream.wait_for_close().await,
            Err(_) => std::future::pending().await,
        }
    };
    let _ = tokio::time::timeout(LIVED, closed).await;
}

/// Requests `target` until the process answers with a status below 500, without a time limit.
pub(super) async fn answers(place: &ProcessAddress, target: &str) {
    let mut pause = FIRST_PAUSE;
    while !matches!(status(place, target).await, Ok(Some(100..500))) {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns the status of the reply to a request, after its end. `None` if it is not HTTP.
async fn status(place: &ProcessAddress, target: &str) -> io::Result<Option<u16>> {
    let agent = concat!("forebay/", env!("CARGO_PKG_VERSION"));
    let request = format!(
        "GET {target} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: {agent} (warm-up)\r\n\
         Connection: close\r\n\r\n"
    );
    match connect(place).await? {
        ProbeStream::Unix(stream) => exchange(stream, &request).await,
        ProbeStream::Tcp(stream) => exchange(stream, &request).await,
    }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> io::Result<Option<u16>> {
    stream.write_all(request.as_bytes()).await?;
    let (mut start, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            break;
        }
        // The rest is read, so that the process does not see a client that leaves, and dropped.
        let missing = START.saturating_sub(start.len());
        start.extend_from_slice(&piece[..length.min(missing)]);
    }
    let digits = start.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    Ok(digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok()))
}

enum ProbeStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

async fn connect(place: &ProcessAddress) -> io::Result<ProbeStream> {
    match place {
        ProcessAddress::Unix(path) => UnixStream::connect(path).await.map(ProbeStream::Unix),
        ProcessAddress::Tcp(address) => TcpStream::connect(address).await.map(ProbeStream::Tcp),
    }
}

impl ProbeStream {
    async fn wait_for_close(&mut self) {
        let mut byte = [0];
        let _ = match self {
            Self::Unix(stream) => {
                let _ = stream.shutdown().await;
                stream.read(&mut byte).await
            }
            Self::Tcp(stream) => {
                let _ = stream.shutdown().await;
                stream.read(&mut byte).await
            }
        };
    }
}

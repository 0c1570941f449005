//! Waits until a process of a program is ready.

use super::ProcessAddress;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Pause after the first attempt to connect. Each further pause is twice as long, up to
/// `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// A process with an inherited socket counts as ready after this time.
const LIVED: Duration = Duration::from_secs(1);

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

//! Sends a request's body to a backend in pieces, framed for the protocol.

use std::io::IoSlice;
use std::pin::Pin;

use forebay_net::fault::Fault;
use forebay_net::socket::Socket;
use forebay_server::body::Body;
use forebay_server::spool::Spooled;
use forebay_wire::fastcgi;
use forebay_wire::http1::encode;

use super::Backend;

/// Number of bytes of a spooled body that are sent at a time. They fit into one FastCGI record.
const PIECE: usize = 32 * 1024;

/// Framing of a body.
#[derive(Clone, Copy, Debug)]
pub enum BodyEncoder {
    /// No framing.
    Plain,
    /// Chunked transfer coding of HTTP/1.1.
    Chunked,
    /// FastCGI STDIN records of the request with this number.
    Stdin(u16),
}

/// Source of a request's body.
pub enum Source<'a> {
    /// A body that arrives from the client.
    Client(&'a mut Body),
    /// A spooled body.
    Spooled(Spool<'a>),
}

/// The part of a spooled body that was not sent yet.
pub struct Spool<'a> {
    body: &'a Spooled,
    offset: u64,
    buffer: Vec<u8>,
}

/// Destination of a body.
pub trait Outlet {
    /// Sends the pieces in order.
    async fn send(&self, pieces: [&[u8]; 3]) -> Result<(), Fault>;

    /// Suspends the time limit of the reply while Forebay waits for the client's next bytes,
    /// because the backend then has nothing to answer.
    fn suspend_reply_limit(&self) {}

    /// Restarts the time limit of the reply after each piece, because the backend still reads.
    fn renew_reply_limit(&self) {}

    /// Starts the time limit of the reply, because the whole body was sent.
    fn start_reply_limit(&self) {}
}

/// Destination of a body: the connection to a backend.
pub struct ToBackend<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// The connection.
    pub socket: &'a Socket,
}

/// Sends all pieces of `source`, and then the end of the body.
pub async fn upload(
    outlet: &impl Outlet,
    encoder: BodyEncoder,
    mut source: Source<'_>,
) -> Result<(), Fault> {
    let is_streamed = matches!(source, Source::Client(_));
    let mut front = Vec::new();
    loop {
        if is_streamed {
            outlet.suspend_reply_limit();
        }
        let Some(piece) = source.next().await? else { break };
        front.clear();
        let back = encoder.frame(&mut front, piece.len());
        outlet.send([&front, piece, back]).await?;
        if !is_streamed {
            outlet.renew_reply_limit();
        }
    }
    front.clear();
    encoder.end(&mut front);
    if !front.is_empty() {
        outlet.send([&front, b"", b""]).await?;
    }
    if is_streamed {
        outlet.start_reply_limit();
    } else {
        outlet.renew_reply_limit();
    }
    Ok(())
}

impl BodyEncoder {
    /// Appends the framing bytes that precede a piece of `length` bytes. Returns the framing bytes
    /// that follow this piece.
    fn frame(self, front: &mut Vec<u8>, length: usize) -> &'static [u8] {
        match self {
            Self::Plain => b"",
            Self::Chunked => {
                encode::chunk_size(front, length);
                encode::CHUNK_END
            }
            Self::Stdin(id) => {
                fastcgi::stdin_header(front, id, length as u16);
                b""
            }
        }
    }

    /// Appends the framing bytes that mark the end of the body, if the framing has such bytes.
    fn end(self, out: &mut Vec<u8>) {
        match self {
            Self::Plain => {}
            Self::Chunked => out.extend_from_slice(encode::LAST_CHUNK),
            Self::Stdin(id) => fastcgi::end_of_stdin(out, id),
        }
    }
}

impl<'a> Source<'a> {
    /// Creates a source that reads a spooled body from its start.
    pub fn spooled(body: &'a Spooled) -> Self {
        Self::Spooled(Spool { body, offset: 0, buffer: vec![0; PIECE] })
    }

    async fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        let Spool { body, offset, buffer } = match self {
            Self::Client(body) => return body.next().await,
            Self::Spooled(spool) => spool,
        };
        let read = body
            .read_at(*offset, buffer)
            .map_err(|error| Fault::us(500, format!("cannot read a spooled body: {error}")))?;
        *offset += read as u64;
        Ok((read > 0).then(|| &buffer[..read]))
    }
}

impl Outlet for ToBackend<'_> {
    async fn send(&self, pieces: [&[u8]; 3]) -> Result<(), Fault> {
        let mut pieces = pieces.map(IoSlice::new);
        let sent = self.socket.write_pieces(&mut pieces).await;
        sent.map_err(|error| self.backend.lost(&error))
    }

    fn suspend_reply_limit(&self) {
        self.socket.unlimit_read();
    }

    fn renew_reply_limit(&self) {
        self.socket.renew_read_limit(self.backend.reply_timeout());
    }

    fn start_reply_limit(&self) {
        self.socket.limit_read(self.backend.reply_timeout());
    }
}

// Sends a request while its reply is read.

/// Runs `upload`, which sends a request, and `download`, which reads the reply, until the reply has
/// ended. Returns the result of `download` if `upload` has ended successfully. Returns `None` if
/// the reply is complete, but `upload` has failed or has not ended. Fails if `download` fails. If
/// both fail, returns the error of `upload`.
pub async fn send_and_read<T>(
    mut upload: Pin<&mut impl Future<Output = Result<(), Fault>>>,
    mut download: Pin<&mut impl Future<Output = Result<T, Fault>>>,
) -> Result<Option<T>, Fault> {
    // Send and read at the same time. An application may stop reading until Forebay reads its
    // output. An application may also answer without reading the whole request.
    tokio::select! {
        biased;
        sent = &mut upload => match (sent, download.await) {
            (Ok(()), outcome) => outcome.map(Some),
            (Err(_), Ok(_)) => Ok(None),
            (Err(fault), Err(_)) => Err(fault),
        },
        outcome = &mut download => outcome.map(|_| None),
    }
}

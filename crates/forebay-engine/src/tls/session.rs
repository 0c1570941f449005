//! TLS between a socket's reads and writes and its bytes: `rustls` without I/O, on a socket that
//! does not block.
//!
//! Encrypted bytes count as written when the kernel has all of them. Until then the writer sees
//! "no room" and tries again with the same bytes, so backlog, back-pressure and deadlines are those
//! of plain connections.

use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustls::{Connection, Writer};

use crate::byte_stream::Io;

/// Bytes of a file that are encrypted at a time: four records, in one write.
const FILE_PIECE: usize = 64 << 10;

/// The TLS of one connection, handshake included.
pub struct Session(RefCell<State>);

struct State {
    connection: Connection,
    /// Bytes that were encrypted, and will be reported as written once the kernel has all of them:
    /// the writer sees no room until then, and tries again with the same bytes.
    promised: usize,
    /// The peer must not take what it got for the whole.
    is_cut: bool,
}

/// What one look at the socket gave.
pub struct Received {
    /// There was less than there was room for: the socket is empty.
    pub is_short: bool,
}

impl Session {
    pub fn new(connection: impl Into<Connection>) -> Self {
        let connection = connection.into();
        Self(RefCell::new(State { connection, promised: 0, is_cut: false }))
    }

    /// Takes bytes that were read from the socket before.
    pub fn feed(&self, mut bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        while !bytes.is_empty() {
            state.connection.read_tls(&mut bytes)?;
            state.connection.process_new_packets().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Decrypts one read of the socket, and sends what that calls for as far as there is room. A
    /// record that is refused is answered with an alert.
    pub fn receive(&self, io: &Io) -> io::Result<Received> {
        let state = &mut *self.0.borrow_mut();
        let mut input = Input { io, is_short: false };
        state.connection.read_tls(&mut input)?;
        let is_short = input.is_short;
        let processed = state.connection.process_new_packets();
        let flushed = state.flush(io);
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match flushed {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(Received { is_short }),
        }
    }

    /// Appends to `buffer` what has been decrypted, at most its spare capacity. `WouldBlock` where
    /// there is nothing, 0 after the peer's `close_notify`, `UnexpectedEof` where its connection
    /// ended without.
    pub fn take(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let state = &mut *self.0.borrow_mut();
        let mut reader = state.connection.reader();
        let begun = buffer.len();
        while buffer.len() < buffer.capacity() {
            let chunk = match reader.fill_buf() {
                Ok([]) => break,
                Ok(chunk) => chunk,
                Err(_) if buffer.len() > begun => break,
                Err(error) => return Err(error),
            };
            let n = chunk.len().min(buffer.capacity() - buffer.len());
            buffer.extend_from_slice(&chunk[..n]);
            reader.consume(n);
        }
        Ok(buffer.len() - begun)
    }

    /// Whether [`Session::take`] has an answer without the socket: bytes, or the end.
    pub fn has_answer(&self) -> bool {
        let mut state = self.0.borrow_mut();
        !matches!(state.connection.reader().fill_buf(), Err(error)
            if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// As [`Socket::peek`](crate::Socket::peek): what the protocol has for itself, such as tickets,
    /// is nothing yet.
    pub fn peek(&self, io: &Io) -> Option<bool> {
        loop {
            let answer = self.0.borrow_mut().connection.reader().fill_buf().map(<[u8]>::len);
            match answer {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                answer => return Some(matches!(answer, Ok(1..))),
            }
            match self.receive(io) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => return Some(false),
            }
        }
    }

    /// Encrypts and sends some of `pieces`; `WouldBlock` until the kernel has all that was
    /// encrypted.
    pub fn write(&self, io: &Io, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let given = pieces.iter().map(|piece| piece.len()).sum();
        self.send(io, given, |writer| writer.write_vectored(pieces))
    }

    /// Encrypts and sends some of `file`, as [`Session::write`].
    pub fn send_file(
        &self,
        io: &Io,
        file: BorrowedFd<'_>,
        at: &mut u64,
        count: usize,
    ) -> io::Result<usize> {
        let from = *at;
        let n = self.send(io, count, |writer| {
            let mut bytes = Vec::with_capacity(count.min(FILE_PIECE));
            rustix::io::pread(file, spare_capacity(&mut bytes), from)?;
            writer.write(&bytes)
        })?;
        *at += n as u64;
        Ok(n)
    }

    /// Has `encrypt` give what is to be sent, unless that was promised before. At most `most`.
    fn send(
        &self,
        io: &Io,
        most: usize,
        encrypt: impl FnOnce(&mut Writer<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let state = &mut *self.0.borrow_mut();
        if state.promised == 0 {
            state.promised = encrypt(&mut state.connection.writer())?;
        }
        state.flush(io)?;
        let written = state.promised.min(most);
        state.promised -= written;
        Ok(written)
    }

    /// Sends what is waiting to be sent; `WouldBlock` where not all of it has room.
    pub fn flush(&self, io: &Io) -> io::Result<()> {
        self.0.borrow_mut().flush(io)
    }

    /// From now on the connection ends without `close_notify`.
    pub fn cut(&self) {
        self.0.borrow_mut().is_cut = true;
    }

    /// Tells the peer that no more comes, where all that was begun has been sent.
    pub fn close(&self, io: &Io) {
        let state = &mut *self.0.borrow_mut();
        if !state.is_cut && !state.connection.is_handshaking() && state.flush(io).is_ok() {
            state.is_cut = true;
            state.connection.send_close_notify();
            // The peer may be gone, or take no more: it will see an end without it.
            let _ = state.flush(io);
        }
    }

    /// Looks at what was agreed on.
    pub fn look<T>(&self, at: impl FnOnce(&Connection) -> T) -> T {
        at(&self.0.borrow().connection)
    }

    /// Whether both sides have agreed on HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.0.borrow().connection.alpn_protocol() == Some(b"h2")
    }

    /// Whether application data cannot be exchanged yet.
    pub fn is_handshaking(&self) -> bool {
        self.0.borrow().connection.is_handshaking()
    }
}

impl State {
    fn flush(&mut self, io: &Io) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut Output(io))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// The socket as a source of records.
struct Input<'a> {
    io: &'a Io,
    is_short: bool,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.io.read_slice(buffer)?;
        self.is_short = n > 0 && n < buffer.len();
        Ok(n)
    }
}

/// The socket as a sink of records.
struct Output<'a>(&'a Io);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

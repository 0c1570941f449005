//! TLS of a socket: the handshake, and reads that decrypt.

use std::io;

use tokio::io::Interest;

use super::Socket;
use crate::tls::{Alpn, ClientTls, TlsSession, no_http2};

impl Socket {
    /// Adds TLS to the socket. [`Socket::finish_handshake`] must follow.
    pub fn start_tls(&self, session: TlsSession) {
        let is_first = self.shared.tls.set(Box::new(session)).is_ok();
        debug_assert!(is_first, "a connection has one session");
    }

    /// Performs the handshake of a new connection to `host`. Returns true if the server has chosen
    /// HTTP/2. With [`Alpn::Http2`], fails if the server has not chosen HTTP/2.
    pub async fn secure(&self, tls: &ClientTls, host: &str, alpn: Alpn) -> io::Result<bool> {
        self.start_tls(tls.session(host, alpn)?);
        let is_http2 = self.finish_handshake().await?.is_http2();
        if alpn == Alpn::Http2 && !is_http2 {
            return Err(no_http2());
        }
        Ok(is_http2)
    }

    /// Finishes the handshake that [`Socket::start_tls`] has begun.
    pub async fn finish_handshake(&self) -> io::Result<&TlsSession> {
        let tls = self.tls().ok_or(io::ErrorKind::NotConnected)?;
        loop {
            match tls.flush(&self.shared.io) {
                Ok(()) if !tls.is_handshaking() => return Ok(tls),
                Ok(()) => {}
                Err(error) => {
                    self.after_write_error(error).await?;
                    continue;
                }
            }
            self.readable().await?;
            match self.receive(tls) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => outcome?,
            }
            if tls.is_handshaking() && tls.has_answer() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads as [`Socket::read_ready`] does, and decrypts the received bytes.
    pub(super) fn read_decrypted(
        &self,
        tls: &TlsSession,
        buffer: &mut Vec<u8>,
    ) -> io::Result<usize> {
        // Maximum number of receives per call. The limit lets other tasks run while a peer sends
        // records without data.
        const LOOKS: usize = 8;
        for _ in 0..LOOKS {
            match tls.take(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            self.receive(tls)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Reads once without waiting, and decrypts the received bytes.
    fn receive(&self, tls: &TlsSession) -> io::Result<()> {
        if self.is_unread.get() {
            // Read even if the event loop has recorded no readiness, because bytes may be waiting.
            let outcome = tls.receive(&self.shared.io);
            self.is_unread.set(outcome.is_ok());
            return outcome.map(|_| ());
        }
        let mut received = false;
        let outcome = self.shared.io.try_io(Interest::READABLE, || {
            let is_short = tls.receive(&self.shared.io)?.is_short;
            received = true;
            // A short read has emptied the socket, so let `try_io` clear the recorded readiness.
            if is_short { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if received { Ok(()) } else { outcome }
    }

    /// Returns the TLS session, if any.
    pub fn tls(&self) -> Option<&TlsSession> {
        self.shared.tls.get().map(|session| &**session)
    }

    /// Returns true if the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        self.tls().is_some()
    }
}

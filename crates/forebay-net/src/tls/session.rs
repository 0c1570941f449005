//! TLS on a nonblocking socket, with the I/O-free state machine of `rustls`.
//!
//! Plaintext counts as written when the kernel has accepted all of its encrypted bytes. Until then
//! the writer gets `WouldBlock` and retries with the same bytes. Buffering for slow clients,
//! back-pressure and deadlines therefore work as on connections without TLS.

use std::cell::{OnceCell, RefCell};
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_trust::words;
use rustix::buffer::spare_capacity;
use rustls::{Connection, ProtocolVersion, SupportedCipherSuite, Writer};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::X509Name;

use crate::byte_stream::Io;
use crate::tls::server::ServerTls;

/// Maximum bytes of a file that are encrypted and written together: four TLS records.
const FILE_PIECE: usize = 64 << 10;

/// The TLS of one connection, including the handshake.
pub struct TlsSession(RefCell<State>);

struct State {
    connection: Connection,
    /// Number of plaintext bytes that are encrypted, but not yet reported as written. The writer
    /// retries with the same plaintext until the kernel has accepted all encrypted bytes.
    promised: usize,
    /// True if the connection ends without `close_notify`, so that the peer recognizes the data as
    /// incomplete.
    is_cut: bool,
}

/// Outcome of one read from the socket.
pub struct Received {
    /// True if the read returned less than requested, so that the socket is empty.
    pub is_short: bool,
}

impl TlsSession {
    pub fn new(connection: impl Into<Connection>) -> Self {
        let connection = connection.into();
        Self(RefCell::new(State { connection, promised: 0, is_cut: false }))
    }

    /// Processes bytes that were already read from the socket.
    pub fn feed(&self, mut bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.borrow_mut();
        while !bytes.is_empty() {
            state.connection.read_tls(&mut bytes)?;
            let processed = state.connection.process_new_packets();
            processed.map_err(|error| io::Error::other(words(&error)))?;
        }
        Ok(())
    }

    /// Reads from the socket once, and decrypts the received bytes. Then sends pending TLS
    /// messages, such as handshake messages, as far as the send buffer has room. If a record is
    /// invalid, sends an alert and fails.
    pub fn receive(&self, io: &Io) -> io::Result<Received> {
        let state = &mut *self.0.borrow_mut();
        let mut input = Input { io, is_short: false };
        state.connection.read_tls(&mut input)?;
        let is_short = input.is_short;
        let processed = state.connection.process_new_packets();
        let flushed = state.flush(io);
        processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, words(&error)))?;
        match flushed {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(Received { is_short }),
        }
    }

    /// Appends decrypted bytes to `buffer`, up to its spare capacity. Fails with `WouldBlock` if
    /// there are no decrypted bytes. Returns 0 after the peer's `close_notify`. Fails with
    /// `UnexpectedEof` if the connection ended without `close_notify`.
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

    /// Returns true if [`TlsSession::take`] would not fail with `WouldBlock`.
    pub fn has_answer(&self) -> bool {
        let mut state = self.0.borrow_mut();
        !matches!(state.connection.reader().fill_buf(), Err(error)
            if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Checks for input as [`Socket::peek`](crate::socket::Socket::peek) does. Protocol messages,
    /// such as tickets, do not count as input.
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

    /// Encrypts and sends some bytes of `pieces`. Fails with `WouldBlock` until the kernel has
    /// accepted all encrypted bytes.
    pub fn write(&self, io: &Io, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let given = pieces.iter().map(|piece| piece.len()).sum();
        self.send(io, given, |writer| writer.write_vectored(pieces))
    }

    /// Encrypts and sends some bytes of `file` from `at` on, and advances `at`. Fails as
    /// [`TlsSession::write`] does.
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

    /// Sends the pending encrypted bytes. If there are none, first calls `encrypt` to encrypt more.
    /// Returns the number of plaintext bytes that were written, at most `most`.
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

    /// Sends the pending encrypted bytes. Fails with `WouldBlock` if the send buffer does not
    /// accept all of them.
    pub fn flush(&self, io: &Io) -> io::Result<()> {
        self.0.borrow_mut().flush(io)
    }

    /// Makes the connection end without `close_notify`.
    pub fn cut(&self) {
        self.0.borrow_mut().is_cut = true;
    }

    /// Sends `close_notify`, if all encrypted bytes have been sent.
    pub fn close(&self, io: &Io) {
        let state = &mut *self.0.borrow_mut();
        if !state.is_cut && !state.connection.is_handshaking() && state.flush(io).is_ok() {
            state.is_cut = true;
            state.connection.send_close_notify();
            // Ignore an error: the peer may have disconnected.
            let _ = state.flush(io);
        }
    }

    /// Calls `at` with the TLS connection, for example to read negotiated parameters.
    pub fn look<T>(&self, at: impl FnOnce(&Connection) -> T) -> T {
        at(&self.0.borrow().connection)
    }

    /// Returns true if both sides have agreed on HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.0.borrow().connection.alpn_protocol() == Some(b"h2")
    }

    /// Returns true until the handshake is complete.
    pub fn is_handshaking(&self) -> bool {
        self.0.borrow().connection.is_handshaking()
    }
}

impl State {
    fn flush(&mut self, io: &Io) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut RecordSink(io))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }
}

/// The socket as the source from which rustls reads records.
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

/// The socket as the sink to which rustls writes records.
struct RecordSink<'a>(&'a Io);

impl Write for RecordSink<'_> {
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

// The result of a connection's TLS handshake, which selects sites, and provides variables for CGI
// scripts and backends.

/// A successful handshake.
pub struct Handshake {
    tls: Arc<ServerTls>,
    server_name: Option<String>,
    version: Option<ProtocolVersion>,
    suite: Option<SupportedCipherSuite>,
    client: Option<Box<ClientCertificate>>,
    variables: OnceCell<Vec<(&'static str, String)>>,
}

/// A client certificate, issued by one of the site's authorities.
struct ClientCertificate {
    subject: String,
    issuer: String,
    serial: String,
}

impl Handshake {
    pub fn new(tls: Arc<ServerTls>, server_name: Option<String>, session: &TlsSession) -> Self {
        Self {
            tls,
            server_name,
            version: session.look(|connection| connection.protocol_version()),
            suite: session.look(|connection| connection.negotiated_cipher_suite()),
            client: session.look(client_certificate).map(Box::new),
            variables: OnceCell::new(),
        }
    }

    /// Creates the handshake of a QUIC connection, which uses TLS 1.3. Its cipher suite is unknown.
    pub fn of_quic(tls: Arc<ServerTls>, server_name: Option<String>) -> Self {
        Self {
            tls,
            server_name,
            version: Some(ProtocolVersion::TLSv1_3),
            suite: None,
            client: None,
            variables: OnceCell::new(),
        }
    }

    /// Returns the name that the client sent (SNI), or `None`.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Returns the TLS configuration that the handshake used.
    pub fn tls(&self) -> &ServerTls {
        &self.tls
    }

    /// Returns the CGI variables about the handshake.
    pub fn variables(&self) -> &[(&'static str, String)] {
        self.variables.get_or_init(|| {
            let mut variables = Vec::new();
            match self.version {
                Some(ProtocolVersion::TLSv1_2) => {
                    variables.push(("SSL_PROTOCOL", "TLSv1.2".into()));
                }
                Some(ProtocolVersion::TLSv1_3) => {
                    variables.push(("SSL_PROTOCOL", "TLSv1.3".into()));
                }
                _ => {}
            }
            if let Some(suite) = self.suite {
                variables.push(("SSL_CIPHER", name_of_openssl(suite)));
            }
            if let Some(name) = &self.server_name {
                variables.push(("SSL_TLS_SNI", name.clone()));
            }
            let verified = if self.client.is_some() { "SUCCESS" } else { "NONE" };
            variables.push(("SSL_CLIENT_VERIFY", verified.into()));
            if let Some(client) = &self.client {
                variables.push(("SSL_CLIENT_S_DN", client.subject.clone()));
                variables.push(("SSL_CLIENT_I_DN", client.issuer.clone()));
                variables.push(("SSL_CLIENT_M_SERIAL", client.serial.clone()));
            }
            variables
        })
    }

    /// Returns the subject of the client's certificate (RFC 4514), if any.
    pub(crate) fn client_subject(&self) -> Option<&str> {
        self.client.as_ref().map(|client| &*client.subject)
    }
}

fn client_certificate(connection: &Connection) -> Option<ClientCertificate> {
    let certificate = connection.peer_certificates()?.first()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(ClientCertificate {
        subject: distinguished_name(certificate.subject()),
        issuer: distinguished_name(certificate.issuer()),
        serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02X}")).collect(),
    })
}

/// Formats a distinguished name as text (RFC 4514) in printable ASCII.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.iter().rev() {
        for (at, attribute) in part.iter().enumerate() {
            if !text.is_empty() {
                text.push(if at == 0 { ',' } else { '+' });
            }
            match oid2abbrev(attribute.attr_type(), oid_registry()) {
                Ok(short) => text.push_str(short),
                Err(_) => text.push_str(&attribute.attr_type().to_id_string()),
            }
            text.push('=');
            escape(attribute.attr_value().data, &mut text);
        }
    }
    text
}

fn escape(value: &[u8], text: &mut String) {
    for (at, &byte) in value.iter().enumerate() {
        let is_at_edge = at == 0 || at + 1 == value.len();
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' | b'=' => {
                text.extend(['\\', byte as char]);
            }
            b'#' if at == 0 => text.push_str("\\#"),
            b' ' if is_at_edge => text.push_str("\\ "),
            b' '..=b'~' => text.push(byte as char),
            _ => text.push_str(&format!("\\{byte:02X}")),
        }
    }
}

/// Returns OpenSSL's name of a cipher suite, which scripts expect.
fn name_of_openssl(suite: SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(rest) = name.strip_prefix("TLS13_") {
        return format!("TLS_{rest}");
    }
    let name = name.trim_start_matches("TLS_").replace("_WITH", "").replace("AES_", "AES");
    name.replace("_POLY1305_SHA256", "_POLY1305").replace('_', "-")
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

    use super::*;

    #[test]
    fn cipher_suites_have_the_names_of_openssl() {
        let names: Vec<_> = ALL_CIPHER_SUITES.iter().map(|suite| name_of_openssl(*suite)).collect();
        for name in [
            "TLS_AES_128_GCM_SHA256",
            "TLS_CHACHA20_POLY1305_SHA256",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "ECDHE-RSA-AES128-GCM-SHA256",
            "ECDHE-RSA-CHACHA20-POLY1305",
        ] {
            assert!(names.iter().any(|other| other == name), "{name} {names:?}");
        }
    }

    #[test]
    fn names_have_no_byte_that_means_something_else() {
        let mut text = String::new();
        escape(" a,b=c\r\nX: y\u{e9} ".as_bytes(), &mut text);
        assert_eq!(text, "\\ a\\,b\\=c\\0D\\0AX: y\\C3\\A9\\ ");
    }
}

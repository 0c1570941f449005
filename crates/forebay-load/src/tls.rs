//! TLS with `rustls` over non-blocking sockets: handshakes and records.

pub(crate) mod quic;

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_trust::{Trust, is_authority, unverified, words};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, HandshakeKind};

use crate::transport::{Handshake, HandshakeProgress, Transport};
use crate::{Error, Protocol, TlsOptions, Url};

/// TLS client configuration of a run.
#[derive(Clone, Debug)]
pub(crate) struct TlsClient {
    config: Arc<ClientConfig>,
    verifier: Arc<dyn ServerCertVerifier>,
    server_name: ServerName<'static>,
    protocol: Protocol,
    resumes: bool,
}

/// TLS connection.
#[derive(Debug)]
pub(crate) struct Tls {
    socket: OwnedFd,
    connection: ClientConnection,
    protocol: Protocol,
    begun: Option<Instant>,
    /// Number of plaintext bytes whose encrypted records the kernel has not completely accepted.
    /// They count as written when the kernel has accepted all records.
    promised: usize,
    /// True if the last read emptied the socket.
    is_emptied: bool,
    /// True if the server has sent `close_notify` and all data before it was read.
    has_ended: bool,
    /// True if the connection has ended without `close_notify`.
    is_cut_off: bool,
}

/// Size of the first part of the buffer. That part receives decrypted bytes. Encrypted bytes are
/// received after this part. The size exceeds the largest incomplete record that `rustls` can hold:
/// 16 KiB plus the overhead of encryption.
const RECORD: usize = 20 << 10;

/// Number of sessions that a connection keeps for resumption. Each TLS 1.3 ticket is used only
/// once.
const TICKETS: usize = 8;

impl TlsClient {
    /// Creates the configuration. Reads the files that `options` names.
    pub fn new(url: &Url, options: &TlsOptions) -> Result<Self, Error> {
        let invalid = |what: String| Error::Invalid(what);
        let host = options.server_name.clone().unwrap_or_else(|| url.host_name().to_owned());
        let server_name = ServerName::try_from(host.clone())
            .map_err(|_| invalid(format!("a certificate cannot be for the name {host:?}")))?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(error.to_string()))?;
        let verifier = verifier(options, provider)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier.clone());
        let mut config = builder.with_no_client_auth();
        let protocol = url.protocol();
        let alpn: &[u8] = match protocol {
            Protocol::H2 | Protocol::Grpcs => b"h2",
            Protocol::Http3 => b"h3",
            _ => b"http/1.1",
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = Resumption::disabled();
        let config = Arc::new(config);
        Ok(Self { config, verifier, server_name, protocol, resumes: options.resume })
    }

    /// Returns the configuration of a connection. If sessions are resumed, the connection resumes
    /// only its own sessions.
    pub fn for_connection(&self) -> Self {
        if !self.resumes {
            return self.clone();
        }
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::in_memory_sessions(TICKETS);
        Self { config: Arc::new(config), ..self.clone() }
    }

    pub fn connect(&self) -> io::Result<ClientConnection> {
        ClientConnection::new(self.config.clone(), self.server_name.clone())
            .map_err(io::Error::other)
    }
}

impl Transport for Tls {
    type Config = TlsClient;

    fn new(socket: OwnedFd, client: &TlsClient) -> io::Result<Self> {
        let connection = client.connect()?;
        Ok(Self {
            socket,
            connection,
            protocol: client.protocol,
            begun: None,
            promised: 0,
            is_emptied: false,
            has_ended: false,
            is_cut_off: false,
        })
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn handshake(&mut self) -> io::Result<HandshakeProgress> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        loop {
            match self.flush() {
                Err(Errno::AGAIN) => return Ok(HandshakeProgress::Writes),
                Err(errno) => return Err(errno.into()),
                Ok(()) if !self.connection.is_handshaking() => break,
                Ok(()) => {}
            }
            match self.connection.read_tls(&mut Socket(&self.socket)) {
                Ok(0) => return Err(ended_early()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(HandshakeProgress::Reads);
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            if let Err(error) = self.connection.process_new_packets() {
                // The flush sends an alert, which reports the reason to the server.
                let _ = self.flush();
                let why = explain(&error, self.protocol);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        if self.protocol.is_http2() && self.connection.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, NO_HTTP2));
        }
        let is_resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        Ok(HandshakeProgress::Established(Some(Handshake { is_resumed, time: begun.elapsed() })))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.promised == 0 {
            self.promised = self.connection.writer().write(bytes).map_err(|_| Errno::PROTO)?;
        }
        self.flush()?;
        Ok(std::mem::take(&mut self.promised))
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.receive(buffer, None)
    }

    fn recv_portion(&mut self, buffer: &mut [u8], most: usize) -> Result<usize, Errno> {
        self.receive(buffer, Some(most))
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    fn is_emptied(&self, _: usize, _: usize) -> bool {
        self.is_emptied && !self.has_ended
    }

    fn is_handshaking(&self) -> bool {
        self.begun.is_some() && self.connection.is_handshaking()
    }
}

impl Tls {
    /// Receives decrypted bytes into `buffer`. If `portion` is given, reads at most this number of
    /// bytes from the socket, with one call. Returns 0 if the server has closed the connection.
    ///
    /// The error `AGAIN` means that no complete record has arrived. The error `PROTO` means that a
    /// record is invalid.
    fn receive(&mut self, buffer: &mut [u8], portion: Option<usize>) -> Result<usize, Errno> {
        let limit = portion.map_or(buffer.len(), |most| buffer.len().min(RECORD + most));
        let buffer = &mut buffer[..limit];
        // The last read of the handshake may also have read a part of the reply. Return these bytes
        // first.
        let mut written = self.take(&mut buffer[..RECORD])?;
        while written == 0 && !self.has_ended {
            let (_, n) = recv(&self.socket, &mut buffer[RECORD..], RecvFlags::empty())?;
            if n == 0 {
                self.is_cut_off = true;
                return Ok(0);
            }
            let end = RECORD + n;
            self.is_emptied = end < buffer.len();
            let mut at = RECORD;
            while at < end && !self.has_ended {
                let fed = self.connection.read_tls(&mut &buffer[at..end]);
                at += fed.map_err(|_| Errno::PROTO)?;
                let Ok(state) = self.connection.process_new_packets() else {
                    let _ = self.flush();
                    return Err(Errno::PROTO);
                };
                self.has_ended = state.peer_has_closed();
                written += self.take(&mut buffer[written..at])?;
            }
            let is_last = self.is_emptied || portion.is_some();
            if written == 0 && is_last && !self.has_ended {
                return Err(Errno::AGAIN);
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Socket(&self.socket)) {
                Ok(_) => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::PROTO)),
            }
        }
        Ok(())
    }

    /// Moves decrypted bytes to `buffer`. Returns the number of these bytes.
    fn take(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut taken = 0;
        while taken < buffer.len() {
            match self.connection.reader().read(&mut buffer[taken..]) {
                Ok(0) => break,
                Ok(n) => taken += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Errno::PROTO),
            }
        }
        Ok(taken)
    }
}

fn ended_early() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server closed the connection during the handshake: does it speak TLS on this port?",
    )
}

/// Socket as a source and a destination of TLS records for `rustls`.
struct Socket<'a>(&'a OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (_, n) = recv(self.0, buffer, RecvFlags::empty())?;
        Ok(n)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        Ok(sendmsg(self.0, pieces, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// Verification of the server's certificate, and explanations of failed handshakes.

/// Reason of a failed handshake: the server did not select HTTP/2.
const NO_HTTP2: &str = "the server does not offer HTTP/2 (h2) with ALPN: leave out --http2";

/// Reason of a failed handshake: the server did not select HTTP/3.
const NO_HTTP3: &str = "the server does not offer HTTP/3 (h3) with ALPN: leave out --http3";

/// Returns the certificate verifier for `options`.
fn verifier(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    if options.insecure {
        return Ok(unverified(provider));
    }
    let (trust, whose) = trust(options.ca.as_deref())?;
    let verifier = trust.verifier(provider).map_err(|error| Error::Invalid(error.to_string()))?;
    verifier.ok_or_else(|| {
        Error::Invalid(format!(
            "no certificate in {whose}: name a file with the certificate authorities of the server \
             (--ca FILE), or skip verification (--insecure)"
        ))
    })
}

/// Returns the authorities in the file `ca`, or the authorities of this machine if `ca` is `None`.
/// The returned text names the source of the authorities, for error messages.
fn trust(ca: Option<&Path>) -> Result<(Trust, String), Error> {
    let Some(path) = ca else {
        return Ok((Trust::of_machine(), "this machine's trust store".to_owned()));
    };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let whose = path.display().to_string();
    let authorities = read.map_err(|error| {
        Error::Invalid(format!("--ca {whose}: no certificates in PEM ({error})"))
    })?;
    Ok((Trust { authorities, are_servers: true }, whose))
}

/// Explains why a handshake failed, and how the user can correct that.
fn explain(error: &rustls::Error, protocol: Protocol) -> String {
    use rustls::Error as E;
    let is_without_alpn = matches!(
        error,
        E::NoApplicationProtocol | E::AlertReceived(AlertDescription::NoApplicationProtocol)
    );
    match error {
        E::InvalidMessage(_) => {
            "the server does not speak TLS on this port: use http:// (or h2c://), \
                                 or the port for https"
                .to_owned()
        }
        E::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the server's certificate is from an authority that is not trusted here: to trust a \
             private authority or a self-signed certificate use --ca FILE, to skip verification \
             --insecure"
                .to_owned()
        }
        E::InvalidCertificate(CertificateError::Other(other)) if is_authority(other) => {
            "the server's certificate is self-signed and not trusted here: to trust it use \
             --ca FILE, to skip verification --insecure"
                .to_owned()
        }
        E::InvalidCertificate(_) => {
            format!("{}; to skip verification use --insecure", words(error))
        }
        _ if is_without_alpn && protocol == Protocol::H2 => NO_HTTP2.to_owned(),
        _ if is_without_alpn && protocol == Protocol::Http3 => NO_HTTP3.to_owned(),
        // A Forebay server refuses the handshake if the site does not offer HTTP/3.
        E::AlertReceived(AlertDescription::AccessDenied | AlertDescription::HandshakeFailure)
            if protocol == Protocol::Http3 =>
        {
            format!("the server refused the handshake ({error}): does the site offer HTTP/3?")
        }
        E::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server offers neither TLS 1.2 nor TLS 1.3".to_owned()
        }
        E::AlertReceived(alert) => format!("the server refused it with the alert {alert:?}"),
        error => error.to_string(),
    }
}

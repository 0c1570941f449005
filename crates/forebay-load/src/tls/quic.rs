//! QUIC over connected UDP sockets. The session of `forebay-client` speaks QUIC. This module sends
//! and receives the session's datagrams, and verifies the server's certificate.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_client::{Http3Config, SessionEnd};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use super::TlsClient;
use crate::transport::{HandshakeProgress, Transport};
use crate::{Error, Protocol};

/// Size of the kernel's buffer of received datagrams. A server sends a window of data at once, and
/// datagrams without space are lost.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Transport of datagrams over a connected UDP socket.
pub(crate) struct Datagrams {
    socket: OwnedFd,
    state: UdpSocketState,
    datagram_size: usize,
    /// Error of a send. The kernel reports each error only once.
    error: Option<Errno>,
}

/// Result of the verification of the server's certificate in the latest handshake of a connection.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// True if the server sent a certificate, so that the handshake was no resumption.
    is_full: AtomicBool,
    error: Mutex<Option<rustls::Error>>,
}

impl TlsClient {
    /// Returns the configuration of a QUIC connection. Each handshake of the connection sets the
    /// returned verdict. With session resumption, a connection resumes only its own sessions.
    pub fn for_quic(&self) -> Result<(Http3Config, Arc<Verdict>), Error> {
        let verdict = Arc::new(Verdict::default());
        let mut config = rustls::ClientConfig::clone(&self.for_connection().config);
        let (inner, recorded) = (self.verifier.clone(), verdict.clone());
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(RecordingVerifier { inner, verdict: recorded }));
        let crypto = QuicClientConfig::try_from(config)
            .map_err(|error| Error::Invalid(format!("cannot configure TLS for QUIC: {error}")))?;
        let name = self.server_name.to_str().into_owned();
        Ok((Http3Config::new(Arc::new(crypto), name), verdict))
    }
}

impl Transport for Datagrams {
    type Config = Arc<Verdict>;

    const IS_DATAGRAM: bool = true;

    fn new(socket: OwnedFd, _: &Self::Config) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Ignore the result, because the kernel limits the size without an error.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), RECEIVE_BUFFER);
        Ok(Self { socket, state, datagram_size: 0, error: None })
    }

    fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn handshake(&mut self) -> io::Result<HandshakeProgress> {
        Ok(HandshakeProgress::Established(None))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            // The kernel refuses a packet that is too large for the network. Only probes of larger
            // packet sizes can be too large. The packet counts as sent, so QUIC finds it lost.
            Err(Errno::MSGSIZE) => Ok(bytes.len()),
            Err(errno) if errno != Errno::AGAIN && errno != Errno::INTR => {
                self.error = Some(errno);
                Err(errno)
            }
            result => result,
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if let Some(errno) = self.error.take() {
            return Err(errno);
        }
        let mut received = [RecvMeta::default()];
        loop {
            let mut buffers = [IoSliceMut::new(buffer)];
            let socket = UdpSockRef::from(&self.socket);
            self.state.recv(socket, &mut buffers, &mut received).map_err(|error| {
                Errno::from_io_error(&error).unwrap_or(match error.kind() {
                    io::ErrorKind::WouldBlock => Errno::AGAIN,
                    _ => Errno::IO,
                })
            })?;
            // An empty datagram is not the end of the connection, so read again.
            if received[0].len > 0 {
                self.datagram_size = received[0].stride;
                return Ok(received[0].len);
            }
        }
    }

    fn is_emptied(&self, _: usize, _: usize) -> bool {
        false
    }

    fn datagram_size(&self) -> usize {
        self.datagram_size
    }

    fn explain(end: &SessionEnd, verdict: &Arc<Verdict>) -> io::Error {
        let alert = end.alert.map(|alert| rustls::Error::AlertReceived(alert.into()));
        match verdict.take_error().or(alert) {
            Some(error) => {
                let why = super::explain(&error, Protocol::Http3);
                io::Error::new(io::ErrorKind::InvalidData, why)
            }
            None => io::Error::other(end.reason.clone()),
        }
    }

    fn is_resumed(verdict: &Arc<Verdict>) -> bool {
        !verdict.is_full.swap(false, Ordering::Relaxed)
    }

    fn no_handshake(timeout: Duration) -> io::Error {
        let why = format!(
            "the server did not answer over UDP for {timeout:?}: does it offer HTTP/3 on this port?"
        );
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datagrams").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Verdict {
    fn take_error(&self) -> Option<rustls::Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Verifier that also records its results, because `quinn_proto` reports only their texts.
#[derive(Debug)]
struct RecordingVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    verdict: Arc<Verdict>,
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let inner = &self.inner;
        let result =
            inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        self.verdict.is_full.store(true, Ordering::Relaxed);
        let mut error = self.verdict.error.lock().unwrap_or_else(PoisonError::into_inner);
        *error = result.as_ref().err().cloned();
        result
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

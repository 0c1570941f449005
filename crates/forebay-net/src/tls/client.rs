//! TLS connections to servers: their verification and the client's own certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_trust::{Trust, unverified, words};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls::server::{TlsError, certificates, private_key};
use crate::tls::session::TlsSession;

/// TLS settings for connections to some servers, shared by all threads.
#[derive(Debug)]
pub struct ClientTls {
    /// One configuration for each [`Alpn`].
    configs: [Arc<ClientConfig>; 4],
    server_name: Option<String>,
}

/// HTTP versions offered to a server (RFC 7301).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// HTTP/1.1.
    #[default]
    Http11,
    /// Only HTTP/2.
    Http2,
    /// HTTP/2, or HTTP/1.1 if the server does not support HTTP/2.
    Any,
    /// No version, for a protocol other than HTTP.
    None,
}

impl ClientTls {
    /// Loads the certificates and keys that `tls` names.
    pub fn load(tls: &conf::BackendTls) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let refuse = |key, error: Error| TlsError {
            key,
            message: format!("cannot create a TLS client with this: {}", words(&error)),
            help: "give files in PEM: certificates, and the key of the first".into(),
        };
        let (trust, whose) = trust(tls.ca.as_deref())?;
        let verifier = trust.verifier(provider.clone()).map_err(|error| refuse("ca", error))?;
        let verifier = verifier.ok_or_else(|| TlsError {
            key: "ca",
            message: format!("there is no certificate in {whose}"),
            help: "install the package ca-certificates, or name a file: ca = \"ca.pem\"".into(),
        })?;
        let verifier = if tls.is_unverified { unverified(provider.clone()) } else { verifier };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| refuse("ca", error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &tls.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    certificates("client_certificate", certificate)?,
                    private_key("client_key", key)?,
                )
                .map_err(|error| refuse("client_key", error))?,
        };
        if let Some(name) = &tls.server_name {
            ServerName::try_from(name.as_str()).map_err(|_| TlsError {
                key: "server_name",
                message: format!("\"{name}\" is no name that a certificate can be for"),
                help: "give a host name or an address".into(),
            })?;
        }
        let offers: [&[&[u8]]; 4] = [&[b"http/1.1"], &[b"h2"], &[b"h2", b"http/1.1"], &[]];
        let configs = offers.map(|offer| {
            config.alpn_protocols = offer.iter().map(|name| name.to_vec()).collect();
            Arc::new(config.clone())
        });
        Ok(Self { configs, server_name: tls.server_name.clone() })
    }

    /// Performs the handshake over `stream`, a new connection to `host`, for a caller that has no
    /// [`Socket`](crate::socket::Socket). With [`Alpn::Http2`], fails if the server has not chosen
    /// HTTP/2.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &str,
        alpn: Alpn,
    ) -> io::Result<TlsStream<S>> {
        let connector = TlsConnector::from(self.configs[alpn as usize].clone());
        let stream = connector.connect(self.name(host)?, stream).await.map_err(|error| {
            let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            of_tls.map(|inner| io::Error::new(error.kind(), words(inner))).unwrap_or(error)
        })?;
        if alpn == Alpn::Http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(no_http2());
        }
        Ok(stream)
    }

    /// Creates the session of a new connection to `host`. The session begins with a handshake.
    pub fn session(&self, host: &str, alpn: Alpn) -> io::Result<TlsSession> {
        Ok(TlsSession::new(self.connection(host, alpn)?))
    }

    /// Works as [`Self::session`] does, for a caller that reads and writes the socket itself.
    pub fn connection(&self, host: &str, alpn: Alpn) -> io::Result<ClientConnection> {
        let config = self.configs[alpn as usize].clone();
        ClientConnection::new(config, self.name(host)?).map_err(io::Error::other)
    }

    /// The name that the certificate of `host` must be for.
    fn name(&self, host: &str) -> io::Result<ServerName<'static>> {
        let name = self.server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']);
        ServerName::try_from(name.to_owned()).map_err(io::Error::other)
    }
}

/// The error of a server that must speak HTTP/2, but does not.
pub(crate) fn no_http2() -> io::Error {
    io::Error::other("the server has not chosen HTTP/2 (ALPN)")
}

/// Loads the certificates in the file `ca`. Without a file, loads the certificates that the system
/// trusts. The string describes this source in error messages.
fn trust(ca: Option<&Path>) -> Result<(Trust, String), TlsError> {
    let Some(path) = ca else {
        let whose = "what this machine trusts (SSL_CERT_FILE, /etc/ssl/certs)".to_owned();
        return Ok((Trust::of_machine(), whose));
    };
    let authorities = certificates("ca", path)?;
    Ok((Trust { authorities, are_servers: false }, path.display().to_string()))
}

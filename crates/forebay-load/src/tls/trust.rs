//! Verification of the server's certificate, and explanations of failed handshakes.

use std::path::Path;
use std::sync::Arc;

use forebay_trust::{Trust, is_authority, unverified, words};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, CertificateError};

use crate::{Error, Protocol, TlsOptions};

/// Reason of a failed handshake: the server did not select HTTP/2.
pub(super) const NO_HTTP2: &str =
    "the server does not offer HTTP/2 (h2) with ALPN: leave out --http2";

/// Reason of a failed handshake: the server did not select HTTP/3.
const NO_HTTP3: &str = "the server does not offer HTTP/3 (h3) with ALPN: leave out --http3";

/// Returns the certificate verifier for `options`.
pub(super) fn verifier(
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
pub(super) fn explain(error: &rustls::Error, protocol: Protocol) -> String {
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

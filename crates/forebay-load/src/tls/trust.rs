//! Trust in the server's certificate, and explanations of failed handshakes.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::{Error, TlsOptions};

/// Reason of a handshake that ended without HTTP/2.
pub(super) const NO_HTTP2: &str =
    "the server does not offer HTTP/2 (h2) with ALPN: leave out --http2";

/// Returns the verifier of certificates that `options` describe.
pub(super) fn verifier(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    if options.insecure {
        return Ok(Arc::new(Anyone(provider)));
    }
    let (trusted, whose) = trusted(options.ca.as_deref())?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    if roots.is_empty() {
        return Err(Error::Invalid(format!(
            "no certificate in {whose}: name a file with the certificate authorities of the server \
             (--ca FILE), or skip verification (--insecure)"
        )));
    }
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let chains = chains.map_err(|error| Error::Invalid(error.to_string()))?;
    // Only certificates that the user named. An authority of the machine is no server.
    let pinned = if options.ca.is_some() { trusted } else { Vec::new() };
    Ok(Arc::new(Trusted { chains, pinned }))
}

/// Returns the certificates of the file, or those that this machine trusts, and their source.
fn trusted(ca: Option<&Path>) -> Result<(Vec<CertificateDer<'static>>, String), Error> {
    let Some(path) = ca else {
        let machine = "this machine's trust store".to_owned();
        return Ok((rustls_native_certs::load_native_certs().certs, machine));
    };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let whose = path.display().to_string();
    let read = read.map_err(|error| Error::Invalid(format!("--ca {whose}: {error}")))?;
    Ok((read, whose))
}

/// Explains a failed handshake and says what to do.
pub(super) fn explain(error: &rustls::Error, is_http2: bool) -> String {
    use rustls::Error as E;
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
            format!("{error}; to skip verification use --insecure")
        }
        E::NoApplicationProtocol if is_http2 => NO_HTTP2.to_owned(),
        E::AlertReceived(AlertDescription::NoApplicationProtocol) if is_http2 => {
            NO_HTTP2.to_owned()
        }
        E::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the server offers neither TLS 1.2 nor TLS 1.3".to_owned()
        }
        E::AlertReceived(alert) => format!("the server refused it with the alert {alert:?}"),
        error => error.to_string(),
    }
}

/// Returns true for the certificate of an authority. `openssl req -x509` makes such ones.
fn is_authority(error: &OtherError) -> bool {
    error.to_string() == "CaUsedAsEndEntity"
}

/// Verifier that accepts certificates of trusted authorities, and those of `--ca` themselves.
#[derive(Debug)]
struct Trusted {
    chains: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.chains.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        // `openssl req -x509` makes a certificate of an authority and without names in it. The user
        // named this very certificate, so its name adds nothing. An expired one stays refused.
        let is_form = |error: &CertificateError| match error {
            CertificateError::Other(other) => is_authority(other),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                true
            }
            _ => false,
        };
        match verified {
            Err(rustls::Error::InvalidCertificate(error))
                if is_form(&error) && self.pinned.iter().any(|own| own == end_entity) =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Verifier for `--insecure`: accepts any certificate but checks that the server has its key.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

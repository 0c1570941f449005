//! Verifies the certificates of TLS servers, for the clients in the gateway and in the load
//! generator.
//!
//! Apart from the authorities of the machine, this crate reads no certificate files. Each caller
//! reads its own files, because each caller has its own form of error messages.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod words;

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

pub use words::{of_certificate, words};

/// Certificates that a client trusts.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Certificates of the authorities (CAs) that the client trusts.
    pub authorities: Vec<CertificateDer<'static>>,
    /// If true, the client also accepts a server that presents one of `authorities` as its own
    /// certificate, under any name.
    ///
    /// `openssl req -x509` makes such certificates: they are marked as authorities and contain no
    /// server name. Set this field only for certificates that a user has named, and not for the
    /// authorities of the machine.
    pub are_servers: bool,
}

impl Trust {
    /// Returns the authorities that this machine trusts. If `SSL_CERT_FILE` or `SSL_CERT_DIR` is
    /// set, the certificates are read from there, otherwise from the system's store.
    pub fn of_machine() -> Self {
        let authorities = rustls_native_certs::load_native_certs().certs;
        Self { authorities, are_servers: false }
    }

    /// Returns the verifier of servers' certificates; `None` if no authority is usable.
    ///
    /// # Errors
    /// Returns the error of rustls if rustls cannot build a verifier from the authorities.
    pub fn verifier(
        self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ServerCertVerifier>>, Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities.iter().cloned());
        if roots.is_empty() {
            return Ok(None);
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        if !self.are_servers {
            return Ok(Some(chains));
        }
        Ok(Some(Arc::new(Named { chains, servers: self.authorities })))
    }
}

/// Returns a verifier that accepts every certificate. The verifier only checks that the server has
/// the private key of its certificate.
pub fn unverified(provider: Arc<CryptoProvider>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Anyone(provider))
}

/// Returns true if the error says that the server's own certificate is marked as an authority.
/// `openssl req -x509` makes such certificates.
pub fn is_authority(error: &OtherError) -> bool {
    error.to_string() == "CaUsedAsEndEntity"
}

/// Verifier that accepts certificates issued by the authorities, and the certificates in `servers`,
/// which a user has named.
#[derive(Debug)]
struct Named {
    chains: Arc<WebPkiServerVerifier>,
    servers: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.chains.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        // The user named exactly this certificate, so it may be marked as an authority or lack the
        // server's name. An expired certificate is still refused.
        let is_form = |error: &CertificateError| match error {
            CertificateError::Other(other) => is_authority(other),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                true
            }
            _ => false,
        };
        match verified {
            Err(Error::InvalidCertificate(error))
                if is_form(&error) && self.servers.iter().any(|own| own == end_entity) =>
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
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Verifier that accepts every certificate whose private key the server has.
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
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

//! The certificate of a site, which may be replaced.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use rustls::Error;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;

/// The certificate that a site shows. A replacement of the certificate affects only handshakes that
/// begin later. Without a certificate, handshakes fail.
#[derive(Debug, Default)]
pub struct SiteCertificate {
    shown: RwLock<Option<Arc<CertifiedKey>>>,
    renewal: Mutex<Option<Renewal>>,
}

/// The next order of a certificate that Forebay obtains, for the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Time of the next order.
    pub due: SystemTime,
    /// Number of orders that have failed since the last success.
    pub failures: u32,
    /// Reason of the last failure, if `failures` is not 0.
    pub error: Option<String>,
}

impl SiteCertificate {
    /// Replaces the certificate chain (PEM) and its key.
    ///
    /// # Errors
    /// Fails if the key does not match the first certificate, or if the chain or the key is
    /// unreadable.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        let bad = |error: pem::Error| Error::General(error.to_string());
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(bad)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(bad)?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?;
        self.show(Arc::new(certified));
        Ok(())
    }

    /// Returns true if no certificate is loaded.
    pub fn is_empty(&self) -> bool {
        self.shown().is_none()
    }

    /// Returns start and end of the validity, in seconds since 1970. Returns `None` if no readable
    /// certificate is loaded.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let shown = self.shown()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(shown.cert.first()?).ok()?;
        let validity = certificate.validity();
        Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
    }

    /// The host names that the certificate is for, such as `*.example.org`. `None` if no readable
    /// certificate is loaded.
    pub fn names(&self) -> Option<Vec<String>> {
        let shown = self.shown()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(shown.cert.first()?).ok()?;
        let names = certificate.subject_alternative_name().ok()?;
        let names = names.map(|names| &*names.value.general_names).unwrap_or_default();
        let dns = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        Some(dns.collect())
    }

    /// Sets what [`Self::renewal`] returns.
    pub fn plan_renewal(&self, renewal: Renewal) {
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
    }

    /// Returns the next order. `None` for a certificate from a file.
    pub fn renewal(&self) -> Option<Renewal> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(&self, certified: Arc<CertifiedKey>) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(certified);
    }

    pub(super) fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for SiteCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}

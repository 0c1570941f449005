//! Loads a site's certificate, key and TLS settings once for all threads.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_conf as conf;
use forebay_conf::{CertificateSource, Cipher, Curve};
use forebay_trust::words;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, Error, InconsistentKeys, RootCertStore, ServerConfig, SupportedCipherSuite,
};

use crate::tls::certificate::SiteCertificate;
use crate::tls::on_demand::SiteDemand;
use crate::tls::tickets::{QuicKeys, TicketKeys};

/// Maximum size of a certificate file.
const LARGEST_FILE: u64 = 1 << 20;

/// The TLS settings of a site.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    certificate: Arc<SiteCertificate>,
    /// Certificates that are obtained when clients name them, instead of `certificate`.
    demand: Option<Box<SiteDemand>>,
    tickets: TicketKeys,
    clients: Option<Clients>,
    /// True if TLS 1.3 is required; permitted cipher suites and groups.
    permitted: (bool, Vec<Cipher>, Vec<Curve>),
}

/// The client certificates that a site requests.
#[derive(Debug)]
struct Clients {
    authorities: Vec<CertificateDer<'static>>,
    is_required: bool,
    subject_field: Option<String>,
}

/// An error or a warning about the TLS configuration of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// Key in `[site.tls]`.
    pub key: &'static str,
    /// Description of the problem.
    pub message: String,
    /// Advice on how to correct the error.
    pub help: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.help)
    }
}

impl std::error::Error for TlsError {}

impl ServerTls {
    /// Loads the files that `tls` names. If they include a certificate, stores the certificate in
    /// `shown`.
    pub fn load(
        tls: &conf::Tls,
        tickets: &TicketKeys,
        shown: Arc<SiteCertificate>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(provider(tls));
        let versions: &[_] = if tls.is_13_only { &[&TLS13] } else { &[&TLS13, &TLS12] };
        if let CertificateSource::Files { certificate, key } = &tls.source {
            let staple = tls.ocsp_staple.as_deref();
            shown.show(Arc::new(certified(&provider, certificate, key, staple)?));
        }
        let clients = tls.clients.as_ref().map(Clients::load).transpose()?;
        let verifier = match &clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(clients) => clients.verifier(&provider)?,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| TlsError {
                key: "certificate",
                message: format!("cannot configure TLS: {error}"),
                help: "this build of Forebay lacks ciphers".into(),
            })?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(shown.clone());
        // Do not use tickets if the site requests client certificates. With a ticket of another
        // site or of an older configuration, a client could resume a session without its
        // certificate.
        if clients.is_none() {
            config.ticketer = Arc::new(tickets.clone());
        }
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let permitted = (tls.is_13_only, tls.ciphers.clone(), tls.curves.clone());
        let (config, tickets) = (Arc::new(config), tickets.clone());
        Ok(Self { config, certificate: shown, demand: None, tickets, clients, permitted })
    }

    /// Accepts clients with any application protocols (ALPN). The handshake then selects no
    /// protocol.
    pub fn for_any_protocol(mut self) -> Self {
        Arc::make_mut(&mut self.config).alpn_protocols.clear();
        self
    }

    /// Shows certificates that are obtained on demand.
    pub fn with_demand(mut self, demand: SiteDemand) -> Self {
        Arc::make_mut(&mut self.config).cert_resolver = Arc::new(demand.clone());
        self.demand = Some(Box::new(demand));
        self
    }

    /// Returns the certificates that are obtained on demand, or `None`.
    pub fn demand(&self) -> Option<&SiteDemand> {
        self.demand.as_deref()
    }

    /// Returns a warning if the certificate is outside its validity period.
    pub fn doubts(&self, tls: &conf::Tls) -> Option<TlsError> {
        let CertificateSource::Files { certificate, .. } = &tls.source else { return None };
        let path = certificate.display();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let shown = self.certificate.shown()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(shown.cert.first()?).ok()?;
        let validity = certificate.validity();
        let message = if validity.not_after.timestamp() < now {
            format!("WARNING: the certificate in {path} expired on {}", validity.not_after)
        } else if validity.not_before.timestamp() > now {
            format!(
                "WARNING: the certificate in {path} is not valid before {}",
                validity.not_before
            )
        } else {
            return None;
        };
        let help = "clients refuse it: renew it, or set the clock".into();
        Some(TlsError { key: "certificate", message, help })
    }

    /// Returns the certificate. The caller may replace it.
    pub fn certificate(&self) -> &Arc<SiteCertificate> {
        &self.certificate
    }

    /// Returns the keys of QUIC.
    pub fn quic_keys(&self) -> QuicKeys {
        self.tickets.quic()
    }

    pub fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Returns true if `self` and `other` show the same certificate, and permit the same versions,
    /// cipher suites and groups.
    pub fn is_like(&self, other: &Self) -> bool {
        let chain = |tls: &Self| tls.certificate.shown().map(|shown| shown.cert.clone());
        let same = match (&self.demand, &other.demand) {
            (None, None) => {
                Arc::ptr_eq(&self.certificate, &other.certificate) || chain(self) == chain(other)
            }
            // A site with certificates on demand and a site without them show different
            // certificates.
            (ours, theirs) => ours
                .as_ref()
                .zip(theirs.as_ref())
                .is_some_and(|(ours, theirs)| ours.is_like(theirs)),
        };
        self.permitted == other.permitted && same
    }

    /// Returns true if `self` can serve clients after a handshake with the settings of `other`.
    /// This is true if `self` requests no client certificates, or if `self` and `other` have equal
    /// rules for them: the authorities, and the treatment of clients without a certificate.
    pub fn takes_clients_of(&self, other: &Self) -> bool {
        let policy =
            |tls: &Self| tls.clients.as_ref().map(|c| (c.authorities.clone(), c.is_required));
        std::ptr::eq(self, other) || self.clients.is_none() || policy(self) == policy(other)
    }

    /// Returns the name of the request field that passes the client's subject to HTTP backends, or
    /// `None`.
    pub fn subject_field(&self) -> Option<&str> {
        self.clients.as_ref()?.subject_field.as_deref()
    }
}

/// Returns the cryptography that the settings allow.
fn provider(tls: &conf::Tls) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if !tls.ciphers.is_empty() {
        let is_allowed = |suite: CipherSuite| tls.ciphers.iter().any(|of| suite_of(*of) == suite);
        provider.cipher_suites.retain(|suite| is_allowed(suite.suite()));
    }
    provider.kx_groups = tls.curves.iter().map(|curve| group_of(*curve)).collect();
    provider
}

/// Returns the cipher suite of rustls for a configured cipher.
fn suite_of(cipher: Cipher) -> CipherSuite {
    match cipher {
        Cipher::Aes256GcmSha384 => CipherSuite::TLS13_AES_256_GCM_SHA384,
        Cipher::Aes128GcmSha256 => CipherSuite::TLS13_AES_128_GCM_SHA256,
        Cipher::Chacha20Poly1305Sha256 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        Cipher::EcdheEcdsaAes256GcmSha384 => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Cipher::EcdheEcdsaAes128GcmSha256 => CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Cipher::EcdheEcdsaChacha20Poly1305Sha256 => {
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        }
        Cipher::EcdheRsaAes256GcmSha384 => CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Cipher::EcdheRsaAes128GcmSha256 => CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Cipher::EcdheRsaChacha20Poly1305Sha256 => {
            CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
        }
    }
}

fn group_of(curve: Curve) -> &'static dyn SupportedKxGroup {
    match curve {
        Curve::X25519Mlkem768 => kx_group::X25519MLKEM768,
        Curve::X25519 => kx_group::X25519,
        Curve::Secp256r1 => kx_group::SECP256R1,
        Curve::Secp384r1 => kx_group::SECP384R1,
    }
}

impl Clients {
    fn load(clients: &conf::ClientAuth) -> Result<Self, TlsError> {
        Ok(Self {
            authorities: certificates("client_ca", &clients.ca)?,
            is_required: clients.is_required,
            subject_field: clients.subject_field.clone(),
        })
    }

    /// Returns the verifier of client certificates. If the site does not require certificates,
    /// clients may connect without one.
    fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities.iter().cloned());
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = if self.is_required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|error| TlsError {
            key: "client_ca",
            message: format!("clients cannot be verified with this file: {error}"),
            help: "give the certificates of the authorities that issue the clients' certificates"
                .into(),
        })
    }
}

/// Loads a certificate chain, its key and an OCSP staple.
fn certified(
    provider: &CryptoProvider,
    certificate: &Path,
    key: &Path,
    staple: Option<&Path>,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates("certificate", certificate)?;
    let loaded = provider.key_provider.load_private_key(private_key("key", key)?);
    let loaded = loaded.map_err(|error| TlsError {
        key: "key",
        message: format!("the key in {} cannot be used: {}", key.display(), key_words(&error)),
        help: "keys are ECDSA (P-256, P-384, P-521), Ed25519 or RSA (2048 bits and more)".into(),
    })?;
    if !has_cipher_for(provider, loaded.as_ref()) {
        return Err(TlsError {
            key: "ciphers",
            message: format!("no client can connect: none of `ciphers` fits {}", key.display()),
            help: "add suites of TLS 1.3, or ECDHE_RSA for RSA keys and ECDHE_ECDSA for other keys"
                .into(),
        });
    }
    let mut certified = CertifiedKey::new(chain, loaded);
    match certified.keys_match() {
        // For some key types, rustls cannot check if key and certificate match. The first handshake
        // then shows a mismatch.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => return Err(wrong_key(certificate, key)),
        Err(Error::InvalidCertificate(error)) => {
            let why = forebay_trust::of_certificate(&error);
            return Err(not_a_certificate("certificate", certificate, &why));
        }
        Err(error) => return Err(not_a_certificate("certificate", certificate, &error)),
    }
    certified.ocsp = staple.map(|path| read("ocsp_staple", path)).transpose()?;
    Ok(certified)
}

/// Returns true if the key can sign handshakes of one of the cipher suites.
fn has_cipher_for(provider: &CryptoProvider, key: &dyn SigningKey) -> bool {
    provider.cipher_suites.iter().any(|suite| match suite {
        SupportedCipherSuite::Tls12(suite) => key.choose_scheme(suite.sign).is_some(),
        // A suite of TLS 1.3 does not determine the kind of signature, so each key fits.
        SupportedCipherSuite::Tls13(_) => true,
    })
}

pub fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(key, path)?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(not_a_certificate(key, path, &"it has no BEGIN CERTIFICATE")),
        Err(error) => Err(not_a_certificate(key, path, &pem_words(&error))),
    }
}

/// Says what is wrong with a private key. The library has no error of its own for a key of another
/// kind, such as one on the curve secp256k1.
fn key_words(error: &Error) -> String {
    match error {
        Error::General(_) => "it is damaged, or of a kind that no browser accepts".into(),
        error => words(error),
    }
}

/// Says what is wrong with a file in PEM, without the names of the library.
fn pem_words(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a BEGIN line has no END line: is it cut off?",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is damaged",
        pem::Error::Base64Decode(_) => "a line between BEGIN and END is not base64",
        pem::Error::NoItemsFound => "it has no BEGIN line",
        _ => "its lines cannot be read",
    }
}

/// Reads a private key from a PEM file. The error explains how to decrypt an encrypted key.
pub fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(key, path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted = memchr::memmem::find(&text, b"ENCRYPTED").is_some();
        let (message, help) = match error {
            // An older form of encrypted keys has lines that are not base64.
            _ if is_encrypted => (
                "is encrypted".to_owned(),
                "decrypt it: openssl pkey -in encrypted.pem -out key.pem, readable by its user \
                 alone",
            ),
            pem::Error::NoItemsFound => (
                "has no private key in PEM".to_owned(),
                "it begins with -----BEGIN PRIVATE KEY-----, EC PRIVATE KEY or RSA PRIVATE KEY",
            ),
            error => (format!("is not PEM: {}", pem_words(&error)), "give a private key in PEM"),
        };
        let message = format!("{} {message}", path.display());
        TlsError { key, message, help: help.into() }
    })
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |message: String, help: &str| TlsError { key, message, help: help.into() };
    match forebay_conf::files::read(path, LARGEST_FILE) {
        Ok(bytes) if bytes.len() as u64 > LARGEST_FILE => {
            Err(fail(format!("{} is larger than 1 MiB", path.display()), "give another file"))
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(fail(
            format!("cannot read {}: {error}", path.display()),
            forebay_conf::advice(&error),
        )),
    }
}

fn not_a_certificate(key: &'static str, path: &Path, why: &dyn fmt::Display) -> TlsError {
    TlsError {
        key,
        message: format!("{} contains no usable certificate: {why}", path.display()),
        help: "give a file in PEM: the certificate first, then those of its issuers".into(),
    }
}

fn wrong_key(certificate: &Path, key: &Path) -> TlsError {
    let (key, certificate) = (key.display(), certificate.display());
    TlsError {
        key: "key",
        message: format!("the key in {key} does not belong to the certificate in {certificate}"),
        help: "give the key that the certificate was requested with; the site's own certificate \
               comes first in its file"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{certificates, private_key};

    #[test]
    fn broken_files_are_explained_without_words_of_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.pem");
        let encrypted = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                         DEK-Info: AES-128-CBC,7B\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        for (text, wanted) in [
            (encrypted, "is encrypted"),
            (
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "is encrypted",
            ),
            ("-----BEGIN PRIVATE KEY-----\nA-A\n-----END PRIVATE KEY-----\n", "is not base64"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n", "cut off"),
            ("text", "has no private key in PEM"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = private_key("key", &file).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            let error = certificates("certificate", &file).unwrap_err().to_string();
            for word in ["InvalidCharacter", "Base64", "MissingSectionEnd", "Other("] {
                assert!(!error.contains(word), "{error}");
            }
        }
    }
}

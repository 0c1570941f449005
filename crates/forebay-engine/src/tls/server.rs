//! What a site shows its clients: certificate, key and protocol versions, read once for all threads.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_conf as conf;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{Error, InconsistentKeys, RootCertStore, ServerConfig};

/// Larger files are no certificates.
const LARGEST_FILE: u64 = 1 << 20;

/// The TLS of a site.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    certified: Arc<CertifiedKey>,
    clients: Option<Clients>,
}

/// Whose certificates clients are asked for.
#[derive(Debug)]
struct Clients {
    authorities: Vec<CertificateDer<'static>>,
    is_required: bool,
    subject_field: Option<String>,
}

/// What tickets for resuming a session are encrypted with: one for all threads, kept over reloads. Its
/// keys are replaced every six hours, and a ticket is good for twelve.
#[derive(Clone, Debug)]
pub struct TicketKeys(Arc<dyn ProducesTickets>);

impl TicketKeys {
    /// With keys of its own.
    pub fn new() -> Result<Self, TlsError> {
        aws_lc_rs::Ticketer::new().map(Self).map_err(|error| TlsError {
            key: "certificate",
            message: format!("no key for session tickets can be made: {error}"),
            help: "the system gives no random numbers".into(),
        })
    }
}

/// Why a site's TLS cannot be had, or what is doubtful about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    /// The key of `[site.tls]`.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do next.
    pub help: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.help)
    }
}

impl std::error::Error for TlsError {}

impl ServerTls {
    /// Reads the files.
    pub fn load(tls: &conf::Tls, tickets: &TicketKeys) -> Result<Self, TlsError> {
        let chain = certificates("certificate", &tls.certificate)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = private_key("key", &tls.key)?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| TlsError {
            key: "key",
            message: format!("the key in {} cannot be used: {error}", tls.key.display()),
            help: "keys are ECDSA (P-256, P-384, P-521), Ed25519 or RSA (2048 bits and more)"
                .into(),
        })?;
        let mut certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            // Where the key does not tell, the first handshake will.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(Error::InconsistentKeys(_)) => return Err(wrong_key(tls)),
            Err(error) => return Err(not_a_certificate("certificate", &tls.certificate, &error)),
        }
        if let Some(path) = &tls.ocsp_staple {
            certified.ocsp = Some(read("ocsp_staple", path)?);
        }
        let certified = Arc::new(certified);
        let clients = tls.clients.as_ref().map(Clients::load).transpose()?;
        let verifier = match &clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(clients) => clients.verifier(&provider)?,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| not_a_certificate("certificate", &tls.certificate, &error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified.clone())));
        // A ticket would let a client in whose certificate another site, or an older configuration, has
        // asked for.
        if clients.is_none() {
            config.ticketer = tickets.0.clone();
        }
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certified, clients })
    }

    /// What is doubtful: a certificate that clients will not take because of its time.
    pub fn doubts(&self, tls: &conf::Tls) -> Option<TlsError> {
        let path = tls.certificate.display();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let (_, certificate) = x509_parser::parse_x509_certificate(&self.certified.cert[0]).ok()?;
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
        let help = "clients refuse it: have it renewed, or set the clock".into();
        Some(TlsError { key: "certificate", message, help })
    }

    pub(crate) fn config(&self) -> &Arc<ServerConfig> {
        &self.config
    }

    /// Whether clients are shown the same certificate.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.certified.cert == other.certified.cert
    }

    /// Whether clients that were shown `other` have been asked for what this one asks for.
    pub(crate) fn takes_clients_of(&self, other: &Self) -> bool {
        let asked =
            |tls: &Self| tls.clients.as_ref().map(|c| (c.authorities.clone(), c.is_required));
        std::ptr::eq(self, other) || self.clients.is_none() || asked(self) == asked(other)
    }

    /// The request field by which HTTP backends are told the subject.
    pub(crate) fn subject_field(&self) -> Option<&str> {
        self.clients.as_ref()?.subject_field.as_deref()
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
            message: format!("no client can be verified by this file: {error}"),
            help: "give the certificates of those that issue the clients' certificates".into(),
        })
    }
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
        Err(error) => Err(not_a_certificate(key, path, &error)),
    }
}

pub fn private_key(key: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(key, path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let is_encrypted = memchr::memmem::find(&text, b"ENCRYPTED").is_some();
        let (message, help) = match error {
            pem::Error::NoItemsFound if is_encrypted => (
                "is encrypted".to_owned(),
                "decrypt it: openssl pkey -in encrypted.pem -out key.pem, readable by its user \
                 alone",
            ),
            pem::Error::NoItemsFound => (
                "has no private key in PEM".to_owned(),
                "it begins with -----BEGIN PRIVATE KEY-----, EC PRIVATE KEY or RSA PRIVATE KEY",
            ),
            error => (format!("is not PEM: {error}"), "give a private key in PEM"),
        };
        let message = format!("{} {message}", path.display());
        TlsError { key, message, help: help.into() }
    })
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |message: String, help: &str| TlsError { key, message, help: help.into() };
    let size = std::fs::metadata(path).map(|found| found.len());
    match size.and_then(|size| Ok((size, std::fs::read(path)?))) {
        Ok((size, _)) if size > LARGEST_FILE => {
            Err(fail(format!("{} is larger than 1 MiB", path.display()), "give another file"))
        }
        Ok((_, bytes)) => Ok(bytes),
        Err(error) => Err(fail(
            format!("cannot read {}: {error}", path.display()),
            "check its permissions; a reload reads it as the `user` of [server]",
        )),
    }
}

fn not_a_certificate(key: &'static str, path: &Path, why: &dyn fmt::Display) -> TlsError {
    TlsError {
        key,
        message: format!("{} holds no certificate that can be used: {why}", path.display()),
        help: "give a file in PEM: the certificate first, then those it was issued by".into(),
    }
}

fn wrong_key(tls: &conf::Tls) -> TlsError {
    let (key, certificate) = (tls.key.display(), tls.certificate.display());
    TlsError {
        key: "key",
        message: format!("the key in {key} does not belong to the certificate in {certificate}"),
        help: "give the key that the certificate was requested with; the site's own certificate \
               comes first in its file"
            .into(),
    }
}

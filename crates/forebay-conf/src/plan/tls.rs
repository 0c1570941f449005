//! TLS settings of a site, and of connections to backends.

use std::path::PathBuf;
use std::time::Duration;

use forebay_conf_derive::Choice;

use super::rate::Rate;
use super::secret::Secret;

/// The certificate and TLS settings of a site's `https://` listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The source of the certificate and its key.
    pub source: CertificateSource,
    /// A file with an OCSP response in DER, which is sent with the certificate. The file existed
    /// when the configuration was loaded.
    pub ocsp_staple: Option<PathBuf>,
    /// The client certificates that the site accepts. `None`: clients are not asked for a
    /// certificate.
    pub clients: Option<ClientAuth>,
    /// True if clients must use TLS 1.3. Default false: TLS 1.2 is enough.
    pub is_13_only: bool,
    /// The cipher suites that clients may use. If empty, clients may use all suites that Forebay
    /// knows.
    pub ciphers: Vec<Cipher>,
    /// The groups for the key exchange, in the order of preference. Default: all.
    pub curves: Vec<Curve>,
}

impl Tls {
    /// The settings of a site whose certificate cannot be used: each handshake fails.
    pub(crate) fn without_certificate() -> Self {
        Self {
            source: CertificateSource::Missing,
            ocsp_staple: None,
            clients: None,
            is_13_only: false,
            ciphers: Vec::new(),
            curves: Curve::ALL.to_vec(),
        }
    }
}

/// A cipher suite. The first three are for TLS 1.3, the others for TLS 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Cipher {
    #[key("TLS_AES_256_GCM_SHA384")]
    Aes256GcmSha384,
    #[key("TLS_AES_128_GCM_SHA256")]
    Aes128GcmSha256,
    #[key("TLS_CHACHA20_POLY1305_SHA256")]
    Chacha20Poly1305Sha256,
    #[key("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384")]
    EcdheEcdsaAes256GcmSha384,
    #[key("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256")]
    EcdheEcdsaAes128GcmSha256,
    #[key("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305")]
    EcdheEcdsaChacha20Poly1305Sha256,
    #[key("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384")]
    EcdheRsaAes256GcmSha384,
    #[key("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256")]
    EcdheRsaAes128GcmSha256,
    #[key("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305")]
    EcdheRsaChacha20Poly1305Sha256,
}

impl Cipher {
    /// Returns true if the suite is for TLS 1.3.
    pub fn is_13(self) -> bool {
        matches!(self, Self::Aes256GcmSha384 | Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256)
    }
}

/// A group for the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Curve {
    #[key("X25519MLKEM768")]
    X25519Mlkem768,
    #[key("X25519")]
    X25519,
    #[key("secp256r1", "P-256", "prime256v1")]
    Secp256r1,
    #[key("secp384r1", "P-384")]
    Secp384r1,
}

impl Curve {
    /// All groups, in the order of preference.
    pub(crate) const ALL: [Self; 4] =
        [Self::X25519Mlkem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];
}

/// The source of a site's certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// The site is left out, and its certificate is missing or wrong.
    Missing,
    /// From files.
    Files {
        /// A PEM file with the certificate, followed by its intermediate certificates. The file
        /// existed when the configuration was loaded.
        certificate: PathBuf,
        /// A PEM file with the private key. The file existed when the configuration was loaded.
        key: PathBuf,
    },
    /// From an authority, which issues a certificate when Forebay needs one.
    Acme(Acme),
    /// From an authority, for each name that a client uses, if an application permits the name.
    OnDemand(Box<OnDemand>),
}

/// Settings of ACME (RFC 8555), which obtains a certificate from an authority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acme {
    /// The host names in the certificate, at least one. With [`AcmeChallenge::Dns01`], the first label
    /// may be `*`. A name may also be an address, without brackets.
    pub names: Vec<String>,
    /// The URL of the authority's directory. Default: the URL of Let's Encrypt's directory.
    pub directory: String,
    /// The kind of certificate, by its name at the authority. `None`: the authority chooses.
    pub profile: Option<String>,
    /// A PEM file with the certificates that verify the authority's own server. The file existed
    /// when the configuration was loaded. `None`: the authorities that this machine trusts.
    pub ca: Option<PathBuf>,
    /// The mail address for messages from the authority.
    pub email: Option<String>,
    /// The directory for accounts, certificates and keys. Default `/var/lib/forebay/acme`.
    pub state: PathBuf,
    /// The method that proves control of the names. `None`: each method that the listeners allow,
    /// in turn.
    pub challenge: Option<AcmeChallenge>,
    /// The program that creates and removes DNS records, followed by its first arguments. The
    /// program was a file when the configuration was loaded. Empty without
    /// [`AcmeChallenge::Dns01`].
    pub dns_hook: Vec<String>,
    /// The time that Forebay waits after it has created DNS records, before the authority looks for
    /// them. Default 10 s.
    pub dns_wait: Duration,
    /// The existing customer account at the authority.
    pub external_account: Option<ExternalAccount>,
}

/// The customer's account that an ACME account is bound to (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExternalAccount {
    /// The identifier of the key.
    pub key_id: String,
    /// The key, in base64url without padding.
    pub mac_key: Secret,
}

impl Acme {
    /// Returns the names in alphabetical order, because their order does not change the
    /// certificate.
    pub fn sorted_names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        names.sort();
        names
    }

    /// Returns true if both settings describe the same certificate: the names, the authority's URL,
    /// and the directory for saved certificates are equal.
    pub fn is_same_certificate(&self, other: &Self) -> bool {
        let same = (&self.directory, &self.state) == (&other.directory, &other.state);
        same && self.sorted_names() == other.sorted_names()
    }
}

/// Certificates for names that are not known in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// Settings of the authority, without names.
    pub acme: Acme,
    /// The service that permits names. `None`: the names of the sites are permitted.
    pub ask: Option<AskUrl>,
    /// The largest number of orders in a period. Default: 100 in an hour.
    pub rate: Rate,
    /// The number of orders that may come earlier than the rate allows. Default 20.
    pub burst: u32,
    /// The largest number of orders at the same time, at least 1. Default 4.
    pub concurrent: usize,
    /// The longest time that a handshake waits for a certificate. Default 20 s.
    pub wait: Duration,
    /// The largest number of certificates in memory, at least 1. Default 10,000.
    pub certificates: usize,
}

/// The URL of a service that permits names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskUrl {
    /// Host and port, as in `127.0.0.1:8080`.
    pub host: String,
    /// Settings of an https:// URL. `None`: http://.
    pub tls: Option<BackendTls>,
    /// The value of the field `Host`.
    pub authority: String,
    /// The path and the query, up to the name: it ends with `domain=`.
    pub target: String,
}

/// The method that proves control of a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Choice)]
pub enum AcmeChallenge {
    /// A reply to an HTTP request on port 80.
    #[key("http-01")]
    Http01,
    /// A TLS handshake on port 443.
    #[key("tls-alpn-01")]
    TlsAlpn01,
    /// A TXT record that `dns_hook` creates. The only method for names such as "*.example.org".
    #[key("dns-01")]
    Dns01,
}

/// Settings for TLS with backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BackendTls {
    /// A PEM file with the certificates of the authorities that issue the servers' certificates.
    /// The file existed when the configuration was loaded. `None`: the authorities that this
    /// machine trusts.
    pub ca: Option<PathBuf>,
    /// The host name in the servers' certificates. `None`: the host of their URL.
    pub server_name: Option<String>,
    /// PEM files with a client certificate and its key. Both files existed when the configuration
    /// was loaded.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Accepts any certificate of a server. Default false.
    pub is_unverified: bool,
}

/// The client certificates that a site accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuth {
    /// A PEM file with the certificates of the authorities that issue client certificates. The file
    /// existed when the configuration was loaded.
    pub ca: PathBuf,
    /// Refuses a client without a certificate. Default true.
    pub is_required: bool,
    /// The name of the request field with the certificate's subject, for HTTP backends.
    pub subject_field: Option<String>,
}

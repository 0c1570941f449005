//! TLS of a site.

use std::path::PathBuf;

/// What a site shows the clients of its `https://` listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where certificate and key come from.
    pub source: CertificateSource,
    /// A file with an OCSP response, in DER, which is sent along. It exists.
    pub ocsp_staple: Option<PathBuf>,
    /// Whose certificates clients are asked for.
    pub clients: Option<ClientAuth>,
}

/// Where a site's certificate and its key come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// From files.
    Files {
        /// A file with the certificate and those between it and its root, in PEM. It exists.
        certificate: PathBuf,
        /// A file with the private key, in PEM. It exists.
        key: PathBuf,
    },
    /// From an authority, when they are needed.
    Acme(Acme),
}

/// How a certificate is had by ACME (RFC 8555).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acme {
    /// The host names that it is for, at least one.
    pub names: Vec<String>,
    /// The URL of the authority's directory. Default: that of Let's Encrypt.
    pub directory: String,
    /// A file with the certificates, in PEM, that the authority's own server is verified by. It exists.
    /// `None`: those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// Where the authority may write to.
    pub email: Option<String>,
    /// The directory that accounts, certificates and keys are kept in. Default `/var/lib/forebay/acme`.
    pub state: PathBuf,
    /// How the names are proved to be ours; `None`: in turn by whatever the listeners allow.
    pub challenge: Option<AcmeChallenge>,
}

impl Acme {
    /// The names in alphabetical order: a certificate for them is the same in any.
    pub fn sorted_names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        names.sort();
        names
    }

    /// Whether one certificate serves both.
    pub fn is_same_certificate(&self, other: &Self) -> bool {
        let same = (&self.directory, &self.state) == (&other.directory, &other.state);
        same && self.sorted_names() == other.sorted_names()
    }
}

/// How a name is proved to be ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcmeChallenge {
    /// By a reply of HTTP on port 80 (RFC 8555 section 8.3).
    Http01,
    /// By a handshake on port 443 (RFC 8737).
    TlsAlpn01,
}

/// How servers are believed that are spoken to by TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct BackendTls {
    /// A file with the certificates of those that issue theirs, in PEM. It exists. `None`: those that
    /// this machine trusts.
    pub ca: Option<PathBuf>,
    /// The name that their certificates are for. `None`: the host of their URL.
    pub server_name: Option<String>,
    /// Files with a certificate to show them, and its key, in PEM. They exist.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether anything is taken for their certificate.
    pub is_unverified: bool,
}

/// Whose certificates the clients of a site are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuth {
    /// A file with the certificates of those that issue them, in PEM. It exists.
    pub ca: PathBuf,
    /// Whether a client without one is refused. Default true.
    pub is_required: bool,
    /// The request field by which HTTP backends are told the subject.
    pub subject_field: Option<String>,
}

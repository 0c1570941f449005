//! TLS of a site.

use std::path::PathBuf;

/// What a site shows the clients of its `https://` listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// A file with the certificate and those between it and its root, in PEM. It exists.
    pub certificate: PathBuf,
    /// A file with the private key, in PEM. It exists.
    pub key: PathBuf,
    /// A file with an OCSP response, in DER, which is sent along. It exists.
    pub ocsp_staple: Option<PathBuf>,
    /// Whose certificates clients are asked for.
    pub clients: Option<ClientAuth>,
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

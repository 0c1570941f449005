//! `[site.tls]`, as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{At, Table};

/// What the clients of https:// listeners are shown.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// A file with the certificate in PEM, and behind it those between it and its root.
    pub certificate: Option<At<String>>,
    /// A file with the private key of the certificate, in PEM.
    pub key: Option<At<String>>,
    /// Has an authority issue the certificate instead, and renew it (RFC 8555). Default: none does.
    pub acme: Option<At<Table<Acme>>>,
    /// A file with an OCSP response in DER, which is sent along. Default: none.
    pub ocsp_staple: Option<At<String>>,
    /// A file with the certificates of those that issue certificates of clients, in PEM. Default: clients
    /// are not asked for one.
    pub client_ca: Option<At<String>>,
    /// Whether a client without a certificate is refused ("require"), or only one with a wrong one
    /// ("request"). Default: "require".
    pub client_auth: Option<At<ClientAuth>>,
    /// The request field by which HTTP backends are told the subject of the client's certificate; one that
    /// a client sends is dropped. Default: none.
    pub client_subject_field: Option<At<String>>,
}

/// How a certificate is had from an authority.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Acme {
    /// Where the authority may write to. Default: nowhere.
    pub email: Option<At<String>>,
    /// The URL of the authority's directory. Default: that of Let's Encrypt.
    pub directory: Option<At<String>>,
    /// A file with the certificates, in PEM, that the authority's own server is verified by. Default:
    /// those that this machine trusts.
    pub ca: Option<At<String>>,
    /// The directory that accounts, certificates and keys are kept in; it is made if it is not there.
    /// Default: "/var/lib/forebay/acme".
    pub state: Option<At<String>>,
    /// How names are proved to be ours. Default: in turn by whatever the listeners allow.
    pub challenge: Option<At<AcmeChallenge>>,
}

/// How a name is proved to be ours.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub enum AcmeChallenge {
    /// By a reply of HTTP on port 80.
    #[serde(rename = "http-01")]
    Http01,
    /// By a handshake on port 443.
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
}

/// What becomes of a client without a certificate.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// It is refused.
    Require,
    /// It is served.
    Request,
}

/// How https:// servers are believed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BackendTls {
    /// A file with the certificates of those that issue theirs, in PEM. Default: those that this machine
    /// trusts.
    pub ca: Option<At<String>>,
    /// The name that their certificates are for. Default: the host of their URL.
    pub server_name: Option<At<String>>,
    /// A file with a certificate to show them, in PEM. Default: none.
    pub client_certificate: Option<At<String>>,
    /// A file with the private key of that, in PEM.
    pub client_key: Option<At<String>>,
    /// Whether their certificates are verified; if not, anyone on the way can be the server. Default:
    /// true.
    pub verify: Option<At<bool>>,
}

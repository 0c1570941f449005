//! `[site.tls]`, as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::At;

/// What the clients of https:// listeners are shown.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// A file with the certificate in PEM, and behind it those between it and its root.
    pub certificate: Option<At<String>>,
    /// A file with the private key of the certificate, in PEM.
    pub key: Option<At<String>>,
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

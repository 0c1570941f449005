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

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
}

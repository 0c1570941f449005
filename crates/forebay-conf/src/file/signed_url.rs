//! The keys of `signed_url`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany};

/// A signature that the URL of each request must have.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["secret"]))]
pub struct SignedUrl {
    /// The secret that signs URLs, such as "{env.LINK_SECRET}" or "{file.link-secret}". For
    /// "hmac-sha256", it has at least 32 bytes. In a list, each secret is valid, so that you can
    /// replace one.
    pub secret: Option<At<OneOrMany<String>>>,
    /// The text that is signed, with placeholders. For "hmac-sha256", a space must separate two
    /// placeholders, so that a signature fits only one URL. Default: "{query.expires} {path}".
    pub text: Option<At<String>>,
    /// The parameter of the query with the signature, in hexadecimal digits or base64url. Default:
    /// "signature".
    pub signature: Option<At<String>>,
    /// The parameter of the query with the time at which the URL expires, in seconds since 1970.
    /// `text` must contain it. Default: "expires" if `text` contains {query.expires}; otherwise
    /// URLs do not expire.
    pub expires: Option<At<String>>,
    /// The algorithm of the signature: "hmac-sha256", or "md5" for links that were made for nginx's
    /// secure_link. For "md5", the hash is that of `text` followed by `secret`, and {path} is the
    /// decoded path. Default: "hmac-sha256".
    pub algorithm: Option<SignatureAlgorithm>,
}

/// The way to sign a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum SignatureAlgorithm {
    /// HMAC with SHA-256.
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
    /// MD5, as in nginx.
    #[serde(rename = "md5")]
    Md5,
}

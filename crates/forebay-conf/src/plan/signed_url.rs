//! Signatures in the URLs of requests.

use super::{Secret, Template};

/// A signature that the URL of each request of a route must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedUrl {
    /// The secrets; never empty. A signature is valid if it was made with one of these secrets.
    pub secrets: Vec<Secret>,
    /// The text that is signed. Unless `is_md5`, a space separates two placeholders.
    pub text: Template,
    /// The parameter with the signature. Default `signature`.
    pub signature: String,
    /// The parameter with the time of expiry, which is in `text`. `None`: URLs do not expire.
    pub expires: Option<String>,
    /// True for the MD5 of text and secret, false for HMAC-SHA256.
    pub is_md5: bool,
}

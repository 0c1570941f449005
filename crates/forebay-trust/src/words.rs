//! Says what is wrong with TLS in words for people who run servers, because the library prints the
//! names of its own types, such as `Other(OtherError(CaUsedAsEndEntity))`.

use rustls::{CertificateError, Error};

use crate::is_authority;

/// Returns what is wrong, and what to do where only one thing helps. A text about the certificate of
/// the other side begins with "invalid peer certificate".
#[must_use]
pub fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => {
            format!("invalid peer certificate: {}", of_certificate(error))
        }
        Error::InvalidMessage(_) => "what arrived is not TLS".to_owned(),
        Error::AlertReceived(alert) => {
            format!("the other side refused the connection with the alert {alert:?}")
        }
        error => error.to_string(),
    }
}

/// Returns what is wrong with a certificate.
#[must_use]
pub fn of_certificate(error: &CertificateError) -> String {
    use CertificateError as E;
    let text = match error {
        E::BadEncoding => "it is damaged, or no X.509 certificate",
        E::Expired | E::ExpiredContext { .. } => "it has expired: renew it",
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "it is not valid yet: compare the clocks of both machines"
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            "it is for other names: it needs the requested name in subjectAltName"
        }
        E::UnknownIssuer => "its issuer is not trusted here: name the issuer's certificate in `ca`",
        E::BadSignature => "its signature does not fit its issuer",
        E::Revoked => "its issuer has revoked it",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its extended key usage does not permit this"
        }
        E::Other(other) if is_authority(other) => {
            "it is that of an authority (CA:TRUE): issue one for the server with CA:FALSE"
        }
        E::Other(other) if other.to_string() == "UnsupportedCertVersion" => {
            "it is of X.509 version 1: make one of version 3, with subjectAltName"
        }
        other => return format!("{other:?}"),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;

    use rustls::{InvalidMessage, OtherError};

    use super::*;

    /// An error of the library for certificates, which prints the name of a variant.
    #[derive(Debug)]
    struct Named(&'static str);

    impl fmt::Display for Named {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Named {}

    #[test]
    fn no_message_has_names_of_the_library() {
        let other = |name| CertificateError::Other(OtherError(Arc::new(Named(name))));
        for error in [
            Error::InvalidCertificate(other("UnsupportedCertVersion")),
            Error::InvalidCertificate(other("CaUsedAsEndEntity")),
            Error::InvalidCertificate(CertificateError::UnknownIssuer),
            Error::InvalidCertificate(CertificateError::Expired),
            Error::InvalidCertificate(CertificateError::NotValidForName),
            Error::InvalidCertificate(CertificateError::BadEncoding),
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
        ] {
            let words = words(&error);
            let is_name = |word: &str| {
                word.chars().filter(char::is_ascii_uppercase).count() > 1
                    && word.chars().any(|c| c.is_ascii_lowercase())
                    && word != "subjectAltName"
            };
            assert!(!words.split(|c: char| !c.is_alphanumeric()).any(is_name), "{words}");
        }
    }
}

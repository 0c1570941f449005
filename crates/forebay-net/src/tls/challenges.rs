//! Answers the challenges that an ACME authority uses to verify control of a name. They are tokens
//! over HTTP (RFC 8555 section 8.3) or certificates in a TLS handshake (RFC 8737).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

/// ALPN protocol name of an authority's handshake that verifies a name.
const ALPN: &[u8] = b"acme-tls/1";

/// Prefix of the paths that name a token.
const PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// Current answers to challenges, for all threads. Empty except for the seconds in which a
/// certificate is issued.
#[derive(Debug, Default)]
pub struct Challenges(RwLock<Answers>);

#[derive(Debug, Default)]
struct Answers {
    /// Replies by token.
    replies: HashMap<String, String>,
    /// TLS configurations by server name, in lower case.
    handshakes: HashMap<String, Arc<ServerConfig>>,
}

impl Challenges {
    /// Answers requests for `token` with `reply`.
    pub fn answer_request(&self, token: &str, reply: String) {
        self.write(|answers| answers.replies.insert(token.to_owned(), reply));
    }

    /// Answers handshakes for `name` with a certificate.
    ///
    /// # Errors
    /// Fails if rustls does not accept the certificate and key.
    pub fn answer_handshake(
        &self,
        name: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let key = provider.key_provider.load_private_key(key)?;
        // Do not let rustls check that key and certificate match, because it would reject the
        // critical extension of the certificate.
        let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate], key));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown));
        config.alpn_protocols = vec![ALPN.to_vec()];
        let config = Arc::new(config);
        self.write(|answers| answers.handshakes.insert(name.to_ascii_lowercase(), config));
        Ok(())
    }

    /// Removes all answers.
    pub fn clear(&self) {
        self.write(std::mem::take);
    }

    /// Returns the reply to a request for `path`, if it names a current token.
    pub fn reply(&self, path: &[u8]) -> Option<String> {
        let token = std::str::from_utf8(path.strip_prefix(PREFIX)?).ok()?;
        self.0.read().unwrap_or_else(PoisonError::into_inner).replies.get(token).cloned()
    }

    /// Returns the TLS configuration for an authority's handshake.
    pub fn config(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        if !hello.alpn()?.eq([ALPN]) {
            return None;
        }
        self.0.read().unwrap_or_else(PoisonError::into_inner).handshakes.get(&name).cloned()
    }

    fn write<T>(&self, change: impl FnOnce(&mut Answers) -> T) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

//! The certificate of a site, which may be replaced, and the answers to the challenges that an ACME
//! authority uses to verify control of a name before it issues one. The answers are tokens over HTTP (RFC 8555 section 8.3) or certificates in a TLS handshake (RFC 8737). Machines
//! that share a store find the answers of other machines there.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, ServerConfig};
use tokio::sync::oneshot;
use x509_parser::extensions::GeneralName;

/// The certificate that a site shows. A replacement of the certificate affects only handshakes that
/// begin later. Without a certificate, handshakes fail.
#[derive(Debug, Default)]
pub struct SiteCertificate {
    shown: RwLock<Option<Arc<CertifiedKey>>>,
    renewal: Mutex<Option<Renewal>>,
}

/// The next order of a certificate that Forebay obtains, for the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Time of the next order.
    pub due: SystemTime,
    /// Number of orders that have failed since the last success.
    pub failures: u32,
    /// Reason of the last failure, if `failures` is not 0.
    pub error: Option<String>,
}

impl SiteCertificate {
    /// Replaces the certificate chain (PEM) and its key.
    ///
    /// # Errors
    /// Fails if the key does not match the first certificate, or if the chain or the key is
    /// unreadable.
    pub fn replace(&self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        let bad = |error: pem::Error| Error::General(error.to_string());
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(bad)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(bad)?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())?;
        self.show(Arc::new(certified));
        Ok(())
    }

    /// Returns true if no certificate is loaded.
    pub fn is_empty(&self) -> bool {
        self.shown().is_none()
    }

    /// Returns start and end of the validity, in seconds since 1970. Returns `None` if no readable
    /// certificate is loaded.
    pub fn validity(&self) -> Option<(i64, i64)> {
        let shown = self.shown()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(shown.cert.first()?).ok()?;
        let validity = certificate.validity();
        Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
    }

    /// The host names that the certificate is for, such as `*.example.org`. `None` if no readable
    /// certificate is loaded.
    pub fn names(&self) -> Option<Vec<String>> {
        let shown = self.shown()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(shown.cert.first()?).ok()?;
        let names = certificate.subject_alternative_name().ok()?;
        let names = names.map(|names| &*names.value.general_names).unwrap_or_default();
        let dns = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        Some(dns.collect())
    }

    /// Sets what [`Self::renewal`] returns.
    pub fn plan_renewal(&self, renewal: Renewal) {
        *self.renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
    }

    /// Returns the next order. `None` for a certificate from a file.
    pub fn renewal(&self) -> Option<Renewal> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(&self, certified: Arc<CertifiedKey>) {
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(certified);
    }

    pub(super) fn shown(&self) -> Option<Arc<CertifiedKey>> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for SiteCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.shown()
    }
}

/// ALPN protocol name of an authority's handshake that verifies a name.
const ALPN: &[u8] = b"acme-tls/1";

/// Prefix of the paths that name a token.
const PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// Maximum number of questions that wait for the store. Further ones get no answer, so that a flood
/// of requests for tokens costs little.
const WAITING: usize = 64;
/// Maximum time for an answer of the store.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of answers. Above this number, Forebay forgets all answers, and asks the store
/// again.
const MOST_ANSWERS: usize = 1000;
/// Maximum length of a token or a name.
const LONGEST: usize = 255;

/// Answers to challenges, for all threads. [`Challenges::forget`] removes the answers for this
/// machine's orders. HTTP answers of other machines stay until there are more than 1,000 answers.
/// Forebay then removes all answers.
#[derive(Debug, Default)]
pub struct Challenges {
    answers: RwLock<Answers>,
    /// Asks the store for answers of other machines.
    questions: Option<SyncSender<Question>>,
}

/// A request to look up an answer that another machine may have put into the store.
#[derive(Debug)]
pub struct Question {
    /// The challenge.
    pub of: Challenge,
    /// Receives the answer, if the store has one.
    pub answer: oneshot::Sender<ChallengeAnswer>,
}

/// A challenge of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A request for this token.
    Token(String),
    /// A handshake for this server name, in lower case.
    Name(String),
}

/// The answer to a challenge.
#[derive(Debug)]
pub enum ChallengeAnswer {
    /// The reply to a request.
    Reply(String),
    /// The certificate for a handshake, and its key.
    Certificate(CertificateDer<'static>, PrivateKeyDer<'static>),
}

#[derive(Debug, Default)]
struct Answers {
    /// Replies by token.
    replies: HashMap<String, String>,
    /// TLS configurations by server name, in lower case.
    handshakes: HashMap<String, Arc<ServerConfig>>,
}

impl Challenges {
    /// Creates challenges whose answers may come from other machines. The caller must receive the
    /// questions on a separate thread, and answer them from the store.
    pub fn shared() -> (Self, Receiver<Question>) {
        let (questions, receiver) = sync_channel(WAITING);
        (Self { questions: Some(questions), ..Self::default() }, receiver)
    }

    /// Asks the store for the answer to a request for `path`. Returns `None` if the store has no
    /// answer, or does not reply in time.
    pub async fn ask_for_reply(&self, path: &[u8]) -> Option<String> {
        let token = token(path).filter(|token| is_plain(token))?;
        match self.ask(Challenge::Token(token.to_owned())).await? {
            ChallengeAnswer::Reply(reply) => {
                self.answer_request(token, reply.clone());
                Some(reply)
            }
            ChallengeAnswer::Certificate(..) => None,
        }
    }

    /// Returns the server name of the handshake of an authority that verifies a name. The caller
    /// passes the name to [`Self::ask_for_config`]. Returns `None` for all other handshakes, if
    /// there is no store, and for names that no store entry can have.
    pub fn unknown_name(&self, hello: &ClientHello<'_>) -> Option<String> {
        let name = hello.server_name()?.to_ascii_lowercase();
        let is_asked = self.questions.is_some() && hello.alpn()?.eq([ALPN]) && is_plain(&name);
        is_asked.then_some(name)
    }

    /// Asks the store for the TLS configuration of an authority's handshake. Does not keep the
    /// answer, because the next order of this name has another certificate. Returns `None` if the
    /// store has no usable answer, or does not reply in time.
    pub async fn ask_for_config(&self, name: String) -> Option<Arc<ServerConfig>> {
        match self.ask(Challenge::Name(name)).await? {
            ChallengeAnswer::Certificate(certificate, key) => {
                handshake_config(certificate, key).ok()
            }
            ChallengeAnswer::Reply(_) => None,
        }
    }

    async fn ask(&self, of: Challenge) -> Option<ChallengeAnswer> {
        let (answer, receiver) = oneshot::channel();
        self.questions.as_ref()?.try_send(Question { of, answer }).ok()?;
        tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()
    }

    /// Returns true if [`Self::ask_for_reply`] may find a reply for `path`.
    pub fn may_ask(&self, path: &[u8]) -> bool {
        self.questions.is_some() && path.starts_with(PREFIX)
    }

    /// Stores `reply` as the answer to requests for `token`.
    pub fn answer_request(&self, token: &str, reply: String) {
        self.write(|answers| answers.replies.insert(token.to_owned(), reply));
    }

    /// Stores a certificate as the answer to the handshakes of an authority that verifies `name`.
    ///
    /// # Errors
    /// Fails if rustls does not accept the certificate and key.
    pub fn answer_handshake(
        &self,
        name: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let config = handshake_config(certificate, key)?;
        self.write(|answers| answers.handshakes.insert(name.to_ascii_lowercase(), config));
        Ok(())
    }

    /// Removes the answers to these challenges.
    pub fn forget(&self, challenges: &[Challenge]) {
        self.write(|answers| {
            for challenge in challenges {
                match challenge {
                    Challenge::Token(token) => drop(answers.replies.remove(token)),
                    Challenge::Name(name) => drop(answers.handshakes.remove(name)),
                }
            }
        });
    }

    /// Returns true if the handshake comes from an authority that verifies a name (ALPN
    /// `acme-tls/1`).
    pub fn is_challenge(hello: &ClientHello<'_>) -> bool {
        hello.alpn().is_some_and(|names| names.eq([ALPN]))
    }

    /// Returns the reply to a request for `path`, if it names a current token.
    pub fn reply(&self, path: &[u8]) -> Option<String> {
        let token = token(path)?;
        self.read(|answers| answers.replies.get(token).cloned())
    }

    /// Returns the TLS configuration for an authority's handshake. Returns `None` for other
    /// handshakes, and for an unknown name.
    pub fn config(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        if !hello.alpn()?.eq([ALPN]) {
            return None;
        }
        self.read(|answers| answers.handshakes.get(&name).cloned())
    }

    fn read<T>(&self, look: impl FnOnce(&Answers) -> T) -> T {
        look(&self.answers.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Answers) -> T) {
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        if answers.replies.len() + answers.handshakes.len() > MOST_ANSWERS {
            *answers = Answers::default();
        }
        change(&mut answers);
    }
}

/// Returns the TLS configuration for an authority's handshake.
fn handshake_config(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
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
    Ok(Arc::new(config))
}

fn token(path: &[u8]) -> Option<&str> {
    std::str::from_utf8(path.strip_prefix(PREFIX)?).ok()
}

/// Returns true if a token or a name may be a part of the name of a store entry.
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=LONGEST).contains(&text.len()) && !text.starts_with('.') && text.chars().all(is_plain)
}

//! Keys that verify the signatures of tokens.
//!
//! Each key has a fixed list of algorithms of its own type. The header of a token only selects from
//! this list. A public key is therefore never a secret for HMAC (RFC 8725 section 3.1).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use forebay_conf::{Jwt, JwtKeys, advice, files};
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Header, Validation};
use tokio::time::Instant;

/// Maximum size of a file or reply with keys in bytes.
pub(super) const LARGEST: u64 = 256 * 1024;

/// Maximum number of keys in a set.
const MOST_KEYS: usize = 100;

/// Error of a file with keys.
#[derive(Debug)]
pub struct KeyError {
    file: PathBuf,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    Io(io::Error),
    TooLarge,
    Private,
    NotPem,
    NotSet,
    NoKey,
    TooMany,
    /// The key fits none of the configured algorithms.
    Algorithms,
}

impl KeyError {
    /// Returns advice for the administrator.
    pub fn advice(&self) -> &'static str {
        match self.reason {
            Reason::Io(ref error) => advice(error),
            Reason::TooLarge | Reason::TooMany => "keep only the keys of the issuer in the file",
            Reason::Private => {
                "only the issuer needs the private key: write the public one with `openssl pkey \
                 -in private.pem -pubout`"
            }
            Reason::NotPem => {
                "it begins with `-----BEGIN PUBLIC KEY-----`, and has an RSA key, an EC key \
                 (P-256, P-384) or an Ed25519 key"
            }
            Reason::NotSet => "it has the form {\"keys\": [...]}, as the issuer publishes it",
            Reason::NoKey => {
                "name RSA, EC (P-256, P-384) or Ed25519 keys for signatures; a shared secret \
                 belongs in `secret`"
            }
            Reason::Algorithms => "change `algorithms`, or leave it out",
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.reason {
            Reason::Io(error) => write!(f, "cannot read keys from {file}: {error}"),
            Reason::TooLarge => write!(f, "{file} is larger than {LARGEST} bytes"),
            Reason::Private => write!(f, "{file} has a private key"),
            Reason::NotPem => write!(f, "{file} is not a public key in PEM form"),
            Reason::NotSet => write!(f, "{file} is not a set of keys (JWKS)"),
            Reason::NoKey => write!(f, "{file} has no public key that Forebay can use"),
            Reason::TooMany => write!(f, "{file} has more than {MOST_KEYS} keys"),
            Reason::Algorithms => write!(f, "the key in {file} fits none of the `algorithms`"),
        }
    }
}

impl std::error::Error for KeyError {}

/// Error of a set of keys from a URL.
#[derive(Debug)]
pub(super) struct SetError(Reason);

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Reason::NoKey => "the set has no public key that Forebay can use",
            Reason::TooMany => "the set has too many keys",
            _ => "the reply is not a set of keys (JWKS)",
        })
    }
}

/// A key, and the rules for tokens that it signed.
pub struct TokenKey {
    id: Option<String>,
    /// The key itself.
    pub key: DecodingKey,
    /// The algorithms, times, issuers and audiences of valid tokens.
    pub validation: Validation,
}

/// The keys of a route at one moment.
#[derive(Default)]
pub struct KeyList {
    keys: Vec<TokenKey>,
    /// True if a token selects its key by `kid`.
    is_set: bool,
}

/// State of the requests to the URL of a route's keys.
#[derive(Debug, Default)]
pub(super) struct KeyRequests {
    pub is_under_way: bool,
    /// Time of the next regular request; `None` if it is due now.
    pub due: Option<Instant>,
    /// Time before which unknown keys cause no request.
    pub not_before: Option<Instant>,
}

/// The keys of a route. All threads share them.
pub struct TokenKeys {
    now: RwLock<Arc<KeyList>>,
    /// State of the requests for a URL of keys.
    pub(super) requests: Mutex<KeyRequests>,
}

impl TokenKeys {
    /// Returns the keys at this moment. The list is empty until the keys of a URL have been read.
    pub fn now(&self) -> Arc<KeyList> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the keys by those of a set, which the server of a URL has sent.
    pub(super) fn replace(&self, settings: &Jwt, text: &[u8]) -> Result<(), SetError> {
        let keys = from_set(settings, text).map_err(SetError)?;
        let list = Arc::new(KeyList { keys, is_set: true });
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = list;
        Ok(())
    }

    /// Reads the keys that `settings` name. Keys of a URL are read later.
    pub fn load(settings: &Jwt) -> Result<Self, KeyError> {
        let now = RwLock::new(Arc::new(KeyList::load(settings)?));
        Ok(Self { now, requests: Mutex::default() })
    }
}

impl KeyList {
    fn load(settings: &Jwt) -> Result<Self, KeyError> {
        match &settings.keys {
            JwtKeys::Secret(secret) => {
                let key = DecodingKey::from_secret(secret.as_bytes());
                let keys = usable(settings, None, key, None).into_iter().collect();
                Ok(Self { keys, is_set: false })
            }
            JwtKeys::Pem(file) => {
                let at_file = |reason| KeyError { file: file.clone(), reason };
                let key = read(file).and_then(|text| from_pem(&text)).map_err(at_file)?;
                let key = usable(settings, None, key, None);
                let key = key.ok_or_else(|| at_file(Reason::Algorithms))?;
                Ok(Self { keys: vec![key], is_set: false })
            }
            JwtKeys::Set(file) => {
                let keys = read(file).and_then(|text| from_set(settings, &text));
                let keys = keys.map_err(|reason| KeyError { file: file.clone(), reason })?;
                Ok(Self { keys, is_set: true })
            }
            JwtKeys::Url(_) => Ok(Self { keys: Vec::new(), is_set: true }),
        }
    }

    /// Returns true if there is no key yet.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the key for a token with this header. If the keys are a set, the `kid` of the token
    /// selects the key. For a token without `kid`, the set must have only one key. If the keys are
    /// no set, the first key verifies all tokens. Returns `None` if no key fits.
    pub fn select(&self, header: &Header) -> Option<&TokenKey> {
        if !self.is_set {
            return self.keys.first();
        }
        let Some(id) = &header.kid else {
            return self.keys.first().filter(|_| self.keys.len() == 1);
        };
        // A set may have keys of several types with the same `kid`.
        self.keys.iter().find(|key| {
            key.id.as_ref() == Some(id) && key.validation.algorithms.contains(&header.alg)
        })
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Reason> {
    let text = files::read(file, LARGEST).map_err(Reason::Io)?;
    if text.len() as u64 > LARGEST { Err(Reason::TooLarge) } else { Ok(text) }
}

fn from_pem(text: &[u8]) -> Result<DecodingKey, Reason> {
    if memchr::memmem::find(text, b"PRIVATE KEY").is_some() {
        return Err(Reason::Private);
    }
    DecodingKey::from_rsa_pem(text)
        .or_else(|_| DecodingKey::from_ec_pem(text))
        .or_else(|_| DecodingKey::from_ed_pem(text))
        .map_err(|_| Reason::NotPem)
}

/// Returns the usable keys of a set. Other keys are ignored, because issuers publish keys for other
/// purposes, too. Fails if `text` is not a set, if the set is too large, or if no key is usable.
fn from_set(settings: &Jwt, text: &[u8]) -> Result<Vec<TokenKey>, Reason> {
    let set: JwkSet = serde_json::from_slice(text).map_err(|_| Reason::NotSet)?;
    if set.keys.len() > MOST_KEYS {
        return Err(Reason::TooMany);
    }
    let keys: Vec<_> = set.keys.iter().filter_map(|jwk| from_jwk(settings, jwk)).collect();
    if keys.is_empty() { Err(Reason::NoKey) } else { Ok(keys) }
}

fn from_jwk(settings: &Jwt, jwk: &Jwk) -> Option<TokenKey> {
    // A secret (`oct`) is not used, because everybody can read a published set.
    let is_public = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => true,
        AlgorithmParameters::EllipticCurve(key) => {
            matches!(key.curve, EllipticCurve::P256 | EllipticCurve::P384)
        }
        AlgorithmParameters::OctetKeyPair(key) => key.curve == EllipticCurve::Ed25519,
        _ => false,
    };
    let common = &jwk.common;
    let is_for_signatures = match (&common.public_key_use, &common.key_operations) {
        (Some(purpose), _) => *purpose == PublicKeyUse::Signature,
        (None, Some(operations)) => operations.contains(&KeyOperations::Verify),
        (None, None) => true,
    };
    if !is_public || !is_for_signatures {
        return None;
    }
    let only = match common.key_algorithm {
        Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
        None => None,
    };
    usable(settings, common.key_id.clone(), DecodingKey::from_jwk(jwk).ok()?, only)
}

/// Returns the key if it fits the configured algorithms. `only` is the algorithm that the key names
/// (`alg` of a JWK), if any.
fn usable(
    settings: &Jwt,
    id: Option<String>,
    key: DecodingKey,
    only: Option<Algorithm>,
) -> Option<TokenKey> {
    let family: AlgorithmFamily = key.family();
    let allowed: Vec<Algorithm> =
        settings.algorithms.iter().filter_map(|name| name.parse().ok()).collect();
    let mut validation = Validation::new_for_family(family);
    validation.algorithms.retain(|algorithm| {
        (allowed.is_empty() || allowed.contains(algorithm))
            && only.is_none_or(|only| only == *algorithm)
    });
    if validation.algorithms.is_empty() {
        return None;
    }
    validation.leeway = settings.leeway.as_secs();
    validation.validate_nbf = true;
    validation.validate_aud = !settings.audience.is_empty();
    let mut required = vec!["exp"];
    if !settings.audience.is_empty() {
        validation.set_audience(&settings.audience);
        required.push("aud");
    }
    if !settings.issuer.is_empty() {
        validation.set_issuer(&settings.issuer);
        required.push("iss");
    }
    validation.set_required_spec_claims(&required);
    Some(TokenKey { id, key, validation })
}

//! `digest_auth`: users by password with the Digest scheme (RFC 7616), for old sites.
//!
//! The client sends a hash of its password, its target and a nonce. Forebay offers only
//! `qop=auth`, and refuses requests without it.

use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::constant_time;
use forebay_conf::DigestAuth;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_wire::http1::encode;
use md5::{Digest as _, Md5};
use sha2::Sha256;

use super::digest_users::{Algorithm, DigestUsers};
use super::nonces::Nonces;

/// Check of the Digest credentials of a route.
pub struct DigestCheck {
    settings: DigestAuth,
    users: Arc<Mutex<DigestUsers>>,
    nonces: Arc<Nonces>,
}

/// Outcome of a check of Digest credentials.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DigestOutcome {
    Right,
    /// The password is right, but the nonce is old or its count was used. The client tries again
    /// with a new nonce, without asking its user.
    Stale,
    Wrong,
}

impl DigestCheck {
    /// Creates a check with these settings.
    pub fn new(settings: DigestAuth, users: Arc<Mutex<DigestUsers>>, nonces: Arc<Nonces>) -> Self {
        Self { settings, users, nonces }
    }

    /// Checks the password of the request. If the password is right, sets the user and returns
    /// `None`. Otherwise returns the lines of the challenge. Fails if the user file cannot be read.
    pub fn check(&self, thread: &Thread, request: &mut Request) -> Result<Option<Vec<u8>>, Fault> {
        // Parse before the lock is taken, because other threads may wait for the lock.
        let credentials = Credentials::of(request);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = users.look(thread.second(), &thread.errors);
        looked.map_err(|error| Fault::us(500, error.to_string()))?;
        let outcome = match credentials {
            Some(credentials) => {
                let outcome = self.outcome(&credentials, request, &users);
                if outcome == DigestOutcome::Right {
                    let user = credentials.user;
                    request.user = user;
                    return Ok(None);
                }
                outcome
            }
            None => DigestOutcome::Wrong,
        };
        Ok(Some(self.challenge(&users, outcome == DigestOutcome::Stale)))
    }

    fn outcome(
        &self,
        credentials: &Credentials,
        request: &Request,
        users: &DigestUsers,
    ) -> DigestOutcome {
        let Credentials { user, realm, nonce, count, algorithm, .. } = credentials;
        let own_realm = self.settings.realm.as_str();
        let hash = users.hash(own_realm, user, *algorithm);
        // Compute the hashes for an unknown user, too, so that the time of the check does not
        // reveal which users exist.
        let expected = credentials.response_for(hash.unwrap_or_default(), request.method());
        let is_right =
            constant_time::verify_slices_are_equal(expected.as_bytes(), &credentials.response);
        let is_for_this = realm == own_realm.as_bytes() && credentials.target == target(request);
        if is_right.is_err() || hash.is_none() || !is_for_this {
            return DigestOutcome::Wrong;
        }
        let is_fresh = if request.user == *user {
            // An earlier access rule has already accepted this request and has stored its count, so
            // only check the age of the nonce.
            self.nonces.is_fresh(nonce, own_realm)
        } else {
            self.nonces.accept(nonce, own_realm, *count)
        };
        if is_fresh { DigestOutcome::Right } else { DigestOutcome::Stale }
    }

    /// Returns the lines that offer the algorithms of the user file, the preferred one first.
    fn challenge(&self, users: &DigestUsers, is_stale: bool) -> Vec<u8> {
        let realm = &self.settings.realm;
        let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
        let nonce = self.nonces.issue(realm);
        let stale = if is_stale { ", stale=true" } else { "" };
        let mut offered: Vec<_> =
            Algorithm::ALL.into_iter().filter(|one| users.has(realm, *one)).collect();
        if offered.is_empty() {
            offered.push(Algorithm::Sha256);
        }
        let mut lines = Vec::new();
        for algorithm in offered {
            let name = algorithm.name();
            let value = format!(
                "Digest realm=\"{quoted}\", qop=\"auth\", algorithm={name}, nonce=\"{nonce}\"{stale}"
            );
            encode::field(&mut lines, "WWW-Authenticate", value.as_bytes());
        }
        lines
    }
}

/// Returns the target as the client sent it.
fn target(request: &Request) -> &[u8] {
    request.original_target()
}

/// The credentials of a request.
struct Credentials {
    user: Vec<u8>,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    target: Vec<u8>,
    client_nonce: Vec<u8>,
    /// The digits of `count`, as the client sent them.
    count_digits: Vec<u8>,
    count: u32,
    algorithm: Algorithm,
    /// Lower-case hexadecimal digits.
    response: Vec<u8>,
}

impl Credentials {
    /// Returns the credentials of the only field `Authorization`, in the form of RFC 7616 with
    /// `qop=auth`. Returns `None` if the field is missing, repeated, or has another form.
    fn of(request: &Request) -> Option<Self> {
        let mut fields =
            request.head.fields.iter().filter(|field| {
                field.name.of(&request.bytes).eq_ignore_ascii_case(b"authorization")
            });
        let value = fields.next()?.value.of(&request.bytes);
        if fields.next().is_some() {
            return None;
        }
        let (scheme, rest) = value.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"digest ") {
            return None;
        }
        Self::parse(rest)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut parameters = parameters(text)?;
        let mut take = |wanted: &str| {
            let at = parameters.iter().position(|(name, _)| name == wanted)?;
            Some(parameters.swap_remove(at).1)
        };
        let algorithm = match take("algorithm") {
            None => Algorithm::Md5,
            Some(given) => Algorithm::ALL
                .into_iter()
                .find(|one| given.eq_ignore_ascii_case(one.name().as_bytes()))?,
        };
        let is_plain = take("qop")?.eq_ignore_ascii_case(b"auth")
            && take("userhash").is_none_or(|value| value.eq_ignore_ascii_case(b"false"));
        let count_digits = take("nc").filter(|digits| digits.len() == 8)?;
        let is_hex = count_digits.iter().all(u8::is_ascii_hexdigit);
        let count = u32::from_str_radix(str::from_utf8(&count_digits).ok()?, 16).ok()?;
        let user = take("username")?;
        let is_name = !user.is_empty() && !user.iter().any(u8::is_ascii_control);
        let credentials = Self {
            user,
            realm: take("realm")?,
            nonce: take("nonce")?,
            target: take("uri")?,
            client_nonce: take("cnonce")?,
            count_digits,
            count,
            algorithm,
            response: take("response")?.to_ascii_lowercase(),
        };
        (is_plain && is_hex && is_name).then_some(credentials)
    }

    /// Returns the response that a client with this hash of the password sends.
    fn response_for(&self, hash: &[u8], method: &[u8]) -> String {
        let request = self.hash(&[method, &self.target]);
        self.hash(&[
            hash,
            &self.nonce,
            &self.count_digits,
            &self.client_nonce,
            b"auth",
            request.as_bytes(),
        ])
    }

    /// Returns the hash of the parts, with colons between them.
    fn hash(&self, parts: &[&[u8]]) -> String {
        let text = parts.join(&b':');
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self.algorithm {
            Algorithm::Sha256 => hex(&Sha256::digest(&text)),
            Algorithm::Md5 => hex(&Md5::digest(&text)),
        }
    }
}

/// Maximum number of parameters, because each name is compared with all others. RFC 7616 defines
/// eleven.
const MOST_PARAMETERS: usize = 20;

/// Returns the parameters of the credentials with lower-case names. Returns `None` for a syntax
/// error, or if a name occurs twice.
fn parameters(mut text: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut found: Vec<(String, Vec<u8>)> = Vec::new();
    loop {
        text = text.trim_ascii_start();
        let equals = memchr::memchr(b'=', text)?;
        let name = str::from_utf8(text[..equals].trim_ascii()).ok()?.to_ascii_lowercase();
        let is_repeated = || found.iter().any(|(before, _)| *before == name);
        if name.is_empty() || found.len() == MOST_PARAMETERS || is_repeated() {
            return None;
        }
        let (value, rest) = value(text[equals + 1..].trim_ascii_start())?;
        found.push((name, value));
        match rest.trim_ascii_start().split_first() {
            None => return Some(found),
            Some((b',', rest)) => text = rest,
            Some(_) => return None,
        }
    }
}

/// Returns a token or the content of a quoted string, and the text after it. Returns `None` for a
/// syntax error.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    if text.first() != Some(&b'"') {
        let end = text.iter().position(|&b| b == b',').unwrap_or(text.len());
        let token = text[..end].trim_ascii();
        let is_token = !token.is_empty() && !token.contains(&b'"');
        return is_token.then(|| (token.to_vec(), &text[end..]));
    }
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate().skip(1);
    while let Some((at, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &text[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            byte => value.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests;

//! Who may use a route: clients by their address, users by the Basic scheme (RFC 7617).
//!
//! bcrypt takes a tenth of a second on purpose. It runs on threads for blocking work, on half of
//! the processors at most; right credentials are remembered by each thread and route as a salted
//! SHA-256 until the file changes. Unknown users are compared with the hash of the file that takes
//! longest, so time reveals no names where all hashes cost alike; where costs are mixed, a name
//! with a cheaper hash answers sooner. Each thread reads the file on the event loop: 1 MiB at most,
//! once a second. `htpasswd-verify` depends on the abandoned `rust-crypto`, so `bcrypt`,
//! `sha-crypt` and `md-5` (apr1) are used directly.

mod hash;
mod users;

use std::cell::RefCell;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use forebay_conf::{Access, BasicAuth};
use forebay_engine::{Admitting, Exchange, Fault, Gate, Limit, Request, Thread};
use forebay_wire::http1::encode;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

pub use users::{Users, UsersError};

/// How long a password may wait for others to be checked.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest password, in bytes: the time that SHA-crypt takes grows with it.
const LONGEST_PASSWORD: usize = 512;
/// Credentials that a thread remembers for a route; then all are forgotten.
const REMEMBERED: usize = 1000;

/// Passwords checked at once: half of the processors, so that others have time for requests while
/// somebody guesses.
pub fn checks_at_once() -> usize {
    (available_parallelism().map_or(1, usize::from) / 2).max(1)
}

/// The gate of a route.
pub struct Guarded {
    thread: Rc<Thread>,
    access: Access,
    passwords: Option<Passwords>,
}

impl Guarded {
    /// Lets in whom `access` names; `checks` are the passwords checked at once by all threads.
    pub fn new(thread: Rc<Thread>, access: Access, checks: Arc<Semaphore>) -> Self {
        let passwords = access.basic_auth.clone().map(|auth| Passwords::new(auth, checks));
        Self { thread, access, passwords }
    }

    async fn decide(&self, exchange: &mut Exchange) -> Result<bool, Fault> {
        if !self.access.admits(exchange.request.client.ip()) {
            return Err(Fault::client(403, "this client may not use the route"));
        }
        let Some(passwords) = &self.passwords else { return Ok(true) };
        if let Some((user, password)) = credentials(&exchange.request)
            && passwords.fit(&self.thread, &user, &password).await?
        {
            exchange.request.user = user;
            return Ok(true);
        }
        exchange.reply.respond_error_with(401, &passwords.challenge).await.map(|()| false)
    }
}

impl Gate for Guarded {
    fn admit<'a>(&'a self, exchange: &'a mut Exchange) -> Admitting<'a> {
        Box::pin(self.decide(exchange))
    }
}

/// The users of a file, as one thread knows them.
struct Passwords {
    users: RefCell<Users>,
    /// The `WWW-Authenticate` line.
    challenge: Vec<u8>,
    checks: Arc<Semaphore>,
    /// Digests of credentials that were right with the file as it is, salted.
    right: RefCell<HashSet<[u8; 32]>>,
    salt: [u64; 4],
}

impl Passwords {
    fn new(auth: BasicAuth, checks: Arc<Semaphore>) -> Self {
        let mut challenge = Vec::new();
        let realm = auth.realm.replace('\\', "\\\\").replace('"', "\\\"");
        let value = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        encode::field(&mut challenge, "WWW-Authenticate", value.as_bytes());
        Self {
            users: RefCell::new(Users::new(auth.file)),
            challenge,
            checks,
            right: RefCell::default(),
            // Keys of the standard library's hash maps are random, and new ones each time.
            salt: std::array::from_fn(|at| RandomState::new().hash_one(at)),
        }
    }

    /// Whether `password` is that of `user`. Hashing takes a tenth of a second and more: it is done
    /// on a thread of its own, for unknown users as well, and once for each that is right.
    async fn fit(&self, thread: &Thread, user: &[u8], password: &[u8]) -> Result<bool, Fault> {
        let has_changed = self.users.borrow_mut().look(thread.second(), &thread.errors);
        if has_changed.map_err(|error| Fault::us(500, error.to_string()))? {
            self.right.borrow_mut().clear();
        }
        let digest = self.digest(user, password);
        if self.right.borrow().contains(&digest) {
            return Ok(true);
        }
        if password.len() > LONGEST_PASSWORD {
            return Ok(false);
        }
        let (hash, is_known, version) = {
            let users = self.users.borrow();
            let Some((hash, is_known)) = users.hash_of(user) else { return Ok(false) };
            (hash, is_known, users.version())
        };
        let permit = tokio::time::timeout(PATIENCE, self.checks.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Fault::us(503, "too many passwords are being checked")
                .limited_by(Limit::PasswordChecks));
        };
        let password = password.to_vec();
        let check = tokio::task::spawn_blocking(move || {
            let is_right = hash.fits(&password);
            drop(permit);
            is_right
        });
        let is_right = check.await.map_err(|error| Fault::us(500, error.to_string()))?;
        if !(is_right && is_known) {
            return Ok(false);
        }
        if version == self.users.borrow().version() {
            let mut right = self.right.borrow_mut();
            if right.len() >= REMEMBERED {
                right.clear();
            }
            right.insert(digest);
        }
        Ok(true)
    }

    fn digest(&self, user: &[u8], password: &[u8]) -> [u8; 32] {
        let mut digest = Sha256::new();
        self.salt.iter().for_each(|word| digest.update(word.to_ne_bytes()));
        digest.update((user.len() as u64).to_ne_bytes());
        digest.update(user);
        digest.update(password);
        digest.finalize().into()
    }
}

/// User and password of the one `Authorization` field; `None` where there is none, or it is not
/// what RFC 7617 gives.
fn credentials(request: &Request) -> Option<(Vec<u8>, Vec<u8>)> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let mut fields = request
        .head
        .fields
        .iter()
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"authorization"));
    let value = fields.next()?.value.of(&request.bytes);
    if fields.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at(memchr::memchr(b' ', value)?);
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let mut user = BASE64.decode(token.trim_ascii()).ok()?;
    let password = user.split_off(memchr::memchr(b':', &user)?).split_off(1);
    let is_clean = !user.is_empty() && !user.iter().chain(&password).any(u8::is_ascii_control);
    is_clean.then_some((user, password))
}

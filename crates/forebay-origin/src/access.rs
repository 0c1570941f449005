//! Access control of a route: clients by address, users by password (Basic scheme, RFC 7617), by
//! Digest (`digest`) or by signed token (`token`).
//!
//! A bcrypt hash takes 0.1 s by design, so threads for blocking work compute the hashes. Clients
//! with different addresses take turns (`queue`). Forebay keeps a keyed SHA-256 of each correct
//! password, so that later requests with this password need no bcrypt hash.
//!
//! A refusal computes one hash of each kind and cost in the file, even if the user does not exist.
//! So the time of a refusal does not reveal which users exist.
//!
//! The crate `htpasswd-verify` depends on the abandoned `rust-crypto`, so this module uses
//! `bcrypt`, `sha-crypt` and `md-5` (apr1) directly.

mod challenge;
mod concurrency;
mod digest;
mod digest_users;
mod forward;
mod hash;
mod key_source;
mod methods;
mod nonces;
mod queue;
mod rate_limit;
mod signed_url;
mod token;
mod token_keys;
mod user_file;
mod users;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use forebay_conf::{Access, BasicAuth, RequestChange, RequestField, Satisfy};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::request_fields::RequestFields;
use forebay_net::thread::Thread;
use forebay_server::decide::only_internal;
use forebay_server::exchange::{Admitting, Exchange, Gate, Origin, Permission};
use forebay_upstream::Crawlers;
use forebay_wire::ClientAddress;
use forebay_wire::http1::encode;
use sha2::{Digest as _, Sha256};

use challenge::{Challenger, Task};
pub use challenge::{applies as challenges, random_key};
pub use concurrency::ConcurrencyLimiter;
use digest::DigestCheck;
pub use digest_users::{Algorithm, DigestUsers};
pub use forward::ForwardAuth;
use key_source::KeySource;
pub use methods::{is_open_to, permits_method};
use nonces::Nonces;
pub use queue::{HashQueue, Refusal, Turn};
use rate_limit::{Judged, judge, refusal_fields};
pub(crate) use rate_limit::{KeyPart, client_network, key_texts};
pub use rate_limit::{RateLimiter, SharedKeys};
pub use signed_url::check as check_signed_url;
use token::TokenCheck;
pub use token_keys::{KeyError, TokenKeys};
pub use user_file::UsersError;
use user_file::text_of_root;
use users::Digest;
pub use users::Users;

/// Maximum length of a password in bytes, because the time of SHA-crypt grows with the length.
const LONGEST_PASSWORD: usize = 512;

/// Returns the maximum number of hashes at once: half of the processors, so that requests continue
/// during an attack with guessed passwords.
pub fn checks_at_once() -> usize {
    (available_parallelism().map_or(1, usize::from) / 2).max(1)
}

/// Password state that all threads share: the users of each file, and the queue for hashes.
pub struct PasswordChecks {
    files: Shelf<Users>,
    digest_files: Shelf<DigestUsers>,
    /// Keeps users whose file this process cannot read again.
    of_root: Mutex<OfRoot>,
    nonces: Arc<Nonces>,
    queue: Arc<HashQueue>,
    /// Key of the digests, different in each process.
    key: [u64; 4],
}

impl PasswordChecks {
    /// Creates the state for at most `at_once` hashes at once.
    pub fn new(at_once: usize) -> Self {
        Self {
            files: Mutex::default(),
            digest_files: Mutex::default(),
            of_root: Mutex::default(),
            nonces: Arc::new(Nonces::new()),
            queue: HashQueue::new(at_once),
            // `RandomState` has a new random key each time, so each hash is a random number.
            key: std::array::from_fn(|at| RandomState::new().hash_one(at)),
        }
    }

    /// Returns the queue for hashes.
    pub fn queue(&self) -> &Arc<HashQueue> {
        &self.queue
    }

    /// Returns the users of `file` for Basic authentication.
    fn users(&self, file: PathBuf) -> Arc<Mutex<Users>> {
        shared(&self.files, file, Users::new)
    }

    /// Returns the users of `file` for Digest authentication.
    fn digest_users(&self, file: PathBuf) -> Arc<Mutex<DigestUsers>> {
        shared(&self.digest_files, file, DigestUsers::new)
    }

    /// Takes the texts of user files that only root may read, as a load has found them. Call this
    /// while the load is replayed, before routes use the files.
    pub fn take_of_root(&self, basic: &[&Path], digest: &[&Path]) {
        let mut of_root = OfRoot::default();
        for (file, text) in basic.iter().filter_map(|file| Some((file, text_of_root(file)?))) {
            let users = self.users(file.to_path_buf());
            users.lock().unwrap_or_else(PoisonError::into_inner).take_text(text);
            of_root.0.push(users);
        }
        for (file, text) in digest.iter().filter_map(|file| Some((file, text_of_root(file)?))) {
            let users = self.digest_users(file.to_path_buf());
            users.lock().unwrap_or_else(PoisonError::into_inner).take_text(text);
            of_root.1.push(users);
        }
        *self.of_root.lock().unwrap_or_else(PoisonError::into_inner) = of_root;
    }

    fn digest(&self, user: &[u8], password: &[u8]) -> Digest {
        let mut digest = Sha256::new();
        self.key.iter().for_each(|word| digest.update(word.to_ne_bytes()));
        digest.update((user.len() as u64).to_ne_bytes());
        digest.update(user);
        digest.update(password);
        digest.finalize().into()
    }
}

/// Access control of a route.
pub struct Guarded {
    thread: Rc<Thread>,
    access: Access,
    logins: Vec<Login>,
    forward: Option<ForwardAuth>,
    /// Removes the client's fields with names that a token or the server of `forward_auth` sets.
    /// Otherwise a request that is admitted without a token or server could forge these fields.
    removed: Option<Rc<RequestFields>>,
    challenger: Option<Box<Challenger>>,
    crawlers: Arc<Crawlers>,
    /// Rate limits whose keys do not contain the user, then limits whose keys do.
    limits: [Vec<Arc<RateLimiter>>; 2],
    concurrency: Vec<Arc<ConcurrencyLimiter>>,
}

/// Users for Basic and for Digest authentication.
type OfRoot = (Vec<Arc<Mutex<Users>>>, Vec<Arc<Mutex<DigestUsers>>>);

/// Users of each file. All routes that name the file share them.
type Shelf<T> = Mutex<BTreeMap<PathBuf, Weak<Mutex<T>>>>;

/// Returns the users of `file`, which all routes share. Calls `create` if no route uses `file` yet.
fn shared<T>(shelf: &Shelf<T>, file: PathBuf, create: fn(PathBuf) -> T) -> Arc<Mutex<T>> {
    let mut files = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|_, users| users.strong_count() > 0);
    if let Some(users) = files.get(&file).and_then(Weak::upgrade) {
        return users;
    }
    let users = Arc::new(Mutex::new(create(file.clone())));
    files.insert(file, Arc::downgrade(&users));
    users
}

/// State for a route's access control: the state that all threads share, and the server of
/// `forward_auth`.
pub struct GateState<'s> {
    /// The passwords of all routes.
    pub checks: Arc<PasswordChecks>,
    /// The state of the rate limits.
    pub limiters: &'s [Arc<RateLimiter>],
    /// The counts of running requests.
    pub concurrency: &'s [Arc<ConcurrencyLimiter>],
    /// The keys of `jwt`.
    pub keys: Option<Arc<TokenKeys>>,
    /// The server of the keys' URL, if they have one.
    pub key_server: Option<Box<dyn Origin>>,
    /// The server of `forward_auth`.
    pub forward: Option<ForwardAuth>,
    /// Verifies crawlers.
    pub crawlers: Arc<Crawlers>,
    /// The key of a `challenge` without a secret.
    pub challenge_key: &'s [u8; 32],
}

/// Credentials that a route requires: a password or a token.
enum Login {
    Password(Passwords),
    Digest(DigestCheck),
    Token(TokenCheck),
}

/// What is known about a visitor before the gate has decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visitor {
    Unknown,
    /// DNS has verified a crawler.
    Crawler,
}

/// A decision about a request, as far as the gate can make it without waiting.
enum Begun<'l> {
    Admitted,
    /// The route does not permit the method.
    WrongMethod,
    /// Too many requests with the same key run.
    Crowded,
    /// The visitor gets a task, or the cookie for a solved one.
    Challenged(Task),
    /// Rate limits delay or refuse the request. If the flag is set, an admitted request must also
    /// have credentials.
    Limited(Judged<'l>, bool),
    /// The request must have credentials.
    NeedsLogin,
}

impl Guarded {
    /// Creates the access control from `access` and its state.
    pub fn new(thread: Rc<Thread>, access: Access, state: GateState<'_>) -> Self {
        let digest = access.digest_auth.clone().map(|auth| {
            let users = state.checks.digest_users(auth.file.clone());
            DigestCheck::new(auth, users, state.checks.nonces.clone())
        });
        let passwords = access.basic_auth.clone().map(|auth| Passwords::new(auth, state.checks));
        let tokens = access.jwt.clone().zip(state.keys);
        let tokens = tokens.map(|(settings, keys)| {
            let start =
                |server| KeySource::start(server, settings.clone(), keys.clone(), thread.clone());
            let source = state.key_server.map(start);
            TokenCheck::new(settings.clone(), keys.clone(), source)
        });
        let passwords = passwords.map(Login::Password).into_iter();
        let logins = passwords.chain(digest.map(Login::Digest)).chain(tokens.map(Login::Token));
        let limited = |wanted| {
            let is_meant = |limiter: &&Arc<RateLimiter>| limiter.limit().needs_user() == wanted;
            state.limiters.iter().filter(is_meant).cloned().collect()
        };
        let limits = [limited(false), limited(true)];
        let removed = access
            .set_fields()
            .map(|name| RequestField { name: name.to_owned(), change: RequestChange::Remove });
        let removed = RequestFields::new(&removed.collect::<Vec<_>>());
        let logins = logins.collect();
        let concurrency = state.concurrency.to_vec();
        let challenger = access.challenge.clone();
        let challenger =
            challenger.map(|settings| Box::new(Challenger::new(settings, state.challenge_key)));
        Self {
            thread,
            access,
            logins,
            forward: state.forward,
            removed,
            challenger,
            crawlers: state.crawlers,
            limits,
            concurrency,
        }
    }

    /// Decides as far as possible without waiting. Returns an error for an external request to an
    /// internal route.
    fn begin(&self, exchange: &mut Exchange, visitor: Visitor) -> Result<Begun<'_>, Fault> {
        if let Some(removed) = &self.removed {
            removed.change(&mut exchange.request);
        }
        let (access, request) = (&self.access, &exchange.request);
        if access.internal && !request.is_internal {
            return Err(only_internal());
        }
        if !permits_method(access, request) {
            return Ok(Begun::WrongMethod);
        }
        let is_open = is_open_to(access, request);
        let is_admitted = is_open || access.admits(request.client.ip());
        let is_any = access.satisfy == Satisfy::Any;
        if !is_admitted && !is_any {
            return Err(refused_address());
        }
        if let Some(signed) = &access.signed_url {
            check_signed_url(signed, request)?;
        }
        if visitor == Visitor::Unknown
            && let Some(task) = self.challenger.as_ref().and_then(|one| one.check(request))
        {
            return Ok(Begun::Challenged(task));
        }
        let [first, after_user] = &self.limits;
        let may_need_login =
            is_any || !self.logins.is_empty() || self.forward.is_some() || !after_user.is_empty();
        let needs_login =
            may_need_login && !is_open && !(is_admitted && access.suffices_by_address());
        match judge(first, request) {
            Ok(wait) if wait.is_zero() && needs_login => Ok(Begun::NeedsLogin),
            Ok(wait) if wait.is_zero() && after_user.is_empty() => Ok(self.enter(exchange)),
            verdict => Ok(Begun::Limited(verdict, needs_login)),
        }
    }

    /// Takes the request's places within the limits of running requests.
    fn enter(&self, exchange: &mut Exchange) -> Begun<'_> {
        if self.concurrency.is_empty() {
            return Begun::Admitted;
        }
        match concurrency::enter(&self.concurrency, &exchange.request) {
            Some(places) => {
                exchange.held.push(places);
                Begun::Admitted
            }
            None => Begun::Crowded,
        }
    }

    /// Completes the decision of [`Self::begin`]. Returns true if the request may continue. Answers
    /// the request before returning false.
    async fn decide(
        &self,
        begun: Result<Begun<'_>, Fault>,
        exchange: &mut Exchange,
    ) -> Result<bool, Fault> {
        let begun = match begun? {
            Begun::Challenged(_) if self.is_crawler(&exchange.request).await => {
                self.begin(exchange, Visitor::Crawler)?
            }
            begun => begun,
        };
        let needs_login = match begun {
            Begun::Admitted => return Ok(true),
            Begun::Crowded => return self.refuse_crowd(exchange).await.map(|()| false),
            Begun::WrongMethod => {
                let mut lines = Vec::new();
                encode::field(&mut lines, "Allow", self.access.allow_field().as_bytes());
                return exchange.respond_error_with(405, &lines).await.map(|()| false);
            }
            Begun::Challenged(task) => {
                let challenger = self.challenger.as_ref().expect("it has given the task");
                return challenger.answer(exchange, task).await.map(|()| false);
            }
            Begun::Limited(verdict, needs_login) => {
                if !self.obey(verdict, exchange).await? {
                    return Ok(false);
                }
                needs_login
            }
            Begun::NeedsLogin => true,
        };
        let is_any = self.access.satisfy == Satisfy::Any;
        let [_, after_user] = &self.limits;
        if needs_login && !self.is_permitted(exchange, is_any).await? {
            return Ok(false);
        }
        // If the request needs no login, the user in the key of the rate limit is empty.
        let verdict = judge(after_user, &exchange.request);
        if !self.obey(verdict, exchange).await? {
            return Ok(false);
        }
        match self.enter(exchange) {
            Begun::Crowded => self.refuse_crowd(exchange).await.map(|()| false),
            _ => Ok(true),
        }
    }

    /// Returns true if the request comes from a crawler that is not challenged.
    async fn is_crawler(&self, request: &Request) -> bool {
        let (Some(challenger), Some(client)) = (&self.challenger, request.client.ip()) else {
            return false;
        };
        for crawler in challenger.claimed(request) {
            if self.crawlers.verify(client, crawler).await {
                return true;
            }
        }
        false
    }

    async fn refuse_crowd(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        self.thread.counters.count_limit(Limit::ConcurrencyLimit);
        exchange.respond_error_with(429, b"").await
    }

    /// Delays the request as rate limits demand. If a rate limit refuses the request, answers the
    /// request and returns false. Returns an error if the client leaves during the delay.
    async fn obey(&self, verdict: Judged<'_>, exchange: &mut Exchange) -> Result<bool, Fault> {
        match verdict {
            Ok(wait) if wait.is_zero() => Ok(true),
            Ok(wait) => {
                tokio::select! {
                    () = tokio::time::sleep(wait) => Ok(true),
                    () = exchange.reply.stream().cancelled() => {
                        Err(Fault::client(499, "the client closed while a rate limit delayed it"))
                    }
                }
            }
            Err((refused_by, after)) => {
                self.thread.counters.count_limit(Limit::RateLimit);
                let lines = refusal_fields(refused_by.limit(), after);
                exchange.respond_error_with(429, &lines).await.map(|()| false)
            }
        }
    }

    /// Returns true if the request has all credentials that the route needs, and if the server of
    /// `forward_auth` permits it. If `is_any` is true, one of these conditions is enough. Answers
    /// the request before returning false.
    async fn is_permitted(&self, exchange: &mut Exchange, is_any: bool) -> Result<bool, Fault> {
        let mut refusal: Option<Refusals> = None;
        for login in &self.logins {
            match (self.check(login, exchange).await?, is_any) {
                (None, true) => return Ok(true),
                (None, false) => {}
                (Some(refused), true) => match &mut refusal {
                    Some(before) => before.add(&refused),
                    None => refusal = Some(refused),
                },
                (Some(Refusals { status, lines }), false) => {
                    return exchange.respond_error_with(status, &lines).await.map(|()| false);
                }
            }
        }
        match (&self.forward, refusal) {
            // If `forward_auth` refuses too, the client gets the answer of its server, which shows
            // how to log in.
            (Some(forward), _) => forward.decide(exchange).await,
            (None, Some(Refusals { status, lines })) => {
                exchange.respond_error_with(status, &lines).await.map(|()| false)
            }
            (None, None) if is_any => Err(refused_address()),
            (None, None) => Ok(true),
        }
    }

    /// Checks the credentials of the request. If they are right, sets the user and returns `None`.
    /// Otherwise returns the refusal.
    async fn check(
        &self,
        login: &Login,
        exchange: &mut Exchange,
    ) -> Result<Option<Refusals>, Fault> {
        match login {
            Login::Password(passwords) => {
                let fits = self.takes_password(passwords, exchange).await?;
                Ok((!fits).then(|| Refusals { status: 401, lines: passwords.challenge.clone() }))
            }
            Login::Digest(digest) => {
                let refused = digest.check(&self.thread, &mut exchange.request)?;
                Ok(refused.map(|lines| Refusals { status: 401, lines }))
            }
            Login::Token(tokens) => Ok(tokens.check(&mut exchange.request).err().map(|refused| {
                let mut lines = Vec::new();
                encode::field(&mut lines, "WWW-Authenticate", refused.challenge().as_bytes());
                Refusals { status: refused.status(), lines }
            })),
        }
    }

    /// Returns true and sets the user if the request has a right password. Returns false if the
    /// request has no credentials or wrong credentials.
    async fn takes_password(
        &self,
        passwords: &Passwords,
        exchange: &mut Exchange,
    ) -> Result<bool, Fault> {
        let Some((user, password)) = credentials(&exchange.request) else { return Ok(false) };
        let client = exchange.request.client;
        let fits = passwords.fit(&self.thread, client, (&user, &password)).await?;
        if fits {
            exchange.request.user = user;
        }
        Ok(fits)
    }
}

/// The reply to a request without the needed credentials.
struct Refusals {
    status: u16,
    /// Lines of `WWW-Authenticate`.
    lines: Vec<u8>,
}

impl Refusals {
    /// Adds the challenge of another login, and sets the status to 401. The client may then try
    /// either login.
    fn add(&mut self, other: &Self) {
        self.status = 401;
        self.lines.extend_from_slice(&other.lines);
    }
}

fn refused_address() -> Fault {
    Fault::client(403, "this client may not use the route")
}

impl Gate for Guarded {
    fn admit<'a>(&'a self, exchange: &'a mut Exchange) -> Admitting<'a> {
        match self.begin(exchange, Visitor::Unknown) {
            Ok(Begun::Admitted) => Admitting::Now(true),
            begun => Admitting::Later(Box::pin(self.decide(begun, exchange))),
        }
    }

    fn is_by_path(&self) -> bool {
        self.forward.is_some()
            || self.access.signed_url.is_some()
            || self.access.challenge.is_some()
    }

    fn permission(&self, method: &[u8]) -> Permission {
        match (self.access.permits_method(method), self.access.is_open_to(method)) {
            (false, _) => Permission::Refused,
            (true, false) => Permission::Checked,
            (true, true) => Permission::Open,
        }
    }

    fn is_by_client(&self) -> bool {
        let by_request = Access {
            internal: self.access.internal,
            allow_methods: self.access.allow_methods.clone(),
            ..Access::default()
        };
        self.access != by_request
    }
}

/// Check of the passwords of a route (`basic_auth`).
struct Passwords {
    users: Arc<Mutex<Users>>,
    /// The users that may use the route. If empty, all users of the file.
    permitted: Vec<String>,
    /// The `WWW-Authenticate` line.
    challenge: Vec<u8>,
    checks: Arc<PasswordChecks>,
}

impl Passwords {
    fn new(auth: BasicAuth, checks: Arc<PasswordChecks>) -> Self {
        let mut challenge = Vec::new();
        let realm = auth.realm.replace('\\', "\\\\").replace('"', "\\\"");
        let value = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        encode::field(&mut challenge, "WWW-Authenticate", value.as_bytes());
        Self { users: checks.users(auth.file), permitted: auth.users, challenge, checks }
    }

    fn permits(&self, user: &[u8]) -> bool {
        self.permitted.is_empty() || self.permitted.iter().any(|name| name.as_bytes() == user)
    }

    /// Returns true if `password` is the password of `user`, and if the route permits this user.
    /// Computes the hash of `password` on another thread, unless an earlier request had the same
    /// right password. Fails if too many passwords wait, or if the user file cannot be read.
    async fn fit(
        &self,
        thread: &Thread,
        client: ClientAddress,
        (user, password): (&[u8], &[u8]),
    ) -> Result<bool, Fault> {
        let digest = self.checks.digest(user, password);
        let check = {
            let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
            let looked = users.look(thread.second(), &thread.errors);
            looked.map_err(|error| Fault::us(500, error.to_string()))?;
            if !self.permits(user) {
                // Compute a hash in this case, too, so that the time of the reply does not reveal
                // which users are permitted.
                users.check_of_unknown()
            } else if users.get(user).is_some_and(|user| user.remembers(&digest)) {
                return Ok(true);
            } else {
                users.check_of(user)
            }
        };
        if password.len() > LONGEST_PASSWORD || check.is_empty() {
            return Ok(false);
        }
        let turn = match self.checks.queue.wait(client.ip()).await {
            Ok(turn) => turn,
            Err(refusal) => {
                let fault = match refusal {
                    Refusal::Share => Fault::client(429, "too many passwords of this client wait"),
                    Refusal::Patience => Fault::us(503, "too many passwords are being checked"),
                };
                return Err(fault.limited_by(Limit::PasswordChecks));
            }
        };
        // Another request of the client may have computed the hash meanwhile.
        if check.user.as_ref().is_some_and(|user| user.remembers(&digest)) {
            return Ok(true);
        }
        let (password, known) = (password.to_vec(), check.user.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let is_right = check.is_right(|hash| hash.fits(&password));
            drop(turn);
            is_right
        });
        if !checked.await.map_err(|error| Fault::us(500, error.to_string()))? {
            return Ok(false);
        }
        if let Some(user) = known {
            user.remember(digest);
        }
        Ok(true)
    }
}

/// Returns user and password from the `Authorization` field. Returns `None` if there is no such
/// field, if there are several, or if the field does not have the form of RFC 7617.
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

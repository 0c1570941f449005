//! The rules of a route that let a request in: challenges, tokens, limits, and another server's word.

use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};

use super::{
    Action, Clients, NetworkList, Placeholder, Proxy, RequestField, Secret, Template, Upstream,
    When,
};
use crate::error::Problem;
use crate::key::{AboveZero, Bytes, Resolution};

/// A task that the browser of a new visitor solves before the route answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Number of leading zero bits of the hash that a browser finds, from 1 to 32. Default 16.
    pub difficulty: u8,
    /// The time that a visitor without JavaScript waits; at least a second. `None`: such visitors
    /// are refused. Default 10 s.
    pub delay: Option<Duration>,
    /// The time for which a visitor is not asked again. Default 7 days.
    pub lifetime: Duration,
    /// The requests that are challenged. `None`: all.
    pub when: Option<Box<When>>,
    /// Crawlers that are not challenged if DNS verifies them.
    pub verified: Vec<Crawler>,
    /// Clients that are not challenged.
    pub exempt: Vec<Clients>,
    /// Lists of further clients that are not challenged.
    pub exempt_lists: Vec<Arc<NetworkList>>,
    /// True if paths of feeds are challenged, too.
    pub feeds: bool,
    /// The secret for signatures. `None`: one of the store or of the process.
    pub secret: Option<Secret>,
}

impl Challenge {
    /// Returns true if a client at this address is never challenged. `None`: of a Unix socket.
    pub fn exempts(&self, client: Option<IpAddr>) -> bool {
        self.exempt.iter().any(|clients| clients.contains(client))
            || client.is_some_and(|ip| self.exempt_lists.iter().any(|list| list.contains(ip)))
    }
}

/// A crawler of a search engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Choice)]
#[allow(missing_docs)]
pub enum Crawler {
    /// Google.
    Googlebot,
    /// Bing.
    Bingbot,
    /// Apple.
    Applebot,
    /// Yandex.
    Yandexbot,
    /// Baidu.
    Baiduspider,
    /// Seznam.
    Seznambot,
}

impl Crawler {
    /// Returns words of which the crawler's `User-Agent` contains one, and the domains of the names
    /// that its addresses have. Names in googleusercontent.com are missing, because each machine
    /// that Google rents out has one.
    fn signs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Googlebot => (
                &["Googlebot", "GoogleOther", "Google-InspectionTool", "Storebot-Google"],
                &[".googlebot.com", ".google.com"],
            ),
            Self::Bingbot => (&["bingbot"], &[".search.msn.com"]),
            Self::Applebot => (&["Applebot"], &[".applebot.apple.com"]),
            Self::Yandexbot => (&["Yandex"], &[".yandex.ru", ".yandex.net", ".yandex.com"]),
            Self::Baiduspider => (&["Baiduspider"], &[".baidu.com", ".baidu.jp"]),
            Self::Seznambot => (&["SeznamBot"], &[".seznam.cz"]),
        }
    }

    /// Returns true if a `User-Agent` claims to be this crawler.
    pub fn is_claimed(self, agent: &[u8]) -> bool {
        let (words, _) = self.signs();
        let has = |word: &str| agent.windows(word.len()).any(|part| part == word.as_bytes());
        words.iter().any(|word| has(word))
    }

    /// Returns true if the name of a host, in lower case, is in the domain of the search engine.
    pub fn owns(self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.signs().1.iter().any(|domain| name.ends_with(domain))
    }
}

/// The field in which the host of mod_perl names the user of a permitted request.
const GATE_USER: &str = "Forebay-User";

/// A server, or an application with handlers of mod_perl, that permits or refuses each request of a
/// route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    /// The server: a proxy, FastCGI, SCGI, uwsgi or AJP; or the application of `perl_gate`.
    pub server: Action,
    /// The path and query that Forebay requests from the server. The text begins with a slash. Empty
    /// for an application, which gets those of the client.
    pub target: String,
    /// Names of request fields that the origin gets, each with the name of the answer's field.
    /// Default: none.
    pub copy: Vec<(String, String)>,
    /// The field of the server's answer that names the user. Default: none.
    pub user: Option<String>,
    /// Parameters of the request to a server of FastCGI, SCGI or uwsgi. They replace those of
    /// `server`. Default: none.
    pub params: Vec<(String, Template)>,
    /// Changes to the fields of the request to this server.
    pub request_headers: Vec<RequestField>,
}

impl ForwardAuth {
    /// Returns what lets an application of kind `mod-perl` decide.
    pub fn of_app(name: String) -> Self {
        Self {
            server: Action::App(name),
            target: String::new(),
            copy: Vec::new(),
            user: Some(GATE_USER.to_owned()),
            params: Vec::new(),
            request_headers: Vec::new(),
        }
    }

    /// The name of the application that decides, unless it is a server.
    pub fn app(&self) -> Option<&str> {
        match &self.server {
            Action::App(name) => Some(name),
            _ => None,
        }
    }

    /// The addresses of the server; an application has none.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.server.upstream()
    }
}

/// The way to combine rules about addresses with other rules about the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Satisfy {
    /// A request must meet all rules.
    #[default]
    All,
    /// A request must meet one rule: a permitted address, a password, a token, or the
    /// answer of `forward_auth`.
    Any,
}

/// The algorithms with a shared secret.
pub(crate) const SECRET_ALGORITHMS: [&str; 3] = ["HS256", "HS384", "HS512"];

/// The algorithms with a public key.
pub(crate) const PUBLIC_ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

/// A signed token (RFC 7519) that each request of a route must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// The keys that verify signatures.
    pub keys: JwtKeys,
    /// Names of the algorithms that tokens may use. If empty (the default), all algorithms of the
    /// key's type. Either all of them use a secret, or all use a public key.
    pub algorithms: Vec<String>,
    /// The issuers whose tokens are valid. If empty (the default), any issuer.
    pub issuer: Vec<String>,
    /// The audiences of valid tokens. If empty (the default), any audience.
    pub audience: Vec<String>,
    /// The largest difference between the issuer's clock and the clock of this machine. Default 60
    /// s.
    pub leeway: Duration,
    /// The part of the request that has the token. Default: the field `Authorization`.
    pub source: TokenSource,
    /// Names of request fields that the origin gets, each with its claim.
    pub copy: Vec<(String, String)>,
    /// The claim that names the user.
    pub user: Option<String>,
    /// Claims that a token must have, each with its permitted values.
    pub require: Vec<(String, Vec<String>)>,
}

/// The keys that verify signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwtKeys {
    /// A PEM file with a public key or a certificate. The path is absolute and was a file when the
    /// configuration was loaded.
    Pem(PathBuf),
    /// A secret that the issuer shares with Forebay.
    Secret(Secret),
    /// A file with public keys (JWK Set). The path is absolute and was a file when the
    /// configuration was loaded.
    Set(PathBuf),
    /// A URL with public keys (JWK Set).
    Url(Box<KeyUrl>),
}

/// A URL with public keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUrl {
    /// The server.
    pub proxy: Proxy,
    /// Path and query of the URL. The text begins with a slash.
    pub target: String,
    /// The time after which Forebay reads the keys again. Default 1 h.
    pub refresh: Duration,
}

impl Jwt {
    /// Returns the URL of the keys. Returns `None` if the keys are in a file or in the
    /// configuration.
    pub fn url(&self) -> Option<&KeyUrl> {
        match &self.keys {
            JwtKeys::Url(url) => Some(url),
            _ => None,
        }
    }
}

/// The part of a request that has the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// A field. In `Authorization`, the token follows `Bearer`.
    Header(String),
    /// A cookie.
    Cookie(String),
}

impl TokenSource {
    /// Returns true if the token is in the field `Authorization`.
    pub fn is_authorization(&self) -> bool {
        matches!(self, Self::Header(name) if name.eq_ignore_ascii_case("authorization"))
    }
}

/// A limit on the number of requests with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The largest number of requests in `period`; at least one.
    pub requests: u32,
    /// The period of `requests`; more than zero.
    pub period: Duration,
    /// The number of requests that may arrive earlier than the rate allows.
    pub burst: u32,
    /// The text that selects a counter. Requests with the same text are counted together.
    pub key: Template,
    /// True if requests that arrive earlier wait until the rate admits them.
    pub delay: bool,
}

impl RateLimit {
    /// Returns the time from one request to the next if requests arrive exactly at the rate.
    pub fn interval(&self) -> Duration {
        // The interval is at least a nanosecond, so that the time of the next request always
        // advances.
        (self.period / self.requests).max(Duration::from_nanos(1))
    }

    /// Returns true if the key contains the user, who is known only after authentication.
    pub fn needs_user(&self) -> bool {
        self.key.depends_on(&|value| *value == Placeholder::User)
    }

    /// Returns how early a request of a burst may arrive, compared with the rate: half a second for
    /// `10/s` with a burst of 5.
    pub fn ahead(&self) -> Duration {
        self.interval().saturating_mul(self.burst)
    }
}

/// A limit on the number of requests with the same key that run at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The largest number of requests; at least one.
    pub max: u32,
    /// The text that selects a counter.
    pub key: Template,
}

/// A limit on the speed of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(short = "rate")]
pub struct BandwidthLimit {
    /// The largest number of body bytes per second, such as "100k".
    #[key(as = Bytes, required = "\"100k\"", check = ends)]
    pub rate: u64,
    /// The number of bytes at the start of each reply that are sent without a limit.
    #[key(as = Bytes, default = "0")]
    pub after: u64,
}

fn ends(rate: &u64, span: &Range<usize>) -> Resolution<()> {
    if *rate == 0 {
        return Err(Problem::new(span, "at this speed no reply would end")
            .help("give the bytes per second, such as \"100k\", or leave the limit out"));
    }
    Ok(())
}

/// Time limits of a route for slow clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Table)]
pub struct RouteTimeouts {
    /// The longest time between two reads of a request body. Default: `body_idle` of
    /// [server.timeouts].
    #[key(as = AboveZero)]
    pub body_idle: Option<Duration>,
    /// The longest time that a write waits because the client reads nothing. Default: `write` of
    /// [server.timeouts].
    #[key(as = AboveZero)]
    pub write: Option<Duration>,
}

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

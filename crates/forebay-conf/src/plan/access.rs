//! The rules of a route that let a request in: challenges, tokens, limits, and another server's word.

use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};

use super::{
    Action, Clients, NetworkList, Placeholder, Proxy, Rate, RequestField, Secret, Template,
    TemplatePart, Upstream, When,
};
use crate::error::Problem;
use crate::key::{
    AboveZero, Bytes, Given, Many, Resolution, SharedKey, Text, Whole, no_effect, not_empty,
};

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
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(check = waits_not_too_long)]
pub struct RateLimit {
    /// The largest number of requests in a period, such as "10/s", "100/m", "1000/h" or "5/10s".
    #[key(required = "\"10/s\"")]
    pub rate: Rate,
    /// The number of requests that may arrive earlier than the rate allows. Default: the number in
    /// `rate` minus one.
    pub burst: Option<u32>,
    /// A text with placeholders. Requests with the same text are counted together, and requests
    /// with an empty text are not limited. {client} counts all addresses of an IPv6 network (/64)
    /// as one client.
    #[key(as = SharedKey, default = "{client}")]
    pub key: Template,
    /// Delays requests that arrive earlier than the rate allows, so that they reach the application
    /// at the rate.
    #[key(default = false)]
    pub delay: bool,
}

impl RateLimit {
    /// Returns the time from one request to the next if requests arrive exactly at the rate.
    pub fn interval(&self) -> Duration {
        // The interval is at least a nanosecond, so that the time of the next request always
        // advances.
        (self.rate.period / self.rate.requests).max(Duration::from_nanos(1))
    }

    /// Returns the number of requests that may arrive earlier than the rate allows.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.rate.requests - 1)
    }

    /// Returns true if the key contains the user, who is known only after authentication.
    pub fn needs_user(&self) -> bool {
        self.key.depends_on(&|value| *value == Placeholder::User)
    }

    /// Returns how early a request of a burst may arrive, compared with the rate: half a second for
    /// `10/s` with a burst of 5.
    pub fn ahead(&self) -> Duration {
        self.interval().saturating_mul(self.burst())
    }
}

/// The longest time that a request may wait with `delay`.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn waits_not_too_long(limit: &mut RateLimit, given: &Given<'_, '_>) -> Resolution<()> {
    match given.span("delay") {
        Some(span) if limit.delay && limit.ahead() > LONGEST_WAIT => {
            let longest = limit.ahead().as_secs();
            Err(Problem::new(&span, format!("a request could wait for {longest} s")).help(
                "lower `burst`, so that requests wait for at most 60 s, or leave `delay` out",
            ))
        }
        _ => Ok(()),
    }
}

/// A limit on the number of requests with the same key that run at once.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct ConcurrencyLimit {
    /// The largest number of requests that run at once, from their admission to the last byte of
    /// the reply. A WebSocket counts while it is open.
    #[key(as = Whole<1, 1_000_000>, required = "8")]
    pub max: u32,
    /// A text with placeholders. Requests with the same text are counted together, and requests
    /// with an empty text are not limited. {client} counts all addresses of an IPv6 network (/64)
    /// as one client.
    #[key(as = SharedKey, default = "{client}")]
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

/// A signature that the URL of each request must have.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(check = check_signed)]
pub struct SignedUrl {
    /// The secret that signs URLs, such as "{env.LINK_SECRET}" or "{file.link-secret}". For
    /// "hmac-sha256", it has at least 32 bytes. In a list, each secret is valid, so that you can
    /// replace one.
    #[key(name = "secret", as = Many<Secret>, required = "\"{env.LINK_SECRET}\"", check = some_secrets)]
    pub secrets: Vec<Secret>,
    /// The text that is signed, with placeholders. For "hmac-sha256", a space must separate two
    /// placeholders, so that a signature fits only one URL.
    #[key(default = "{query.expires} {path}", check = contains_the_resource)]
    pub text: Template,
    /// The parameter of the query with the signature, in hexadecimal digits or base64url.
    #[key(as = Text, default = "signature")]
    pub signature: String,
    /// The parameter of the query with the time at which the URL expires, in seconds since 1970.
    /// `text` must contain it. Default: "expires" if `text` contains {query.expires}; otherwise
    /// URLs do not expire.
    #[key(as = Text)]
    pub expires: Option<String>,
    /// The algorithm of the signature: "hmac-sha256", or "md5" for links that were made for nginx's
    /// secure_link. For "md5", the hash is that of `text` followed by `secret`, and {path} is the
    /// decoded path.
    #[key(default = "hmac-sha256")]
    pub algorithm: SignatureAlgorithm,
}

/// The way to sign a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum SignatureAlgorithm {
    /// HMAC with SHA-256.
    #[key("hmac-sha256")]
    HmacSha256,
    /// MD5, as in nginx.
    #[key("md5")]
    Md5,
}

fn some_secrets(secrets: &[Secret], span: &Range<usize>) -> Resolution<()> {
    not_empty(secrets, span, "", "give a secret, such as \"{env.LINK_SECRET}\"")
}

/// Checks that the text contains the requested path or a part of it. Otherwise one signature would
/// open all paths.
fn contains_the_resource(parsed: &Template, span: &Range<usize>) -> Resolution<()> {
    let names_path = |value: &Placeholder| {
        matches!(
            value,
            Placeholder::Path | Placeholder::Uri | Placeholder::Rest | Placeholder::Capture(_)
        )
    };
    if parsed.uses(names_path) {
        return Ok(());
    }
    Err(Problem::new(span, "this text fits every path")
        .label("one signature would open the whole route")
        .help("add {path}, as in \"{query.expires} {path}\""))
}

/// Checks that a space separates two placeholders. Otherwise bytes could move from one value to the
/// next one, and the signature would still fit.
fn is_separated(parsed: &Template, span: &Range<usize>) -> Resolution<()> {
    let mut has_space = true;
    for part in parsed.parts() {
        match part {
            TemplatePart::Text(text) => has_space |= text.contains(' '),
            TemplatePart::Value(_) if !has_space => {
                return Err(Problem::new(span, "no space separates two placeholders")
                    .label("several URLs would have the same signature")
                    .help("write a space between them, as in \"{query.expires} {path}\""));
            }
            TemplatePart::Value(_) => has_space = false,
        }
    }
    Ok(())
}

/// Completes `expires`, which is a part of the signed text: otherwise clients could change it.
fn check_signed(signed: &mut SignedUrl, given: &Given<'_, '_>) -> Resolution<()> {
    let span = |key| given.span(key).unwrap_or_else(|| given.span.clone());
    if signed.algorithm != SignatureAlgorithm::Md5 {
        signed.secrets.iter().try_for_each(|secret| secret.is_long(&span("secret")))?;
        is_separated(&signed.text, &span("text"))?;
    }
    let name = signed.expires.clone().unwrap_or_else(|| "expires".to_owned());
    let is_expiry =
        |value: &Placeholder| matches!(value, Placeholder::Parameter(other) if *other == name);
    match signed.text.uses(is_expiry) {
        true => signed.expires = Some(name),
        false if signed.expires.is_some() => {
            let why = "on a time that `text` does not contain, because clients could change it";
            let help = format!("add {{query.{name}}} to `text`, or leave `expires` out");
            return Err(no_effect(&span("expires"), "expires", why, &help));
        }
        false => {}
    }
    Ok(())
}

//! A route: its conditions on requests, and the action that answers them.

use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_conf_derive::{Choice, Table};

use super::{
    Action, BandwidthLimit, Cache, Challenge, Clients, Compress, ConcurrencyLimit,
    CookieAttributes, Cors, ErrorPages, Expires, Filters, ForwardAuth, Jwt, LogFile, Maintenance,
    Matcher, Mirror, RateLimit, ReplyField, RequestField, Rewrite, RouteTimeouts, Satisfy,
    SignedUrl, Upstream,
};
use crate::error::Problem;
use crate::key::paths::ExistingFile;
use crate::key::{FromText, Many, Resolution, Text, not_empty};

/// A route: conditions on requests, and the action that answers matching requests.
#[derive(Clone, Debug)]
// More than 20 fields: one for each key or group of keys of the table.
pub struct Route {
    /// The name of the route; unique in its site.
    pub name: Option<String>,
    /// The conditions on requests.
    pub matcher: Matcher,
    /// The action that answers matching requests.
    pub action: Action,
    /// Writes the requests to the access log. Default true.
    pub log: bool,
    /// The access log of the route. `None`: the access log of the site.
    pub own_log: Option<LogFile>,
    /// The time that clients may cache the reply: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<Expires>,
    /// The charset that is added to the `Content-Type` of texts without one. It is a token.
    pub charset: Option<String>,
    /// Changes to the fields of a request before the origin gets the request.
    pub request_headers: Vec<RequestField>,
    /// Reply headers to set or add. Headers that frame the message or belong to the connection are
    /// not allowed.
    pub reply_headers: Vec<ReplyField>,
    /// Reply headers to remove, in lower case.
    pub remove_headers: Vec<String>,
    /// The largest request body in bytes, from the route or its site. `None`: the server's limit.
    pub max_body: Option<u64>,
    /// Passes a request for a missing file or script on to the routes below. Default false.
    pub fallback: bool,
    /// The new path of a request for a missing file or script. The search for a route then starts
    /// again at the first route. If `fallback_to` is set, `fallback` is false.
    pub fallback_to: Option<Rewrite>,
    /// The new path of each request, before the action answers the request.
    pub rewrite: Option<Rewrite>,
    /// Stores the part of a reply that a slow client has not read. Default false for
    /// [`Action::Proxy`] and for ASGI applications. Default true for other backends and
    /// applications. Always false for replies that Forebay makes itself.
    pub buffer: bool,
    /// What happens to a request whose client has left. Default [`OnAbort::Cancel`] for
    /// [`Action::Proxy`] and for actions without an application, else [`OnAbort::Finish`].
    pub on_abort: OnAbort,
    /// Compression of replies. Default `None`.
    pub compress: Option<Compress>,
    /// Changes to the bodies of replies. Default: none.
    pub filters: Filters,
    /// Stored replies. Default `None`.
    pub cache: Option<Cache>,
    /// Receives the whole request body before the request is sent to a server. Default true for
    /// applications that speak HTTP/1.1 or AJP. Default false for [`Action::Proxy`],
    /// [`Action::Ajp`], and applications that speak HTTP/2 or ASGI. False if the value makes no
    /// difference.
    pub request_buffering: bool,
    /// The treatment of path parameters by rules: routes above this one that restrict access, or
    /// that answer with `respond` or `redirect`. Default [`PathParameters::Match`] for servers that
    /// may remove parameters: [`Action::Ajp`], [`Action::Proxy`], and programs that speak HTTP or
    /// AJP. Else [`PathParameters::Ignore`].
    pub path_parameters: PathParameters,
    /// The directory of files that a reply may name in `X-Accel-Redirect` or `X-Sendfile`. Forebay
    /// then sends the file. The path is absolute and was a directory when the configuration was
    /// loaded. `None`: those fields have no effect.
    pub sendfile_root: Option<PathBuf>,
    /// True if the origin may choose an internal route with `X-Accel-Redirect`.
    pub internal_redirects: bool,
    /// Pages for errors, from the route and its site.
    pub error_pages: ErrorPages,
    /// The page that is sent instead of all replies, from the route or its site. `None`: the route
    /// is open.
    pub maintenance: Option<Arc<Maintenance>>,
    /// Attributes that cookies of the application get.
    pub cookies: Option<CookieAttributes>,
    /// Web pages of other origins that may use the route. `None`: Forebay leaves CORS to the
    /// application.
    pub cors: Option<Cors>,
    /// The clients and users that may use the route.
    pub access: Access,
    /// The limit on the speed of each reply. Default `None`.
    pub bandwidth_limit: Option<BandwidthLimit>,
    /// Time limits for slow clients. Default: the time limits of the server.
    pub timeouts: RouteTimeouts,
    /// The server that gets copies of the requests. Default `None`.
    pub mirror: Option<Mirror>,
    /// Number of the route's first line in the file of its site, from 1; 0 if the plan was not made
    /// from a file.
    pub line: usize,
    /// The keys of the route that come from defaults and sets.
    pub inherited: Vec<Inherited>,
    /// What was typed for the route, as a number. The default if the plan was not made from a file.
    pub fingerprint: Fingerprint,
}

impl Route {
    /// Returns the servers of the action, of `forward_auth`, of `mirror` and of `jwt`.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        let deciding = self.access.forward_auth.as_ref().and_then(ForwardAuth::upstream);
        let mirror = self.mirror.as_ref().map(|mirror| &mirror.proxy.upstream);
        let keys = self.access.jwt.as_ref().and_then(|jwt| Some(&jwt.url()?.proxy.upstream));
        self.action.upstream().into_iter().chain(deciding).chain(mirror).chain(keys)
    }

    /// Returns true if the route sends files, but none that an `.htaccess` file protects. If the
    /// route has access rules, their author has decided who may read its files.
    pub fn heeds_htaccess(&self) -> bool {
        let Action::Files(files) = &self.action else { return false };
        !files.ignores_htaccess && !self.access.selects_visitors()
    }

    /// Returns true if another route answers a request for a missing file or script.
    pub fn passes_on(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }
}

/// What happens to a request whose client has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum OnAbort {
    /// The request runs to its end, within the time limits of the application, and its output is
    /// dropped.
    Finish,
    /// The request ends if the client cancels it, resets its connection, or can get no more of the
    /// reply. A client that has closed only its sending side gets the reply.
    #[default]
    Cancel,
    /// As "cancel", but a client that closes its sending side counts as gone, too.
    Stop,
}

/// The treatment of path parameters (`;x` in a segment) by rules. A rule is a route above this one
/// that restricts access, or that answers with `respond` or `redirect`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum PathParameters {
    /// A rule applies if it matches the path with parameters or without them.
    Match,
    /// A path with a parameter gets 404.
    Refuse,
    /// Rules treat a parameter as part of the path.
    #[default]
    Ignore,
}

/// The clients and users that may use a route. `satisfy` combines the conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients that may use the route. If empty (the default), all clients may.
    pub allow: Vec<Clients>,
    /// Clients that may not use the route, even if `allow` has them. Default: none.
    pub deny: Vec<Clients>,
    /// Users that may use the route. `None`, the default: no password is needed.
    pub basic_auth: Option<BasicAuth>,
    /// Users that may use the route, with the Digest scheme. `None`, the default: no password is
    /// needed.
    pub digest_auth: Option<DigestAuth>,
    /// A token that each request must have. `None`, the default: no token is needed.
    pub jwt: Option<Jwt>,
    /// A server that permits or refuses each request. `None`, the default: there is no such server.
    pub forward_auth: Option<ForwardAuth>,
    /// The way to combine the rules about addresses, users and `forward_auth`. Default: a request
    /// must meet all rules.
    pub satisfy: Satisfy,
    /// Limits on the number of requests. Default: none.
    pub rate_limits: Vec<RateLimit>,
    /// Limits on the number of requests that run at once. Default: none.
    pub concurrency_limits: Vec<ConcurrencyLimit>,
    /// A signature that each URL must have. Default `None`.
    pub signed_url: Option<SignedUrl>,
    /// A task that browsers of new visitors solve. Default `None`.
    pub challenge: Option<Challenge>,
    /// Methods that the route permits. If empty (the default), all methods.
    pub allow_methods: Vec<String>,
    /// Methods that need no permission: the rules about clients and users do not apply to them.
    /// Default: none.
    pub open_methods: Vec<String>,
    /// True if only internal redirects may lead to the route.
    pub internal: bool,
}

impl Access {
    /// Returns true if a client that [`Self::admits`] accepts needs no password, no token and no
    /// permission of `forward_auth`.
    pub fn suffices_by_address(&self) -> bool {
        let has_rules = !self.allow.is_empty() || !self.deny.is_empty();
        self.satisfy == Satisfy::Any && has_rules
    }

    /// Returns true if the rules name the visitors that may use the route, or leave the choice to
    /// an application. A list of unwanted clients or a limit on requests is no such rule.
    fn selects_visitors(&self) -> bool {
        self.internal
            || !self.allow.is_empty()
            || self.basic_auth.is_some()
            || self.digest_auth.is_some()
            || self.jwt.is_some()
            || self.forward_auth.is_some()
            || self.signed_url.is_some()
    }

    /// Returns true if the route permits the method.
    pub fn permits_method(&self, method: &[u8]) -> bool {
        self.allow_methods.is_empty() || has_method(&self.allow_methods, method)
    }

    /// Returns true if the rules about clients and users do not apply to the method.
    pub fn is_open_to(&self, method: &[u8]) -> bool {
        has_method(&self.open_methods, method)
    }

    /// Returns the value of `Allow` for a method that the route does not permit.
    pub fn allow_field(&self) -> String {
        let get = self.allow_methods.iter().any(|method| method == "GET");
        let head = get && !self.allow_methods.iter().any(|method| method == "HEAD");
        let names = self.allow_methods.iter().map(String::as_str);
        names.chain(head.then_some("HEAD")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the names of request fields that a token or the server of `forward_auth` sets.
    pub fn set_fields(&self) -> impl Iterator<Item = &str> {
        let by_token = self.jwt.iter().flat_map(|jwt| jwt.copy.iter().map(|(name, _)| name));
        let by_server =
            self.forward_auth.iter().flat_map(|auth| auth.copy.iter().map(|(name, _)| name));
        by_token.chain(by_server).map(String::as_str)
    }

    /// Returns true if a request may have an authenticated user. Otherwise `{user}` is always
    /// empty.
    pub fn names_users(&self) -> bool {
        let of_jwt = self.jwt.as_ref().is_some_and(|jwt| jwt.user.is_some());
        let of_server = self.forward_auth.as_ref().is_some_and(|server| server.user.is_some());
        self.basic_auth.is_some() || self.digest_auth.is_some() || of_jwt || of_server
    }

    /// Returns true if a token or the server of `forward_auth` may name the user of a request.
    pub fn names_users_otherwise(&self) -> bool {
        self.jwt.is_some() || self.forward_auth.is_some()
    }

    /// Returns true if `allow` and `deny` admit this client. `None` is a client of a Unix socket,
    /// which has no address. If `deny` is not empty, such a client is admitted only by `unix` in
    /// `allow`.
    pub fn admits(&self, client: Option<IpAddr>) -> bool {
        let is_in = |rule: &[Clients]| rule.iter().any(|clients| clients.contains(client));
        if is_in(&self.deny) {
            return false;
        }
        // The address of a client of a Unix socket is unknown, and `deny` may contain this address.
        let may_be_denied = client.is_none() && !self.deny.is_empty();
        if may_be_denied {
            self.allow.contains(&Clients::Unix)
        } else {
            self.allow.is_empty() || is_in(&self.allow)
        }
    }

    /// Returns true if `allow` and `deny` refuse all clients of Unix sockets, although both lists
    /// contain only networks and so do not mention these clients.
    pub fn refuses_unix(&self) -> bool {
        !self.admits(None) && ![&self.allow, &self.deny].into_iter().flatten().any(Self::is_bare)
    }

    fn is_bare(clients: &Clients) -> bool {
        !matches!(clients, Clients::Network(_))
    }
}

/// Returns true if the list has the method. `GET` includes `HEAD`.
fn has_method(list: &[String], method: &[u8]) -> bool {
    list.iter().any(|one| one.as_bytes() == method || one == "GET" && method == b"HEAD")
}

/// A file of users and their passwords.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct BasicAuth {
    /// A password file of Apache's `htpasswd`, with bcrypt (-B), SHA-crypt (-2, -5) or apr1 (-m).
    /// Forebay reads it again after it has changed.
    #[key(as = ExistingFile, required = "\"htpasswd\"")]
    pub file: PathBuf,
    /// The users of the file that may use the route. Default: all users of the file.
    #[key(default, as = Many<UserName>, check = some_user)]
    pub users: Vec<String>,
    /// The name that browsers show when they ask for the password.
    #[key(as = Text, default = "restricted")]
    pub realm: String,
}

/// A file of users and the hashes of their passwords for Digest authentication.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
pub struct DigestAuth {
    /// A file of Apache's `htdigest`: `user:realm:hash` on each line, with MD5 or SHA-256. Forebay
    /// reads it again after it has changed.
    #[key(as = ExistingFile, required = "\"htdigest\"")]
    pub file: PathBuf,
    /// The realm of the users in the file. Browsers show it when they ask for the password.
    #[key(as = Text, required = "\"staff\"", check = has_no_colon)]
    pub realm: String,
}

fn has_no_colon(realm: &str, span: &Range<usize>) -> Resolution<()> {
    if realm.contains(':') {
        return Err(Problem::new(span, "a realm has no colon")
            .help("a colon separates the parts of a line of the file"));
    }
    Ok(())
}

fn some_user(users: &[String], span: &Range<usize>) -> Resolution<()> {
    not_empty(
        users,
        span,
        ", so that no user may log in",
        "name users of the file, or leave the key out to permit all",
    )
}

/// The name of a user in a password file.
struct UserName;

impl FromText<String> for UserName {
    fn from_text(name: &str, span: &Range<usize>) -> Resolution<String> {
        if name.contains(':') {
            return Err(Problem::new(span, format!("\"{name}\" is not the name of a user"))
                .help("name a user as in the file: the text before the colon"));
        }
        Ok(name.to_owned())
    }
}

/// A test of a site's routes: a request and its expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The method of the request.
    pub method: String,
    /// The target of the request: a URL, or a path with its query for the first host of the site.
    pub target: String,
    /// The expected answer.
    pub answer: ExpectedAnswer,
}

/// An expected answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    /// A status, and perhaps the `Location` of the reply.
    Status(u16, Option<String>),
    /// The kind of route that answers (`proxy`, `app`, ...), and perhaps the name of its
    /// application.
    Kind(&'static str, Option<String>),
    /// The route with this name.
    Route(String),
}

/// A key that a site or route gets from defaults or from a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The key, with the names of the tables in the route that contain it:
    /// `set_headers.X-Frame-Options`.
    pub key: String,
    /// The value as typed, with placeholders such as `{env.TOKEN}`.
    pub typed: String,
    /// The table that the key comes from: `[defaults]`, `[site.defaults]` or `[set.NAME]`.
    pub table: String,
    /// The line of the value in its file, from 1.
    pub line: usize,
    /// The included file that contains the value; `None` for the configuration file itself.
    pub file: Option<String>,
}

/// A number for everything that was typed for a route, with defaults, sets, groups and maps. It is
/// the same after a restart, on another machine and in a later version of Forebay, so files of a
/// disk cache may carry it. Names of Rust types and fields do not count.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The hash FNV-1a of 128 bits (Fowler, Noll and Vo): stable, and good enough for texts that
    /// only administrators write.
    pub(crate) fn of(text: &str) -> Self {
        const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        Self(text.bytes().fold(OFFSET_BASIS, step))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Without the number, because it says nothing to a reader.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_published_vectors() {
        assert_eq!(Fingerprint::of("").to_string(), "6c62272e07bb014262b821756295c58d");
        assert_eq!(Fingerprint::of("a").to_string(), "d228cb696f1a8caf78912b704e4a8964");
    }
}

//! The keys of a route, as the user types them.

use std::collections::BTreeMap;

use forebay_conf_derive::{Choice, Table};
use serde_json::json;

use super::access::{Challenge, ForwardAuth, Jwt};
use super::log::LogFile;
use super::mirror::Mirror;
use super::reply::{ErrorPages, Maintenance, Replace, ReplyFields, RequestFields};
use super::upstream::{Ajp, Fastcgi, Proxy, Scgi, Uwsgi};
use crate::key::{
    AllOrList, At, BoolOr, Cx, Given, Many, OneOrMany, PathRegex, Placed, Resolution, Size, Switch,
    TextOr, Time,
};
use crate::plan::{
    BandwidthLimit, BasicAuth, Cache, Clients, Compress, ConcurrencyLimit, CookieAttributes, Cors,
    DigestAuth, Expires, OnAbort, PathParameters, ProcessLimits, RateLimit, Regex, RouteTimeouts,
    Satisfy, SignedUrl, Ssi, Symlinks, When,
};

/// Conditions on the request, and exactly one answer: files, cgi, fastcgi, scgi, uwsgi, ajp, proxy,
/// app, respond or redirect. A route with `rewrite` may have no answer.
#[derive(Debug, Default, Table)]
#[table(begin = begin, check = mark_whole, extend = json!({ "oneOf": [
    { "required": ["files"] },
    { "required": ["cgi"] },
    { "required": ["fastcgi"] },
    { "required": ["scgi"] },
    { "required": ["uwsgi"] },
    { "required": ["ajp"] },
    { "required": ["proxy"] },
    { "required": ["app"] },
    { "required": ["respond"] },
    { "required": ["redirect"] },
    { "required": ["rewrite"], "not": { "anyOf": [
        { "required": ["files"] },
        { "required": ["cgi"] },
        { "required": ["fastcgi"] },
        { "required": ["scgi"] },
        { "required": ["uwsgi"] },
        { "required": ["ajp"] },
        { "required": ["proxy"] },
        { "required": ["app"] },
        { "required": ["respond"] },
        { "required": ["redirect"] },
    ] } },
] }))]
// More than 20 fields: one for each key of the table, because the schema is
// generated from the fields. Inner structs with `serde(flatten)` would lose the positions of
// errors.
pub struct Route {
    /// A name of the route, for `expect` and `explain`. Default: none.
    pub name: Option<At<String>>,
    /// The names of sets ([set.NAME]). The route takes the keys of these sets that it does not have
    /// itself. If several sets have a key, the last such set in the list counts. Default: none.
    #[expect(dead_code, reason = "read from the tree")]
    pub r#use: Option<At<OneOrMany<String>>>,
    /// A path such as "/favicon.ico", or "/x/*" for all paths that begin with "/x/" ("/x" itself
    /// does not match).
    pub path: Option<At<OneOrMany<String>>>,
    /// Several paths. The route matches if one of them does.
    pub paths: Option<At<OneOrMany<String>>>,
    /// Ends of paths, such as ".php". The route matches if the path ends in one of them. If the
    /// route runs scripts, path info may follow the path of an existing script: "/a.php/b".
    pub suffix: Option<At<OneOrMany<String>>>,
    /// Compares `suffix` without the case of ASCII letters: ".php" also matches "/x.PHP". If this
    /// route runs scripts, no `files` route then sends the source of x.PHP. Default: false.
    pub suffix_ignore_case: Option<At<bool>>,
    /// A regular expression that the decoded path must match, in addition to `path` and `suffix`,
    /// such as `^/wiki/(?<title>.+)$`. A named group is a placeholder: `{title}`. With "~*" before
    /// the expression, case is ignored. With "!~" or "!~*", the path must not match. Default: none.
    #[key(as = PathRegex)]
    pub path_regex: Option<Regex>,
    /// A route for each user whose directory this pattern matches, such as "/home/*/public_html". The
    /// name in place of `*` is a user, who owns the directory, and replaces {owner} in all texts of
    /// the route: path = "/~{owner}/*", files = "/home/{owner}/public_html". Routes come and go with
    /// their directories, without a reload. Default: none.
    pub users_from: Option<At<String>>,
    /// Methods, such as "GET" (which includes HEAD). The route matches if the request has one of
    /// them.
    pub methods: Option<At<OneOrMany<String>>>,
    /// Conditions on other parts of the request, such as { header.X-Beta = "1" }. The route matches
    /// if all of them are met. Default: none.
    pub when: Option<When>,

    /// Answers with files: a directory, or a table with `root`.
    pub files: Option<At<TextOr<Files>>>,
    /// Answers with CGI scripts: a directory, or a table with `dir`.
    pub cgi: Option<At<TextOr<Cgi>>>,
    /// Passes requests to a FastCGI application.
    pub fastcgi: Option<At<Fastcgi>>,
    /// Passes requests to an SCGI application.
    pub scgi: Option<At<Scgi>>,
    /// Passes requests to a uwsgi application.
    pub uwsgi: Option<At<Uwsgi>>,
    /// Passes requests to servlet containers (Tomcat) with AJP: an address, or a table with `to`.
    pub ajp: Option<At<TextOr<Ajp>>>,
    /// Passes requests to HTTP servers: a URL, or a table with `to`.
    pub proxy: Option<At<TextOr<Proxy>>>,
    /// Passes requests to the application [app.NAME] that this name selects.
    pub app: Option<At<String>>,
    /// Answers with a fixed reply: its text, or a table with `status`, `body` or `robots`, and
    /// `content_type`.
    pub respond: Option<At<TextOr<Respond>>>,
    /// Answers with a redirect: its target, or a table with `to` and `status`.
    pub redirect: Option<At<TextOr<Redirect>>>,
    /// The new path of the request, and a new query if the text has a `?`. Placeholders are
    /// possible. The client's query is appended, unless the text has {query} or {uri} or ends in
    /// `?`. If the route has an answer, such as `fastcgi`, that answer gets the new path. Otherwise
    /// Forebay searches the routes again. The access rules of both paths apply. Default: none.
    pub rewrite: Option<At<String>>,

    /// Addresses or networks ("10.0.0.0/8") of clients that may use the route; all others get 403.
    /// "unix" allows clients of a unix: socket, which have no address. "all" allows every client.
    /// Default: all clients may.
    #[key(default, as = Many<Clients>, check = Clients::some)]
    pub allow: Vec<Clients>,
    /// Addresses or networks of clients that may not use the route, even if `allow` has them. "all"
    /// refuses every client. An address or network also refuses clients of a unix: socket, unless
    /// `allow` has "unix". Default: none.
    #[key(default, as = Many<Clients>, check = Clients::some)]
    pub deny: Vec<Clients>,
    /// Requires a user name and a password (Basic authentication): a table with `file` and `realm`.
    /// Default: no password is needed.
    pub basic_auth: Option<At<BasicAuth>>,
    /// Requires a user name and a password with Digest authentication, for old sites: a table with
    /// `file` and `realm`. Default: no password is needed.
    pub digest_auth: Option<At<DigestAuth>>,
    /// A server that permits or refuses each request, such as oauth2-proxy or Authelia: its URL, or
    /// a table. If the server answers with a status of 2xx, the request passes. Any other answer
    /// goes to the client. Default: none.
    pub forward_auth: Option<At<TextOr<ForwardAuth>>>,
    /// An application of kind "mod-perl" whose access, authentication and authorization handlers
    /// permit or refuse each request, as `PerlAccessHandler` does on any location of Apache: its
    /// name. What the handlers set in `headers_in`, and the user, go to the route's answer. Their
    /// refusal or redirect goes to the client. Default: none.
    pub perl_gate: Option<At<String>>,
    /// Requires a signed token (JWT) in the `Authorization` header, in another header or in a
    /// cookie: a table with `key`, `secret` or `jwks`. Default: no token is needed.
    pub jwt: Option<At<Jwt>>,
    /// Requires a signature in the URL of each request, like nginx's secure_link: a table with
    /// `secret`. A wrong signature gets 403, and an expired URL gets 410. `satisfy` does not change
    /// this. Default: no signature is needed.
    pub signed_url: Option<SignedUrl>,
    /// Lets browsers of new visitors solve a task before the route answers, so that crowds of
    /// crawlers pay for each address: true, or a table. A visitor who has answered gets a cookie.
    /// Never asks for /robots.txt, /favicon.ico and paths below /.well-known/. Neither
    /// `satisfy` nor `open_methods` changes this. Default: false.
    pub challenge: Option<At<BoolOr<Challenge>>>,
    /// The methods that the route permits, such as ["GET", "POST"] ("GET" includes HEAD). Requests
    /// with another method get 405 with `Allow`. In contrast, a route with `methods` leaves
    /// requests with other methods to later routes. Default: all methods.
    pub allow_methods: Option<At<OneOrMany<String>>>,
    /// Methods that need no permission, such as "GET" (which includes HEAD): `allow`, `deny`,
    /// passwords, `jwt`, `forward_auth` and `perl_gate` of the route apply only to all other
    /// methods. Default: the rules apply to all methods.
    pub open_methods: Option<At<OneOrMany<String>>>,
    /// Hides the route from clients: their requests get 404. Only `rewrite`, `fallback_to`, an
    /// index script, replies of routes with `internal_redirects`, and `include` of pages (`ssi`)
    /// lead to it. Default: false.
    pub internal: Option<At<bool>>,
    /// With "all", a request must meet all access rules. With "any", it must meet one of them: the
    /// address rules (`allow` and `deny`), `basic_auth`, `digest_auth`, `jwt`, `forward_auth` or
    /// `perl_gate`. Default: "all".
    pub satisfy: Option<At<Satisfy>>,
    /// Limits the number of requests with the same key, such as those of one client, over all
    /// threads: a table with `rate`, or a list of such tables. Further requests get 429 with
    /// Retry-After. Limits whose key does not contain {user} apply before passwords are checked.
    /// Default: no limit.
    #[key(default, as = Many<RateLimit>)]
    pub rate_limit: Vec<RateLimit>,
    /// Limits the number of requests with the same key that run at once, such as those of one
    /// client, over all threads: a table with `max`, or a list of such tables. Further requests get
    /// 429. Default: no limit.
    #[key(default, as = Many<ConcurrencyLimit>)]
    pub concurrency_limit: Vec<ConcurrencyLimit>,
    /// Limits the speed of each reply: the bytes per second, such as "100k", or a table with `rate`
    /// and `after`. A client with several requests at once gets this speed for each of them.
    /// Default: no limit.
    pub bandwidth_limit: Option<BandwidthLimit>,
    /// Time limits of this route for slow clients, such as those with large uploads. Default: those
    /// of [server.timeouts].
    pub timeouts: Option<RouteTimeouts>,

    /// Sends a copy of each request to another server, whose replies Forebay drops: the server's
    /// URL, or a table. Only requests that pass the access rules are copied. Default: no copies.
    pub mirror: Option<At<TextOr<Mirror>>>,
    /// Writes the requests of the route to the access log of the site: true or false. Or a table
    /// for a separate log of this route. Default: true.
    pub log: Option<At<BoolOr<LogFile>>>,
    /// The time that clients may cache the reply, such as "30d", or a table with times by media
    /// type. Default: no caching header is added.
    pub expires: Option<Expires>,
    /// Request headers to set before the request reaches an application or server: names and values
    /// with placeholders, such as "X-Real-IP" = "{client}". An empty value removes the header. The
    /// client's own header of that name is removed, even if it has underscores instead of hyphens.
    /// With a table of `value` and `add = true`, the client's headers stay and the value is added.
    #[key(default)]
    pub request_headers: RequestFields,
    /// The charset of texts, such as "utf-8". Forebay adds it to the Content-Type of text/*,
    /// JavaScript and XML if the type has no charset, also in replies of applications and servers.
    /// Default: no charset is added.
    pub charset: Option<At<String>>,
    /// Reply headers to set, with placeholders. Each replaces the header of the same name from
    /// the application or server. Replies with a status of 400 or more stay as they are, unless
    /// `always` is true. Instead of a value, a header may have a table with `value` and `always`.
    #[key(default)]
    pub set_headers: ReplyFields,
    /// Reply headers to add to those of the application or server. Apart from that, this key is
    /// like `set_headers`.
    #[key(default)]
    pub add_headers: ReplyFields,
    /// Names of reply headers to remove from all replies, with any status.
    #[key(default)]
    pub remove_headers: Vec<At<String>>,
    /// Applies `set_headers` and `add_headers` also to replies with a status of 400 or more.
    /// Default: false.
    pub always: Option<At<bool>>,
    /// Pages for errors: files by status ("404") or class ("5xx"), or tables with `file` and
    /// `status`. Forebay replaces placeholders such as {status}, {reason}, {host} and {path}, and
    /// escapes their values in .html and .json files. Default: those of the site.
    #[key(default)]
    pub error_pages: ErrorPages,
    /// Also replaces the error replies of the application or server with `error_pages`. Default:
    /// that of the site.
    pub intercept: Option<At<bool>>,
    /// Closes the route: all requests get the file `page` of this table, with status 503. With
    /// false, the route stays open while its site is closed. Default: that of the site.
    pub maintenance: Option<At<BoolOr<Maintenance>>>,
    /// Attributes that all cookies of the application or server get. Default: they stay as they are.
    pub cookies: Option<CookieAttributes>,
    /// Lets web pages of other origins use the route (CORS): a table with `origins`. Forebay
    /// answers preflight requests before it checks access rules, and replaces the CORS headers of
    /// the application. Default: browsers let no page of another origin read the replies.
    pub cors: Option<Cors>,
    /// The largest request body, or "unlimited". Default: that of the site.
    pub max_body: Option<Size>,
    /// Passes a request for a missing file or script on to later routes, like nginx's
    /// try_files. For `files`, `cgi`, `fastcgi` without `mount`, and `app` of kind cgi-bin,
    /// perl-cgi, python-cgi or php. Default: false.
    pub fallback: Option<At<bool>>,
    /// The path that answers a request for a missing file or script: "/index.php" for an
    /// application with one entry script, "/index.html" for a single-page application. Placeholders
    /// are possible: "/doku.php?id={rest}". The client's query is appended, unless the text has
    /// {query} or {uri} or ends in `?`. Only routes that may have `fallback` may have this key.
    /// Default: none.
    pub fallback_to: Option<At<String>>,
    /// Stores the part of a reply that a slow client has not read, in memory and then in a file.
    /// The application is then free for other requests. Does not apply to event streams, nor to
    /// replies with `X-Accel-Buffering: no`. Default: true for `cgi`, `fastcgi`, `scgi`, `uwsgi`,
    /// `ajp` and `app`, false for `proxy` and for an `app` of the kind asgi.
    pub buffer: Option<At<bool>>,
    /// What happens to a request whose client has left: "finish", "cancel" or "stop". Event streams
    /// and gRPC calls end with their client in any case. Default: "finish" for `cgi`, `fastcgi`,
    /// `scgi`, `uwsgi`, `ajp` and `app`, "cancel" for `proxy` and for `app` of kind asgi.
    pub on_abort: Option<At<OnAbort>>,
    /// Compresses replies for clients that accept a content coding: true, or a table. Default:
    /// false.
    #[key(as = Switch<Compress>)]
    pub compress: Option<Option<Compress>>,
    /// Replaces literal texts in the bodies of replies, such as the addresses of an old site: a table
    /// with `texts`, or false. Default: bodies stay as they are.
    pub replace: Option<At<BoolOr<Replace>>>,
    /// Evaluates the commands of pages (server-side includes), such as
    /// `<!--#include virtual="/menu.html" -->`: true, or a table. Default: false.
    #[key(as = Placed<Switch<Ssi>>)]
    pub ssi: Option<At<Option<Ssi>>>,
    /// Stores replies, and answers later requests with them (RFC 9111): true, or a table. For
    /// `cgi`, `fastcgi`, `scgi`, `uwsgi`, `ajp`, `proxy` and `app`. Default: false.
    #[key(as = Placed<Switch<Cache>>)]
    pub cache: Option<At<Option<Cache>>>,
    /// Receives the whole request body before Forebay sends the request to a server. For `proxy`,
    /// `ajp`, and `app` of kind asgi or of kind command that speaks http, h2c or ajp. All other
    /// routes that read bodies always do this. Default: true for an `app` that speaks http or ajp,
    /// else false.
    pub request_buffering: Option<At<bool>>,
    /// The treatment of path parameters (`;x` in a segment) by access rules. Java servers remove
    /// such parameters from paths. "match": a rule applies if it matches the path with parameters
    /// or without them. "refuse": a path with a parameter gets 404. "ignore": rules treat a
    /// parameter as part of the path. For `ajp`, `proxy` and `app` of kind command that speaks
    /// http, h2c or ajp. Default: "match".
    pub path_parameters: Option<At<PathParameters>>,
    /// The directory of files that a reply may name in X-Accel-Redirect or X-Sendfile. Forebay then
    /// sends the file instead of the reply. For `cgi`, `fastcgi`, `scgi`, `uwsgi`, `ajp`, `proxy`
    /// and `app`. Default: those headers have no effect.
    pub sendfile_root: Option<At<String>>,
    /// If a reply has the field X-Accel-Redirect, the route with `internal` that matches the
    /// field's path answers instead. A script's `Location: /path` may also lead to such a route.
    /// For the same routes as `sendfile_root`. Default: false.
    pub internal_redirects: Option<At<bool>>,
    /// True if each key has a right value, so that rules over several keys can be applied.
    #[key(none)]
    pub is_whole: bool,
}

fn begin(cx: &Cx<'_>) {
    cx.names.borrow_mut().captures.clear();
}

fn mark_whole(route: &mut Route, _: &Given<'_, '_>) -> Resolution<()> {
    route.is_whole = true;
    Ok(())
}

/// Answers with files.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["root"] }))]
pub struct Files {
    /// The directory of the files.
    pub root: Option<At<String>>,
    /// Names of index files, tried in turn for a directory. Default: ["index.html"].
    pub index: Option<At<OneOrMany<String>>>,
    /// Sends a listing of a directory that has no index file: true, or a table with `template`.
    /// Clients that prefer `application/json` get the listing as JSON. Default: false.
    pub listing: Option<At<BoolOr<Listing>>>,
    /// Sends files and directories whose names begin with a dot. Otherwise Forebay treats them as
    /// missing, except `.well-known`. Default: false.
    pub hidden: Option<bool>,
    /// The symbolic links that Forebay follows. Default: "owner".
    pub follow_symlinks: Option<Symlinks>,
    /// Sends FILE.br, FILE.zst or FILE.gz instead of FILE to clients that accept the coding: true,
    /// or a list of endings such as ["br", "gz"]. The preferred ending comes first. Default: false.
    pub precompressed: Option<At<AllOrList<Precompressed>>>,
    /// Languages that may end names of files, as in index.html.de: tags such as ["en", "de",
    /// "pt-br"], at most 64. For /index.html, Forebay sends the variant that the client prefers
    /// (`Accept-Language`). The first language is the default. Default: none.
    pub languages: Option<At<OneOrMany<String>>>,
    /// Ends that a file's name may have more than the path, such as [".html"]: /about then sends
    /// about.html if there is no file named about. At most 8, tried in turn. Default: none.
    pub extensions: Option<At<OneOrMany<String>>>,
    /// Media types by the end of a file's name, without regard to case, such as { ".apk" =
    /// "application/vnd.android.package-archive" }. The longest end of the name counts: ".tar.gz"
    /// before ".gz". These types have precedence over the built-in types. Default: only the
    /// built-in types.
    #[key(default)]
    pub types: BTreeMap<String, At<String>>,
    /// The media type of files whose type is unknown. With "", they have no Content-Type. Default:
    /// "application/octet-stream".
    pub default_type: Option<At<String>>,
    /// Allows later routes to run the scripts in this directory. "below" allows all later script
    /// routes. "refuse" allows none: scripts get 404. Default: allows a later route only if this
    /// route matches all requests of the later route, which would otherwise never run.
    pub scripts: Option<ScriptsBelow>,
    /// What happens to a file that Apache would not send to everybody, because of an `.htaccess`
    /// file in its directory or above, up to `root`. "refuse" answers 403, and logs the line of the
    /// file. "ignore" sends the file. Has no effect on routes with access rules of their own.
    /// Default: "refuse".
    pub htaccess: Option<Htaccess>,
    /// The largest number of ranges in one request, at most 1000. A request for more ranges gets
    /// the whole file. 0: ranges are ignored. Default: 16.
    pub max_ranges: Option<At<usize>>,
}

/// Sends listings with a page of your own.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "required": ["template"] }))]
pub struct Listing {
    /// An HTML file of at most 256 KiB with placeholders: {path}, {parent}, {sort.name},
    /// {sort.size}, {sort.time}, {sort}, {order}, {note}. For each entry, Forebay repeats the part
    /// between {entries} and {/entries}, with {name}, {href}, {size}, {bytes}, {modified} and {kind}.
    pub template: Option<At<String>>,
}

/// Selects the later script routes that may run scripts in the directory of a `files` route.
#[derive(Clone, Copy, Debug, Choice)]
pub enum ScriptsBelow {
    /// All later script routes.
    Below,
    /// No script route.
    Refuse,
}

/// What happens to files that an `.htaccess` file protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Htaccess {
    /// They get 403.
    Refuse,
    /// They are sent.
    Ignore,
}

/// A compressed sibling of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Precompressed {
    /// Brotli.
    Br,
    /// Zstandard.
    Zst,
    /// Gzip.
    Gz,
}

/// Answers with CGI scripts, with one process for each request.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "oneOf": [{ "required": ["dir"] }, { "required": ["program"] }] }))]
pub struct Cgi {
    /// The directory of the scripts.
    pub dir: Option<At<String>>,
    /// One program that answers all paths of the route, instead of `dir`, like Apache's
    /// ScriptAlias. PATH_INFO is the part of the path that the route's `*` matched.
    pub program: Option<At<String>>,
    /// The longest time from the start of the script to the last byte of its reply. Default: "60s".
    pub timeout: Option<Time>,
    /// The largest number of processes at the same time. Further requests wait. Default: 64.
    pub max_processes: Option<At<usize>>,
    /// The largest size of one reply, including its head. A longer reply is cut off. Default: no
    /// limit.
    pub max_output: Option<Size>,
    /// Variables added to those of the request. They replace variables of the request with the same
    /// name.
    #[key(default)]
    pub env: BTreeMap<String, At<String>>,
    /// The user that the scripts run as, with the groups of that user. Needs root. Default:
    /// `app_user` of `[server]`.
    pub user: Option<At<String>>,
    /// The group that the scripts run as, without any other group. Needs root. Default: the groups
    /// of `user`.
    pub group: Option<At<String>>,
    /// Resource limits of each process. Default: those of Forebay.
    #[key(default)]
    pub limits: ProcessLimits,
}

/// Answers with a fixed text.
#[derive(Debug, Default, Table)]
pub struct Respond {
    /// The status code. 444 closes the connection without a reply. Default: 200.
    pub status: Option<At<u16>>,
    /// The text. Default: empty; for a status from 400, the error page of the status, or a short
    /// page.
    pub body: Option<At<String>>,
    /// Instead of `body`: rules for crawlers, as the text of `/robots.txt`. A word such as "no-ai"
    /// stands for the file /etc/forebay/robots/no-ai.txt, or else
    /// /usr/share/forebay/robots/no-ai.txt. Other texts stand for themselves, and several follow
    /// each other.
    pub robots: Option<At<OneOrMany<String>>>,
    /// The media type of the text. Default: "text/plain; charset=utf-8".
    pub content_type: Option<At<String>>,
}

/// Answers with a redirect.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "oneOf": [{ "required": ["to"] }, { "required": ["file"] }] }))]
pub struct Redirect {
    /// The target: a URL, or a path that begins with a slash. Placeholders are possible, such as
    /// {host}, {path}, {query}, {uri} (path and query) and {rest} (the part of the path that the
    /// `*` matched). The client's query is appended, unless the text has {query} or {uri} or ends
    /// in `?`.
    pub to: Option<At<String>>,
    /// A file with many redirects, instead of `to`. Each line has an old path, a new path or URL,
    /// and optionally a status. Requests for other paths go on to later routes.
    pub file: Option<At<String>>,
    /// The status code: 301, 302, 303, 307 or 308. Default: 302; with `file` it is 301.
    pub status: Option<At<u16>>,
}

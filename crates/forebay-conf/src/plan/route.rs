//! A route: which requests it takes and what answers them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Ajp, Clients, Compress, ContentCoding, Matcher, ProcessLimits, Proxy, Upstream};

/// Which requests it takes and what answers them.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which requests it takes.
    pub matcher: Matcher,
    /// What answers them.
    pub action: Action,
    /// Whether its requests go to the access log. Default true.
    pub log: bool,
    /// How long clients may keep the reply: `Expires` and `Cache-Control: max-age`.
    pub expires: Option<Duration>,
    /// Reply headers to set, in place of what the origin sent. Names and values are valid, and
    /// no name is one that frames the message or belongs to the connection.
    pub set_headers: Vec<(String, String)>,
    /// Reply headers to leave out, in lower case.
    pub remove_headers: Vec<String>,
    /// The largest request body in bytes, from the route or its site. `None`: the server's limit.
    pub max_body: Option<u64>,
    /// Whether a request that the origin has nothing for goes on to the routes below: no such
    /// file, no such script. Default false.
    pub fallback: bool,
    /// The path that such a request is routed by instead, from the first route on. Begins with a
    /// slash and is normal; `fallback` is false then.
    pub fallback_to: Option<String>,
    /// Whether what a slow client does not take of a reply is kept for it. Default true for what runs
    /// in processes (CGI, FastCGI, SCGI, uwsgi, AJP, applications), false for [`Action::Proxy`]; never for
    /// what answers by itself.
    pub buffer: bool,
    /// Which replies are compressed as they are sent. Default `None`: none.
    pub compress: Option<Compress>,
    /// Whether a request's body is taken in whole before an HTTP server is sent it. Default true for
    /// applications that speak HTTP, false for [`Action::Proxy`] and [`Action::Ajp`]; false where it makes no difference.
    pub request_buffering: bool,
    /// The treatment of path parameters by the rules above this route. Default [`PathParameters::Match`]
    /// for what may drop parameters: [`Action::Ajp`], [`Action::Proxy`], and programs that speak HTTP or
    /// AJP; else [`PathParameters::Ignore`].
    pub path_parameters: PathParameters,
    /// Where the origin may have files sent from, by `X-Accel-Redirect` or `X-Sendfile`.
    /// Absolute; a directory at the time of loading. `None`: those fields mean nothing.
    pub sendfile_root: Option<PathBuf>,
    /// Who may use it.
    pub access: Access,
    /// The line of the file that the route begins on, from 1; 0 where there is no file.
    pub line: usize,
}

impl Route {
    /// Whether a request that the origin has nothing for is answered by another route.
    pub fn passes_on(&self) -> bool {
        self.fallback || self.fallback_to.is_some()
    }
}

/// The treatment of path parameters (`;x` in a segment) by rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathParameters {
    /// A rule holds for the path with and without parameters.
    Match,
    /// A path with a parameter is refused.
    Refuse,
    /// A parameter is part of the path.
    #[default]
    Ignore,
}

/// Who may use a route. All of it has to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Clients that may use it; empty, the default: all.
    pub allow: Vec<Clients>,
    /// Clients that may not, whatever `allow` says. Default: none.
    pub deny: Vec<Clients>,
    /// Users that may use it. `None`, the default: no one is asked.
    pub basic_auth: Option<BasicAuth>,
}

impl Access {
    /// Returns true if a client at this address may use it. `None` is a client of a Unix socket, which
    /// has no address: rules by address refuse it, unless `allow` names such clients.
    pub fn admits(&self, client: Option<IpAddr>) -> bool {
        let is_in = |rule: &[Clients]| rule.iter().any(|clients| clients.contains(client));
        if is_in(&self.deny) {
            return false;
        }
        // An address that `deny` names may be the one of this client.
        let may_be_denied = client.is_none() && !self.deny.is_empty();
        match may_be_denied {
            true => self.allow.contains(&Clients::Unix),
            false => self.allow.is_empty() || is_in(&self.allow),
        }
    }

    /// Returns true if it has a rule about addresses that clients of Unix sockets never fulfil.
    pub fn refuses_unix(&self) -> bool {
        !self.admits(None) && ![&self.allow, &self.deny].into_iter().flatten().any(Self::is_bare)
    }

    fn is_bare(clients: &Clients) -> bool {
        !matches!(clients, Clients::Network(_))
    }
}

/// Users and their passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// Absolute; a file at the time of loading.
    pub file: PathBuf,
    /// What browsers show; without control characters. Default `restricted`.
    pub realm: String,
}

/// What answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Files of a directory.
    Files(Files),
    /// Scripts of a directory, a process for each request.
    Cgi(Cgi),
    /// A FastCGI application that listens by itself.
    Fastcgi(Fastcgi),
    /// An SCGI or uwsgi application that listens by itself.
    AppServer(AppServer),
    /// Servlet containers.
    Ajp(Ajp),
    /// HTTP servers.
    Proxy(Proxy),
    /// An application of [`super::Plan::apps`], by name.
    App(String),
    /// A fixed reply.
    Respond(Respond),
    /// A redirection.
    Redirect(Redirect),
}

impl Action {
    /// The servers that requests are passed to, where they are of the route or of a group.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&fastcgi.upstream),
            Self::AppServer(server) => Some(&server.upstream),
            Self::Ajp(ajp) => Some(&ajp.upstream),
            Self::Proxy(proxy) => Some(&proxy.upstream),
            _ => None,
        }
    }
}

/// Files of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Absolute; a directory at the time of loading.
    pub root: PathBuf,
    /// Names tried in turn where a directory is asked for. Default `index.html`; may be empty.
    pub index: Vec<String>,
    /// Whether a directory without an index is listed. Default false.
    pub listing: bool,
    /// Whether names that begin with a dot are there; `.well-known` always is. Default false.
    pub hidden: bool,
    /// Which symbolic links are followed. Default [`Symlinks::Owner`], as Apache's
    /// SymLinksIfOwnerMatch.
    pub follow_symlinks: Symlinks,
    /// Compressed siblings that are sent in place of a file, the preferred first. Default none.
    pub precompressed: Vec<ContentCoding>,
    /// Ranges that one request may ask for, at most 1000. Default 16; 0: none.
    pub max_ranges: usize,
    /// The script routes below that may run what this route takes first.
    pub scripts: ScriptsBelow,
}

/// The script routes below a route of files that may run what it takes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptsBelow {
    /// Each script route whose every request this route takes first: it would run nothing otherwise.
    #[default]
    Covered,
    /// All.
    All,
    /// None.
    Nothing,
}

/// Which symbolic links below a root are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Symlinks {
    /// All.
    Always,
    /// Those of root, and those whose owner also owns what they lead to.
    #[default]
    Owner,
    /// None.
    Never,
}

/// Scripts of a directory, or one program, a process for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgi {
    /// Absolute; a directory at the time of loading.
    pub dir: PathBuf,
    /// The program for all paths, in `dir`; a file at the time of loading. `None`: the path names
    /// the script.
    pub program: Option<PathBuf>,
    /// From start to the last byte of the reply. Default 60 s.
    pub timeout: Duration,
    /// Processes at once, at least 1; further requests wait. Default 64.
    pub max_processes: usize,
    /// Bytes that a script may print, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// Variables added to those of the request, in place of theirs of the same name.
    pub env: BTreeMap<String, String>,
    /// The user the scripts run as. `None`: the one Forebay runs as.
    pub user: Option<String>,
    /// The group they run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// What each process may use at the most.
    pub limits: ProcessLimits,
}

/// A FastCGI application that listens by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fastcgi {
    /// Where it listens.
    pub upstream: Arc<Upstream>,
    /// Absolute; where the application finds its scripts. It is a directory here, too, unless the
    /// path was typed absolute: the application may be on another machine, or in a container.
    pub root: PathBuf,
    /// The script for a path that ends in `/`. Default `index.php`.
    pub index: String,
    /// Ends of the names of files that may be run. Empty: any file. Default `.php` where `index`
    /// ends in it.
    pub scripts: Vec<String>,
    /// Parameters added to those of the request.
    pub params: BTreeMap<String, String>,
    /// Whether a connection serves more than one request. Default true.
    pub keep_conn: bool,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// Whether requests share connections.
    pub multiplex: Multiplex,
    /// Requests at once on a connection that they share, at least 1. Default 64.
    pub max_streams: usize,
    /// Connections to each address that the requests of one thread share.
    /// [`Plan::share_connections`](super::Plan::share_connections) sets it; until then there is no
    /// limit.
    pub max_shared: usize,
    /// Bytes of one reply that may wait on such a connection for its client. Default 1 MiB.
    pub max_buffered: usize,
}

/// Whether requests share connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Multiplex {
    /// Never. The default.
    #[default]
    Off,
    /// Always, but where the application refuses.
    On,
    /// Where the application says that it can.
    Auto,
}

/// An application that listens by itself and takes one request per connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppServer {
    /// What it speaks.
    pub protocol: ServerProtocol,
    /// Where it listens.
    pub upstream: Arc<Upstream>,
    /// Absolute; what it is told as DOCUMENT_ROOT. It is a directory here, too, unless the path
    /// was typed absolute.
    pub root: Option<PathBuf>,
    /// The beginning of paths that is SCRIPT_NAME: "/" and more, without a slash at its end.
    /// Empty, the default: the whole path is PATH_INFO.
    pub mount: String,
    /// Variables of its own, in place of those of the request of the same name.
    pub params: BTreeMap<String, String>,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
}

/// What an application of one request per connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi {
        /// The kind of application. Default 0, which is WSGI.
        modifier1: u8,
        /// What it means depends on the kind. Default 0.
        modifier2: u8,
    },
}

/// A fixed reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// 200 to 599. Default 200.
    pub status: u16,
    /// Empty where the status allows none.
    pub body: String,
    /// Default `text/plain; charset=utf-8`.
    pub content_type: String,
}

/// A redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The `Location`: a URL, or a path that begins with `/`. Never empty.
    pub to: Vec<RedirectPart>,
    /// 301, 302, 303, 307 or 308. Default 302.
    pub status: u16,
}

/// A piece of where a redirection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectPart {
    /// Text: printable ASCII.
    Text(String),
    /// `{host}`: the host that was asked, without its port.
    Host,
    /// `{path}`: the path as a backend would be sent it.
    Path,
    /// `{query}`: the query without its question mark.
    Query,
    /// `{uri}`: path and query.
    Uri,
    /// `{rest}`: what the `*` of the route's path matched.
    Rest,
}

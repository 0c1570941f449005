//! The actions that answer requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf_derive::Choice;

use super::{Ajp, ContentCoding, ProcessLimits, Proxy, Template, Upstream};

/// The action that answers a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Files of a directory.
    Files(Files),
    /// Scripts of a directory, with one process for each request.
    Cgi(Cgi),
    /// A FastCGI application that runs independently of Forebay.
    Fastcgi(Fastcgi),
    /// An SCGI or uwsgi application that runs independently of Forebay.
    AppServer(AppServer),
    /// Servlet containers.
    Ajp(Ajp),
    /// HTTP servers.
    Proxy(Proxy),
    /// An application of [`super::Plan::apps`], by name.
    App(String),
    /// A fixed reply.
    Respond(Respond),
    /// A redirect.
    Redirect(Redirect),
    /// Redirects of many old paths, from a file. Requests for other paths go on to the routes
    /// below.
    Moved(MovedPages),
    /// No answer: the search for a route starts again at the first route, with the path of
    /// [`super::Route::rewrite`].
    Rewrite,
}

impl Action {
    /// Returns the servers of the action, from the route itself or from a group. Returns `None` if
    /// the action has no servers.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&fastcgi.upstream),
            Self::AppServer(server) => Some(&server.upstream),
            Self::Ajp(ajp) => Some(&ajp.upstream),
            Self::Proxy(proxy) => Some(&proxy.upstream),
            _ => None,
        }
    }

    /// As [`upstream`](Action::upstream), to change them.
    pub fn upstream_mut(&mut self) -> Option<&mut Arc<Upstream>> {
        match self {
            Self::Fastcgi(fastcgi) => Some(&mut fastcgi.upstream),
            Self::AppServer(server) => Some(&mut server.upstream),
            Self::Ajp(ajp) => Some(&mut ajp.upstream),
            Self::Proxy(proxy) => Some(&mut proxy.upstream),
            _ => None,
        }
    }
}

/// Files of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The directory. The path is absolute and was a directory when the configuration was loaded.
    pub root: PathBuf,
    /// The directory of `hosts_from` that contains `root`. `follow_symlinks` then also decides about
    /// links between the two, because the owner of a site may replace its `root`. `None`: the path
    /// of `root` may contain links.
    pub beneath: Option<PathBuf>,
    /// Names of index files, tried in turn for a directory. Default `index.html`. The list may be
    /// empty.
    pub index: Vec<String>,
    /// The answer for a directory that has no index file. Default: no listing.
    pub listing: Listing,
    /// Sends files whose names begin with a dot. Files in `.well-known` are always sent. Default
    /// false.
    pub hidden: bool,
    /// The symbolic links that are followed. Default [`Symlinks::Owner`], like Apache's
    /// SymLinksIfOwnerMatch.
    pub follow_symlinks: Symlinks,
    /// Codings of compressed siblings that may replace a file. The preferred coding comes first.
    /// Default: none.
    pub precompressed: Vec<ContentCoding>,
    /// Tags of languages in lower case, which may end the names of files. The first one is the
    /// default language. Default: none.
    pub languages: Vec<String>,
    /// Ends such as `.html` that are appended to a path that names no file, in turn. Default: none.
    pub extensions: Vec<String>,
    /// Media types by the end of a file's name in lower case. Longer ends come first.
    pub types: Vec<(String, String)>,
    /// The media type of other files without a known type. If empty, they have no `Content-Type`.
    /// Default `application/octet-stream`.
    pub default_type: String,
    /// The largest number of ranges in one request, at most 1000. Default 16. 0: ranges are
    /// ignored.
    pub max_ranges: usize,
    /// Sends files although an `.htaccess` file restricts access to them. Default false.
    pub ignores_htaccess: bool,
    /// Selects the later script routes whose scripts run although this route matches first.
    pub scripts: ScriptsBelow,
}

/// Selects script routes after a files route. A selected route runs its scripts although the files
/// route matches first. The scripts of all other script routes get 404.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptsBelow {
    /// Only script routes whose requests all match the files route. They would otherwise never run.
    #[default]
    Covered,
    /// All later script routes.
    All,
    /// No script route.
    Nothing,
}

/// The symbolic links that Forebay follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Symlinks {
    /// All links.
    Always,
    /// Links that root owns, and links whose owner also owns their target.
    #[default]
    Owner,
    /// No links.
    Never,
}

/// Scripts of a directory, or one program. Each request gets a new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgi {
    /// The directory. The path is absolute and was a directory when the configuration was loaded.
    pub dir: PathBuf,
    /// The program for all paths. It is in `dir`, and was a file when the configuration was loaded.
    /// `None`: the path names the script.
    pub program: Option<PathBuf>,
    /// The longest time from the start of the script to the last byte of the reply. Default 60 s.
    pub timeout: Duration,
    /// The largest number of processes at the same time, at least 1. Further requests wait. Default
    /// 64.
    pub max_processes: usize,
    /// The largest reply of a script in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
    /// Variables added to those of the request. They replace variables with the same name.
    pub env: BTreeMap<String, String>,
    /// The user that the scripts run as. `None`: the user of Forebay itself.
    pub user: Option<String>,
    /// The group that the scripts run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Resource limits of each process.
    pub limits: ProcessLimits,
}

/// A FastCGI application that runs independently of Forebay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fastcgi {
    /// The addresses of the application.
    pub upstream: Arc<Upstream>,
    /// The directory of the scripts, as the application sees it; an absolute path. If the user
    /// typed a relative path, the directory exists on this machine. An absolute path may be on
    /// another machine or in a container. `None`: the application has no script files, and `mount`
    /// is set.
    pub root: Option<PathBuf>,
    /// The prefix that is removed from a path before the script is looked up: whole segments,
    /// without a final slash.
    pub strip_prefix: Option<String>,
    /// The prefix of paths that becomes SCRIPT_NAME. The application then answers every path.
    /// `None`: the path names a script below `root`.
    pub mount: Option<String>,
    /// The script for a path that ends in `/`. Default `index.php`.
    pub index: String,
    /// Endings of the files that may be run. If empty, any file may be run. Default `.php` if
    /// `index` ends in `.php`, else empty.
    pub scripts: Vec<String>,
    /// Refuses scripts that do not exist. Default true. If false, `scripts` is empty.
    pub must_exist: bool,
    /// Parameters added to those of the request.
    pub params: BTreeMap<String, String>,
    /// Uses a connection for more than one request. Default true.
    pub keep_conn: bool,
    /// The largest size of one reply in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
    /// The longest time between two reads of a reply. `None`: the time limit of the server.
    pub reply_timeout: Option<Duration>,
    /// Sends several requests at once over one connection.
    pub multiplex: Multiplex,
    /// The largest number of requests at the same time on a shared connection, at least 1. Default
    /// 64.
    pub max_streams: usize,
    /// The largest number of shared connections from each thread to each address.
    /// [`Plan::share_connections`](super::Plan::share_connections) sets this number. Until then
    /// there is no limit.
    pub max_shared: usize,
    /// The number of bytes of one reply that may wait for its client on a shared connection.
    /// Default 1 MiB.
    pub max_buffered: usize,
}

/// Sends several requests at once over one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum Multiplex {
    /// Never.
    #[default]
    Off,
    /// Always, unless the application refuses.
    On,
    /// If the application reports that it can do this.
    Auto,
}

/// An application that runs independently of Forebay and takes one request for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppServer {
    /// The protocol of the application.
    pub protocol: ServerProtocol,
    /// The addresses of the application.
    pub upstream: Arc<Upstream>,
    /// The directory that the application gets as DOCUMENT_ROOT; an absolute path. If the user
    /// typed a relative path, the directory exists on this machine.
    pub root: Option<PathBuf>,
    /// The prefix of paths that becomes SCRIPT_NAME. It begins with a slash and does not end in
    /// one. If empty (the default of a route), the whole path is PATH_INFO. `None`, only for an
    /// application that Forebay starts: the part of the route's path before its `/*`.
    pub mount: Option<String>,
    /// The longest time between two reads of a reply. `None`: the time limit of the server.
    pub reply_timeout: Option<Duration>,
    /// Variables added to those of the request. They replace variables with the same name.
    pub params: BTreeMap<String, String>,
    /// The largest size of one reply in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
}

/// The protocol of an application that takes one request for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi {
        /// The kind of application. Default 0, which is WSGI.
        modifier1: u8,
        /// A number whose meaning depends on the kind. Default 0.
        modifier2: u8,
    },
}

/// A fixed reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    /// The status, 200 to 599. Default 200.
    pub status: u16,
    /// The body. It is empty if the status allows no body.
    pub body: String,
    /// The media type of the body. Default `text/plain; charset=utf-8`.
    pub content_type: String,
}

/// A redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The `Location`: a URL, or a path that begins with `/`. Its text is printable ASCII. The host
    /// never depends on the requested path.
    pub to: Template,
    /// True if the client's query is appended.
    pub keep_query: bool,
    /// The status: 301, 302, 303, 307 or 308. Default 302.
    pub status: u16,
}

/// The answer for a directory without an index file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// No listing.
    #[default]
    Never,
    /// Forebay's own page.
    BuiltIn,
    /// A page from a template.
    Template(Arc<ListingTemplate>),
}

/// The template of a listing. Forebay reads the file when it loads the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingTemplate {
    /// The absolute path of the file.
    pub file: PathBuf,
    /// The parts before `{entries}`.
    pub before: Vec<ListingPart>,
    /// The parts between `{entries}` and `{/entries}`, which are repeated for each entry.
    pub entry: Vec<ListingPart>,
    /// The parts after `{/entries}`.
    pub after: Vec<ListingPart>,
}

/// A part of the template of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingPart {
    /// Text that is the same in every listing.
    Text(String),
    /// A value.
    Value(ListingValue),
}

/// A value in the template of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingValue {
    /// `{path}`: the decoded path of the directory.
    Path,
    /// `{parent}`: a link to the parent directory. For `/`: a link to `/` itself.
    Parent,
    /// `{sort.name}`: a link that sorts by name. If the listing is already sorted by name, the link
    /// reverses the order.
    SortName,
    /// `{sort.size}`: a link that sorts by size.
    SortSize,
    /// `{sort.time}`: a link that sorts by time.
    SortTime,
    /// `{sort}`: the current order: `name`, `size` or `time`.
    Sort,
    /// `{order}`: `asc` or `desc`.
    Order,
    /// `{note}`: a sentence if the listing is incomplete.
    Note,
    /// `{name}`: the name of the entry; for a directory with a final slash.
    Name,
    /// `{href}`: a link to the entry.
    Href,
    /// `{size}`: the size of a file with its unit.
    Size,
    /// `{bytes}`: the size of a file in bytes.
    Bytes,
    /// `{modified}`: the time of the last change in UTC.
    Modified,
    /// `{kind}`: `file` or `directory`.
    Kind,
}

impl ListingValue {
    /// All values with their names. The values of an entry follow the others.
    pub(crate) const ALL: [(&'static str, Self); 14] = [
        ("path", Self::Path),
        ("parent", Self::Parent),
        ("sort.name", Self::SortName),
        ("sort.size", Self::SortSize),
        ("sort.time", Self::SortTime),
        ("sort", Self::Sort),
        ("order", Self::Order),
        ("note", Self::Note),
        ("name", Self::Name),
        ("href", Self::Href),
        ("size", Self::Size),
        ("bytes", Self::Bytes),
        ("modified", Self::Modified),
        ("kind", Self::Kind),
    ];

    /// Returns true if the value belongs to an entry.
    pub(crate) fn is_of_entry(self) -> bool {
        use ListingValue::{Bytes, Href, Kind, Modified, Name, Size};
        matches!(self, Name | Href | Size | Bytes | Modified | Kind)
    }

    /// Returns true if clients or owners of files choose the text of the value. The text must not
    /// become part of a script or of a link.
    pub(crate) fn is_free_text(self) -> bool {
        matches!(self, Self::Path | Self::Name)
    }

    /// Returns true if the value is a link. The text of a link must not become part of another link
    /// or of a script.
    pub(crate) fn is_link(self) -> bool {
        use ListingValue::{Href, Parent, SortName, SortSize, SortTime};
        matches!(self, Href | Parent | SortName | SortSize | SortTime)
    }
}

/// Redirects from old to new addresses, read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedPages {
    /// The file that the redirects were read from.
    pub file: PathBuf,
    /// The redirects. All threads share them.
    pub entries: Arc<MovedEntries>,
}

/// Redirects by decoded path. Old addresses without a query are in `by_path`, those with a query in
/// `by_query`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedEntries {
    pub(crate) by_path: BTreeMap<Vec<u8>, Moved>,
    pub(crate) by_query: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Moved>>,
}

/// The new address for one old address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// A URL, or a path that begins with one slash. The text is printable ASCII.
    pub to: String,
    /// The status of the redirect.
    pub status: u16,
    /// True if the client's query is appended, because neither the old nor the new address has a
    /// query.
    pub keeps_query: bool,
}

impl MovedPages {
    /// Returns the new address for a decoded path and a query. An entry with exactly this query has
    /// precedence over an entry without a query. Returns `None` if there is no entry for the path.
    pub fn find(&self, path: &[u8], query: &[u8]) -> Option<&Moved> {
        let entries = &*self.entries;
        let exact = || entries.by_query.get(path)?.get(query);
        let exact = if query.is_empty() { None } else { exact() };
        exact.or_else(|| entries.by_path.get(path))
    }
}

impl MovedEntries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.by_path.len() + self.by_query.values().map(BTreeMap::len).sum::<usize>()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

//! Makes plans without a file, for `forebay serve DIR` and `forebay serve --to URL`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Context, Resolution};
use crate::error::{ConfError, Problem};
use crate::file::At;
use crate::key::paths::directory;
use crate::left_out::LeftOut;
use crate::merge::AllFilled;
use crate::plan::{
    Access, Action, Clients, EncodedSlashes, ErrorPages, Files, Filters, Fingerprint,
    ForwardedFields, HostPattern, Listen, Listing, Log, Matcher, OnAbort, PathParameters,
    PathPattern, Plan, Proxy, Respond, Route, RouteTimeouts, Scope, ScriptsBelow, Server, Site,
    SocketAccess, Symlinks,
};
use crate::source::{SourceFile, Sources};

impl Plan {
    /// Returns a plan that serves the files of a directory. A request for a directory gets its
    /// `index.html`, or else a listing. Scripts are sent as plain files. Returns an error if the
    /// directory does not exist, or if its path is not UTF-8.
    pub fn for_directory(dir: &Path, listen: Listen) -> Result<Self, ConfError> {
        let Some(text) = dir.to_str() else {
            let message = format!("the path {} is not UTF-8", dir.display());
            let problem = Problem::nowhere(message).help("rename it, or serve a symbolic link");
            return Err(ConfError::elsewhere(problem));
        };
        let root = typed(text, |context, at| directory(context.sources, at))?;
        let files = Files { listing: Listing::BuiltIn, ..Files::new(root) };
        Ok(Self::of_one_route(Action::Files(files), listen))
    }

    /// Returns a plan that passes every request to an HTTP server. Returns an error if `url` is not
    /// the URL of a server.
    pub fn for_proxy(url: &str, listen: Listen) -> Result<Self, ConfError> {
        let backend = typed(url, super::backend)?;
        Ok(Self::of_one_route(Action::Proxy(Proxy::new(vec![backend])), listen))
    }

    /// Returns the plan of one site whose only route has this action.
    fn of_one_route(action: Action, listen: Listen) -> Self {
        let route = Route {
            name: None,
            matcher: Matcher { paths: vec![PathPattern::Prefix("/".into())], ..Matcher::default() },
            action,
            log: true,
            own_log: None,
            expires: None,
            charset: None,
            request_headers: Vec::new(),
            reply_headers: Vec::new(),
            remove_headers: Vec::new(),
            filters: Filters::default(),
            cache: None,
            max_body: None,
            fallback: false,
            fallback_to: None,
            rewrite: None,
            buffer: false,
            on_abort: OnAbort::default(),
            request_buffering: false,
            path_parameters: PathParameters::default(),
            compress: None,
            sendfile_root: None,
            internal_redirects: false,
            error_pages: ErrorPages::default(),
            maintenance: None,
            cookies: None,
            cors: None,
            access: Access::default(),
            bandwidth_limit: None,
            timeouts: RouteTimeouts::default(),
            mirror: None,
            line: 0,
            inherited: Vec::new(),
            fingerprint: Fingerprint::default(),
        };
        let site = Site {
            listen: vec![listen],
            log: None,
            hosts: vec![HostPattern::Any],
            trusted_proxies: Vec::new(),
            proxy_lists: Vec::new(),
            forwarded: ForwardedFields::default(),
            proxy_protocol: false,
            ajp: None,
            socket_access: SocketAccess::default(),
            encoded_slashes: EncodedSlashes::default(),
            merge_slashes: true,
            underscores_in_headers: false,
            redirect_to_https: None,
            tls: None,
            error_pages: ErrorPages::default(),
            routes: vec![route],
            line: 0,
            file: None,
            expect: Vec::new(),
            inherited: Vec::new(),
        };
        Self {
            server: Server::default(),
            log: Log::default(),
            sites: vec![site.into()],
            relays: Vec::new(),
            apps: BTreeMap::new(),
            unused_upstreams: Vec::new(),
            file: SourceFile::default(),
            left_out: LeftOut::default(),
            own_apps: BTreeSet::new(),
            owner_patterns: Vec::new(),
        }
    }
}

impl Listen {
    /// Parses a command-line argument: `address:port`, `:port`, a bare port, or `unix:path`.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        typed(text, super::listen)
    }
}

impl Clients {
    /// Parses an address, a network, `unix` or `all`.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        typed(text, |_, typed| super::peer::clients(typed))
    }
}

impl std::str::FromStr for Listen {
    type Err = ConfError;

    fn from_str(text: &str) -> Result<Self, ConfError> {
        Self::parse(text)
    }
}

impl Files {
    /// Returns the settings for the files of a directory, with all defaults.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            index: vec!["index.html".into()],
            listing: Listing::default(),
            hidden: false,
            follow_symlinks: Symlinks::default(),
            precompressed: Vec::new(),
            languages: Vec::new(),
            extensions: Vec::new(),
            types: Vec::new(),
            default_type: "application/octet-stream".into(),
            max_ranges: 16,
            ignores_htaccess: false,
            beneath: None,
            scripts: ScriptsBelow::default(),
        }
    }
}

impl Respond {
    /// Returns a plain text reply.
    pub fn new(status: u16, body: String) -> Self {
        Self { status, body, content_type: "text/plain; charset=utf-8".into() }
    }
}

/// Resolves a command-line argument. Relative paths start at the working directory.
fn typed<'t, T>(
    text: &'t str,
    resolve: fn(&Context<'_>, &At<&'t str>) -> Resolution<T>,
) -> Result<T, ConfError> {
    let base = std::path::absolute(".").unwrap_or_else(|_| PathBuf::from("/"));
    let (sources, filled) = (Sources::one("", "", &base), AllFilled::default());
    let left_out = LeftOut::default();
    let context = Context::new(&sources, &filled, Scope::default(), &left_out);
    resolve(&context, &At { value: text, span: 0..0 }).map_err(ConfError::elsewhere)
}

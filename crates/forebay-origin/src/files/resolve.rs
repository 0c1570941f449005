//! Finds what a files route answers with. `serve` sends it, `explain` shows it, and the walk over
//! the routes follows an index that another route answers.

use std::borrow::Cow;
use std::fs::File;
use std::rc::Rc;

use forebay_conf::{self as conf, Action, Listing, PathPattern, Site};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_server::decide::{IndexFinder, IndexPath, kept_from_scripts};
use forebay_upstream::script::{NoScript, find as script_in};
use forebay_wire::path::merge_slashes;

use super::cache::{Cache, CachedFile, Content, PathEntry};
use super::languages::FileLanguages;
use super::listing::percent_encode;
use super::media::MediaTypes;
use super::scripts::{RouteId, ScriptRoutes};

/// What a files route answers with.
pub enum FileAnswer {
    /// This file, and its path below the root.
    File(Vec<u8>, Rc<CachedFile>),
    /// A listing of this directory.
    Listing(File),
    /// A redirect to the path of the directory with a slash, so that relative links work.
    AddSlash,
    /// 405.
    MethodNotAllowed,
}

/// The index of a directory.
enum Index {
    File(Vec<u8>, Rc<CachedFile>, String),
    /// A script with this name. Its path selects the route that answers.
    Script(String),
    /// None, but a listing.
    Listing,
}

/// A file whose name has an extension more than the path.
struct Extended {
    path: Vec<u8>,
    entry: Rc<CachedFile>,
    url: IndexPath,
}

/// Finds the files of one route.
pub struct FileResolver {
    pub(super) settings: conf::Files,
    pub(super) cache: Cache,
    languages: Option<Box<FileLanguages>>,
    pub(super) scripts: ScriptRoutes,
    /// True if later routes answer requests for missing files.
    fallback: bool,
    /// Later script routes that must not run files of this directory.
    kept_from: Vec<RouteId>,
}

impl FileResolver {
    /// Creates the resolver for the files that `settings` names, except those that `scripts` run.
    /// If `fallback` is true, later routes answer requests for missing files.
    pub fn new(settings: conf::Files, fallback: bool, scripts: ScriptRoutes) -> Self {
        let cache = Cache::new(settings.root.clone(), settings.follow_symlinks)
            .with_links_below(settings.beneath.as_deref())
            .with_siblings(!settings.precompressed.is_empty())
            .with_ranges(settings.max_ranges > 0)
            .with_languages(settings.languages.clone())
            .with_types(MediaTypes::new(&settings))
            .with_htaccess(!settings.ignores_htaccess)
            .with_scripts(scripts.clone());
        let languages = FileLanguages::new(&settings.languages).map(Box::new);
        Self { settings, cache, languages, scripts, fallback, kept_from: Vec::new() }
    }

    /// The resolver of route `at`, if this is a files route. `kept_from` has the numbers of the
    /// later script routes that must not run its files.
    pub fn of_route(
        site: &Site,
        at: usize,
        scripts: &ScriptRoutes,
        kept_from: &[usize],
    ) -> Option<Self> {
        let route = &site.routes[at];
        let Action::Files(files) = &route.action else { return None };
        let kept_from = kept_from.iter().map(|&below| RouteId::of(site, below)).collect();
        let files = conf::Files { ignores_htaccess: !route.heeds_htaccess(), ..files.clone() };
        let resolver = Self::new(files, route.passes_on(), scripts.clone());
        let mounts = route.matcher.paths.iter().filter_map(|path| match path {
            PathPattern::Prefix(start) => Some(start.as_bytes().to_vec()),
            PathPattern::Exact(_) => None,
        });
        Some(Self { kept_from, cache: resolver.cache.with_mounts(mounts), ..resolver })
    }

    /// What answers `request`. The fault of a script, whose source is never sent, leaves it to the
    /// route that runs it. `second` is the current time in seconds.
    pub fn resolve(&self, request: &Request, second: u64) -> Result<FileAnswer, Fault> {
        let outcome = self.look(request, second);
        if self.kept_from.is_empty() {
            return outcome;
        }
        outcome.map_err(|fault| {
            if fault.is_declined() && self.has(request.rest()) {
                fault.kept_from_scripts()
            } else {
                fault
            }
        })
    }

    /// Returns true if `path` names an existing file or directory, or continues after the name of a
    /// file. Example: `a.php/x` if `a.php` exists.
    fn has(&self, path: &[u8]) -> bool {
        script_in(&self.settings.root, path) != Err(NoScript::NotFound)
    }

    fn look(&self, request: &Request, second: u64) -> Result<FileAnswer, Fault> {
        let is_read = matches!(request.method(), b"GET" | b"HEAD");
        if !is_read && self.scripts.is_empty() {
            return self.refuse_method();
        }
        let mut path = request.rest().to_vec();
        if self.is_hidden(&path) {
            let hidden = || {
                let name = String::from_utf8_lossy(request.rest());
                let why = format!("{name:?} begins with a dot, and `hidden` is false");
                Fault::client(404, why).decline(Decline::IfFallback)
            };
            return Err(self.behind_script(&path, second).unwrap_or_else(hidden));
        }
        let missing = || {
            let name = String::from_utf8_lossy(request.rest());
            Fault::client(404, format!("no file {name:?}")).decline(Decline::IfFallback)
        };
        let wants_directory = request.path.ends_with(b"/");
        if wants_directory && !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        let found = self.find(request, &mut path, second);
        if let Some(Extended { path, entry, url }) = self.find_extended(request, &found, second) {
            return match is_read {
                // The walk has led the request to the route of the script.
                _ if url.is_script => Err(Fault::client(404, "the file is a script")),
                true => sent(path, entry),
                false => self.refuse_method(),
            };
        }
        match found {
            Ok(PathEntry::File(entry)) if !wants_directory && entry.run_by.is_some() => {
                Err(self.not_sent(&entry))
            }
            Ok(PathEntry::Directory(directory)) if wants_directory => {
                match self.find_index(request, &path, second) {
                    // The walk has led the request to the route of the script, unless the script
                    // appeared in this moment.
                    Ok(Index::Script(_)) => Err(Fault::client(404, "the index is a script")),
                    _ if !is_read => self.refuse_method(),
                    Ok(Index::File(path, entry, _)) => sent(path, entry),
                    Ok(Index::Listing) => match self.cache.listing_denial(&path) {
                        Some(why) => Err(Fault::client(403, why)),
                        None => Ok(FileAnswer::Listing(directory)),
                    },
                    Err(fault) => Err(fault),
                }
            }
            Ok(PathEntry::File(_)) if wants_directory => {
                Err(self.behind_script(&path, second).unwrap_or_else(missing))
            }
            Err(fault) if fault.status == 404 => match self.behind_script(&path, second) {
                Some(script) => Err(script),
                None if !is_read => self.refuse_method(),
                None => Err(missing()),
            },
            _ if !is_read => self.refuse_method(),
            Ok(PathEntry::File(entry)) => sent(path, entry),
            Ok(PathEntry::Directory(_)) => {
                if self.fallback {
                    path.push(b'/');
                    self.find_index(request, &path, second)?;
                }
                Ok(FileAnswer::AddSlash)
            }
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn is_hidden(&self, path: &[u8]) -> bool {
        !self.settings.hidden && is_hidden(path)
    }

    fn refuse_method(&self) -> Result<FileAnswer, Fault> {
        if self.fallback {
            let why = "files take GET and HEAD";
            return Err(Fault::client(404, why).decline(Decline::IfFallback));
        }
        Ok(FileAnswer::MethodNotAllowed)
    }

    /// Returns the fault for a request whose file is a script, because Forebay never sends the
    /// source. A later route may run the script, unless `kept_from` contains that route.
    fn not_sent(&self, entry: &CachedFile) -> Fault {
        let id = entry.run_by.unwrap_or_default();
        if self.kept_from.contains(&id) {
            return kept_from_scripts();
        }
        Fault::client(
            404,
            format!("a script of the route on line {}; its source is not sent", id.line),
        )
        .decline(Decline::Always)
    }

    /// Returns the file or directory at `path`, or its variant in the language that the client
    /// prefers. If the result is a variant, changes `path` to the path of the variant.
    fn find(&self, request: &Request, path: &mut Vec<u8>, second: u64) -> Result<PathEntry, Fault> {
        let plain = self.cache.find(path, second);
        let Some(languages) = &self.languages else { return plain };
        let (may_vary, is_plain) = match &plain {
            Ok(PathEntry::File(entry)) => (entry.run_by.is_none(), true),
            Ok(PathEntry::Directory(_)) => (false, false),
            Err(fault) => (fault.status == 404 && !path.ends_with(b"/"), false),
        };
        if !may_vary || languages.are_in(path) {
            return plain;
        }
        // The source of a script is no variant.
        let exists = |path: &[u8]| {
            let found = self.cache.find_variant(path, second);
            matches!(found, Ok(PathEntry::File(entry)) if entry.run_by.is_none())
        };
        let variant = languages.preferred(request, path, (is_plain, second), exists);
        let Some(variant) = variant else { return plain };
        *path = variant;
        self.cache.find_variant(path, second)
    }

    /// Returns the file that answers for a path that names none, because its name is longer by one
    /// of `extensions`. `plain` is what [`Self::find`] has found; `about.html` comes before a
    /// directory `about`.
    fn find_extended(
        &self,
        request: &Request,
        plain: &Result<PathEntry, Fault>,
        second: u64,
    ) -> Option<Extended> {
        let (path, ends) = (request.rest(), &self.settings.extensions);
        let is_taken = match plain {
            Ok(PathEntry::Directory(_)) => false,
            Ok(PathEntry::File(_)) => true,
            Err(fault) => fault.status != 404,
        };
        if ends.is_empty() || is_taken || path.is_empty() || request.path.ends_with(b"/") {
            return None;
        }
        ends.iter().find_map(|end| {
            let mut path = [path, end.as_bytes()].concat();
            let Ok(PathEntry::File(entry)) = self.find(request, &mut path, second) else {
                return None;
            };
            let is_script = entry.run_by.is_some() || self.scripts.take_url(&request.path, end);
            let url = [&request.path, end.as_bytes()].concat();
            Some(Extended { path, entry, url: IndexPath { path: url, is_script } })
        })
    }

    /// Returns the file at `path` if it is in memory, fresh, and certainly what
    /// [`Self::resolve`] would find.
    pub(super) fn find_now(&self, request: &Request, second: u64) -> Option<Rc<CachedFile>> {
        let is_chosen = !self.settings.precompressed.is_empty() || self.languages.is_some();
        let path = request.rest();
        if request.path.ends_with(b"/") || is_chosen || self.is_hidden(path) {
            return None;
        }
        let entry = self.cache.fresh(path, second)?;
        let is_sent = entry.run_by.is_none() && entry.denial.borrow().is_none();
        (is_sent && matches!(entry.content, Content::Memory(_))).then_some(entry)
    }

    /// Returns the fault of a path that continues after the name of a script, like `/x.php/a/b`.
    /// The route that runs the script answers such a path. Returns `None` for all other paths.
    fn behind_script(&self, path: &[u8], second: u64) -> Option<Fault> {
        if self.scripts.is_empty() {
            return None;
        }
        for end in memchr::memchr_iter(b'/', path) {
            let beginning = &path[..end];
            if self.is_hidden(beginning) {
                return None;
            }
            match self.cache.find(beginning, second) {
                Ok(PathEntry::Directory(_)) => {}
                Ok(PathEntry::File(entry)) => {
                    let is_run = entry.run_by.is_some_and(|id| self.scripts.takes_path_info(id));
                    return is_run.then(|| self.not_sent(&entry));
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// Returns the answer for a directory: its first existing index file, else a listing. The
    /// route's own index names come before those of script routes. Fails if there is no index file
    /// and listings are not permitted.
    ///
    /// An index also counts as a script if a script route takes its URL. So a request for the
    /// directory gets what a request for the path of the index gets. Otherwise, it would get the
    /// source of a script that the script route cannot find.
    fn find_index(&self, request: &Request, directory: &[u8], second: u64) -> Result<Index, Fault> {
        let mut url = Cow::Borrowed(&request.path[..]);
        if !url.ends_with(b"/") {
            url.to_mut().push(b'/');
        }
        for name in self.settings.index.iter().map(String::as_str).chain(self.scripts.indexes()) {
            let is_own = self.settings.index.iter().any(|own| own == name);
            let mut path = [directory, name.as_bytes()].concat();
            match self.find(request, &mut path, second) {
                Ok(PathEntry::File(entry))
                    if entry.run_by.is_some() || is_own && self.scripts.take_url(&url, name) =>
                {
                    return Ok(Index::Script(name.to_owned()));
                }
                Ok(PathEntry::File(entry)) if is_own => {
                    return Ok(Index::File(path, entry, name.to_owned()));
                }
                Err(fault) if fault.status != 404 => return Err(fault),
                _ => {}
            }
        }
        match (&self.settings.listing, self.fallback) {
            (Listing::BuiltIn | Listing::Template(_), _) => Ok(Index::Listing),
            (Listing::Never, true) => {
                let why = "a directory without an index file";
                Err(Fault::client(404, why).decline(Decline::IfFallback))
            }
            (Listing::Never, false) => Err(Fault::client(403, "a directory without an index file")),
        }
    }
}

/// Sends the file, unless an `.htaccess` file protects it.
fn sent(path: Vec<u8>, entry: Rc<CachedFile>) -> Result<FileAnswer, Fault> {
    let denial = entry.denial.borrow().clone();
    match denial {
        Some(why) => Err(Fault::client(403, why)),
        None => Ok(FileAnswer::File(path, entry)),
    }
}

impl IndexFinder for FileResolver {
    fn index(&self, request: &Request, second: u64) -> Option<IndexPath> {
        let mut path = request.rest().to_vec();
        let is_directory = request.path.ends_with(b"/");
        if !is_directory && self.settings.extensions.is_empty() || self.is_hidden(&path) {
            return None;
        }
        let is_read = matches!(request.method(), b"GET" | b"HEAD");
        if !is_directory {
            let plain = self.find(request, &mut path, second);
            let Extended { url, .. } = self.find_extended(request, &plain, second)?;
            return (url.is_script || is_read).then_some(url);
        }
        if !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        let Ok(PathEntry::Directory(_)) = self.find(request, &mut path, second) else {
            return None;
        };
        let url = |name: String| [&request.path, name.as_bytes()].concat();
        match self.find_index(request, &path, second).ok()? {
            Index::Script(name) => Some(IndexPath { path: url(name), is_script: true }),
            Index::File(_, _, name) if is_read => {
                Some(IndexPath { path: url(name), is_script: false })
            }
            Index::File(..) | Index::Listing => None,
        }
    }
}

/// Returns true if a name in the path begins with a dot, except `.well-known` (RFC 8615).
pub fn is_hidden(path: &[u8]) -> bool {
    let mut parts = path.split(|&b| b == b'/');
    parts.any(|part| part.starts_with(b".") && part != b".well-known")
}

/// The `Location` of [`FileAnswer::AddSlash`].
pub fn location_with_slash(request: &Request) -> Vec<u8> {
    // Use the clean path, because a browser may read the client's path as another host (`//host`,
    // `/\host`).
    let mut path = request.path.clone();
    merge_slashes(&mut path);
    let mut location = percent_encode(&path).into_bytes();
    location.push(b'/');
    if let Some(query) = request.query() {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    location
}

//! Serves files of a directory.

mod cache;
mod conditional;
mod languages;
mod listing;
mod media;
mod negotiate;
pub mod open;
mod parts;
mod scripts;

use std::fs::File;
use std::rc::Rc;

use forebay_conf::{self as conf, Level, Listing};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::dispatch::kept_from_scripts;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::filter::BodyChange;
use forebay_server::reply::{Length, Reply};
use forebay_upstream::script::{NoScript, find as script_in};
use forebay_wire::http1::{KnownField, encode};
use forebay_wire::path::merge_slashes;

pub use cache::fault;
use cache::{Cache, CachedFile, Content, PathEntry};
use conditional::{ByteRange, Outcome, decide};
pub use languages::{FileLanguages, split as split_language};
use listing::percent_encode;
pub use media::MediaTypes;
pub use scripts::{RouteId, ScriptRoutes, runs_scripts};

/// Origin for a directory of files. Each thread has one.
pub struct Files {
    thread: Rc<Thread>,
    settings: conf::Files,
    cache: Cache,
    languages: Option<Box<FileLanguages>>,
    scripts: ScriptRoutes,
    /// True if later routes answer requests for missing files.
    fallback: bool,
    /// Later script routes that must not run files of this directory.
    kept_from: Vec<RouteId>,
}

impl Files {
    /// Creates the origin for the files that `settings` names, except those that `scripts` run. If
    /// `fallback` is true, later routes answer requests for missing files.
    pub fn new(
        thread: Rc<Thread>,
        settings: conf::Files,
        fallback: bool,
        scripts: ScriptRoutes,
    ) -> Self {
        let cache = Cache::new(settings.root.clone(), settings.follow_symlinks)
            .with_siblings(!settings.precompressed.is_empty())
            .with_ranges(settings.max_ranges > 0)
            .with_languages(settings.languages.clone())
            .with_types(MediaTypes::new(&settings))
            .with_scripts(scripts.clone());
        let languages = FileLanguages::new(&settings.languages).map(Box::new);
        Self { thread, settings, cache, languages, scripts, fallback, kept_from: Vec::new() }
    }

    /// Prevents the later script routes `routes` from running files of the directory.
    pub fn kept_from(self, routes: Vec<RouteId>) -> Self {
        Self { kept_from: routes, ..self }
    }

    async fn answer_or_keep(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let outcome = self.answer(exchange).await;
        outcome.map_err(|fault| {
            if fault.is_declined() && self.has(exchange.request.rest()) {
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

    /// Answers with the file or the index of the directory that the path names. Declines a script,
    /// so that its own route can run it.
    async fn answer(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let is_read = matches!(exchange.request.method(), b"GET" | b"HEAD");
        if !is_read && self.scripts.is_empty() {
            return self.refuse_method(exchange).await;
        }
        let mut path = exchange.request.rest().to_vec();
        if !self.settings.hidden && is_hidden(&path) {
            return Err(self.behind_script(&path).unwrap_or_else(not_found));
        }
        let wants_directory = exchange.request.path.ends_with(b"/");
        if wants_directory && !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        match self.find(&exchange.request, &mut path) {
            Ok(PathEntry::File(entry)) if !wants_directory && entry.run_by.is_some() => {
                Err(self.not_sent(&entry))
            }
            Ok(PathEntry::Directory(opened)) if wants_directory => {
                let index = self.find_index(&exchange.request, &path);
                self.send_index(exchange, &opened, index, is_read).await
            }
            Ok(PathEntry::File(_)) if wants_directory => {
                Err(self.behind_script(&path).unwrap_or_else(not_found))
            }
            Err(fault) if fault.status == 404 => match self.behind_script(&path) {
                Some(script) => Err(script),
                None if !is_read => self.refuse_method(exchange).await,
                None => Err(fault),
            },
            _ if !is_read => self.refuse_method(exchange).await,
            Ok(PathEntry::File(entry)) => self.send(exchange, &path, entry).await,
            Ok(PathEntry::Directory(_)) => {
                if self.fallback {
                    path.push(b'/');
                    self.find_index(&exchange.request, &path)?;
                }
                add_slash(exchange).await
            }
            Err(fault) => {
                self.log_refusal(&fault, &exchange.request);
                Err(fault)
            }
        }
    }

    /// Returns the file or directory at `path`, or its variant in the language that the client
    /// prefers. If the result is a variant, changes `path` to the path of the variant.
    fn find(&self, request: &Request, path: &mut Vec<u8>) -> Result<PathEntry, Fault> {
        let second = self.thread.second();
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

    /// Logs a request if it was refused with 403, because the owner of the file may expect that
    /// Forebay sends the file.
    fn log_refusal(&self, fault: &Fault, request: &Request) {
        if fault.status == 403 {
            let target = String::from_utf8_lossy(request.original_target());
            let root = self.settings.root.display();
            self.thread.log_limited(Level::Info, &format!("403 {fault}: {target}, below {root}"));
        }
    }

    /// Answers at once if the file is in memory and the client asks for the whole file. Returns
    /// true after an answer.
    fn answer_now(&self, exchange: &mut Exchange) -> bool {
        // Nearly all requests for files end here. The checks below pass only if `answer` would send
        // the same reply.
        let Exchange { request, reply, .. } = exchange;
        let is_read = matches!(request.method(), b"GET" | b"HEAD");
        let is_chosen = !self.settings.precompressed.is_empty() || self.languages.is_some();
        if !is_read || request.path.ends_with(b"/") || is_chosen {
            return false;
        }
        let path = request.rest();
        if !self.settings.hidden && is_hidden(path) {
            return false;
        }
        let Some(entry) = self.cache.fresh(path, self.thread.second()) else { return false };
        let Content::Memory(bytes) = &entry.content else { return false };
        entry.run_by.is_none()
            && reply.carried_type().is_none()
            && decide(request, &entry, self.settings.max_ranges) == Outcome::Whole
            && reply.buffer_reply(200, &entry.fields, bytes)
    }

    /// Returns the fault of a path that continues after the name of a script, like `/x.php/a/b`.
    /// The route that runs the script answers such a path. Returns `None` for all other paths.
    fn behind_script(&self, path: &[u8]) -> Option<Fault> {
        if self.scripts.is_empty() {
            return None;
        }
        for end in memchr::memchr_iter(b'/', path) {
            let beginning = &path[..end];
            if !self.settings.hidden && is_hidden(beginning) {
                return None;
            }
            match self.cache.find(beginning, self.thread.second()) {
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

    async fn refuse_method(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        if self.fallback {
            return Err(not_found());
        }
        let reply = &mut exchange.reply;
        reply.begin(405, b"");
        reply.field("Allow", b"GET, HEAD");
        reply.end_head(Length::Known(0), false);
        reply.finish().await
    }

    /// Sends the index file or the listing of a directory. If the index is a script, lets its path
    /// select the route that answers.
    async fn send_index(
        &self,
        exchange: &mut Exchange,
        directory: &File,
        index: Result<Index, Fault>,
        is_read: bool,
    ) -> Result<(), Fault> {
        match index {
            Ok(Index::Script(name)) => {
                let path = [&exchange.request.path, name.as_bytes()].concat();
                exchange.reply.reroute(path);
                Ok(())
            }
            _ if !is_read => self.refuse_method(exchange).await,
            Ok(Index::File(path, entry)) => self.send(exchange, &path, entry).await,
            Ok(Index::Listing) => {
                let listing = listing::list(directory, &self.settings, &exchange.request)
                    .map_err(|error| Fault::us(500, format!("cannot list a directory: {error}")))?;
                let body = listing.body.as_bytes();
                let reply = &mut exchange.reply;
                reply.begin(200, b"");
                reply.field("Content-Type", listing.content_type.as_bytes());
                reply.field("Vary", b"Accept");
                reply.end_head(Length::Known(body.len() as u64), false);
                reply.push(body).await?;
                reply.finish().await
            }
            Err(fault) => Err(fault),
        }
    }

    /// Returns the answer for a directory: its first existing index file, else a listing. The
    /// route's own index names come before those of script routes. Fails if there is no index file
    /// and listings are not permitted.
    ///
    /// An index also counts as a script if a script route takes its URL. So a request for the
    /// directory gets what a request for the path of the index gets. Otherwise, it would get the
    /// source of a script that the script route cannot find.
    fn find_index(&self, request: &Request, directory: &[u8]) -> Result<Index, Fault> {
        for name in self.settings.index.iter().map(String::as_str).chain(self.scripts.indexes()) {
            let is_own = self.settings.index.iter().any(|own| own == name);
            let mut path = [directory, name.as_bytes()].concat();
            match self.find(request, &mut path) {
                Ok(PathEntry::File(entry))
                    if entry.run_by.is_some()
                        || is_own && self.scripts.take_index(&request.path, name) =>
                {
                    return Ok(Index::Script(name.to_owned()));
                }
                Ok(PathEntry::File(entry)) if is_own => return Ok(Index::File(path, entry)),
                Err(fault) if fault.status != 404 => return Err(fault),
                _ => {}
            }
        }
        match (&self.settings.listing, self.fallback) {
            (Listing::BuiltIn | Listing::Template(_), _) => Ok(Index::Listing),
            (Listing::Never, true) => Err(not_found()),
            (Listing::Never, false) => Err(Fault::client(403, "a directory without an index file")),
        }
    }

    /// Sends the file that `path` names, or a compressed sibling that the client prefers.
    async fn send(
        &self,
        exchange: &mut Exchange,
        path: &[u8],
        entry: Rc<CachedFile>,
    ) -> Result<(), Fault> {
        if self.settings.precompressed.is_empty() {
            return send(exchange, &entry, self.settings.max_ranges).await;
        }
        let sibling = self.sibling(exchange, path, &entry);
        send(exchange, &sibling.unwrap_or(entry), self.settings.max_ranges).await
    }

    /// Returns the compressed sibling that the client prefers, or `None` if the file itself must be
    /// sent. Returns `None` for a range, unless `If-Range` has the tag of the sibling. Without this
    /// tag, the client could join bytes of the file and of the sibling.
    fn sibling(
        &self,
        exchange: &Exchange,
        path: &[u8],
        entry: &CachedFile,
    ) -> Option<Rc<CachedFile>> {
        let request = &exchange.request;
        let codings = negotiate::codings(request, &self.settings.precompressed);
        let second = self.thread.second();
        let sibling = codings
            .into_iter()
            .find_map(|coding| self.cache.find_sibling(path, entry, coding, second))?;
        let value = |known| request.head.value(known, &request.bytes);
        let fits = value(KnownField::Range).is_none()
            || value(KnownField::IfRange) == Some(sibling.etag.as_bytes());
        fits.then_some(sibling)
    }
}

/// Answer for a directory.
enum Index {
    /// A file and the path that names it.
    File(Vec<u8>, Rc<CachedFile>),
    /// The name of a script: the request is routed again with its path.
    Script(String),
    /// A listing of its entries.
    Listing,
}

impl Origin for Files {
    fn takes_body(&self) -> bool {
        false
    }

    fn may_fall_back(&self) -> bool {
        !self.scripts.is_empty()
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        self.answer_now(exchange)
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        if self.kept_from.is_empty() {
            return OriginFuture::new(&exchange.blocks(), || self.answer(exchange));
        }
        OriginFuture::new(&exchange.blocks(), || self.answer_or_keep(exchange))
    }
}

fn not_found() -> Fault {
    Fault::client(404, "no such file").decline(Decline::IfFallback)
}

/// Returns true if a name in the path begins with a dot, except `.well-known` (RFC 8615).
pub fn is_hidden(path: &[u8]) -> bool {
    let mut parts = path.split(|&b| b == b'/');
    parts.any(|part| part.starts_with(b".") && part != b".well-known")
}

/// Redirects to the directory's path with a slash, so that relative links in its index work.
async fn add_slash(exchange: &mut Exchange) -> Result<(), Fault> {
    // Use the clean path, because a browser may read the client's path as another host (`//host`,
    // `/\host`).
    let Exchange { request, reply, .. } = exchange;
    let mut path = request.path.clone();
    merge_slashes(&mut path);
    let mut location = percent_encode(&path);
    location.push('/');
    let mut location = location.into_bytes();
    if let Some(query) = request.query() {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    reply.begin(301, b"");
    reply.field("Location", &location);
    reply.end_head(Length::Known(0), false);
    reply.finish().await
}

/// Sends a file as the preconditions and ranges of the request require.
async fn send(exchange: &mut Exchange, entry: &CachedFile, max_ranges: usize) -> Result<(), Fault> {
    let Exchange { request, reply, .. } = exchange;
    let kind = reply.carried_type().map(|kind| String::from_utf8_lossy(kind).into_owned());
    let kind = kind.as_deref();
    // If Forebay changes the body, the client's conditions and ranges refer to the changed body,
    // and not to the file.
    let outcome = match reply.body_change_of(kind.unwrap_or(&entry.content_type)) {
        BodyChange::No => decide(request, entry, max_ranges),
        BodyChange::WithValidators => decide(request, entry, 0),
        BodyChange::WithoutValidators => Outcome::Whole,
    };
    match outcome {
        Outcome::Whole => {
            reply.begin(200, b"");
            entry.append_fields(kind, reply.field_lines());
            if let Content::Memory(bytes) = &entry.content {
                reply.end_head_of_whole(bytes, &entry.copies, false);
                reply.push_whole(bytes).await?;
                return reply.finish().await;
            }
            reply.end_head(Length::Known(entry.length), false);
            body(exchange, entry, 0, entry.length).await
        }
        Outcome::Part(ByteRange { start, length }) => {
            reply.begin(206, b"");
            entry.append_fields(kind, reply.field_lines());
            let range = format!("bytes {start}-{}/{}", start + length - 1, entry.length);
            encode::field(reply.field_lines(), "Content-Range", range.as_bytes());
            reply.end_head(Length::Known(length), false);
            body(exchange, entry, start, length).await
        }
        Outcome::Parts(list) => parts::send(reply, (entry, kind), &list).await,
        Outcome::NotModified => {
            reply.begin(304, b"");
            reply.field_lines().extend_from_slice(&entry.validators);
            reply.end_head(Length::None, false);
            reply.finish().await
        }
        Outcome::Failed => Err(Fault::client(412, "a precondition does not hold")),
        Outcome::Unsatisfiable => {
            reply.begin(416, b"");
            let range = format!("bytes */{}", entry.length);
            reply.field("Content-Range", range.as_bytes());
            reply.end_head(Length::Known(0), false);
            reply.finish().await
        }
    }
}

async fn body(
    exchange: &mut Exchange,
    entry: &CachedFile,
    start: u64,
    length: u64,
) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    push(reply, entry, start, length).await?;
    reply.finish().await
}

async fn push(reply: &mut Reply, entry: &CachedFile, start: u64, length: u64) -> Result<(), Fault> {
    match &entry.content {
        Content::Memory(bytes) => {
            reply.push(&bytes[start as usize..(start + length) as usize]).await
        }
        Content::File(file) => reply.send_file(file, start, length).await,
    }
}

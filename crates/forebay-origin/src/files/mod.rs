//! Files of a directory.

mod cache;
mod conditional;
mod listing;
mod negotiate;
pub mod open;
mod parts;

use std::fs::File;
use std::rc::Rc;

use forebay_conf as conf;
use forebay_engine::{Exchange, Fault, Length, Origin, Reply, Serving, Thread};
use forebay_wire::http1::{Known, encode};

use cache::{Cache, Content, Entry, Found};
use conditional::{Outcome, Part, decide};
use listing::percent_encode;

/// A directory of files, as one thread knows it.
pub struct Files {
    thread: Rc<Thread>,
    settings: conf::Files,
    cache: Cache,
    /// What is not here is left to the routes below.
    fallback: bool,
}

impl Files {
    /// Serves the files that `settings` names; with `fallback`, those that are there.
    pub fn new(thread: Rc<Thread>, settings: conf::Files, fallback: bool) -> Self {
        let cache = Cache::new(settings.root.clone(), settings.follow_symlinks)
            .with_siblings(!settings.precompressed.is_empty())
            .with_ranges(settings.max_ranges > 0);
        Self { thread, settings, cache, fallback }
    }

    async fn answer(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        if !matches!(exchange.request.method(), b"GET" | b"HEAD") {
            if self.fallback {
                return Err(not_found());
            }
            return refuse_method(exchange).await;
        }
        let mut path = exchange.request.rest().to_vec();
        let wants_directory = exchange.request.path.ends_with(b"/");
        if wants_directory && !path.is_empty() && !path.ends_with(b"/") {
            path.push(b'/');
        }
        match self.cache.find(&path, self.thread.second())? {
            Found::File(entry) if !wants_directory => self.send(exchange, &path, entry).await,
            Found::File(_) => Err(not_found()),
            Found::Directory(_) if !wants_directory => {
                if self.fallback {
                    path.push(b'/');
                    self.find_index(&path)?;
                }
                add_slash(exchange).await
            }
            Found::Directory(opened) => self.index(exchange, &path, opened).await,
        }
    }

    /// Answers with the first index file that is there, or the listing of the directory.
    async fn index(
        &self,
        exchange: &mut Exchange,
        directory: &[u8],
        opened: File,
    ) -> Result<(), Fault> {
        if let Some((path, entry)) = self.find_index(directory)? {
            return self.send(exchange, &path, entry).await;
        }
        let page = listing::page(&opened, self.settings.follow_symlinks, &exchange.request.path)
            .map_err(|error| Fault::us(500, format!("cannot list a directory: {error}")))?;
        exchange.reply.respond(200, "text/html; charset=utf-8", page.as_bytes()).await
    }

    /// The first index file that is there; `None` where the directory is listed instead.
    fn find_index(&self, directory: &[u8]) -> Result<Option<Named>, Fault> {
        for name in &self.settings.index {
            let path = [directory, name.as_bytes()].concat();
            match self.cache.find(&path, self.thread.second()) {
                Ok(Found::File(entry)) => return Ok(Some((path, entry))),
                Err(fault) if fault.status != 404 => return Err(fault),
                _ => {}
            }
        }
        match (self.settings.listing, self.fallback) {
            (true, _) => Ok(None),
            (false, true) => Err(not_found()),
            (false, false) => Err(Fault::client(403, "a directory without an index file")),
        }
    }

    /// Sends the file that `path` names, or a compressed sibling that the client likes better.
    async fn send(
        &self,
        exchange: &mut Exchange,
        path: &[u8],
        entry: Rc<Entry>,
    ) -> Result<(), Fault> {
        if self.settings.precompressed.is_empty() {
            return send(exchange, &entry, self.settings.max_ranges).await;
        }
        let sibling = self.sibling(exchange, path, &entry);
        send(exchange, &sibling.unwrap_or(entry), self.settings.max_ranges).await
    }

    /// The best sibling for the client. Ranges are of the file itself, unless `If-Range` shows that
    /// the client has a part of the sibling: else it would join bytes of the two.
    fn sibling(&self, exchange: &Exchange, path: &[u8], entry: &Entry) -> Option<Rc<Entry>> {
        let request = &exchange.request;
        let codings = negotiate::codings(request, &self.settings.precompressed);
        let second = self.thread.second();
        let sibling = codings
            .into_iter()
            .find_map(|coding| self.cache.find_sibling(path, entry, coding, second))?;
        let value = |known| request.head.value(known, &request.bytes);
        let fits =
            value(Known::Range).is_none() || value(Known::IfRange) == Some(sibling.etag.as_bytes());
        fits.then_some(sibling)
    }
}

/// A file and the path that names it.
type Named = (Vec<u8>, Rc<Entry>);

impl Origin for Files {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.answer(exchange))
    }
}

fn not_found() -> Fault {
    Fault::client(404, "no such file").not_mine()
}

async fn refuse_method(exchange: &mut Exchange) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    reply.begin(405, b"");
    reply.field("Allow", b"GET, HEAD");
    reply.end_head(Length::Known(0), false);
    reply.finish().await
}

/// Redirects to the directory's own path, so that relative links in its index work. The location is
/// made of the clean path: what the client sent may read as another host (`//host`, `/\host`).
async fn add_slash(exchange: &mut Exchange) -> Result<(), Fault> {
    let Exchange { request, reply, .. } = exchange;
    let mut location = percent_encode(&request.path);
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

async fn send(exchange: &mut Exchange, entry: &Entry, max_ranges: usize) -> Result<(), Fault> {
    let Exchange { request, reply, .. } = exchange;
    match decide(request, entry, max_ranges) {
        Outcome::Whole => {
            reply.begin(200, b"");
            reply.field_lines().extend_from_slice(&entry.fields);
            reply.end_head(Length::Known(entry.length), false);
            body(exchange, entry, 0, entry.length).await
        }
        Outcome::Part(Part { start, length }) => {
            reply.begin(206, b"");
            reply.field_lines().extend_from_slice(&entry.fields);
            let range = format!("bytes {start}-{}/{}", start + length - 1, entry.length);
            encode::field(reply.field_lines(), "Content-Range", range.as_bytes());
            reply.end_head(Length::Known(length), false);
            body(exchange, entry, start, length).await
        }
        Outcome::Parts(list) => parts::send(reply, entry, &list).await,
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
    entry: &Entry,
    start: u64,
    length: u64,
) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    push(reply, entry, start, length).await?;
    reply.finish().await
}

async fn push(reply: &mut Reply, entry: &Entry, start: u64, length: u64) -> Result<(), Fault> {
    match &entry.content {
        Content::Memory(bytes) => {
            reply.push(&bytes[start as usize..(start + length) as usize]).await
        }
        Content::File(file) => reply.send_file(file, start, length).await,
    }
}

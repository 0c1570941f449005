//! Serves files of a directory.

mod cache;
mod conditional;
pub mod htaccess;
mod languages;
mod listing;
mod media;
mod negotiate;
pub mod open;
mod parts;
mod resolve;
mod scripts;

use std::rc::Rc;

use forebay_conf::{self as conf, Level};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::filter::BodyChange;
use forebay_server::reply::{Length, Reply};
use forebay_wire::http1::{KnownField, encode};

pub use cache::fault;
use cache::{CachedFile, Content};
use conditional::{ByteRange, Outcome, decide};
pub use languages::{FileLanguages, split as split_language};
pub use media::MediaTypes;
pub use resolve::{FileAnswer, FileResolver, is_hidden, location_with_slash};
pub use scripts::{RouteId, ScriptRoutes, runs_scripts};

/// Origin for a directory of files. Each thread has one.
pub struct Files {
    thread: Rc<Thread>,
    resolver: Rc<FileResolver>,
}

impl Files {
    /// Creates the origin for the files that `resolver` finds.
    pub fn new(thread: Rc<Thread>, resolver: Rc<FileResolver>) -> Self {
        Self { thread, resolver }
    }

    fn settings(&self) -> &conf::Files {
        &self.resolver.settings
    }

    async fn answer(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let resolved = self.resolver.resolve(&exchange.request, self.thread.second());
        match resolved.inspect_err(|fault| self.log_refusal(fault, &exchange.request))? {
            FileAnswer::File(path, entry) => self.send(exchange, &path, entry).await,
            FileAnswer::Listing(directory) => {
                let listing = listing::list(&directory, self.settings(), &exchange.request)
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
            FileAnswer::AddSlash => {
                let location = location_with_slash(&exchange.request);
                self.answer_without_body(exchange, 301, ("Location", &location)).await
            }
            FileAnswer::MethodNotAllowed => {
                self.answer_without_body(exchange, 405, ("Allow", b"GET, HEAD")).await
            }
        }
    }

    async fn answer_without_body(
        &self,
        exchange: &mut Exchange,
        status: u16,
        (name, value): (&str, &[u8]),
    ) -> Result<(), Fault> {
        let reply = &mut exchange.reply;
        reply.begin(status, b"");
        reply.field(name, value);
        reply.end_head(Length::Known(0), false);
        reply.finish().await
    }

    /// Logs a request if it was refused with 403, because the owner of the file may expect that
    /// Forebay sends the file.
    fn log_refusal(&self, fault: &Fault, request: &Request) {
        if fault.status == 403 {
            let target = String::from_utf8_lossy(request.original_target());
            let root = self.settings().root.display();
            self.thread.log_limited(Level::Info, &format!("403 {fault}: {target}, below {root}"));
        }
    }

    /// Answers at once if the file is in memory and the client asks for the whole file. Returns
    /// true after an answer.
    fn answer_now(&self, exchange: &mut Exchange) -> bool {
        // Nearly all requests for files end here. The checks below pass only if `answer` would send
        // the same reply.
        let Exchange { request, reply, .. } = exchange;
        if !matches!(request.method(), b"GET" | b"HEAD") {
            return false;
        }
        let Some(entry) = self.resolver.find_now(request, self.thread.second()) else {
            return false;
        };
        let Content::Memory(bytes) = &entry.content else { return false };
        reply.carried_type().is_none()
            && decide(request, &entry, self.settings().max_ranges) == Outcome::Whole
            && reply.buffer_reply(200, &entry.fields, bytes)
    }

    /// Sends the file that `path` names, or a compressed sibling that the client prefers.
    async fn send(
        &self,
        exchange: &mut Exchange,
        path: &[u8],
        entry: Rc<CachedFile>,
    ) -> Result<(), Fault> {
        let max_ranges = self.settings().max_ranges;
        if self.settings().precompressed.is_empty() {
            return send(exchange, &entry, max_ranges).await;
        }
        let sibling = self.sibling(exchange, path, &entry);
        send(exchange, &sibling.unwrap_or(entry), max_ranges).await
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
        let codings = negotiate::codings(request, &self.settings().precompressed);
        let second = self.thread.second();
        let cache = &self.resolver.cache;
        let sibling = codings
            .into_iter()
            .find_map(|coding| cache.find_sibling(path, entry, coding, second))?;
        let value = |known| request.head.value(known, &request.bytes);
        let fits = value(KnownField::Range).is_none()
            || value(KnownField::IfRange) == Some(sibling.etag.as_bytes());
        fits.then_some(sibling)
    }
}

impl Origin for Files {
    fn takes_body(&self) -> bool {
        false
    }

    fn may_fall_back(&self) -> bool {
        !self.resolver.scripts.is_empty()
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        self.answer_now(exchange)
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.answer(exchange))
    }
}

fn not_found() -> Fault {
    Fault::client(404, "no such file").decline(Decline::IfFallback)
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

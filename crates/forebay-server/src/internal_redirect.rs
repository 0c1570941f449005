//! Follows internal redirects: they replace the reply of an origin by a file or by the answer of
//! another route.
//!
//! The server recognizes `X-Accel-Redirect` and `X-Sendfile` at the end of every reply's head, so
//! origins need no code for them. A script's local `Location` is handled in the same way. The rest
//! of the reply is read and discarded, so that the backend's connection stays usable.
//!
//! The replacement is a file below `sendfile_root`, or the answer to a GET for another path, after
//! at most ten redirects. A file is sent with the fields of the discarded reply. The new method and
//! target are stored in the request's buffer, after the head.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_conf::EncodedSlashes;
use forebay_net::fault::Fault;
use forebay_wire::sendfile::{self, NamedFile};

use crate::decide::Walk;
use crate::dispatch::{WORTH_DRAINING, try_routes};
use crate::exchange::Exchange;
use crate::reply::{FieldChanges, InternalRedirect, Rules};
use crate::route::{Route, Site};
use crate::ssi::{self, Routes};
use crate::stream::Stream;

/// Maximum number of internal redirects of one request.
const REDIRECTS: usize = 10;

/// The site and route from which a redirect comes.
pub struct Origins<'s> {
    /// The site.
    pub site: &'s Site,
    /// The route whose origin replied.
    pub route: &'s Route,
    /// The walk that has led to this route.
    pub walk: Walk<'s, Route>,
}

/// Answers the request with the target of `redirect`, and follows further redirects.
pub async fn follow<'s>(
    stream: &Stream,
    exchange: &mut Exchange,
    origins: Origins<'s>,
    redirect: InternalRedirect,
    answering: &mut Option<&'s Route>,
) -> Result<(), Fault> {
    let Exchange { request, .. } = &*exchange;
    let (method, target, original, asked) =
        (request.head.method, request.head.path_and_query, request.original, request.asked);
    let outcome = follow_all(stream, exchange, origins, redirect, answering).await;
    // For the log, restore the client's own method and target, and the members `original` and
    // `asked`.
    let request = &mut exchange.request;
    (request.head.method, request.head.path_and_query) = (method, target);
    let _ = request.clean_path();
    (request.original, request.asked) = (original, asked);
    outcome
}

/// Follows redirects until an origin answers without one. Fails after `REDIRECTS` redirects.
async fn follow_all<'s>(
    stream: &Stream,
    exchange: &mut Exchange,
    Origins { site, mut route, mut walk }: Origins<'s>,
    mut redirect: InternalRedirect,
    answering: &mut Option<&'s Route>,
) -> Result<(), Fault> {
    for _ in 0..REDIRECTS {
        match redirect {
            InternalRedirect::Route(target) => {
                prepare_get(exchange, &target).await?;
                // A script may choose an internal route by `Location` only where it may do so by
                // `X-Accel-Redirect`.
                exchange.request.is_internal = route.internal_redirects;
                let found = site.first_route(&exchange.request);
                if found.is_some_and(|found| found.facts.internal) && !route.internal_redirects {
                    return Err(closed_route(&target));
                }
            }
            InternalRedirect::File { place: NamedFile::Uri(target), fields }
                if route.internal_redirects =>
            {
                prepare_internal(exchange, (site, route), &target, fields).await?;
            }
            InternalRedirect::Includes(page) => {
                return ssi::answer(stream, exchange, *page, &RoutesOfSite(site)).await;
            }
            InternalRedirect::Page { status, fields } => {
                return exchange.respond_error_with(status, &fields).await;
            }
            InternalRedirect::File { place, fields } => {
                return send_file(exchange, route, &place, fields).await;
            }
        }
        walk.restart();
        route = try_routes(stream, exchange, site, &mut walk, answering).await?;
        redirect = match exchange.reply.take_redirect() {
            Some(redirect) => redirect,
            None => return Ok(()),
        };
    }
    Err(Fault::app(500, format!("more than {REDIRECTS} internal redirects, one after the other")))
}

/// The routes of a site, for the documents that a page includes.
struct RoutesOfSite<'s>(&'s Site);

impl Routes for RoutesOfSite<'_> {
    fn answer<'a>(
        &'a self,
        stream: &'a Stream,
        exchange: &'a mut Exchange,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(async move {
            let (site, mut answering) = (self.0, None);
            let mut walk = Walk::new(&site.routes, site.encoded_slashes).by_index(&site.index);
            let route = try_routes(stream, exchange, site, &mut walk, &mut answering).await?;
            let Some(redirect) = exchange.reply.take_redirect() else { return Ok(()) };
            let origins = Origins { site, route, walk };
            follow_all(stream, exchange, origins, redirect, &mut answering).await
        })
    }

    fn encoded_slashes(&self) -> EncodedSlashes {
        self.0.encoded_slashes
    }
}

/// Converts the request to a GET for `target`, which the origin has named instead of a reply. Fails
/// if `target` is not a valid path.
async fn prepare_get(exchange: &mut Exchange, target: &[u8]) -> Result<(), Fault> {
    let end = memchr::memchr(b'#', target).unwrap_or(target.len());
    let target = &sendfile::escape_unencoded(&target[..end])[..];
    let wrong = |what: &str| {
        let target = String::from_utf8_lossy(target);
        Fault::app(502, format!("the Location {target:?} of an internal redirect {what}"))
    };
    if !target.starts_with(b"/") {
        return Err(wrong("is not a path"));
    }
    discard_body(exchange).await?;
    let request = &mut exchange.request;
    let original = request.original.unwrap_or(request.head.path_and_query);
    request.become_get(Some(target));
    let cleaned = request.clean_path();
    // REQUEST_URI and the log contain the client's own target, as with Apache and nginx.
    (request.original, request.is_internal) = (Some(original), true);
    cleaned.map_err(|error| wrong(&format!("is malformed: {error}")))
}

/// The fault for a script whose `Location` leads to a route with `internal`, although its own route
/// has no `internal_redirects`.
fn closed_route(target: &[u8]) -> Fault {
    let target = String::from_utf8_lossy(target);
    let why = format!(
        "the Location {target:?} of a script leads to a route with `internal`; set \
         internal_redirects = true for the script's route if the script may choose such routes"
    );
    Fault::backend(502, why)
}

/// Converts the request to a GET for the target in `X-Accel-Redirect`. Fails if the target selects
/// no route, or a route without `internal`. Otherwise an application could bypass the access rules
/// of that route.
///
/// The reply to the GET gets the lines in `fields`, which come from the reply with
/// `X-Accel-Redirect`. Lines other than `Set-Cookie` are left out if the new reply has a field of
/// the same name. Lines are also left out if a rule of `route` removes their field.
async fn prepare_internal(
    exchange: &mut Exchange,
    (site, route): (&Site, &Route),
    target: &[u8],
    fields: Vec<u8>,
) -> Result<(), Fault> {
    prepare_get(exchange, target).await?;
    let found = site.first_route(&exchange.request);
    if found.is_none_or(|found| !found.facts.internal) {
        let target = String::from_utf8_lossy(target);
        let why = format!("X-Accel-Redirect {target:?} leads to no route with `internal`");
        return Err(Fault::backend(502, why));
    }
    let changed = route.rules.as_ref().map_or(Vec::new(), |rules| rules.removed());
    let changes = FieldChanges { remove: changed, ..FieldChanges::default() };
    let mut kept = fields;
    changes.remove_from(&mut kept, 0);
    exchange.reply.carry(&kept);
    Ok(())
}

/// Sends the file that the reply of `route` named, with the fields of that reply. Fails if the
/// route has no directory for such files, or if the file is not in this directory.
async fn send_file(
    exchange: &mut Exchange,
    route: &Route,
    place: &NamedFile,
    fields: Vec<u8>,
) -> Result<(), Fault> {
    let sendfile = route.sendfile.as_ref();
    let sendfile = sendfile.ok_or_else(|| {
        Fault::us(500, "the reply names a file, but the route has no directory for files")
    })?;
    let Some(path) = place.below(&sendfile.root) else {
        let root = sendfile.root.display();
        return Err(Fault::backend(502, format!("asked for a file outside {root}: {place:?}")));
    };
    discard_body(exchange).await?;
    let Exchange { request, reply, .. } = exchange;
    // Forebay itself sends the file, so a slow client occupies no process of an application. A
    // backlog is not needed.
    reply.set_buffered(false);
    request.become_get(None);
    // The file route looks up `rest`: the whole path without its leading slash.
    request.rest = 1..path.len();
    request.path = path;
    let rules = route.rules.as_ref().map(|rules| rules.of_request(request));
    let remove = rules.as_ref().map_or(Vec::new(), |rules| rules.removed());
    let always = FieldChanges { remove, ..FieldChanges::default() };
    reply.set_rules(Some(Rc::new(Rules { always, ..Rules::default() })));
    reply.carry(&fields);
    sendfile.files.serve(exchange).await.map_err(|fault| {
        // An error page replaces the file, and the route's rules apply to this page.
        exchange.reply.set_rules(rules);
        match fault.status {
            403 | 404 => Fault::backend(fault.status, format!("{fault}, asked for as {place:?}")),
            _ => fault,
        }
    })
}

/// Discards the body, so that the next origin sees a request without a body. If the body is long,
/// the connection closes after the reply.
async fn discard_body(exchange: &mut Exchange) -> Result<(), Fault> {
    if !exchange.body.discard(WORTH_DRAINING).await? {
        exchange.reply.close_after();
    }
    exchange.body.discard_for_redirect();
    Ok(())
}

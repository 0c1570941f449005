//! From routes to a reply: the first route that takes the request, the routes below it where that
//! one has nothing, and what a reply asks to be sent in its place.

use std::rc::Rc;

use crate::body::Body;
use crate::diversion::{Diversion, Place};
use crate::exchange::{Client, Exchange};
use crate::fault::Fault;
use crate::limit::Limit;
use crate::reply::{Reply, Rules};
use crate::route::{Route, Site};
use crate::timing::Step;

/// Unread body bytes that are worth reading to keep the connection.
pub const WORTH_DRAINING: u64 = 64 * 1024;

/// Internal redirects of one request.
const REDIRECTS: usize = 10;

/// Answers a request by the routes of `site`. `is_logged` is set to what the answering route says.
pub async fn dispatch(
    client: &Client,
    exchange: &mut Exchange,
    site: Option<&Site>,
    is_logged: &mut bool,
) -> Result<(), Fault> {
    let Some(site) = site else { return Err(no_route()) };
    let mut taken = Vec::new();
    let route = by_routes(client, exchange, site, &mut taken, is_logged).await?;
    let Some(diversion) = exchange.reply.take_diversion() else { return Ok(()) };
    let Exchange { request, .. } = &*exchange;
    let (method, target, asked) = (request.head.method, request.head.path_and_query, request.asked);
    // In a box, as the futures of idle connections have room for all that can happen to them.
    let from = From { site, route, taken };
    let outcome = Box::pin(divert(client, exchange, from, diversion, is_logged)).await;
    // The log tells what the client asked.
    let request = &mut exchange.request;
    (request.head.method, request.head.path_and_query) = (method, target);
    let _ = request.clean_path();
    request.asked = asked;
    outcome
}

/// What asked for something else in place of its reply.
struct From<'s> {
    site: &'s Site,
    route: &'s Route,
    /// Routes, by number, whose `fallback_to` was followed: each is once.
    taken: Vec<usize>,
}

async fn divert(
    client: &Client,
    exchange: &mut Exchange,
    From { site, mut route, mut taken }: From<'_>,
    mut diversion: Diversion,
    is_logged: &mut bool,
) -> Result<(), Fault> {
    for _ in 0..REDIRECTS {
        match diversion {
            Diversion::Route(target) => redirect(exchange, &target).await?,
            Diversion::Path(path) => exchange.request.reroute(path),
            Diversion::File { place, fields } => {
                return send_file(exchange, route, &place, fields).await;
            }
        }
        route = by_routes(client, exchange, site, &mut taken, is_logged).await?;
        diversion = match exchange.reply.take_diversion() {
            Some(diversion) => diversion,
            None => return Ok(()),
        };
    }
    Err(Fault::app(500, format!("more than {REDIRECTS} internal redirects, one after the other")))
}

/// The first route whose origin does not leave the request to the ones below.
async fn by_routes<'s>(
    client: &Client,
    exchange: &mut Exchange,
    site: &'s Site,
    taken: &mut Vec<usize>,
    is_logged: &mut bool,
) -> Result<&'s Route, Fault> {
    let mut from = 0;
    let mut passed_on = None;
    while let Some((at, route)) = site.route(&mut exchange.request, from) {
        *is_logged = route.log;
        if site.is_ambiguous(&exchange.request, from, at) {
            return Err(ambiguous_route());
        }
        from = at + 1;
        exchange.reply.set_rules(route.rules.clone());
        if let Some(gate) = &route.gate
            && !gate.admit(exchange).await?
        {
            return Ok(route);
        }
        let Exchange { request, body, reply, .. } = exchange;
        reply.set_buffered(route.buffer);
        admit_body(body, reply, route).await?;
        if route.request_buffering {
            client.enter(Step::Body);
            body.buffer().await?;
            request.head.framing = body.framing();
        }
        client.enter(Step::Origin);
        let fault = match serve_client(client, route, exchange).await {
            Err(fault) if fault.is_not_mine && !exchange.reply.has_begun() => fault,
            outcome => return outcome.map(|()| route),
        };
        // A suffix within the path may have turned out to end no script's name.
        let is_by_segment = route.matcher.is_by_segment(&exchange.request.path);
        let is_for_below = fault.is_for_below || route.fallback || is_by_segment;
        let fallback_to = route.fallback_to.as_ref().filter(|_| !taken.contains(&at));
        if !is_for_below && fallback_to.is_none() {
            return Err(fault);
        }
        exchange.reply.prepare(&exchange.request.head, exchange.request.method());
        match fallback_to {
            Some(path) if !is_for_below => {
                taken.push(at);
                exchange.reply.reroute(path.clone());
                return Ok(route);
            }
            _ => passed_on = Some(fault),
        }
    }
    Err(passed_on.unwrap_or_else(no_route))
}

/// Has the origin answer, as long as the client is there.
async fn serve_client(
    client: &Client,
    route: &Route,
    exchange: &mut Exchange,
) -> Result<(), Fault> {
    if !route.origin.ends_with_client() {
        return route.origin.serve(exchange).await;
    }
    tokio::select! {
        biased;
        outcome = route.origin.serve(exchange) => outcome?,
        () = client.gone() => return Err(client_left()),
        error = client.drain_for_ever() => return Err(Fault::client_gone(&error, Limit::Write)),
    }
    if !client.has_backlog() {
        return Ok(());
    }
    // What made the reply has ended, and serves others meanwhile.
    tokio::select! {
        biased;
        drained = exchange.reply.drain() => drained,
        () = client.gone() => Err(client_left()),
    }
}

fn client_left() -> Fault {
    Fault::client(499, "the client closed before it was answered")
}

/// Of a path that another route takes where `%2F` and backslashes are read as slashes: the backend
/// may read it so, past the route that is in front of it.
pub fn ambiguous_route() -> Fault {
    Fault::client(404, "an encoded slash or a backslash in the path decides about the route")
}

fn no_route() -> Fault {
    Fault::client(404, "no route takes this request")
}

/// Checks the body against the route's limit, and reads it where the origin does not. A route that
/// falls back leaves it as it is, for the next one.
async fn admit_body(body: &mut Body, reply: &mut Reply, route: &Route) -> Result<(), Fault> {
    let takes_body = route.origin.takes_body();
    if (route.passes_on() || route.origin.may_pass_on()) && !takes_body {
        if !body.is_small(WORTH_DRAINING) {
            reply.close_after();
        }
        return Ok(());
    }
    body.limit(route.max_body)?;
    if !takes_body && !body.discard(WORTH_DRAINING).await? {
        reply.close_after();
    }
    Ok(())
}

/// Makes the request one for `target`, which an origin named in place of a reply.
async fn redirect(exchange: &mut Exchange, target: &[u8]) -> Result<(), Fault> {
    let end = memchr::memchr(b'#', target).unwrap_or(target.len());
    let target = &target[..end];
    let wrong = |what: &str| {
        let target = String::from_utf8_lossy(target);
        Fault::app(502, format!("the Location {target:?} of an internal redirect {what}"))
    };
    if !target.starts_with(b"/") || !target.iter().all(u8::is_ascii_graphic) {
        return Err(wrong("is not a path, percent-encoded"));
    }
    hide_body(exchange).await?;
    exchange.request.become_get(Some(target));
    exchange.request.clean_path().map_err(|error| wrong(&format!("is malformed: {error}")))
}

/// Sends the file that the reply of `route` asked for, with the fields of that reply.
async fn send_file(
    exchange: &mut Exchange,
    route: &Route,
    place: &Place,
    fields: Vec<u8>,
) -> Result<(), Fault> {
    let sendfile = route.sendfile.as_ref();
    let sendfile = sendfile.ok_or_else(|| Fault::us(500, "a file to send, and no directory"))?;
    let Some(path) = place.below(&sendfile.root) else {
        let root = sendfile.root.display();
        return Err(Fault::backend(502, format!("asked for a file outside {root}: {place:?}")));
    };
    hide_body(exchange).await?;
    let Exchange { request, reply, .. } = exchange;
    // A file holds up no process.
    reply.set_buffered(false);
    request.become_get(None);
    // What is looked up has no slash in front.
    request.rest = 1..path.len();
    request.path = path;
    let mut remove = route.rules.as_ref().map_or(Vec::new(), |rules| rules.remove.clone());
    if fields.split(|&b| b == b'\n').any(|l| l.to_ascii_lowercase().starts_with(b"content-type:")) {
        remove.push("content-type".into());
    }
    reply.set_rules(Some(Rc::new(Rules { add: fields, remove, ..Rules::default() })));
    sendfile.files.serve(exchange).await.map_err(|fault| {
        // The fields are those of the file, not of a page that tells of an error.
        exchange.reply.set_rules(route.rules.clone());
        match fault.status {
            403 | 404 => Fault::backend(fault.status, format!("{fault}, asked for as {place:?}")),
            _ => fault,
        }
    })
}

/// Whoever answers next sees a request without a body.
async fn hide_body(exchange: &mut Exchange) -> Result<(), Fault> {
    if !exchange.body.discard(WORTH_DRAINING).await? {
        exchange.reply.close_after();
    }
    exchange.body.conceal();
    Ok(())
}

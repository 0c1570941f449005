//! The life of a request, whatever protocol it came by: the steps from the third on, of which
//! ARCHITECTURE.md has the table. Accepting the connection and reading the head come before, and are
//! the front's.

use std::rc::Rc;
use std::time::Instant;

use forebay_wire::http1::{RequestFraming, TargetForm};
use forebay_wire::path::PathError;

use crate::body::Body;
use crate::exchange::{Client, Exchange, Request};
use crate::fault::{Fault, Side};
use crate::forwarded::{Trust, find_client};
use crate::front::http1::linger;
use crate::internal_redirect::{Origins, follow};
use crate::limit::Limit;
use crate::reply::Reply;
use crate::route::{Route, Site};
use crate::timing::Step;

/// Unread body bytes that are worth reading to keep the connection.
pub const WORTH_DRAINING: u64 = 64 * 1024;

/// What is left to do with the connection.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// It may carry another request.
    Request,
    /// It closes.
    Close,
}

/// Answers the request whose head has been read, and decides about its connection.
pub async fn answer(client: &Rc<Client>, listener: usize, exchange: &mut Exchange) -> Next {
    let started = client.thread.start();
    begin(exchange);
    let site = find_site(client, listener, &exchange.request);
    let site = site.as_deref();
    let mut is_logged = true;
    let outcome = match resolve_client(client, site, &mut exchange.request)
        .and_then(|()| clean_target(client, site, &mut exchange.request))
    {
        Ok(Asked::Path) => answer_by_routes(client, exchange, site, &mut is_logged).await,
        Ok(Asked::Server) => describe_server(exchange).await,
        Err(fault) => Err(fault),
    };
    carry_tunnel(client, exchange, &outcome).await;
    let is_whole = end_reply(client, exchange, outcome).await;
    record(client, exchange, started, is_logged);
    keep_or_close(client, exchange, is_whole).await
}

/// Makes body and reply ready for the request.
fn begin(exchange: &mut Exchange) {
    let Exchange { request, body, reply, .. } = exchange;
    body.prepare(&request.head, &mut request.bytes);
    request.complete_target();
    reply.prepare(&request.head, request.head.method.of(&request.bytes));
}

fn find_site(client: &Client, listener: usize, request: &Request) -> Option<Rc<Site>> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes));
    client.thread.table.borrow().site(listener, authority.unwrap_or_default()).cloned()
}

/// Step 3: who the client is. What a trusted proxy says may make no sense, which its configuration
/// or ours has to mend: it is logged, at most once a second.
fn resolve_client(
    client: &Client,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<(), Fault> {
    let nobody = Trust::default();
    let trust = site.map_or(&nobody, |site| &site.trust);
    find_client(request, client.peer, trust).map_err(|why| {
        client.thread.warn_limited(&format!("400 {why}: from {}", client.peer.ip()));
        why.into()
    })
}

/// What a request is about.
enum Asked {
    /// The path of its target.
    Path,
    /// The server as a whole: `OPTIONS *`.
    Server,
}

/// Makes the path that routes are looked up by.
fn clean_target(
    client: &Client,
    site: Option<&Site>,
    request: &mut Request,
) -> Result<Asked, Fault> {
    if request.head.form == TargetForm::Asterisk {
        return Ok(Asked::Server);
    }
    if matches!(request.method(), b"CONNECT" | b"TRACE") {
        return Err(Fault::client(501, "method not implemented"));
    }
    let slashes = site.map(|site| site.encoded_slashes).unwrap_or_default();
    request.prepare_path(slashes).map(|()| Asked::Path).map_err(|error| {
        if error == PathError::EncodedSlash {
            client.thread.warn_limited(&format!(
                "404 {error}: {}, from {}; where an application needs such paths, set \
                 encoded_slashes = \"pass\" for its site",
                String::from_utf8_lossy(request.asked_target()),
                client.peer.ip()
            ));
        }
        Fault::client(error.status(), error.to_string())
    })
}

async fn describe_server(exchange: &mut Exchange) -> Result<(), Fault> {
    let reply = &mut exchange.reply;
    reply.begin(200, b"");
    reply.field("Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    reply.end_head(crate::reply::Length::Known(0), false);
    reply.finish().await
}

/// Steps 4 to 9, again for what a reply names in its place. `is_logged` is set to what the answering
/// route says.
async fn answer_by_routes(
    client: &Client,
    exchange: &mut Exchange,
    site: Option<&Site>,
    is_logged: &mut bool,
) -> Result<(), Fault> {
    let Some(site) = site else { return Err(no_route()) };
    let mut taken = Vec::new();
    let route = ask_routes(client, exchange, site, &mut taken, is_logged).await?;
    let Some(redirect) = exchange.reply.take_redirect() else { return Ok(()) };
    let origins = Origins { site, route, taken };
    // In a box, as the futures of idle connections have room for all that can happen to them.
    Box::pin(follow(client, exchange, origins, redirect, is_logged)).await
}

/// Asks the routes that take the request, one after the other, until the origin of one does not
/// leave it to those below.
pub async fn ask_routes<'s>(
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
        if !admit(client, exchange, route).await? {
            return Ok(route);
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

/// Step 5: who may use the route, and with how large a body. `false` where the request has been
/// answered by that.
async fn admit(client: &Client, exchange: &mut Exchange, route: &Route) -> Result<bool, Fault> {
    exchange.reply.set_rules(route.rules.clone());
    // What the gate answers is not the route's.
    exchange.reply.set_buffered(false);
    if let Some(gate) = &route.gate
        && !gate.admit(exchange).await?
    {
        return Ok(false);
    }
    let Exchange { request, body, reply, .. } = exchange;
    reply.set_buffered(route.buffer);
    admit_body(body, reply, route).await?;
    if route.request_buffering {
        client.enter(Step::Body);
        body.buffer().await?;
        request.head.framing = body.framing();
    }
    Ok(true)
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

/// After a 101 the connection carries bytes both ways until the tunnel ends.
async fn carry_tunnel(client: &Client, exchange: &mut Exchange, outcome: &Result<(), Fault>) {
    if outcome.is_ok()
        && let Some(tunnel) = exchange.tunnel.take()
    {
        client.end_steps();
        // Boxed, so that requests that are no upgrades do not carry room for a tunnel.
        Box::pin(exchange.carry(&client.socket, *tunnel)).await;
    }
}

/// Brings the reply to an end whatever the origin did; whether the client has got all of one.
async fn end_reply(client: &Client, exchange: &mut Exchange, outcome: Result<(), Fault>) -> bool {
    let Exchange { request, body, reply, .. } = exchange;
    let fault = match outcome {
        Ok(()) if reply.is_done() => return true,
        Ok(()) => Fault::us(500, "the origin left its reply unfinished"),
        Err(fault) => fault,
    };
    if let Some(limit) = fault.limit {
        client.thread.counters.count_limit(limit);
    }
    report(client, request, &fault);
    reply.restart();
    // Nobody drains a backlog behind the origin any more.
    reply.set_buffered(false);
    if reply.has_begun() {
        client.socket.reset();
        return false;
    }
    let framing_lost = fault.side == Side::Client && matches!(fault.status, 400 | 408 | 499);
    if framing_lost || body.framing() != RequestFraming::None && fault.status == 413 {
        reply.close_after();
    }
    if fault.status == 499 {
        reply.note_status(499);
        return false;
    }
    reply.respond_error(fault.status).await.is_ok()
}

/// Step 10: counts the request and logs it.
pub fn record(client: &Client, exchange: &Exchange, started: Option<Instant>, is_logged: bool) {
    client.end_steps();
    client.thread.note(exchange, started, is_logged);
}

/// Step 11: the rest of the body is dropped where that is worth the connection.
async fn keep_or_close(client: &Client, exchange: &mut Exchange, is_whole: bool) -> Next {
    if !is_whole {
        return Next::Close;
    }
    let Exchange { body, reply, .. } = exchange;
    if reply.keeps_alive() && matches!(body.discard(WORTH_DRAINING).await, Ok(true)) {
        return Next::Request;
    }
    if !body.is_done() && !body.is_unasked() {
        linger(client).await;
    }
    Next::Close
}

/// Tells what went wrong. Of the clients' own faults a body over the limit is told, since that may
/// be a limit to raise.
fn report(client: &Client, request: &Request, fault: &Fault) {
    let is_clients = fault.side == Side::Client && fault.status != 500;
    if is_clients && fault.status != 413 {
        return;
    }
    let line = format!(
        "{} {}: {} {}",
        fault.status,
        fault,
        String::from_utf8_lossy(request.method()),
        String::from_utf8_lossy(request.asked_target()),
    );
    if is_clients {
        client.thread.warn_limited(&format!("{line}, from {}", request.client.ip()));
    } else {
        client.thread.errors.say(&line);
    }
}

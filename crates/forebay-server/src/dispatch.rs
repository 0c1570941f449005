//! Selects the route of a request and calls the route's origin (steps 4 to 6 in ARCHITECTURE.md).

mod destination;

use forebay_conf::OnAbort;
use forebay_net::fault::{Decline, Fault};
use forebay_net::limit::Limit;
use forebay_net::request_fields::RequestFields;
use forebay_net::timing::Step;

use crate::body::Body;
use crate::exchange::{Exchange, Gate};
use crate::reply::{Reply, is_preflight};
pub use crate::rewrite::ambiguous_condition;
use crate::rewrite::{fall_back, rewrite_here};
use crate::route::{Instead, Route, Site, is_index_of};
use crate::stream::Stream;

/// Maximum number of unread body bytes that are read to keep the connection.
pub const WORTH_DRAINING: u64 = 64 * 1024;

/// Offers the request to the matching routes in order, until an origin accepts it. Returns the
/// route that answered. Returns a fault if this origin fails, if the request must be refused, or if
/// no route accepts the request. Sets `answering` to each tried route, for the log.
pub async fn try_routes<'s>(
    stream: &Stream,
    exchange: &mut Exchange,
    site: &'s Site,
    taken: &mut Vec<usize>,
    answering: &mut Option<&'s Route>,
) -> Result<&'s Route, Fault> {
    let mut from = 0;
    let mut declined = None;
    let mut kept_from = Vec::new();
    while let Some((at, route)) = site.route(&mut exchange.request, from) {
        if kept_from.contains(&at) || route.rewrites && taken.contains(&at) {
            from = at + 1;
            continue;
        }
        *answering = Some(route);
        let request = &exchange.request;
        if !request.unmasked.is_empty() && site.is_ambiguous(request, from, at) {
            return Err(ambiguous_route());
        }
        if request.is_doubtful(&route.matcher) {
            return Err(ambiguous_condition());
        }
        // Check `internal` before the route's rewrite, which makes every request internal.
        if route.internal && !exchange.request.is_internal {
            return Err(only_internal());
        }
        from = at + 1;
        let mut route = route;
        let mut is_rule = false;
        if site.has_rules_above(at) || route.rewrite.is_some() {
            let second = stream.thread().second();
            let rules = match &route.rewrite {
                Some(to) => rewrite_here(to, (site, at), &mut exchange.request, second)?,
                None => site.rules_above(at, &exchange.request, second)?,
            };
            let ruling = if rules.is_empty() {
                Ruling::Pass
            } else {
                // Box the future. Otherwise each connection, even an idle connection, reserves
                // memory for the future.
                Box::pin(apply_rules(exchange, (site, at), rules)).await?
            };
            match ruling {
                Ruling::Pass => {}
                Ruling::Answered(rule) => {
                    *answering = Some(rule);
                    return Ok(rule);
                }
                Ruling::Answers(rule) => {
                    *answering = Some(rule);
                    (route, is_rule) = (rule, true);
                }
            }
        }
        if destination::is_written(&exchange.request, route)
            && !Box::pin(destination::admit(exchange, site, at)).await?
        {
            return Ok(route);
        }
        // If this route answers because of a rule, `apply_rules` has already asked its gate.
        let gate = route.gate.as_deref().filter(|_| !is_rule);
        if !admit(stream, exchange, route, gate).await? {
            return Ok(route);
        }
        if route.rewrites {
            taken.push(at);
        }
        stream.enter(Step::Origin);
        let clients = route.fields.as_ref().map(|fields| fields.apply(&mut exchange.request));
        let outcome = serve_client(stream, route, exchange).await;
        if let Some(clients) = clients {
            RequestFields::restore(&mut exchange.request, clients);
        }
        let fault = match outcome {
            Err(fault) if fault.is_declined() && !is_rule && !exchange.reply.has_begun() => fault,
            outcome => return outcome.map(|()| route),
        };
        // A route for the suffix `.php` also matches the path `/x.php/y`. If the script `/x.php`
        // does not exist, later routes may answer.
        let is_by_segment = route.matcher.is_by_segment(&exchange.request.path);
        let is_for_below = fault.decline == Decline::Always || route.fallback || is_by_segment;
        let fallback_to = route.fallback_to.as_ref().filter(|_| !taken.contains(&at));
        if !is_for_below && fallback_to.is_none() {
            return Err(fault);
        }
        if fault.is_kept_from_scripts {
            kept_from.extend_from_slice(&route.keeps_from);
        }
        exchange.reply.prepare(&exchange.request.head, exchange.request.method());
        match fallback_to {
            Some(to) if !is_for_below => {
                taken.push(at);
                fall_back(to, exchange)?;
                return Ok(route);
            }
            _ => declined = Some(fault),
        }
    }
    Err(declined.unwrap_or_else(no_route))
}

/// Result of the rules that apply to a request. A rule is an effect of an earlier route on requests
/// of the selected route (see `Rule` in `route.rs`).
enum Ruling<'s> {
    /// The selected route may answer.
    Pass,
    /// The gate of this rule's route has answered the request.
    Answered(&'s Route),
    /// The route of this rule must answer instead of the selected route.
    Answers(&'s Route),
}

/// Applies `rules` to a request that route `at` is to answer. Each rule has the number of its route
/// and another path of the requested resource.
// The compiler inlines a future only if a single function awaits it. The futures of gates are
// awaited here and in `admit`, so the compiler does not inline them. All other futures are awaited
// only in `try_routes`. Inlining them saves 200 instructions per request.
async fn apply_rules<'s>(
    exchange: &mut Exchange,
    (site, at): (&'s Site, usize),
    rules: Vec<(usize, Vec<u8>)>,
) -> Result<Ruling<'s>, Fault> {
    for (number, path) in rules {
        let rule = &site.routes[number];
        prepare(exchange, rule);
        if let Some(gate) = &rule.gate {
            note_gate(exchange.reply.stream(), gate.as_ref());
            // A request for a directory reaches the index file by an internal redirect. So the
            // request counts as internal for this gate, which protects the index file.
            let was_internal = exchange.request.is_internal;
            exchange.request.is_internal |= is_index_of(&exchange.request.path, &path);
            let outcome = gate.admit(exchange).await;
            exchange.request.is_internal = was_internal;
            if !outcome? {
                return Ok(Ruling::Answered(rule));
            }
        }
        if rule.keeps_from.contains(&at) {
            return Err(kept_from_scripts());
        }
        // Only an earlier route answers in place of route `at`. After a rewrite, a rule may come
        // from a later route. In this case, only the gate of the later route applies.
        if rule.instead != Instead::No && number < at {
            exchange.request.reroute(path);
            exchange.request.take(&rule.matcher);
            return Ok(Ruling::Answers(rule));
        }
    }
    Ok(Ruling::Pass)
}

/// Marks an SSI page as private if `gate` decides about an include of this page, and the decision
/// depends on the client. Caches then do not give the page to another visitor.
fn note_gate(stream: &Stream, gate: &dyn Gate) {
    if let Stream::Included(included) = stream
        && gate.is_by_client()
    {
        included.state.is_private.set(true);
    }
}

/// Lets the origin answer. If the client leaves, the route's `on_abort` decides: abandons the answer,
/// or lets the origin finish and drops its output. Returns a fault in both cases.
async fn serve_client(
    stream: &Stream,
    route: &Route,
    exchange: &mut Exchange,
) -> Result<(), Fault> {
    if route.origin.serve_now(exchange) {
        return exchange.reply.finish().await;
    }
    if !route.origin.ends_with_client() {
        return route.origin.serve(exchange).await;
    }
    stream.begin_answer(route.on_abort);
    if exchange.reply.is_to_grpc() {
        // A call may be a stream of messages. Its deadline, if any, is in the request.
        stream.set_live();
    }
    let outcome = serve_or_leave(stream, route, exchange).await;
    stream.begin_answer(OnAbort::Cancel);
    outcome?;
    // The origin has returned, and can serve other requests while the backlog is written.
    if stream.has_backlog() { exchange.reply.drain().await } else { Ok(()) }
}

async fn serve_or_leave(
    stream: &Stream,
    route: &Route,
    exchange: &mut Exchange,
) -> Result<(), Fault> {
    let mut serving = route.origin.serve(exchange);
    tokio::select! {
        biased;
        outcome = &mut serving => match stream.lost() {
            Some(kind) => Err(Fault::client_closed(&kind.into(), Limit::Write)),
            None => outcome,
        },
        () = stream.ended_by_client() => Err(client_left()),
        error = stream.drain_for_ever() => {
            if stream.lose(&error) {
                // An endless reply must not run on for ever, although its application is never
                // silent. Box the future, so that other requests reserve no memory for it.
                let _ = Box::pin(tokio::time::timeout(route.runs_on, serving)).await;
            }
            Err(Fault::client_closed(&error, Limit::Write))
        }
    }
}

fn client_left() -> Fault {
    Fault::client(499, "the client closed before it was answered")
}

/// Returns the fault for a path such as `/a%2Fb`, `/a\b` or `/a//b`, if the path `/a/b` would
/// select another route. A backend may read the path as `/a/b`, so a client could bypass the gate
/// of a route.
pub fn ambiguous_route() -> Fault {
    Fault::client(
        404,
        "an encoded or repeated slash or a backslash in the path decides about the route",
    )
}

/// Returns the fault for a client's own request to a route with `internal`.
pub fn only_internal() -> Fault {
    Fault::client(404, "only internal redirects may lead to this route (`internal`)")
}

pub fn no_route() -> Fault {
    Fault::client(404, "no route takes this request")
}

/// Returns the fault for a script that must not run, because an earlier `files` route allows no
/// scripts in the script's directory.
pub fn kept_from_scripts() -> Fault {
    Fault::client(
        404,
        "a script in a directory of a `files` route above, which allows no scripts there",
    )
}

/// Admits a request to its route. Checks if the route is closed, answers preflight requests, and
/// checks `gate` and the body limit. Returns false if the request has been answered. Returns a
/// fault if the request must be refused.
async fn admit(
    stream: &Stream,
    exchange: &mut Exchange,
    route: &Route,
    gate: Option<&dyn Gate>,
) -> Result<bool, Fault> {
    prepare(exchange, route);
    if let Some(closed) = &route.closed
        && closed.is_for(&exchange.request, stream.thread().second())
    {
        return Box::pin(closed.answer(exchange)).await.map(|()| false);
    }
    // Answer before the gate, because browsers send no password with a preflight request.
    if let Some(cors) = &route.cors
        && is_preflight(&exchange.request)
    {
        let Exchange { request, reply, .. } = exchange;
        return Box::pin(reply.answer_preflight(cors, request)).await.map(|()| false);
    }
    if let Some(gate) = gate {
        note_gate(stream, gate);
        if !gate.admit(exchange).await? {
            return Ok(false);
        }
    }
    if route.rules.as_ref().is_some_and(|rules| route.gate.is_some() && rules.is_by_request()) {
        // Fill in the placeholders of the rules again, because the gate has determined the user.
        let rules = route.rules.as_ref().map(|rules| rules.of_request(&exchange.request));
        exchange.reply.set_rules(rules);
    }
    let Exchange { request, body, reply, .. } = exchange;
    // Set the filter after the gate, because it may depend on the user.
    reply.set_filter(route.filters.as_ref().map(|filters| filters.of_request(request)));
    reply.set_buffered(route.buffer);
    admit_body(body, reply, route).await?;
    if route.request_buffering {
        stream.enter(Step::Body);
        body.buffer().await?;
        request.head.framing = body.framing();
    }
    Ok(true)
}

/// Applies the route's settings to the reply. Call this before the route's gate, because the gate
/// may answer the request.
fn prepare(exchange: &mut Exchange, route: &Route) {
    let rules = route.rules.as_ref().map(|rules| rules.of_request(&exchange.request));
    exchange.reply.set_rules(rules);
    if route.pages.is_some() {
        exchange.reply.set_pages(route.pages.clone(), route.intercepts);
    }
    let offer = route.compression.as_ref().map(|compression| compression.offer(&exchange.request));
    exchange.reply.set_offer(offer);
    exchange.reply.set_filter(None);
    exchange.reply.limit_bandwidth(route.bandwidth_limit);
    exchange.body.limit_idle(route.timeouts.body_idle);
    exchange.reply.stream().limit_writes(route.timeouts.write);
    // A gate's answer needs no backlog, because a slow client does not occupy the route's
    // application.
    exchange.reply.set_buffered(false);
}

/// Checks the body against the route's limit, and discards a body that the origin does not read. If
/// another route may answer instead, leaves such a body to that route. A body that is too long to
/// discard closes the connection after the reply.
async fn admit_body(body: &mut Body, reply: &mut Reply, route: &Route) -> Result<(), Fault> {
    let takes_body = route.origin.takes_body();
    if (route.falls_back() || route.origin.may_fall_back()) && !takes_body {
        if !body.is_small(WORTH_DRAINING) {
            reply.close_after();
        }
        return Ok(());
    }
    body.limit(route.max_body)?;
    // Check `is_done` before the call, because most requests have no body.
    if !takes_body && !body.is_done() && !body.discard(WORTH_DRAINING).await? {
        reply.close_after();
    }
    Ok(())
}

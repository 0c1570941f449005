//! Selects the route of a request and calls the route's origin (steps 4 to 6 in ARCHITECTURE.md).

mod destination;

use forebay_conf::{Cors, OnAbort};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::request_fields::RequestFields;
use forebay_net::timing;

use crate::body::Body;
use crate::decide::{Admission, Step, Walk};
use crate::exchange::{Exchange, Gate};
use crate::pages::Closed;
use crate::reply::{Reply, is_preflight};
use crate::route::{Route, Site};
use crate::stream::Stream;

/// Maximum number of unread body bytes that are read to keep the connection.
pub const WORTH_DRAINING: u64 = 64 * 1024;

/// Carries out the steps of `walk` until an origin accepts the request. Returns the route that
/// answered. Returns a fault if this origin fails, if the request must be refused, or if no route
/// accepts the request. Sets `answering` to each tried route, for the log.
pub async fn try_routes<'s>(
    stream: &Stream,
    exchange: &mut Exchange,
    site: &'s Site,
    walk: &mut Walk<'s, Route>,
    answering: &mut Option<&'s Route>,
) -> Result<&'s Route, Fault> {
    loop {
        let step = walk.next(&mut exchange.request, stream.thread().second());
        if let Some(route) = walk.route() {
            *answering = Some(route);
        }
        let step = step.inspect_err(|_| {
            // The refusal has the fields and the page of the route that refuses.
            if let Some(route) = answering {
                prepare(exchange, route);
            }
        });
        match step? {
            Step::Rewritten | Step::Instead(_) | Step::Again(_) => {}
            Step::Gate { rule, is_internal } => {
                let route = &site.routes[rule];
                // Box the future. Otherwise each connection, even an idle connection, reserves
                // memory for the future.
                if !Box::pin(ask_gate(exchange, route, is_internal)).await? {
                    *answering = Some(route);
                    return Ok(route);
                }
            }
            Step::Admit(admission) => {
                let at = admission.at;
                let route = &site.routes[at];
                if destination::is_written(&exchange.request, route)
                    && !Box::pin(destination::admit(exchange, site, at)).await?
                {
                    return Ok(route);
                }
                if !admit(stream, exchange, route, admission).await? {
                    return Ok(route);
                }
            }
            Step::Answer(at) => {
                let route = &site.routes[at];
                stream.enter(timing::Step::Origin);
                let clients =
                    route.fields.as_ref().map(|fields| fields.apply(&mut exchange.request));
                let outcome = serve_client(stream, route, exchange).await;
                if let Some(clients) = clients {
                    RequestFields::restore(&mut exchange.request, clients);
                }
                let fault = match outcome {
                    Err(fault) if fault.is_declined() && !exchange.reply.has_begun() => fault,
                    outcome => return outcome.map(|()| route),
                };
                walk.declined(&mut exchange.request, fault)?;
                exchange.reply.prepare(&exchange.request.head, exchange.request.method());
            }
            Step::End(fault) => return Err(fault),
        }
    }
}

/// Asks the gate of `route`, which protects the requested resource under another name. Returns
/// false if the gate has answered.
// The compiler inlines a future only if a single function awaits it. The futures of gates are
// awaited here and in `admit`, so the compiler does not inline them. All other futures are awaited
// only in `try_routes`. Inlining them saves 200 instructions per request.
async fn ask_gate(
    exchange: &mut Exchange,
    route: &Route,
    is_internal: bool,
) -> Result<bool, Fault> {
    prepare(exchange, route);
    let Some(gate) = &route.gate else { return Ok(true) };
    note_gate(exchange.reply.stream(), gate.as_ref());
    let was_internal = exchange.request.is_internal;
    exchange.request.is_internal |= is_internal;
    let outcome = gate.admit(exchange).await;
    exchange.request.is_internal = was_internal;
    outcome
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

/// What answers a request in place of its route, before the route's gate is asked.
pub enum BeforeGate<'r> {
    /// The page of the closed route, with status 503.
    Closed(&'r Closed),
    /// The answer to a preflight request, with status 204. Browsers send no password with it.
    Preflight(&'r Cors),
}

/// Returns what answers in place of a route with these keys. `second` is the time, in seconds.
pub fn before_gate<'r>(
    closed: Option<&'r Closed>,
    cors: Option<&'r Cors>,
    request: &Request,
    second: u64,
) -> Option<BeforeGate<'r>> {
    let closed = closed.filter(|closed| closed.is_for(request, second));
    let preflight = || cors.filter(|_| is_preflight(request)).map(BeforeGate::Preflight);
    closed.map(BeforeGate::Closed).or_else(preflight)
}

/// Admits a request to its route. Checks if the route is closed, answers preflight requests, and
/// checks the gate and the body limit. Returns false if the request has been answered. Returns a
/// fault if the request must be refused.
async fn admit(
    stream: &Stream,
    exchange: &mut Exchange,
    route: &Route,
    Admission { is_asked, leads, .. }: Admission,
) -> Result<bool, Fault> {
    prepare(exchange, route);
    let second = stream.thread().second();
    let (closed, cors) = (route.closed.as_deref(), route.cors.as_deref());
    match before_gate(closed, cors, &exchange.request, second) {
        Some(BeforeGate::Closed(closed)) => {
            return Box::pin(closed.answer(exchange)).await.map(|()| false);
        }
        Some(BeforeGate::Preflight(cors)) => {
            let Exchange { request, reply, .. } = exchange;
            return Box::pin(reply.answer_preflight(cors, request)).await.map(|()| false);
        }
        None => {}
    }
    if let Some(gate) = route.gate.as_deref().filter(|_| !is_asked) {
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
    if leads {
        return Ok(true);
    }
    admit_body(body, reply, route).await?;
    if route.request_buffering {
        stream.enter(timing::Step::Body);
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
    if (route.facts.falls_back() || route.origin.may_fall_back()) && !takes_body {
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

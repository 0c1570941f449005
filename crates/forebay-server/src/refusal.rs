//! Refuses requests whose head breaks a rule, for all protocols.

use forebay_conf::Level;
use forebay_net::fault::Fault;
use forebay_net::head::{NamedBy, Request};
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_wire::http1::{HeadError, Http1Limits};
use forebay_wire::http2::HeadRule;

use crate::exchange::Exchange;
use crate::request::record;
use crate::stream::Stream;

/// Returns the maximum number of requests on the connection.
pub fn requests_allowed(thread: &Thread) -> u64 {
    let settings = thread.settings();
    match settings.limits.keepalive_requests {
        _ if settings.timeouts.keep_alive.is_zero() => 1,
        0 => u64::MAX,
        most => most,
    }
}

/// Sends an error reply to a request that is refused before a route is selected. Returns true if
/// the reply could be written.
pub async fn refuse(stream: &Stream, exchange: &mut Exchange, fault: &Fault) -> bool {
    let start = stream.thread().start();
    if let Some(limit) = fault.limit {
        stream.thread().counters.count_limit(limit);
        stream.thread().log_limited_with(Level::Info, || {
            let (key, peer) = (limit.name(), stream.peer());
            format!("{} {fault}: the limit is {key} of [server], from {peer}", fault.status)
        });
    }
    // Clear the values of the previous request on this connection, so that the log does not
    // attribute them to this request.
    let Exchange { request, body, reply, .. } = exchange;
    request.forget_route();
    request.head.fields.clear();
    (request.client, request.peer) = (stream.peer(), stream.peer());
    (request.is_peer_trusted, request.named_by) = (false, NamedBy::XForwarded);
    body.forget(request.bytes.len());
    reply.prepare_refusal(request.method());
    let answered = exchange.reply.respond_fault(fault).await;
    record(stream, exchange, start, (None, None));
    answered.is_ok()
}

/// Returns the fault for a decoded head that violates `rule`. If a configurable limit was reached,
/// the fault names the limit.
pub fn rule_fault(rule: HeadRule) -> Fault {
    let fault = Fault::client(rule.status().unwrap_or(400), rule.to_string());
    match rule {
        HeadRule::TargetTooLong => fault.limited_by(Limit::Target),
        HeadRule::TooLarge => fault.limited_by(Limit::HeadSize),
        HeadRule::GetBody => fault.limited_by(Limit::GetBody),
        _ => fault,
    }
}

/// Returns the fault for a refused head. If a configurable limit was reached, the fault names the
/// limit.
pub fn head_fault(error: HeadError, request: &Request, limits: &Http1Limits) -> Fault {
    let fault = Fault::from(error);
    match error {
        HeadError::TooLarge if request.head.fields.len() >= limits.fields => {
            fault.limited_by(Limit::Fields)
        }
        HeadError::TooLarge => fault.limited_by(Limit::HeadSize),
        HeadError::TargetTooLong => fault.limited_by(Limit::Target),
        HeadError::GetBody => fault.limited_by(Limit::GetBody),
        _ => fault,
    }
}

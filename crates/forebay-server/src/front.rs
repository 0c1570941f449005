//! Fronts: each speaks one protocol and creates streams on its connections.

use std::rc::Rc;

use forebay_wire::http1::{HeadError, Limits};
use forebay_wire::http2::HeadRule;

use crate::context::FrontContext;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::head::Request;
use crate::limit::Limit;
use crate::request::record;
use crate::socket::Socket;
use crate::stream::{Accepted, Stream};
use crate::thread::Thread;

mod ajp;
mod http1;
mod http2;
mod http3;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1, or HTTP/2 if the client begins with its preface (RFC 9113 section 3.3).
    Any,
    /// Only HTTP/1.
    Http1,
    /// Only HTTP/2.
    Http2,
    /// AJP 1.3.
    Ajp,
}

/// Serves a connection until it closes. `prefix` has already been read.
pub async fn serve_connection(
    context: &Rc<FrontContext>,
    socket: Socket,
    accepted: Accepted,
    protocol: Protocol,
    prefix: Vec<u8>,
) {
    if protocol == Protocol::Ajp {
        return Box::pin(ajp::serve_connection(context, socket, accepted, prefix)).await;
    }
    let other = match protocol {
        Protocol::Http2 => Some((socket, accepted, prefix)),
        _ => {
            let may_be_http2 = protocol == Protocol::Any;
            http1::serve_connection(context, socket, accepted, prefix, may_be_http2).await
        }
    };
    if let Some((socket, accepted, prefix)) = other {
        Box::pin(http2::serve_connection(context, socket, accepted, prefix)).await;
    }
}

pub use http3::serve_connection as serve_http3;

/// Returns the maximum number of requests on the connection.
fn requests_allowed(thread: &Thread) -> u64 {
    let settings = thread.settings();
    match settings.limits.keepalive_requests {
        _ if settings.timeouts.keep_alive.is_zero() => 1,
        0 => u64::MAX,
        most => most,
    }
}

/// Answers a request with an unreadable head. Returns true if the reply could be written.
async fn refuse(stream: &Stream, exchange: &mut Exchange, fault: &Fault) -> bool {
    let start = stream.thread().start();
    if let Some(limit) = fault.limit {
        stream.thread().counters.count_limit(limit);
    }
    exchange.request.head.fields.clear();
    exchange.request.path.clear();
    exchange.reply.prepare_refusal(exchange.request.method());
    let answered = exchange.reply.respond_fault(fault).await;
    record(stream, exchange, start, true);
    answered.is_ok()
}

/// Returns the fault for a decoded head that violates a rule.
fn rule_fault(rule: HeadRule) -> Fault {
    let fault = Fault::client(rule.status().unwrap_or(400), rule.to_string());
    match rule {
        HeadRule::TargetTooLong => fault.limited_by(Limit::Target),
        HeadRule::TooLarge => fault.limited_by(Limit::HeadSize),
        HeadRule::GetBody => fault.limited_by(Limit::GetBody),
        _ => fault,
    }
}

/// Returns the fault for a refused head, with the configurable limit if one was reached.
fn head_fault(error: HeadError, request: &Request, limits: &Limits) -> Fault {
    let fault = Fault::from(error);
    match error {
        HeadError::TooLarge if request.head.fields.len() >= limits.fields => {
            fault.limited_by(Limit::Fields)
        }
        HeadError::TooLarge => fault.limited_by(Limit::HeadSize),
        HeadError::GetBody => fault.limited_by(Limit::GetBody),
        _ => fault,
    }
}

//! What becomes of a request that a worker, or a process of a program, did not answer.

use forebay_engine::{Fault, Limit, Retry};
use forebay_workers::{Unavailable, WorkerFault};

/// There is no worker, or no process, for the request.
pub fn unavailable(reason: Unavailable) -> Fault {
    let fault = Fault::app(503, reason.to_string());
    match reason {
        Unavailable::WorkerLost => Fault::app(502, reason.to_string()),
        Unavailable::QueueFull => fault.limited_by(Limit::Queue),
        Unavailable::QueueTimeout => fault.limited_by(Limit::QueueTimeout),
        _ => fault,
    }
}

/// What a worker did wrong.
pub fn worker_fault(fault: WorkerFault) -> Fault {
    let retry = if fault.may_retry() { Retry::Yes } else { Retry::No };
    let status = match fault {
        WorkerFault::Timeout { .. } => 504,
        WorkerFault::Body(_) => 500,
        _ => 502,
    };
    let is_timeout = matches!(fault, WorkerFault::Timeout { .. });
    let fault = Fault::app(status, fault.to_string()).retry(retry);
    if is_timeout { fault.limited_by(Limit::RequestTimeout) } else { fault }
}

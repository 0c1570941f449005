//! Faults of requests that no worker and no process of a program answered.

use forebay_net::fault::{Fault, Retry};
use forebay_net::limit::Limit;
use forebay_workers::{Unavailable, WorkerFault};

/// Returns the fault of a request that gets no worker or process.
pub fn unavailable(reason: Unavailable) -> Fault {
    let fault = Fault::app(503, reason.to_string());
    match reason {
        Unavailable::WorkerLost => Fault::app(502, reason.to_string()),
        Unavailable::QueueFull => fault.limited_by(Limit::Queue),
        Unavailable::QueueTimeout => fault.limited_by(Limit::QueueTimeout),
        _ => fault,
    }
}

/// Returns the fault for an error of a worker.
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

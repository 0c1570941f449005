//! The simulated clients: their plans, and the checks of their replies.

use super::{Attempt, Attempts, one_of};
use crate::checkout::checkout;
use crate::control::{self, Body, Mark};
use crate::error::WorkerFault;
use crate::lease::{Lease, LeaseEvent};
use crate::shared::AppShared;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;
use tokio::time::sleep;

#[derive(Clone, Copy)]
pub(super) struct ClientPlan {
    pub(super) thread: ThreadId,
    client: u64,
    body: usize,
    may_be_prefetched: bool,
    pub(super) leaves_after: Option<Duration>,
    /// Number of events after which the client abandons the reply, as the gateway does.
    abandons_after: Option<usize>,
    /// True if the client never sends the request.
    changes_its_mind: bool,
    reads_every: Duration,
}

impl ClientPlan {
    pub(super) fn random(thread: &ThreadId) -> ClientPlan {
        let rarely = |one_in: u32| fastrand::u32(..one_in) == 0;
        ClientPlan {
            thread: *thread,
            client: fastrand::u64(..3),
            body: *one_of(&[0, 0, 0, 10, 60_000, 300_000]),
            may_be_prefetched: !rarely(5),
            leaves_after: rarely(4).then(|| Duration::from_micros(fastrand::u64(..8000))),
            abandons_after: rarely(8).then(|| fastrand::usize(..3)),
            changes_its_mind: rarely(20),
            reads_every: Duration::from_micros(*one_of(&[0, 0, 0, 300, 5000])),
        }
    }
}

/// Runs one request as its plan says, with up to three attempts. Fails the test if a fault that
/// allows a retry comes after the request has run.
pub(super) async fn client(shared: Arc<AppShared>, plan: ClientPlan, attempts: Attempts) {
    let body = vec![b'x'; plan.body];
    for _ in 0..3 {
        let number = attempts.borrow().len();
        attempts.borrow_mut().push(Attempt::default());
        let block = format!("SCRIPT_FILENAME\0/{number}\0").into_bytes();
        let message = |mark: Mark| {
            let message = control::message(&block, Body::Bytes(&body), mark);
            message.filter(|_| plan.may_be_prefetched).map(Arc::new)
        };
        let Ok(mut lease) = checkout(&shared, plan.thread, || plan.client, message).await else {
            return;
        };
        if plan.changes_its_mind {
            return;
        }
        let outcome = async {
            lease.send(&block, Body::Bytes(&body)).await?;
            take_reply(lease, plan, number, &attempts).await
        };
        match outcome.await {
            Err(fault) if fault.may_retry() => {
                assert_eq!(attempts.borrow()[number].runs, 0, "request {number} has run");
            }
            Err(WorkerFault::Protocol(seen)) => panic!("{seen}"),
            Ok(()) | Err(_) => return,
        }
    }
}

/// Reads the reply, and checks that each byte of it belongs to this request.
async fn take_reply(
    mut lease: Lease,
    plan: ClientPlan,
    number: usize,
    attempts: &Attempts,
) -> Result<(), WorkerFault> {
    let mut reply = Vec::new();
    for events in 0.. {
        if plan.abandons_after == Some(events) {
            lease.abandon().await;
            return Ok(());
        }
        if !plan.reads_every.is_zero() {
            sleep(plan.reads_every).await;
        }
        let event = lease.read(&mut reply).await?;
        let whole = &attempts.borrow()[number].reply;
        match event {
            LeaseEvent::Output(_) => {
                let (own, other) = (show(whole), show(&reply));
                assert!(whole.starts_with(&reply), "{other} in place of {own} for {number}");
            }
            LeaseEvent::End(_) => {
                assert!(*whole == reply, "{} of {} bytes", reply.len(), whole.len());
                break;
            }
        }
    }
    Ok(())
}

/// Returns the start and the end of a reply.
fn show(reply: &[u8]) -> String {
    let end = reply.len().saturating_sub(30);
    let (start, end) = (&reply[..reply.len().min(30)], &reply[end..]);
    format!("{} bytes {}...{}", reply.len(), start.escape_ascii(), end.escape_ascii())
}

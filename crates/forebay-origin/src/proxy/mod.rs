//! HTTP/1.1 backends: requests shared out among them and passed on, replies streamed back.
//!
//! `announce` names the client in a PROXY header, `balance` chooses the backend, `sticky` reads and
//! sets the cookie that names one, `health` asks backends how they are, `converse` is one request
//! over one connection, `upgrade` is what becomes a tunnel.

pub mod announce;
mod balance;
mod converse;
mod health;
mod sticky;
pub(crate) mod upgrade;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_engine::{Exchange, Fault, Origin, Request, Retry, Serving, Side, Thread};

pub use balance::Group;
pub use health::{Check, Checker};

use crate::connect::Backend;
use crate::tally::{Tallies, ThreadTally};
use balance::{Set, Turns, bit};
use converse::{Attempt, Buffers};
use sticky::Sticky;

/// Size of a receive buffer, in bytes; a long body gets the larger one.
const INBOX: usize = 16 * 1024;
/// Buffers kept for reuse.
const SPARE: usize = 64;

/// The route's backends, as one thread knows them.
pub struct Proxy {
    thread: Rc<Thread>,
    backends: Vec<Backend>,
    group: Arc<Group>,
    turns: Turns,
    tally: Rc<ThreadTally>,
    sticky: Option<Sticky>,
    /// The `Host` for each backend; `None`: the client's.
    hosts: Option<Vec<String>>,
    strip_prefix: Option<String>,
    send_proxy: Option<conf::ProxyHeader>,
    #[expect(clippy::vec_box, reason = "buffers move between here and requests by pointer")]
    spare: RefCell<Vec<Box<Buffers>>>,
}

/// How often a request has been tried.
#[derive(Default)]
struct Tries {
    tried: Set,
    /// It has been sent, perhaps been acted on, and been sent again.
    is_resent: bool,
    /// It was lost with a connection that had been kept, which says nothing about the backend.
    was_stale: bool,
}

impl Proxy {
    /// Passes requests to `backends`, those of `plan`; `group` and `tallies` are shared by all
    /// threads.
    pub fn new(
        thread: Rc<Thread>,
        backends: Vec<Backend>,
        group: Arc<Group>,
        tallies: &Arc<Tallies>,
        plan: &conf::Proxy,
    ) -> Self {
        let authorities = || plan.to.iter().map(|backend| backend.authority.clone()).collect();
        Self {
            thread,
            backends,
            tally: tallies.join(),
            group,
            turns: Turns::default(),
            sticky: Sticky::new(plan),
            hosts: (plan.host == conf::HostField::Backend).then(authorities),
            strip_prefix: plan.strip_prefix.clone(),
            send_proxy: plan.send_proxy,
            spare: RefCell::default(),
        }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let is_upgrade = upgrade::is_asked(&exchange.request);
        if is_upgrade {
            upgrade::refuse_body(&exchange.body)?;
        }
        let mut buffers = self.spare.borrow_mut().pop().unwrap_or_default();
        let outcome = self.try_backends(exchange, &mut buffers, is_upgrade).await;
        self.keep(buffers);
        outcome
    }

    /// One backend after the other while the request cannot have been acted on, or may be sent
    /// again. It is sent again once at the most.
    async fn try_backends(
        &self,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
        is_upgrade: bool,
    ) -> Result<(), Fault> {
        let wanted = self.sticky.as_ref().and_then(|sticky| sticky.wanted(&exchange.request));
        let mut tries = Tries::default();
        let mut last = None;
        while let Some(index) = self.group.pick(wanted, tries.tried, &self.turns) {
            tries.tried |= bit(index);
            let attempt = Attempt { proxy: self, index, wanted, is_upgrade };
            let fault = match attempt.run(exchange, buffers, &mut tries).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            if !tries.was_stale {
                self.count(index, &fault);
            }
            let may_resend = || !tries.is_resent && exchange.request.is_idempotent();
            match fault.retry {
                Retry::Yes => {}
                Retry::IfReused if may_resend() && can_resend(exchange) => tries.is_resent = true,
                // Once is enough, for a caller who knows of further backends, too.
                _ if tries.is_resent => return Err(fault.retry(Retry::No)),
                _ => return Err(fault),
            }
            last = Some(fault);
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a proxy without backends")))
    }

    /// Failures of a backend count against it; those of the client do not.
    fn count(&self, index: usize, fault: &Fault) {
        if fault.side != Side::Backend {
            return;
        }
        self.tally.failed(index);
        if self.group.failed(index) {
            let (name, time) = (self.backends[index].name(), self.group.fail_timeout());
            self.thread.errors.say(&format!("{name} is left out for {time:?}: {fault}"));
        }
    }

    fn keep(&self, buffers: Box<Buffers>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE && buffers.inbox.capacity() <= INBOX {
            spare.push(buffers);
        }
    }
}

impl Origin for Proxy {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.forward(exchange))
    }
}

/// Appends the head that the backend numbered `index` would be sent.
pub fn append_head(out: &mut Vec<u8>, request: &Request, plan: &conf::Proxy, index: usize) {
    let is_named = plan.host == conf::HostField::Backend;
    let host = plan.to.get(index).filter(|_| is_named).map(|backend| &backend.authority[..]);
    let is_upgrade = upgrade::is_asked(request);
    converse::append_head(out, request, plan.strip_prefix.as_deref(), host, is_upgrade);
}

/// Whether nobody has seen a reply and the body is still at hand from its first byte.
fn can_resend(exchange: &mut Exchange) -> bool {
    !exchange.reply.has_begun() && exchange.body.rewind()
}

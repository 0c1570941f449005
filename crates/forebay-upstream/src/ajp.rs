//! Servlet containers (Tomcat) over AJP 1.3: distributes requests among them over kept connections,
//! and streams the replies back.
//!
//! `request` encodes a request's head and divides its body into packets, `reply` reads the answer.

mod reply;
mod request;

use std::rc::Rc;

use forebay_conf as conf;
use forebay_conf::{Activation, Ping};
use forebay_net::fault::{Fault, Retry, Side};
use forebay_net::free_list::FreeList;
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_wire::ajp13;
use forebay_wire::http1::RequestFraming;
use request::{Packets, activation_of, append_head_for};

use crate::sticky::Sticky;
use crate::upstream::{
    Attempt, Backend, BackendConnection, BodyAtHand, Carrier, ConnectionOrigin, Upstream,
};
use reply::{Buffers, Disposition, INBOX, Session};

pub use request::append_head;

/// Origin of a route to servlet containers. Each thread has one.
pub struct Ajp {
    upstream: Upstream,
    sticky: Option<Sticky>,
    settings: conf::Ajp,
    /// Activation of each container, in Tomcat's words (such as `DIS` for disabled). Empty if all
    /// are active.
    activations: Vec<&'static [u8]>,
    buffers: Rc<FreeList<Box<Buffers>>>,
}

impl Ajp {
    /// Creates the origin for the containers of `upstream`, configured by `settings`.
    pub fn new(thread: &Thread, upstream: Upstream, settings: conf::Ajp) -> Self {
        let sticky = Sticky::new(&settings.upstream);
        let servers = &settings.upstream.to;
        let activations = if servers.iter().all(|to| to.activation == Activation::Active) {
            Vec::new()
        } else {
            servers.iter().map(activation_of).collect()
        };
        Self { upstream, sticky, settings, activations, buffers: thread.free_list() }
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let mut buffers = self.buffers.take().unwrap_or_default();
        let outcome = self.forward_with(exchange, &mut buffers).await;
        if buffers.inbox.capacity() <= INBOX {
            self.buffers.give(buffers);
        }
        outcome
    }

    /// Encodes the head and the first data packet into `buffers`, and sends the request to one of
    /// the containers.
    async fn forward_with(
        &self,
        exchange: &mut Exchange,
        buffers: &mut Buffers,
    ) -> Result<(), Fault> {
        let framing = exchange.body.framing();
        buffers.out.clear();
        append_head(&mut buffers.out, &exchange.request, &self.settings, framing)?;
        let head = (buffers.out.len(), framing);
        let wanted = self.sticky.as_ref().and_then(|sticky| sticky.wanted(&exchange.request));
        let mut packets = Packets::new(framing, self.settings.packet_size);
        packets.append_first(&mut buffers.out, &mut exchange.body).await?;
        let is_repeatable =
            exchange.request.is_idempotent() && exchange.body.framing() == RequestFraming::None;
        let mut carrier =
            AjpCarrier { origin: self, wanted, is_repeatable, head, packets, buffers };
        exchange.enter(Step::Connect);
        let outcome = self.upstream.send(&mut carrier, exchange, wanted).await;
        outcome.map(drop).map_err(|fault| self.unavailable(fault))
    }

    /// Changes the status of `fault` to 503, as mod_jk does, if no container of the route accepted
    /// a connection. Returns all other faults unchanged.
    fn unavailable(&self, fault: Fault) -> Fault {
        let is_route = !self.settings.upstream.to.is_empty();
        let is_unconnected =
            fault.side == Side::Backend && fault.status == 502 && fault.retry == Retry::Yes;
        if is_route && is_unconnected { Fault { status: 503, ..fault } } else { fault }
    }

    /// Pings the container over `connection`. Fails if no answer arrives within the connect
    /// timeout.
    async fn ping(&self, backend: &Backend, connection: &BackendConnection) -> Result<(), Fault> {
        let limit = backend.connect_timeout();
        let asking = async {
            let sent = connection.socket.write_all(ajp13::PING).await;
            sent.map_err(|error| backend.lost(&error))?;
            let mut inbox = Vec::with_capacity(64);
            loop {
                if backend.read(&connection.socket, &mut inbox).await? == 0 {
                    return Err(backend.cut_off(false));
                }
                let malformed = |error| Fault::backend(502, format!("{}: {error}", backend.name()));
                if ajp13::parse_pong(&inbox).map_err(malformed)? == Some(inbox.len()) {
                    connection.answered();
                    return Ok(());
                }
            }
        };
        tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
            let message = format!("{} answers no ping within {limit:?}", backend.name());
            Err(Fault::backend(504, message).limited_by(Limit::Connect))
        })
    }
}

impl Origin for Ajp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.forward(exchange))
    }
}

/// A request that the upstream may send to several containers, one after another.
struct AjpCarrier<'a> {
    origin: &'a Ajp,
    /// Number of the container that the request's session names, in its cookie or path.
    wanted: Option<usize>,
    /// True if the request may be sent more than once.
    is_repeatable: bool,
    /// Length of the head in `buffers.out`, and the framing that this head announces for the body.
    head: (usize, RequestFraming),
    packets: Packets,
    buffers: &'a mut Buffers,
}

impl AjpCarrier<'_> {
    /// Encodes the head again, so that it contains the activation of container `index`, such as
    /// `disabled`. Does nothing if all containers are active.
    fn announce_activation(&mut self, index: usize, request: &Request) -> Result<(), Fault> {
        let Some(activation) = self.origin.activations.get(index) else { return Ok(()) };
        let (length, framing) = self.head;
        let mut head = Vec::new();
        append_head_for(&mut head, request, &self.origin.settings, framing, Some(activation))?;
        self.head.0 = head.len();
        self.buffers.out.splice(..length, head);
        Ok(())
    }
}

impl Carrier for AjpCarrier<'_> {
    type Connection = BackendConnection;
    type Outcome = ();

    /// Returns a connection. Depending on the key `ping` of the route, first sends a ping over the
    /// connection. If a kept connection does not answer, replaces it by a new connection. If a new
    /// connection does not answer, returns a fault.
    async fn connect(
        &mut self,
        attempt: &Attempt<'_>,
        is_new: bool,
    ) -> Result<(BackendConnection, ConnectionOrigin), Fault> {
        let (backend, ping) = (attempt.backend, self.origin.settings.ping);
        let mut connection = if self.is_repeatable || is_new || ping == Ping::Always {
            backend.connect(is_new).await?
        } else {
            backend.connect_non_idempotent().await?
        };
        if connection.past() == ConnectionOrigin::Kept && ping == Ping::Always {
            match self.origin.ping(backend, &connection).await {
                Ok(()) => return Ok((connection, ConnectionOrigin::Kept)),
                Err(_) => {
                    drop(connection);
                    connection = backend.connect(true).await?;
                }
            }
        }
        let past = connection.past();
        if past == ConnectionOrigin::New && ping != Ping::Off {
            self.origin.ping(backend, &connection).await?;
        }
        Ok((connection, past))
    }

    async fn exchange(
        &mut self,
        attempt: &Attempt<'_>,
        connection: BackendConnection,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        exchange.enter(Step::Origin);
        self.announce_activation(attempt.index(), &exchange.request)?;
        let Self { origin, wanted, packets, buffers, .. } = self;
        packets.rewind(&mut exchange.body).await?;
        let session = Session {
            attempt,
            connection: &connection,
            sticky: origin.sticky.as_ref().map(|sticky| (sticky, *wanted)),
        };
        match session.run(exchange, packets, buffers).await? {
            Disposition::Keep => attempt.backend.keep(connection),
            Disposition::Close => {}
        }
        Ok(())
    }

    fn body(&self) -> BodyAtHand {
        if self.packets.is_at_hand() { BodyAtHand::Whole } else { BodyAtHand::Streamed }
    }
}

//! One request to one container, and its reply.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::pin;

use forebay_net::fault::{Fault, Side};
use forebay_net::head::Request;
use forebay_net::socket::Socket;
use forebay_server::body::Body;
use forebay_server::exchange::Exchange;
use forebay_server::reply::{Length, Reply, is_live_type};
use forebay_wire::ajp13::{AjpError, MOST_PACKET, PacketEvent, ReplyDecoder, ReplyHead};
use forebay_wire::http1::{KnownField, list_has};

use super::request::{BodyDemand, Packets};
use crate::reply_pump::FramedPump;
use crate::script_reply::head_fault;
use crate::sticky::Sticky;
use crate::upstream::{Attempt, Backend, BackendConnection};

/// Size of a receive buffer, in bytes.
pub const INBOX: usize = 16 * 1024;

/// Buffers of one request.
#[derive(Default)]
pub struct Buffers {
    /// The head, and the first data packet if the length of the body is known.
    pub out: Vec<u8>,
    /// A further data packet.
    packet: Vec<u8>,
    pub inbox: Vec<u8>,
    head: ReplyHead,
}

/// The use of a connection after the reply.
pub enum Disposition {
    Keep,
    Close,
}

/// A request and its reply over one connection.
pub struct Session<'a> {
    pub attempt: &'a Attempt<'a>,
    pub connection: &'a BackendConnection,
    /// Sticky session rules, and the container that the request named.
    pub sticky: Option<(&'a Sticky, Option<usize>)>,
}

impl Session<'_> {
    fn socket(&self) -> &Socket {
        &self.connection.socket
    }

    fn backend(&self) -> &Backend {
        self.attempt.backend
    }

    /// Sends the contents of `buffers`, then reads the reply and sends the packets that the
    /// container requests. Reads and sends at the same time, because a container may answer before
    /// it has read the whole body.
    pub async fn run(
        &self,
        exchange: &mut Exchange,
        packets: &mut Packets,
        buffers: &mut Buffers,
    ) -> Result<Disposition, Fault> {
        let Buffers { out, packet, inbox, head } = buffers;
        let Exchange { request, body, reply, .. } = exchange;
        self.socket().write_soon(out).await.map_err(|error| self.backend().lost(&error))?;
        let demand = BodyDemand::default();
        inbox.clear();
        let mut reading = ReplyReading { session: self, request, demand: &demand, inbox, head };
        let mut download = pin!(reading.relay_body(reply));
        let mut upload = pin!(self.upload(&demand, packets, packet, body));
        tokio::select! {
            biased;
            outcome = &mut download => outcome,
            outcome = &mut upload => match outcome {
                Ok(never) => match never {},
                Err(fault) if fault.side != Side::Backend => Err(fault),
                // The upload has failed, but the container may have sent a reply before it stopped
                // reading. Read this reply.
                Err(_) => download.await.map(|_| Disposition::Close),
            },
        }
    }

    /// Sends a packet of the body each time the container requests one. The reply's time limit is
    /// suspended while Forebay waits for the client.
    async fn upload(
        &self,
        demand: &BodyDemand,
        packets: &mut Packets,
        packet: &mut Vec<u8>,
        body: &mut Body,
    ) -> Result<Infallible, Fault> {
        loop {
            let wanted = demand.wait().await;
            self.socket().unlimit_read();
            packet.clear();
            packets.append_next(packet, wanted, body).await?;
            let sent = self.socket().write_all(packet).await;
            sent.map_err(|error| self.backend().lost(&error))?;
            self.socket().limit_read(self.backend().reply_timeout());
            demand.meet();
        }
    }
}

/// Reader of one reply.
struct ReplyReading<'a> {
    session: &'a Session<'a>,
    request: &'a Request,
    demand: &'a BodyDemand,
    inbox: &'a mut Vec<u8>,
    head: &'a mut ReplyHead,
}

impl ReplyReading<'_> {
    /// Reads the reply and sends it to the client.
    async fn relay_body(&mut self, reply: &mut Reply) -> Result<Disposition, Fault> {
        let backend = self.session.backend();
        // The configured packet size limits only the packets to the container. The container may
        // send larger packets, up to the maximum of AJP.
        let most_fields = backend.reply_limits().fields;
        let mut decoder = ReplyDecoder::new(MOST_PACKET).with_most_fields(most_fields);
        let socket = self.session.socket();
        let mut pump = FramedPump { backend, socket, any: false, holds_head: true };
        // Range of the body bytes in `inbox` that were not passed to `reply` yet.
        let mut body = 0..0;
        let mut at = 0;
        loop {
            let step = decoder
                .decode(&self.inbox[at..], self.head)
                .map_err(|error| malformed(backend, error))?;
            let start = at;
            at += step.consumed;
            match step.event {
                Some(PacketEvent::Head) => {
                    self.session.attempt.answered();
                    pump.holds_head = self.head.content_length.is_some_and(|length| length > 0)
                        && !reply.is_to_head();
                    self.begin(reply);
                }
                Some(PacketEvent::Body(range)) => {
                    pump.holds_head = false;
                    let part = start + range.start..start + range.end;
                    body = join(self.inbox, body, part);
                }
                // Before the head has arrived, there is nothing to flush.
                Some(PacketEvent::Flush) => pump.holds_head &= !decoder.has_head(),
                Some(PacketEvent::WantsBody(length)) if self.demand.raise(length) => {}
                Some(PacketEvent::WantsBody(_)) => {
                    let message = format!("{} asks for two packets at once", backend.name());
                    return Err(Fault::backend(502, message));
                }
                Some(PacketEvent::End { reuse }) => {
                    if !body.is_empty() {
                        reply.push(&self.inbox[body]).await?;
                    }
                    reply.finish().await?;
                    if self.head.status == 403 && !reuse {
                        // Tomcat answers a wrong secret with 403, and closes the connection.
                        backend.warn(
                            "403 and the end of the connection: if the application does not send \
                             it, `secret` of the route is not that of the container's connector",
                        );
                    }
                    let is_in_order = at == self.inbox.len() && !self.demand.is_pending();
                    return Ok(if reuse && is_in_order {
                        Disposition::Keep
                    } else {
                        Disposition::Close
                    });
                }
                None => {
                    if !body.is_empty() {
                        reply.push(&self.inbox[std::mem::take(&mut body)]).await?;
                    }
                    if pump.next(self.inbox, at, reply).await? == 0 {
                        return Err(pump.cut_off());
                    }
                    self.session.connection.answered();
                    at = 0;
                }
            }
        }
    }

    /// Begins the reply to the client: copies the end-to-end fields of the container's head, adds
    /// the sticky cookie, and ends the head.
    fn begin(&self, reply: &mut Reply) {
        let head = &*self.head;
        reply.begin(head.status, head.reason());
        let names_fields = head.fields.value(KnownField::Connection).is_some();
        for field in &head.fields {
            let is_named = || {
                let mut lists = head.fields.get_all(b"connection");
                lists.any(|list| list_has(list, field.name))
            };
            let is_dropped = field.known.is_hop_by_hop()
                || field.known == KnownField::ContentLength
                || names_fields && is_named();
            if field.known == KnownField::ContentType && is_live_type(field.value) {
                reply.set_live();
            }
            if !is_dropped {
                append_line(reply.field_lines(), field.name, field.value);
            }
        }
        if let Some((sticky, wanted)) = self.session.sticky {
            let (index, https) = (self.session.attempt.index(), self.request.https);
            sticky.append(reply.field_lines(), index, wanted, https);
        }
        let length = match (head.status, head.content_length) {
            (204 | 304, _) => Length::None,
            (_, Some(length)) => Length::Known(length),
            (_, None) => Length::Unknown,
        };
        reply.end_head(length, head.fields.value(KnownField::Date).is_some());
    }
}

fn malformed(backend: &Backend, error: AjpError) -> Fault {
    let message = format!("{}: {error}", backend.name());
    head_fault(Fault::backend, message, matches!(error, AjpError::Fields(..)))
}

/// Moves the bytes of `part` to the end of `body`, which precedes `part` in `bytes`. Returns the
/// new range of `body`. One write then sends the bytes of all packets of a read.
fn join(bytes: &mut [u8], body: Range<usize>, part: Range<usize>) -> Range<usize> {
    if body.is_empty() {
        return part;
    }
    let end = body.end + part.len();
    bytes.copy_within(part, body.end);
    body.start..end
}

fn append_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

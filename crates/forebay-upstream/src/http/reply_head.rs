//! Converts the head of a backend's reply for the client.

use std::cell::Cell;

use forebay_net::fault::{Fault, Retry};
use forebay_net::head::Request;
use forebay_server::reply::Reply;
use forebay_wire::http1::{KnownField, ResponseFraming, ResponseHead, encode};
use forebay_wire::sendfile;

use super::rewrite;
use crate::fields::{end_head, note_live};
use crate::http::attempt::ProxyAttempt;
use crate::upgrade;

/// A reply head, independent of the HTTP version that carried it.
pub struct ReplyHead<'a> {
    pub attempt: &'a ProxyAttempt<'a>,
    pub request: &'a Request,
    pub head: &'a ResponseHead,
    /// Bytes that the head's spans refer to.
    pub bytes: &'a [u8],
}

impl ReplyHead<'_> {
    /// Returns true if the client gets the trailers. The reply must be chunked, and the client must
    /// accept trailers. `Connection` of the reply must name no fields, because the trailers could
    /// contain such a field.
    pub fn passes_trailers(&self) -> bool {
        self.request.takes_trailers()
            && self.head.framing == ResponseFraming::Chunked
            && !self.head.connection_names_fields
    }

    /// Fails if another backend should get the request because of the status of this reply.
    /// `has_body` is true if the request's body can be resent.
    pub fn make_way(&self, reply: &Reply, has_body: bool) -> Result<(), Fault> {
        let Self { attempt, request, head, .. } = *self;
        if !has_body || reply.has_begun() || !attempt.to.takes_retry(head.status, request) {
            return Ok(());
        }
        let message = format!("{} answered {}", attempt.backend().name(), head.status);
        Err(Fault::backend(head.status, message).retry(Retry::OtherBackend))
    }

    /// Begins the reply to the client with this head.
    pub fn begin(&self, reply: &mut Reply) {
        self.begin_fields(reply);
        if self.head.status == 426 {
            // With status 426, the field `Upgrade` names the protocols that the client can request
            // (RFC 9110 section 15.5.22).
            upgrade::append_fields(reply.field_lines(), &self.head.fields, self.bytes);
        }
        end_head(reply, self.head);
    }

    /// Begins the reply as [`ReplyHead::begin`] does, but does not end the head.
    pub fn begin_fields(&self, reply: &mut Reply) {
        let (head, bytes) = (self.head, self.bytes);
        reply.begin(head.status, head.reason.of(bytes));
        let ProxyAttempt { proxy, to, wanted, .. } = self.attempt;
        let rewrites = proxy.rewrite.is_some();
        note_live(reply, &head.fields, bytes);
        let names_files = Cell::new(false);
        encode::forward_response_fields(reply.field_lines(), head, bytes, |field| {
            let may_name_files =
                field.known == KnownField::Other && sendfile::is_for_gateway(field.name.of(bytes));
            names_files.set(names_files.get() || may_name_files);
            field.known == KnownField::ContentLength
                || rewrites && rewrite::is_concerned(field.known)
        });
        if !names_files.get() {
            reply.skip_sendfile_scan();
        }
        if let Some(rewrite) = &proxy.rewrite {
            let authority = self.request.head.authority.map(|span| span.of(&self.request.bytes));
            let (authority, https) = (authority.unwrap_or_default(), self.request.https);
            let context = rewrite::Context { rewrite, index: to.index(), authority, https };
            context.append(reply.field_lines(), head, bytes);
        }
        if self.passes_trailers() {
            for field in head.fields.iter().filter(|field| field.known == KnownField::Trailer) {
                encode::field(reply.field_lines(), "Trailer", field.value.of(bytes));
            }
        }
        if let Some(sticky) = &proxy.sticky {
            sticky.append(reply.field_lines(), to.index(), *wanted, self.request.https);
        }
    }
}

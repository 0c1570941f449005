//! The head of a backend's reply, as the client is told it.

use std::cell::Cell;

use forebay_engine::{Reply, Request};
use forebay_wire::http1::{KnownField, ResponseFraming, ResponseHead, encode};
use forebay_wire::sendfile;

use super::{Attempt, rewrite};
use crate::fields::end_head;
use crate::upgrade;

/// A head, whatever it came by.
pub struct ReplyHead<'a> {
    pub attempt: &'a Attempt<'a>,
    pub request: &'a Request,
    pub head: &'a ResponseHead,
    /// What the head's spans are ranges of.
    pub bytes: &'a [u8],
}

impl ReplyHead<'_> {
    /// Whether trailers are for this client. Where `Connection` names fields, which would have to be
    /// looked for among them, there are none.
    pub fn passes_trailers(&self) -> bool {
        self.request.takes_trailers()
            && self.head.framing == ResponseFraming::Chunked
            && !self.head.connection_names_fields
    }

    /// Begins the reply with this head.
    pub fn begin(&self, reply: &mut Reply) {
        self.begin_fields(reply);
        if self.head.status == 426 {
            // The client is told which protocols it could ask for (RFC 9110 section 15.5.22).
            upgrade::append_fields(reply.field_lines(), &self.head.fields, self.bytes);
        }
        end_head(reply, self.head);
    }

    /// As [`ReplyHead::begin`], without the end of the head.
    pub fn begin_fields(&self, reply: &mut Reply) {
        let (head, bytes) = (self.head, self.bytes);
        reply.begin(head.status, head.reason.of(bytes));
        let Attempt { proxy, to, wanted, .. } = self.attempt;
        let rewrites = proxy.rewrite.is_some();
        let names_files = Cell::new(false);
        encode::forward_response_fields(reply.field_lines(), head, bytes, |field| {
            let may_name_files =
                field.known == KnownField::Other && sendfile::is_for_gateway(field.name.of(bytes));
            names_files.set(names_files.get() || may_name_files);
            field.known == KnownField::ContentLength
                || rewrites && rewrite::is_concerned(field.known)
        });
        if !names_files.get() {
            reply.name_no_files();
        }
        if let Some(rewrite) = &proxy.rewrite {
            let authority = self.request.head.authority.map(|span| span.of(&self.request.bytes));
            let (authority, https) = (authority.unwrap_or_default(), self.request.https);
            let context = rewrite::Context { rewrite, index: to.index, authority, https };
            context.append(reply.field_lines(), head, bytes);
        }
        if self.passes_trailers() {
            for field in head.fields.iter().filter(|field| field.known == KnownField::Trailer) {
                encode::field(reply.field_lines(), "Trailer", field.value.of(bytes));
            }
        }
        if let Some(sticky) = &proxy.sticky {
            sticky.append(reply.field_lines(), to.index, *wanted, self.request.https);
        }
    }
}

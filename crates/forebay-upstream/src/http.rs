//! Parts of HTTP to backends that do not depend on the version.
//!
//! A [`ProxyAttempt`] is one request to one backend, with the settings of its route. [`ReplyHead`]
//! passes reply heads on, and `rewrite` rewrites redirects and cookies in them. If a route removes a
//! prefix from the path, `prefix` changes the fields that depend on the prefix. `request_head` writes
//! the heads of requests, also for Forebay's own programs, which run Rack and ASGI applications.

pub mod prefix;
pub mod request_head;
pub mod rewrite;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::{Fault, Retry};
use forebay_net::free_list::FreeList;
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::reply::Reply;
use forebay_wire::http1::{KnownField, ResponseFraming, ResponseHead, encode};
use forebay_wire::sendfile;

use crate::fields::{end_head, note_live};
use crate::http::prefix::BackendView;
use crate::sticky::Sticky;
use crate::upgrade;
use crate::upstream::{self, Backend};
use request_head::{ScopeLine, Variables};
use rewrite::Rewrite;

/// Size of a receive buffer, in bytes.
pub const INBOX: usize = 16 * 1024;

/// Buffers of one exchange with a backend.
pub struct Buffers {
    pub out: Vec<u8>,
    pub inbox: Vec<u8>,
    pub head: ResponseHead,
}

impl Default for Buffers {
    fn default() -> Self {
        let (out, inbox) = (Vec::with_capacity(INBOX), Vec::with_capacity(INBOX));
        Self { out, inbox, head: ResponseHead::default() }
    }
}

/// Settings of a route to HTTP backends, and the buffers of its requests.
pub struct ProxySettings {
    pub thread: Rc<Thread>,
    /// The longest time without data on a tunnel. `None` uses the server's setting.
    pub tunnel_idle: Option<Duration>,
    pub sticky: Option<Sticky>,
    /// `Host` for each backend. `None` keeps the client's host.
    pub hosts: Option<Vec<String>>,
    pub strip_prefix: Option<String>,
    pub decodes_path: bool,
    pub rewrite: Option<Rewrite>,
    pub send_proxy: Option<conf::ProxyHeader>,
    /// If present, the backend is `hosts/rack.rb` and gets variables instead of an HTTP head.
    pub variables: Option<Variables>,
    /// If present, the backend is `hosts/asgi.py` and gets a scope line before the HTTP head.
    pub scope_line: Option<ScopeLine>,
    pub buffers: Rc<FreeList<Box<Buffers>>>,
}

impl ProxySettings {
    /// Returns buffers for one request. An HTTP/1.1 request without a body holds no buffers while
    /// it waits for its reply.
    pub fn take_buffers(&self) -> Box<Buffers> {
        self.buffers.take().unwrap_or_default()
    }

    /// Returns the longest time without data on a tunnel.
    pub fn tunnel_idle(&self) -> Duration {
        self.tunnel_idle.unwrap_or_else(|| self.thread.settings().timeouts.tunnel_idle)
    }

    pub fn keep_buffers(&self, mut buffers: Box<Buffers>) {
        // Over HTTP/2, `out` may become a buffer with a whole window of received data. Do not keep
        // a buffer of that size.
        if buffers.out.capacity() > INBOX {
            buffers.out = Vec::with_capacity(INBOX);
        }
        if buffers.inbox.capacity() <= INBOX {
            self.buffers.give(buffers);
        }
    }
}

/// A request to one backend.
pub struct ProxyAttempt<'a> {
    pub proxy: &'a ProxySettings,
    pub to: &'a upstream::Attempt<'a>,
    pub wanted: Option<usize>,
    pub is_upgrade: bool,
}

impl<'a> ProxyAttempt<'a> {
    pub fn backend(&self) -> &'a Backend {
        self.to.backend
    }

    /// Returns the `Host` that replaces the client's `Host`, or `None` if the client's `Host`
    /// remains.
    pub fn host(&self) -> Option<&str> {
        self.proxy.hosts.as_ref().map(|hosts| hosts[self.to.index()].as_str())
    }

    /// How the backend sees the request's resource.
    pub fn view(&self) -> BackendView<'_> {
        BackendView {
            strip_prefix: self.proxy.strip_prefix.as_deref(),
            decodes_path: self.proxy.decodes_path,
            host: self.host(),
            https: self.backend().is_https(),
        }
    }
}

// Converts the head of a backend's reply for the client.

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

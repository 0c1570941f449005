//! The head of a request, for all protocols.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use forebay_conf::EncodedSlashes;
use forebay_wire::http1::{
    Claims, Field, KnownField, RequestFraming, RequestHead, TargetForm, Version, encode, has_mark,
    list_has, may_be_request_trailer,
};
use forebay_wire::path::{self, PathError, Slashes};
use forebay_wire::trace_context::{TraceParent, append_hex};
use forebay_wire::{ClientAddress, Span, caching};

use crate::tls::{Handshake, ServerTls};

/// The kind of fields in which a trusted proxy names the client. The client itself may have written the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamedBy {
    /// `X-Forwarded-For` and its relatives.
    #[default]
    XForwarded,
    /// `Forwarded`.
    Forwarded,
    /// A field of the proxy's own, such as `CF-Connecting-IP`.
    Own,
}

/// The head of a request, and the values that the server derives from it and from the connection.
#[derive(Clone)]
// More than 20 fields: each request writes most of them, so measure with `make instructions` before
// you divide the struct.
pub struct Request {
    /// Bytes of the head. Pipelined requests may follow.
    pub bytes: Vec<u8>,
    /// The head, as spans of `bytes`.
    pub head: RequestHead,
    /// Decoded path without dot segments.
    pub path: Vec<u8>,
    /// The path in the form that a server sees if it reads `%2F`, `%5C` and `\` as slashes, and
    /// merges repeated slashes. Empty if the target has none of these.
    pub unmasked: Vec<u8>,
    /// Path and query as the client sent them. `None` if those of `head` are still unchanged.
    pub original: Option<Span>,
    /// Treatment of repeated slashes, as configured for the site.
    slashes: Slashes,
    /// The authenticated user; empty if the route requires none.
    pub user: Vec<u8>,
    /// The part of `path` that matched the `*` of the route. If the pattern of the route has no
    /// `*`, all of `path` without its first slash.
    pub rest: Range<usize>,
    /// Client address: from the forwarding fields of a trusted proxy, else the address of the peer.
    pub client: ClientAddress,
    /// Address of the other end of the connection.
    pub peer: ClientAddress,
    /// True if the peer is a trusted proxy.
    pub is_peer_trusted: bool,
    /// The fields that name the client, if the peer is a trusted proxy.
    pub named_by: NamedBy,
    /// Local address of the connection.
    pub server: SocketAddr,
    /// True if the client uses TLS.
    pub https: bool,
    /// TLS handshake of the connection.
    pub tls: Option<Rc<Handshake>>,
    /// CGI variables about the client's connection, sent by the web server from which Forebay
    /// receives requests (AJP). TLS variables have the names of Apache's mod_ssl.
    pub announced: Vec<(&'static str, String)>,
    /// Parameters that a FastCGI, SCGI or uwsgi server gets in place of the `params` of its
    /// settings, and that a worker gets besides its variables. Set only in the question of
    /// `forward_auth` and `perl_gate`.
    pub params: Option<Rc<BTreeMap<String, String>>>,
    /// Field line that passes the subject of the client's certificate to backends.
    pub subject_field: Option<Vec<u8>>,
    /// Name of `subject_field`. Fields of this name are removed from client requests.
    pub subject_name: Option<String>,
    /// Target before a rewrite, if a route has rewritten it.
    pub asked: Option<Span>,
    /// True if an internal redirect or a rewrite has chosen the path.
    pub is_internal: bool,
    /// True if a page includes the answer (`ssi`).
    pub is_included: bool,
    /// True if a route has replaced the path but not the target.
    pub(crate) is_rerouted: bool,
    /// Parts of the path that the groups of the route's regular expression matched.
    pub captures: Captures,
    /// Names of fields that the route sets or removes. Set while the route's origin processes the
    /// request.
    pub changed: Option<Rc<[String]>>,
    /// Name of the backend that received the request last.
    pub upstream: Option<Rc<str>>,
    /// Result of the cache lookup, such as `hit`, if the route has a cache.
    pub cache: Option<&'static str>,
    /// Trace of the request, if traces are enabled.
    pub trace: Option<Box<RequestTrace>>,
    /// Request identifier. Empty until a template uses it.
    pub(crate) request_id: OnceCell<Box<[u8]>>,
    /// Empty list whose memory the next change of the fields reuses.
    pub(crate) spare_fields: Vec<Field>,
}

/// Parts of a path that a regular expression matched. The parts stay valid after a rewrite of the
/// path.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// Copy of the matched path.
    pub path: Vec<u8>,
    /// Range of each group's match in `path`, by group number.
    pub groups: Vec<Range<usize>>,
}

/// The path of a request, for [`Request::restore_path`].
#[derive(Debug)]
pub struct PathState {
    path: Vec<u8>,
    unmasked: Vec<u8>,
    rest: Range<usize>,
    captures: Captures,
    target: Span,
    original: Option<Span>,
    asked: Option<Span>,
    is_rerouted: bool,
    is_internal: bool,
}

impl Captures {
    /// Returns the text that a group matched. The text is empty if the group matched nothing.
    pub fn of(&self, group: usize) -> &[u8] {
        let range = self.groups.get(group).cloned();
        range.and_then(|range| self.path.get(range)).unwrap_or_default()
    }
}

impl Request {
    /// Creates a request on a connection from `peer` to `server`, before its route is known.
    pub fn new(bytes: Vec<u8>, head: RequestHead, peer: ClientAddress, server: SocketAddr) -> Self {
        Self {
            bytes,
            head,
            path: Vec::new(),
            unmasked: Vec::new(),
            original: None,
            slashes: Slashes::default(),
            user: Vec::new(),
            rest: 0..0,
            client: peer,
            peer,
            is_peer_trusted: false,
            named_by: NamedBy::default(),
            server,
            https: false,
            tls: None,
            announced: Vec::new(),
            params: None,
            subject_field: None,
            subject_name: None,
            asked: None,
            is_internal: false,
            is_included: false,
            is_rerouted: false,
            captures: Captures::default(),
            changed: None,
            upstream: None,
            cache: None,
            trace: None,
            request_id: OnceCell::new(),
            spare_fields: Vec::new(),
        }
    }

    /// Removes the fields whose names contain a punctuation mark other than a hyphen, such as
    /// `X_User`. Returns the first removed field, or `None` if there is no such field. Many
    /// applications read `X_User` as `X-User`. With `X_User`, a client could therefore replace a
    /// field `X-User` that Forebay sets, removes or compares.
    pub fn remove_marked(&mut self) -> Option<Field> {
        self.head.has_marks = false;
        let mut removed = self.head.fields.extract_if(.., |field| {
            field.known == KnownField::Other && has_mark(field.name.of(&self.bytes))
        });
        let first = removed.next();
        removed.for_each(drop);
        first
    }

    /// Returns the CGI variables of the client's connection. The variables come from the TLS
    /// handshake, with the names of Apache's mod_ssl, or from a web server in front of Forebay.
    pub fn connection_variables(&self) -> &[(&'static str, String)] {
        self.tls.as_ref().map_or(&self.announced, |handshake| handshake.variables())
    }

    /// Returns true if a proxy has named a client other than the peer.
    pub fn is_client_named(&self) -> bool {
        self.client.ip() != self.peer.ip()
    }

    /// Returns the method.
    pub fn method(&self) -> &[u8] {
        self.head.method.of(&self.bytes)
    }

    /// Returns the kind of forwarding fields that come from a trusted proxy.
    pub fn claims(&self) -> Claims {
        match self.named_by {
            _ if !self.is_peer_trusted => Claims::Nobodys,
            NamedBy::Own => Claims::Nobodys,
            NamedBy::Forwarded => Claims::Forwarded,
            NamedBy::XForwarded => Claims::XForwarded,
        }
    }

    /// Returns true if the request may be sent twice (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        caching::is_idempotent(self.method())
    }

    /// Returns true if a trailer of this name may be forwarded. Returns false if
    /// [`may_be_request_trailer`] does. Also returns false for the field of the certificate's
    /// subject, and for fields that the route changes.
    pub fn may_pass_trailer(&self, name: &[u8]) -> bool {
        let is_subject = self.subject_name.as_ref().is_some_and(|subject| is_alike(name, subject));
        may_be_request_trailer(name) && !is_subject && !self.is_changed(name)
    }

    /// Returns true if the route sets or removes the field of this name.
    pub fn is_changed(&self, name: &[u8]) -> bool {
        let names = self.changed.as_ref();
        names.is_some_and(|names| names.iter().any(|changed| is_alike(name, changed)))
    }

    /// Returns true if the client accepts trailer fields (RFC 9110 section 10.1.4).
    pub fn takes_trailers(&self) -> bool {
        self.head.version != Version::Http10
            && self.head.fields.iter().any(|field| {
                field.known == KnownField::Te && list_has(field.value.of(&self.bytes), b"trailers")
            })
    }

    /// Returns path and query for backends: the path that selected the route, with its original
    /// escapes. An absolute target without a path yields `/`.
    pub fn target(&self) -> &[u8] {
        or_root(self.head.path_and_query.of(&self.bytes))
    }

    /// Returns path and query as the client sent them.
    pub fn original_target(&self) -> &[u8] {
        or_root(self.original.unwrap_or(self.head.path_and_query).of(&self.bytes))
    }

    /// Returns path and query from before a rewrite by a route. Without a rewrite, returns the
    /// current path and query. Unlike [`Self::original_target`], the result is normalized.
    pub fn requested_target(&self) -> &[u8] {
        or_root(self.asked.unwrap_or(self.head.path_and_query).of(&self.bytes))
    }

    /// Returns path and query as the client sent them, if Forebay has replaced the path or the
    /// target. Otherwise returns `None`.
    pub fn replaced_target(&self) -> Option<&[u8]> {
        (self.original.is_some() || self.is_rerouted).then(|| self.original_target())
    }

    /// Returns true if a route has replaced the path but not the target.
    pub fn is_rerouted(&self) -> bool {
        self.is_rerouted
    }

    /// Treats the current target as the target that the client sent.
    pub fn forget_original(&mut self) {
        (self.original, self.asked, self.is_rerouted) = (None, None, false);
    }

    /// Returns the path that the client sent, with its dot segments; see [`path::unresolved`].
    /// Returns `None` if Forebay did not have to normalize the target, or after an internal
    /// redirect.
    pub fn unresolved_path(&self) -> Option<Vec<u8>> {
        let original = self.original?.of(&self.bytes);
        let clean = path::canonical(original, self.slashes)?;
        let asked = self.asked.unwrap_or(self.head.path_and_query);
        if clean != asked.of(&self.bytes) {
            return None;
        }
        path::unresolved(original)
    }

    /// Sets the path for routing, and normalizes the target to the same path. Treats repeated
    /// slashes as `slashes` says. Returns an error if the path is malformed or refused.
    pub fn prepare_path(
        &mut self,
        encoded: EncodedSlashes,
        slashes: Slashes,
    ) -> Result<(), PathError> {
        self.slashes = slashes;
        if self.take_plain_path() {
            return Ok(());
        }
        self.clean_path()?;
        let target = self.head.path_and_query;
        // Check the client's own target (example: `/x/%2f../../admin`), because applications
        // receive it, too.
        let original = self.original.unwrap_or(target).of(&self.bytes);
        if path::has_hidden_slash(original) {
            if encoded == EncodedSlashes::Refuse {
                return Err(PathError::EncodedSlash);
            }
            return path::unmask(original, &mut self.unmasked);
        }
        if memchr::memmem::find(&self.path, b"//").is_some() {
            return path::unmask(target.of(&self.bytes), &mut self.unmasked);
        }
        Ok(())
    }

    /// True if the path of the client's own target contains `%2F`, `%5C` or a backslash.
    pub fn has_hidden_slash(&self) -> bool {
        let target = self.original.unwrap_or(self.head.path_and_query);
        path::has_hidden_slash(target.of(&self.bytes))
    }

    /// Sets the path and returns true, if the path of the target is already decoded and normalized.
    /// This is the usual case. Otherwise returns false.
    fn take_plain_path(&mut self) -> bool {
        let target = self.head.path_and_query.of(&self.bytes);
        let Some(plain) = path::as_plain(target) else { return false };
        self.unmasked.clear();
        self.original = None;
        self.is_rerouted = false;
        self.path.clear();
        self.path.extend_from_slice(plain);
        self.rest = 0..self.path.len();
        true
    }

    /// Returns the part of the path to look up in the route's directory. After a route
    /// has matched, the part has no slash at its start.
    pub fn rest(&self) -> &[u8] {
        &self.path[self.rest.clone()]
    }

    /// Replaces the path that selects the route by `path`, which must be normalized. The target
    /// does not change.
    pub fn reroute(&mut self, path: Vec<u8>) {
        self.unmasked.clear();
        self.rest = 0..path.len();
        self.path = path;
        (self.is_rerouted, self.is_internal) = (true, true);
    }

    /// Copies the path and all that depends on it.
    pub fn save_path(&self) -> PathState {
        PathState {
            path: self.path.clone(),
            unmasked: self.unmasked.clone(),
            rest: self.rest.clone(),
            captures: self.captures.clone(),
            target: self.head.path_and_query,
            original: self.original,
            asked: self.asked,
            is_rerouted: self.is_rerouted,
            is_internal: self.is_internal,
        }
    }

    /// Undoes what has changed the path since [`Self::save_path`] in the same request.
    pub fn restore_path(&mut self, state: PathState) {
        (self.path, self.unmasked, self.rest) = (state.path, state.unmasked, state.rest);
        self.captures = state.captures;
        self.head.path_and_query = state.target;
        (self.original, self.asked) = (state.original, state.asked);
        (self.is_rerouted, self.is_internal) = (state.is_rerouted, state.is_internal);
    }

    /// Gives the request another target, which selects its route. The client's own target remains
    /// in the log and in REQUEST_URI. Returns an error if the path of the new target is malformed
    /// or refused.
    pub fn rewrite(&mut self, target: &[u8], slashes: EncodedSlashes) -> Result<(), PathError> {
        let clients = self.original.unwrap_or(self.head.path_and_query);
        let asked = self.asked.unwrap_or(self.head.path_and_query);
        self.is_internal = true;
        self.replace_target(target);
        let outcome = self.prepare_path(slashes, self.slashes);
        (self.original, self.asked) = (Some(clients), Some(asked));
        outcome
    }

    /// Returns a copy of the request, as if the same client had sent another method and target. The
    /// caller must then call [`Self::prepare_path`].
    pub fn with_target(&self, method: &[u8], target: &[u8]) -> Self {
        let mut request = self.clone();
        (request.asked, request.is_internal) = (None, false);
        let at = request.head.len;
        request.bytes.splice(at..at, method.iter().copied());
        request.head.method = Span::new(at, at + method.len());
        request.head.len += method.len();
        request.replace_target(target);
        request
    }

    /// Clears the path of the previous request on the connection, and the values that its route has
    /// set. After a cancelled request, only this call clears them.
    pub fn forget_route(&mut self) {
        self.path.clear();
        self.unmasked.clear();
        (self.rest, self.is_rerouted) = (0..0, false);
        (self.asked, self.is_internal) = (None, false);
        self.changed = None;
        self.request_id.take();
        (self.upstream, self.cache, self.trace) = (None, None, None);
    }

    /// Restores target and path from before rewrites and internal redirects, for the log.
    pub fn undo_rewrite(&mut self) {
        let asked = self.asked.take();
        if asked.is_none() && !self.is_rerouted {
            return;
        }
        let target = asked.unwrap_or(self.head.path_and_query);
        let original = self.original.filter(|original| *original != target);
        self.head.path_and_query = target;
        let _ = self.clean_path();
        self.original = original;
    }

    /// Gives a target without a path (`http://host?query`) the path `/`. Appends the new target to
    /// the head, as [`Self::become_get`] does.
    pub fn complete_target(&mut self) {
        let head = &self.head;
        if !matches!(head.form, TargetForm::Absolute { .. })
            || head.path_and_query.of(&self.bytes).starts_with(b"/")
        {
            return;
        }
        let target = [b"/", head.path_and_query.of(&self.bytes)].concat();
        self.replace_target(&target);
    }

    /// Sets the path from the target. `rest` covers the whole path until a route matches. If the
    /// target is not normalized, stores a normalized target after the head. Returns an error if the
    /// path is malformed.
    pub fn clean_path(&mut self) -> Result<(), PathError> {
        self.unmasked.clear();
        self.original = None;
        self.is_rerouted = false;
        self.path.clear();
        let target = self.head.path_and_query;
        let normal = path::normalize_with(target.of(&self.bytes), self.slashes, &mut self.path);
        self.rest = 0..self.path.len();
        normal?;
        if let Some(clean) = path::canonical(target.of(&self.bytes), self.slashes) {
            self.replace_target(&clean);
            self.original = Some(target);
        }
        Ok(())
    }

    /// Stores `target` after the head, as the new target of the request.
    fn replace_target(&mut self, target: &[u8]) {
        let at = self.head.len;
        self.bytes.splice(at..at, target.iter().copied());
        self.head.len += target.len();
        self.head.path_and_query = Span::new(at, self.head.len);
    }

    /// Converts the request to a GET without a body, and replaces its target by `target`, if given.
    /// A HEAD request remains HEAD. Removes the fields that describe the body. Inserts the new
    /// method and target in `bytes` after the head, before pipelined requests.
    pub fn become_get(&mut self, target: Option<&[u8]>) {
        let head = &mut self.head;
        let at = head.len;
        if head.method.of(&self.bytes) != b"HEAD" {
            self.bytes.splice(head.len..head.len, *b"GET");
            head.method = Span::new(at, at + 3);
            head.len += 3;
        }
        head.framing = RequestFraming::None;
        head.expect_continue = false;
        head.fields.retain(|field| {
            let of_body =
                [KnownField::ContentLength, KnownField::ContentType, KnownField::TransferEncoding];
            !of_body.contains(&field.known) && field.known != KnownField::Expect
        });
        if let Some(target) = target {
            self.replace_target(target);
        }
    }

    /// Converts the request to a GET for `target` without a body, also if its method is HEAD.
    pub fn become_get_for(&mut self, target: &[u8]) {
        let at = self.head.len;
        self.bytes.splice(at..at, *b"GET");
        self.head.method = Span::new(at, at + 3);
        self.head.len += 3;
        self.become_get(Some(target));
    }

    /// Sets the field for backends that contains the subject of the client's certificate. Removes
    /// client fields of this name, because they could contain a false subject. Does nothing if the
    /// site does not configure this field.
    pub fn set_subject(&mut self, tls: &ServerTls) {
        let Some(name) = tls.subject_field() else { return };
        let bytes = &self.bytes;
        self.head.fields.retain(|field| !is_alike(field.name.of(bytes), name));
        self.subject_name = Some(name.to_owned());
        if let Some(subject) = self.tls.as_ref().and_then(|handshake| handshake.client_subject()) {
            let mut line = Vec::new();
            encode::field(&mut line, name, subject.as_bytes());
            self.subject_field = Some(line);
        }
    }

    /// Returns the query without its question mark; `None` if the target has no question mark.
    pub fn query(&self) -> Option<&[u8]> {
        let target = self.target();
        memchr::memchr(b'?', target).map(|at| &target[at + 1..])
    }
}

fn or_root(target: &[u8]) -> &[u8] {
    if target.is_empty() { b"/" } else { target }
}

/// Returns true if a backend may mistake the field `given` for `name`.
pub fn is_alike(given: &[u8], name: &str) -> bool {
    // Some backends treat an underscore, or any other mark, as a hyphen.
    let fold = |byte: &u8| match byte.to_ascii_lowercase() {
        byte if byte.is_ascii_alphanumeric() => byte,
        _ => b'-',
    };
    given.len() == name.len() && given.iter().map(fold).eq(name.as_bytes().iter().map(fold))
}

/// Fields that replace the method of a request in some applications.
const METHOD_FIELDS: [&str; 3] = ["X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override"];

/// Returns the methods in fields such as `X-HTTP-Method-Override`, in upper case. Some applications
/// use such a method instead of the request's own.
pub fn replacing_methods(request: &Request) -> impl Iterator<Item = Vec<u8>> {
    let bytes = &request.bytes;
    let is_replacing = |name: &[u8]| METHOD_FIELDS.iter().any(|field| is_alike(name, field));
    let fields = request.head.fields.iter();
    let fields = fields.filter(move |field| is_replacing(field.name.of(bytes)));
    // Applications ignore the case of such a method.
    fields.map(|field| field.value.of(bytes).to_ascii_uppercase())
}

/// Returns MOVE or COPY if an application may read one of them as the method. The request may spell
/// the method `move`, or a field may replace it; see [`replacing_methods`].
#[inline]
pub fn moving_method(request: &Request) -> Option<&'static [u8]> {
    // Most requests are GET, and applications let no field replace this method.
    if matches!(request.method(), b"GET" | b"HEAD") { None } else { find_moving_method(request) }
}

fn find_moving_method(request: &Request) -> Option<&'static [u8]> {
    const MOVING: [&[u8]; 2] = [b"MOVE", b"COPY"];
    let of = |method: &[u8]| MOVING.into_iter().find(|known| known.eq_ignore_ascii_case(method));
    of(request.method()).or_else(|| replacing_methods(request).find_map(|method| of(&method)))
}

/// The trace of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestTrace {
    /// The trace and the server's span. `is_sampled` is false if the span is not recorded.
    pub(crate) own: TraceParent,
    /// Identifier of the client's span, if the client has sent one.
    pub(crate) parent: Option<[u8; 8]>,
}

impl RequestTrace {
    /// Appends the identifier of the trace.
    pub(crate) fn append_trace_id(&self, out: &mut Vec<u8>) {
        append_hex(&self.own.trace_id, out);
    }

    /// Appends the identifier of the server's span.
    pub(crate) fn append_span_id(&self, out: &mut Vec<u8>) {
        append_hex(&self.own.span_id, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_recognised_with_underscores_and_in_any_case() {
        assert!(is_alike(b"x_ssl-Client", "X-SSL-client") && !is_alike(b"x", "X-"));
    }

    #[test]
    fn no_trailer_passes_for_the_subject_of_a_certificate() {
        let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let mut request = Request::new(Vec::new(), RequestHead::default(), address.into(), address);
        assert!(request.may_pass_trailer(b"x-subject"));
        request.subject_name = Some("X-Subject".to_owned());
        for name in ["x-subject", "X_Subject"] {
            assert!(!request.may_pass_trailer(name.as_bytes()), "{name}");
        }
        assert!(request.may_pass_trailer(b"x-sum"));
        // A trailer must not replace a field that the route sets.
        request.changed = Some(["X-Sum".to_owned()].into());
        assert!(!request.may_pass_trailer(b"x_sum") && request.may_pass_trailer(b"x-other"));
    }
}

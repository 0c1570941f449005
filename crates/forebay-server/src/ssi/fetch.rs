//! Requests of a page for other documents of its site.

use std::rc::Rc;

use forebay_net::head::Request;
use forebay_net::template::append_escaped;
use forebay_wire::Span;
use forebay_wire::http1::KnownField;

use super::{Evaluation, SsiFailure, lifetime};
use crate::body::Body;
use crate::exchange::Exchange;
use crate::filter::{fields, is};
use crate::reply::Reply;
use crate::stream::{Included, IncludedReply, Stream};

/// Maximum nesting of included pages.
const DEEPEST: usize = 16;
/// Maximum number of requests for other documents during one request of a client.
const MOST_REQUESTS: usize = 256;
/// Maximum length of a target in bytes.
const LONGEST_TARGET: usize = 8 * 1024;

/// Fields of the client's request that the request for an included document does not get. The
/// fields describe body, range, encoding and connection.
const DROPPED: [&[u8]; 11] = [
    b"range",
    b"accept-encoding",
    b"connection",
    b"content-encoding",
    b"expect",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
];

impl Evaluation<'_> {
    /// Returns the target of `virtual`: a path of the site with an optional query. A relative path
    /// begins at the directory of the page. Fails for a URL, and for an empty or too long path.
    pub(super) fn virtual_target(&self, text: &[u8]) -> Result<Vec<u8>, SsiFailure> {
        let mut target = Vec::new();
        match text.first() {
            None => return Err("the path is empty".into()),
            Some(b'/') => {}
            Some(_) if has_scheme(text) => {
                return Err("`virtual` is a path of this site, not a URL".into());
            }
            Some(_) => self.append_dir(&mut target),
        }
        append_escaped(text, &mut target);
        within_length(target)
    }

    /// Returns the target of `file`. Fails if `text` is not a path below the directory of the page.
    pub(super) fn file_target(&self, text: &[u8]) -> Result<Vec<u8>, SsiFailure> {
        let is_up = |part: &[u8]| part == b".." || part == b".";
        if text.is_empty() || text[0] == b'/' || text.split(|&b| b == b'/').any(is_up) {
            return Err("`file` is a path below the directory of the page".into());
        }
        let mut target = Vec::new();
        self.append_dir(&mut target);
        append_path(text, &mut target);
        within_length(target)
    }

    fn append_dir(&self, target: &mut Vec<u8>) {
        let path = &self.request.path;
        let end = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        append_path(&path[..end], target);
    }

    /// Requests `target` with GET, and returns the body of the reply. Fails if the reply is no
    /// success.
    pub(super) async fn fetch(&mut self, target: &[u8]) -> Result<Vec<u8>, SsiFailure> {
        Ok(self.request(target, false).await?.body)
    }

    /// Requests `target` with HEAD, and returns the field lines of the reply. Fails if the reply is
    /// no success.
    pub(super) async fn probe(&mut self, target: &[u8]) -> Result<Vec<u8>, SsiFailure> {
        Ok(self.request(target, true).await?.lines)
    }

    async fn request(
        &mut self,
        target: &[u8],
        is_probe: bool,
    ) -> Result<IncludedReply, SsiFailure> {
        let outcome = self.send(target, is_probe).await;
        if outcome.is_err() {
            // The included document may be available again later. So no cache may store a page
            // without this document.
            self.state.is_uncacheable.set(true);
        }
        outcome
    }

    async fn send(&mut self, target: &[u8], is_probe: bool) -> Result<IncludedReply, SsiFailure> {
        let shown = || String::from_utf8_lossy(target).into_owned();
        if self.chain.iter().any(|outer| outer == target) {
            return Err(format!("{} would include itself", shown()));
        }
        if self.chain.len() > DEEPEST {
            return Err(format!("more than {DEEPEST} pages are nested"));
        }
        let requests = self.state.requests.get() + 1;
        if requests > MOST_REQUESTS {
            return Err(format!("the page needs more than {MOST_REQUESTS} requests"));
        }
        self.state.requests.set(requests);
        let request = self.request_for(target, is_probe)?;
        let chain = self.chain.iter().cloned().chain([target.to_vec()]).collect();
        let most = self.limit.saturating_sub(self.out.len());
        let included = Included::new(self.stream, self.state.clone(), chain, (most, is_probe));
        let included = Rc::new(included);
        let stream = Stream::Included(included.clone());
        let mut reply = Reply::new(&stream);
        reply.prepare(&request.head, request.method());
        let body = Body::new(&stream);
        let mut exchange = Exchange { request, body, reply, tunnel: None, held: Vec::new() };
        let outcome = self.routes.answer(&stream, &mut exchange).await;
        exchange.detach();
        let reply = included.take_reply();
        if let Err(fault) = outcome {
            return Err(format!("{}: {} {fault}", shown(), fault.status));
        }
        if !(200..300).contains(&reply.status) || !reply.is_complete {
            return Err(format!("{} got status {}", shown(), reply.status));
        }
        self.note_privacy(&reply.lines);
        let lifetime = lifetime::of(&reply.lines, reply.status);
        let shortest = self.state.lifetime.get().map_or(lifetime, |before| before.min(lifetime));
        self.state.lifetime.set(Some(shortest));
        let is_encoded = |(name, value): (&[u8], &[u8])| {
            is(name, b"content-encoding") && !is(value, b"identity") && !value.is_empty()
        };
        // The request has no `Range` and accepts no encoding. So a partial or encoded reply is a
        // failure.
        if !is_probe && (reply.status == 206 || fields(&reply.lines).any(is_encoded)) {
            return Err(format!("{} is encoded, or only a part of a document", shown()));
        }
        Ok(reply)
    }

    /// Returns the request for `target` on behalf of the client.
    fn request_for(&self, target: &[u8], is_probe: bool) -> Result<Request, SsiFailure> {
        let mut request = self.request.clone();
        request.bytes.truncate(request.head.len);
        let original = request.original.unwrap_or(request.head.path_and_query);
        request.forget_route();
        request.become_get_for(b"/");
        if is_probe {
            let at = request.head.len;
            request.bytes.extend_from_slice(b"HEAD");
            request.head.len = request.bytes.len();
            request.head.method = Span::new(at, at + 4);
        }
        let bytes = &request.bytes;
        request.head.fields.retain(|field| {
            let name = field.name.of(bytes);
            let is_condition = name.get(..3).is_some_and(|start| is(start, b"if-"));
            !is_condition
                && field.known != KnownField::Upgrade
                && !DROPPED.iter().any(|dropped| is(name, dropped))
        });
        request.head.upgrade = false;
        request.user.clear();
        let encoded = self.routes.encoded_slashes();
        let outcome = request.rewrite(target, encoded);
        // REQUEST_URI is the client's own target, as in Apache and nginx. Clear `asked`, because it
        // would contain the `/` that was set above.
        (request.original, request.asked) = (Some(original), None);
        request.is_included = true;
        let shown = String::from_utf8_lossy(target);
        outcome.map_err(|error| format!("{shown} is malformed: {error}"))?;
        Ok(request)
    }

    /// Marks the page as private or uncacheable, if the field lines of an included reply demand
    /// this.
    fn note_privacy(&self, lines: &[u8]) {
        let has = |value: &[u8], word: &[u8]| {
            value.split(|&b| b == b',' || b == b'=').any(|part| is(part.trim_ascii(), word))
        };
        for (name, value) in fields(lines) {
            if is(name, b"set-cookie") || is(name, b"vary") && !only_encoding(value) {
                self.state.is_private.set(true);
            }
            if is(name, b"cache-control") || is(name, b"pragma") {
                let is_stale = |part: &[u8]| {
                    let part = part.trim_ascii();
                    is(part, b"max-age=0") || is(part, b"s-maxage=0")
                };
                let is_private = has(value, b"private")
                    || has(value, b"no-cache")
                    || value.split(|&b| b == b',').any(is_stale);
                self.state.is_private.set(self.state.is_private.get() || is_private);
                let is_secret = self.state.is_uncacheable.get() || has(value, b"no-store");
                self.state.is_uncacheable.set(is_secret);
            }
        }
    }
}

/// Returns true if `vary`, a value of `Vary`, names only `Accept-Encoding`.
fn only_encoding(vary: &[u8]) -> bool {
    vary.split(|&b| b == b',').all(|name| is(name.trim_ascii(), b"accept-encoding"))
}

fn has_scheme(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte));
    end.is_some_and(|end| text[end..].starts_with(b"://"))
}

fn within_length(target: Vec<u8>) -> Result<Vec<u8>, SsiFailure> {
    if target.len() > LONGEST_TARGET { Err("the path is too long".into()) } else { Ok(target) }
}

/// Appends a decoded path, percent-encoded.
fn append_path(path: &[u8], out: &mut Vec<u8>) {
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

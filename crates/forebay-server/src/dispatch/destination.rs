//! Checks access to the target of WebDAV's MOVE and COPY (RFC 4918 section 10.3). Such a request
//! writes to its `Destination`, so Forebay refuses it unless the same client could also send a PUT
//! for this URL.

use forebay_net::fault::{Decline, Fault};
use forebay_net::head::{Request, moving_method};
use forebay_wire::http1::{Claims, KnownField, host_of};
use forebay_wire::path;

use super::prepare;
use crate::decide::{Admission, Instead, Step, Walk};
use crate::exchange::{Exchange, Permission};
use crate::route::{Route, Site};

/// Returns true if the method of the request writes to its `Destination`, and the origin of `route`
/// reads request bodies. Only such an origin can perform the write.
pub fn is_written(request: &Request, route: &Route) -> bool {
    moving_method(request).is_some() && route.origin.takes_body()
}

/// Checks that the client may write to the `Destination`. Returns true if the client may write, or
/// if the request has no `Destination`. Returns false if a gate has answered the request. Fails if
/// the write must be refused.
///
/// Checks the routes for the `Destination` twice: for PUT, and for the request's own method, so
/// that rules for COPY and MOVE apply. `at` is the route of the request itself.
pub async fn admit(exchange: &mut Exchange, site: &Site, at: usize) -> Result<bool, Fault> {
    let Some(target) = destination(&exchange.request, site)? else { return Ok(true) };
    let target = target.to_vec();
    let own = moving_method(&exchange.request).unwrap_or_default();
    let mut gates = Gates { site, at, own, asked: Vec::new() };
    for method in [b"PUT", own] {
        let mut request = exchange.request.with_target(method, &target);
        request.prepare_path(site.encoded_slashes, site.slashes).map_err(refused)?;
        let aside = Aside::new(exchange, request);
        match (gates.follow(aside.exchange).await?, method) {
            (WalkEnd::Answered, _) => return Ok(false),
            (WalkEnd::Origin, _) | (WalkEnd::NoOrigin, b"MOVE" | b"COPY") => {}
            (WalkEnd::Fixed | WalkEnd::NoOrigin, _) => {
                return Err(Fault::client(403, "a PUT to the Destination would not be possible"));
            }
        }
    }
    Ok(true)
}

/// Result of [`Gates::follow`].
enum WalkEnd {
    /// A gate has answered the request.
    Answered,
    /// An origin would get the request.
    Origin,
    /// A fixed reply or a redirection would answer the request.
    Fixed,
    /// No route would pass the request to an origin that reads bodies.
    NoOrigin,
}

/// Asks the gates of all routes that may answer for the `Destination`, but sends nothing to their
/// origins.
struct Gates<'w> {
    site: &'w Site,
    /// The route that answers the request. Its gate also checks the request's own path.
    at: usize,
    /// The request's own method.
    own: &'w [u8],
    /// Routes whose gates have admitted the `Destination`.
    asked: Vec<usize>,
}

impl Gates<'_> {
    /// Follows the walk until a route would certainly answer. If the origin of a route may decline
    /// the request, the walk continues as if it did.
    async fn follow(&mut self, exchange: &mut Exchange) -> Result<WalkEnd, Fault> {
        let site = self.site;
        let mut walk =
            Walk::for_destination(&site.routes, site.encoded_slashes).by_index(&site.index);
        let second = exchange.reply.stream().thread().second();
        let mut end = WalkEnd::NoOrigin;
        loop {
            match walk.next(&mut exchange.request, second)? {
                Step::Rewritten | Step::Again(_) => {}
                Step::Gate { rule: number, .. } | Step::Admit(Admission { at: number, .. }) => {
                    if !self.ask(exchange, number).await? {
                        return Ok(WalkEnd::Answered);
                    }
                }
                Step::Instead(_) => return Ok(WalkEnd::Fixed),
                Step::End(_) => return Ok(end),
                Step::Answer(at) => {
                    let route = &site.routes[at];
                    if route.facts.instead != Instead::No {
                        return Ok(if matches!(end, WalkEnd::Origin) {
                            end
                        } else {
                            WalkEnd::Fixed
                        });
                    }
                    if route.origin.takes_body() {
                        end = WalkEnd::Origin;
                    }
                    let decline = if route.origin.may_fall_back() {
                        Decline::Always
                    } else {
                        Decline::IfFallback
                    };
                    let declined = Fault::client(404, "").decline(decline);
                    if walk.declined(&mut exchange.request, declined).is_err() {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Asks the gate of route `number` once. Returns false if the gate has answered the request.
    /// Fails if the route is closed or the gate refuses the method.
    ///
    /// The gate of route `at` later checks the request's own path and method. Skips this gate if
    /// its decision depends on neither the path nor the change of the method.
    async fn ask(&mut self, exchange: &mut Exchange, number: usize) -> Result<bool, Fault> {
        if self.asked.contains(&number) {
            return Ok(true);
        }
        let route = &self.site.routes[number];
        let second = exchange.reply.stream().thread().second();
        let closed = route.closed.as_ref();
        if closed.is_some_and(|closed| closed.is_for(&exchange.request, second)) {
            return Err(Fault::us(503, "the Destination leads to a closed route"));
        }
        let Some(gate) = &route.gate else { return Ok(true) };
        let permission = gate.permission(exchange.request.method());
        if permission == Permission::Refused {
            return Err(Fault::client(403, "`allow_methods` does not permit to write there"));
        }
        let is_alike = || !gate.is_by_path() && gate.permission(self.own) == permission;
        if number == self.at && is_alike() {
            return Ok(true);
        }
        self.asked.push(number);
        prepare(exchange, route);
        gate.admit(exchange).await
    }
}

/// Replaces the request of an exchange until this value is dropped.
struct Aside<'e> {
    exchange: &'e mut Exchange,
    own: Request,
}

impl<'e> Aside<'e> {
    fn new(exchange: &'e mut Exchange, request: Request) -> Self {
        let own = std::mem::replace(&mut exchange.request, request);
        Self { exchange, own }
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        // If the client disconnects during the check, the log needs the client's own request.
        std::mem::swap(&mut self.exchange.request, &mut self.own);
    }
}

fn refused(error: path::PathError) -> Fault {
    Fault::client(error.status(), format!("Destination: {error}"))
}

/// Returns path and query of the `Destination`, or `None` if the request has no `Destination`.
/// Fails if the request has several. Also fails if the URL names another site, or has a form that
/// servers read in different ways.
fn destination<'r>(request: &'r Request, site: &Site) -> Result<Option<&'r [u8]>, Fault> {
    let fields = request.head.fields.iter();
    let mut values = fields
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"destination"))
        .map(|field| field.value.of(&request.bytes));
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value,
        _ => return Err(Fault::client(400, "more than one Destination")),
    };
    let Some((host, target)) = parts(value) else {
        return Err(Fault::client(400, "malformed Destination"));
    };
    if host.is_some_and(|host| is_elsewhere(host, request, site)) {
        return Err(Fault::client(502, "the Destination names the host of another site"));
    }
    Ok(Some(target))
}

/// Returns the host, if any, and the path and query of a `Destination` (`Simple-ref`, RFC 4918
/// section 8.3). Returns `None` for all other forms, because servers read these forms in different
/// ways.
fn parts(value: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    // Refuse `#` and tabs, because some servers end a path at `#`, and some remove tabs.
    if value.iter().any(|byte| b"#\t".contains(byte)) || value.starts_with(b"//") {
        return None;
    }
    let (host, target) = match memchr::memmem::find(value, b"://") {
        Some(at) if !value.starts_with(b"/") => {
            let (scheme, rest) = (&value[..at], &value[at + 3..]);
            if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
                return None;
            }
            let (authority, target) =
                rest.split_at(memchr::memchr(b'/', rest).unwrap_or(rest.len()));
            let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte);
            if authority.is_empty() || !authority.iter().all(is_host) {
                return None;
            }
            (Some(host_of(authority)), if target.is_empty() { &b"/"[..] } else { target })
        }
        _ => (None, value),
    };
    if !target.starts_with(b"/") || has_dot_segment(target) {
        return None;
    }
    Some((host, target))
}

/// Returns true if the path has a dot segment, which RFC 4918 forbids. Backends get the
/// `Destination` as the client sent it, and some backends do not resolve dot segments.
fn has_dot_segment(target: &[u8]) -> bool {
    let is_dots = |segment: &[u8]| segment == b"." || segment == b"..";
    // For a malformed escape, return false, because the request fails later in `prepare_path`.
    path::unresolved(target).is_some_and(|path| path.split(|&byte| byte == b'/').any(is_dots))
}

/// Returns true if another site names `host` more exactly than this site. Returns false for the
/// request's own host, and for the host that a trusted proxy reports.
fn is_elsewhere(host: &[u8], request: &Request, site: &Site) -> bool {
    let authority = request.head.authority.map(|span| span.of(&request.bytes));
    let claimed = request.head.value(KnownField::XForwardedHost, &request.bytes);
    let claimed = claimed.filter(|_| request.claims() == Claims::XForwarded);
    let mut own = authority.into_iter().chain(claimed).map(host_of);
    !own.any(|own| own.eq_ignore_ascii_case(host)) && site.is_of_other(host)
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn a_destination_has_a_host_and_a_path() {
        for (url, expected) in [
            ("http://h:80/a//b?c", Some((Some("h"), "/a//b?c"))),
            ("HTTPS://h.", Some((Some("h"), "/"))),
            ("http://[::1]:8080/a", Some((Some("[::1]"), "/a"))),
            ("/a//b", Some((None, "/a//b"))),
            ("/a:b//c?d=http://x", Some((None, "/a:b//c?d=http://x"))),
            ("/...", Some((None, "/..."))),
        ] {
            let expected = expected.map(|(host, target): (Option<&str>, &str)| {
                (host.map(str::as_bytes), target.as_bytes())
            });
            assert_eq!(parts(url.as_bytes()), expected, "{url}");
        }
    }

    #[test]
    fn a_destination_that_servers_read_differently_is_malformed() {
        for url in [
            "",
            "a",
            "//h/a",
            "///a",
            "http:/a",
            "http:a",
            "http:///a",
            "ftp://h/a",
            "http://h\\a/b",
            "http://h?/a",
            "http://u@h/a",
            "http://h#/a",
            "/a#b",
            "/a\tb",
            "/a/../b",
            "/a/./b",
            "/a/%2e%2E/b",
            "/a/..",
            "/.",
        ] {
            assert_eq!(parts(url.as_bytes()), None, "{url}");
        }
    }
}

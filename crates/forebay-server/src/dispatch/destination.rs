//! Checks access to the target of WebDAV's MOVE and COPY (RFC 4918 section 10.3). Such a request
//! writes to its `Destination`, which another route may protect.

use forebay_conf::EncodedSlashes;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::path;

use super::prepare;
use crate::exchange::Exchange;
use crate::route::{Instead, Site};

/// Returns true if the request writes to its `Destination`.
pub fn is_written(request: &Request) -> bool {
    matches!(request.method(), b"MOVE" | b"COPY")
}

/// Applies the gate of the route that the `Destination` leads to. Returns false if the gate has
/// answered the request. Route `at` answers the request, and its gate checks the request's own path
/// separately. If the `Destination` leads to the same route, asks this gate again only when its
/// decision depends on the path.
pub async fn admit(exchange: &mut Exchange, site: &Site, at: usize) -> Result<bool, Fault> {
    for path in readings(&exchange.request, site)? {
        let method = exchange.request.method();
        let takes = |route: &crate::route::Route| route.matcher.matches(method, &path).is_some();
        let Some(number) = site.routes.iter().position(takes) else { continue };
        let route = &site.routes[number];
        let is_by_path = route.gate.as_ref().is_some_and(|gate| gate.is_by_path());
        if number == at && !is_by_path {
            continue;
        }
        prepare(exchange, route);
        if let Some(gate) = &route.gate {
            let own = exchange.request.replace_path(&path);
            let is_admitted = gate.admit(exchange).await;
            exchange.request.head.path_and_query = own;
            if !is_admitted? {
                return Ok(false);
            }
        }
        if number == at {
            continue;
        }
        if route.instead != Instead::No {
            return Err(Fault::client(403, "the Destination leads to a route without a resource"));
        }
    }
    Ok(true)
}

/// Returns the paths that backends may read from each `Destination`. Ignores the host in the
/// `Destination`.
fn readings(request: &Request, site: &Site) -> Result<Vec<Vec<u8>>, Fault> {
    let fields = request.head.fields.iter();
    let values = fields
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"destination"))
        .map(|field| field.value.of(&request.bytes));
    let mut found = Vec::new();
    for value in values {
        let target = target(value);
        let refused =
            |error: path::PathError| Fault::client(error.status(), format!("Destination: {error}"));
        let mut clean = Vec::new();
        path::normalize(target, &mut clean).map_err(refused)?;
        found.push(clean);
        if path::has_hidden_slash(target) {
            if site.encoded_slashes == EncodedSlashes::Refuse {
                return Err(refused(path::PathError::EncodedSlash));
            }
            let mut unmasked = Vec::new();
            path::unmask(target, &mut unmasked).map_err(refused)?;
            found.push(unmasked);
        }
    }
    Ok(found)
}

/// Returns the path and query of `url`, which may be a URL or only a path.
fn target(url: &[u8]) -> &[u8] {
    let Some(at) = memchr::memmem::find(url, b"//") else { return url };
    if !(at == 0 || url[at - 1] == b':' && !url[..at].contains(&b'/')) {
        return url;
    }
    let rest = &url[at + 2..];
    &rest[memchr::memchr(b'/', rest).unwrap_or(rest.len())..]
}

#[cfg(test)]
mod tests {
    use super::target;

    #[test]
    fn the_path_of_a_url_follows_its_host() {
        for (url, path) in [
            ("http://h:80/a//b?c", "/a//b?c"),
            ("//h/a", "/a"),
            ("https://h", ""),
            ("/a//b", "/a//b"),
            ("/a:b//c", "/a:b//c"),
            ("a", "a"),
        ] {
            assert_eq!(target(url.as_bytes()), path.as_bytes(), "{url}");
        }
    }
}

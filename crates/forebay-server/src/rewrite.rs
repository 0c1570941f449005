//! Replaces the path of a request: by `rewrite` of a route, or by `fallback_to` after a route has
//! declined the request.
//!
//! The new path is prepared like the path of a client: it is decoded once and has no dot segments.
//! If a route only rewrites, Forebay selects a route again, and the rules of the new route apply.
//! If a route rewrites and also answers, its own rules apply, and the rules of the route that the
//! new path would select.

use forebay_conf::{EncodedSlashes, Rewrite};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::template::{Escape, append_escaped};
use forebay_wire::path;

/// Returns the target that `rewrite` produces for the request.
pub fn target(rewrite: &Rewrite, request: &Request) -> Vec<u8> {
    let mut target = Vec::new();
    request.fill(&rewrite.to, Escape::Target, &mut target);
    if rewrite.keep_query {
        append_query(&mut target, request);
    }
    // If a placeholder follows the first slash, as in `/{rest}`, its value may begin with a slash,
    // too. Keep one slash.
    let slashes = target.iter().take_while(|&&byte| byte == b'/').count();
    target.drain(..slashes.saturating_sub(1));
    target
}

/// Appends the client's query to a target, before the target's fragment.
pub fn append_query(target: &mut Vec<u8>, request: &Request) {
    let Some(query) = request.query().filter(|query| !query.is_empty()) else { return };
    let end = memchr::memchr(b'#', target).unwrap_or(target.len());
    let fragment = target.split_off(end);
    target.push(if target.contains(&b'?') { b'&' } else { b'?' });
    append_escaped(query, target);
    target.extend_from_slice(&fragment);
}

/// Returns the decoded path of a `fallback_to` target that has no query. Returns a fault if the
/// path is malformed.
pub fn fallback_path(target: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut path = Vec::new();
    path::normalize(target, &mut path)
        .map_err(|error| Fault::client(error.status(), error.to_string()))?;
    Ok(path)
}

/// Returns the fault for a query such as `a=1&a=2`, if a route with access rules requires `a=1`.
/// Some applications use the first value of `a`, and others the last, so a client could bypass the
/// rules.
pub fn ambiguous_condition() -> Fault {
    let why = "applications read a parameter or a cookie that decides about the route differently";
    Fault::client(404, why)
}

/// Replaces the target of the request by `target`. Returns a fault if the path of `target` is
/// malformed.
pub fn rewrite_request(
    target: &[u8],
    request: &mut Request,
    slashes: EncodedSlashes,
) -> Result<(), Fault> {
    request
        .rewrite(target, slashes)
        .map_err(|error| Fault::client(error.status(), format!("the rewritten path: {error}")))
}

//! Explains rewrites of a request's path, and the fields that a route sets in its reply.

use forebay_conf::{Plan, Rewrite, Route, Site};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::template::Escape;
use forebay_origin::rules::{has_gate, instead, keeps_from};
use forebay_server::dispatch::{ambiguous_condition, ambiguous_route, kept_from_scripts};
use forebay_server::rewrite::{rewrite_request, target as rewritten_target};
use forebay_server::route::Instead;

use super::origin::origin;
use super::{Explanation, gate};

/// Rewrites the path of the request for route `at`, and explains which rules apply to the new path.
/// Returns true if an earlier `respond` or `redirect` route answers the new path instead of route
/// `at`. Fails if the new path is ambiguous, or if a rule refuses the request.
pub(super) fn here(
    to: &Rewrite,
    plan: &Plan,
    (site, at): (&Site, usize),
    request: &mut Request,
    text: &mut Explanation,
) -> Result<bool, Fault> {
    rewrite(to, site, request, text)?;
    let reached = site.routes.iter().position(|route| request.meets(&route.matcher));
    let takes_unmasked = |route: &Route| {
        route.matcher.matches(request.method(), &request.unmasked).is_some()
            && request.meets_when(&route.matcher)
    };
    if !request.unmasked.is_empty() && site.routes.iter().position(takes_unmasked) != reached {
        return Err(ambiguous_route());
    }
    if reached.is_some_and(|number| request.is_doubtful(&site.routes[number].matcher)) {
        return Err(ambiguous_condition());
    }
    if !request.take(&site.routes[at].matcher) {
        // If the route's pattern does not match the new path, look up the whole path without its
        // leading slash.
        request.rest = request.path.len().min(1)..request.path.len();
    }
    let is_rule = |&number: &usize| number < at || number > at && has_gate(&site.routes[number]);
    let Some(number) = reached.filter(is_rule) else { return Ok(false) };
    let rule = &site.routes[number];
    if has_gate(rule) {
        text.item("rule", format!("the one on line {} takes the new path", rule.line).as_bytes());
        gate(rule, request, text)?;
    }
    if keeps_from(site, plan, number).contains(&at) {
        return Err(kept_from_scripts());
    }
    if number < at && instead(rule) != Instead::No {
        text.item("rule", format!("the one on line {} answers", rule.line).as_bytes());
        origin(plan, site, rule, request, text)?;
        return Ok(true);
    }
    Ok(false)
}

/// Replaces the target of the request by the result of `to`, and appends this target to the text.
/// Returns a fault if the new path is malformed.
pub(super) fn rewrite(
    to: &Rewrite,
    site: &Site,
    request: &mut Request,
    text: &mut Explanation,
) -> Result<(), Fault> {
    let target = rewritten_target(to, request);
    text.item("rewrite", &[b"as ", &target[..]].concat());
    rewrite_request(&target, request, site.encoded_slashes)
}

/// Appends the fields that the route sets or adds in its reply.
pub(super) fn reply_fields(route: &Route, request: &Request, text: &mut Explanation) {
    if route.reply_headers.is_empty() {
        return;
    }
    let lines = route.reply_headers.iter().map(|field| {
        let mut line = format!("{}: ", field.name).into_bytes();
        request.fill(&field.value, Escape::Field, &mut line);
        if !field.always {
            line.extend_from_slice(b" (unless the status is 400 or more)");
        }
        line
    });
    text.list("reply", lines);
}

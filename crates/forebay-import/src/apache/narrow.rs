//! Restricts routes to a part of a site.

use super::Cx;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;

/// Returns the route for requests that also meet `region`; `None` if there are no such requests.
/// If one route cannot have both conditions, returns a closed route for the whole region.
pub fn narrowed(cx: &mut Cx<'_>, route: DraftRoute, region: &Matcher) -> Option<DraftRoute> {
    if let Some(matcher) = route.matcher.and(region) {
        return Some(DraftRoute { matcher, ..route });
    }
    if !route.matcher.conflicts_with(region) {
        return None;
    }
    let next = "a route cannot have both conditions: write routes for these paths";
    let comment = cx.draft.notes.add(&route.place, &route.source, next);
    Some(DraftRoute { matcher: region.clone(), ..route }.closed(comment))
}

//! Adds the names of sites to notes on lines that close a whole site.

use crate::draft::{Draft, DraftRoute, Note};
use crate::matcher::Matcher;

/// For each site with a closed route for all paths, adds the name of the site to the note on this
/// route.
pub fn name_sites(draft: &mut Draft) {
    for site in &draft.sites {
        let is_whole = |route: &&DraftRoute| {
            route.comments.iter().any(|comment| comment == crate::draft::CLOSED)
                && route.matcher.covers(&Matcher::path("/*"))
        };
        let Some(route) = site.routes.iter().find(is_whole) else { continue };
        let names = if site.hosts.is_empty() { &site.listen } else { &site.hosts };
        let name = names.first().map_or("", String::as_str);
        let is_reason = |note: &&mut Note| route.comments.contains(&note.comment());
        if let Some(note) = draft.notes.0.iter_mut().rfind(is_reason) {
            note.next.push_str(&format!(
                "; this line closes all of {name}, so other lines of the site may have no routes: \
                 import a copy of the file without the line"
            ));
        }
    }
}

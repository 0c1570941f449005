//! Adds the names of sites to notes on lines that close a whole site.

use std::collections::HashMap;

use crate::draft::{Draft, DraftRoute};
use crate::matcher::Matcher;

/// For each site with a closed route for all paths, adds the name of the site to the note on this
/// route. A note that several sites share gets the name of the first one.
pub fn name_sites(draft: &mut Draft) {
    let notes = draft.notes.0.iter().enumerate();
    let mut places: HashMap<_, _> = notes.map(|(at, note)| (note.comment(), at)).collect();
    for site in &draft.sites {
        let is_whole = |route: &&DraftRoute| {
            route.comments.iter().any(|comment| comment == crate::draft::CLOSED)
                && route.matcher.covers(&Matcher::path("/*"))
        };
        let Some(route) = site.routes.iter().find(is_whole) else { continue };
        let names = if site.hosts.is_empty() { &site.listen } else { &site.hosts };
        let name = names.first().map_or("", String::as_str);
        // The note with the reason stands before each `CLOSED`. Other comments are about fields.
        let reasons = route.comments.windows(2).filter(|pair| pair[1] == crate::draft::CLOSED);
        let reasons = reasons.filter_map(|pair| places.get_key_value(&pair[0]));
        let Some((comment, at)) = reasons.max_by_key(|(_, at)| **at) else { continue };
        let (comment, at) = (comment.clone(), *at);
        places.remove(&comment);
        draft.notes.0[at].next.push_str(&format!(
            "; this line closes all of {name}, so other lines of the site may have no routes: \
             import a copy of the file without the line"
        ));
    }
}

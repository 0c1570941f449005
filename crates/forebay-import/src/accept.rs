//! Makes sure that Forebay accepts the translated configuration (the draft). If Forebay refuses a
//! route, the route is closed: it answers 403.
//!
//! The translators know what Forebay accepts in usual configurations. This module handles other
//! cases, such as unusual names and paths.

use std::collections::HashMap;
use std::path::Path;

use crate::draft::{Draft, DraftRoute, DraftSite, DraftStream};
use crate::keys::Keys;
use crate::matcher::Matcher;
use crate::print::render;
use crate::value::Table;

/// Maximum number of routes that are checked one by one.
const MOST_TRIED: usize = 300;

/// Changes the draft so that Forebay accepts it. Closes the routes that Forebay refuses (they then
/// answer 403), or removes them. Also removes refused streams and settings. Adds a note or a
/// comment for each change.
pub fn accept(draft: &mut Draft, keys: &Keys) {
    if problem(draft, keys).is_none() {
        return;
    }
    let process = Draft {
        server: draft.server.clone(),
        limits: draft.limits.clone(),
        timeouts: draft.timeouts.clone(),
        sites: vec![plain_site()],
        ..Draft::default()
    };
    if let Some(why) = problem(&process, keys) {
        draft.comments.push(format!("The settings of the process have no translation: {why}"));
        (draft.server, draft.limits, draft.timeouts) = Default::default();
    }
    streams(draft, keys);
    if problem(draft, keys).is_none() {
        return;
    }
    let mut sites = std::mem::take(&mut draft.sites);
    for (number, site) in sites.iter_mut().enumerate() {
        head(site, number, keys);
        for at in 0..site.routes.len() {
            let route = site.routes[at].clone();
            site.routes[at] = accepted(draft, route, keys);
        }
        unreached(draft, site, keys);
    }
    draft.sites = sites;
    draft.omits_tests = problem(draft, keys).is_some();
}

/// Removes the streams that Forebay refuses, and adds a note for each. Forebay then does not listen
/// at the addresses of these streams.
fn streams(draft: &mut Draft, keys: &Keys) {
    let mut kept: Vec<DraftStream> = Vec::new();
    for stream in std::mem::take(&mut draft.streams) {
        kept.push(stream);
        let mut only =
            Draft { streams: kept.clone(), upstreams: draft.upstreams.clone(), ..Draft::default() };
        crate::print::drop_unused(&mut only);
        if let Some(why) = problem(&only, keys)
            && let Some(removed) = kept.pop()
        {
            let next = format!("{why}: write this stream anew");
            draft.notes.add(&removed.place, "server { ... }", next);
        }
    }
    draft.streams = kept;
}

/// Returns the message of the first error in a draft. Returns `None` if Forebay accepts the draft.
fn problem(draft: &Draft, keys: &Keys) -> Option<String> {
    let error = forebay_conf::parse(&render(draft, keys), "site.toml", Path::new("/")).err()?;
    let text = error.to_string();
    // The first line of an error has a mark such as `x`, a space and the message. The next lines
    // show the position.
    let line = text.lines().find_map(|line| line.trim_start().split_once(' '));
    Some(line.map_or_else(String::new, |(_, message)| message.trim().to_owned()))
}

fn plain_site() -> DraftSite {
    let place = crate::draft::SourceLine { file: "".into(), line: 0 };
    let route = DraftRoute::new(&place, "", Matcher::path("/*")).respond(404);
    DraftSite { listen: vec!["127.0.0.1:8080".into()], routes: vec![route], ..DraftSite::default() }
}

/// Changes a site that Forebay refuses because of its hosts, keys or listeners. Replaces its hosts
/// by a name that no client uses. If Forebay still refuses the site, also removes the site's keys,
/// and replaces its listeners.
fn head(site: &mut DraftSite, number: usize, keys: &Keys) {
    let try_one = |site: &DraftSite| {
        let routes = plain_site().routes;
        let alone = DraftSite { routes, comments: Vec::new(), ..site.clone() };
        problem(&Draft { sites: vec![alone], ..Draft::default() }, keys)
    };
    let Some(why) = try_one(site) else { return };
    site.comments.push(format!("A part of this site has no translation: {why}"));
    // A site without a host name would answer for the hosts of other sites.
    site.hosts = vec![format!("not-translated-{number}.invalid")];
    if try_one(site).is_some() {
        site.keys = Table::default();
        site.listen = vec!["127.0.0.1:8080".into()];
    }
}

/// Returns the route if Forebay accepts it as the only route of a site. Otherwise adds a note, and
/// returns the route as a closed route. If Forebay even refuses the closed route because of its
/// conditions, the closed route takes all paths.
fn accepted(draft: &mut Draft, route: DraftRoute, keys: &Keys) -> DraftRoute {
    let Some(why) = alone(draft, route.clone(), keys) else { return route };
    let comment =
        draft.notes.add(&route.place, &route.source, format!("{why}: write this route anew"));
    let mut closed = route.closed(comment);
    if alone(draft, closed.clone(), keys).is_some() {
        closed.matcher = Matcher::path("/*");
    }
    closed
}

/// Returns the message of the first error in a site that has only this route. Returns `None` if
/// there is no error.
fn alone(draft: &Draft, route: DraftRoute, keys: &Keys) -> Option<String> {
    let site = DraftSite { routes: vec![route], ..plain_site() };
    problem(&with_site(draft, site), keys)
}

/// Returns a draft with one site, and the groups and applications that its routes name.
fn with_site(draft: &Draft, site: DraftSite) -> Draft {
    let mut only = Draft {
        sites: vec![site],
        upstreams: draft.upstreams.clone(),
        apps: draft.apps.clone(),
        maps: draft.maps.clone(),
        omits_tests: true,
        ..Draft::default()
    };
    crate::print::drop_unused(&mut only);
    only
}

/// Removes the routes that Forebay refuses, usually because no request reaches them. Adds a comment
/// for each. Keeps all routes of a site that has more than [`MOST_TRIED`] routes.
fn unreached(draft: &Draft, site: &mut DraftSite, keys: &Keys) {
    let whole = DraftSite { comments: Vec::new(), ..site.clone() };
    if site.routes.len() > MOST_TRIED || problem(&with_site(draft, whole), keys).is_none() {
        return;
    }
    let mut kept = DraftSite { routes: Vec::new(), comments: Vec::new(), ..site.clone() };
    for route in std::mem::take(&mut site.routes) {
        kept.routes.push(route);
        if problem(&with_site(draft, kept.clone()), keys).is_some() {
            let Some(route) = kept.routes.pop() else { continue };
            site.comments.push(format!("{}: {} has no route.", route.place, route.source));
        }
    }
    site.routes = kept.routes;
}

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

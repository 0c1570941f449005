//! Resolves `[[site]]`. No two sites may have the same pair of listener and host name.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::expect::expectations;
use super::inherited::inherited;
use super::log::site_log;
use super::proxies::{forwarded, proxies};
use super::proxy::{AjpFronts, front};
use super::reply::{error_pages, maintenance};
use super::route::{OfSite, route};
use super::socket::{Sockets, socket_access};
use super::tls::{Spoken, agree, http3, redirect, tls};
use super::value::size_or_unlimited;
use super::{Context, MOST_PROBLEMS, Resolution, keep, peer};
use crate::error::Problem;
use crate::file::{self, At, File};
use crate::key::no_effect;
use crate::plan::{Action, ErrorPages, Files, HostPattern, Listen, Route, ScriptsBelow, Site, Tls};

/// Resolves all sites. Returns the sites without a problem, and adds the problems of the others to
/// `problems`, or to `of_directories` if they are those of a directory of `hosts_from` or
/// `users_from`.
pub(super) fn sites(
    context: &Context<'_>,
    file: &File,
    (problems, of_directories): (&mut Vec<Problem>, &mut Vec<Problem>),
) -> Vec<Arc<Site>> {
    let typed = file.site.as_deref().unwrap_or_default();
    if typed.is_empty() && file.stream.as_ref().is_none_or(Vec::is_empty) {
        problems.push(
            Problem::new(&(0..0), "there is no site")
                .help("add one: [[site]] with listen = \"127.0.0.1:8080\" and a [[site.route]]"),
        );
    }
    let mut taken = HashMap::new();
    let (mut agreed, mut spoken) = (Agreed::default(), HashMap::new());
    let mut sites = Vec::new();
    for (number, site_typed) in typed.iter().enumerate() {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        let found = problems.len();
        let directory = context.filled.site_directories.get(&number);
        let mut of_site = keep(of_site(context, file, site_typed), problems).unwrap_or_default();
        of_site.lacks_certificate =
            directory.is_some_and(|own| context.left_out.lacks_certificate(own));
        let number_of_directories = of_directories.len();
        let of_all = (&mut *problems, &mut *of_directories);
        let routes = routes(context, file, (number, site_typed, &of_site), of_all);
        let listen = listen(context, site_typed, &mut spoken);
        let site = listen.and_then(|listen| {
            site(context, site_typed, (listen, routes, of_site), &mut taken, &mut agreed)
        });
        let site = keep(site, problems);
        if let Some(own) = directory {
            of_directories.extend(problems.drain(found..).map(|problem| problem.in_directory(own)));
        }
        let is_sound = (found, number_of_directories) == (problems.len(), of_directories.len());
        if let (Some(mut site), true) = (site, is_sound) {
            site.inherited = inherited(context, context.filled.sites.get(&number));
            sites.push(Arc::new(site));
        }
    }
    sites
}

/// For each listener and host, the position of the site that answers for them.
type TakenListeners = HashMap<(Listen, HostKey), Range<usize>>;

/// A host pattern as typed, in lower case.
type HostKey = String;

/// Checks `listen`, which must have at least one address. Sites on the same address must agree on
/// the protocol.
fn listen(
    context: &Context<'_>,
    typed: &At<file::Site>,
    spoken: &mut Spoken,
) -> Resolution<Vec<Listen>> {
    let Some(listen_typed) = &typed.listen else {
        return Err(Problem::new(&typed.span, "this site listens nowhere")
            .label("needs `listen`")
            .help("say where: listen = \"127.0.0.1:8080\""));
    };
    let mut listen = Vec::new();
    for at in listen_typed.items() {
        listen.push(peer::listen(context, &at.with(&at.value.0))?);
        agree(&listen[listen.len() - 1], &at.span, spoken)?;
    }
    if listen.is_empty() {
        return Err(Problem::new(&listen_typed.span, "this site listens nowhere")
            .help("say where: listen = \"127.0.0.1:8080\""));
    }
    Ok(listen)
}

/// Checks one `[[site]]`. Its host names must be unique on each of its addresses.
fn site(
    context: &Context<'_>,
    typed: &At<file::Site>,
    (listen, routes, of_site): (Vec<Listen>, Vec<Route>, OfSite),
    taken: &mut TakenListeners,
    agreed: &mut Agreed,
) -> Resolution<Site> {
    let listen_span = typed.listen.as_ref().map_or(&typed.span, |at| &at.span);
    let host_items = typed.hosts.as_ref().map(At::items).unwrap_or_default();
    let mut hosts = Vec::new();
    for at in &host_items {
        let host = peer::host(at)?;
        claim(&listen, &host, &at.span, taken)?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        claim(&listen, &HostPattern::Any, listen_span, taken)?;
        hosts.push(HostPattern::Any);
    }
    let items = typed.trusted_proxies.as_ref().map(At::items).unwrap_or_default();
    let by_field = typed.forwarded.as_ref().filter(|at| !context.is_default(&at.span));
    if let Some(at) = by_field.filter(|_| items.is_empty()) {
        let help = "leave it out, or name the trusted proxies: trusted_proxies = [\"10.0.0.0/8\"]";
        return Err(no_effect(&at.span, "forwarded", "without `trusted_proxies`", help));
    }
    let (trusted_proxies, proxy_lists) = proxies(context, &items)?;
    let tls = if of_site.lacks_certificate && listen.iter().any(Listen::is_https) {
        Some(Tls::without_certificate())
    } else {
        tls(context, typed, (&listen, &hosts))?
    };
    let beside = http3(context, typed, &listen)?;
    let expect = expectations(typed, &routes)?;
    Ok(Site {
        log: of_site.log,
        hosts,
        trusted_proxies,
        proxy_lists,
        forwarded: typed.forwarded.as_ref().map(forwarded).transpose()?.unwrap_or_default(),
        proxy_protocol: proxy_protocol(typed, &listen, &mut agreed.proxied)?,
        ajp: front(typed, &listen, &mut agreed.ajp_fronts)?,
        socket_access: socket_access(typed, &listen, &mut agreed.sockets)?,
        encoded_slashes: typed.encoded_slashes.unwrap_or_default(),
        merge_slashes: typed.merge_slashes.unwrap_or(true),
        underscores_in_headers: typed.underscores_in_headers.unwrap_or(false),
        redirect_to_https: redirect(context, typed, &listen)?,
        tls,
        listen: listen.into_iter().chain(beside).collect(),
        error_pages: of_site.error_pages,
        routes,
        line: context.line(typed.span.start),
        file: context.sources.included(typed.span.start).map(str::to_owned),
        expect,
        inherited: Vec::new(),
    })
}

/// Values that the sites of a listener must agree on.
#[derive(Default)]
struct Agreed {
    proxied: Proxied,
    ajp_fronts: AjpFronts,
    sockets: Sockets,
}

/// The value of `proxy_protocol` for each listener, and the position that set it first.
type Proxied = HashMap<Listen, (bool, Range<usize>)>;

/// Checks that all sites of a listener have the same `proxy_protocol`. A listener must read the
/// PROXY header before it knows the site.
fn proxy_protocol(
    typed: &At<file::Site>,
    listen: &[Listen],
    proxied: &mut Proxied,
) -> Resolution<bool> {
    let wanted = typed.proxy_protocol.as_ref().is_some_and(|at| at.value);
    let span = typed.proxy_protocol.as_ref().map_or(&typed.span, |at| &at.span);
    for listen in listen {
        let (first, also) = proxied.entry(listen.clone()).or_insert((wanted, span.clone()));
        if *first != wanted {
            return Err(Problem::new(span, format!("two sites on {listen} differ"))
                .label(format!("`proxy_protocol` is {wanted} here"))
                .also(also, format!("and {first} here"))
                .help("all sites of a listener take PROXY headers, or none does"));
        }
    }
    Ok(wanted)
}

fn of_site(context: &Context<'_>, file: &File, typed: &file::Site) -> Resolution<OfSite> {
    let none = ErrorPages::default();
    Ok(OfSite {
        max_body: size_or_unlimited(&typed.max_body)?,
        error_pages: error_pages(context, &typed.error_pages, &typed.intercept, &none)?,
        maintenance: maintenance(context, &typed.maintenance, None)?,
        log: site_log(context, file, &typed.log)?,
        lacks_certificate: false,
    })
}

/// Returns the routes of a site that have no problem. For each other route, adds one problem to
/// `problems`, or to `of_directories`.
fn routes(
    context: &Context<'_>,
    file: &File,
    (number, site, defaults): (usize, &At<file::Site>, &OfSite),
    (problems, of_directories): (&mut Vec<Problem>, &mut Vec<Problem>),
) -> Vec<Route> {
    let typed = site.route.as_deref().unwrap_or_default();
    if typed.is_empty() {
        let problem = Problem::new(&site.span, "this site has no route").label("needs a route");
        problems.push(problem.help("add one: [[site.route]] with path = \"/*\", files = \"DIR\""));
    }
    let mut routes: Vec<(Route, &Range<usize>)> = Vec::new();
    for (of_site, at) in typed.iter().enumerate() {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        // A wrong value was reported. Rules over several keys would only add what follows from it.
        let Some(route) = at.is_whole.then(|| route(context, file, at, defaults)) else { continue };
        let mut route = match (route, context.filled.route_directories.get(&(number, of_site))) {
            (Ok(route), _) => route,
            (Err(problem), Some(own)) => {
                of_directories.push(problem.in_directory(own));
                continue;
            }
            (Err(problem), None) => {
                problems.push(problem);
                continue;
            }
        };
        route.inherited = inherited(context, context.filled.routes.get(&(number, of_site)));
        let fingerprint = context.filled.fingerprints.get(&(number, of_site));
        route.fingerprint = fingerprint.copied().unwrap_or_default();
        let is_taken = |(other, _): &&(Route, _)| other.name.is_some() && other.name == route.name;
        if let (Some((_, span)), Some(name)) = (routes.iter().find(is_taken), &at.name) {
            problems.push(
                Problem::new(&name.span, format!("two routes have the name \"{}\"", name.value))
                    .also(span, "the first")
                    .help("give each route of a site a name of its own"),
            );
            continue;
        }
        let mut compared = routes.iter().take(MOST_COMPARED);
        if let Some((first, span)) =
            compared.find(|(r, _)| !hands_on(r) && r.matcher.covers(&route.matcher))
        {
            problems.push(
                Problem::new(&at.span, "no request reaches this route")
                    .label("never reached")
                    .also(span, "takes all its requests")
                    .help(format!(
                        "the first route that matches takes the request: move this one above \
                         line {}",
                        first.line
                    )),
            );
            continue;
        }
        routes.push((route, &at.span));
    }
    routes.into_iter().map(|(route, _)| route).collect()
}

/// Returns true if the route passes some of its requests on to the routes below.
fn hands_on(route: &Route) -> bool {
    let runs_below = |files: &Files| files.scripts == ScriptsBelow::All;
    route.passes_on()
        // A route rewrites a request only once. If the route also matches the new path, later
        // routes get the request.
        || matches!(&route.action, Action::Moved(_) | Action::Rewrite)
        || matches!(&route.action, Action::Files(files) if runs_below(files))
}

/// The number of routes at the top of a site that each route is compared with. Without this limit,
/// the time would grow with the square of the number of routes.
const MOST_COMPARED: usize = 1000;

/// Records that a site answers for a host on its listeners. It is an error if another site already
/// answers for the host on one of these listeners.
fn claim(
    listen: &[Listen],
    host: &HostPattern,
    span: &Range<usize>,
    taken: &mut TakenListeners,
) -> Resolution<()> {
    let (key, name) = match host {
        HostPattern::Exact(name) => (name.clone(), format!("host \"{name}\"")),
        HostPattern::Suffix(suffix) => (format!("*{suffix}"), format!("host \"*{suffix}\"")),
        HostPattern::Any => ("*".to_owned(), "any host".to_owned()),
    };
    for listen in listen {
        if let Some(first) = taken.insert((listen.clone(), key.clone()), span.clone()) {
            return Err(Problem::new(span, format!("{name} on {listen} is taken already"))
                .label("given a second time")
                .also(&first, "first given here")
                .help("give each site hosts or a listener of its own"));
        }
    }
    Ok(())
}

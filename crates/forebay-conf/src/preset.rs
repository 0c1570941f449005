//! Short forms of sites: `kind = "php"` and `www = "redirect"`. Both add the tables that a user
//! would otherwise write in full. The added tables have the positions of the short form.

use std::collections::HashSet;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::error::{MARK, Problem};
use crate::tree::{self, Node, Tree};

/// Directories of uploads in well-known applications: WordPress, Drupal, MediaWiki, phpBB, Laravel
/// and others.
pub(crate) const UPLOADS: [&str; 7] = [
    "/wp-content/uploads/*",
    "/sites/default/files/*",
    "/uploads/*",
    "/upload/*",
    "/files/*",
    "/images/*",
    "/storage/*",
];

/// Keys of a site that are allowed only together with `kind`.
const OF_KIND: [&str; 4] = ["root", "app", "fastcgi", "uploads"];

/// Expands the keys `kind` and `www` of all sites to routes and further sites. Does not report
/// values of a wrong type, because the reader of the typed tables reports them later.
pub(crate) fn expand(tree: &mut Tree<'_>) -> Result<(), Vec<Problem>> {
    let (mut apps, mut redirecting, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (_, site)) in tree::tables_at(tree, "site").enumerate() {
        match php(site, number) {
            Ok(Some((name, mut app))) => {
                if let (Some(mark), DeValue::Table(app)) = (site.get(MARK), app.get_mut()) {
                    tree::insert(app, &mark.span(), MARK, mark.clone());
                }
                apps.push((name, app));
            }
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
        match www(site) {
            Ok(site) => redirecting.extend(site),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // Whoever owns a directory www.a.example must not close a.example by it.
    let is_directory = |(_, site): (_, &mut Tree<'_>)| {
        let hosts = site.get(MARK).and(site.get("hosts")).and_then(tree::texts);
        hosts.unwrap_or_default().into_iter().map(|(_, host)| host.to_owned()).collect::<Vec<_>>()
    };
    let directories: HashSet<_> = tree::tables_at(tree, "site").flat_map(is_directory).collect();
    redirecting.retain(|site: &Node<'_>| {
        let site = site.get_ref().as_table().filter(|site| site.contains_key(MARK));
        let hosts = site.and_then(|site| site.get("hosts")).and_then(tree::texts);
        !hosts.unwrap_or_default().iter().any(|(_, host)| directories.contains(*host))
    });
    if let Some(DeValue::Array(sites)) = tree.get_mut("site").map(Spanned::get_mut) {
        redirecting.into_iter().for_each(|site| sites.push(site));
    }
    for (name, app) in apps {
        let span = app.span();
        if !tree.contains_key("app") {
            tree::insert(tree, &span, "app", tree::table(&span, []));
        }
        if let Some(DeValue::Table(all)) = tree.get_mut("app").map(Spanned::get_mut) {
            tree::insert(all, &span, name, app);
        }
    }
    Ok(())
}

/// Adds the routes of a PHP site after the site's own routes. If the site has neither `app` nor
/// `fastcgi`, returns the name and the table of a new application. Otherwise returns `None`.
fn php<'s>(site: &mut Tree<'s>, number: usize) -> Result<Option<(String, Node<'s>)>, Problem> {
    let Some(kind) = site.get("kind") else {
        let stray = OF_KIND.iter().find_map(|key| site.get_key_value(*key));
        return stray.map_or(Ok(None), |(key, _)| {
            Err(Problem::new(&key.span(), format!("`{}` needs `kind` in a site", key.get_ref()))
                .help("add kind = \"php\", or move the key to a [[site.route]]"))
        });
    };
    let span = kind.span();
    if kind.get_ref().as_str() != Some("php") {
        return Ok(None);
    }
    let Some(root) = site.get("root").cloned() else {
        return Err(Problem::new(&span, "a site of this kind needs `root`")
            .help("add the directory of the scripts: root = \"htdocs\""));
    };
    let uploads = site
        .get("uploads")
        .cloned()
        .unwrap_or_else(|| tree::list(&span, UPLOADS.iter().map(|path| tree::text(&span, *path))));
    let mut app = None;
    let (answer, value) = match (site.get("app"), site.get("fastcgi")) {
        (Some(_), Some(fastcgi)) => {
            return Err(Problem::new(&fastcgi.span(), "both `app` and `fastcgi`")
                .help("keep the one that runs the scripts"));
        }
        (Some(name), None) => ("app", name.clone()),
        (None, Some(to)) => ("fastcgi", fastcgi(&span, to, &root)),
        (None, None) => {
            let name = app_name(site, number);
            app = Some((name.clone(), new_app(&span, &root)));
            ("app", tree::text(&span, name))
        }
    };
    let php = || tree::text(&span, ".php");
    let missing = [("status", scalar(&span, "404"))];
    let mut routes = Vec::new();
    let has_uploads = tree::texts(&uploads).is_none_or(|paths| !paths.is_empty());
    if has_uploads {
        let respond = tree::table(&span, missing);
        let keys = [("paths", uploads), ("suffix", php()), ("respond", respond)];
        routes.push(tree::table(&span, keys));
    }
    routes.push(tree::table(&span, [("suffix", php()), (answer, value)]));
    let index = tree::text(&span, "/index.php");
    routes.push(tree::table(&span, [("files", root), ("fallback_to", index)]));
    match site.get_mut("route").map(Spanned::get_mut) {
        Some(DeValue::Array(own)) => routes.into_iter().for_each(|route| own.push(route)),
        Some(_) => {}
        None => tree::insert(site, &span, "route", tree::list(&span, routes)),
    }
    Ok(app)
}

fn scalar<'s>(span: &Range<usize>, digits: &'static str) -> Node<'s> {
    let number = DeValue::parse(digits).expect("a number is TOML");
    Spanned::new(span.clone(), number.into_inner())
}

/// Returns the table `fastcgi` of a route. `to` is the site's value of `fastcgi`: an address, or a
/// table. The `root` of the site applies if the table has no `root`.
fn fastcgi<'s>(span: &Range<usize>, to: &Node<'s>, root: &Node<'s>) -> Node<'s> {
    let mut table = match to.get_ref() {
        DeValue::Table(table) => table.clone(),
        _ => {
            let mut table = Tree::new();
            tree::insert(&mut table, &to.span(), "to", to.clone());
            table
        }
    };
    if !table.contains_key("root") {
        tree::insert(&mut table, span, "root", root.clone());
    }
    Spanned::new(to.span(), DeValue::Table(table))
}

/// Returns the table `[app.NAME]` for a site that names no application. The application's processes
/// are started on demand.
fn new_app<'s>(span: &Range<usize>, root: &Node<'s>) -> Node<'s> {
    let workers = tree::table(span, [("max", scalar(span, "8"))]);
    let keys = [("kind", tree::text(span, "php")), ("root", root.clone()), ("workers", workers)];
    tree::table(span, keys)
}

/// Returns the name of a site's application: its first host, else its number.
fn app_name(site: &Tree<'_>, number: usize) -> String {
    let hosts = site.get("hosts").and_then(tree::texts).unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match hosts.first() {
        Some((_, host)) if !host.is_empty() && host.chars().all(is_plain) => (*host).to_owned(),
        _ => format!("site-{}", number + 1),
    }
}

/// Returns the site that redirects www.example.org to example.org. If `hosts` has www.example.org,
/// the site redirects example.org to www.example.org. Returns `None` if `site` does not have
/// `www = "redirect"`.
fn www<'s>(site: &Tree<'s>) -> Result<Option<Node<'s>>, Problem> {
    let Some(www) = site.get("www") else { return Ok(None) };
    let at = www.span();
    if www.get_ref().as_str() != Some("redirect") {
        return Ok(None);
    }
    let help = "name it in full: hosts = [\"example.org\"]";
    let hosts = site.get("hosts").and_then(tree::texts).unwrap_or_default();
    let exact: Vec<_> = hosts.iter().filter(|(_, host)| is_name(host)).collect();
    if exact.is_empty() {
        return Err(Problem::new(&at, "`www` needs the name of a host").help(help));
    }
    let mut others = Vec::new();
    for (_, host) in exact {
        let other = other_name(host);
        if let Some((taken, _)) = hosts.iter().find(|(_, name)| name.eq_ignore_ascii_case(&other)) {
            let message = format!("{other} is a host of this site already");
            return Err(Problem::new(taken, message)
                .also(&at, "would redirect it")
                .help("leave it out of `hosts`, or leave out `www`"));
        }
        others.push((other, host.to_ascii_lowercase()));
    }
    let to_first = format!("{{scheme}}://{}{{requested_port}}{{uri}}", others[0].1);
    let mut redirecting = site.clone();
    for key in ["kind", "route", "expect", "root", "app", "fastcgi", "uploads"] {
        redirecting.remove(key);
    }
    let hosts = others.iter().map(|(other, _)| tree::text(&at, other.clone()));
    let hosts = tree::list(&at, hosts.collect::<Vec<_>>());
    let redirect = [("to", tree::text(&at, to_first)), ("status", scalar(&at, "301"))];
    let route = tree::table(&at, [("redirect", tree::table(&at, redirect))]);
    tree::insert(&mut redirecting, &at, "hosts", hosts);
    tree::insert(&mut redirecting, &at, "route", tree::list(&at, [route]));
    Ok(Some(Spanned::new(at, DeValue::Table(redirecting))))
}

/// Returns true if the text is the full name of a host, not a pattern or an address.
fn is_name(host: &str) -> bool {
    host.contains('.')
        && !host.contains(['*', ':', '['])
        && host.parse::<std::net::IpAddr>().is_err()
}

/// Returns example.org for www.example.org, and www.example.org for any other name.
pub(crate) fn other_name(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match host.strip_prefix("www.") {
        Some(bare) if bare.contains('.') => bare.to_owned(),
        _ => format!("www.{host}"),
    }
}

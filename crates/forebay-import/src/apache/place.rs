//! Returns the routes of a base, region by region. A base is a mapping of paths to content
//! (`bases`). A region is a part of a base that has its own sections.

use super::Cx;
use super::access::{
    access_without_translation, gate, gate_of_hosts, refused_methods, settle_gate,
};
use super::around::Around;
use super::bases;
use super::bases::{Base, Content, redirects_within};
use super::fastcgi;
use super::fields::decorate;
use super::handlers::{handlers, whole_handler};
use super::mod_perl;
use super::pages;
use super::proxies;
use super::regions::{existing, guarded, has_option, region_matcher, regions, whole_root};
use super::rewrites;
use super::script_alias::scripts;
use super::sections::narrowed;
use super::sections::{Section, Sections, all, is_below, last, settle};
use super::syntax::{Directive, is, line};
use super::targets;
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::pattern::{Use, as_regex, classify, path_list_expression};
use crate::template::literal;
use crate::value::{Table, Value};

/// Returns the routes of a base. A region is a part of the base that has its own sections. The
/// routes of the regions precede the routes of the whole base. If no region differs from the base,
/// returns only the routes of the whole base. `above` are the bases before this one.
pub fn routes(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    (above, base): (&[Base<'_>], &Base<'_>),
    scheme: &str,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    let whole = (base.url.clone(), base.dir.clone());
    let own = answers(cx, sections, base, &whole, base.matcher.clone(), scheme);
    let mut differs = false;
    for region in regions(sections, base) {
        let Some(matcher) = region_matcher(base, &region.0) else { continue };
        // With `Alias /perl/`, the handler of `Location /perl/` is not for files of the site's root.
        let is_taken = above
            .iter()
            .any(|base| matches!(base.content, Content::Files) && base.matcher.covers(&matcher));
        let layers = sections.layers(&region.0, region.1.as_deref());
        if is_taken && mod_perl::set_handler(&layers).is_some() {
            continue;
        }
        let routes = answers(cx, sections, base, &region, matcher, scheme);
        differs |= !is_same(&routes, &own);
        out.extend(routes);
    }
    // If one region differs from the base, keep all regions. A region that equals the base may be
    // inside of the region that differs.
    if !differs {
        out.clear();
    }
    out.extend(own);
    out
}

/// Returns true if the routes of a region and the routes of its base come from the same lines and
/// have the same keys. Does not compare `root` of `files`.
fn is_same(region: &[DraftRoute], own: &[DraftRoute]) -> bool {
    let keys = |route: &DraftRoute| {
        let mut keys = route.keys.clone();
        if let Some(Value::Table(table)) = keys.get("files").cloned() {
            let mut table = table;
            table.remove("root");
            keys.set("files", table);
        } else if keys.get("files").is_some() {
            keys.set("files", Table::default());
        }
        keys
    };
    region.len() == own.len()
        && region.iter().zip(own).all(|(a, b)| keys(a) == keys(b) && a.place == b.place)
}

/// The directives about directories of files. They do not change replies of a backend.
const FILES: [&str; 5] =
    ["AddHandler", "DirectoryIndex", "FallbackResource", "Options", "SetHandler"];

/// Returns the routes of one region of a base.
fn answers(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    base: &Base<'_>,
    (url, dir): &(String, Option<String>),
    matcher: Matcher,
    scheme: &str,
) -> Vec<DraftRoute> {
    let mut layers = sections.layers(url, dir.as_deref());
    let mut partial = None;
    if let Content::Pass(target) | Content::Rule(_, target) = &base.content {
        let found = proxies::sections_of(cx, sections, target);
        partial = found.partial;
        // Sections for directories and paths override `Proxy` sections, so the `Proxy` sections
        // come first.
        let at = sections.levels.len();
        layers.splice(at..at, found.blocks);
    }
    if let (Content::App(_), Some(file)) = (&base.content, dir.as_deref()) {
        // `Files` sections override those of directories, and `Location` sections override both.
        let locations = sections.locations.iter().filter(|section| is_below(url, &section.path));
        let at = layers.len() - locations.count();
        let name = file.rsplit('/').next().unwrap_or_default();
        let holds = |(section, around): &&(&Directive, Option<String>)| {
            around.as_deref().is_none_or(|around| is_below(file, around))
                && is(section, "Files")
                && section.args == [name]
        };
        let own: Vec<_> =
            sections.files.iter().filter(holds).map(|(section, _)| *section).collect();
        own.iter().for_each(|section| section.settle());
        layers.splice(at..at, own.iter().map(|section| section.inside()));
    }
    let by_perl = matches!(base.content, Content::Files) && mod_perl::answers(&layers);
    let deciding = if by_perl { None } else { mod_perl::deciding(&layers) };
    let perl_gate = deciding.map(|line| {
        let dir = dir.as_deref().unwrap_or("/");
        (line, mod_perl::gate(cx, &layers, line, dir))
    });
    let is_of_perl = by_perl || matches!(perl_gate, Some((_, Ok(_))));
    let is_ruled_by_perl = is_of_perl && mod_perl::authenticates(&layers);
    let rules = if is_ruled_by_perl {
        settle_gate(&layers);
        gate_of_hosts(cx, &layers)
    } else {
        gate(cx, &layers)
    };
    settle(&layers, &["ProxyPreserveHost", "ProxyTimeout"]);
    if !matches!(base.content, Content::Files) {
        settle(&layers, &FILES);
    }
    let mut matcher = matcher;
    let is_refused = rules.refuses_all() || rules.closed.is_some();
    if is_refused && matches!(base.content, Content::Files) && url.len() > base.url.len() {
        add_bare_path(url, &mut matcher);
    }
    let route = DraftRoute::new(&base.directive.place, line(base.directive), matcher);
    let region = route.matcher.clone();
    let mut routes = match &base.content {
        Content::Fixed(fixed) => {
            // Apache evaluates a redirect before the access rules, so the redirect gets no access
            // rules.
            let mut fixed = (**fixed).clone();
            decorate(cx, &layers, &mut fixed);
            return vec![fixed];
        }
        Content::Pass(target) => {
            let mut route = route;
            match targets::pass(cx, &layers, base.directive, (&base.url, target), &mut route) {
                Ok(()) => vec![route],
                Err(next) => {
                    let comment = cx.note(base.directive, next);
                    vec![route.closed(comment)]
                }
            }
        }
        Content::App(name) => {
            let mut route = route;
            route.keys.set("app", name.as_str());
            vec![route]
        }
        Content::Rule(rule, _) => {
            vec![DraftRoute { matcher: route.matcher.clone(), ..(**rule).clone() }]
        }
        Content::Cgi => scripts(cx, sections, &layers, (base, url), route),
        Content::Files => {
            let place = (url.as_str(), dir.as_deref().unwrap_or("/"));
            directory(cx, sections, &layers, place, route, scheme)
        }
    };
    // Skip the layers of the server and of the virtual host, because other functions add the notes
    // on their lines.
    let inner = &layers[sections.levels.len()..];
    let mut by_path = sections.locations.iter().filter(|s| super::sections::is_below(url, &s.path));
    // For files, `directory` translates the rewrite rules in `Directory` sections, but not in
    // `Location` sections. For other content, none of these rules have a translation.
    let rewrite = match &base.content {
        Content::Files => by_path.find_map(|section| rewrites::decision(section.block)),
        _ => inner.iter().copied().find_map(rewrites::decision),
    };
    let is_met = |d: &&Directive| scheme == "https" && is(d, "SSLRequireSSL");
    let is_of_app = |d: &&Directive| {
        is_of_perl && mod_perl::is_of_application(d) || is_ruled_by_perl && mod_perl::is_limit(d)
    };
    let lines = inner.iter().copied().flatten();
    let lines = lines.filter(|directive| !is_met(directive) && !is_of_app(directive));
    let lines = lines.filter(|directive| refused_methods(directive).is_none());
    let untranslated = lines.map(std::slice::from_ref).find_map(access_without_translation);
    // Of the lines outside of sections, only Perl, Lua and ModSecurity directives may close the
    // route. Other functions add the notes on the other lines.
    let outer = sections.levels.iter().copied().flatten();
    let outer =
        outer.filter(|d| ["Fcgid", "Perl", "Lua", "Sec"].iter().any(|n| d.name.starts_with(n)));
    let outer = outer.filter(|d| !is_of_app(d));
    let outer = outer.map(std::slice::from_ref).find_map(access_without_translation);
    let untranslated = untranslated.or(rewrite).or(partial).or(outer);
    let refusals = refusals_of_methods(cx, inner, &region);
    let granted = match (&base.content, dir.as_deref()) {
        (Content::Files, Some(dir))
            if rules.refuses_all()
                && refusals.is_empty()
                && untranslated.is_none()
                && deciding.is_none() =>
        {
            granted_files(cx, sections, &layers, (url, dir), &region)
        }
        _ => Vec::new(),
    };
    routes.splice(0..0, refusals);
    routes.splice(0..0, redirects_within(cx, inner, &region));
    for route in &mut routes {
        decorate(cx, &layers, route);
        pages::decorate(cx, sections, &layers, route);
        *route = guarded(route.clone(), &rules);
        match &perl_gate {
            // Without the handlers, an address or a password of `satisfy` would be enough.
            Some((line, Ok(_))) if route.keys.get("satisfy").is_some() => {
                let next = "the handlers and one of the rules must admit the client: write routes";
                let comment = cx.note(line, next);
                *route = route.clone().closed(comment);
            }
            Some((_, Ok(name))) => route.keys.set("perl_gate", name.as_str()),
            Some((line, Err(next))) => {
                let comment = cx.note(line, next);
                *route = route.clone().closed(comment);
            }
            None => {}
        }
        if let Some(directive) = untranslated {
            let comment =
                cx.note(directive, "write the rule as keys of this route, such as `allow`");
            *route = route.clone().closed(comment);
        }
    }
    routes.splice(0..0, granted);
    routes
}

/// Returns the routes that refuse the methods of `Limit` and `LimitExcept` sections.
fn refusals_of_methods(
    cx: &mut Cx<'_>,
    blocks: &[&[Directive]],
    region: &Matcher,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    for section in blocks.iter().copied().flatten() {
        let Some(methods) = refused_methods(section) else { continue };
        section.settle_all();
        let route = DraftRoute::new(&section.place, line(section), methods);
        let route = narrowed(cx, route, region);
        // `narrowed` may have closed the route.
        out.extend(
            route.map(|route| if route.keys.is_empty() { route.respond(403) } else { route }),
        );
    }
    out
}

/// Endings of files that may be scripts, whose source no route must send.
const SCRIPTS: [&str; 8] = [".cgi", ".fcgi", ".htm", ".php", ".pl", ".pm", ".py", ".rb"];

/// Returns the routes of files that a `Files` or `FilesMatch` section grants within a directory that
/// is closed to all, as in Bugzilla's `data/assets`. Only sections about endings have a translation.
fn granted_files(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    region: &Matcher,
) -> Vec<DraftRoute> {
    let is_closed = |section: &Section<'_>| is_below(url, &section.path);
    // `Location` sections override `Files` sections.
    if sections.locations.iter().any(is_closed) {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (section, around) in &sections.files {
        if !around.as_deref().is_some_and(|around| is_below(dir, around)) {
            continue;
        }
        let with_section: Vec<&[Directive]> =
            layers.iter().copied().chain([section.inside()]).collect();
        if !gate(cx, &with_section).is_open() {
            continue;
        }
        let text = section.args.last().map_or("", String::as_str);
        let ends = if is(section, "FilesMatch") || section.arg(0) == "~" {
            classify(text, false, cx.keys, Use::Exact).ok().map(|found| found.matcher)
        } else {
            let end = text.strip_prefix('*').filter(|end| !end.contains(['*', '?', '[']));
            end.map(|end| Matcher { suffixes: vec![end.to_owned()], ..Matcher::default() })
        };
        let is_harmless = |end: &String| {
            let end = end.to_ascii_lowercase();
            end.starts_with('.') && !SCRIPTS.iter().any(|script| end.starts_with(script))
        };
        let ends = ends.filter(|ends| {
            *ends == Matcher { suffixes: ends.suffixes.clone(), ..Matcher::default() }
                && ends.suffixes.iter().all(is_harmless)
        });
        let Some(ends) = ends else {
            let next = "these files stay closed, as their directory: write a route with `files` \
                        for them, before that of the directory";
            cx.note(section, next);
            continue;
        };
        section.settle_all();
        for (matcher, dir) in directories(cx, (url, dir), region) {
            let Some(matcher) = matcher.and(&ends) else { continue };
            if matcher.paths.iter().any(|path| !path.ends_with('*')) {
                continue;
            }
            let mut route = DraftRoute::new(&section.place, line(section), matcher);
            decorate(cx, layers, &mut route);
            out.push(with_files(sections, layers, &dir, route));
        }
    }
    out
}

/// Adds the path without the final slash to the conditions of a directory. Otherwise another route
/// would redirect this path, and so reveal that the directory exists.
fn add_bare_path(url: &str, matcher: &mut Matcher) {
    let bare = url.trim_end_matches('/');
    let is_whole = matcher.paths.iter().any(|path| *path == format!("{bare}/*"));
    if is_whole && !bare.is_empty() && !matcher.paths.iter().any(|path| path == bare) {
        matcher.paths.insert(0, bare.to_owned());
    }
}

/// Returns the routes of a directory: its rewrites, its scripts, and its files.
fn directory(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: DraftRoute,
    scheme: &str,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    settle(layers, &FILES);
    let fallback = last(layers, "FallbackResource").map(|to| literal(to.arg(0), cx.keys));
    if let Some(to) = last(layers, "FallbackResource")
        && !to.arg(0).starts_with('/')
        && to.arg(0) != "disabled"
    {
        cx.note(to, "write a path that begins with a slash in `fallback_to`");
    }
    note_options(cx, layers);
    let mut own = sections.directories.iter().filter(|section| {
        let is_whole = super::sections::is_below(dir, &section.path);
        is_whole && section.block.iter().any(|d| is(d, "RewriteEngine"))
    });
    // The rewrite rules of the nearest directory replace those of the directories above it, unless
    // `RewriteOptions` says otherwise.
    let inherits = rewrites::inherits(&layers[sections.levels.len()..]);
    let mut nearest = None;
    let (mut of_rules, mut fallbacks) = (None, Vec::new());
    // After a rule for all missing files, later rules for missing files have no effect.
    let mut add_fallbacks = |all: Option<String>, some: Vec<(Matcher, String)>| {
        if of_rules.is_none() {
            fallbacks.extend(some);
            of_rules = all;
        }
    };
    // For the files of DocumentRoot, Apache applies the rules of the virtual host before the rules
    // of directories.
    let root = last(&sections.levels, "DocumentRoot").map(|root| cx.path(root.arg(0)));
    if root.is_some() && whole_root(url, dir) == root {
        for rules in rewrites::of_host(cx, sections, scheme) {
            add_fallbacks(rules.fallback, rules.fallbacks);
        }
    }
    own.clone().for_each(|section| settle(&[section.block], &rewrites::NAMES));
    while let Some(section) = own.next_back().filter(|_| inherits || nearest.is_none()) {
        let path = *nearest.get_or_insert(&section.path);
        let section_url = whole_root(dir.strip_prefix(path.as_str()).unwrap_or(""), url);
        let around = Around {
            url: Some(section_url.as_deref().unwrap_or(url)),
            scheme: Some(scheme),
            is_above: section_url.is_none(),
            block: section.block,
        };
        let rules = rewrites::rules(cx, around);
        out.extend(rules.routes.into_iter().filter_map(|rule| narrowed(cx, rule, &route.matcher)));
        add_fallbacks(rules.fallback, rules.fallbacks);
    }
    let page = all(layers, "ErrorDocument").into_iter().rfind(|page| page.arg(0) == "404");
    let page =
        page.map(|page| page.arg(1)).filter(|to| to.starts_with('/') && to.ends_with(".php"));
    let page = page.map(|page| literal(page, cx.keys));
    let fallback = of_rules.or(fallback).or(page).filter(|to| to != "disabled");
    let programs = fastcgi::in_directory(cx, sections, layers, (url, dir), &route);
    if files::is_readable(dir) && !programs.is_empty() {
        // The path of the alias is that of one program.
        return programs;
    }
    out.extend(programs);
    if let Some(whole) = whole_handler(cx, sections, layers, (url, dir), &route) {
        out.push(whole);
        return out;
    }
    out.extend(handlers(cx, sections, layers, (url, dir), &route));
    out.extend(slash_redirect((url, dir), &route));
    out.extend(bases::elsewhere(cx, sections, layers, (url, dir), &route));
    for (matcher, dir) in directories(cx, (url, dir), &route.matcher) {
        for (some, to) in &fallbacks {
            let Some(some) = whole_paths(cx, some) else {
                let next = "write a route with `files` and `fallback_to` for some of these paths";
                cx.draft.notes.add(&route.place, &route.source, next);
                continue;
            };
            let part = DraftRoute { matcher: some, ..route.clone() };
            let Some(mut part) = narrowed(cx, part, &matcher) else { continue };
            if part.keys.get("respond").is_none() {
                part.keys.set("fallback_to", to.as_str());
                part = with_files(sections, layers, &dir, part);
            }
            out.push(part);
        }
        let mut files_route = route.clone();
        files_route.matcher = matcher;
        files_route.keys.set_some("fallback_to", fallback.clone().filter(|to| to.starts_with('/')));
        out.push(with_files(sections, layers, &dir, files_route));
    }
    out
}

/// Returns a matcher for the requests of `matcher`, with an expression in place of paths such as
/// `/x/*`. With the path `/x/*` and the root `/srv`, Forebay sends `/srv/a` for the request `/x/a`.
/// With an expression, Forebay sends `/srv/x/a`. Returns `None` if one route cannot have these
/// conditions.
fn whole_paths(cx: &Cx<'_>, matcher: &Matcher) -> Option<Matcher> {
    if !matcher.paths.iter().any(|path| path.ends_with('*') && path != "/*") {
        return Some(matcher.clone());
    }
    let regex = path_list_expression(&matcher.paths);
    let own = Matcher { paths: Vec::new(), ..matcher.clone() };
    own.and(&as_regex(&regex, false, cx.keys)?.matcher)
}

/// Adds notes for a directory on `MultiViews`, and on a `DirectoryIndex` without a translation.
fn note_options(cx: &mut Cx<'_>, layers: &[&[Directive]]) {
    if has_option(layers, "MultiViews") {
        let is_it = |arg: &String| arg.trim_start_matches('+').eq_ignore_ascii_case("multiviews");
        let options = all(layers, "Options").into_iter();
        let mut options = options.filter(|options| options.args.iter().any(is_it));
        if let Some(options) = options.next_back() {
            cx.note(
                options,
                "MultiViews has no translation: name the endings in `extensions` of `files`",
            );
        }
    }
    let Some(index) = last(layers, "DirectoryIndex") else { return };
    if index.args.iter().any(|name| name.contains('/')) {
        cx.note(index, "an index is a file of the directory: write `fallback_to` for the others");
    } else if index.arg(0) == "disabled" {
        cx.note(index, "write a name that no file has in `index` of `files`");
    }
}

/// Returns the redirect from the path of an `Alias`, such as `/x`, to `/x/`. Returns `None` if the
/// directory does not exist, if its name ends with the path, or if `route` does not have the path.
fn slash_redirect((url, dir): (&str, &str), route: &DraftRoute) -> Option<DraftRoute> {
    let path = url.trim_end_matches('/');
    let is_own = route.matcher.paths.iter().any(|own| own == path) && !path.is_empty();
    let is_plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b));
    if !is_own || !is_plain || whole_root(url, dir).is_some() || !files::is_directory(dir) {
        return None;
    }
    let matcher = Matcher { paths: vec![path.to_owned()], ..route.matcher.clone() };
    Some(DraftRoute { matcher, ..route.clone() }.redirect(&format!("{path}/"), 301))
}

/// Returns a matcher for each path in `matcher`, with the directory of the files for this path.
/// `url` and `dir` are the path and the directory of the region. The directory for a path without
/// a file may be missing.
fn directories(cx: &Cx<'_>, (url, dir): (&str, &str), matcher: &Matcher) -> Vec<(Matcher, String)> {
    let prefix = format!("{}/*", url.trim_end_matches('/'));
    let mut found = Vec::new();
    for path in &matcher.paths {
        let part = Matcher { paths: vec![path.clone()], ..matcher.clone() };
        let root = crate::files::joined(dir, "");
        if *path == prefix || path == "/*" && prefix == "/*" {
            if files::is_directory(&root) {
                found.push((part, root));
                continue;
            }
            // The directory `root` does not exist, so Forebay must look up the whole path below the
            // root of the site.
            let whole = whole_root(url, dir);
            let regex = format!("^{}", regex_syntax::escape(path.trim_end_matches('*')));
            match (whole, as_regex(&regex, false, cx.keys)) {
                (Some(whole), Some(regex)) => found
                    .push((Matcher { methods: matcher.methods.clone(), ..regex.matcher }, whole)),
                _ => found.push((part, root)),
            }
        } else if !path.ends_with('*') {
            // For a path without `*`, Forebay looks up the whole path below the root of the site.
            found.push(match whole_root(url, dir) {
                Some(whole) => (part, whole),
                None => below_alias(path, (url, dir), &part).unwrap_or((part, root)),
            });
        }
    }
    found
}

/// Returns the conditions and the directory for one file below an alias. The conditions keep a path
/// with `*`, because Forebay looks up the part that the `*` matched. Returns `None` without such a
/// directory.
fn below_alias(path: &str, place: (&str, &str), matcher: &Matcher) -> Option<(Matcher, String)> {
    let (url, dir) = existing(place)?;
    if matcher.regex.is_some() || !is_below(path, &url) || path == url {
        return None;
    }
    let regex = Some(format!("^{}$", regex_syntax::escape(path)));
    Some((Matcher { paths: vec![format!("{url}/*")], regex, ..matcher.clone() }, dir))
}

/// Returns true if a line of `IndexIgnore` hides other names than the line in Apache's own
/// configuration.
fn hides_names(names: &Directive) -> bool {
    let usual = ["RCS", "CVS", ".??*", "*~", "*#", "HEADER*", "README*", "*,v", "*,t"];
    !names.args.iter().all(|name| usual.contains(&name.as_str()))
}

/// Returns true if Apache follows symbolic links, as it does without `Options`.
fn follows_links(layers: &[&[Directive]]) -> bool {
    let options = all(layers, "Options");
    let is_relative =
        |options: &&Directive| options.args.iter().all(|option| option.starts_with(['+', '-']));
    let is_default = options.iter().all(is_relative)
        && !options.iter().any(|options| {
            options.args.iter().any(|option| option.eq_ignore_ascii_case("-FollowSymLinks"))
        });
    is_default || has_option(layers, "FollowSymLinks") || has_option(layers, "SymLinksIfOwnerMatch")
}

/// Adds the key `files` for a directory to the route. If the directory does not exist, the route
/// answers 404.
fn with_files(
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    dir: &str,
    mut route: DraftRoute,
) -> DraftRoute {
    let mut table = Table::default().with("root", dir);
    let index = last(layers, "DirectoryIndex").map(|index| &index.args[..]).unwrap_or_default();
    let index: Vec<&str> =
        index.iter().map(String::as_str).filter(|name| !name.contains('/')).collect();
    if !index.is_empty() && index[..] != ["index.html"] && index[..] != ["disabled"] {
        table.set("index", index);
    }
    if has_option(layers, "Indexes") {
        if all(layers, "IndexIgnore").iter().any(|names| hides_names(names)) {
            route.comments.push("IndexIgnore hides names here, so there is no listing.".into());
        } else {
            table.set("listing", true);
        }
    }
    if !follows_links(layers) {
        table.set("follow_symlinks", "never");
    }
    if sections.forbids_override(dir) {
        table.set("htaccess", "ignore");
    }
    let value = if table.0.len() == 1 { Value::from(dir) } else { Value::Table(table) };
    if files::is_directory(dir) {
        route.keys.set("files", value);
        return route;
    }
    route
        .comments
        .push(format!("There is no directory {dir} here. When there is: files = {value}"));
    route.respond(404)
}

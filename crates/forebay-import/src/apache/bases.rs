//! A base is a mapping of paths to content. Bases come from `ProxyPass`, `Redirect`, `Alias`,
//! `ScriptAlias` and `DocumentRoot`, in Apache's order.

use super::sections::narrowed;
use super::sections::{Sections, is_below, last, settle, url_of};
use super::syntax::{Directive, is, line};
use super::{Cx, wsgi};
use crate::draft::DraftRoute;
use crate::files::{is_readable, joined};
use crate::matcher::Matcher;
use crate::pattern::{PatternConditions, Use, as_regex, classify};
use crate::template::{group, is_redirect_target, literal, redirect_target};

/// A base: the paths that one directive maps to files, scripts, a backend or a fixed reply.
#[derive(Clone, Debug)]
pub struct Base<'a> {
    pub directive: &'a Directive,
    /// The beginning of the base's URL paths, for example `/x` of `Alias /x /dir`.
    pub url: String,
    pub matcher: Matcher,
    /// The directory with the content of the base. `None` if the content is not in a directory.
    pub dir: Option<String>,
    pub content: Content,
}

/// The content of a base.
#[derive(Clone, Debug)]
pub enum Content {
    Files,
    /// A directory of CGI scripts, or a program.
    Cgi,
    /// The application of this name.
    App(String),
    /// The backend with this URL.
    Pass(String),
    /// A complete route without access rules.
    Fixed(Box<DraftRoute>),
    /// The route of a `RewriteRule` that passes requests to the backend with this URL.
    Rule(Box<DraftRoute>, String),
}

/// Returns the matcher for a path and all paths below it.
pub fn below(path: &str) -> Matcher {
    if path.ends_with('/') {
        return Matcher::prefix(path);
    }
    Matcher { paths: vec![path.to_owned(), format!("{path}/*")], ..Matcher::default() }
}

/// Returns the bases of a virtual host. The first base that matches a request applies.
pub fn bases<'a>(cx: &mut Cx<'_>, sections: &Sections<'a>) -> Vec<Base<'a>> {
    let levels: Vec<&'a [Directive]> = sections.levels.iter().rev().copied().collect();
    let all = || levels.iter().copied().flatten();
    let root = last(&sections.levels, "DocumentRoot");
    settle(&levels, &["DocumentRoot", "Alias", "ScriptAlias", "ProxyPass", "ProxyPassMatch"]);
    let mut found = Vec::new();
    let mut aliases = Vec::new();
    for directive in all().filter(|d| ["Alias", "ScriptAlias"].iter().any(|name| is(d, name))) {
        aliases.push(alias(cx, directive));
    }
    // mod_wsgi looks for its aliases after those of mod_alias.
    for directive in all().filter(|d| is(d, "WSGIScriptAlias")) {
        let (url, file) = (directive.arg(0).to_owned(), cx.path(directive.arg(1)));
        let matcher = below(&url);
        let content = match wsgi::answer(cx, sections, directive, (&file, &matcher)) {
            Ok(app) => Content::App(app),
            Err(closed) => Content::Fixed(closed),
        };
        // The sections for the directory of the script apply.
        aliases.push(Base { directive, url, matcher, dir: Some(file), content });
    }
    if let Some(root) = root {
        let dir = Some(cx.path(root.arg(0)));
        let matcher = Matcher::path("/*");
        aliases.push(Base {
            directive: root,
            url: "/".into(),
            matcher,
            dir,
            content: Content::Files,
        });
    }
    // Apache reads the `ProxyPass` of a `Location` before those of the virtual host, and a later
    // section replaces an earlier one.
    for section in sections.locations.iter().rev() {
        for directive in section.block.iter().rev().filter(|d| is(d, "ProxyPass")) {
            directive.settle();
            found.extend(proxy(directive, &section.path, directive.arg(0), &aliases));
        }
    }
    for directive in all().filter(|d| is(d, "ProxyPass")) {
        found.extend(proxy(directive, directive.arg(0), directive.arg(1), &aliases));
    }
    for directive in all().filter(|d| is(d, "ProxyPassMatch")) {
        found.extend(proxy_match(cx, directive));
    }
    for directive in all() {
        found.extend(redirect(cx, directive));
    }
    for directive in all().filter(|d| is(d, "AliasMatch") || is(d, "ScriptAliasMatch")) {
        found.extend(alias_match(cx, directive));
    }
    found.extend(aliases);
    found
}

fn alias<'a>(cx: &Cx<'_>, directive: &'a Directive) -> Base<'a> {
    let url = directive.arg(0).to_owned();
    let content = if is(directive, "ScriptAlias") { Content::Cgi } else { Content::Files };
    let dir = Some(cx.path(directive.arg(1)));
    Base { directive, matcher: below(&url), url, dir, content }
}

/// Returns the base of `ProxyPass PATH URL`. With the URL `!`, Apache does not pass the path to a
/// backend. For `!`, returns a base with the files of the alias or document root that contains the
/// path. If none of `aliases` contains the path, returns a base with status 404.
fn proxy<'a>(
    directive: &'a Directive,
    path: &str,
    url: &str,
    aliases: &[Base<'a>],
) -> Vec<Base<'a>> {
    if url != "!" {
        let content = Content::Pass(url.to_owned());
        let (url, dir) = (path.to_owned(), None);
        return vec![Base { directive, matcher: below(path), url, dir, content }];
    }
    let holds = |base: &&Base<'a>| is_below(path, &base.url);
    let Some(base) = aliases.iter().find(holds) else {
        let route = DraftRoute::new(&directive.place, line(directive), below(path)).respond(404);
        let content = Content::Fixed(Box::new(route));
        return vec![Base {
            directive,
            matcher: below(path),
            url: path.into(),
            dir: None,
            content,
        }];
    };
    let rest = path.strip_prefix(base.url.trim_end_matches('/')).unwrap_or("");
    let dir = base.dir.as_ref().map(|dir| crate::files::joined(dir, rest));
    vec![Base { matcher: below(path), url: path.into(), dir, ..base.clone() }]
}

fn closed<'a>(cx: &mut Cx<'_>, directive: &'a Directive, matcher: Matcher, next: &str) -> Base<'a> {
    let comment = cx.note(directive, next);
    let route = DraftRoute::new(&directive.place, line(directive), matcher.clone()).closed(comment);
    Base {
        directive,
        url: "/".into(),
        matcher,
        dir: None,
        content: Content::Fixed(Box::new(route)),
    }
}

/// Returns the conditions of an expression. If `target` uses a group such as `$1` that simpler
/// conditions do not provide, the conditions keep the expression. If there is no translation, the
/// error is a matcher for a closed route: it takes all paths of the expression, and may take more.
fn found(cx: &Cx<'_>, text: &str, target: &str, of: Use) -> Result<PatternConditions, Matcher> {
    let found = classify(text, false, cx.keys, of).map_err(|unknown| {
        unknown.superset.map_or_else(|| Matcher::path("/*"), |matcher| *matcher)
    })?;
    let lacks = (1..10).any(|n| target.contains(&format!("${n}")) && group(n, &found).is_none());
    if lacks && of == Use::Exact {
        return as_regex(text, false, cx.keys).ok_or(found.matcher);
    }
    Ok(found)
}

fn proxy_match<'a>(cx: &mut Cx<'_>, directive: &'a Directive) -> Vec<Base<'a>> {
    let (text, target) = (directive.arg(0), directive.arg(1));
    let is_fastcgi = target.starts_with("fcgi:") || target.contains("|fcgi:");
    let of = if is_fastcgi { Use::Scripts } else { Use::Exact };
    let next = "write a route with `proxy` or `fastcgi` for these paths";
    let found = match found(cx, text, target, of) {
        Ok(found) => found,
        Err(matcher) => return vec![closed(cx, directive, matcher, next)],
    };
    // In targets such as `fcgi://host/dir/$1` and `http://host/$1`, `$1` is the path of the
    // request, which Forebay passes by itself. So only the text before `$1` is needed.
    let target = target.split('$').next().unwrap_or_default();
    let base = target.strip_suffix('/').unwrap_or(target);
    let keeps = is_fastcgi || Base::has_no_path(base);
    if !keeps || target.is_empty() {
        return vec![closed(cx, directive, found.matcher, next)];
    }
    let content = Content::Pass(base.to_owned());
    vec![Base { directive, url: "/".into(), matcher: found.matcher, dir: None, content }]
}

impl Base<'_> {
    fn has_no_path(url: &str) -> bool {
        url.split_once("://").is_some_and(|(_, rest)| !rest.contains('/'))
    }
}

/// Returns the bases for `Redirect`, `RedirectTemp`, `RedirectPermanent` and `RedirectMatch`.
/// Returns no bases for other directives.
fn redirect<'a>(cx: &mut Cx<'_>, directive: &'a Directive) -> Vec<Base<'a>> {
    let mut args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    let is_match = is(directive, "RedirectMatch");
    let mut status = match () {
        () if is(directive, "Redirect") || is(directive, "RedirectTemp") || is_match => 302,
        () if is(directive, "RedirectPermanent") => 301,
        () => return Vec::new(),
    };
    directive.settle();
    if (is(directive, "Redirect") || is_match) && args.len() > 1 {
        let named = match args[0].to_ascii_lowercase().as_str() {
            "permanent" => Some(301),
            "temp" => Some(302),
            "seeother" => Some(303),
            "gone" => Some(410),
            number => number.parse().ok(),
        };
        if let Some(named) = named {
            status = named;
            args.remove(0);
        }
    }
    let (from, to) = (args.first().copied().unwrap_or("/"), args.get(1).copied().unwrap_or(""));
    let base = |matcher: Matcher, route: DraftRoute| Base {
        directive,
        url: from.to_owned(),
        matcher,
        dir: None,
        content: Content::Fixed(Box::new(route)),
    };
    let route =
        |matcher: &Matcher| DraftRoute::new(&directive.place, line(directive), matcher.clone());
    let next = "write the target in `redirect`";
    if is_match {
        let found = match found(cx, from, to, Use::Exact) {
            Ok(found) => found,
            Err(matcher) => return vec![closed(cx, directive, matcher, next)],
        };
        if to.is_empty() {
            return vec![base(found.matcher.clone(), route(&found.matcher).respond(status))];
        }
        let target = super::rewrites::with_groups(to, &found, cx.keys);
        let target = target.map(|target| redirect_target(&target, true, cx.keys));
        return match target.filter(|target| is_redirect_target(target)) {
            Some(target) => {
                vec![base(found.matcher.clone(), route(&found.matcher).redirect(&target, status))]
            }
            None => vec![closed(cx, directive, found.matcher, next)],
        };
    }
    if to.is_empty() {
        return vec![base(below(from), route(&below(from)).respond(status))];
    }
    let bare = literal(to.trim_end_matches('/'), cx.keys);
    let prefix = format!("{}/*", from.trim_end_matches('/'));
    let rest = if prefix == "/*" { format!("{bare}{{path}}") } else { format!("{bare}/{{rest}}") };
    let exact = Matcher::path(from.trim_end_matches('/'));
    let mut found = Vec::new();
    for (matcher, to) in [(exact, literal(to, cx.keys)), (Matcher::path(prefix), rest)] {
        let to = redirect_target(&to, true, cx.keys);
        if matcher.paths[0].is_empty() {
            continue;
        }
        found.push(if is_redirect_target(&to) {
            base(matcher.clone(), route(&matcher).redirect(&to, status))
        } else {
            closed(cx, directive, matcher, next)
        });
    }
    found
}

/// Returns the routes for the redirects in `blocks`, limited to the paths of `region`. A redirect
/// without a path, such as `Redirect https://a.example/`, becomes a closed route.
pub fn redirects_within(
    cx: &mut Cx<'_>,
    blocks: &[&[Directive]],
    region: &Matcher,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    for directive in blocks.iter().rev().copied().flatten() {
        let is_redirect = ["Redirect", "RedirectMatch", "RedirectTemp", "RedirectPermanent"]
            .iter()
            .any(|name| is(directive, name));
        let lacks_path = |target: &String| target.contains("://") && directive.args.len() < 3;
        if is_redirect
            && directive.args.iter().take(2).all(|arg| !arg.starts_with(['/', '^']))
            && directive.args.last().is_some_and(lacks_path)
        {
            // Without a path, the redirect applies to its whole section, so close the whole region.
            let route = DraftRoute::new(&directive.place, line(directive), region.clone());
            out.push(route.closed(cx.note(directive, "write the target in `redirect`")));
            continue;
        }
        for base in redirect(cx, directive) {
            if let Content::Fixed(route) = base.content {
                out.extend(narrowed(cx, *route, region));
            }
        }
    }
    out
}

/// Returns the URL paths of the directory `dir`, one for each base that serves the directory. If a
/// base serves only a directory inside `dir`, returns the URL path of this base.
pub fn urls_of(dir: &str, bases: &[Base<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for base in bases {
        let Some(base_dir) = &base.dir else { continue };
        let url = url_of(dir, base_dir, &base.url)
            .or_else(|| is_below(base_dir, dir).then(|| base.url.clone()));
        found.extend(url.filter(|url| !found.contains(url)));
    }
    found
}

/// Returns the base for `AliasMatch` or `ScriptAliasMatch`. If the expression or the directory has
/// no translation, the base is closed.
fn alias_match<'a>(cx: &mut Cx<'_>, directive: &'a Directive) -> Vec<Base<'a>> {
    directive.settle();
    let (text, target) = (directive.arg(0), directive.arg(1));
    let next = "write a route with `files` or `cgi` for these paths";
    let found = match found(cx, text, target, Use::Exact) {
        Ok(found) => found,
        Err(matcher) => return vec![closed(cx, directive, matcher, next)],
    };
    let rest = found.rest.map(|number| format!("${number}"));
    match rest.and_then(|rest| target.strip_suffix(rest.as_str())) {
        Some(dir) if found.matcher.paths.len() == 1 => {
            let url = found.matcher.paths[0].trim_end_matches('*').to_owned();
            let content = if is(directive, "AliasMatch") { Content::Files } else { Content::Cgi };
            let dir = Some(cx.path(dir));
            vec![Base { directive, url, matcher: found.matcher, dir, content }]
        }
        _ => vec![closed(cx, directive, found.matcher, next)],
    }
}

/// Returns a route that rewrites the path of a directory to the path of its index file. The route
/// is needed if `Alias` or `ScriptAlias` maps the path of the index file to another file. Returns
/// `None` if the index file is in the directory itself, or if there is none.
///
/// For example, `Alias /a /dir`, `ScriptAlias /a/run.cgi /bin/run.cgi` and `DirectoryIndex run.cgi`
/// rewrite `/a/` to `/a/run.cgi`. Apache does the same in an internal request.
pub fn elsewhere(
    cx: &Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let directory = format!("{}/", url.trim_end_matches('/'));
    let is_whole = route.matcher.paths.iter().any(|path| *path == format!("{directory}*"));
    if !is_whole {
        return None;
    }
    for name in &last(layers, "DirectoryIndex")?.args {
        let target = if name.starts_with('/') { name.clone() } else { directory.clone() + name };
        if is_aliased(cx, sections, &target) {
            let is_plain = target.bytes().all(|byte| !b"{}?#%\\*".contains(&byte));
            if !is_plain || target.contains("/../") {
                return None;
            }
            let mut route = route.clone();
            route.matcher = Matcher { paths: vec![directory], ..route.matcher };
            route.keys.set("rewrite", target);
            return Some(route);
        }
        if is_readable(&joined(dir, name)) {
            return None;
        }
    }
    None
}

/// Returns true if `ScriptAlias` maps the path to a script that exists, or if `Alias` maps exactly
/// this path to a file that exists.
fn is_aliased(cx: &Cx<'_>, sections: &Sections<'_>, path: &str) -> bool {
    let mut all = sections.levels.iter().copied().flatten();
    all.any(|directive| {
        let is_script = is(directive, "ScriptAlias");
        let (url, target) = (directive.arg(0), directive.arg(1));
        if !is_script && !is(directive, "Alias") || !is_below(path, url) {
            return false;
        }
        let target = cx.path(target);
        let rest = path.strip_prefix(url.trim_end_matches('/')).unwrap_or_default();
        match rest.trim_matches('/') {
            "" => is_readable(&target),
            rest => is_script && is_readable(&joined(&target, rest)),
        }
    })
}

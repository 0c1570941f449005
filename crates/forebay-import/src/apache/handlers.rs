//! Translates handlers of scripts: PHP, CGI and FastCGI, selected by file name.

use super::Cx;
use super::fastcgi;
use super::fields::runs_php;
use super::mod_perl;
use super::mono;
use super::regions::{has_option, of_name, whole_root};
use super::runners::{self, is_fastcgi};
use super::sections::{Sections, all, is_below, last, settle};
use super::syntax::{Directive, is};
use super::targets::{self, ScriptRoot, Target};
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::pattern::{Use, classify};
use crate::value::Table;

/// Name of the Forebay application that runs PHP scripts in place of Apache's module.
const PHP_APP: &str = "php";

/// Returns the directory for the scripts of a region: the document root, or the directory of an
/// alias. Returns `None` if Forebay cannot map the paths of the region to its scripts.
fn script_root(
    cx: &Cx<'_>,
    sections: &Sections<'_>,
    (url, dir): (&str, &str),
) -> Option<ScriptRoot> {
    if let Some(dir) = whole_root(url, dir) {
        return Some(ScriptRoot { dir, strip_prefix: None, document_root: None });
    }
    // Directories inside of an alias have the root of the alias.
    let (mut prefix, mut dir) = (url.trim_end_matches('/'), dir.trim_end_matches('/'));
    while let (Some((outer, name)), Some((above, last))) =
        (prefix.rsplit_once('/'), dir.rsplit_once('/'))
        && name == last
    {
        (prefix, dir) = (outer, above);
    }
    if !files::is_directory(dir) {
        return None;
    }
    let is_plain = prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b));
    let is_path = prefix.starts_with('/') && !prefix.contains("//");
    (is_plain && is_path).then(|| {
        let strip_prefix = Some(prefix.to_owned());
        let document_root = last(&sections.levels, "DocumentRoot").map(|root| cx.path(root.arg(0)));
        ScriptRoot { dir: dir.to_owned(), strip_prefix, document_root }
    })
}

/// Returns the routes for the scripts below a directory.
pub fn handlers(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Vec<DraftRoute> {
    let mut out = disabled(cx, sections, layers, dir, route);
    let root = script_root(cx, sections, (url, dir));
    let mut is_php_known = false;
    for (section, around) in &sections.files {
        let holds = around.as_deref().is_none_or(|around| is_below(dir, around));
        let block = [section.inside()];
        if holds && runs_php(&block) {
            settle(&block, &["SetHandler", "AddHandler", "AddType"]);
        }
        let Some((target, _)) = targets::handler(&block).filter(|_| holds) else {
            out.extend(section_handler(cx, section, around.as_deref(), (layers, dir), route));
            continue;
        };
        settle(&block, &["SetHandler"]);
        let Some(matcher) = names_of(cx, section) else {
            cx.note(section, "write a route with `fastcgi` for these scripts");
            continue;
        };
        is_php_known |= matcher.suffixes.iter().any(|suffix| suffix == ".php");
        out.extend(script_route(cx, section, &target, (root.as_ref(), &matcher), route));
    }
    if let Some((target, _)) = targets::handler(layers) {
        let mut all = route.clone();
        match root.as_ref().filter(|_| target.is_fastcgi()) {
            Some(root) => targets::scripts(&target, root, &[], &mut all),
            None => {
                let handler = last(layers, "SetHandler").expect("`handler` has found it");
                let comment = cx.note(handler, next_step(&target));
                all = all.closed(comment);
            }
        }
        out.push(all);
    }
    out.extend(cgi_handler(cx, sections, layers, dir, route));
    out.extend(unknown_suffix_handlers(cx, sections, layers, (url, dir), route));
    let php = Matcher { suffixes: vec![".php".into()], ..Matcher::default() };
    let php = route.matcher.and(&php);
    is_php_known |= php.is_some_and(|php| out.iter().any(|known| known.matcher.covers(&php)));
    if !is_php_known {
        out.extend(php_module(cx, sections, layers, (root.as_ref(), dir), route));
    }
    out
}

/// Returns the suffixes of the files that a `Files` or `FilesMatch` section selects. Returns `None`
/// for other names.
fn names_of(cx: &Cx<'_>, section: &Directive) -> Option<Matcher> {
    let text = section.args.last().map_or("", String::as_str);
    let found = if is(section, "FilesMatch") {
        classify(text, false, cx.keys, Use::Scripts).ok().map(|found| found.matcher)
    } else {
        of_name(text)
    };
    found.filter(|found| !found.suffixes.is_empty())
}

/// Returns the route for the files of a `Files` or `FilesMatch` section whose handler is neither a
/// backend nor PHP. For `cgi-script` with `ExecCGI`, the route runs the scripts. For other handlers,
/// the route is closed, because Forebay would otherwise send scripts as files. Returns `None`
/// without such a handler.
fn section_handler(
    cx: &mut Cx<'_>,
    section: &Directive,
    around: Option<&str>,
    (layers, dir): (&[&[Directive]], &str),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    if !around.is_none_or(|around| is_below(dir, around) || is_below(around, dir)) {
        return None;
    }
    let block = [section.inside()];
    let handler = last(&block, "SetHandler").or_else(|| last(&block, "AddHandler"))?;
    let name = handler.arg(0).to_ascii_lowercase();
    if matches!(&*name, "none" | "default-handler" | "type-map" | "server-parsed")
        || name.contains("php")
    {
        return None;
    }
    let mut scripts = route.clone();
    scripts.matcher.paths.retain(|path| path.ends_with('*'));
    let matcher = names_of(cx, section).and_then(|names| scripts.matcher.and(&names));
    let options: Vec<&[Directive]> = layers.iter().copied().chain(block).collect();
    let is_cgi = name == "cgi-script"
        && is(handler, "SetHandler")
        && has_option(&options, "ExecCGI")
        && around.is_none_or(|around| is_below(dir, around));
    if is_cgi
        && files::is_directory(dir)
        && let Some(matcher) = &matcher
    {
        settle(&block, &["SetHandler", "Options"]);
        scripts.matcher = matcher.clone();
        scripts.keys.set("cgi", dir);
        return Some(scripts);
    }
    let next = match &*name {
        "cgi-script" => "write a route with `cgi` for these files",
        name if is_fastcgi(name) => fastcgi::NEXT,
        _ => "Forebay has no such handler: write a route for these files",
    };
    let comment = cx.note(handler, next);
    let matcher = runners::of_section(cx, section, "^/").or(matcher);
    scripts.matcher =
        matcher.and_then(|names| route.matcher.and(&names)).unwrap_or(route.matcher.clone());
    Some(scripts.closed(comment))
}

/// Returns closed routes for the scripts of a directory if a line such as `RemoveHandler .php`
/// turns scripts off. Returns no routes if no section runs scripts and the directory contains no
/// PHP scripts.
fn disabled(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    dir: &str,
    route: &DraftRoute,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    let runs_scripts = runs_php(layers)
        || sections.files.iter().any(|(section, _)| {
            let block = [section.inside()];
            targets::handler(&block).is_some() || runs_php(&block)
        });
    if !runs_scripts && !has_php(dir) {
        return out;
    }
    let mut close = |cx: &mut Cx<'_>, directive: &Directive, matcher: &Matcher| {
        let Some(matcher) = route.matcher.and(matcher) else { return };
        let comment = cx.note(directive, "scripts do not run here: write a route for these files");
        out.push(DraftRoute { matcher, ..route.clone() }.closed(comment));
    };
    let php =
        Matcher { regex: Some(r"~*\.(php[0-9]?|phtml|phar)(/|$)".into()), ..Matcher::default() };
    for (section, _) in sections.files.iter().filter(|(_, around)| {
        // Skip sections outside of directories, because they apply to the scripts of all
        // directories.
        around.as_deref().is_some_and(|around| is_below(dir, around))
    }) {
        if let Some(directive) = turned_off(&[section.inside()]) {
            close(cx, directive, &php);
        }
    }
    if let Some(directive) = turned_off(&layers[sections.levels.len().min(layers.len())..]) {
        close(cx, directive, &php);
    }
    out
}

/// Returns the last directive that turns scripts off, such as `RemoveHandler .php`. Returns `None`
/// if there is none, or if a later directive turns scripts on.
fn turned_off<'a>(layers: &[&'a [Directive]]) -> Option<&'a Directive> {
    let mut found = None;
    for directive in layers.iter().copied().flatten() {
        let word = |at: usize| directive.arg(at).to_ascii_lowercase();
        let is_script = |at: usize| {
            directive
                .args
                .iter()
                .skip(at)
                .any(|end| end.to_ascii_lowercase().trim_start_matches('.').starts_with("ph"))
        };
        match &*directive.name.to_ascii_lowercase() {
            "php_flag" | "php_value" | "php_admin_flag" | "php_admin_value"
                if word(0) == "engine" =>
            {
                let is_off = matches!(&*word(1), "off" | "0" | "false" | "no" | "none");
                found = is_off.then_some(directive);
            }
            "removehandler" | "removetype" if is_script(0) => found = Some(directive),
            "sethandler" => {
                let is_none =
                    ["none", "default-handler", "text"].iter().any(|n| word(0).starts_with(n));
                found = is_none.then_some(directive);
            }
            "addtype" | "addhandler" if is_script(1) && !word(0).contains("php") => {
                let is_other = word(0).starts_with("text/") || word(0) == "default-handler";
                found = if is_other { Some(directive) } else { found };
            }
            "forcetype" if word(0).starts_with("text/") => found = Some(directive),
            _ => continue,
        }
        directive.settle();
    }
    found
}

/// Returns the route that passes the scripts of a `Files` or `FilesMatch` section to a backend. The
/// route is closed if `root` is `None`, or if the backend does not speak FastCGI. Returns `None` if
/// no request meets the conditions.
fn script_route(
    cx: &mut Cx<'_>,
    section: &Directive,
    target: &Target,
    (root, matcher): (Option<&ScriptRoot>, &Matcher),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let mut scripts = route.clone();
    scripts.matcher = route.matcher.and(matcher)?;
    if !select(&mut scripts.matcher) {
        return None;
    }
    match root.filter(|_| target.is_fastcgi()) {
        Some(root) => targets::scripts(target, root, &matcher.suffixes, &mut scripts),
        None => {
            let comment = cx.note(section, next_step(target));
            return Some(scripts.closed(comment));
        }
    }
    Some(scripts)
}

/// Keeps only the paths of a matcher that may be those of its scripts: `/x/*`, and `/x/a.php` for
/// the suffix `.php`. Returns false if there are none.
fn select(matcher: &mut Matcher) -> bool {
    let ends = &matcher.suffixes;
    let is_script = |path: &String| ends.iter().any(|end| path.ends_with(end.as_str()));
    matcher.paths.retain(|path| path.ends_with('*') || is_script(path));
    !matcher.paths.is_empty() && !matcher.suffixes.is_empty()
}

/// Returns the next step for a handler that has no translation. The reason is that its backend does
/// not speak FastCGI, or that Forebay cannot map the URL to the path of a script.
fn next_step(target: &Target) -> &'static str {
    if target.is_fastcgi() {
        "write a route with `fastcgi`: its `strip_prefix` is the path of the alias, and its `root` is \
         the directory"
    } else {
        "this handler passes files to another server: write a route with `proxy` for them"
    }
}

/// Returns the only route for a directory with `SetHandler`. For `cgi-script` with `ExecCGI`, the
/// route runs the scripts. For other handlers, the route is closed, because Forebay would otherwise
/// send scripts as files. Returns `None` without `SetHandler`, and for a backend, PHP or the
/// default handler.
pub fn whole_handler(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let handler = last(layers, "SetHandler")?;
    let name = handler.arg(0).to_ascii_lowercase();
    let is_none = matches!(&*name, "none" | "default-handler" | "\"none\"");
    if is_none || name.starts_with("proxy:") || name.contains("php") {
        return None;
    }
    if name == "cgi-script" && has_option(layers, "ExecCGI") && files::is_directory(dir) {
        let mut scripts = route.clone();
        scripts.matcher.paths.retain(|path| path.ends_with('*'));
        scripts.keys.set("cgi", dir);
        return Some(scripts);
    }
    if is_fastcgi(&name) {
        let place = (handler, url, dir);
        return Some(fastcgi::others(cx, sections, layers, place, route.clone()));
    }
    if let Some(handler) = mod_perl::set_handler(layers) {
        return Some(mod_perl::route(cx, layers, handler, (url, dir), route));
    }
    if name == "mono" {
        return Some(mono::route(cx, layers, (handler, url, dir), route.clone()));
    }
    let comment = cx.note(handler, "Forebay has no such handler: write a route for this path");
    Some(route.clone().closed(comment))
}

/// Returns closed routes for the files that `AddHandler` gives to a handler without a translation.
fn unknown_suffix_handlers(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    for handler in all(layers, "AddHandler") {
        let name = handler.arg(0).to_ascii_lowercase();
        let is_known =
            matches!(&*name, "cgi-script" | "type-map" | "default-handler" | "server-parsed");
        if is_known || name.contains("php") || name.starts_with("proxy:") {
            continue;
        }
        let mut scripts = route.clone();
        scripts.matcher.suffixes = suffixes_of(handler);
        if !select(&mut scripts.matcher) {
            continue;
        }
        if is_fastcgi(&name) {
            out.push(fastcgi::others(cx, sections, layers, (handler, url, dir), scripts));
            continue;
        }
        if name == "mono" {
            // The path of the directory, not of one file of it.
            let url = url.rsplit_once('/').map_or("", |(above, _)| above);
            out.push(mono::route(cx, layers, (handler, url, dir), scripts));
            continue;
        }
        let comment =
            cx.note(handler, "Forebay has no such handler: write a route for these files");
        out.push(scripts.closed(comment));
    }
    out
}

/// Returns the file endings of `AddHandler`, each with its dot.
fn suffixes_of(handler: &Directive) -> Vec<String> {
    let dotted = |end: &String| format!(".{}", end.trim_start_matches('.'));
    handler.args.iter().skip(1).map(dotted).collect()
}

/// Returns the route for `AddHandler cgi-script`. The route is closed if a line such as
/// `RemoveHandler .cgi` turns the scripts off. It answers 403 if `Options` has no
/// `ExecCGI`, if `dir` does not exist, or if it is a file with another ending. Returns `None` if
/// there is no such directive, if it names no extension, or if no path of `route` ends with `*`.
fn cgi_handler(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    dir: &str,
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let handlers = all(layers, "AddHandler");
    let handler =
        handlers.iter().rfind(|handler| handler.arg(0).eq_ignore_ascii_case("cgi-script"))?;
    let mut scripts = route.clone();
    scripts.matcher.suffixes = suffixes_of(handler);
    if !select(&mut scripts.matcher) {
        return None;
    }
    if let Some(directive) = cgi_turned_off(sections, layers, dir, &scripts.matcher.suffixes) {
        let comment = cx.note(directive, "scripts do not run here: write a route for these files");
        return Some(scripts.closed(comment));
    }
    let comment = if !has_option(layers, "ExecCGI") {
        "Options has no ExecCGI here.".to_owned()
    } else if files::is_readable(dir) {
        // Of `/readme.txt/x.cgi`, Apache looks at the ending of the file, not of the path.
        if scripts.matcher.suffixes.iter().any(|end| dir.ends_with(end.as_str())) {
            scripts.keys.set("cgi", Table::default().with("program", dir));
            return Some(scripts);
        }
        "In Apache, this file is no CGI script.".to_owned()
    } else if !files::is_directory(dir) {
        format!("There is no directory {dir} on this machine.")
    } else {
        scripts.keys.set("cgi", dir);
        return Some(scripts);
    };
    scripts.comments.push(comment);
    Some(scripts.respond(403))
}

/// Returns the directive that turns off CGI scripts with one of the endings `ends`, such as
/// `RemoveHandler .cgi`. Returns `None` if there is none, or if a later line turns them on.
fn cgi_turned_off<'a>(
    sections: &Sections<'a>,
    layers: &[&'a [Directive]],
    dir: &str,
    ends: &[String],
) -> Option<&'a Directive> {
    let is_cgi = |directive: &Directive| directive.arg(0).eq_ignore_ascii_case("cgi-script");
    let names_end = |directive: &Directive, from: usize| {
        let end = |arg: &String| arg.trim_start_matches('.').to_ascii_lowercase();
        let given: Vec<String> = directive.args.iter().skip(from).map(end).collect();
        ends.iter().any(|own| given.contains(&end(own)))
    };
    let turns_off = |directive: &Directive| match &*directive.name.to_ascii_lowercase() {
        "sethandler" => !is_cgi(directive),
        "forcetype" => true,
        "removehandler" | "removetype" => names_end(directive, 0),
        "addhandler" | "addtype" => !is_cgi(directive) && names_end(directive, 1),
        _ => false,
    };
    let turns_on = |directive: &Directive| match &*directive.name.to_ascii_lowercase() {
        "sethandler" => is_cgi(directive),
        "addhandler" => is_cgi(directive) && names_end(directive, 1),
        _ => false,
    };
    let mut found = None;
    for directive in layers.iter().copied().flatten() {
        if turns_off(directive) {
            found = Some(directive);
        } else if turns_on(directive) {
            found = None;
        }
    }
    // The routes of other handlers in sections for files come before this route.
    let is_default = |directive: &Directive| match &*directive.name.to_ascii_lowercase() {
        "sethandler" => matches!(
            &*directive.arg(0).to_ascii_lowercase(),
            "none" | "default-handler" | "type-map" | "server-parsed"
        ),
        "options" => true,
        _ => turns_off(directive),
    };
    found.or_else(|| {
        let holding = sections.files.iter().filter(|(section, around)| {
            around.as_deref().is_none_or(|around| is_below(dir, around))
                && may_select(section, ends)
        });
        holding.flat_map(|(section, _)| section.inside()).find(|directive| is_default(directive))
    })
}

/// Returns false if a `Files` section with a plain ending, such as `*.html`, selects no file with
/// one of the endings `ends`.
fn may_select(section: &Directive, ends: &[String]) -> bool {
    let text = section.args.last().map_or("", String::as_str);
    let named = if is(section, "Files") && section.arg(0) != "~" { of_name(text) } else { None };
    named.is_none_or(|named| {
        let named = named.suffixes.iter().map(|name| name.to_ascii_lowercase());
        named
            .into_iter()
            .any(|name| ends.iter().any(|end| name.ends_with(end.as_str()) || end.ends_with(&name)))
    })
}

/// Returns the route for PHP that runs inside Apache. If Forebay cannot run PHP, the route is
/// closed, so that Forebay never sends the source of a script. Returns `None` if Apache does not
/// run PHP here, or if no path of `route` ends with `*`.
fn php_module(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (root, dir): (Option<&ScriptRoot>, &str),
    route: &DraftRoute,
) -> Option<DraftRoute> {
    let in_files = sections.files.iter().any(|(section, _)| runs_php(&[section.inside()]));
    let index = last(layers, "DirectoryIndex");
    let names_php = index.is_some_and(|index| index.args.iter().any(|name| name.ends_with(".php")));
    let is_named = runs_php(layers) || in_files;
    let modules: Vec<&Directive> = cx.main.iter().filter(|d| is(d, "LoadModule")).collect();
    let lacks_php =
        !modules.is_empty() && !modules.iter().any(|module| module.arg(0).starts_with("php"));
    if !is_named && (!names_php || lacks_php) && !has_php(dir) {
        return None;
    }
    let mut scripts = route.clone();
    scripts.matcher.suffixes = vec![".php".into()];
    if !select(&mut scripts.matcher) {
        return None;
    }
    let others = ["actions_", "fastcgi_", "fcgid_", "lsapi_", "php", "proxy_fcgi_", "suphp_"];
    let has_other = |module: &&Directive| others.iter().any(|name| module.arg(0).starts_with(name));
    if lacks_php && !(is_named && modules.iter().any(has_other)) {
        // Apache sends the source of these scripts. The route neither runs nor sends them.
        let text = "no LoadModule line loads PHP, so Apache sends the source of PHP scripts: write a \
                    route with `app` or `files` for them";
        let comment = cx.draft.notes.add(&route.place, &route.source, text);
        return Some(scripts.closed(comment));
    }
    let root = root.filter(|root| files::is_directory(&root.dir) && has_php_fpm());
    let Some(root) = root else {
        let text = "PHP runs inside Apache, or in a file that was not given: write a route with `fastcgi` or `app`";
        let comment = cx.draft.notes.add(&route.place, &route.source, text);
        return Some(scripts.closed(comment));
    };
    let mut table = Table::default().with("kind", "php").with("root", root.dir.as_str());
    table.set_some("strip_prefix", root.strip_prefix.as_deref());
    table.set_some("env", root.variables());
    table.set_some("user", files::user_of_apps());
    scripts.keys.set("app", cx.draft.add_app(PHP_APP, table));
    Some(scripts)
}

/// Returns true for a PHP script, and for a directory that contains one.
fn has_php(dir: &str) -> bool {
    if dir.ends_with(".php") {
        return true;
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(1000);
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".php"))
}

/// Returns true if php-fpm is installed on this machine.
fn has_php_fpm() -> bool {
    let pattern = std::path::Path::new("/usr/sbin/php-fpm*");
    crate::source::matching(pattern).is_some_and(|found| !found.is_empty())
}

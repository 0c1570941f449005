//! Translates the files of a location: `root`, `alias`, `index` and `autoindex`.

use super::here::Here;
use super::locations::path_of;
use super::scope::Scope;
use super::variables::{Variables, has_variables};
use super::{Cx, syntax::Directive};
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::value::{Table, Value};

/// The directory of relative paths in Debian's nginx packages.
const PREFIX: &str = "/usr/share/nginx";

/// Returns the directory of `root`, or nginx's default directory.
pub fn root(cx: &Cx<'_>, scope: &Scope<'_>) -> String {
    let _ = cx;
    let root = scope.value("root").unwrap_or("html");
    let path = files::below(std::path::Path::new(PREFIX), root);
    if path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path }
}

/// The directory for the lookup of a path.
enum Base<'a> {
    /// `root`: nginx looks up the whole path below this directory.
    Root(String),
    /// `alias`: nginx looks up the path without the prefix below this directory.
    Alias { prefix: &'a str, dir: String },
}

/// An `alias` directive.
#[derive(Clone, Copy)]
pub struct Alias<'a> {
    pub directive: &'a Directive,
    /// The path of the location that has the directive. Locations inside of it inherit the alias.
    /// `None` for a location with an expression.
    pub prefix: Option<&'a str>,
}

impl<'a> Alias<'a> {
    /// Returns the alias of a location, if `alias` is nearer than `root`. Otherwise returns `None`.
    pub fn of(scope: &Scope<'a>) -> Option<Self> {
        let nearest = scope.any(&["root", "alias"]);
        let directive = nearest.into_iter().find(|directive| directive.name == "alias")?;
        let prefix = scope.owner(directive).and_then(path_of);
        Some(Self { directive, prefix })
    }

    /// Returns the file of a path. Returns `None` if the path does not begin with the prefix.
    pub fn file(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.prefix?)?;
        Some(self.directive.arg(0).to_owned() + rest)
    }
}

/// Returns a directory for `root` that has the same effect as `alias` in a location with `prefix`:
/// `/srv` for the prefix `/x` and the alias `/srv/x`. Returns `None` if there is no such directory.
pub fn alias_as_root(prefix: &str, alias: &str) -> Option<String> {
    let (alias, prefix) = (alias.trim_end_matches('/'), prefix.trim_end_matches('/'));
    let root = alias.strip_suffix(prefix)?;
    Some(if root.is_empty() { "/".into() } else { root.to_owned() })
}

/// Returns routes that send the files of a location.
pub fn routes(
    cx: &mut Cx<'_>,
    variables: &Variables<'_, '_>,
    here: &Here<'_, '_>,
    base: &DraftRoute,
) -> Vec<DraftRoute> {
    let scope = variables.scope;
    let directive = scope.any(&["root", "alias"]).last().copied();
    if let Some(directive) = directive.filter(|directive| has_variables(directive.arg(0))) {
        if let Some(route) = alias_of_group(cx, here, directive, base) {
            return vec![with_files(cx, here, scope, route)];
        }
        let next = "write one directory in `files`";
        let comment = cx.note(directive, next);
        return vec![missing(base.clone(), comment)];
    }
    let found = match Alias::of(scope) {
        Some(alias) if here.is_exact() => return one_file(cx, scope, here, &alias, base),
        Some(alias) if is_file(cx, scope, here, &alias) => {
            let mut file = base.clone();
            file.matcher.paths = vec![here.path().unwrap_or("/").to_owned()];
            let mut routes = one_file(cx, scope, here, &alias, &file);
            routes.push(missing(base.clone(), "These paths have no file.".into()));
            return routes;
        }
        Some(Alias { directive, prefix: Some(prefix) }) => {
            Base::Alias { prefix, dir: directive.arg(0).to_owned() }
        }
        // In a location with an expression, nginx takes `alias` as the path of one file, for all
        // requests.
        Some(Alias { directive, prefix: None }) => {
            let comment = cx.note(directive, "write the directory of these paths in `files`");
            return vec![missing(base.clone(), comment)];
        }
        None => Base::Root(root(cx, scope)),
    };
    let mut routes: Vec<DraftRoute> = Vec::new();
    let found_directories = match &found {
        // Forebay looks up the whole path of a `rewrite`.
        Base::Root(root) if base.keys.get("rewrite").is_some() => {
            vec![(base.matcher.clone(), root.clone())]
        }
        _ => directories(cx, &base.matcher, &found),
    };
    for (matcher, dir) in found_directories {
        let mut route = base.clone();
        route.matcher = matcher;
        route.keys.set("files", Table::default().with("root", dir));
        let passes_on = route.passes_on();
        let route = with_files(cx, here, scope, route);
        // If the directory does not exist, a route that leaves missing files to later routes is not
        // needed.
        if !passes_on || route.keys.get("files").is_some() {
            routes.push(route);
        }
    }
    if let Base::Alias { prefix, dir } = &found
        && !base.passes_on()
        && !prefix.ends_with('/')
        && base.matcher.paths[..] == [format!("{prefix}*")]
        && alias_as_root(prefix, dir).is_none()
    {
        routes.extend(beside_alias(cx, prefix, dir, base));
    }
    routes
}

/// Returns the routes of `location /x { alias /dir; }` for the paths that are not below `/x/`. A
/// redirect adds a slash to `/x` if the directory exists. Other paths, such as `/xy`, get 404,
/// because nginx would look for `/diry`.
fn beside_alias(cx: &Cx<'_>, prefix: &str, dir: &str, base: &DraftRoute) -> Vec<DraftRoute> {
    let rest = missing(base.clone(), "No later route may answer these paths.".into());
    let to = crate::template::literal(&format!("{prefix}/"), cx.keys);
    let to = crate::template::redirect_target(&to, true, cx.keys);
    let is_target = crate::template::is_redirect_target(&to) && files::is_directory(dir);
    let mut slash = base.clone();
    slash.keys = Table::default();
    slash.matcher.paths = vec![prefix.to_owned()];
    let slash = is_target.then(|| slash.redirect(&to, 301));
    slash.into_iter().chain([rest]).collect()
}

/// Returns the directory for each part of a matcher's paths. For a path with `*`, Forebay looks up
/// only the text that `*` matches.
fn directories(cx: &Cx<'_>, matcher: &Matcher, base: &Base<'_>) -> Vec<(Matcher, String)> {
    let dir = |path: &str| match base {
        Base::Root(root) => files::joined(root, path),
        Base::Alias { prefix, dir } => {
            files::joined(dir, path.strip_prefix(prefix.trim_end_matches('/')).unwrap_or(""))
        }
    };
    let whole = match base {
        Base::Root(root) => Some(root.clone()),
        Base::Alias { prefix, dir } => alias_as_root(prefix, dir),
    };
    let Some(whole) = whole else {
        let parts = matcher.paths.iter().map(|path| {
            let start = path.trim_end_matches('*');
            let start = if start.ends_with('/') { start.to_owned() } else { format!("{start}/") };
            (Matcher { paths: vec![format!("{start}*")], ..matcher.clone() }, dir(&start))
        });
        return parts.collect();
    };
    let mut found: Vec<(Matcher, String)> = Vec::new();
    let mut add = |path: String, dir: String| {
        let same = found.iter_mut().find(|(_, other)| *other == dir);
        match same {
            Some((matcher, _)) => matcher.paths.push(path),
            None => found.push((Matcher { paths: vec![path], ..matcher.clone() }, dir)),
        }
    };
    if matcher.paths.is_empty() {
        return vec![(matcher.clone(), whole)];
    }
    for path in &matcher.paths {
        match path.strip_suffix('*') {
            None => add(path.clone(), whole.clone()),
            Some(start)
                if start.ends_with('/') && (start == "/" || files::is_directory(&dir(start))) =>
            {
                add(path.clone(), dir(start));
            }
            Some(_) if cx.keys.route("path_regex") && matcher.regex.is_none() => {
                let regex = Some(one_of(&matcher.paths));
                return vec![(Matcher { paths: Vec::new(), regex, ..matcher.clone() }, whole)];
            }
            Some(start) if start.ends_with('/') => add(path.clone(), dir(start)),
            Some(start) => {
                add(start.to_owned(), whole.clone());
                if files::is_directory(&dir(start)) {
                    add(format!("{start}/*"), dir(start));
                }
            }
        }
    }
    found
}

/// Returns the expression for paths that one of several patterns matches.
fn one_of(paths: &[String]) -> String {
    let expression = |path: &String| match path.strip_suffix('*') {
        Some(start) => regex_syntax::escape(start),
        None => format!("{}$", regex_syntax::escape(path)),
    };
    match paths {
        [path] => format!("^{}", expression(path)),
        _ => format!("^(?:{})", paths.iter().map(expression).collect::<Vec<_>>().join("|")),
    }
}

/// Returns a route for `location ~ ^/x/(.*)$ { alias /dir/$1; }`. Returns `None` if the alias has
/// another form, or if a route cannot have the group.
fn alias_of_group(
    cx: &Cx<'_>,
    here: &Here<'_, '_>,
    alias: &Directive,
    base: &DraftRoute,
) -> Option<DraftRoute> {
    let (dir, number) = alias.arg(0).rsplit_once('$')?;
    let found = here.found.as_ref()?;
    let number: usize = number.parse().ok()?;
    if has_variables(dir) || !dir.ends_with('/') {
        return None;
    }
    let mut route = base.clone();
    if found.rest == Some(number) && found.matcher.paths.len() == 1 {
        route.keys.set("files", Table::default().with("root", dir.trim_end_matches('/')));
        return Some(route);
    }
    let group = crate::template::group(number, found)?;
    if !cx.keys.route("rewrite") {
        return None;
    }
    route.keys.set("rewrite", format!("/{group}"));
    route.keys.set("files", Table::default().with("root", dir.trim_end_matches('/')));
    Some(route)
}

/// Returns true for a prefix location whose alias is one file:
/// `location /x.ico { alias /dir/y.ico; }`.
fn is_file(cx: &Cx<'_>, scope: &Scope<'_>, here: &Here<'_, '_>, alias: &Alias<'_>) -> bool {
    if scope.peek_own("alias").is_none() {
        return false;
    }
    let extension =
        |path: &str| path.rsplit('/').next()?.rsplit_once('.').map(|(_, e)| e.to_owned());
    let Some(path) = here.path().filter(|path| here.matcher.paths[..] == [format!("{path}*")])
    else {
        return false;
    };
    let file = files::below(&cx.dir, alias.directive.arg(0));
    let has_extension = extension(path).is_some() && extension(path) == extension(&file);
    (has_extension || std::path::Path::new(&file).is_file()) && !files::is_directory(&file)
}

/// Returns a route for `location = /x { alias /dir/y; }`.
fn one_file(
    cx: &mut Cx<'_>,
    scope: &Scope<'_>,
    here: &Here<'_, '_>,
    alias: &Alias<'_>,
    base: &DraftRoute,
) -> Vec<DraftRoute> {
    let mut route = base.clone();
    let path = here.path().unwrap_or("/");
    let file = alias.file(path).unwrap_or_else(|| alias.directive.arg(0).to_owned());
    if let Some(root) = alias_as_root(path, &file) {
        route.keys.set("files", Table::default().with("root", root));
        return vec![with_files(cx, here, scope, route)];
    }
    let Some((dir, name)) = file.rsplit_once('/').filter(|_| cx.keys.route("rewrite")) else {
        let next = format!(
            "put the file where its path has the same end: .../{}",
            path.trim_start_matches('/')
        );
        let comment = cx.note(alias.directive, next);
        return vec![missing(route, comment)];
    };
    route.keys.set("rewrite", crate::template::literal(&format!("/{name}"), cx.keys));
    route.keys.set("files", Table::default().with("root", if dir.is_empty() { "/" } else { dir }));
    vec![with_files(cx, here, scope, route)]
}

/// Returns the value of `follow_symlinks` for `disable_symlinks`, and marks the line as read. nginx
/// ignores it for backends and scripts. `None`: the line has another form, or looks at links above
/// `root`.
pub fn followed_links(scope: &Scope<'_>, directive: &Directive) -> Option<&'static str> {
    let (kind, from) = directive.args.split_first()?;
    let is_root = |from: &str| from == "$document_root" || scope.value("root") == Some(from);
    let is_of_root = from.iter().all(|arg| arg.strip_prefix("from=").is_some_and(is_root));
    let followed = match kind.as_str() {
        "on" => "never",
        "if_not_owner" => "owner",
        _ => return None,
    };
    let is_known = directive.name == "disable_symlinks" && is_of_root;
    is_known.then(|| {
        directive.settle();
        followed
    })
}

/// Adds the keys that send files. `forebay check` refuses a directory that does not exist, so the
/// route then has status 404, as in nginx.
fn with_files(
    cx: &mut Cx<'_>,
    here: &Here<'_, '_>,
    scope: &Scope<'_>,
    mut route: DraftRoute,
) -> DraftRoute {
    let checks = file_checks(here, scope);
    let mut table = route.keys.table("files").clone();
    let mut index = Vec::new();
    for name in scope.nearest("index").map(|index| &index.args[..]).unwrap_or_default() {
        if name.contains(['/', '$']) {
            if let Some(directive) = scope.nearest("index") {
                let next = format!("an index is a file name, so {name} is left out");
                route.comments.push(cx.note(directive, next));
            }
        } else {
            index.push(name.as_str());
        }
    }
    if !tries_directories(checks) {
        // Without a check of `$uri/`, nginx sends no index file. For a directory, it uses the last
        // argument of `try_files`.
        table.set("index", Vec::<&str>::new());
    } else if !index.is_empty() && index[..] != ["index.html"] {
        table.set("index", index);
    }
    let ends: Vec<_> = (0..checks.len()).filter_map(|at| extension(checks, at)).collect();
    if !ends.is_empty() && cx.keys.has("Files", "extensions") {
        table.set("extensions", ends);
    }
    media_types(cx, scope, &mut table);
    let ranges = scope.value("max_ranges").and_then(|number| number.parse::<u64>().ok());
    // Without `max_ranges`, nginx sends any number of ranges. The largest number that Forebay
    // accepts is 1000.
    table.set_some(
        "max_ranges",
        ranges.filter(|_| cx.keys.has("Files", "max_ranges")).map(|n| n.min(1000)),
    );
    let links = scope.nearest("disable_symlinks");
    let followed = links.and_then(|links| followed_links(scope, links));
    table.set_some("follow_symlinks", followed.filter(|kind| *kind != "owner"));
    if scope.is_on("autoindex") {
        table.set("listing", true);
    }
    let kinds = [("brotli_static", "br"), ("gzip_static", "gz")];
    let is_on = |name: &str| matches!(scope.value(name), Some("on" | "always"));
    let kinds: Vec<&str> =
        kinds.iter().filter(|(name, _)| is_on(name)).map(|(_, end)| *end).collect();
    if !kinds.is_empty() {
        table.set("precompressed", kinds);
    }
    let root = match table.get("root") {
        Some(Value::Text(root)) => root.clone(),
        _ => String::new(),
    };
    let value = if table.0.len() == 1 { Value::from(root.as_str()) } else { Value::Table(table) };
    if files::is_directory(&root) {
        route.keys.set("files", value);
        return route;
    }
    let comment = format!("There is no directory {root} here. When there is: files = {value}");
    missing(route, comment)
}

/// The files that `try_files` looks for. That of a server block holds for paths that no location takes.
fn file_checks<'a>(here: &Here<'_, '_>, scope: &Scope<'a>) -> &'a [String] {
    let of_server = || scope.nearest("try_files").filter(|_| here.location.directive.is_none());
    let found = scope.peek_own("try_files").or_else(of_server);
    found.and_then(|found| found.args.split_last()).map_or(&[], |(_, checks)| checks)
}

/// Returns true if nginx also looks for a directory and its index file. Returns false if
/// `try_files` checks only `$uri`, which finds only files.
fn tries_directories(checks: &[String]) -> bool {
    let is_directory = |check: &String| {
        check.ends_with('/') || check.ends_with("/index.html") || check.ends_with("/index.php")
    };
    checks.is_empty() || checks.iter().any(is_directory)
}

/// The `.html` of `$uri.html` at `checks[at]`, if `try_files` has looked for the path itself before.
pub fn extension(checks: &[String], at: usize) -> Option<&str> {
    let is_path = |check: &String| matches!(check.as_str(), "$uri" | "$document_uri");
    let end =
        checks[at].strip_prefix("$document_uri").or_else(|| checks[at].strip_prefix("$uri"))?;
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_end = end.strip_prefix('.').is_some_and(is_name);
    (is_end && checks[..at].iter().any(is_path)).then_some(end)
}

/// Adds `types` and `default_type`. Ignores a long table, because it is a copy of nginx's own
/// table, and Forebay's built-in types replace that table.
fn media_types(cx: &Cx<'_>, scope: &Scope<'_>, table: &mut Table) {
    const LONGEST: usize = 30;
    if !cx.keys.has("Files", "types") {
        return;
    }
    let default = scope.value("default_type").filter(|kind| !kind.contains('$'));
    table.set_some("default_type", default.filter(|kind| *kind != "application/octet-stream"));
    let Some(block) = scope.nearest("types") else { return };
    block.settle_all();
    if block.inside().len() > LONGEST {
        return;
    }
    let mut types = Table::default();
    for kind in block.inside() {
        let is_plain = |end: &&String| end.bytes().all(|b| b.is_ascii_alphanumeric());
        kind.args
            .iter()
            .filter(is_plain)
            .for_each(|end| types.set(&format!(".{end}"), &*kind.name));
    }
    if !types.0.is_empty() {
        table.set("types", types);
    }
}

/// Returns the route with status 404 and a comment.
fn missing(mut route: DraftRoute, comment: String) -> DraftRoute {
    route.keys.remove("files");
    route.keys.remove("rewrite");
    route.comments.push(comment);
    route.respond(404)
}

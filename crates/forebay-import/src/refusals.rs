//! Returns the requests that the access files (`.htaccess`) of a directory refuse.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::apache::{self, TOO_MANY};
use crate::complement;
use crate::draft::{CLOSED, Draft, DraftRoute, DraftSite, Note};
use crate::keys::Keys;
use crate::matcher::Matcher;
use crate::print;
use crate::value::{Table, Value};

/// The rules of access files, as routes that refuse requests. A rule without an equal route becomes
/// a route that refuses more.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// The routes in TOML, with comments. Empty if no file restricts access.
    pub routes: String,
    /// The access files that were read, below the base directory.
    pub files: Vec<PathBuf>,
    /// The rules whose routes refuse more requests than Apache.
    pub notes: Vec<String>,
    /// True if all directories may have a listing.
    pub allows_listing: bool,
    /// The path that answers for missing files of the URL path `/`, for the key `fallback_to`.
    pub fallback: Option<String>,
    /// True if one route refuses all requests.
    pub refuses_all: bool,
    /// The lines without a route that refuse nothing, such as a `RewriteRule`.
    pub lost: Vec<String>,
}

/// Reads the access files below directories. Each mount is a URL path, such as `/` or `/static`,
/// and its directory relative to `base`. Follows symbolic links, because the server follows them.
/// `scripts` are the scripts that the site runs: an ending such as `.php`, or a path such as
/// `/cgi-bin/`.
pub fn refusals(
    base: &Path,
    mounts: &[(&str, &str)],
    scripts: &[&str],
) -> std::io::Result<Refusals> {
    let absolute = std::path::absolute(base)?;
    // Directives cannot name such a directory, but its descriptor has a plain name.
    let is_plain = |path: &&str| !path.is_empty() && !path.contains(['*', '?', '[', '$']);
    let text = absolute.to_str().map(|path| path.trim_end_matches('/'));
    let (_open, base) = match text.filter(is_plain) {
        Some(path) => (None, path.to_owned()),
        None => {
            let open = File::open(&absolute)?;
            let path = format!("/proc/self/fd/{}", open.as_raw_fd());
            (Some(open), path)
        }
    };
    let below = |dir: &str| crate::files::joined(&base, if dir == "." { "" } else { dir });
    let mounts: Vec<(&str, String)> = mounts.iter().map(|(url, dir)| (*url, below(dir))).collect();
    let keys = Keys::shared();
    let mut draft = apache::translate_mounts(&mounts, scripts.contains(&".cgi"), keys);
    let routes = draft.sites.pop().map(|site| site.routes).unwrap_or_default();
    let has_listing = |route: &DraftRoute| match route.keys.get("files") {
        Some(Value::Table(files)) => files.get("listing").is_some(),
        Some(_) => false,
        None => true,
    };
    let allows_listing = routes.iter().all(has_listing);
    let fallback = routes.iter().find_map(|route| fallback(route, keys));
    let mut found = RefusedRoutes {
        mounts,
        base,
        files: draft.access_files,
        kept: Vec::new(),
        open: Vec::new(),
    };
    routes.into_iter().for_each(|route| found.add(route));
    let unread = draft.notes.0.iter().filter_map(|note| match &*note.directive {
        ".htaccess" => Some(format!("{}: {}", found.shown(&note.file), note.next)),
        _ => note.next.contains(TOO_MANY).then(|| note.next.clone()),
    });
    let unread: Vec<String> = unread.collect();
    let is_line = |note: &&Note| !note.file.is_empty() && note.directive != ".htaccess";
    let lines = draft.notes.0.iter().filter(is_line).map(|note| found.shown(&note.to_string()));
    let lines: Vec<String> = lines.collect();
    let mut found = found.finish(keys);
    let is_shown = |line: &String| found.notes.iter().any(|note| note == line);
    found.lost.extend(lines.into_iter().filter(|line| !is_shown(line)));
    Ok(Refusals { allows_listing, fallback, notes: [unread, found.notes].concat(), ..found })
}

/// Returns the path that a route for all paths names in `fallback_to`. Returns `None` for a path
/// that Forebay refuses.
fn fallback(route: &DraftRoute, keys: &Keys) -> Option<String> {
    let Some(Value::Text(to)) = route.keys.get("fallback_to") else { return None };
    let mut draft = alone(vec![route.clone()]);
    crate::accept::accept(&mut draft, keys);
    let routes = draft.sites.iter().flat_map(|site| &site.routes);
    let is_kept = routes.into_iter().any(|route| route.keys.get("fallback_to").is_some());
    (is_kept && route.matcher == Matcher::path("/*")).then(|| to.clone())
}

/// Returns the draft of a site with these routes.
fn alone(routes: Vec<DraftRoute>) -> Draft {
    let listen = vec!["127.0.0.1:8080".into()];
    Draft { sites: vec![DraftSite { listen, routes, ..DraftSite::default() }], ..Draft::default() }
}

struct RefusedRoutes<'a> {
    mounts: Vec<(&'a str, String)>,
    base: String,
    files: Vec<PathBuf>,
    /// The routes that refuse requests, and the rewrites and redirects of the access files.
    kept: Vec<DraftRoute>,
    /// The routes so far that serve files to all clients.
    open: Vec<DraftRoute>,
}

/// The start of the comment of a line without a translation.
const UNTRANSLATED: &str = "NOT TRANSLATED ";

/// The start of such a comment for a line that no access file has.
const OURS: &str = "NOT TRANSLATED :0:";

/// The comment of a route that refuses all clients in place of some clients.
const SOME: &str = "Apache serves these requests to some clients. In place of this route, write \
    `basic_auth`, `allow` or `deny` in the routes below.";

impl RefusedRoutes<'_> {
    /// Keeps a route that refuses requests, or that refuses some clients, as a route with a fixed
    /// reply.
    fn add(&mut self, route: DraftRoute) {
        let status = match route.keys.get("respond") {
            Some(Value::Table(respond)) => match respond.get("status") {
                Some(Value::Number(status)) if *status >= 400 => Some(*status),
                _ => None,
            },
            _ => None,
        };
        let has_gate = route.has_gate();
        // Some refusals come from no access file: the translation answers 404 in place of a missing
        // directory, and closes scripts if this machine has no php-fpm.
        let is_ours = |comment: &String| comment.starts_with(OURS);
        let is_ours = route.place.file.is_empty()
            && (status == Some(404) || route.comments.iter().any(is_ours))
            && !route.comments.iter().any(|c| c.starts_with(UNTRANSLATED) && !is_ours(c));
        if ((status.is_none() || is_ours) && !has_gate) || is_harmless(&route) {
            let has = |key: &str| route.keys.get(key).is_some();
            if (has("rewrite") || has("redirect")) && !route.place.file.is_empty() {
                // The import repeats a rule for each directory with its own rules.
                self.kept.retain(|kept| kept.place != route.place || kept.keys != route.keys);
                self.kept.push(DraftRoute { source: self.source(&route), ..route });
            } else if has("cgi") && route.matcher.suffixes.is_empty() && !route.passes_on() {
                self.close_handler(route);
            } else if has("files") && !self.refuses(&route.matcher) {
                self.open.push(route);
            }
            return;
        }
        let is_whole = route.keys.get("deny") == Some(&Value::from("all"));
        let source = self.source(&route);
        let mut kept = DraftRoute { keys: Table::default(), source, ..route };
        if kept.place.file.is_empty() {
            kept.place.file = kept.source.as_str().into();
        }
        whole_directories(&mut kept.matcher);
        kept.comments.retain(|comment| !comment.starts_with(OURS));
        kept.comments = kept.comments.iter().map(|comment| self.shown(comment)).collect();
        if has_gate && !is_whole {
            kept.comments.push(SOME.into());
        }
        let kept = kept.respond(status.filter(|_| !has_gate).unwrap_or(403));
        if !self.refuses(&kept.matcher) {
            let refuses = |route: &DraftRoute| route.keys.get("respond").is_some();
            self.kept.retain(|other| !refuses(other) || !kept.matcher.covers(&other.matcher));
            self.grant(&kept);
            self.kept.push(kept);
        }
    }

    /// Returns true if a route so far refuses all requests of a matcher.
    fn refuses(&self, matcher: &Matcher) -> bool {
        let mut refusals = self.kept.iter().filter(|route| route.keys.get("respond").is_some());
        refusals.any(|route| route.matcher.covers(matcher))
    }

    /// Keeps the files that an access file grants within a directory that `closed` refuses.
    fn grant(&mut self, closed: &DraftRoute) {
        for route in &self.open {
            let is_granted = !route.matcher.suffixes.is_empty()
                && closed.matcher.covers(&route.matcher)
                && !self.kept.iter().any(|kept| kept.matcher == route.matcher);
            let root = match route.keys.get("files").filter(|_| is_granted) {
                Some(Value::Table(files)) => files.get("root"),
                root => root,
            };
            let Some(Value::Text(root)) = root else { continue };
            let mut granted = route.clone();
            granted.source = self.source(route);
            granted.keys = Table::default().with("files", root.as_str());
            granted.comments = vec!["Apache grants these files.".into()];
            self.kept.push(granted);
        }
    }

    /// Refuses the scripts of a directory with `SetHandler cgi-script`, because the site would send
    /// their source.
    fn close_handler(&mut self, route: DraftRoute) {
        let source = self.source(&route);
        let mut kept = DraftRoute { source, ..route };
        whole_directories(&mut kept.matcher);
        let root = match kept.keys.get("cgi") {
            Some(Value::Text(root)) => self.shown(root),
            _ => String::new(),
        };
        kept.comments = vec![format!(
            "{UNTRANSLATED}{} Apache runs these files as scripts: in place of this route, write \
             cgi = {}",
            kept.source,
            Value::from(root)
        )];
        self.kept.push(kept.respond(403));
    }

    /// Leaves the directories out of a refusal that a deeper access file grants to all. Returns
    /// false if the refusal has another form, so that it holds for these directories, too.
    fn leave_out(&self, closed: &mut DraftRoute) -> bool {
        let is_plain = closed.matcher.regex.is_none() && closed.matcher.suffixes.is_empty();
        let mut except: Vec<String> = Vec::new();
        for route in &self.open {
            let matcher = &route.matcher;
            let is_directory = matcher.suffixes.is_empty()
                && matcher.regex.is_none()
                && closed.matcher.covers(matcher)
                && *matcher != closed.matcher;
            if is_directory {
                except.extend(matcher.paths.iter().cloned());
            }
        }
        if except.is_empty() {
            return true;
        }
        let regex = complement::without(&closed.matcher.paths, &except).filter(|_| is_plain);
        match regex {
            Some(regex) => {
                closed.matcher.paths.clear();
                closed.matcher.regex = Some(regex);
                true
            }
            None => false,
        }
    }

    /// Returns the access file, and the line if it is known, of a route.
    fn source(&self, route: &DraftRoute) -> String {
        if !route.place.file.is_empty() {
            return self.shown(&format!("{}: {}", route.place, route.source));
        }
        let mut dirs = route.matcher.paths.iter().filter_map(|path| path.strip_suffix("/*"));
        let path = dirs.next().or(route.matcher.paths.first().map(String::as_str));
        let path = path.unwrap_or_default();
        let holds = |(url, dir): &&(&str, String)| {
            let rest = path.strip_prefix(url.trim_end_matches('/'));
            rest.map(|rest| PathBuf::from(crate::files::joined(dir, rest)))
        };
        let dirs = self.mounts.iter().filter_map(|mount| holds(&mount));
        let files = dirs.filter_map(|dir| {
            let above = dir.ancestors().map(|dir| dir.join(".htaccess"));
            above.into_iter().find(|file| self.files.contains(file))
        });
        let file = files.max_by_key(|file| file.as_os_str().len());
        match file.or_else(|| self.files.first().cloned()) {
            Some(file) => format!("{} restricts access.", self.shown(&file.display().to_string())),
            None => format!("The directory {TOO_MANY} to look for .htaccess."),
        }
    }

    /// Returns a text without the base directory in its paths.
    fn shown(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.base), "")
    }

    /// Returns the routes as a text.
    fn finish(mut self, keys: &Keys) -> Refusals {
        let mut all = std::mem::take(&mut self.kept);
        for route in all.iter_mut().filter(|route| route.keys.get("respond").is_some()) {
            if !self.leave_out(route) {
                route.comments.push(format!(
                    "{UNTRANSLATED}{}: a directory below is open in Apache: write a route for it \
                     before this one",
                    route.source
                ));
            }
        }
        self.kept = all;
        let mut draft = alone(self.kept.clone());
        if !self.kept.is_empty() {
            crate::accept::accept(&mut draft, keys);
        }
        let mut found = Refusals::default();
        for route in draft.sites.iter_mut().flat_map(|site| &mut site.routes) {
            if let Some(Value::Text(root)) = route.keys.get("files") {
                let root = self.shown(&format!("{root}/"));
                let root = root.trim_end_matches('/');
                route.keys.set("files", if root.is_empty() { "." } else { root });
            }
            found.routes.push_str(&print::route_text(&route.source, route));
            found.refuses_all |= route.matcher.covers(&Matcher::path("/*"));
            for comment in &route.comments {
                let note = match comment.strip_prefix(UNTRANSLATED) {
                    Some(note) => note.to_owned(),
                    None if comment == SOME => format!("{} {SOME}", route.source),
                    None => continue,
                };
                if !found.notes.contains(&note) {
                    found.notes.push(note);
                }
            }
        }
        let file = |file: &PathBuf| file.strip_prefix(&self.base).unwrap_or(file).to_owned();
        found.files = self.files.iter().map(file).collect();
        found
    }
}

/// Adds the directory itself to a matcher of all paths below it, so that no redirect shows that the
/// directory exists. If the key `path` cannot have a path, the matcher gets an expression for the
/// whole directory.
fn whole_directories(matcher: &mut Matcher) {
    let is_odd =
        |path: &String| path.strip_suffix('*').unwrap_or(path).contains(['*', '?', '#', '%']);
    if matcher.paths.iter().any(is_odd) {
        let regex = matcher.paths.iter().map(|path| match path.strip_suffix('*') {
            Some(start) if !start.ends_with('/') => regex_syntax::escape(start),
            _ => {
                let dir = path.strip_suffix("/*").unwrap_or(path);
                format!("{}(?:/|$)", regex_syntax::escape(dir))
            }
        });
        matcher.regex = Some(format!("^(?:{})", regex.collect::<Vec<_>>().join("|")));
        matcher.paths.clear();
        matcher.suffixes.clear();
    } else if matcher.regex.is_none() && matcher.suffixes.is_empty() {
        for path in matcher.paths.clone() {
            let dir = path.strip_suffix("/*").filter(|dir| !dir.is_empty());
            matcher.paths.extend(
                dir.filter(|dir| !matcher.paths.iter().any(|p| p == dir)).map(str::to_owned),
            );
        }
    }
}

/// Returns true for a rule without a translation that rewrites or redirects requests. Such a rule
/// refuses no request.
fn is_harmless(route: &DraftRoute) -> bool {
    let is_rule = route.source.to_ascii_lowercase().starts_with("rewriterule ");
    if !is_rule || !route.comments.iter().any(|comment| comment == CLOSED) {
        return false;
    }
    let flags = route.source.rsplit_once(" [").map_or("", |(_, flags)| flags).to_ascii_lowercase();
    !flags.trim_end_matches(']').split(',').map(str::trim).any(|flag| {
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        match name {
            "f" | "forbidden" | "g" | "gone" => true,
            "r" | "redirect" => value.starts_with(['4', '5']),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeper_files_grant_what_outer_files_refuse() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("data/.htaccess", "Require all denied"),
            (
                "data/assets/.htaccess",
                "<FilesMatch \\.(css|js)$>\nRequire all granted\n</FilesMatch>\nRequire all denied",
            ),
            ("data/code/.htaccess", "<FilesMatch \\.php$>\nRequire all granted\n</FilesMatch>"),
            ("data/open/.htaccess", "Require all granted"),
            ("bin/.htaccess", "SetHandler cgi-script\nOptions +ExecCGI"),
            (
                ".htaccess",
                "RewriteEngine On\nRewriteRule ^rest/(.*)$ rest.cgi/$1 [NE]\nSubstitute s/a/b/",
            ),
        ] {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let found = refusals(dir.path(), &[("/", ".")], &[".cgi"]).unwrap();
        let routes: Vec<&str> = found.routes.split("[[site.route]]").skip(1).collect();
        let at = |text: &str| {
            let at = routes.iter().position(|route| route.contains(text));
            at.unwrap_or_else(|| panic!("{text}: {}", found.routes))
        };
        assert!(routes[at("\"/data/assets/*\"")].contains("files = \"data/assets\""));
        assert!(at("\"/data/assets/*\"") < at("^/data"), "{}", found.routes);
        let closed = routes[at("^/data")];
        let line = closed.lines().find(|line| line.contains("path_regex")).unwrap();
        let text = line.split_once('"').unwrap().1.trim_end_matches('"');
        let regex = forebay_conf::Regex::new(text, false).unwrap();
        for (path, is_refused) in [
            ("/data", true),
            ("/data/x", true),
            ("/data/assets/x.txt", true),
            ("/data/code/x.php", true),
            ("/data/opener", true),
            ("/data/open/x", false),
            ("/data/Open/x", true),
        ] {
            assert_eq!(regex.is_match(path.as_bytes()), is_refused, "{path}: {text}");
        }
        assert!(routes[at("\"/bin/*\"")].contains("403"), "{}", found.routes);
        assert!(routes[at("\"/rest/*\"")].contains("rewrite = \"/rest.cgi/{rest}\""));
        let said = [found.notes.clone(), found.lost.clone()].concat().join("\n");
        for part in
            ["cgi = \"bin\"", ".htaccess:3: Substitute", "data/code/.htaccess:1: <FilesMatch"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    /// Returns the refusals of a directory `a` with this access file.
    fn of(rules: &str) -> Refusals {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/.htaccess"), rules).unwrap();
        refusals(dir.path(), &[("/", ".")], &[".php"]).unwrap()
    }

    #[test]
    fn rules_that_refuse_become_routes() {
        let whole = "paths = [\"/a/*\", \"/a\"]";
        for (rules, route, is_wider) in [
            ("Require all denied", whole, false),
            ("Order allow,deny\nDeny from all", whole, false),
            ("<IfModule x>\nDeny from all\n</IfModule>", whole, false),
            ("<Files *>\nRequire all denied\n</Files>", "path_regex = ", false),
            ("Require ip 10.0.0.0/8", whole, true),
            ("AuthType Basic\nAuthUserFile /x\nRequire valid-user", whole, true),
            ("Require expr \"%{X} == 1\"", whole, true),
            ("<Files x", whole, true),
            ("RewriteEngine on\nRewriteRule ^(b|c)/ - [NC,F]", "/a/", false),
            ("RewriteEngine on\nRewriteRule ^(?!x)y - [F]", "/a/", true),
            ("RewriteEngine on\nRewriteRule ^b - [R=404,L]", "status = 404", false),
            ("RedirectMatch 404 /\\.git", "status = 404", false),
            ("php_flag engine off", "phtml", true),
            ("<IfModule php7_module>\nphp_flag engine off\n</IfModule>", "phtml", true),
            ("<IfModule !mod_php.c>\nDeny from all\n</IfModule>", whole, false),
        ] {
            let found = of(rules);
            assert!(found.routes.contains(route), "{rules}: {found:?}");
            assert!(found.routes.contains("# a/.htaccess"), "{rules}: {found:?}");
            assert!(found.routes.contains("respond = { status = 4"), "{rules}: {found:?}");
            assert_eq!(!found.notes.is_empty(), is_wider, "{rules}: {found:?}");
            assert_eq!(found.files, [Path::new("a/.htaccess")]);
        }
    }

    #[test]
    fn rules_that_refuse_nothing_become_no_routes() {
        for rules in [
            "",
            "Require all granted",
            "#Require all denied",
            "ExpiresActive On\nHeader set X y",
            "RewriteEngine on\nRewriteCond %{REQUEST_FILENAME} !-f\nRewriteRule ^ index.php [L]",
            "RewriteEngine on\nRewriteCond %{HTTP:X} ^(?!y)\nRewriteRule ^(.*)$ /z [R=301,L]",
        ] {
            let found = of(rules);
            assert!(found.routes.is_empty() && found.allows_listing, "{rules}: {found:?}");
            assert_eq!(found.files.len(), 1);
        }
        assert!(!of("Options -Indexes").allows_listing);
        assert_eq!(of("FallbackResource /index.php").fallback, None, "only for a part");
        for mounts in [&[][..], &[("/", "none")], &[("/none", "none")]] {
            let found = refusals(Path::new("/proc/self/fdinfo"), mounts, &[]).unwrap();
            assert!(found.routes.is_empty() && found.files.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn the_script_for_missing_files_is_found() {
        let cond = "RewriteEngine on\nRewriteCond %{REQUEST_FILENAME} !-f\n";
        for (rule, expected) in [
            ("RewriteRule ^ index.php [L]", Some("/index.php")),
            ("RewriteRule (.*) doku.php?id=$1 [QSA,L]", Some("/doku.php?id={rest}")),
            ("#RewriteRule ^ index.php [L]", None),
            ("RewriteRule . - [F]", None),
            ("RewriteRule ^ /x\u{1}{y [L]", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(".htaccess"), format!("{cond}{rule}\n")).unwrap();
            let found = refusals(dir.path(), &[("/", ".")], &[".php"]).unwrap().fallback;
            assert_eq!(found.as_deref(), expected, "{rule}");
        }
    }

    #[test]
    fn directories_that_a_directive_cannot_name_are_read() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        for name in [&b"a[b]"[..], b"c*", b"$d", b"\xff", b"e?f#"] {
            let base = dir.path().join(OsStr::from_bytes(name));
            for below in [&b"x y%41"[..], b"q?*"] {
                let below = base.join(OsStr::from_bytes(below));
                std::fs::create_dir_all(&below).unwrap();
                std::fs::write(below.join(".htaccess"), "Require all denied").unwrap();
            }
            let found = refusals(&base, &[("/", ".")], &[".php"]).unwrap();
            assert!(found.routes.contains("\"^(?:/x y%41(?:/|$))\""), "{found:?}");
            assert!(found.routes.contains(r"'^(?:/q\?\*(?:/|$))'"), "{found:?}");
            assert_eq!(found.files, [Path::new("q?*/.htaccess"), Path::new("x y%41/.htaccess")]);
        }
        let odd = dir.path().join(OsStr::from_bytes(b"g/h/\xff"));
        std::fs::create_dir_all(&odd).unwrap();
        std::fs::write(odd.join(".htaccess"), "Require all denied").unwrap();
        let found = refusals(&dir.path().join("g"), &[("/s", "h")], &[]).unwrap();
        assert!(found.routes.contains("paths = [\"/s/*\", \"/s\"]"), "{found:?}");
    }
}

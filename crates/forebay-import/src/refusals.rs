//! Returns the requests that the access files (`.htaccess`) of a directory refuse.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::apache::{self, TOO_MANY};
use crate::draft::{CLOSED, Draft, DraftRoute, DraftSite};
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
    let mut found = RefusedRoutes { mounts, base, files: draft.access_files, kept: Vec::new() };
    routes.into_iter().for_each(|route| found.add(route));
    let unread = draft.notes.0.iter().filter_map(|note| match &*note.directive {
        ".htaccess" => Some(format!("{}: {}", found.shown(&note.file), note.next)),
        _ => note.next.contains(TOO_MANY).then(|| note.next.clone()),
    });
    let unread: Vec<String> = unread.collect();
    let found = found.finish(keys);
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
    /// The routes that refuse requests.
    kept: Vec<DraftRoute>,
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
        if !self.kept.iter().any(|other| other.matcher.covers(&kept.matcher)) {
            self.kept.retain(|other| !kept.matcher.covers(&other.matcher));
            self.kept.push(kept);
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
    fn finish(self, keys: &Keys) -> Refusals {
        let mut draft = alone(self.kept.clone());
        if !self.kept.is_empty() {
            crate::accept::accept(&mut draft, keys);
        }
        let mut found = Refusals::default();
        for route in draft.sites.iter().flat_map(|site| &site.routes) {
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

//! Warns about `.htaccess` files below directories that are served. Forebay only refuses the files
//! of a `files` route that they protect. It applies nothing else of them, and nothing to scripts.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use forebay_conf::{Action, AppKind, Finding, PathPattern, Plan, Route, Site, files};
use forebay_origin::files::htaccess::{Htaccess, Line};

/// The largest number of directory entries that are examined for one route.
const MOST_ENTRIES: usize = 5_000;

/// The largest number of directory entries that are examined for all routes together. With 10,000
/// sites, each start and reload would otherwise take minutes.
const MOST_ENTRIES_OF_ALL: usize = 100_000;

/// The largest depth of directories below the root. Applications place `.htaccess` files near their
/// root.
const DEEPEST: usize = 4;

/// Returns a warning for each route that serves directories with `.htaccess` files. Looks at each
/// directory once, because many sites may share it.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let (mut found, mut left) = (Vec::new(), MOST_ENTRIES_OF_ALL);
    let mut below: HashMap<&Path, Vec<PathBuf>> = HashMap::new();
    for (at, site) in plan.sites.iter().enumerate() {
        for (index, route) in site.routes.iter().enumerate() {
            let mut files = BTreeSet::new();
            for root in roots_of(plan, route) {
                let all = below.entry(root).or_insert_with(|| htaccess_below(root, &mut left));
                let is_reached = |file: &&PathBuf| is_reached(site, index, root, file);
                files.extend(all.iter().filter(is_reached).cloned());
            }
            let files = Vec::from_iter(files);
            found.extend(finding((at, index), route, &files));
        }
    }
    found
}

/// Returns the directories whose files a route sends or runs as PHP scripts.
fn roots_of<'p>(plan: &'p Plan, route: &'p Route) -> Vec<&'p Path> {
    match &route.action {
        Action::Files(files) => vec![&files.root],
        Action::Fastcgi(fastcgi) => fastcgi.root.iter().map(PathBuf::as_path).collect(),
        Action::App(name) => match plan.apps.get(name).map(|app| &app.kind) {
            Some(AppKind::Php { root, .. }) => vec![root],
            // Below these, the default handler of mod_perl sends files.
            Some(AppKind::ModPerl { directives, .. }) => {
                let sent = |line: &'p Vec<String>| match &line[..] {
                    [name, dir] if name == "DocumentRoot" || name == "Alias" => {
                        Some(Path::new(dir))
                    }
                    _ => None,
                };
                directives.iter().filter_map(sent).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Returns the `.htaccess` files below a directory, and links to such files. Reads at most
/// `MOST_ENTRIES` entries in total, and at most `left_of_all`, which it reduces; and no directory
/// below the depth `DEEPEST`. Also follows links to directories, because `files` follows them.
/// Reads each linked directory once, and after all other directories.
fn htaccess_below(root: &Path, left_of_all: &mut usize) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), MOST_ENTRIES.min(*left_of_all));
    let mut waiting = VecDeque::from([(root.to_owned(), 0)]);
    let mut linked = VecDeque::new();
    // Of the root, only if there is a link.
    let mut known = HashSet::new();
    let mut is_new = |real: PathBuf| {
        if known.is_empty() {
            known.insert(root.canonicalize().unwrap_or_else(|_| root.to_owned()));
        }
        known.insert(real)
    };
    while let Some((dir, depth)) = waiting.pop_front().or_else(|| linked.pop_front()) {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            if left == 0 {
                return found;
            }
            (left, *left_of_all) = (left - 1, *left_of_all - 1);
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if entry.file_name() == ".htaccess" {
                // Never open a pipe, which would block.
                found.extend(path.is_file().then_some(path));
            } else if kind.is_dir() && depth < DEEPEST {
                waiting.push_back((path, depth + 1));
            } else if kind.is_symlink()
                && depth < DEEPEST
                && let Ok(real) = path.canonicalize()
                && real.is_dir()
                && is_new(real)
            {
                linked.push_back((path, depth + 1));
            }
        }
    }
    found.sort();
    found
}

/// Returns true if route `index` is the first route that takes requests for the directory of
/// `file`, or if no route takes such requests. Ignores routes with `when`. Returns false if `file`
/// is not below `root`.
fn is_reached(site: &Site, index: usize, root: &Path, file: &Path) -> bool {
    let Some(below) = file.parent().and_then(|dir| dir.strip_prefix(root).ok()) else {
        return false;
    };
    let below = below.to_string_lossy();
    let slash = if below.is_empty() { "" } else { "/" };
    let starts = site.routes[index].matcher.paths.iter().filter_map(|path| match path {
        PathPattern::Prefix(start) => Some(start.as_str()),
        PathPattern::Exact(_) => None,
    });
    let start = starts.into_iter().next().unwrap_or("/");
    let path = format!("{start}{below}{slash}x");
    let mut routes = site.routes.iter().enumerate();
    let first = routes.find(|(_, route)| {
        route.matcher.when.is_none() && route.matcher.matches(b"GET", path.as_bytes()).is_some()
    });
    first.is_none_or(|(first, _)| first == index)
}

fn finding((site, at): (usize, usize), route: &Route, files: &[PathBuf]) -> Option<Finding> {
    let restricting = files.iter().find_map(|file| Some((file, restriction(file)?)));
    let first = restricting.as_ref().map(|(file, _)| *file).or_else(|| files.first())?;
    let first = first.display();
    let more = match files.len() - 1 {
        0 => String::new(),
        1 => "; there is 1 more such file".to_owned(),
        more => format!("; there are {more} more such files"),
    };
    let message = match restricting {
        Some((_, line)) => {
            let (number, effect) = (line.number, line.effect());
            if route.heeds_htaccess() {
                format!("line {number} of {first} {effect}: what it protects gets 403{more}")
            } else {
                format!("WARNING: line {number} of {first} {effect}, and Forebay ignores it{more}")
            }
        }
        None => format!("{first} has settings of Apache, and Forebay ignores it{more}"),
    };
    let key = match &route.action {
        Action::Files(_) => "files",
        Action::Fastcgi(_) => "fastcgi",
        _ => "app",
    };
    Some(Finding {
        key: ["site", &site.to_string(), "route", &at.to_string(), key].map(str::to_owned).into(),
        message,
        help: "write its rules as routes above this one, such as path = \"/dir/*\" with \
               respond = { status = 403 }, and remove the file"
            .into(),
    })
}

/// Returns the first line that restricts access. Returns `None` if the file cannot be read.
fn restriction(file: &Path) -> Option<Line> {
    Htaccess::read(files::open_file(file).ok()?).ok()?.first_restriction().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_mod_perl_sends_are_examined() {
        let dir = tempfile::tempdir().unwrap();
        for (name, line) in [("docs", "Options -Indexes"), ("shop/sub", "Require all denied")] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(".htaccess"), line).unwrap();
        }
        let text = "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\napp = \"a\"\n[app.a]\n\
                    kind = \"mod-perl\"\nroot = \"docs\"\nalias = \"shop\"\n";
        let plan = forebay_conf::parse(text, "site.toml", dir.path()).unwrap();
        let found = doubts(&plan);
        assert_eq!(found.len(), 1);
        let message = &found[0].message;
        assert!(
            message.starts_with("WARNING: line 1 of ") && message.contains("shop/sub"),
            "{message}"
        );
        assert!(
            message.ends_with("and Forebay ignores it; there is 1 more such file"),
            "{message}"
        );
    }

    #[test]
    fn sites_of_one_directory_are_warned_and_it_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("private")).unwrap();
        fs::write(dir.path().join("private/.htaccess"), "Require all denied\n").unwrap();
        let site = |host: &str| {
            format!(
                "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"{host}\"\n[[site.route]]\nfiles = {:?}\n",
                dir.path()
            )
        };
        let text = site("a.example") + &site("b.example");
        let plan = forebay_conf::parse(&text, "site.toml", dir.path()).unwrap();
        assert_eq!(doubts(&plan).len(), 2);
        // One entry is the directory `private`, the other its file.
        for (before, after, found) in [(9, 7, 1), (2, 0, 1), (1, 0, 0), (0, 0, 0)] {
            let mut left = before;
            assert_eq!(htaccess_below(dir.path(), &mut left).len(), found, "{before}");
            assert_eq!(left, after);
        }
    }
}

//! Sites of directories: `hosts_from = "/srv/*/htdocs"` makes a site of each directory that the
//! pattern matches. The name in place of `*` is the host, and replaces `{host}` in all texts of the
//! site. In the same way, `users_from = "/home/*/public_html"` makes a route for each user
//! (UserDir), and `{owner}` is the user that owns the directory.
//!
//! So no name that a client sends becomes part of a path: Forebay looks the client's host up among
//! the names that it has found on the disk, and the client's path among the paths of these routes.
//! A user without a directory is therefore like no user. Forebay loads the configuration again when
//! directories come or go.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use crate::error::{Directory, Problem, reason};
use crate::files;
use crate::source::Sources;
use crate::tree::{self, Node, Tree};

/// The largest number of directories of one pattern.
const MAX_SITES: usize = 100_000;
/// The largest list of the machine's users.
const MAX_USERS: u64 = 64 << 20;

/// A pattern of directories: `before/*/behind`.
pub(crate) struct Directories {
    /// The directory whose entries are hosts or users.
    pub before: PathBuf,
    /// The rest of the pattern, without a slash at its ends. May be empty.
    pub behind: String,
    names: Names,
}

/// What the name in place of `*` must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Hosts,
    Users,
}

impl Names {
    pub(crate) const ALL: [Self; 2] = [Self::Hosts, Self::Users];

    /// The key that has the pattern.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Hosts => "hosts_from",
            Self::Users => "users_from",
        }
    }

    fn covers(self, name: &str) -> bool {
        match self {
            Self::Hosts => is_host(name),
            Self::Users => is_user(name),
        }
    }
}

impl Directories {
    /// Reads a pattern. `base` is the directory of relative patterns. Returns `None` if the pattern
    /// does not have exactly one `*`, which is a whole name.
    pub(crate) fn parse(names: Names, pattern: &str, base: &Path) -> Option<Self> {
        let (before, behind) = pattern.split_once('*')?;
        let is_name = (before.is_empty() || before.ends_with('/'))
            && (behind.is_empty() || behind.starts_with('/'));
        let is_plain = |part: &str| !part.contains(['*', '?', '[', '\0']);
        let has_parents = behind.split('/').any(|part| matches!(part, "." | ".."));
        if !is_name || !is_plain(before) || !is_plain(behind) || has_parents {
            return None;
        }
        let behind = behind.trim_matches('/').to_owned();
        Some(Self { before: base.join(before), behind, names })
    }

    /// Reads the pattern of a site or route, if it has one.
    fn of_table(
        names: Names,
        table: &Tree<'_>,
        sources: &Sources,
    ) -> Result<Option<(Self, Range<usize>)>, Problem> {
        let Some(pattern) = table.get(names.key()) else { return Ok(None) };
        let span = pattern.span();
        let text = pattern.get_ref().as_str();
        let found = text.and_then(|text| Self::parse(names, text, &sources.at(span.start).base));
        let help = match names {
            Names::Hosts => "write a path in which one name is `*`: hosts_from = \"/srv/*/htdocs\"",
            Names::Users => {
                "write a path in which one name is `*`: users_from = \"/home/*/public_html\""
            }
        };
        let found = found
            .ok_or_else(|| Problem::new(&span, "this is no pattern of directories").help(help))?;
        Ok(Some((found, span)))
    }

    /// Returns the names whose directories exist, in alphabetical order.
    fn found(&self, span: &Range<usize>) -> Result<Vec<String>, Problem> {
        let mut found = files::names(&self.before, MAX_SITES).map_err(|error| {
            let place = self.before.display();
            Problem::new(span, format!("cannot look into {place}: {}", reason(&error)))
                .help("give an existing directory that Forebay may read")
        })?;
        found.retain(|name| self.names.covers(name));
        if !self.behind.is_empty() {
            found.retain(|name| {
                let directory = self.before.join(name).join(&self.behind);
                matches!(files::kind(&directory), Ok(files::Kind::Directory))
            });
        }
        Ok(found)
    }

    /// Returns the user that owns a directory, if it belongs to one user other than root.
    ///
    /// Its parts from `*` on belong to that user or to root, and links count by their own owner: a
    /// user who links to the directory of another one does not become that one.
    fn owner(&self, name: &str, users: &mut Users) -> Option<String> {
        let mut path = self.before.join(name);
        let mut owners = vec![files::owner(&path).ok()?];
        for part in Path::new(&self.behind) {
            path.push(part);
            owners.push(files::owner(&path).ok()?);
        }
        owners.retain(|owner| *owner != 0);
        owners.dedup();
        match owners[..] {
            [owner] => users.name(owner),
            _ => None,
        }
    }

    /// Returns the directories whose changes add or remove sites.
    pub(crate) fn watched(&self) -> Vec<PathBuf> {
        let names = files::names(&self.before, MAX_SITES).unwrap_or_default();
        let directories = names.iter().filter(|name| self.names.covers(name));
        let incomplete = directories
            .map(|name| self.before.join(name))
            .filter(|directory| !self.behind.is_empty() && !directory.join(&self.behind).is_dir());
        std::iter::once(self.before.clone()).chain(incomplete).collect()
    }
}

/// Names of users by their ids, from `/etc/passwd`, which is read once when the first is needed.
#[derive(Default)]
struct Users(Option<HashMap<u32, String>>);

impl Users {
    fn name(&mut self, id: u32) -> Option<String> {
        let names = self.0.get_or_insert_with(|| {
            let bytes = files::read(Path::new("/etc/passwd"), MAX_USERS).unwrap_or_default();
            let mut names = HashMap::new();
            for line in String::from_utf8_lossy(&bytes).lines() {
                let mut fields = line.split(':');
                if let (Some(name), Some(id)) = (fields.next(), fields.nth(1))
                    && let Ok(id) = id.parse()
                {
                    // The first line counts, as for the system.
                    names.entry(id).or_insert_with(|| name.to_owned());
                }
            }
            names
        });
        names.get(&id).filter(|name| is_user(name)).cloned()
    }
}

/// Returns true if the name of a directory is a host name in lower case. All other directories, such
/// as `lost+found` and `.git`, are no sites.
fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 253
        && name.bytes().all(|byte| is_plain(byte) || byte == b'.')
        && name.split('.').all(is_label)
}

/// Returns true if a name can be that of a user, and means nothing else in a path. Digits alone would
/// be the number of another user.
fn is_user(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && name.bytes().all(is_plain)
        && !name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Replaces each site with `hosts_from` by a site for each directory, and each route with
/// `users_from` by a route for each user. A host that another site names stays with that site.
pub(crate) fn expand(tree: &mut Tree<'_>, sources: &Sources) -> Result<(), Vec<Problem>> {
    for set in tree::table_at(tree, "set").into_iter().flat_map(|sets| sets.values()) {
        let set = set.get_ref().as_table();
        if let Some((key, _)) = set.and_then(|set| set.get_key_value("users_from")) {
            let message = "`users_from` has no effect in a set";
            let problem = Problem::new(&key.span(), message);
            return Err(vec![problem.help("write it in the [[site.route]] itself")]);
        }
    }
    let has_pattern = |(_, site): (_, &mut Tree<'_>)| {
        site.contains_key("hosts_from")
            || tree::tables_at(site, "route").any(|(_, route)| route.contains_key("users_from"))
    };
    if !tree::tables_at(tree, "site").any(has_pattern) {
        return Ok(());
    }
    let mut expansion = Expansion::new(tree, sources);
    let Some(DeValue::Array(all)) = tree.get_mut("site").map(Spanned::get_mut) else {
        return Ok(());
    };
    let (mut sites, mut problems) = (Vec::new(), Vec::new());
    for site in std::mem::replace(all, DeArray::new()) {
        match expansion.sites(site) {
            Ok(expanded) => sites.extend(expanded),
            Err(problem) => problems.push(problem),
        }
    }
    sites.into_iter().for_each(|site| all.push(site));
    if let Err(problem) = expansion.add_apps(tree) {
        problems.push(problem);
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

struct Expansion<'a, 's> {
    sources: &'a Sources,
    /// Hosts that have a site.
    taken: HashSet<String>,
    users: Users,
    /// The applications whose texts have `{owner}`: each site and route gets its own.
    patterns: BTreeMap<String, Node<'s>>,
    /// The names of those that a site or route with directories names.
    claimed: HashSet<String>,
    /// The applications of sites and routes, by their names.
    apps: BTreeMap<String, Node<'s>>,
}

/// What replaces the placeholders of one directory.
struct Found<'a> {
    /// The host or the user.
    name: &'a str,
    names: Names,
    owner: Option<String>,
    /// The position of the pattern.
    pattern: &'a Range<usize>,
}

impl<'a, 's> Expansion<'a, 's> {
    fn new(tree: &mut Tree<'s>, sources: &'a Sources) -> Self {
        let mut taken: HashSet<String> = HashSet::new();
        for (_, site) in tree::tables_at(tree, "site") {
            let hosts = site.get("hosts").and_then(tree::texts).unwrap_or_default();
            taken.extend(hosts.iter().map(|(_, host)| host.to_ascii_lowercase()));
        }
        let mut patterns = BTreeMap::new();
        if let Some(DeValue::Table(apps)) = tree.get_mut("app").map(Spanned::get_mut) {
            for (name, app) in apps.iter_mut() {
                if mentions_owner(app) {
                    patterns.insert(tree::name(name).to_owned(), app.clone());
                }
            }
            patterns.keys().for_each(|name| drop(apps.remove(name.as_str())));
        }
        let (users, claimed, apps) = (Users::default(), HashSet::new(), BTreeMap::new());
        Self { sources, taken, users, patterns, claimed, apps }
    }

    /// Returns the sites in place of one, with its routes.
    fn sites(&mut self, mut site: Node<'s>) -> Result<Vec<Node<'s>>, Problem> {
        if let DeValue::Table(table) = site.get_mut()
            && let Some(DeValue::Array(routes)) = table.get_mut("route").map(Spanned::get_mut)
        {
            let mut expanded = Vec::new();
            for route in std::mem::replace(routes, DeArray::new()) {
                expanded.extend(self.routes(route)?);
            }
            expanded.into_iter().for_each(|route| routes.push(route));
        }
        let Some(table) = site.get_ref().as_table() else { return Ok(vec![site]) };
        let Some((directories, span)) = Directories::of_table(Names::Hosts, table, self.sources)?
        else {
            return Ok(vec![site]);
        };
        if let Some((key, _)) = table.get_key_value("hosts") {
            return Err(Problem::new(&key.span(), "both `hosts` and `hosts_from`")
                .also(&span, "the names of these directories are the hosts")
                .help("leave one of the two out, or write two sites"));
        }
        let needs_owner = self.claim(&mut site) || mentions_owner(&mut site);
        let mut sites = Vec::new();
        for host in directories.found(&span)? {
            let owner = needs_owner.then(|| directories.owner(&host, &mut self.users)).flatten();
            if needs_owner && owner.is_none() || !self.taken.insert(host.clone()) {
                continue;
            }
            let mut site = site.clone();
            let found = Found { name: &host, names: Names::Hosts, owner, pattern: &span };
            self.fill(&mut site, &found);
            if let DeValue::Table(table) = site.get_mut() {
                tree::insert(table, &span, "hosts", tree::text(&span, host));
            }
            sites.push(site);
        }
        Ok(sites)
    }

    /// Returns the routes in place of one.
    fn routes(&mut self, mut route: Node<'s>) -> Result<Vec<Node<'s>>, Problem> {
        let Some(table) = route.get_ref().as_table() else { return Ok(vec![route]) };
        let Some((directories, span)) = Directories::of_table(Names::Users, table, self.sources)?
        else {
            return Ok(vec![route]);
        };
        let paths = ["path", "paths"].iter().filter_map(|key| tree::texts(table.get(*key)?));
        let paths: Vec<_> = paths.flatten().collect();
        if paths.is_empty() || paths.iter().any(|(_, path)| !path.contains("{owner}")) {
            let at = paths.iter().find(|(_, path)| !path.contains("{owner}"));
            let at = at.map_or_else(|| span.clone(), |(at, _)| at.clone());
            return Err(Problem::new(&at, "each user needs a path of their own")
                .help("write the user's name in the path: path = \"/~{owner}/*\""));
        }
        self.claim(&mut route);
        let mut routes = Vec::new();
        for user in directories.found(&span)? {
            // A directory with the name of one user that belongs to another is nobody's.
            let owner = directories.owner(&user, &mut self.users).filter(|owner| *owner == user);
            if owner.is_some() {
                let mut route = route.clone();
                let found = Found { name: &user, names: Names::Users, owner, pattern: &span };
                self.fill(&mut route, &found);
                routes.push(route);
            }
        }
        Ok(routes)
    }

    /// Notes the applications with `{owner}` that a site or route names. Returns true if there are any.
    fn claim(&mut self, node: &mut Node<'s>) -> bool {
        let Self { patterns, claimed, .. } = self;
        let mut found = false;
        each_app(node, &mut |name| {
            if patterns.contains_key(&**name) {
                claimed.insert(name.clone().into_owned());
                found = true;
            }
        });
        found
    }

    /// Replaces the placeholders in a site or route. Its applications with `{owner}` become its own.
    fn fill(&mut self, node: &mut Node<'s>, found: &Found<'_>) {
        let Self { patterns, apps, .. } = self;
        each_app(node, &mut |name| {
            let Some(pattern) = patterns.get(&**name) else { return };
            let own = found.own(name);
            apps.entry(own.clone()).or_insert_with(|| {
                let mut app = pattern.clone();
                found.fill(&mut app);
                app
            });
            *name = own.into();
        });
        found.fill(node);
    }

    /// Adds the applications of sites and routes.
    fn add_apps(self, tree: &mut Tree<'s>) -> Result<(), Problem> {
        if let Some((name, app)) =
            self.patterns.iter().find(|(name, _)| !self.claimed.contains(*name))
        {
            let message = format!("[app.{name}] has `{{owner}}`, but nothing says whose it is");
            return Err(Problem::new(&app.span(), message).help(format!(
                "name it in a site with `hosts_from` or a route with `users_from`: app = \"{name}\""
            )));
        }
        let Some(DeValue::Table(all)) = tree.get_mut("app").map(Spanned::get_mut) else {
            return Ok(());
        };
        for (name, app) in self.apps {
            let span = app.span();
            if let Some((key, _)) = all.get_key_value(name.as_str()) {
                return Err(Problem::new(&key.span(), format!("there are two [app.{name}]"))
                    .also(&span, "an application for each owner")
                    .help("give this application another name"));
            }
            tree::insert(all, &span, name, app);
        }
        Ok(())
    }
}

impl Found<'_> {
    /// Returns the name of an application of this directory alone. No other directory and no other
    /// application gives this name, because hosts and users have neither `@` nor `~` in theirs. Else
    /// one owner's requests could reach processes of another.
    fn own(&self, app: &str) -> String {
        let mark = if self.names == Names::Hosts { '@' } else { '~' };
        format!("{app}{mark}{}", self.name)
    }

    /// Replaces the placeholders in a table, and marks it.
    fn fill(&self, node: &mut Node<'_>) {
        tree::each_text_of(node, &mut |_, text| {
            if self.names == Names::Hosts && text.contains("{host}") {
                *text = text.replace("{host}", self.name).into();
            }
            if let Some(owner) = self.owner.as_ref().filter(|_| text.contains("{owner}")) {
                *text = text.replace("{owner}", owner).into();
            }
        });
        if let DeValue::Table(table) = node.get_mut() {
            let mark = if self.names == Names::Hosts { "" } else { "~" };
            Directory::mark(table, self.pattern, &format!("{mark}{}", self.name));
        }
    }
}

fn mentions_owner(node: &mut Node<'_>) -> bool {
    let mut found = false;
    tree::each_text_of(node, &mut |_, text| found |= text.contains("{owner}"));
    found
}

/// Calls `each` with the values of `app` in a site or route, at any depth.
fn each_app<'s>(node: &mut Node<'s>, each: &mut impl FnMut(&mut std::borrow::Cow<'s, str>)) {
    match node.get_mut() {
        DeValue::Table(table) => {
            for (key, value) in table.iter_mut() {
                match value.get_mut() {
                    DeValue::String(name) if tree::name(key) == "app" => each(name),
                    _ => each_app(value, each),
                }
            }
        }
        DeValue::Array(items) => items.iter_mut().for_each(|item| each_app(item, each)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_hosts() {
        for name in ["example.org", "a", "xn--bcher-kva.example", "10.0.0.1", "a-b.c"] {
            assert!(is_host(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".git",
            "a..b",
            "a.",
            "-a",
            "a-",
            "a.-b",
            "A.org",
            "a_b",
            "a b",
            "a/b",
            "lost+found",
            "*.a",
            "a\0",
            "\u{fc}.org",
            "{host}",
            "a:80",
        ] {
            assert!(!is_host(name), "{name}");
        }
        assert!(!is_host(&"a".repeat(64)));
    }

    #[test]
    fn only_plain_names_are_users() {
        for name in ["alice", "a", "www-data", "b.smith", "Anna_2"] {
            assert!(is_user(name), "{name}");
        }
        for name in [
            "", ".", "..", ".a", "-a", "0", "1000", "a/b", "a\0", "a*", "{owner}", "a b", "a%",
            "\u{e4}",
        ] {
            assert!(!is_user(name), "{name}");
        }
        assert!(!is_user(&"a".repeat(65)));
    }

    #[test]
    fn a_pattern_has_one_whole_name() {
        let parse = |pattern: &str| Directories::parse(Names::Hosts, pattern, Path::new("/base"));
        let found = parse("/srv/*/htdocs/").unwrap();
        assert_eq!((found.before.as_path(), &*found.behind), (Path::new("/srv"), "htdocs"));
        assert_eq!(parse("sites/*").unwrap().before, Path::new("/base/sites"));
        for pattern in ["/srv", "/srv/a*", "/srv/*a", "/srv/*/*", "/srv/**", "/s?v/*", "/srv/*/.."]
        {
            assert!(parse(pattern).is_none(), "{pattern}");
        }
    }
}

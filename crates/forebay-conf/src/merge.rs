//! Adds keys from `[defaults]`, `[site.defaults]` and `[set.NAME]` (named by `use`) to routes that
//! do not have these keys.
//!
//! The first of these tables that has a key counts: the route, the sets that it uses (from the last
//! name to the first), `[site.defaults]`, `[defaults]`. Tables are merged key by key. If a route
//! has `false` for a key, the key is not added.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::DeValue;

use crate::error::{Directory, Problem};
use crate::file::{ANSWERS, SITE_KEYS, SWITCHES};
use crate::plan::Fingerprint;
use crate::suggest;
use crate::tree::{self, Tree};

/// Keys that no table of defaults may have, because each route has its own values.
const OWN: [&str; 11] = [
    "path",
    "paths",
    "path_regex",
    "suffix",
    "suffix_ignore_case",
    "users_from",
    "methods",
    "when",
    "name",
    "app",
    "rewrite",
];

/// Keys of a table that exclude each other: the name of the table, then its keys. A key is not
/// added to a table that already has one of the other keys.
const RIVALS: [(&str, &[&str]); 6] = [
    ("tls", &["acme", "certificate"]),
    ("tls", &["acme", "key"]),
    ("tls", &["acme", "ocsp_staple"]),
    ("redirect", &["to", "file"]),
    ("cgi", &["dir", "program"]),
    ("", &["fallback", "fallback_to"]),
];

/// The largest number of keys that are added to routes in total. Each key costs memory, and a
/// single default adds a key to every route, so the number must be limited.
const MOST_FILLED: usize = 1_000_000;

/// A key that was added to a route or site from another table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// The key, with the names of the tables in the route that contain it:
    /// `set_headers.X-Frame-Options`.
    pub key: String,
    /// The table that the key comes from: `[defaults]`, `[site.defaults]` or `[set.NAME]`.
    pub table: String,
    /// The position of the value.
    pub span: Range<usize>,
}

/// All keys that were added to routes and sites.
#[derive(Default)]
pub(crate) struct AllFilled {
    /// Keys of routes, by the index of the site and the index of the route in the site.
    pub routes: HashMap<(usize, usize), Vec<Filled>>,
    /// Keys of sites, by the index of the site.
    pub sites: HashMap<usize, Vec<Filled>>,
    /// The start position of each value that was added from `[defaults]` or `[site.defaults]`.
    pub defaults: HashSet<usize>,
    /// What was typed for each route, by the same indices as `routes`.
    pub fingerprints: HashMap<(usize, usize), Fingerprint>,
    /// The directory of each site of `hosts_from`, by the index of the site.
    pub site_directories: HashMap<usize, Directory>,
    /// The directory of each route of `users_from`, by the indices of its site and of the route.
    pub route_directories: HashMap<(usize, usize), Directory>,
    /// The directory of each application that belongs to one directory.
    pub app_directories: BTreeMap<String, Directory>,
}

impl AllFilled {
    /// Finds the directories of sites, routes and applications.
    pub fn find_directories(&mut self, tree: &mut Tree<'_>) {
        for (name, app) in tree::table_at(tree, "app").into_iter().flatten() {
            let directory = app.get_ref().as_table().and_then(Directory::of);
            self.app_directories
                .extend(directory.map(|found| (tree::name(name).to_owned(), found)));
        }
        for (number, (_, site)) in tree::tables_at(tree, "site").enumerate() {
            self.site_directories.extend(Directory::of(site).map(|found| (number, found)));
            for (at, (_, route)) in tree::tables_at(site, "route").enumerate() {
                let found = Directory::of(route).map(|found| ((number, at), found));
                self.route_directories.extend(found);
            }
        }
    }
}

/// Moves the keys of sites from `[defaults]` to the sites that do not have them.
pub(crate) fn fill_sites(tree: &mut Tree<'_>) -> AllFilled {
    let mut all = AllFilled::default();
    let Some(DeValue::Table(defaults)) = tree.get_mut("defaults").map(Spanned::get_mut) else {
        return all;
    };
    let mut of_sites = Tree::new();
    for key in SITE_KEYS {
        if let Some((key, value)) = defaults.remove_entry(key) {
            of_sites.insert(key, value);
        }
    }
    let sets = Sets(Tree::new());
    for (number, (_, site)) in tree::tables_at(tree, "site").enumerate() {
        let mut filling = Filling::new(&sets);
        filling.is_default = true;
        filling.keys(site, &of_sites, "[defaults]", &mut Vec::new());
        let (filled, starts) = filling.finish(site);
        all.sites.insert(number, filled);
        all.defaults.extend(starts);
    }
    all
}

/// Adds the keys of defaults and sets to all routes, and lists the added keys in `all`. Unknown
/// sets, and keys that cannot be defaults, are errors.
pub(crate) fn fill_routes(tree: &mut Tree<'_>, all: &mut AllFilled) -> Result<(), Vec<Problem>> {
    let defaults = tree::table_at(tree, "defaults").cloned().unwrap_or_default();
    let sets = Sets(tree::table_at(tree, "set").cloned().unwrap_or_default());
    let mut problems = sets.check();
    problems.extend(sets.unknown(&defaults));
    problems.extend(own_key(&defaults));
    let mut count = 0;
    for (number, (_, site)) in tree::tables_at(tree, "site").enumerate() {
        let of_site = tree::table_at(site, "defaults").cloned().unwrap_or_default();
        problems.extend(sets.unknown(&of_site));
        problems.extend(own_key(&of_site));
        for (at, (span, route)) in tree::tables_at(site, "route").enumerate() {
            problems.extend(sets.unknown(route));
            let mut filling = Filling::new(&sets);
            filling.sets_of(route, &used_by(route));
            filling.is_default = true;
            filling.table(route, &of_site, "[site.defaults]");
            filling.table(route, &defaults, "[defaults]");
            let (filled, starts) = filling.finish(route);
            count += filled.len();
            all.defaults.extend(starts);
            if !filled.is_empty() {
                all.routes.insert((number, at), filled);
            }
            if count > MOST_FILLED {
                let message = "defaults and sets add more than a million keys to the routes";
                problems.push(Problem::new(&span, message).help("give them fewer keys"));
                return Err(problems);
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// State while keys are added to one route or site.
struct Filling<'a, 's> {
    sets: &'a Sets<'s>,
    filled: Vec<Filled>,
    /// The start position of each value that was added from defaults.
    starts: Vec<usize>,
    /// The sets whose keys were added. To add them a second time would change nothing.
    used: BTreeSet<String>,
    /// Keys that the route or site sets to `false` to exclude the value of another table. They are
    /// removed at the end.
    left_out: BTreeSet<Vec<String>>,
    is_default: bool,
}

impl<'a, 's> Filling<'a, 's> {
    fn new(sets: &'a Sets<'s>) -> Self {
        let (filled, starts, is_default) = (Vec::new(), Vec::new(), false);
        let (used, left_out) = (BTreeSet::new(), BTreeSet::new());
        Self { sets, filled, starts, used, left_out, is_default }
    }

    /// Adds the keys of a table, then the keys of the sets that the table uses.
    fn table(&mut self, into: &mut Tree<'s>, from: &Tree<'s>, label: &str) {
        self.keys(into, from, label, &mut Vec::new());
        self.sets_of(into, &used_by(from));
    }

    /// Adds the keys of the sets `names` to `into`, from the last set to the first. Skips a set
    /// whose keys have already been added.
    fn sets_of(&mut self, into: &mut Tree<'s>, names: &[String]) {
        let sets = self.sets;
        for name in names.iter().rev() {
            let Some(set) = tree::table_at(&sets.0, name) else { continue };
            if self.used.insert(name.clone()) {
                self.table(into, set, &format!("[set.{name}]"));
            }
        }
    }

    /// Adds the keys of the table `from` to `into`, but not the keys of the sets that `from` uses.
    /// `path` has the names of the tables that contain `into`. Skips a key if `into` has another
    /// key that excludes it. From a table of defaults, also skips answers and the keys in [`OWN`].
    fn keys(&mut self, into: &mut Tree<'s>, from: &Tree<'s>, label: &str, path: &mut Vec<String>) {
        for (key, value) in from {
            let name = tree::name(key);
            let is_answer = ANSWERS.iter().any(|(answer, _)| *answer == name);
            let is_present = into.contains_key(name);
            // Defaults may add options to the table of an answer, such as `files.listing`. They may
            // not add the answer `files` itself, or a condition such as `path`.
            let is_skipped = self.is_default && (is_answer && !is_present || OWN.contains(&name));
            if path.is_empty() && (name == "use" || is_skipped) || has_rival(into, name, path) {
                continue;
            }
            path.push(name.to_owned());
            match into.get_mut(name).map(Spanned::get_mut) {
                None => {
                    self.note(value, label, path);
                    into.insert(key.clone(), value.clone());
                }
                Some(present) => self.join(present, value, label, path),
            }
            path.pop();
        }
    }

    /// Joins a value into `present`, the value that the route already has for the same key.
    fn join(
        &mut self,
        present: &mut DeValue<'s>,
        value: &tree::Node<'s>,
        label: &str,
        path: &mut Vec<String>,
    ) {
        let short = ANSWERS.iter().find(|(answer, _)| path.len() == 1 && path[0] == *answer);
        let short = short.and_then(|(_, short)| *short);
        match (&mut *present, value.get_ref(), short) {
            (DeValue::Table(into), DeValue::Table(from), _) => self.keys(into, from, label, path),
            (DeValue::Boolean(false), from, _) if !from.is_bool() && !is_switch(path) => {
                self.left_out.insert(path.clone());
            }
            (DeValue::String(_), DeValue::Table(from), Some(short)) => {
                let span = value.span();
                let text = std::mem::replace(present, DeValue::Boolean(false));
                let mut into = Tree::new();
                tree::insert(&mut into, &span, short, Spanned::new(span.clone(), text));
                self.keys(&mut into, from, label, path);
                *present = DeValue::Table(into);
            }
            (DeValue::Table(into), DeValue::String(_), Some(short))
                if !into.contains_key(short) =>
            {
                path.push(short.to_owned());
                self.note(value, label, path);
                path.pop();
                tree::insert(into, &value.span(), short, value.clone());
            }
            _ => {}
        }
    }

    /// Records in `filled` that a value was added, and that it came from the table `label`. For a
    /// value that is a table, records each of its keys.
    fn note(&mut self, value: &tree::Node<'s>, label: &str, path: &mut Vec<String>) {
        if self.is_default {
            self.starts.push(value.span().start);
        }
        if let DeValue::Table(table) = value.get_ref() {
            for (key, value) in table {
                path.push(key.get_ref().to_string());
                self.note(value, label, path);
                path.pop();
            }
            return;
        }
        let (key, table) = (path.join("."), label.to_owned());
        self.filled.push(Filled { key, table, span: value.span() });
    }

    /// Removes the keys that the route or site sets to `false`. Returns the added keys, and the
    /// start position of each value that comes from defaults.
    fn finish(self, table: &mut Tree<'s>) -> (Vec<Filled>, Vec<usize>) {
        for path in &self.left_out {
            remove(table, path);
        }
        (self.filled, self.starts)
    }
}

/// Returns true if the table has a key that excludes the key `name`.
fn has_rival(table: &Tree<'_>, name: &str, path: &[String]) -> bool {
    let parent = path.last().map_or("", String::as_str);
    RIVALS.iter().any(|(of_table, keys)| {
        let mut others = keys.iter().filter(|key| **key != name);
        *of_table == parent && keys.contains(&name) && others.any(|key| table.contains_key(*key))
    })
}

fn remove(table: &mut Tree<'_>, path: &[String]) {
    match path {
        [] => {}
        [key] => drop(table.remove(key.as_str())),
        [key, below @ ..] => {
            if let Some(DeValue::Table(table)) = table.get_mut(key.as_str()).map(Spanned::get_mut) {
                remove(table, below);
            }
        }
    }
}

fn used_by(table: &Tree<'_>) -> Vec<String> {
    let names = table.get("use").and_then(tree::texts).unwrap_or_default();
    names.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// Returns a problem if a table of defaults has a key that only a route may have. Returns `None` if
/// the table is correct.
fn own_key(defaults: &Tree<'_>) -> Option<Problem> {
    let (key, _) = defaults.iter().find(|(key, _)| OWN.contains(&tree::name(key)))?;
    let message = format!("`{}` cannot be a default", key.get_ref());
    Some(Problem::new(&key.span(), message).label("belongs to a route").help(
        "give it to each route; routes can share it in a set: [set.NAME] and use = [\"NAME\"]",
    ))
}

/// A fault in the names of `use`.
enum UseFault {
    /// A set leads back to itself.
    Itself,
    /// Sets use sets more than [`DEEPEST`] deep.
    TooDeep,
}

/// The tables `[set.NAME]`.
struct Sets<'s>(Tree<'s>);

impl Sets<'_> {
    /// Returns the problems of sets that use themselves or unknown sets.
    fn check(&self) -> Vec<Problem> {
        let mut problems: Vec<_> = Vec::new();
        let mut done = HashSet::new();
        for (name, set) in &self.0 {
            if let DeValue::Table(set) = set.get_ref() {
                problems.extend(self.unknown(set));
            }
            let mut way = Vec::new();
            if let Some(fault) = self.fault_of(name.get_ref(), &mut way, &mut done) {
                let span = set.get_ref().as_table();
                let span = span.and_then(|set| set.get("use")).map_or(name.span(), Spanned::span);
                let name = name.get_ref();
                let (message, help) = match fault {
                    UseFault::Itself => {
                        (format!("the set \"{name}\" uses itself"), "leave one of the names out")
                    }
                    UseFault::TooDeep => (
                        format!("from the set \"{name}\", sets use sets more than {DEEPEST} deep"),
                        "name the last sets in `use` directly",
                    ),
                };
                problems.push(Problem::new(&span, message).help(help));
                break;
            }
        }
        problems
    }

    /// Returns the first fault in the set `name`, or in a set that it uses. Returns `None` if there
    /// is no fault. `way` has the sets that lead to `name`: each set uses the next one, and the
    /// last one uses `name`. `done` lists the sets that have no fault.
    fn fault_of(
        &self,
        name: &str,
        way: &mut Vec<String>,
        done: &mut HashSet<String>,
    ) -> Option<UseFault> {
        if way.iter().any(|of_way| of_way == name) {
            return Some(UseFault::Itself);
        }
        if way.len() > DEEPEST {
            return Some(UseFault::TooDeep);
        }
        if done.contains(name) {
            return None;
        }
        let set = tree::table_at(&self.0, name)?;
        way.push(name.to_owned());
        let found = used_by(set).iter().find_map(|used| self.fault_of(used, way, done));
        way.pop();
        if found.is_none() {
            done.insert(name.to_owned());
        }
        found
    }

    /// Returns a problem if `use` of the table names a set that does not exist. Returns `None` if
    /// the table is correct.
    fn unknown(&self, table: &Tree<'_>) -> Option<Problem> {
        let names = tree::texts(table.get("use")?)?;
        let (span, name) = names.into_iter().find(|(_, name)| !self.0.contains_key(*name))?;
        let problem = Problem::new(&span, format!("there is no set \"{name}\""));
        let keys = || self.0.keys().map(tree::name);
        Some(match suggest::nearest(name, keys()) {
            Some(near) => problem
                .label(format!("did you mean \"{near}\"?"))
                .help(format!("sets are tables of the file: [set.{near}] is one")),
            None => problem.label("no such set").help("add a table for it: [set.NAME]"),
        })
    }
}

/// The largest depth of sets that use further sets.
const DEEPEST: usize = 20;

/// Returns true for a key of which `false` is a value of its own, so that it must not be left out.
fn is_switch(path: &[String]) -> bool {
    matches!(path, [key] if SWITCHES.contains(&key.as_str()))
}

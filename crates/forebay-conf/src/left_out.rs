//! Sites and users that are left out, because something of theirs is missing or wrong.
//!
//! `hosts_from` and `users_from` make tables of directories, which often belong to many people. A
//! password file that one of them has removed must not keep the whole server from starting or from
//! reading its configuration. So each table of a directory has a mark ([`MARK`]), from which the
//! problems in it get their directory. [`LeftOut::add`] takes note of them, and the configuration is
//! read a second time: the hosts and paths of these directories then answer 503, all else is served.
//! They get neither their own content, whose rules may be among what is missing, nor that of another
//! site.
//!
//! If no directory of a pattern is sound and several have a problem at the same place, the
//! configuration is to blame. It is then refused, so that a typo does not close a thousand sites. A
//! directory that is already left out for another reason cannot show the typo, so it is no evidence
//! against it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use crate::error::{ConfError, Directory, MARK, Problem};
use crate::source::Sources;
use crate::tree::{self, Node, Tree};

/// Keys that a site keeps: where it listens, and what all sites of a listener must agree on.
const KEPT: [&str; 8] = [
    MARK,
    "listen",
    "hosts",
    "proxy_protocol",
    "ajp_secret",
    "ajp_packet_size",
    "socket_mode",
    "socket_group",
];
/// Keys that a site keeps unless they have a problem, too.
const KEPT_IF_SOUND: [&str; 5] = ["tls", "http3", "trusted_proxies", "forwarded", "socket_user"];

impl Directory {
    /// The directory of a table.
    pub fn of(table: &Tree<'_>) -> Option<Self> {
        let mark = table.get(MARK)?;
        Some(Self { name: mark.get_ref().as_str()?.to_owned(), pattern: mark.span().start })
    }

    /// Marks a table.
    pub fn mark(table: &mut Tree<'_>, pattern: &Range<usize>, name: &str) {
        tree::insert(table, pattern, MARK, tree::text(pattern, name.to_owned()));
    }
}

/// The directories that a plan leaves out.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    directories: BTreeMap<String, Left>,
    /// The names of each pattern's directories.
    all: HashMap<usize, HashSet<String>>,
    /// The directories that have a problem, by pattern and by the place of the problem.
    places: HashMap<(usize, usize), BTreeSet<String>>,
}

#[derive(Clone, Debug)]
struct Left {
    problem: Problem,
    paths: BTreeSet<PathBuf>,
    /// True if the sites had a problem even when they were left out, so that they lose
    /// [`KEPT_IF_SOUND`], too. They then have no certificate.
    lacks_certificate: bool,
}

/// A directory that a plan leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutRow {
    /// The host, or `~` and the user.
    pub name: String,
    /// The problem.
    pub problem: String,
    /// The next step for the user.
    pub help: String,
}

impl LeftOut {
    /// The directories, by name.
    pub fn rows(&self) -> impl Iterator<Item = LeftOutRow> {
        self.directories.iter().map(|(name, left)| LeftOutRow {
            name: name.clone(),
            problem: left.problem.message().to_owned(),
            help: left.problem.help_on_one_line(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// The files and directories that the configuration names for these directories. One of them
    /// may be what is missing.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.directories.values().flat_map(|left| &left.paths)
    }

    /// The warning that names the directories, if there are any.
    pub(crate) fn warning(&self, sources: &Sources) -> Option<ConfError> {
        let problem = |(name, left): (&String, &Left)| {
            let message =
                format!("{name} is left out, and answers 503: {}", left.problem.message());
            left.problem.clone().with_message(&message)
        };
        let problems: Vec<_> = self.directories.iter().map(problem).collect();
        (!problems.is_empty()).then(|| ConfError::in_sources(sources, problems).warning())
    }

    /// Returns true if the sites of a directory have no certificate that could be used.
    pub(crate) fn lacks_certificate(&self, directory: &Directory) -> bool {
        self.directories.get(&directory.name).is_some_and(|left| left.lacks_certificate)
    }

    /// Leaves out the directories of these problems. Fails with those for which the configuration is
    /// to blame.
    pub(crate) fn add(
        &mut self,
        problems: Vec<Problem>,
        sources: &Sources,
    ) -> Result<(), Vec<Problem>> {
        let problems = problems.into_iter().flat_map(Problem::apart);
        let mut of_configuration = Vec::new();
        let mut of_directories = Vec::new();
        let mut wrong = HashSet::new();
        for problem in problems {
            match problem.directory().cloned() {
                None => of_configuration.push(problem),
                Some(directory) => {
                    let place = (directory.pattern, problem.span().start);
                    self.places.entry(place).or_default().insert(directory.name.clone());
                    wrong.insert(directory.name.clone());
                    of_directories.push((directory, problem));
                }
            }
        }
        let is_sound =
            |name: &String| !wrong.contains(name) && !self.directories.contains_key(name);
        let sound_patterns = self.all.iter().filter(|(_, names)| names.iter().any(is_sound));
        let sound_patterns: HashSet<_> = sound_patterns.map(|(pattern, _)| *pattern).collect();
        let (mut new, mut again) = (BTreeMap::new(), Vec::new());
        for (directory, problem) in of_directories {
            let is_of_all = !sound_patterns.contains(&directory.pattern)
                && match self.places[&(directory.pattern, problem.span().start)].len() {
                    1 => !problem.is_about_disk() && !mentions_directory(problem.span(), sources),
                    _ => true,
                };
            match self.directories.get(&directory.name) {
                _ if is_of_all => of_configuration.push(problem),
                None => {
                    let (paths, lacks_certificate) = (BTreeSet::new(), false);
                    let left = Left { problem, paths, lacks_certificate };
                    new.entry(directory.name).or_insert(left);
                }
                // All that its sites still have is what they keep.
                Some(left) if !left.lacks_certificate => again.push(directory.name),
                Some(_) => of_configuration.push(problem),
            }
        }
        self.directories.extend(new);
        for name in again {
            self.directories.entry(name).and_modify(|left| left.lacks_certificate = true);
        }
        if of_configuration.is_empty() { Ok(()) } else { Err(of_configuration) }
    }

    /// Replaces what a tree has for these directories, and takes note of all directories.
    pub(crate) fn apply(&mut self, tree: &mut Tree<'_>, sources: &Sources) {
        self.all.clear();
        let mut left_out = Vec::new();
        if let Some(DeValue::Table(apps)) = tree.get_mut("app").map(Spanned::get_mut) {
            for (name, node) in apps.iter_mut() {
                if let Some((_, left)) = node.get_ref().as_table().and_then(|app| self.find(app)) {
                    left.note_paths(node, sources);
                    left_out.push(tree::name(name).to_owned());
                }
            }
            left_out.iter().for_each(|name| drop(apps.remove(name.as_str())));
        }
        let Some(DeValue::Array(sites)) = tree.get_mut("site").map(Spanned::get_mut) else {
            return;
        };
        for node in sites.iter_mut() {
            if let Some((span, left)) = node.get_ref().as_table().and_then(|site| self.find(site)) {
                left.note_paths(node, sources);
                let lacks_certificate = left.lacks_certificate;
                if let DeValue::Table(site) = node.get_mut() {
                    let is_kept = |key: &str| {
                        KEPT.contains(&key) || KEPT_IF_SOUND.contains(&key) && !lacks_certificate
                    };
                    retain(site, is_kept);
                    let route = tree::table(&span, [("respond", respond(&span))]);
                    tree::insert(site, &span, "route", tree::list(&span, [route]));
                }
                continue;
            }
            let DeValue::Table(site) = node.get_mut() else { continue };
            let Some(DeValue::Array(routes)) = site.get_mut("route").map(Spanned::get_mut) else {
                continue;
            };
            for node in routes.iter_mut() {
                let Some((span, left)) =
                    node.get_ref().as_table().and_then(|route| self.find(route))
                else {
                    continue;
                };
                left.note_paths(node, sources);
                if let DeValue::Table(route) = node.get_mut() {
                    retain(route, |key| [MARK, "path", "paths"].contains(&key));
                    tree::insert(route, &span, "respond", respond(&span));
                }
            }
        }
    }

    /// Takes note of the directory of a table, if any. Returns its pattern if it is left out.
    fn find(&mut self, table: &Tree<'_>) -> Option<(Range<usize>, &mut Left)> {
        let directory = Directory::of(table)?;
        let span = table.get(MARK)?.span();
        let left = self.directories.get_mut(&directory.name);
        self.all.entry(directory.pattern).or_default().insert(directory.name);
        Some((span, left?))
    }
}

impl Left {
    /// Takes note of the texts that were made for this directory, and that may be paths.
    fn note_paths(&mut self, node: &mut Node<'_>, sources: &Sources) {
        let paths = &mut self.paths;
        tree::each_text_of(node, &mut |span, text| {
            if text.contains('/') && mentions_directory(span, sources) {
                paths.insert(sources.base(span).join(text.trim_start_matches("unix:")));
            }
        });
    }
}

/// Returns true if the text at a position names the directory.
fn mentions_directory(span: &Range<usize>, sources: &Sources) -> bool {
    let text = sources.text(span);
    text.contains("{host}") || text.contains("{owner}")
}

fn retain(table: &mut Tree<'_>, is_kept: impl Fn(&str) -> bool) {
    let names: Vec<_> = table.iter().map(|(key, _)| tree::name(key).to_owned()).collect();
    names.iter().filter(|name| !is_kept(name)).for_each(|name| drop(table.remove(name.as_str())));
}

/// What clients of a directory that is left out get. The reason is in the log, because it is no
/// business of theirs.
fn respond<'s>(span: &Range<usize>) -> Node<'s> {
    let status = DeValue::parse("503").expect("a number is TOML").into_inner();
    let body = tree::text(span, "503 Service Unavailable: this site cannot be served at present\n");
    tree::table(span, [("status", Spanned::new(span.clone(), status)), ("body", body)])
}

//! Sections for directories, paths and file names, and the order of their merging.

use std::path::{Path, PathBuf};

use super::Cx;
use super::syntax::{Directive, is};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;

/// Maximum number of directories that are searched for `.htaccess`.
const MOST_DIRECTORIES: usize = 20_000;

/// A section that applies to a path and to everything below it.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    /// The directory or the URL path.
    pub path: String,
    pub block: &'a [Directive],
}

/// The part of a site that the section around a directive selects.
#[derive(Clone, Debug)]
pub enum SectionScope {
    Anywhere,
    Directory(String),
    /// The paths below this one.
    Path(String),
}

/// The sections of a virtual host.
pub struct Sections<'a> {
    /// `Directory` sections, the shortest path first.
    pub directories: Vec<Section<'a>>,
    /// `Location` sections, in the order of the file.
    pub locations: Vec<Section<'a>>,
    /// `Files` and `FilesMatch` sections, each with the directory of the section around it.
    pub files: Vec<(&'a Directive, Option<String>)>,
    /// `If`, `ElseIf` and `Else` sections, and sections whose path is a regular expression or has
    /// wildcards.
    pub expressions: Vec<(&'a Directive, SectionScope)>,
    /// The blocks of the main server and of the virtual host, the outermost first.
    pub levels: Vec<&'a [Directive]>,
}

impl<'a> Sections<'a> {
    pub fn new(cx: &Cx<'_>, levels: Vec<&'a [Directive]>) -> Self {
        let mut sections = Self {
            directories: Vec::new(),
            locations: Vec::new(),
            files: Vec::new(),
            expressions: Vec::new(),
            levels: levels.clone(),
        };
        for directive in levels.into_iter().flatten() {
            sections.add(cx, directive, None);
        }
        sections.directories.sort_by_key(|section| section.path.len());
        sections
    }

    /// Adds a section to `directories`, `locations`, `files` or `expressions`. `around` is the
    /// directory of the `Directory` section that contains this section. Ignores other directives.
    fn add(&mut self, cx: &Cx<'_>, directive: &'a Directive, around: Option<&str>) {
        let is_regex = directive.arg(0) == "~";
        let block = directive.inside();
        let is_regex = is_regex || directive.arg(0).contains(['*', '?', '[']);
        if is(directive, "Directory") && !is_regex {
            let path = cx.path(directive.arg(0));
            block.iter().for_each(|inner| self.add(cx, inner, Some(&path)));
            self.directories.push(Section { path, block });
        } else if is(directive, "Location") && !is_regex {
            let path = directive.arg(0).to_owned();
            let is_condition = |inner: &&Directive| is_condition(inner);
            let inner = block.iter().filter(is_condition);
            self.expressions.extend(inner.map(|inner| (inner, SectionScope::Path(path.clone()))));
            self.locations.push(Section { path, block });
        } else if is(directive, "Files") || is(directive, "FilesMatch") {
            self.files.push((directive, around.map(str::to_owned)));
        } else if is_condition(directive)
            || ["Directory", "DirectoryMatch", "Location", "LocationMatch"]
                .iter()
                .any(|name| is(directive, name))
        {
            let place = around
                .map_or(SectionScope::Anywhere, |dir| SectionScope::Directory(dir.to_owned()));
            self.expressions.push((directive, place));
        }
    }

    /// Adds each access file as a section for its directory. Also adds the sections within the
    /// file: `Files`, `FilesMatch`, `If`, `ElseIf` and `Else`.
    pub fn add_htaccess(&mut self, files: &'a [(String, Directive)]) {
        for (path, directive) in files {
            for inner in directive.inside() {
                if is(inner, "Files") || is(inner, "FilesMatch") {
                    self.files.push((inner, Some(path.clone())));
                } else if is_condition(inner) {
                    self.expressions.push((inner, SectionScope::Directory(path.clone())));
                }
            }
            self.directories.push(Section { path: path.clone(), block: directive.inside() });
        }
        self.directories.sort_by_key(|section| section.path.len());
    }

    /// Returns the blocks that apply to a path and to its directory. Later blocks override earlier
    /// ones.
    pub fn layers(&self, url: &str, dir: Option<&str>) -> Vec<&'a [Directive]> {
        let mut layers = self.levels.clone();
        let holds = |section: &&Section<'_>| dir.is_some_and(|dir| is_below(dir, &section.path));
        layers.extend(self.directories.iter().filter(holds).map(|section| section.block));
        let holds = |section: &&Section<'_>| is_below(url, &section.path);
        layers.extend(self.locations.iter().filter(holds).map(|section| section.block));
        layers
    }

    /// Returns true if Apache applies `.htaccess` files in `dir`: the last `AllowOverride` or the
    /// last `AllowOverrideList` for `dir` has another value than `None`.
    pub fn allows_override(&self, dir: &str) -> bool {
        let allows = |name: &str| {
            let named = |section: &Section<'a>| section.block.iter().rfind(|inner| is(inner, name));
            let holding = self.directories.iter().filter(|section| is_below(dir, &section.path));
            let last = holding.filter_map(named).next_back();
            last.is_some_and(|directive| !directive.arg(0).eq_ignore_ascii_case("none"))
        };
        allows("AllowOverride") || allows("AllowOverrideList")
    }

    /// Returns true if `AllowOverride None` holds for `dir` and for all directories below it, so
    /// that Apache reads no `.htaccess` file there.
    pub fn forbids_override(&self, dir: &str) -> bool {
        let about = |line: &&Directive| is(line, "AllowOverride") || is(line, "AllowOverrideList");
        let allows = |line: &Directive| !line.arg(0).eq_ignore_ascii_case("none");
        let within = |section: &&Section<'_>| is_below(&section.path, dir) && section.path != dir;
        let below = self.directories.iter().filter(within).map(|section| section.block);
        let unknown = self.expressions.iter().map(|(section, _)| section.inside());
        let is_named = self
            .directories
            .iter()
            .any(|section| is_below(dir, &section.path) && section.block.iter().any(|d| about(&d)));
        is_named
            && !self.allows_override(dir)
            && !below.chain(unknown).flatten().filter(about).any(allows)
    }
}

fn is_condition(directive: &Directive) -> bool {
    ["If", "ElseIf", "Else"].iter().any(|name| is(directive, name))
}

/// Returns true if `path` is `above`, or below it.
pub fn is_below(path: &str, above: &str) -> bool {
    let above = above.trim_end_matches('/');
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the last directive with this name in the layers.
pub fn last<'a>(layers: &[&'a [Directive]], name: &str) -> Option<&'a Directive> {
    layers.iter().rev().find_map(|layer| layer.iter().rfind(|directive| is(directive, name)))
}

/// Returns all directives with this name in the layers, the outermost first.
pub fn all<'a>(layers: &[&'a [Directive]], name: &str) -> Vec<&'a Directive> {
    layers.iter().copied().flatten().filter(|directive| is(directive, name)).collect()
}

/// Marks the directives with these names, and all lines in their blocks, as read.
pub fn settle(layers: &[&[Directive]], names: &[&str]) {
    let is_named = |directive: &&Directive| names.iter().any(|name| is(directive, name));
    layers.iter().copied().flatten().filter(is_named).for_each(Directive::settle_all);
}

/// The files with access rules below a directory.
pub struct AccessFiles {
    pub found: Vec<PathBuf>,
    /// False if there are too many directories to search.
    pub is_complete: bool,
}

/// Returns the access files in `dir`, in the directories below it, and in the directories above it.
/// `names` are the possible names of an access file, such as `.htaccess`.
pub fn find_access_files(dir: &str, names: &[&str]) -> AccessFiles {
    let top = PathBuf::from(dir);
    let (mut found, mut count) = (Vec::new(), 0);
    let mut add = |dir: &Path| {
        let files = names.iter().map(|name| dir.join(name));
        // Of several access files in one directory, Apache reads only the first.
        found.extend(files.into_iter().find(|file| file.is_file()));
    };
    top.ancestors().skip(1).for_each(&mut add);
    // Keep each directory together with the real directories above it. A symbolic link to one of
    // these directories is ignored, because the search would never end.
    let real = top.canonicalize().unwrap_or_else(|_| top.clone());
    let mut open = vec![(top, vec![real])];
    while let Some((dir, reals)) = open.pop() {
        count += 1;
        if count > MOST_DIRECTORIES {
            return AccessFiles { found, is_complete: false };
        }
        add(&dir);
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                open.push((path, reals.clone()));
            } else if kind.is_symlink()
                && let Ok(real) = path.canonicalize()
                && real.is_dir()
                && !reals.iter().chain(&dir.canonicalize()).any(|dir| dir.starts_with(&real))
            {
                let reals = reals.iter().cloned().chain([real]).collect();
                open.push((path, reals));
            }
        }
    }
    found.sort();
    AccessFiles { found, is_complete: true }
}

/// Returns the URL path of a directory that is `base_dir` or below it. Returns `None` for other
/// directories.
pub fn url_of(dir: &str, base_dir: &str, base_url: &str) -> Option<String> {
    let rest = Path::new(dir).strip_prefix(base_dir).ok()?.to_str()?;
    let base = base_url.trim_end_matches('/');
    Some(if rest.is_empty() { format!("{base}/") } else { format!("{base}/{rest}/") })
}

/// Returns the route for requests that also meet `region`; `None` if there are no such requests.
/// If one route cannot have both conditions, returns a closed route for the whole region.
pub fn narrowed(cx: &mut Cx<'_>, route: DraftRoute, region: &Matcher) -> Option<DraftRoute> {
    if let Some(matcher) = route.matcher.and(region) {
        return Some(DraftRoute { matcher, ..route });
    }
    if !route.matcher.conflicts_with(region) {
        return None;
    }
    let next = "a route cannot have both conditions: write routes for these paths";
    let comment = cx.draft.notes.add(&route.place, &route.source, next);
    Some(DraftRoute { matcher: region.clone(), ..route }.closed(comment))
}

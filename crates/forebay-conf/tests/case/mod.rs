//! The cases of `golden/*.cases`: a few lines of a configuration, and what they give.
//!
//! ```text
//! # A heading, for the cases up to the next one.
//! rate_limit = "0/s"
//! ! 1:14-18 what is wrong [text at the caret] -- the next step
//! expires = "90m"
//! = sites[0].routes[0].expires = Some(5400s)
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The directory that paths in cases are relative to.
pub fn base() -> PathBuf {
    directory().join("base")
}

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// All files with cases, in alphabetical order.
pub fn files() -> Vec<(PathBuf, Vec<Case>)> {
    let entries = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "cases")).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), read(&fs::read_to_string(path).unwrap()))).collect()
}

pub struct Case {
    /// The heading that stands directly above this case, with `# ` and line breaks.
    pub heading: String,
    /// The number of the first line in the file with the cases.
    pub line: usize,
    pub lines: String,
    /// The lines below, each with its mark.
    pub expected: String,
}

/// The keys that answer a request: a route without one is given `respond`.
const ACTIONS: [&str; 10] =
    ["files", "cgi", "fastcgi", "scgi", "uwsgi", "ajp", "proxy", "app", "respond", "redirect"];

impl Case {
    /// The lines of the whole file, each with its number in the case if it is from there.
    ///
    /// Lines that begin with a key are those of a route, or else of a site, if that has such a key,
    /// or else of the whole file. Lines that begin with a route are those of a site. A file without
    /// a site is given one, and a site without a listener or route is given them. A case whose
    /// heading ends in `(whole)` is given nothing.
    pub fn whole(&self) -> Vec<(&str, usize)> {
        let mut whole: Vec<_> = self.lines.split_inclusive('\n').zip(1..).collect();
        if self.heading.ends_with("(whole)\n") {
            return whole;
        }
        const ROUTE: [(&str, usize); 2] = [("[[site.route]]\n", 0), ("respond = \"x\"\n", 0)];
        let keys = self.lines.lines().take_while(|line| !line.starts_with('['));
        let mut keys = keys.filter_map(|line| line.split([' ', '.']).next()).peekable();
        let table = keys.peek().map(|key| table(key));
        if table == Some("Route") {
            let is_answered = keys.any(|key| ACTIONS.contains(&key));
            whole.splice(0..0, ROUTE.into_iter().take(if is_answered { 1 } else { 2 }));
        }
        let has =
            |whole: &[(&str, usize)], start| whole.iter().any(|(line, _)| line.starts_with(start));
        if table == Some("Site") || whole[0].0 == ROUTE[0].0 {
            whole.insert(0, ("[[site]]\n", 0));
        } else if !has(&whole, "[[site]]") && !has(&whole, "[[stream]]") {
            whole.push(("[[site]]\n", 0));
        }
        if let Some(site) = whole.iter().position(|(line, _)| *line == "[[site]]\n") {
            let keys = whole[site + 1..].iter().take_while(|(line, _)| !line.starts_with('['));
            if !keys.into_iter().any(|(line, _)| line.starts_with("listen")) {
                whole.insert(site + 1, ("listen = 8080\n", 0));
            }
            if !has(&whole, "[[site.route]]") {
                whole.extend(ROUTE);
            }
        }
        whole
    }

    pub fn text(&self) -> String {
        self.whole().into_iter().map(|(line, _)| line).collect()
    }
}

/// The table that a key without a table belongs to.
fn table(key: &str) -> &'static str {
    static SCHEMA: LazyLock<serde_json::Value> =
        LazyLock::new(|| serde_json::from_str(&forebay_conf::schema()).unwrap());
    let has = |table: &serde_json::Value| table["properties"].get(key).is_some();
    match (has(&SCHEMA["$defs"]["Route"]), has(&SCHEMA["$defs"]["Site"]), has(&SCHEMA)) {
        (false, true, _) => "Site",
        (false, false, true) => "File",
        _ => "Route",
    }
}

fn read(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut starts = true;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        if let "!" | "=" | "|" = line.get(..1).unwrap_or_default() {
            cases.last_mut().unwrap().expected += line;
            starts = true;
            continue;
        }
        if starts {
            let (heading, lines, expected) = Default::default();
            cases.push(Case { heading, line: number, lines, expected });
            starts = false;
        }
        let case = cases.last_mut().unwrap();
        let is_heading = case.lines.is_empty() && (line == "\n" || line.starts_with('#'));
        if is_heading { case.heading += line } else { case.lines += line }
    }
    cases
}

//! Findings about a complete plan. A finding is shown at its key in the file, like the errors that
//! are found while the file is read.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::error::{ConfError, Directory, Problem};
use crate::left_out::LeftOut;
use crate::merge::AllFilled;
use crate::outside::Outside;
use crate::plan::Plan;
use crate::plan_without;
use crate::tree;
use crate::whole;

/// A finding about a key of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path to the key: the tables from the top, the key, and perhaps an index in a list. If
    /// the file lacks the last parts of the path, the finding is shown at the last part that
    /// exists.
    pub key: Vec<String>,
    /// The problem.
    pub message: String,
    /// The next step for the user.
    pub help: String,
}

impl Plan {
    /// Returns true if the plan was made from a file.
    pub fn has_file(&self) -> bool {
        !self.file.0.files().is_empty()
    }

    /// Returns an error that lists the findings. `findings` must not be empty. If the plan has no
    /// file, the error has only the first finding.
    pub fn refuse(&self, findings: &[Finding]) -> ConfError {
        let sources = &*self.file.0;
        // Assemble the tree again: the plan does not keep it, because findings are rare. Only tables
        // of sites and applications may come from directories, of which there may be thousands.
        let is_made = |finding: &Finding| {
            finding.key.first().is_some_and(|first| first == "site" || first == "app")
        };
        let tree = if findings.iter().any(is_made) {
            let mut left_out = self.left_out.clone();
            let whole = whole::assemble(sources, &mut Outside::default(), &mut left_out);
            whole.map(|(tree, _)| tree)
        } else {
            tree::parse(sources)
        };
        let problem = |finding: &Finding| {
            let span = tree.as_ref().map_or(0..0, |tree| find(tree, &finding.key));
            Problem::new(&span, &finding.message).help(&finding.help)
        };
        let mut problems: Vec<_> = findings.iter().map(problem).collect();
        if self.has_file() {
            ConfError::in_sources(sources, problems)
        } else {
            ConfError::elsewhere(problems.swap_remove(0))
        }
    }

    /// Returns a plan of the same files that leaves out the directories of `hosts_from` and
    /// `users_from` that have these problems. Fails if the configuration is to blame for one of them.
    pub fn without(&self, findings: &[Finding]) -> Result<Self, ConfError> {
        let left_out = self.left_out_with(findings);
        let left_out =
            left_out.map_err(|problems| ConfError::in_sources(&self.file.0, problems))?;
        plan_without((*self.file.0).clone(), left_out)
    }

    /// Returns true if each of the findings concerns only one directory of `hosts_from` or
    /// `users_from`.
    pub fn concern_directories(&self, findings: &[Finding]) -> bool {
        self.left_out_with(findings).is_ok()
    }

    fn left_out_with(&self, findings: &[Finding]) -> Result<LeftOut, Vec<Problem>> {
        let (sources, mut left_out) = (&*self.file.0, self.left_out.clone());
        let (tree, filled) = whole::assemble(sources, &mut Outside::default(), &mut left_out)?;
        let problem = |finding: &Finding| {
            let problem = Problem::new(&find(&tree, &finding.key), &finding.message);
            let problem = problem.help(&finding.help).about_disk();
            match directory_of(&filled, &finding.key) {
                Some(directory) => problem.in_directory(directory),
                None => problem,
            }
        };
        left_out.add(findings.iter().map(problem).collect(), sources)?;
        Ok(left_out)
    }

    /// Returns a warning that lists the findings, and the directories that are left out. `None`:
    /// there are none.
    pub fn warnings(&self, findings: &[Finding]) -> Option<ConfError> {
        let found = (!findings.is_empty()).then(|| self.warn(findings));
        match (found, self.left_out.warning(&self.file.0)) {
            (Some(found), Some(left_out)) => Some(left_out.and(found)),
            (found, left_out) => found.or(left_out),
        }
    }

    /// Returns a warning that lists the findings. `findings` must not be empty.
    pub fn warn(&self, findings: &[Finding]) -> ConfError {
        self.refuse(findings).warning()
    }
}

/// The directory of the table that has a key.
fn directory_of<'a>(filled: &'a AllFilled, key: &[String]) -> Option<&'a Directory> {
    let number = |at: usize| key.get(at)?.parse().ok();
    match key.first()?.as_str() {
        "app" => filled.app_directories.get(key.get(1)?),
        "site" => {
            let site = number(1)?;
            let of_route = number(3).and_then(|at| filled.route_directories.get(&(site, at)));
            filled.site_directories.get(&site).or(of_route)
        }
        _ => None,
    }
}

/// Returns the position of the value at the path `key`. If the value does not exist, returns the
/// position of the last table or item on the path that exists. Returns `0..0` if `table` does not
/// have the first part of the path.
fn find(table: &DeTable<'_>, key: &[String]) -> Range<usize> {
    let Some((first, rest)) = key.split_first() else { return 0..0 };
    let Some(mut value) = table.get(first.as_str()) else { return 0..0 };
    for part in rest {
        let next = match value.get_ref() {
            DeValue::Table(table) => table.get(part.as_str()),
            DeValue::Array(items) => part.parse().ok().and_then(|at: usize| items.get(at)),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => break,
        }
    }
    value.span()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[site]]\nlisten = 80\n[[site.route]]\napp = \"x\"\n\n[app.x]\n\
                        kind = \"command\"\nrun = [\"nosuch\", \"{socket}\"]\nspeaks = \"http\"\n";

    fn finding(key: &[&str]) -> Finding {
        let key = key.iter().map(|part| part.to_string()).collect();
        Finding { key, message: "what".into(), help: "advice".into() }
    }

    #[test]
    fn a_finding_is_shown_where_its_key_is() {
        let plan = crate::parse(TEXT, "a.toml", std::path::Path::new("/")).unwrap();
        for (key, place) in [
            (&["app", "x", "run", "0"][..], "a.toml:8:8"),
            (&["app", "x", "run", "7"], "a.toml:8:7"),
            (&["app", "x", "user"], "a.toml:6:1"),
            (&["app", "x"], "a.toml:6:1"),
        ] {
            let shown = plan.refuse(&[finding(key)]).plain();
            assert!(shown.contains(place), "{key:?}\n{shown}");
            assert!(shown.starts_with("  x what") && shown.contains("help: advice"), "{shown}");
        }
        let shown = plan.warn(&[finding(&["app"])]).plain();
        assert!(shown.starts_with("  ! what"), "{shown}");
    }

    #[test]
    fn a_plan_without_a_file_has_no_places() {
        let listen = crate::Listen::parse("127.0.0.1:0").unwrap();
        let plan = Plan::for_directory(std::path::Path::new("/"), listen).unwrap();
        let shown = plan.refuse(&[finding(&["app", "x"])]).plain();
        assert!(shown.contains("what") && !shown.contains(":1:1"), "{shown}");
    }
}

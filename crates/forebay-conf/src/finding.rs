//! Findings about a complete plan. A finding is shown at its key in the file, like the errors that
//! are found while the file is read.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::error::{ConfError, Problem};
use crate::outside::Outside;
use crate::plan::Plan;
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
        // Assemble the tree again: the plan does not keep it, because findings are rare.
        let tree = whole::assemble(sources, &mut Outside::default()).ok();
        let problem = |finding: &Finding| {
            let span = tree.as_ref().map_or(0..0, |(tree, _)| find(tree, &finding.key));
            Problem::new(&span, &finding.message).help(&finding.help)
        };
        let mut problems: Vec<_> = findings.iter().map(problem).collect();
        if self.has_file() {
            ConfError::in_sources(sources, problems)
        } else {
            ConfError::elsewhere(problems.swap_remove(0))
        }
    }

    /// Returns a warning that lists the findings. `findings` must not be empty.
    pub fn warn(&self, findings: &[Finding]) -> ConfError {
        self.refuse(findings).warning()
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

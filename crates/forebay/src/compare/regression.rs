//! Regressions of an experiment, for use in continuous integration.

use std::fmt::Write;

use forebay_lab::{Experiment, Row, Verdict, rows};

/// Problems of the configurations.
pub struct Regressions {
    title: String,
    /// Name and problem of each configuration.
    cases: Vec<(String, Option<String>)>,
    slower: bool,
}

impl Regressions {
    /// Checks each row. A configuration that is slower by more than `threshold` is a regression.
    pub fn find(experiment: &Experiment, threshold: Option<f64>) -> Self {
        let rows = rows(experiment);
        let slower: Vec<Option<String>> = rows.iter().map(|row| slower(row, threshold)).collect();
        let is_slower = slower.iter().any(Option::is_some);
        let failed = experiment.results.iter().map(|results| {
            let failed = results.trials.iter().find(|trial| trial.failed)?;
            failed.void.clone()
        });
        let cases = rows.into_iter().zip(slower).zip(failed);
        let cases = cases.map(|((row, slower), failed)| (row.name, failed.or(slower)));
        Self { title: experiment.plan.title.clone(), cases: cases.collect(), slower: is_slower }
    }

    /// Returns true if a configuration is slower than allowed.
    pub fn are_any(&self) -> bool {
        self.slower
    }

    /// Returns a test case per configuration as JUnit XML.
    pub fn junit(&self) -> String {
        let failures = self.cases.iter().filter(|(_, wrong)| wrong.is_some()).count();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" \
             failures=\"{failures}\">\n",
            escaped(&self.title),
            self.cases.len()
        );
        for (name, wrong) in &self.cases {
            let name = escaped(name);
            // Writing to a string does not fail.
            let _ = match wrong {
                None => {
                    writeln!(out, "  <testcase classname=\"forebay.compare\" name=\"{name}\"/>")
                }
                Some(wrong) => writeln!(
                    out,
                    "  <testcase classname=\"forebay.compare\" name=\"{name}\">\n    \
                     <failure message=\"{}\"/>\n  </testcase>",
                    escaped(wrong)
                ),
            };
        }
        out + "</testsuite>\n"
    }

    /// Prints the problems to standard error, as annotations on GitHub's runner.
    pub fn print(&self) {
        let on_github = std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
        for (name, wrong) in &self.cases {
            let Some(wrong) = wrong else { continue };
            if on_github {
                super::print_stderr(format_args!(
                    "::error title=forebay compare::{}",
                    annotation(&format!("{name}: {wrong}"))
                ));
            } else if self.slower {
                super::print_stderr(format_args!("{name}: {wrong}"));
            }
        }
    }
}

fn slower(row: &Row, threshold: Option<f64>) -> Option<String> {
    let (ratio, threshold) = (row.ratio.as_ref()?, threshold?);
    let is_slower = ratio.verdict() == Verdict::Slower && ratio.mean < 1.0 - threshold;
    is_slower.then(|| {
        let [low, high] = ratio.ci95.map(|factor| (1.0 - factor) * 100.0);
        format!(
            "slower than {} by {:.1} % (95 % interval {high:.1} % to {low:.1} %), more than \
             the {:.1} % allowed",
            row.reference.as_deref().unwrap_or("the baseline"),
            (1.0 - ratio.mean) * 100.0,
            threshold * 100.0
        )
    })
}

/// Escapes text for an attribute. Control characters are not allowed in XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

/// Escapes the text of a workflow command, which ends at the end of its line.
fn annotation(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn junit_has_a_case_for_each_configuration() {
        let cases = vec![
            ("a".to_owned(), None),
            ("b <\"&".to_owned(), Some("the server\nwas gone".to_owned())),
        ];
        let xml = Regressions { title: "T".to_owned(), cases, slower: false }.junit();
        let document = roxmltree::Document::parse(&xml).unwrap();
        let suite = document.root_element();
        assert_eq!((suite.attribute("tests"), suite.attribute("failures")), (Some("2"), Some("1")));
        let names: Vec<_> = suite.children().filter_map(|case| case.attribute("name")).collect();
        assert_eq!(names, ["a", "b <\"&"]);
        let failure = document.descendants().find(|node| node.has_tag_name("failure")).unwrap();
        assert_eq!(failure.attribute("message"), Some("the server was gone"));
    }

    #[test]
    fn an_annotation_stays_on_its_line() {
        assert_eq!(annotation("5 %\n::error::x"), "5 %25%0A::error::x");
    }
}

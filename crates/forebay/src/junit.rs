//! JUnit XML, which build servers read.

use std::fmt::Write;

/// Decision about one test case.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Fine,
    /// The case failed, for example because a server gave wrong replies or is slower than allowed.
    /// The text describes the problem.
    Problem(String),
    /// The measurement cannot decide. The text describes what would help.
    Undecided(String),
}

/// Returns the XML of a suite of named cases. An undecided case becomes an `error` element.
pub fn suite(class: &str, title: &str, cases: &[(String, Decision)]) -> String {
    let count = |is_counted: fn(&Decision) -> bool| {
        cases.iter().filter(|(_, decision)| is_counted(decision)).count()
    };
    let failures = count(|decision| matches!(decision, Decision::Problem(_)));
    let errors = count(|decision| matches!(decision, Decision::Undecided(_)));
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" \
         failures=\"{failures}\" errors=\"{errors}\">\n",
        escaped(title),
        cases.len()
    );
    for (name, decision) in cases {
        let name = escaped(name);
        // Writing to a string does not fail.
        let _ = write!(out, "  <testcase classname=\"{class}\" name=\"{name}\"");
        let _ = match decision {
            Decision::Fine => writeln!(out, "/>"),
            Decision::Problem(why) => {
                writeln!(out, ">\n    <failure message=\"{}\"/>\n  </testcase>", escaped(why))
            }
            Decision::Undecided(why) => {
                writeln!(out, ">\n    <error message=\"{}\"/>\n  </testcase>", escaped(why))
            }
        };
    }
    out + "</testsuite>\n"
}

/// Escapes text for an XML attribute. Replaces control characters, U+FFFE and U+FFFF, because XML
/// forbids most of them.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

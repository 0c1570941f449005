//! Errors: the problem, its position in the file, and the next step.

mod show;

use std::fmt;
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Arc;

use miette::{GraphicalReportHandler, GraphicalTheme, Severity};

use show::{Shown, Source, fill, on_one_line, visible};

/// The problems that refuse a configuration, or the doubts about it. At least one.
///
/// `Display` writes the whole diagnostic, with file, line, caret and help, and ends in a line
/// break. It uses colour only if standard error is a terminal and `NO_COLOR` is not set.
#[derive(Clone)]
pub struct ConfError {
    source: Option<Arc<Source>>,
    problems: Vec<Problem>,
    severity: Severity,
}

impl ConfError {
    /// Returns an error for problems in a text, in the order of the text. There must be at least
    /// one.
    pub(crate) fn in_text(text: &str, name: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.0.span.start);
        for Problem(details) in &mut problems {
            details.span = on_one_line(text, &details.span);
            if let Some((span, _)) = &mut details.also {
                *span = on_one_line(text, span);
            }
        }
        let source = Some(Arc::new(Source::new(text, name)));
        Self { source, problems, severity: Severity::Error }
    }

    /// Returns an error for a problem that is not in a text.
    pub(crate) fn elsewhere(problem: Problem) -> Self {
        Self { source: None, problems: vec![problem], severity: Severity::Error }
    }

    /// Turns the error into a warning.
    pub(crate) fn warning(self) -> Self {
        Self { severity: Severity::Warning, ..self }
    }

    /// Returns the diagnostic in ASCII without colour, even if standard error is a terminal.
    pub fn plain(&self) -> String {
        self.render(GraphicalTheme::none())
    }

    /// Returns the message of each problem, without position and help.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(|problem| problem.0.message.as_str())
    }

    fn render(&self, theme: GraphicalTheme) -> String {
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_wrap_lines(false)
            .with_links(false)
            .without_cause_chain()
            .without_syntax_highlighting();
        let mut reports = Vec::new();
        for Problem(details) in self.problems.iter().take(MOST_SHOWN) {
            let source = self.source.as_deref();
            let shown = Shown { details, source, severity: self.severity };
            let mut report = String::new();
            if handler.render_report(&mut report, &shown).is_err() {
                report = format!("{}\n", details.message);
            }
            reports.push(report);
        }
        if self.problems.len() > MOST_SHOWN {
            reports.push(format!("... and {} more\n", self.problems.len() - MOST_SHOWN));
        }
        reports.join("\n")
    }
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terminal = std::io::stderr().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        f.write_str(&self.render(match (terminal, no_colour) {
            (false, _) => GraphicalTheme::none(),
            (true, true) => GraphicalTheme::unicode_nocolor(),
            (true, false) => GraphicalTheme::unicode(),
        }))
    }
}

impl fmt::Debug for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plain())
    }
}

impl std::error::Error for ConfError {}

/// A problem. Boxed, because it travels in every `Result` of this crate.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    message: String,
    /// The byte range in the text.
    span: Range<usize>,
    /// The text below the caret.
    label: String,
    /// The next step for the user.
    help: Option<String>,
    /// A related position, and its text.
    also: Option<(Range<usize>, String)>,
}

impl Problem {
    /// Returns a problem at a position. The caret says "here" until [`Self::label`] sets another
    /// text.
    pub fn new(span: &Range<usize>, message: impl AsRef<str>) -> Self {
        Self(Box::new(Details {
            message: visible(message.as_ref()),
            span: span.clone(),
            label: "here".into(),
            help: None,
            also: None,
        }))
    }

    /// Returns a problem without a position in a text.
    pub fn nowhere(message: impl AsRef<str>) -> Self {
        Self::new(&(0..0), message)
    }

    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.0.label = visible(label.as_ref());
        self
    }

    pub fn help(mut self, help: impl AsRef<str>) -> Self {
        self.0.help = Some(fill(&visible(help.as_ref())));
        self
    }

    pub fn also(mut self, span: &Range<usize>, label: impl AsRef<str>) -> Self {
        self.0.also = Some((span.clone(), visible(label.as_ref())));
        self
    }
}

/// The number of problems that are shown. The rest is only counted.
const MOST_SHOWN: usize = 10;

/// Returns the system's error text without the number that Rust adds.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

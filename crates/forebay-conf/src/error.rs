//! Errors: what is wrong, where it was typed, and what to do next.

mod show;

use std::fmt;
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Arc;

use miette::{GraphicalReportHandler, GraphicalTheme, Severity};

use show::{Shown, Source, fill, on_one_line, visible};

/// Why a configuration was refused, or what is doubtful about it: one problem or more.
///
/// `Display` is the whole diagnostic, with file, line, caret and help, and ends in a line break;
/// in colour only where standard error is a terminal and `NO_COLOR` is not set.
#[derive(Clone)]
pub struct ConfError {
    source: Option<Arc<Source>>,
    problems: Vec<Problem>,
    severity: Severity,
}

impl ConfError {
    /// Problems in a text, in the order of the text. There must be at least one.
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

    /// A problem that is not in a text.
    pub(crate) fn elsewhere(problem: Problem) -> Self {
        Self { source: None, problems: vec![problem], severity: Severity::Error }
    }

    /// The same, to be taken note of only.
    pub(crate) fn warning(self) -> Self {
        Self { severity: Severity::Warning, ..self }
    }

    /// The diagnostic in ASCII, without colour, whatever standard error is.
    pub fn plain(&self) -> String {
        self.render(GraphicalTheme::none())
    }

    /// What is wrong, one text per problem, without the place and the help.
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

/// One thing that is wrong. Boxed, because it travels in every `Result` of this crate.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    message: String,
    /// Bytes of the text.
    span: Range<usize>,
    /// What is said below the caret.
    label: String,
    /// What to do next.
    help: Option<String>,
    /// Another place that has to do with it, and what.
    also: Option<(Range<usize>, String)>,
}

impl Problem {
    /// A problem at a place. The caret says "here" until [`Self::label`] says better.
    pub fn new(span: &Range<usize>, message: impl AsRef<str>) -> Self {
        Self(Box::new(Details {
            message: visible(message.as_ref()),
            span: span.clone(),
            label: "here".into(),
            help: None,
            also: None,
        }))
    }

    /// A problem that has no place in a text.
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

/// Problems shown before the rest is only counted.
const MOST_SHOWN: usize = 10;

/// What the system says, without the number it adds.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

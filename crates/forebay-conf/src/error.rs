//! Errors of a configuration: each has the problem, its position in the file, and the next step for
//! the user.

mod show;

use std::collections::HashMap;
use std::fmt;
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Arc;

use miette::{GraphicalReportHandler, GraphicalTheme, Severity};

use crate::source::Sources;
use show::{Excerpt, Shown, fill, on_one_line, visible};

/// A list of errors in a configuration, or a list of warnings. The list is never empty.
///
/// `Display` writes the whole diagnostic, with file, line, caret and help, and ends in a line
/// break. It uses colour only if standard error is a terminal and `NO_COLOR` is not set.
#[derive(Clone)]
pub struct ConfError {
    problems: Vec<Problem>,
    severity: Severity,
}

impl ConfError {
    /// Returns an error for problems in the files of the configuration, sorted by position.
    /// `problems` must not be empty. A problem with a key that several routes share is shown only
    /// once.
    pub(crate) fn in_sources(sources: &Sources, problems: Vec<Problem>) -> Self {
        let mut problems: Vec<_> = problems.into_iter().flat_map(Problem::apart).collect();
        debug_assert!(!problems.is_empty(), "an error says what is wrong");
        problems.sort_by_key(|problem| problem.0.span.start);
        problems.dedup_by(|a, b| a.0.span == b.0.span && a.0.message == b.0.message);
        let mut excerpts: HashMap<usize, Arc<Excerpt>> = HashMap::new();
        for Problem(details) in &mut problems {
            details.hide(sources);
            if details.source.is_some() {
                continue;
            }
            let number = sources.number_at(details.span.start);
            let source = &sources.files()[number];
            let local = |span: &Range<usize>| {
                let local = span.start - source.start..span.end.max(span.start) - source.start;
                on_one_line(&source.text, &local)
            };
            details.span = local(&details.span);
            match details.also.take() {
                Some((span, label)) if sources.number_at(span.start) == number => {
                    details.also = Some((local(&span), label));
                }
                Some((span, label)) => {
                    let place = (&sources.at(span.start).name, sources.line(span.start));
                    let there = visible(&format!("{label}: {}:{}", place.0, place.1));
                    let help = details.help.take().map(|help| format!("\n{help}"));
                    details.help = Some(there + &help.unwrap_or_default());
                }
                None => {}
            }
            let excerpt = excerpts
                .entry(number)
                .or_insert_with(|| Arc::new(Excerpt::new(&source.text, &source.name)));
            details.source = Some(excerpt.clone());
        }
        Self { problems, severity: Severity::Error }
    }

    /// Returns an error for a problem that has no position in the files of the configuration.
    pub(crate) fn elsewhere(problem: Problem) -> Self {
        Self { problems: vec![problem], severity: Severity::Error }
    }

    /// Adds the problems of another error to this one.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.problems.extend(other.problems);
        self
    }

    /// Turns the error into a warning.
    pub(crate) fn warning(self) -> Self {
        Self { severity: Severity::Warning, ..self }
    }

    /// Returns the diagnostic in ASCII without colour, even if standard error is a terminal.
    pub fn plain(&self) -> String {
        self.render(GraphicalTheme::none())
    }

    /// The message of each problem, without position and help.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(|problem| problem.0.message.as_str())
    }

    /// The labels of each problem, with the line and the columns that each is about, and the help
    /// without line breaks.
    pub fn labels(&self) -> impl Iterator<Item = (Vec<Label<'_>>, String)> {
        self.problems.iter().map(|Problem(details)| {
            let main = (&details.span, details.label.as_str());
            let also = details.also.as_ref().map(|(span, label)| (span, label.as_str()));
            let mut labels = Vec::new();
            for (span, text) in std::iter::once(main).chain(also) {
                if let Some(source) = &details.source {
                    let (line, columns) = source.place(span);
                    labels.push(Label { line, columns, text });
                }
            }
            (labels, details.help.as_deref().unwrap_or_default().replace('\n', " "))
        })
    }

    /// Returns all problems as text. Problems after the first `MOST_SHOWN` are only counted.
    fn render(&self, theme: GraphicalTheme) -> String {
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_wrap_lines(false)
            .with_links(false)
            .without_cause_chain()
            .without_syntax_highlighting();
        let mut reports = Vec::new();
        for Problem(details) in self.problems.iter().take(MOST_SHOWN) {
            let shown = Shown { details, severity: self.severity };
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

/// A text about some columns of a line. Both count from 1.
pub struct Label<'a> {
    pub line: usize,
    pub columns: Range<usize>,
    pub text: &'a str,
}

/// A problem. The details are boxed, because every `Result` of this crate can contain a problem.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    message: String,
    /// The byte range of the problem: in `source` if that is set, else in the texts of all
    /// configuration files, one after the other.
    span: Range<usize>,
    /// The excerpt that is shown.
    source: Option<Arc<Excerpt>>,
    /// The text below the caret.
    label: String,
    /// The next step for the user.
    help: Option<String>,
    /// A related position, and the text that is shown at it.
    also: Option<(Range<usize>, String)>,
    /// Further problems of the same table.
    more: Vec<Problem>,
    /// True if a key is missing in a table that need not be whole, or has a problem of its own. The
    /// table then has no value, which is no problem.
    is_not_whole: bool,
    /// True for an unknown key and for a value of a wrong type.
    is_about_form: bool,
    /// True if enough other problems were explained.
    is_unexplained: bool,
    /// The directory of `hosts_from` or `users_from` whose table has the problem.
    directory: Option<Directory>,
    /// True if something on this machine must change, and not the configuration.
    is_about_disk: bool,
}

/// The key of a table's directory. Its value has the position of the pattern.
pub(crate) const MARK: &str = "\0directory";

/// The directory of `hosts_from` or `users_from` that a table was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    /// A host, or `~` and a user.
    pub name: String,
    /// The start of the pattern.
    pub pattern: usize,
}

impl Problem {
    /// Returns a problem at a position. The text below the caret is "here", until [`Self::label`]
    /// sets another text.
    pub fn new(span: &Range<usize>, message: impl AsRef<str>) -> Self {
        Self(Box::new(Details {
            message: visible(message.as_ref()),
            span: span.clone(),
            source: None,
            label: "here".into(),
            help: None,
            also: None,
            more: Vec::new(),
            is_not_whole: false,
            is_about_form: false,
            is_unexplained: false,
            directory: None,
            is_about_disk: false,
        }))
    }

    /// Returns the outcome of a table that lacks a key but need not be whole.
    pub fn not_whole() -> Self {
        let mut problem = Self::nowhere("");
        problem.0.is_not_whole = true;
        problem
    }

    /// Returns the problem of an unknown key after enough others were explained.
    pub fn unexplained() -> Self {
        let mut problem = Self::nowhere("").about_form();
        problem.0.is_unexplained = true;
        problem
    }

    pub fn is_not_whole(&self) -> bool {
        self.0.is_not_whole
    }

    /// Marks a problem with the form of a table: what the table means is then unknown.
    pub fn about_form(mut self) -> Self {
        self.0.is_about_form = true;
        self
    }

    /// Returns true if one of the problems is about the form.
    pub fn is_about_form(&self) -> bool {
        self.0.is_about_form || self.0.more.iter().any(Self::is_about_form)
    }

    /// Sets the directory of this problem and of those that came with it.
    pub fn in_directory(mut self, directory: &Directory) -> Self {
        self.0.directory.get_or_insert_with(|| directory.clone());
        self.0.more = self.0.more.into_iter().map(|one| one.in_directory(directory)).collect();
        self
    }

    pub fn directory(&self) -> Option<&Directory> {
        self.0.directory.as_ref()
    }

    /// Marks a problem that something on this machine has.
    pub fn about_disk(mut self) -> Self {
        self.0.is_about_disk = true;
        self
    }

    pub fn is_about_disk(&self) -> bool {
        self.0.is_about_disk
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn with_message(mut self, message: &str) -> Self {
        self.0.message = visible(message);
        self
    }

    /// The next step for the user, without line breaks.
    pub fn help_on_one_line(&self) -> String {
        self.0.help.as_deref().unwrap_or_default().replace('\n', " ")
    }

    /// The position: in the configuration, unless [`Self::in_other`] has set another file.
    pub fn span(&self) -> &Range<usize> {
        &self.0.span
    }

    /// Returns several problems as one. `None`: there are none.
    pub fn all(mut problems: Vec<Self>) -> Option<Self> {
        problems.sort_by_key(|problem| problem.0.is_not_whole);
        let real = problems.iter().filter(|problem| !problem.0.is_not_whole).count();
        problems.truncate(real.max(1));
        let more = problems.split_off(problems.len().min(1));
        let mut first = problems.pop()?;
        first.0.more.extend(more);
        Some(first)
    }

    /// Returns this problem and those that came with it.
    pub fn apart(mut self) -> Vec<Self> {
        let more = std::mem::take(&mut self.0.more);
        let is_shown = |one: &Self| !one.0.is_not_whole && !one.0.is_unexplained;
        let own = Some(self).filter(is_shown);
        own.into_iter().chain(more.into_iter().flat_map(Self::apart)).collect()
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

    /// Moves the position by `by`. Before this call, the position counts from the start of one
    /// file. Afterwards, it counts from the start of all texts in [`Sources`].
    pub fn moved(mut self, by: usize) -> Self {
        self.0.span = self.0.span.start + by..self.0.span.end + by;
        self
    }

    /// Sets the file of the problem, for a file that is not in `Sources`. `name` is the file's
    /// name, and `text` its content. The position of the problem must be a position in `text`.
    pub fn in_other(mut self, name: &str, text: &str) -> Self {
        self.0.span = on_one_line(text, &self.0.span);
        self.0.source = Some(Arc::new(Excerpt::new(text, name)));
        self
    }
}

impl Details {
    /// Replaces values from the environment and from files with their placeholders.
    fn hide(&mut self, sources: &Sources) {
        if sources.secrets.is_empty() {
            return;
        }
        let is_outside = sources.from_outside.contains(&self.span.start);
        let hide = |text: &str| {
            if is_outside { sources.hide_parts(&sources.hide(text)) } else { sources.hide(text) }
        };
        self.message = hide(&self.message);
        self.label = hide(&self.label);
        // `fill` may have broken a value into two lines, so that `hide` would not find it. So
        // remove the line breaks first.
        self.help = self.help.take().map(|help| fill(&hide(&help.replace('\n', " "))));
    }
}

/// The largest number of problems that are shown. Further problems are only counted.
const MOST_SHOWN: usize = 10;

/// Returns the system's error text without the number that Rust adds.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// Returns what to do about a file that could not be read.
pub fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "correct the path",
        std::io::ErrorKind::PermissionDenied => {
            "make it readable for the user that Forebay runs as"
        }
        // The reason says it, as for a link that root does not follow.
        std::io::ErrorKind::Other => "mend that, or name another file",
        _ => "name another file",
    }
}

//! What is wrong with an experiment file: where, why, and what to do about it.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
};

/// A refused experiment file. `Display` shows the line with a caret under the place, in colour only
/// where standard error is a terminal and `NO_COLOR` is not set.
pub struct Problem {
    message: String,
    help: Option<String>,
    source: Option<Box<Place>>,
}

struct Place {
    text: NamedSource<String>,
    span: std::ops::Range<usize>,
}

impl Problem {
    /// A problem at a place in the file `text` read from `path`.
    pub fn at(
        path: &Path,
        text: &str,
        span: std::ops::Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let source = NamedSource::new(path.display().to_string(), harmless(text));
        let span = on_one_line(text, span);
        Self {
            message: message.into(),
            help: Some(help.into()).filter(|help| !help.is_empty()),
            source: Some(Box::new(Place { text: source, span })),
        }
    }

    /// A problem with no line to point at, such as a file that cannot be read.
    pub fn whole(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: Some(help.into()), source: None }
    }

    /// The message in ASCII, without colour, whatever standard error is.
    pub fn plain(&self) -> String {
        self.render(GraphicalTheme::none())
    }

    fn render(&self, theme: GraphicalTheme) -> String {
        let handler = GraphicalReportHandler::new_themed(theme)
            .with_wrap_lines(false)
            .with_links(false)
            .without_syntax_highlighting();
        let mut report = String::new();
        match handler.render_report(&mut report, &Shown(self)) {
            Ok(()) => report,
            Err(_) => format!("{}\n", self.message),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terminal = std::io::stderr().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let theme = match (terminal, no_colour) {
            (false, _) => GraphicalTheme::none(),
            (true, true) => GraphicalTheme::unicode_nocolor(),
            (true, false) => GraphicalTheme::unicode(),
        };
        out.write_str(&self.render(theme))
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.plain())
    }
}

impl std::error::Error for Problem {}

/// Cuts a span at the end of its first line: a caret under one line says more than a box.
fn on_one_line(text: &str, span: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = span.start.min(text.len());
    let end = span.end.clamp(start, text.len());
    let line_end = text.as_bytes()[start..end].iter().position(|&byte| byte == b'\n');
    start..line_end.map_or(end, |length| start + length)
}

/// The text with what could command a terminal blanked out, byte for byte.
fn harmless(text: &str) -> String {
    let commands = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match commands(character) {
            true => shown.extend(std::iter::repeat_n('?', character.len_utf8())),
            false => shown.push(character),
        }
    }
    shown
}

/// What miette renders; its `Display` is the bare message.
struct Shown<'a>(&'a Problem);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.message)
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<Severity> {
        Some(Severity::Error)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.0.help.as_deref()?;
        Some(Box::new(help))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.0.source.as_ref().map(|place| &place.text as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.0.source.as_ref()?.span.clone();
        Some(Box::new(std::iter::once(LabeledSpan::underline(span))))
    }
}

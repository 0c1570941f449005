//! Error in an experiment file: a message, its position in the file, and advice.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
};

/// Error for a rejected experiment file. `Display` shows the line with a caret below the position.
/// Colours are used only if standard error is a terminal and `NO_COLOR` is unset or empty.
pub struct Problem {
    message: String,
    help: Option<String>,
    source: Option<Box<Position>>,
}

struct Position {
    text: NamedSource<String>,
    span: std::ops::Range<usize>,
}

impl Problem {
    /// Creates a problem at a byte range of `text`, the content of `path`. Only the first line of
    /// the range is marked.
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
            source: Some(Box::new(Position { text: source, span })),
        }
    }

    /// Creates a problem without a position, such as a file that cannot be read.
    pub fn whole(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: Some(help.into()), source: None }
    }

    /// Returns the message in ASCII without colours.
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

/// Shortens a span to its first line, because a caret below one line is clearer than a box around
/// several.
fn on_one_line(text: &str, span: std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = span.start.min(text.len());
    let end = span.end.clamp(start, text.len());
    let line_end = text.as_bytes()[start..end].iter().position(|&byte| byte == b'\n');
    start..line_end.map_or(end, |length| start + length)
}

/// Replaces control characters, which a terminal could execute as commands. All byte positions stay
/// valid.
fn harmless(text: &str) -> String {
    let commands = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if commands(character) {
            shown.extend(std::iter::repeat_n('?', character.len_utf8()));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Problem in the form that miette renders. Its `Display` is only the message.
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

//! What is wrong with an experiment file: where, why, and what to do about it.

use std::fmt;
use std::path::Path;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, Severity,
};

/// A refused experiment file. `Display` shows the line with a caret under the place.
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
        let source = NamedSource::new(path.display().to_string(), text.to_owned());
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
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
            .with_width(100)
            .with_context_lines(1);
        handler.render_report(out, &Shown(self))
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
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

//! The access logs and the error log.

use std::path::PathBuf;

/// The access logs, and the settings of the error log. The error log always goes to standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The destination of the log.
    pub access: AccessLog,
    /// The format of its lines.
    pub format: Format,
    /// The least severe level of messages in the error log.
    pub level: Level,
    /// The form of messages in the error log.
    pub error_format: ErrorFormat,
    /// Other access logs, of sites and routes. No two of them are equal, and none is off.
    pub others: Vec<LogFile>,
}

/// An access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// The destination of the log.
    pub access: AccessLog,
    /// The format of its lines.
    pub format: Format,
}

impl Log {
    /// Returns all access logs. The log of `[log]` is the first.
    pub fn files(&self) -> impl Iterator<Item = LogFile> + '_ {
        let first = LogFile { access: self.access.clone(), format: self.format.clone() };
        std::iter::once(first).chain(self.others.iter().cloned())
    }
}

/// Level of a message in the error log. Less severe levels are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A failure that needs the administrator.
    Error,
    /// A fault of a backend or application.
    Warn,
    /// A change of state, or a fault of a client. The default.
    #[default]
    Info,
    /// A step that helps to find a mistake.
    Debug,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// Form of messages in the error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorFormat {
    /// Lines of text. The default.
    #[default]
    Text,
    /// A JSON object for each line.
    Json,
}

/// The destination of an access log, which has one line for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No access log. The default.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file. Forebay appends lines to it. Its directory existed when the configuration was
    /// loaded.
    Path(PathBuf),
}

/// The format of a line of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// NCSA common log format.
    Common,
    /// The common format, with referrer and user agent. The default.
    #[default]
    Combined,
    /// One JSON object per line.
    Json,
    /// A pattern of Apache's `%` directives, with at least one `%` and no line break.
    Pattern(String),
}

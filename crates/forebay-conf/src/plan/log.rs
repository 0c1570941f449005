//! The access logs and the error log.

use std::path::PathBuf;

/// The access log. Errors always go to standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The destination of the log.
    pub access: AccessLog,
    /// The format of its lines.
    pub format: Format,
    /// The last level of messages in the error log.
    pub level: Level,
    /// The form of messages in the error log.
    pub error_format: ErrorFormat,
    /// Other access logs, of sites and routes. No two are equal, and each is on.
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
    /// Returns all access logs, that of `[log]` first.
    pub fn files(&self) -> impl Iterator<Item = LogFile> + '_ {
        let first = LogFile { access: self.access.clone(), format: self.format.clone() };
        std::iter::once(first).chain(self.others.iter().cloned())
    }
}

/// Level of a message in the error log. The number grows with the detail.
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

/// The destination of the access log, which has one line for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No access log. The default.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file, appended to; its directory exists.
    Path(PathBuf),
}

/// The format of a line of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// NCSA common log format.
    Common,
    /// Common with referrer and user agent. The default.
    #[default]
    Combined,
    /// One JSON object per line.
    Json,
    /// Apache's `%` directives; holds at least one `%` and no line break.
    Pattern(String),
}

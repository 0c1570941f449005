//! Findings and their severity.

/// Severity of a finding. The number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok = 0,
    /// Forebay works, but is limited.
    Warning = 1,
    /// Forebay does not start, or clients are refused.
    Error = 2,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A fact about the machine or the site.
pub struct Finding {
    pub level: Level,
    pub topic: &'static str,
    pub message: String,
    /// A command, or a change of the configuration, that removes the problem.
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(topic: &'static str, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, topic, message: message.into(), mend: None }
    }

    pub fn warning(
        topic: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, topic, message: message.into(), mend: Some(mend.into()) }
    }

    pub fn error(topic: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { level: Level::Error, topic, message: message.into(), mend: Some(mend.into()) }
    }
}

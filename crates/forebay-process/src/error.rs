//! Why an application could not be started.

use std::fmt;

/// The application could not be started. The message says what was seen and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    app: String,
    key: &'static [&'static str],
    what: String,
    help: String,
}

impl StartError {
    /// `what` was seen of the application `app`.
    pub fn new(app: &str, what: impl Into<String>) -> StartError {
        StartError { app: app.to_owned(), key: &[], what: what.into(), help: String::new() }
    }

    /// With the key that is to blame, as a path in the application's table.
    pub fn at(self, key: &'static [&'static str]) -> StartError {
        StartError { key, ..self }
    }

    /// With what to do about it.
    pub fn help(self, help: impl Into<String>) -> StartError {
        StartError { help: help.into(), ..self }
    }

    /// The key of the application's table that is to blame, as a path; empty: the table.
    pub fn key(&self) -> &'static [&'static str] {
        self.key
    }

    /// What was seen, without the name of the application.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to do about it; empty where nobody knows.
    pub fn advice(&self) -> &str {
        &self.help
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "app {}: {}", self.app, self.what)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", self.help) }
    }
}

impl std::error::Error for StartError {}

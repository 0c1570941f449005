//! The reason why an application could not be started.

use std::fmt;

/// The application could not be started. The message says what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    app: String,
    key: &'static [&'static str],
    what: String,
    help: String,
}

impl StartError {
    /// Creates an error about the application `app`.
    pub fn new(app: &str, what: impl Into<String>) -> StartError {
        StartError { app: app.to_owned(), key: &[], what: what.into(), help: String::new() }
    }

    /// Adds the faulty key, as a path in the application's table.
    pub fn at(self, key: &'static [&'static str]) -> StartError {
        StartError { key, ..self }
    }

    /// Adds the remedy.
    pub fn help(self, help: impl Into<String>) -> StartError {
        StartError { help: help.into(), ..self }
    }

    /// Returns the faulty key of the application's table, as a path. The path is empty if the whole
    /// table is at fault.
    pub fn key(&self) -> &'static [&'static str] {
        self.key
    }

    /// Returns the description of the problem, without the name of the application.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the remedy. The text is empty if the remedy is unknown.
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

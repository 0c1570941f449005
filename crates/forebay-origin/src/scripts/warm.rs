//! Selects the runner of a script by its language: a worker of the application, or a process.

use std::path::{Path, PathBuf};

use crate::scripts::interpreter::Language;

/// Runner of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// A worker for Perl scripts.
    Perl,
    /// A worker for Python scripts.
    Python,
    /// A new process for the request.
    Process,
    /// No runner, because the script does not name its language.
    Nobody,
}

/// Decides which scripts of an application run in its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warm {
    /// True if there are workers for Perl.
    pub perl: bool,
    /// True if there are workers for Python.
    pub python: bool,
    /// Interpreter of the Python workers, if it belongs to a virtual environment.
    pub environment: Option<PathBuf>,
    /// True if the configuration names the interpreter of the Python workers. That interpreter then
    /// overrides the interpreters that Python scripts name.
    pub is_named: bool,
    /// Language of scripts without a `#!` line.
    pub unmarked: Unmarked,
}

/// Language of scripts without a `#!` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmarked {
    /// Perl, as with mod_perl, unless the name has another language's ending.
    Perl,
    /// Python, unless the name has another language's ending.
    Python,
    /// No language. The kernel would not run such a script either.
    Nothing,
}

impl Warm {
    /// Returns the runner of `file`.
    pub fn runner(&self, file: &Path, language: &Language) -> Runner {
        match language {
            Language::Perl if self.perl => Runner::Perl,
            Language::Python { environment }
                if self.python && (self.is_named || *environment == self.environment) =>
            {
                Runner::Python
            }
            Language::Perl | Language::Python { .. } | Language::Program => Runner::Process,
            Language::Unmarked => self.unmarked.runner(file),
        }
    }
}

impl Unmarked {
    fn runner(self, file: &Path) -> Runner {
        let end = file.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
        let end = end.as_deref().unwrap_or("cgi");
        match self {
            Self::Perl if matches!(end, "cgi" | "pl" | "plx" | "perl") => Runner::Perl,
            Self::Python if matches!(end, "cgi" | "py") => Runner::Python,
            _ => Runner::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_goes_to_who_can_run_it() {
        let python = |name: Option<&str>| Language::Python { environment: name.map(Into::into) };
        let warm = |perl, python| Warm {
            perl,
            python,
            environment: None,
            is_named: false,
            unmarked: Unmarked::Nothing,
        };
        let both = warm(true, true);
        fn runner(warm: &Warm, name: &str, language: &Language) -> Runner {
            warm.runner(Path::new(name), language)
        }
        assert_eq!(runner(&both, "x", &Language::Perl), Runner::Perl);
        assert_eq!(runner(&both, "x", &python(None)), Runner::Python);
        assert_eq!(runner(&both, "x", &python(Some("/venv/bin/python"))), Runner::Process);
        assert_eq!(runner(&both, "x", &Language::Program), Runner::Process);
        assert_eq!(runner(&both, "x.pl", &Language::Unmarked), Runner::Nobody);
        let own = Warm { environment: Some("/venv/bin/python".into()), ..both.clone() };
        assert_eq!(runner(&own, "x", &python(Some("/venv/bin/python"))), Runner::Python);
        assert_eq!(runner(&own, "x", &python(None)), Runner::Process);
        let named = Warm { is_named: true, ..both };
        assert_eq!(runner(&named, "x", &python(Some("/venv/bin/python"))), Runner::Python);
        let perl = Warm { unmarked: Unmarked::Perl, ..warm(true, false) };
        assert_eq!(runner(&perl, "x.py", &python(None)), Runner::Process);
        assert_eq!(runner(&perl, "x.pl", &Language::Unmarked), Runner::Perl);
        assert_eq!(runner(&perl, "x", &Language::Unmarked), Runner::Perl);
        assert_eq!(runner(&perl, "x.py", &Language::Unmarked), Runner::Nobody);
        assert_eq!(runner(&perl, "x.sh", &Language::Unmarked), Runner::Nobody);
    }
}

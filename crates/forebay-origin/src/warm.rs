//! Who runs a script: a worker of the application, by what the script is written in, or a process.

use std::path::{Path, PathBuf};

use crate::interpreter::Language;

/// Who runs a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// A worker that runs Perl scripts.
    Perl,
    /// A worker that runs Python scripts.
    Python,
    /// A process for the request.
    Process,
    /// Nobody: it does not say what it is written in.
    Nobody,
}

/// Which scripts the workers of an application run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Whether there are workers for Perl.
    pub perl: bool,
    /// Whether there are workers for Python.
    pub python: bool,
    /// The interpreter of the workers for Python, where a virtual environment gave it.
    pub environment: Option<PathBuf>,
    /// Whether the configuration names that interpreter, whatever scripts say.
    pub is_named: bool,
    /// What a script is taken for that has no `#!` line.
    pub unmarked: Unmarked,
}

/// What a script is taken for that has no `#!` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmarked {
    /// Perl, as with mod_perl, if its name does not speak against it.
    Perl,
    /// Python, likewise.
    Python,
    /// Nothing: the kernel would not run it either.
    Nothing,
}

impl Warm {
    /// Who runs `file`.
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

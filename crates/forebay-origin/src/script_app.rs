//! Applications of CGI scripts, in one language or in several: what a script is written in decides
//! whether a worker runs it or a process of its own does.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{self as conf, AppKind};
use forebay_engine::{Exchange, Fault, Origin, Serving, Thread};
use forebay_workers::App;

use crate::app::WorkerApp;
use crate::cgi::{Cgi, Processes, no_script};
use crate::definition::env;
use crate::interpreter::{Language, Languages};
use crate::script::Scripts;

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

/// An application of CGI scripts, as one thread knows it.
pub struct ScriptApp {
    thread: Rc<Thread>,
    scripts: Scripts,
    languages: Languages,
    warm: Warm,
    perl: Option<WorkerApp>,
    python: Option<WorkerApp>,
    cgi: Cgi,
}

impl ScriptApp {
    /// Passes requests for the scripts of `plan` to the workers `perl` and `python`, or starts
    /// `processes`.
    pub fn new(
        thread: Rc<Thread>,
        plan: &conf::App,
        scripts: Scripts,
        (warm, perl, python): (Warm, Option<&App>, Option<&App>),
        processes: Processes,
    ) -> Self {
        let dir = script_dir(plan);
        let worker =
            |app: &App| WorkerApp::of_scripts(thread.clone(), app.clone(), dir.clone(), plan);
        // What is started was found already.
        let all = Scripts::new(dir.clone());
        Self {
            scripts,
            languages: Languages::default(),
            warm,
            perl: perl.map(worker),
            python: python.map(worker),
            cgi: Cgi::new(thread.clone(), cgi_of(plan), processes, (all, Vec::new())),
            thread,
        }
    }

    async fn run(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let script =
            self.scripts.find(exchange.request.rest(), self.thread.second()).map_err(no_script)?;
        let language = self.languages.of(&script.file);
        let worker = match self.warm.runner(&script.file, &language) {
            Runner::Perl => &self.perl,
            Runner::Python => &self.python,
            Runner::Process => &None,
            Runner::Nobody => return Err(unmarked(&script.file)),
        };
        match worker {
            Some(worker) => worker.run_script(exchange, &script).await,
            None => self.cgi.run_script(exchange, &script).await,
        }
    }
}

impl Origin for ScriptApp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(self.run(exchange))
    }
}

/// The fault of a script that does not say what it is written in.
pub fn unmarked(script: &Path) -> Fault {
    Fault::app(
        500,
        format!(
            "cannot run {}: it is neither a program nor a script with a #! line; let it begin with \
             one such as #!/usr/bin/perl",
            script.display()
        ),
    )
}

/// Where the scripts of an application are.
pub fn script_dir(plan: &conf::App) -> PathBuf {
    match &plan.kind {
        AppKind::CgiBin { dir, .. }
        | AppKind::PerlCgi { dir, .. }
        | AppKind::PythonCgi { dir, .. } => dir.clone(),
        _ => plan.dir.clone(),
    }
}

/// What a route with the scripts that no worker runs would say.
pub fn cgi_of(plan: &conf::App) -> conf::Cgi {
    conf::Cgi {
        dir: script_dir(plan),
        program: None,
        timeout: plan.request_timeout,
        max_processes: plan.max_processes,
        max_output: plan.max_output,
        env: env(plan),
        user: plan.user.clone(),
        group: plan.group.clone(),
        limits: plan.limits,
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

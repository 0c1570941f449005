//! Applications of CGI scripts in one or several languages. The language decides if a worker or a
//! new process runs a script.

use std::path::Path;
use std::rc::Rc;

use forebay_conf as conf;
use forebay_net::fault::Fault;
use forebay_net::thread::Thread;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_upstream::script::Scripts;
use forebay_workers::App;

use crate::apps::definition::{env, script_dir};
use crate::apps::worker::WorkerApp;
use crate::scripts::cgi::{Cgi, Processes, no_script};
use crate::scripts::interpreter::Languages;
use crate::scripts::warm::{Runner, Warm};

/// Origin of the requests to an application of CGI scripts. Each thread has one.
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
    /// Creates the origin for the scripts of `plan`. Scripts that `warm` selects run in the workers
    /// `perl` and `python`. Each request for another script starts a process.
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
        // `scripts` decides which files are scripts, so the finder of `Cgi` accepts every file.
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
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.run(exchange))
    }
}

/// Returns the fault of a script that does not name its language.
pub fn unmarked(script: &Path) -> Fault {
    Fault::app(
        500,
        format!(
            "cannot run {}: it is neither a program nor a script with a #! line; add one \
             such as #!/usr/bin/perl",
            script.display()
        ),
    )
}

/// Returns the settings of an equivalent `cgi` route, for the scripts that no worker runs.
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

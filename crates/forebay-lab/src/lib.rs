//! Experiments: which way of serving one application is faster, by how much, and how sure that is.
//!
//! An experiment file ([`Plan`]) names several ways of serving. [`run`] tries each once per round.
//! Every trial has a fresh server, started and ended by a [`keeper`], which is checked before and
//! after, warmed up, loaded and watched. The servers of a round run side by side and are loaded in
//! turns, in slices of a fraction of a second, in an order shuffled by a seed; their connections stay
//! open in between. [`report`] turns the [`Experiment`] into a table, JSON, Markdown or an HTML page.
//!
//! # The experiment file
//!
//! TOML. Unknown keys are errors. Times are texts with a unit: `"500ms"`, `"5s"`, `"2m"`.
//!
//! | key | default | meaning |
//! |---|---|---|
//! | `title` | | what the reports are headed |
//! | `[load] path` | `/` | appended to each `url` |
//! | `connections` | 10 | concurrent connections |
//! | `requests` or `duration` | `"5s"` | how much one trial measures |
//! | `rounds` | 6 | trials per configuration |
//! | `warmup` | `"1s"` | time or number of requests before measuring; 0: none |
//! | `slice` | `"150ms"` | about how long a server is loaded before it is another's turn |
//! | `isolated` | false | one server after the other, each loaded without a break |
//! | `threads` | 1 or 2 | client threads |
//! | `rate` | | requests per second of an open loop |
//! | `http2`, `streams` | false, 1 | HTTP/2 by prior knowledge, requests in flight on each connection |
//! | `root`, `params` | | for FastCGI, SCGI, uwsgi: where scripts lie, further variables (a table) |
//! | `secret` | | for AJP: what the servlet container asks of web servers |
//! | `keepalive` | true | whether connections are used again |
//! | `method`, `headers`, `body` | GET | the request; `headers` is a table |
//! | `timeout` | `"10s"` | for one request |
//! | `cpus` | all | cores of the load generator, such as `[1]` |
//! | `[check] status` | 200 | what a right answer has |
//! | `body_contains` | | and contains |
//! | `[[service]] name` | | what every configuration needs beside its server; see below |
//! | `start`, `requires`, `env`, `cwd`, `templates`, `cpus`, timeouts | | as for a configuration |
//! | `listens` | `127.0.0.1:{port}` | `HOST:PORT` or `unix:PATH` where it is ready |
//! | `[[configuration]] name` | | in every report |
//! | `baseline` | the first | what the others are compared with |
//! | `start` | | the server's command, a list; `"forebay"` means this very program; none: it runs already |
//! | `url` | | where it answers, such as `"http://127.0.0.1:{port}"`, or with `fcgi`, `scgi`, `uwsgi`, `ajp`, `h2c` |
//! | `path` | | in place of the load's |
//! | `requires` | | programs or Debian packages; if one is missing the row says so |
//! | `env`, `cwd` | , `{dir}` | environment (a table) and working directory |
//! | `templates` | | files filled in and copied to `{tmp}`; see below |
//! | `ready_timeout` | `"30s"` | until the first right answer |
//! | `stop_timeout` | `"5s"` | from SIGTERM to SIGKILL |
//! | `version` | | a command whose first line of output tells the version |
//! | `cpus` | all | cores of the server |
//! | `notes` | | a remark for the report |
//! | `isolated` | as `[load]` has it | whether it runs while no other server does |
//!
//! `{port}` (free when the trial begins), `{dir}` (the experiment file's directory) and `{tmp}`
//! (the trial's own directory, gone afterwards) are replaced in `path`, `start`, `url`, `env` and
//! `cwd`. Other braces stay as they are.
//!
//! A server whose own configuration file needs them names it under `templates`: each file, given
//! relative to the experiment, is copied into `{tmp}` under its last name with the placeholders
//! replaced, so that `start = ["nginx", "-c", "{tmp}/nginx.conf"]` works. What is relative inside
//! such a file is then relative to `{tmp}`; write `{dir}/htdocs` for what lies beside the
//! experiment.
//!
//! A service (a database, the backend of a proxy) is started afresh for each trial, before the
//! server, and ended after it; what it takes is not counted. `{NAME.port}` and `{NAME.tmp}` tell the
//! server, its templates and later services where it is.
//!
//! # What counts
//!
//! One trial is one sample: a mean and a spread are over trials, never over requests. A ratio is the
//! trimmed mean over the pairs of slices in a round, and its interval that of the rounds' figures
//! (`forebay_stat::ratio_of_rounds`). `requests` are cut into 50 slices at most, of at least 20 for each
//! connection. A slice during which the machine was busy with something else, by what was seen beside
//! it and never by its result (`disturbance.rs`), is in no ratio.
//! A trial is void, and says why, if the server ended, a check failed, or the load generator was the
//! limit (`trial.rs` says exactly when). Failed requests are counted beside the rate.
#![forbid(unsafe_code)]

mod disturbance;
mod experiment;
mod interrupt;
pub mod keeper;
mod machine;
mod pairing;
mod progress;
pub mod report;
mod round;
mod schedule;
mod service;
mod summary;
mod trial;
mod watch;

use std::io;
use std::path::PathBuf;

use rustix::process::{getpid, set_child_subreaper};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use forebay_stat::Verdict;

pub use experiment::{
    Amount, Check, Configuration, Load, Plan, Problem, Service, ServiceValues, Values,
};
pub use interrupt::Interrupt;
pub use machine::Machine;
pub use progress::{Lines, Progress, Silent};
pub use schedule::{Executor, Group, Halt, Member, Rounds, Slot, Turn};
pub use summary::{Leak, Row, rows};
pub use trial::{Measured, Runner, Slice, Trial};
pub use watch::{Cpu, CpuMethod, Evidence, Glance, Point, Series};

/// An experiment that was run, to its end or not.
#[derive(Debug)]
pub struct Experiment {
    /// What was to be done.
    pub plan: Plan,
    /// What the order came from.
    pub seed: u64,
    /// Whether the baseline was compared with itself.
    pub against_itself: bool,
    /// What it ran on.
    pub machine: Machine,
    /// One per configuration, in the order of the plan.
    pub results: Vec<Results>,
    /// Rounds in which every configuration was tried.
    pub rounds_finished: u32,
    /// The level of its intervals is 1 less this: 95 %, but for an experiment that ended because of
    /// them.
    pub alpha: f64,
    /// Why there are no more rounds, in words.
    pub incomplete: Option<String>,
    /// The same as data.
    pub halt: Option<Halt>,
}

/// What came of one configuration.
#[derive(Debug)]
pub struct Results {
    /// The configuration.
    pub configuration: Configuration,
    /// What it requires and this machine lacks; it was not tried then.
    pub missing: Vec<String>,
    /// What its version command printed.
    pub version: Option<String>,
    /// Its trials, in the order of the rounds.
    pub trials: Vec<Trial>,
}

/// How an experiment is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// What the order comes from.
    pub seed: u64,
    /// Whether the baseline is compared with itself.
    pub against_itself: bool,
    /// No more rounds than are needed for the interval of each ratio of rates to end this close to its
    /// middle: 0.03 for 3 % on either side.
    pub until: Option<f64>,
}

/// Rounds before the first look at how wide intervals are.
const FIRST_LOOK: u32 = 3;

/// Runs `plan` on this machine. `program` is the running `forebay`.
pub fn run(
    plan: Plan,
    options: Options,
    program: PathBuf,
    interrupt: &Interrupt,
    progress: &mut dyn Progress,
) -> Experiment {
    let machine = Machine::here();
    let results: Vec<Results> = plan.configurations.iter().map(look_up).collect();
    let available: Vec<bool> = results.iter().map(|results| results.missing.is_empty()).collect();
    let cores = machine.cores;
    let mut experiment = Experiment {
        plan,
        seed: options.seed,
        against_itself: options.against_itself,
        machine,
        results,
        rounds_finished: 0,
        alpha: ALPHA,
        incomplete: Some("not finished".to_owned()),
        halt: None,
    };
    let plan = experiment.plan.clone();
    let halt = match prepare(&plan) {
        Ok(server_cpus) => {
            let mut runner = Runner::new(&plan, program, interrupt.clone(), cores, server_cpus);
            let mut after_round = |progress: &mut dyn Progress, rounds: &Rounds| {
                experiment.take(rounds);
                progress.save(&experiment);
                options.until.is_some_and(|until| experiment.is_narrow(until))
            };
            let rounds = schedule::run(
                &plan,
                &available,
                options.seed,
                &mut runner,
                progress,
                &mut after_round,
            );
            experiment.take(&rounds);
            rounds.halt
        }
        Err(halt) => Some(halt),
    };
    experiment.incomplete = halt.as_ref().map(Halt::to_string);
    experiment.halt = halt;
    experiment
}

/// The level of intervals: 95 %.
const ALPHA: f64 = 0.05;

impl Experiment {
    /// What came of the baseline.
    pub fn baseline(&self) -> &Results {
        let found = self.results.iter().find(|results| results.configuration.baseline);
        found.expect("a plan has exactly one baseline")
    }

    fn take(&mut self, rounds: &Rounds) {
        for (results, trials) in self.results.iter_mut().zip(&rounds.trials) {
            results.trials.extend_from_slice(&trials[results.trials.len()..]);
        }
        self.rounds_finished = rounds.finished;
    }

    /// Looks whether the interval of each ratio of rates is as narrow as that. Each look could end the
    /// experiment by chance, so the k-th spends 1 / k (k + 1) of the level, all together the whole.
    fn is_narrow(&mut self, until: f64) -> bool {
        if self.rounds_finished < FIRST_LOOK {
            return false;
        }
        let look = f64::from(self.rounds_finished - FIRST_LOOK + 1);
        self.alpha = ALPHA / (look * (look + 1.0));
        let rows = rows(self);
        let ratios = rows.iter().filter(|row| !row.baseline).map(|row| row.ratio.as_ref());
        ratios.flatten().all(|ratio| ratio.half_width() <= until)
            && rows.iter().any(|row| row.ratio.is_some())
    }

    /// Whether there is anything to show.
    pub fn measured_anything(&self) -> bool {
        self.results.iter().any(|results| !results.trials.is_empty())
    }

    /// Whether a trial was lost to something other than the load generator's limits.
    pub fn found_failures(&self) -> bool {
        self.results.iter().flat_map(|results| &results.trials).any(|trial| trial.failed)
    }
}

fn look_up(configuration: &Configuration) -> Results {
    let missing = experiment::missing(&configuration.requires);
    let version =
        if missing.is_empty() { machine::version_line(&configuration.version) } else { None };
    Results { configuration: configuration.clone(), missing, version, trials: Vec::new() }
}

/// Makes this process fit to run trials; returns the cores of those servers that name none.
fn prepare(plan: &Plan) -> Result<Vec<usize>, Halt> {
    let halt = |what: &str, error: rustix::io::Errno| {
        Halt::Broken(format!("{what}: {}", io::Error::from(error)))
    };
    // If a keeper is killed, what it kept falls to this process, which ends it.
    service::check(plan)?;
    set_child_subreaper(Some(getpid())).map_err(|error| halt("cannot adopt orphans", error))?;
    if plan.load.cpus.is_empty() {
        return Ok(Vec::new());
    }
    let before = sched_getaffinity(None).map_err(|error| halt("cannot read the cores", error))?;
    sched_setaffinity(None, &keeper::cpu_set(&plan.load.cpus)).map_err(|error| {
        halt(&format!("cannot keep the load generator to cores {:?}", plan.load.cpus), error)
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect())
}

//! Runs an experiment: looks up what it needs, has its rounds run, and ends it where they are enough.

use std::io;
use std::path::PathBuf;

use rustix::process::{getpid, set_child_subreaper};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::experiment::{self, Configuration, Plan};
use crate::interrupt::Interrupt;
use crate::machine::{self, Machine};
use crate::results::{Experiment, Results};
use crate::schedule::{self, Moment, Progress, Rounds};
use crate::summary::rows;
use crate::trial::{Halt, Runner};
use crate::{client, keeper, profiling, resume, service};

/// How an experiment is run.
#[derive(Debug, Default)]
pub struct Options {
    /// What the order comes from.
    pub seed: u64,
    /// Whether the baseline is compared with itself.
    pub against_itself: bool,
    /// No more rounds than are needed for the interval of each ratio of rates to end this close to its
    /// middle: 0.03 for 3 % on either side.
    pub until: Option<f64>,
    /// What came of a part of the same experiment; it goes on from there, with the same seed.
    pub earlier: Option<Experiment>,
    /// Results that were saved, to be compared with as they are.
    pub saved: Vec<Results>,
    /// Whether each configuration gets a profile trial, behind all rounds.
    pub profile: bool,
}

/// Rounds before the first look at how wide intervals are.
const FIRST_LOOK: u32 = 3;

/// Runs `plan` on this machine. `program` is the running `forebay`.
///
/// # Errors
/// How the experiment, or this machine, differs from that of the earlier part. Nothing was started.
pub fn run(
    plan: Plan,
    options: Options,
    program: PathBuf,
    interrupt: &Interrupt,
    progress: &mut dyn Progress,
) -> Result<Experiment, String> {
    let mut experiment = Experiment {
        machine: Machine::here(),
        results: plan.configurations.iter().map(look_up).collect(),
        plan,
        seed: options.seed,
        against_itself: options.against_itself,
        rounds_finished: 0,
        alpha: ALPHA,
        incomplete: Some("not finished".to_owned()),
        halt: None,
    };
    for saved in options.saved {
        experiment.plan.configurations.push(saved.configuration.clone());
        experiment.results.push(saved);
    }
    if let Some(earlier) = options.earlier {
        resume::take_over(&mut experiment, earlier)?;
    }
    let is_enough = options.until.is_some_and(|until| is_narrow(&mut experiment, until));
    let halt = if is_enough && !options.profile {
        None
    } else {
        let wanted = Wanted { rounds: !is_enough, until: options.until, profile: options.profile };
        run_trials(&mut experiment, &wanted, program, interrupt, progress)
    };
    experiment.incomplete = halt.as_ref().map(Halt::to_string);
    experiment.halt = halt;
    Ok(experiment)
}

/// Which trials are run.
struct Wanted {
    /// Those of the rounds that are left.
    rounds: bool,
    until: Option<f64>,
    /// Those that are profiled.
    profile: bool,
}

/// Runs the trials that are wanted; returns why they ended early.
fn run_trials(
    experiment: &mut Experiment,
    wanted: &Wanted,
    program: PathBuf,
    interrupt: &Interrupt,
    progress: &mut dyn Progress,
) -> Option<Halt> {
    let plan = experiment.plan.clone();
    let server_cpus = match prepare(&plan) {
        Ok(server_cpus) => server_cpus,
        Err(halt) => return Some(halt),
    };
    let cores = experiment.machine.cores;
    let mut runner =
        Runner::new(&plan, program, interrupt.clone(), cores, server_cpus, experiment.seed);
    if let Err(halt) = runner.run_once(|plan| &plan.before, "before") {
        return Some(halt);
    }
    let mut halt = None;
    if wanted.rounds {
        halt = run_rounds(experiment, &plan, wanted.until, &mut runner, progress);
    }
    if halt.is_none() && wanted.profile {
        halt = profiling::run(experiment, &runner, progress).err();
    }
    halt.or(runner.run_once(|plan| &plan.after, "after").err())
}

/// Runs the rounds that are left; returns why they ended early.
fn run_rounds(
    experiment: &mut Experiment,
    plan: &Plan,
    until: Option<f64>,
    runner: &mut Runner,
    progress: &mut dyn Progress,
) -> Option<Halt> {
    let available: Vec<bool> = experiment.results.iter().map(Results::can_run).collect();
    let earlier = experiment.results.iter().map(|results| results.trials.clone()).collect();
    let seed = experiment.seed;
    let mut decide = |progress: &mut dyn Progress, rounds: &Rounds, moment: Moment| {
        take(experiment, rounds);
        progress.save(experiment).map_err(Halt::Broken)?;
        let is_over = moment == Moment::AfterRound;
        Ok(!(is_over && until.is_some_and(|until| is_narrow(experiment, until))))
    };
    let from = (available.as_slice(), earlier);
    let rounds = schedule::run(plan, from, seed, runner, progress, &mut decide);
    take(experiment, &rounds);
    rounds.halt
}

/// The level of intervals: 95 %.
const ALPHA: f64 = 0.05;

fn take(experiment: &mut Experiment, rounds: &Rounds) {
    for (results, trials) in experiment.results.iter_mut().zip(&rounds.trials) {
        results.trials.extend_from_slice(&trials[results.trials.len()..]);
    }
    experiment.rounds_finished = rounds.finished;
}

/// Looks whether the interval of each ratio of rates is as narrow as that. Each look could end the
/// experiment by chance, so the k-th spends 1 / k (k + 1) of the level, all together the whole.
fn is_narrow(experiment: &mut Experiment, until: f64) -> bool {
    if experiment.rounds_finished < FIRST_LOOK {
        return false;
    }
    let look = f64::from(experiment.rounds_finished - FIRST_LOOK + 1);
    experiment.alpha = ALPHA / (look * (look + 1.0));
    let rows = rows(experiment);
    let mut ratios = rows.iter().filter_map(|row| row.ratio.as_ref());
    ratios.all(|ratio| ratio.half_width() <= until) && rows.iter().any(|row| row.ratio.is_some())
}

fn look_up(configuration: &Configuration) -> Results {
    let missing = experiment::missing(&configuration.requires);
    let version =
        if missing.is_empty() { machine::version_line(&configuration.version) } else { None };
    Results {
        configuration: configuration.clone(),
        missing,
        version,
        trials: Vec::new(),
        profile: None,
    }
}

/// Makes this process fit to run trials; returns the cores of those servers that name none.
fn prepare(plan: &Plan) -> Result<Vec<usize>, Halt> {
    let halt = |what: &str, error: rustix::io::Errno| {
        Halt::Broken(format!("{what}: {}", io::Error::from(error)))
    };
    // If a keeper is killed, what it kept falls to this process, which ends it.
    service::check(plan)?;
    client::check(plan)?;
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

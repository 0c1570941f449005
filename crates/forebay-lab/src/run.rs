//! Runs an experiment: checks its requirements, runs its rounds, and ends when the results suffice.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::results;
use crate::experiment::{self, Configuration, Plan};
use crate::machine::{self, Machine};
use crate::results::{Experiment, Results};
use crate::schedule::{self, Moment, Progress, Rounds};
use crate::summary::rows;
use crate::trial::{Halt, Interrupt, Runner};
use crate::{client, keeper, profiling, service};

/// Options of a run.
#[derive(Debug, Default)]
pub struct Options {
    /// Seed from which the order of trials and turns is derived.
    pub seed: u64,
    /// Compares the baseline with a copy of itself instead of with the other configurations.
    pub against_itself: bool,
    /// Ends the experiment early when all ratios of rates are certain enough: 0.03 means that each
    /// interval ends at most 3 % above and below its middle.
    pub until: Option<f64>,
    /// Results of an earlier, incomplete run of the same experiment. This run continues the earlier
    /// one with the same seed.
    pub earlier: Option<Experiment>,
    /// Results from saved reports, to compare the current configurations with.
    pub saved: Vec<Results>,
    /// Runs a profile trial of each configuration after all rounds.
    pub profile: bool,
}

/// Number of rounds before the first check of the interval widths for `until`.
const FIRST_LOOK: u32 = 3;

/// Runs `plan` on this machine. `program` is the path of the running `forebay`.
///
/// # Errors
/// Fails if the experiment or this machine differs from the experiment and machine in
/// `Options::earlier`. The error describes the difference. In this case, nothing has been started.
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
        elapsed: Duration::ZERO,
        alpha: ALPHA,
        incomplete: Some("not finished".to_owned()),
        halt: None,
    };
    for saved in options.saved {
        experiment.plan.configurations.push(saved.configuration.clone());
        experiment.results.push(saved);
    }
    if let Some(earlier) = options.earlier {
        results::take_over(&mut experiment, earlier)?;
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

/// Parts of the experiment that are still to run.
struct Wanted {
    /// Runs the remaining rounds.
    rounds: bool,
    until: Option<f64>,
    /// Runs the profile trials.
    profile: bool,
}

/// Runs the wanted trials. Returns the reason if an error or a signal ended them early.
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

/// Runs the remaining rounds. Returns the reason if an error or a signal ended them early.
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
    let (began, before) = (Instant::now(), experiment.elapsed);
    let mut decide = |progress: &mut dyn Progress, rounds: &Rounds, moment: Moment| {
        take(experiment, rounds);
        experiment.elapsed = before + began.elapsed();
        progress.save(experiment).map_err(Halt::Broken)?;
        nothing_started(experiment)?;
        let is_over = moment == Moment::AfterRound;
        Ok(!(is_over && until.is_some_and(|until| is_narrow(experiment, until))))
    };
    let from = (available.as_slice(), earlier);
    let rounds = schedule::run(plan, from, seed, runner, progress, &mut decide);
    take(experiment, &rounds);
    rounds.halt
}

/// Fails if every available server has been tried, and none has started.
fn nothing_started(experiment: &Experiment) -> Result<(), Halt> {
    let able = experiment.results.iter().filter(|results| results.can_run());
    let mut failures = able.map(|results| (results, results.start_failure()));
    let Some((first, Some(failure))) = failures.next() else { return Ok(()) };
    if !failures.all(|(_, failure)| failure.is_some()) {
        return Ok(());
    }
    Err(Halt::CannotStart {
        configuration: first.configuration.name.clone(),
        reason: failure.reason.clone(),
        output: failure.output.clone(),
    })
}

/// Error probability of all intervals together: 1 minus the confidence level of 95 %.
const ALPHA: f64 = 0.05;

fn take(experiment: &mut Experiment, rounds: &Rounds) {
    for (results, trials) in experiment.results.iter_mut().zip(&rounds.trials) {
        results.trials.extend_from_slice(&trials[results.trials.len()..]);
    }
    experiment.rounds_finished = rounds.finished;
}

/// Returns true if the interval of each ratio of rates is narrow enough. Returns false before round
/// `FIRST_LOOK`.
///
/// Each check may end the experiment by chance, so check k uses only 1 / (k (k + 1)) of `ALPHA`. If
/// an interval is not narrow, `experiment` gets the part of `ALPHA` that earlier checks have not
/// used. The reports use this part if the experiment ends without narrow intervals.
fn is_narrow(experiment: &mut Experiment, until: f64) -> bool {
    if experiment.rounds_finished < FIRST_LOOK {
        return false;
    }
    let look = f64::from(experiment.rounds_finished - FIRST_LOOK + 1);
    experiment.alpha = ALPHA / (look * (look + 1.0));
    let rows = rows(experiment);
    let ratios: Vec<_> = rows.iter().filter_map(|row| row.ratio.as_ref()).collect();
    let is_narrow = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.half_width() <= until);
    if !is_narrow {
        experiment.alpha = ALPHA / look;
    }
    is_narrow
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

/// Checks the requirements of services and client. If `[load]` sets `cpus`, limits this process to
/// these cores, and returns all cores that this process could use before. Servers without `cpus`
/// run on the returned cores. Otherwise returns an empty list: this process and its servers keep
/// all cores.
fn prepare(plan: &Plan) -> Result<Vec<usize>, Halt> {
    let halt = |what: &str, error: rustix::io::Errno| {
        Halt::Broken(format!("{what}: {}", io::Error::from(error)))
    };
    service::check(plan)?;
    client::check(plan)?;
    // If a keeper process is killed, its children become children of this process. This process
    // then ends them.
    set_child_subreaper(Some(getpid())).map_err(|error| halt("cannot adopt orphans", error))?;
    if plan.load.cpus.is_empty() {
        return Ok(Vec::new());
    }
    let before = sched_getaffinity(None).map_err(|error| halt("cannot read the cores", error))?;
    sched_setaffinity(None, &keeper::cpu_set(&plan.load.cpus)).map_err(|error| {
        halt(&format!("cannot restrict the load generator to cores {:?}", plan.load.cpus), error)
    })?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect())
}

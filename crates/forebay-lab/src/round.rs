//! A round of trials: starts fresh servers, waits until they are ready, warms them up, loads them
//! in turns, checks them again and ends them.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use forebay_load::{Arrivals, Control, Endpoint, Outcome, Rate, Spec, Stop, Turns, Url};

use crate::Interrupt;
use crate::client;
use crate::disturbance::Overrun;
use crate::disturbance::{WINDOW, is_steady};
use crate::disturbance::{client_bound, think_bound, usable_cores};
use crate::experiment::{self, Amount, Configuration, Printed, Values};
use crate::keeper::Keeper;
use crate::number;
use crate::schedule::{Executor, Group, Member, Turn};
use crate::service::Services;
use crate::trial::{
    Halt, Measured, RunError, Runner, Slice, StartFailure, Trial, TrialCheck, broken,
    refuse_occupied, stop,
};
use crate::watch::{Cpu, Sampler, Tree, Witness, listeners};

/// Interval at which a running load checks for an interruption and for the end of the server.
const LOAD_INTERVAL: Duration = Duration::from_millis(20);

/// Share of one core that a server may use while other servers are loaded. Above this share, the
/// trial gets a note.
const RESTLESS: f64 = 0.05;

/// Number of output lines that a note about a crashed server quotes.
const QUOTED_LINES: usize = 3;

impl Executor for Runner {
    fn run(&mut self, group: &Group<'_>) -> Result<Vec<Trial>, Halt> {
        let mut servers = Vec::with_capacity(group.members.len());
        for member in &group.members {
            servers.push(self.start_member(*member)?);
        }
        for turn in &group.turns {
            if let ServerStart::Running(server) = &mut servers[turn.member] {
                server.turn(self, *turn)?;
            }
        }
        let finish = |server: ServerStart<'_>| match server {
            ServerStart::Running(server) => server.finish(self),
            ServerStart::Failed(trial) => Ok(trial),
        };
        servers.into_iter().map(finish).collect()
    }
}

/// Result of the start of a server.
#[expect(clippy::large_enum_variant, reason = "an experiment has few servers at a time")]
enum ServerStart<'a> {
    Running(Standing<'a>),
    /// The server did not start. The failure is the result of its trial.
    Failed(Trial),
}

impl Runner {
    /// Starts a server. If the server cannot start, its trial is void and the experiment continues.
    /// If the server has not started in any earlier round, later rounds do not try to start it.
    fn start_member<'a>(&mut self, member: Member<'a>) -> Result<ServerStart<'a>, Halt> {
        let name = &member.configuration.name;
        if let Some(failure) = self.unstartable.get(name) {
            return Ok(ServerStart::Failed(Trial::not_started(member.id, failure.clone())));
        }
        match Standing::start(self, member) {
            Ok(server) => {
                self.started.insert(name.clone());
                Ok(ServerStart::Running(server))
            }
            Err(Halt::CannotStart { configuration, reason, output }) if configuration == *name => {
                let failure = StartFailure { reason, output };
                if !self.started.contains(name) {
                    self.unstartable.insert(name.clone(), failure.clone());
                }
                Ok(ServerStart::Failed(Trial::not_started(member.id, failure)))
            }
            Err(halt) => Err(halt),
        }
    }
}

/// Started server with its load. Dropping this value ends the server.
pub(crate) struct Standing<'a> {
    member: Member<'a>,
    check: TrialCheck,
    /// Load of the plan, with the values of the configuration's matrix cell.
    task: experiment::Load,
    values: Values,
    /// Declared before `_services` and therefore dropped first: the server needs the services until
    /// its end.
    keeper: Keeper,
    _services: Services,
    /// State of the load; `None` if the server has failed.
    load: Option<ServerLoad>,
    /// Reason why the server failed; `None` if it has not failed.
    failure: Option<String>,
    /// Further notes for the report.
    notes: Vec<String>,
}

/// Load generator of one server, and the results of its slices so far.
struct ServerLoad {
    driver: Driver,
    tree: Tree,
    sampler: Sampler,
    slices: Vec<Slice>,
    outcome: Option<Outcome>,
    cpu: Cpu,
    idle: Idle,
    overrun: Overrun,
}

/// Program that produces the load.
enum Driver {
    /// The built-in load generator. Its connections stay open between slices.
    Turns(Box<Turns>),
    /// The command of `[load.client]`, started anew for each run.
    Command,
}

/// CPU time that the server uses while other servers are loaded.
#[derive(Default)]
struct Idle {
    since: Option<(Instant, Cpu)>,
    time: Duration,
    cpu: Duration,
}

impl<'a> Standing<'a> {
    /// Starts a server, waits for a correct reply and warms the server up. If the warm-up fails,
    /// returns the server without a load, and with the failure. A failure before the warm-up, and
    /// an interruption, are errors.
    pub(crate) fn start(runner: &Runner, member: Member<'a>) -> Result<Self, Halt> {
        let configuration = member.configuration;
        let services = runner.start_services()?;
        let mut keeper = Keeper::open(&runner.program).map_err(broken)?;
        let values = runner.values(&configuration.dir, &keeper, &services.values)?;
        let task = runner.plan.load_of(configuration);
        let address = configuration.address(&values).filter(|_| task.client.is_some());
        let check = match address {
            Some(address) => TrialCheck::Connection(address),
            None => {
                let url = Url::parse(&configuration.target(&task, &values))
                    .map_err(|error| Halt::Broken(format!("{}: {error}", configuration.name)))?;
                TrialCheck::Request(Box::new(runner.spec(&task, url, &values)))
            }
        };
        if !configuration.start.is_empty() {
            refuse_occupied(configuration, &check)?;
            runner.place_templates(&configuration.templates, &values)?;
            runner.run_beside(configuration, &configuration.before, "before", &values)?;
            keeper.start(runner.launch(configuration, &values)).map_err(broken)?;
        }
        runner.until_ready(configuration, &check, &mut keeper)?;
        let mut server = Self {
            member,
            check,
            task,
            values,
            keeper,
            _services: services,
            load: None,
            failure: None,
            notes: Vec::new(),
        };
        match server.warm_up(runner) {
            Ok(driver) => {
                let load = ServerLoad::begin(driver, || server.tree());
                server.load = Some(load);
            }
            Err(RunError::Trial(failure)) => server.failure = Some(failure),
            Err(RunError::Experiment(halt)) => return Err(halt),
        }
        Ok(server)
    }

    /// Warms the server up, and checks that it then replies correctly. Returns the load generator,
    /// which continues with the measurement.
    fn warm_up(&mut self, runner: &Runner) -> Result<Driver, RunError> {
        let mut driver = match (&self.task.client, &self.check) {
            (None, TrialCheck::Request(spec)) => match Turns::new(spec) {
                Ok(turns) => Driver::Turns(Box::new(turns)),
                Err(error) => return Err(RunError::Trial(error.to_string())),
            },
            _ => Driver::Command,
        };
        if let Some(amount) = self.task.warmup {
            let warm = match &mut driver {
                Driver::Turns(turns) => {
                    let (control, load) = (Control::default(), (stop(amount), None));
                    drive(turns, load, &control, &runner.interrupt, &mut self.keeper).map(|_| ())
                }
                Driver::Command => self.run_client(runner, amount, 0).map(|_| ()),
            };
            warm.map_err(RunError::during_warm_up)?;
        }
        if let (Some(ceiling), Driver::Turns(turns)) = (self.task.steady, &mut driver) {
            self.until_steady(runner, turns, ceiling).map_err(RunError::during_warm_up)?;
        }
        runner.probe(&self.check, None).map_err(|wrong| {
            RunError::Trial(format!("no correct reply after the warm-up: {wrong}"))
        })?;
        Ok(driver)
    }

    /// Loads the server until its rate is steady, for at most `ceiling`. Adds a note if the rate is
    /// not steady after this time.
    fn until_steady(
        &mut self,
        runner: &Runner,
        turns: &mut Turns,
        ceiling: Duration,
    ) -> Result<(), RunError> {
        let began = Instant::now();
        let mut rates = Vec::new();
        while !is_steady(&rates) {
            if began.elapsed() >= ceiling {
                let limit = number::time(ceiling.as_secs_f64() * 1e6);
                self.notes
                    .push(format!("not steady after {limit} of warm-up: give [load] steady more"));
                break;
            }
            let control = Control::default();
            let load = (stop(Amount::Duration(WINDOW)), None);
            let outcome = drive(turns, load, &control, &runner.interrupt, &mut self.keeper)?;
            rates.push(outcome.rate_per_s());
        }
        Ok(())
    }

    /// Runs the client's command once. `slice` counts from 1; 0 means the warm-up.
    fn run_client(
        &mut self,
        runner: &Runner,
        amount: Amount,
        slice: u32,
    ) -> Result<(Outcome, Printed), RunError> {
        let Some(client) = &self.task.client else {
            return Err(Halt::Broken("no client to run".to_owned()).into());
        };
        let Amount::Duration(duration) = amount else {
            return Err(Halt::Broken("a client loads for a time".to_owned()).into());
        };
        let target = self.member.configuration.target(&self.task, &self.values);
        let url = match &self.check {
            TrialCheck::Request(_) => target,
            TrialCheck::Connection(_) => self.values.fill(&self.member.configuration.url),
        };
        let connections = self.task.connections;
        let place = u64::from(self.member.id.round) * 1000 + u64::from(slice);
        let seed = (runner.seed.wrapping_add(place) & 0x7fff_ffff) as u32;
        let values = &self.values;
        let task = client::Task { client, values, url: &url, duration, connections, seed };
        let ran = runner.run_client(&task, &mut self.keeper)?;
        Ok((ran.outcome(&task), ran.printed))
    }

    /// Returns the settings of the built-in load generator. Returns `None` for a server that does
    /// not speak HTTP. A client command loads such a server, and Forebay checks it only with a
    /// connection.
    pub(crate) fn spec(&self) -> Option<&Spec> {
        match &self.check {
            TrialCheck::Request(spec) => Some(spec),
            TrialCheck::Connection(_) => None,
        }
    }

    /// Returns the server's processes. If Forebay did not start the server, its listening socket
    /// identifies the processes.
    pub(crate) fn tree(&self) -> Tree {
        if !self.member.configuration.start.is_empty() {
            return self.keeper.tree();
        }
        let address = match &self.check {
            TrialCheck::Connection(address) => address.clone(),
            TrialCheck::Request(spec) => match spec.url.endpoint() {
                Endpoint::Unix(path) => format!("unix:{}", path.display()),
                endpoint => endpoint.to_string(),
            },
        };
        match listeners(&address) {
            none if none.is_empty() => self.keeper.tree(),
            first => Tree::of_server(first),
        }
    }

    /// Loads the server for one slice and records the measurements. Does nothing if an earlier step
    /// of the trial failed. If the load fails, the trial fails, but the experiment continues.
    pub(crate) fn turn(&mut self, runner: &Runner, turn: Turn) -> Result<(), Halt> {
        let Some(mut load) = self.load.take() else { return Ok(()) };
        let rate = self.task.rate;
        let rate = rate.map(|per_second| Rate { per_second, arrivals: Arrivals::Poisson });
        let witness = Witness::begin(&load.tree);
        let before = load.tree.cpu();
        load.idle.end(before);
        load.sampler.begin();
        let control = Control::default();
        let driven = match &mut load.driver {
            Driver::Turns(turns) => {
                let wanted = (stop(turn.amount), rate);
                let driven = drive(turns, wanted, &control, &runner.interrupt, &mut self.keeper);
                driven.map(|outcome| (outcome, None))
            }
            Driver::Command => {
                let ran = self.run_client(runner, turn.amount, turn.slice + 1);
                ran.map(|(outcome, printed)| (outcome, Some(printed)))
            }
        };
        let glance = load.sampler.end();
        let evidence = witness.end(&load.tree);
        // Read the CPU time last, because a process of the server may use CPU time after its reply.
        // A CGI script is an example.
        let after = load.tree.cpu();
        let cpu = after - before;
        load.idle.begin(after);
        match driven {
            Ok((outcome, printed)) => {
                load.cpu = load.cpu + cpu;
                // The duration of a client command includes its start and its end. A long duration
                // is therefore no sign of late replies.
                if printed.is_none() {
                    load.overrun.add(turn.amount, &outcome);
                }
                load.slices.push(Slice {
                    number: turn.slice,
                    duration: outcome.duration,
                    completed: outcome.requests.completed,
                    cpu: cpu.total(),
                    rss: glance.rss,
                    evidence,
                    printed,
                });
                load.outcome = Outcome::sum(load.outcome.take().into_iter().chain([outcome]));
                self.load = Some(load);
            }
            Err(RunError::Experiment(halt)) => return Err(halt),
            Err(RunError::Trial(wrong)) => {
                let completed = load.slices.iter().map(|slice| slice.completed).sum::<u64>()
                    + control.completed.load(Ordering::Relaxed);
                self.notes.extend(crash_note(completed, &mut self.keeper));
                self.failure = Some(format!("during the load {wrong}"));
            }
        }
        Ok(())
    }

    /// Checks the server again, ends it, and returns the result of its trial.
    pub(crate) fn finish(mut self, runner: &Runner) -> Result<Trial, Halt> {
        let (id, configuration) = (self.member.id, self.member.configuration);
        let mut trial = match self.load.take() {
            None => {
                Trial::failed(id, self.failure.take().unwrap_or_else(|| "not loaded".to_owned()))
            }
            Some(mut load) => {
                let (idle, overrun) = (load.idle.note(), mem::take(&mut load.overrun));
                match load.finish() {
                    None => Trial::failed(id, "not loaded"),
                    Some(measured) => {
                        let late = overrun.note(&self.task, &measured.outcome.latency);
                        let mut trial = self.judge(runner, configuration, measured);
                        trial.notes.extend(idle.into_iter().chain(late));
                        trial
                    }
                }
            }
        };
        trial.notes.append(&mut self.notes);
        trial.notes.extend(self.keeper.stop());
        match runner.run_beside(configuration, &configuration.after, "after", &self.values) {
            Err(Halt::CannotStart { reason, .. }) => {
                trial.notes.push(format!("the command after it: {reason}"));
            }
            other => other?,
        }
        Ok(trial)
    }

    /// Decides whether the trial counts. A trial is void if the server failed, or if the load
    /// generator was the limit.
    fn judge(
        &mut self,
        runner: &Runner,
        configuration: &Configuration,
        measured: Measured,
    ) -> Trial {
        let failure = self.failure_after(runner, &measured.outcome);
        let failed = failure.is_some();
        let Measured { outcome, server, .. } = &measured;
        let cores = usable_cores(runner.cores, configuration, outcome, server);
        let void = failure.or_else(|| client_bound(cores, outcome, server));
        let id = self.member.id;
        let is_unsure = outcome.client.saturated && !measured.is_watched();
        let unsure = is_unsure.then(|| {
            "the load generator was busy for most of the time: it may be the limit, which hides \
             differences"
                .to_owned()
        });
        let idle = think_bound(&self.task, outcome);
        let notes = unsure.into_iter().chain(idle).collect();
        Trial { id, measured: Some(measured), void, failed, notes, start_failure: None }
    }

    /// Returns the reason if the server failed: it refused connections, or gives no correct reply
    /// after the load.
    fn failure_after(&mut self, runner: &Runner, outcome: &Outcome) -> Option<String> {
        if outcome.gave_up {
            return Some("no further connection could be made".to_owned());
        }
        let wrong = runner.probe(&self.check, None).err()?;
        let ended = self.keeper.ended().map(|how| format!(" ({how})")).unwrap_or_default();
        Some(format!("no correct reply after the load: {wrong}{ended}"))
    }
}

impl ServerLoad {
    fn begin(driver: Driver, tree: impl Fn() -> Tree) -> Self {
        Self {
            driver,
            tree: tree(),
            sampler: Sampler::start(tree()),
            slices: Vec::new(),
            outcome: None,
            cpu: Cpu::default(),
            idle: Idle::default(),
            overrun: Overrun::default(),
        }
    }

    fn finish(self) -> Option<Measured> {
        // The connections are closed first. Open connections would keep processes of the server
        // alive during the last memory sample.
        drop(self.driver);
        let mut server = self.sampler.finish();
        server.cpu = self.cpu;
        Some(Measured { outcome: self.outcome?, server, slices: self.slices })
    }
}

impl Idle {
    fn begin(&mut self, cpu: Cpu) {
        self.since = Some((Instant::now(), cpu));
    }

    fn end(&mut self, cpu: Cpu) {
        if let Some((since, before)) = self.since.take() {
            self.time += since.elapsed();
            self.cpu += (cpu - before).total();
        }
    }

    fn note(&self) -> Option<String> {
        let share = self.cpu.as_secs_f64() / self.time.as_secs_f64().max(1e-9);
        (share > RESTLESS && self.time > Duration::from_secs(1)).then(|| {
            "busy between its turns, which disturbs the others: isolated = true keeps it apart"
                .to_owned()
        })
    }
}

/// Returns a note with the server's last output if the server ended during the load.
fn crash_note(completed: u64, keeper: &mut Keeper) -> Option<String> {
    let how = keeper.ended()?.to_owned();
    let output = keeper.last_output();
    let last = &output[output.len().saturating_sub(QUOTED_LINES)..];
    let quoted = match last {
        [] => String::new(),
        lines => format!("; the end of what it printed: {}", lines.join(" / ")),
    };
    Some(format!("crashed after {completed} requests ({how}){quoted}"))
}

/// Loads the server until the slice is complete, a signal arrives or the server ends.
fn drive(
    turns: &mut Turns,
    (stop, rate): (Stop, Option<Rate>),
    control: &Control,
    interrupt: &Interrupt,
    keeper: &mut Keeper,
) -> Result<Outcome, RunError> {
    let (done, ended) = mpsc::channel::<()>();
    let result = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let _done = done;
            turns.run(stop, rate, control)
        });
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOAD_INTERVAL) {
            if interrupt.is_set() || keeper.ended().is_some() {
                control.cancelled.store(true, Ordering::Relaxed);
            }
        }
        load.join()
    });
    if interrupt.is_set() {
        return Err(Halt::Interrupted.into());
    }
    let Ok(result) = result else {
        return Err(Halt::Broken("the load generator stopped half-way".to_owned()).into());
    };
    if let Some(how) = keeper.ended() {
        return Err(RunError::Trial(format!("the server was gone: {how}")));
    }
    result.map_err(|error| RunError::Trial(error.to_string()))
}

//! Runs the commands `before` and `after` of the experiment and of its configurations. Each command
//! runs to its end, under a keeper process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::experiment::{Configuration, Plan, Values};
use crate::keeper::{ENDED_WELL, Keeper, Launch};
use crate::trial::{Halt, READY_INTERVAL, Runner, broken};

/// Time limit of the experiment's commands `before` and `after`.
const PATIENCE: Duration = Duration::from_secs(600);

/// A command to run, with its context.
struct Work<'a> {
    argv: &'a [String],
    /// Description of the experiment or configuration that has the command, for error messages.
    of: &'a str,
    /// Text that precedes the reason of an error, such as "its command before: ". Empty for a
    /// command of the experiment.
    part: &'a str,
    cwd: &'a Path,
    env: Vec<(String, String)>,
    patience: Duration,
}

impl Runner {
    /// Runs one of the experiment's two commands: `before` precedes all rounds, and `after` follows
    /// them. `argv` selects the command, and `when` is its name for messages. Does nothing if the
    /// plan has no such command.
    pub(crate) fn run_once(&self, argv: fn(&Plan) -> &[String], when: &str) -> Result<(), Halt> {
        let argv = argv(&self.plan);
        if argv.is_empty() {
            return Ok(());
        }
        let keeper = Keeper::open(&self.program).map_err(broken)?;
        let values = self.values(&self.plan.dir, &keeper, &[])?;
        let of = format!("the experiment's command {when}");
        let (cwd, env) = (self.plan.dir.as_path(), Vec::new());
        self.run_to_end(
            keeper,
            &Work { argv, of: &of, part: "", cwd, env, patience: PATIENCE },
            &values,
        )
    }

    /// Runs one of a configuration's two commands: `before` precedes the start of its server, and
    /// `after` follows the end of its server. The time limit is the configuration's
    /// `ready_timeout`. Does nothing if `argv` is empty.
    pub(crate) fn run_beside(
        &self,
        configuration: &Configuration,
        argv: &[String],
        when: &str,
        values: &Values,
    ) -> Result<(), Halt> {
        if argv.is_empty() {
            return Ok(());
        }
        let keeper = Keeper::open(&self.program).map_err(broken)?;
        let cwd = configuration.dir.join(values.fill(&configuration.cwd));
        let env = configuration.env.iter();
        let work = Work {
            argv,
            of: &configuration.name,
            part: &format!("its command {when}: "),
            cwd: &cwd,
            env: env.map(|(name, value)| (name.clone(), values.fill(value))).collect(),
            patience: configuration.ready_timeout,
        };
        self.run_to_end(keeper, &work, values)
    }

    /// Runs the command until all of its processes end. A failure, or a run longer than
    /// `work.patience`, is an error with the last lines of output. An interruption is
    /// [`Halt::Interrupted`].
    fn run_to_end(&self, mut keeper: Keeper, work: &Work<'_>, values: &Values) -> Result<(), Halt> {
        let launch = Launch {
            argv: self.fill_command(work.argv, values),
            env: work.env.clone(),
            cwd: work.cwd.to_owned(),
            cpus: self.server_cpus.clone(),
            grace: Duration::from_secs(1),
        };
        keeper.start(launch).map_err(broken)?;
        let began = Instant::now();
        let reason = loop {
            if self.interrupt.is_set() {
                return Err(Halt::Interrupted);
            }
            match keeper.ended() {
                Some(ENDED_WELL) => return Ok(()),
                Some(how) => break how.to_owned(),
                None if began.elapsed() > work.patience => {
                    break format!("it did not end within {:?}", work.patience);
                }
                None => std::thread::sleep(READY_INTERVAL),
            }
        };
        let output = keeper.last_output();
        let reason = format!("{}{reason}", work.part);
        Err(Halt::CannotStart { configuration: work.of.to_owned(), reason, output })
    }
}

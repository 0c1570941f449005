//! Services of a trial, such as databases: started before the server, ended after it, not measured.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::experiment::{Configuration, Plan, Service, ServiceValues, Values, in_words, missing};
use crate::keeper::{ENDED_WELL, Keeper, Launch};
use crate::trial::{Halt, READY_INTERVAL, Runner, broken, is_listening};

/// Running services of a trial. Dropping this value ends the services, in the reverse order of
/// their starts.
#[derive(Default)]
pub struct Services {
    keepers: Vec<Keeper>,
    /// Ports and directories of the services.
    pub values: Vec<ServiceValues>,
}

impl Drop for Services {
    fn drop(&mut self) {
        while let Some(keeper) = self.keepers.pop() {
            keeper.stop();
        }
    }
}

/// Checks that this machine has everything that the services of `plan` require.
pub fn check(plan: &Plan) -> Result<(), Halt> {
    for service in &plan.services {
        let missing = missing(&service.requires);
        if !missing.is_empty() {
            return Err(cannot_start(service, in_words(&missing), Vec::new()));
        }
    }
    Ok(())
}

impl Runner {
    /// Starts the services of the plan in order. Each service starts after the previous one
    /// listens.
    pub(crate) fn start_services(&self) -> Result<Services, Halt> {
        let mut services = Services::default();
        for service in &self.plan.services {
            let mut keeper = Keeper::open(&self.program).map_err(broken)?;
            let values = self.values(&self.plan.dir, &keeper, &services.values)?;
            self.place_templates(&service.templates, &values)?;
            keeper.start(self.launch_service(service, &values)).map_err(broken)?;
            self.until_listening(service, &values, &mut keeper)?;
            let Values { port, tmp, .. } = values;
            services.values.push(ServiceValues { name: service.name.clone(), port, tmp });
            services.keepers.push(keeper);
        }
        Ok(services)
    }

    fn launch_service(&self, service: &Service, values: &Values) -> Launch {
        let env = service.env.iter().map(|(name, value)| (name.clone(), values.fill(value)));
        let own_cpus = !service.cpus.is_empty();
        Launch {
            argv: self.fill_command(&service.start, values),
            env: env.collect(),
            cwd: self.plan.dir.join(values.fill(&service.cwd)),
            cpus: if own_cpus { service.cpus.clone() } else { self.server_cpus.clone() },
            grace: service.stop_timeout,
        }
    }

    /// Waits until the service accepts connections. The end of the service, a wait longer than
    /// `ready_timeout` and an interruption are errors.
    fn until_listening(
        &self,
        service: &Service,
        values: &Values,
        keeper: &mut Keeper,
    ) -> Result<(), Halt> {
        let address = values.fill(&service.listens);
        let began = Instant::now();
        while !is_listening(&address) {
            if self.interrupt.is_set() {
                return Err(Halt::Interrupted);
            }
            let reason = match keeper.ended() {
                Some(how) => format!("it never listened on {address}: {how}"),
                None if began.elapsed() > service.ready_timeout => {
                    format!("it did not listen on {address} within {:?}", service.ready_timeout)
                }
                None => {
                    std::thread::sleep(READY_INTERVAL);
                    continue;
                }
            };
            return Err(cannot_start(service, reason, keeper.last_output()));
        }
        Ok(())
    }
}

fn cannot_start(service: &Service, reason: String, output: Vec<String>) -> Halt {
    Halt::CannotStart { configuration: format!("service {}", service.name), reason, output }
}

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

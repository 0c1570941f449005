//! Services of a trial, such as databases: started before the server, ended after it, not measured.

use std::time::Instant;

use crate::experiment::{Plan, Service, ServiceValues, Values, in_words, missing};
use crate::keeper::{Keeper, Launch};
use crate::listening::is_listening;
use crate::trial::Halt;
use crate::trial::{READY_INTERVAL, Runner, broken};

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

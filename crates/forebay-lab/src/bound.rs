//! Checks that the server limited the rate of a trial, and not the load generator.

use forebay_load::Outcome;

use crate::experiment::{Configuration, Load};
use crate::number;
use crate::watch::Series;

/// A server counts as busy if it uses more than this share of its usable cores. The clients' pauses
/// count as the limit if the rate exceeds this share of the highest rate that the pauses allow.
const BUSY: f64 = 0.9;

/// Returns the reason if the trial is void because the load generator limited the rate, not the
/// server.
///
/// The load generator is the limit if its threads were busy for more than 85 % of the time, and the
/// server used less than 90 % of the usable cores. Returns `None` in all other cases, and if
/// Forebay did not observe the server's processes.
pub(crate) fn client_bound(
    usable_cores: f64,
    outcome: &Outcome,
    server: &Series,
) -> Option<String> {
    let taken = server.cpu.total().as_secs_f64() / outcome.duration.as_secs_f64().max(1e-9);
    let is_known = server.most.processes > 0;
    if !outcome.client.saturated || !is_known || taken >= BUSY * usable_cores {
        return None;
    }
    let reason = "bound by the load generator, whose threads were busy while the server was not; \
                  give [load] more threads, or cores of its own";
    Some(reason.to_owned())
}

/// Returns a note if the clients' pauses limited the rate, not the server. Returns `None` for a
/// load without pauses.
///
/// If replies take no time, `c` clients with pauses of `z` seconds send `c / z` requests/s
/// (Little's law). The pauses are the limit if the rate exceeds 90 % of `c / z`.
pub(crate) fn think_bound(load: &Load, outcome: &Outcome) -> Option<String> {
    let most = f64::from(load.connections) / load.think?.as_secs_f64();
    let rate = outcome.requests.completed as f64 / outcome.duration.as_secs_f64().max(1e-9);
    (rate > BUSY * most).then(|| {
        format!(
            "bound by the clients' pauses, which allow {} requests/s: compare the times of replies",
            number::rate(most)
        )
    })
}

/// Returns the number of cores that a server could use, at most one per thread of the server.
/// Without `cpus`, each thread of the client takes one core. The server has the remaining cores,
/// but at least one.
pub(crate) fn usable_cores(
    cores: usize,
    configuration: &Configuration,
    outcome: &Outcome,
    server: &Series,
) -> f64 {
    let open = match configuration.cpus.len() {
        0 => cores.saturating_sub(outcome.threads).max(1),
        listed => listed,
    };
    open.min(server.most.threads.max(1) as usize) as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::experiment::Plan;
    use crate::watch::{Cpu, CpuMethod, Glance};

    fn server(cores_taken: f64, threads: u64) -> Series {
        let user = Duration::from_secs_f64(cores_taken);
        Series {
            cpu: Cpu { user, system: Duration::ZERO },
            cpu_method: CpuMethod::Proc,
            memory: Vec::new(),
            rss_start: 0,
            rss_end: 0,
            most: Glance { threads, processes: 1, ..Glance::default() },
        }
    }

    fn outcome(saturated: bool) -> Outcome {
        Outcome {
            duration: Duration::from_secs(1),
            client: forebay_load::ClientUsage { saturated, ..Default::default() },
            ..Outcome::default()
        }
    }

    fn is_void(cores: usize, saturated: bool, server: &Series) -> bool {
        let text = "[load]\n[[configuration]]\nname = \"a\"\nstart = [\"a\"]\n\
                    url = \"http://127.0.0.1:{port}\"\n";
        let plan = Plan::parse(std::path::Path::new("a.toml"), text).unwrap();
        let outcome = outcome(saturated);
        let cores = usable_cores(cores, &plan.configurations[0], &outcome, server);
        client_bound(cores, &outcome, server).is_some()
    }

    #[test]
    fn a_trial_is_void_where_only_the_client_was_busy() {
        assert!(is_void(2, true, &server(0.5, 4)));
        assert!(!is_void(2, false, &server(0.5, 4)), "the client was idle");
        assert!(!is_void(2, true, &server(0.95, 4)), "both were busy");
        assert!(!is_void(8, true, &server(0.95, 1)), "one thread cannot take more than a core");
        assert!(is_void(8, true, &server(0.95, 8)), "it could have taken seven cores");
    }

    #[test]
    fn a_trial_tells_whether_the_clients_pauses_were_its_limit() {
        let text = "[load]\nthink = \"500ms\"\nconnections = 80\n[[configuration]]\nname = \"a\"\n\
                    start = [\"a\"]\nurl = \"http://127.0.0.1:{port}\"\n";
        let plan = Plan::parse(std::path::Path::new("a.toml"), text).unwrap();
        assert!(plan.configurations[0].isolated, "a turn may be shorter than a pause");
        let bound = |completed| {
            let mut outcome = outcome(false);
            outcome.requests.completed = completed;
            think_bound(&plan.load, &outcome)
        };
        assert!(bound(154).unwrap().contains("160 requests/s"), "{:?}", bound(154));
        assert_eq!(bound(22), None);
    }
}

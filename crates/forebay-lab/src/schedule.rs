//! Rounds: every configuration once per round, in an order that a seed decides.
//!
//! Randomised multiple interleaved trials (Abedi and Brecht, "Conducting Repeatable Experiments in
//! Highly Variable Cloud Computing Environments", ICPE 2017): what changes on the machine while the
//! experiment lasts then falls on all configurations alike instead of on the last one.

use std::fmt;

use crate::experiment::{Configuration, Plan};
use crate::progress::Progress;
use crate::trial::Trial;

/// Where a trial stands in the experiment; both count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The round.
    pub round: u32,
    /// The place within the round.
    pub order: u32,
}

/// Why an experiment ends before its last round.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// A signal asked for it.
    Interrupted,
    /// A configuration gave no right answer in its time.
    CannotStart {
        /// Its name.
        configuration: String,
        /// What happened instead.
        reason: String,
        /// The last lines that its server printed.
        output: Vec<String>,
    },
    /// Something that the experiment itself needs did not work.
    Broken(String),
}

impl fmt::Display for Halt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => out.write_str("interrupted by a signal"),
            Self::CannotStart { configuration, reason, .. } => {
                write!(out, "\"{configuration}\" could not be started: {reason}")
            }
            Self::Broken(reason) => out.write_str(reason),
        }
    }
}

/// Runs one trial: starts a fresh server, loads it, ends it. The scheduler knows no more of it.
pub trait Executor {
    /// A trial that went wrong in the middle is a void [`Trial`]; a [`Halt`] ends the experiment.
    fn run(&mut self, configuration: &Configuration, slot: Slot) -> Result<Trial, Halt>;
}

/// What came of all rounds.
#[derive(Debug)]
pub struct Rounds {
    /// Per configuration of the plan, its trials in the order of the rounds.
    pub trials: Vec<Vec<Trial>>,
    /// Rounds in which every configuration was tried.
    pub finished: u32,
    /// Why there are no more.
    pub halt: Option<Halt>,
}

/// Runs every round of `plan` with those configurations that `available` says can run.
pub fn run(
    plan: &Plan,
    available: &[bool],
    seed: u64,
    executor: &mut dyn Executor,
    progress: &mut dyn Progress,
) -> Rounds {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rounds =
        Rounds { trials: vec![Vec::new(); plan.configurations.len()], finished: 0, halt: None };
    for round in 1..=plan.rounds {
        for (place, index) in shuffled(plan.configurations.len(), &mut rng).into_iter().enumerate()
        {
            if !available[index] {
                continue;
            }
            let slot = Slot { round, order: place as u32 + 1 };
            let configuration = &plan.configurations[index];
            progress.begin(slot, configuration);
            match executor.run(configuration, slot) {
                Ok(trial) => {
                    progress.end(configuration, &trial);
                    rounds.trials[index].push(trial);
                }
                Err(halt) => {
                    rounds.halt = Some(halt);
                    return rounds;
                }
            }
        }
        rounds.finished = round;
    }
    rounds
}

fn shuffled(count: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    /// Writes down what it is asked to run.
    #[derive(Default)]
    struct Recorder {
        ran: Vec<(u32, u32, String)>,
        halt_at: Option<usize>,
    }

    impl Executor for Recorder {
        fn run(&mut self, configuration: &Configuration, slot: Slot) -> Result<Trial, Halt> {
            if self.halt_at == Some(self.ran.len()) {
                return Err(Halt::Interrupted);
            }
            self.ran.push((slot.round, slot.order, configuration.name.clone()));
            Ok(Trial::failed(slot, "not measured"))
        }
    }

    fn plan(names: &[&str], rounds: u32) -> Plan {
        let mut text = format!("[load]\nrounds = {rounds}\n");
        for name in names {
            text += &format!("[[configuration]]\nname = \"{name}\"\n");
            text += "start = [\"server\"]\nurl = \"http://127.0.0.1:{port}\"\n";
        }
        Plan::parse(std::path::Path::new("experiment.toml"), &text).unwrap()
    }

    fn order_of(plan: &Plan, available: &[bool], seed: u64) -> Vec<(u32, u32, String)> {
        let mut recorder = Recorder::default();
        let rounds = run(plan, available, seed, &mut recorder, &mut Silent);
        assert_eq!(rounds.finished, plan.rounds);
        recorder.ran
    }

    #[test]
    fn every_round_runs_every_configuration_once() {
        let plan = plan(&["a", "b", "c", "d"], 5);
        let ran = order_of(&plan, &[true; 4], 7);
        assert_eq!(ran.len(), 20);
        for (index, round) in ran.chunks(4).enumerate() {
            let mut names: Vec<&str> = round.iter().map(|(_, _, name)| name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, ["a", "b", "c", "d"]);
            assert!(round.iter().all(|(number, ..)| *number == index as u32 + 1));
            let places: Vec<u32> = round.iter().map(|(_, order, _)| *order).collect();
            assert_eq!(places, [1, 2, 3, 4]);
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        let plan = plan(&["a", "b", "c", "d", "e"], 6);
        let first = order_of(&plan, &[true; 5], 1);
        assert_eq!(first, order_of(&plan, &[true; 5], 1));
        assert_ne!(first, order_of(&plan, &[true; 5], 2));
    }

    #[test]
    fn the_order_differs_between_rounds() {
        let plan = plan(&["a", "b", "c", "d", "e"], 6);
        let ran = order_of(&plan, &[true; 5], 1);
        let names = |round: &[(u32, u32, String)]| -> Vec<String> {
            round.iter().map(|(_, _, name)| name.clone()).collect()
        };
        assert!(ran.chunks(5).any(|round| names(round) != names(&ran[..5])));
    }

    #[test]
    fn a_missing_configuration_does_not_change_the_order_of_the_others() {
        let plan = plan(&["a", "b", "c", "d"], 4);
        let with = order_of(&plan, &[true; 4], 3);
        let without = order_of(&plan, &[true, true, false, true], 3);
        let kept: Vec<_> = with.into_iter().filter(|(_, _, name)| name != "c").collect();
        assert_eq!(kept, without);
    }

    #[test]
    fn a_halt_keeps_what_was_measured() {
        let plan = plan(&["a", "b"], 3);
        let mut recorder = Recorder { halt_at: Some(3), ..Recorder::default() };
        let rounds = run(&plan, &[true; 2], 1, &mut recorder, &mut Silent);
        assert_eq!(rounds.finished, 1);
        assert_eq!(rounds.halt, Some(Halt::Interrupted));
        assert_eq!(rounds.trials.iter().map(Vec::len).sum::<usize>(), 3);
    }
}

//! Rounds: each round measures every configuration once, in an order determined by a seed.
//!
//! The method is that of randomised multiple interleaved trials (Abedi and Brecht, "Conducting
//! Repeatable Experiments in Highly Variable Cloud Computing Environments", ICPE 2017). If the
//! machine changes during the experiment, the change affects all configurations, and not only the
//! last one.
//!
//! Within a round, the servers run at the same time and are loaded one at a time, slice by slice.
//! The two slices of a compared pair are therefore only fractions of a second apart, as in duet
//! benchmarking (Bulej et al., ICPE 2020).

use crate::experiment::{Amount, Cell, Configuration, Plan};
use crate::profile::Profile;
use crate::results::Experiment;
use crate::trial::{Halt, Trial, TrialId};

/// Configurations whose servers run at the same time and are loaded one after the other, slice by
/// slice.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Members in the order of their start.
    pub members: Vec<Member<'a>>,
    /// Slices of all members, in the order of their execution.
    pub turns: Vec<Turn>,
}

/// Trial of one configuration within a group.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Configuration that the trial measures.
    pub configuration: &'a Configuration,
    /// Round of the trial, and its position within the round.
    pub id: TrialId,
    /// Index of the configuration in the plan.
    index: usize,
}

impl<'a> Member<'a> {
    /// Returns the member for a trial outside the rounds, such as a profile trial.
    pub fn apart(configuration: &'a Configuration) -> Self {
        Self { configuration, id: TrialId { round: 0, order: 0 }, index: 0 }
    }
}

/// Slice of one member's load. During a turn, only this member's server is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Index of the member in its group.
    pub member: usize,
    /// Number of the slice, from 0. Slices with equal numbers are compared with each other.
    pub slice: u32,
    /// Amount of load in the slice.
    pub amount: Amount,
}

/// Runner of a group's trials: starts a fresh server for each trial, loads the servers in turns,
/// and ends them. The trait keeps the scheduler independent of processes.
pub trait Executor {
    /// Runs the trials and returns them in the order of the group's members. A failed trial is
    /// returned as a void [`Trial`]. A [`Halt`] ends the experiment.
    fn run(&mut self, group: &Group<'_>) -> Result<Vec<Trial>, Halt>;
}

/// Receiver of progress events.
pub trait Progress {
    /// Reports the number of trials that are still to run.
    fn expect(&mut self, trials: u64);
    /// Reports that the trials of a group begin.
    fn begin(&mut self, round: u32, group: &Group<'_>);
    /// Reports that a trial has ended.
    fn end(&mut self, configuration: &Configuration, trial: &Trial);
    /// Reports that the profile trial of a configuration begins.
    fn begin_profile(&mut self, _: &Configuration) {}
    /// Reports that a profile trial has ended.
    fn end_profile(&mut self, _: &Configuration, _: &Profile) {}
    /// Saves the results so far. The scheduler calls this after the trials of each group.
    ///
    /// # Errors
    /// Fails if the results cannot be saved. The failure ends the experiment.
    fn save(&mut self, experiment: &Experiment) -> Result<(), String> {
        let _ = experiment;
        Ok(())
    }
}

/// Receiver that ignores all progress events.
pub struct Silent;

impl Progress for Silent {
    fn expect(&mut self, _: u64) {}
    fn begin(&mut self, _: u32, _: &Group<'_>) {}
    fn end(&mut self, _: &Configuration, _: &Trial) {}
}

/// Results of all rounds so far.
#[derive(Debug)]
pub struct Rounds {
    /// Trials of each configuration of the plan, in the order of the rounds.
    pub trials: Vec<Vec<Trial>>,
    /// Number of complete rounds. A complete round contains a trial of every configuration.
    pub finished: u32,
    /// Reason why the rounds ended early; `None` if all rounds were run.
    pub halt: Option<Halt>,
}

/// Callback after each group. Returns false to end the experiment.
pub type Decide<'a> = &'a mut dyn FnMut(&mut dyn Progress, &Rounds, Moment) -> Result<bool, Halt>;

/// Position within a round at which the callback decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The round has further groups to run.
    WithinRound,
    /// All groups of the round have run.
    AfterRound,
}

/// Runs all rounds of `plan`, or until `decide` ends the experiment.
///
/// Configurations that are not `available` are skipped. `earlier` contains the trials of an earlier
/// run with the same seed, which are not repeated.
pub fn run(
    plan: &Plan,
    (available, earlier): (&[bool], Vec<Vec<Trial>>),
    seed: u64,
    executor: &mut dyn Executor,
    progress: &mut dyn Progress,
    decide: Decide<'_>,
) -> Rounds {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut rounds = Rounds { trials: earlier, finished: 0, halt: None };
    let able = rounds.trials.iter().zip(available).filter(|(_, able)| **able);
    let left = able.map(|(trials, _)| u64::from(plan.rounds).saturating_sub(trials.len() as u64));
    progress.expect(left.sum());
    for round in 1..=plan.rounds {
        let mut groups = groups(plan, available, round, &mut rng);
        groups.retain(|group| !rounds.has(group));
        let mut left = groups.len();
        for group in groups {
            if let Err(halt) = rounds.run(&group, executor, progress) {
                rounds.halt = Some(halt);
                return rounds;
            }
            left -= 1;
            rounds.finished = if left == 0 { round } else { round - 1 };
            let moment = if left == 0 { Moment::AfterRound } else { Moment::WithinRound };
            match decide(progress, &rounds, moment) {
                Ok(true) => {}
                Ok(false) => return rounds,
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

impl Rounds {
    /// Returns true if the trials of `group` have been run.
    fn has(&self, group: &Group<'_>) -> bool {
        let has = |member: &Member<'_>| {
            self.trials[member.index].iter().any(|trial| trial.id.round == member.id.round)
        };
        group.members.iter().all(has)
    }

    fn run(
        &mut self,
        group: &Group<'_>,
        executor: &mut dyn Executor,
        progress: &mut dyn Progress,
    ) -> Result<(), Halt> {
        progress.begin(group.members[0].id.round, group);
        let trials = executor.run(group)?;
        for (member, trial) in group.members.iter().zip(trials) {
            progress.end(member.configuration, &trial);
            self.trials[member.index].push(trial);
        }
        Ok(())
    }
}

/// Returns the groups of a round in their random order. The configurations of one matrix cell form
/// a group. Each configuration has a random position, and a group has the first position of its
/// configurations. An isolated configuration forms a group of its own.
fn groups<'a>(
    plan: &'a Plan,
    available: &[bool],
    round: u32,
    rng: &mut fastrand::Rng,
) -> Vec<Group<'a>> {
    let order = shuffled(plan.configurations.len(), rng);
    // Random numbers are drawn for all configurations, even for those that cannot run. A missing
    // server therefore does not change the order of the others.
    let mut cells: Vec<Sweeps<'a>> = Vec::new();
    for configuration in &plan.configurations {
        if cells.iter().all(|sweeps| sweeps.cell != configuration.cell.as_ref()) {
            let slices = plan.load_of(configuration).slices();
            let orders = slices.iter().map(|_| shuffled(plan.configurations.len(), rng)).collect();
            let cell = configuration.cell.as_ref();
            cells.push(Sweeps { cell, slices, orders, group: None });
        }
    }
    let members = order.into_iter().enumerate().filter(|(_, index)| available[*index]);
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (place, index) in members {
        let configuration = &plan.configurations[index];
        let id = TrialId { round, order: place as u32 + 1 };
        let member = Member { configuration, id, index };
        if configuration.isolated {
            let turns =
                vec![Turn { member: 0, slice: 0, amount: plan.load_of(configuration).amount }];
            groups.push(Group { members: vec![member], turns });
            continue;
        }
        let sweeps = cells.iter_mut().find(|sweeps| sweeps.cell == configuration.cell.as_ref());
        let at = sweeps.map_or(0, |sweeps| *sweeps.group.get_or_insert(groups.len()));
        if at == groups.len() {
            groups.push(Group { members: Vec::new(), turns: Vec::new() });
        }
        groups[at].members.push(member);
    }
    for sweeps in &cells {
        if let Some(group) = sweeps.group.map(|at| &mut groups[at]) {
            group.turns = turns(&group.members, &sweeps.orders, &sweeps.slices);
        }
    }
    groups
}

/// Order of the configurations of a matrix cell, for each slice.
struct Sweeps<'a> {
    cell: Option<&'a Cell>,
    slices: Vec<Amount>,
    orders: Vec<Vec<usize>>,
    /// Index of the group of this cell, if a member of the cell can run.
    group: Option<usize>,
}

fn turns(members: &[Member<'_>], sweeps: &[Vec<usize>], slices: &[Amount]) -> Vec<Turn> {
    let place = |index: usize| members.iter().position(|member| member.index == index);
    let sweep = |(slice, (order, amount)): (usize, (&Vec<usize>, &Amount))| -> Vec<Turn> {
        let turn = |member| Turn { member, slice: slice as u32, amount: *amount };
        order.iter().filter_map(|&index| place(index).map(turn)).collect()
    };
    sweeps.iter().zip(slices).enumerate().flat_map(sweep).collect()
}

fn shuffled(count: usize, rng: &mut fastrand::Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executor that only records the trials it is asked to run.
    #[derive(Default)]
    struct Recorder {
        ran: Vec<(u32, u32, String)>,
        /// Turns of each group in order: configuration and number of the slice.
        turns: Vec<Vec<(String, u32)>>,
        halt_at: Option<usize>,
    }

    impl Executor for Recorder {
        fn run(&mut self, group: &Group<'_>) -> Result<Vec<Trial>, Halt> {
            if self.halt_at == Some(self.turns.len()) {
                return Err(Halt::Interrupted);
            }
            let name = |member: usize| group.members[member].configuration.name.clone();
            self.turns
                .push(group.turns.iter().map(|turn| (name(turn.member), turn.slice)).collect());
            let trial = |member: &Member<'_>| {
                let TrialId { round, order } = member.id;
                self.ran.push((round, order, member.configuration.name.clone()));
                Trial::failed(member.id, "not measured")
            };
            Ok(group.members.iter().map(trial).collect())
        }
    }

    fn plan(names: &[&str], rounds: u32) -> Plan {
        let mut text =
            format!("[load]\nrounds = {rounds}\nduration = \"1500ms\"\nslice = \"150ms\"\n");
        for name in names {
            text += &format!("[[configuration]]\nname = \"{name}\"\n");
            text += "start = [\"server\"]\nurl = \"http://127.0.0.1:{port}\"\n";
        }
        Plan::parse(std::path::Path::new("experiment.toml"), &text).unwrap()
    }

    fn run_all(plan: &Plan, available: &[bool], seed: u64, recorder: &mut Recorder) -> Rounds {
        let earlier = vec![Vec::new(); plan.configurations.len()];
        go_on(plan, (available, earlier), seed, recorder)
    }

    fn go_on(
        plan: &Plan,
        from: (&[bool], Vec<Vec<Trial>>),
        seed: u64,
        recorder: &mut Recorder,
    ) -> Rounds {
        run(plan, from, seed, recorder, &mut Silent, &mut |_, _, _| Ok(true))
    }

    fn order_of(plan: &Plan, available: &[bool], seed: u64) -> Vec<(u32, u32, String)> {
        let mut recorder = Recorder::default();
        let rounds = run_all(plan, available, seed, &mut recorder);
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
    fn every_sweep_of_a_round_has_a_slice_of_each_in_an_order_of_its_own() {
        let plan = plan(&["a", "b", "c"], 2);
        let mut recorder = Recorder::default();
        run_all(&plan, &[true; 3], 5, &mut recorder);
        assert_eq!(recorder.turns.len(), 2, "one group a round");
        let mut orders = std::collections::BTreeSet::new();
        for turns in &recorder.turns {
            assert_eq!(turns.len(), 10 * 3, "1.5 s in slices of 150 ms");
            for (number, sweep) in turns.chunks(3).enumerate() {
                assert!(sweep.iter().all(|(_, slice)| *slice == number as u32));
                let mut names: Vec<&str> = sweep.iter().map(|(name, _)| name.as_str()).collect();
                orders.insert(names.join(""));
                names.sort_unstable();
                assert_eq!(names, ["a", "b", "c"]);
            }
        }
        assert!(orders.len() > 3, "{orders:?}");
    }

    #[test]
    fn isolated_configurations_are_loaded_alone_in_one_piece() {
        let mut plan = plan(&["a", "b", "c"], 4);
        plan.configurations[1].isolated = true;
        let mut recorder = Recorder::default();
        run_all(&plan, &[true; 3], 5, &mut recorder);
        assert_eq!(recorder.turns.len(), 8, "two groups a round");
        for turns in recorder.turns {
            let alone = turns == [("b".to_owned(), 0)];
            assert!(alone || turns.len() == 20 && turns.iter().all(|(name, _)| name != "b"));
        }
    }

    #[test]
    fn each_cell_of_a_matrix_takes_its_turns_apart() {
        let text = "[load]\nrounds = 1\nrequests = 800\n[matrix]\nconnections = [1, 4]\n\
                    [[configuration]]\nname = \"a\"\nurl = \"http://h/\"\n\
                    [[configuration]]\nname = \"b\"\nurl = \"http://h/\"\n";
        let plan = Plan::parse(std::path::Path::new("experiment.toml"), text).unwrap();
        let mut recorder = Recorder::default();
        run_all(&plan, &[true; 4], 5, &mut recorder);
        assert_eq!(recorder.turns.len(), 2, "a group for each cell");
        for turns in recorder.turns {
            let cell = if turns[0].0.ends_with("[connections 1]") { "1]" } else { "4]" };
            assert!(turns.iter().all(|(name, _)| name.ends_with(cell)), "{turns:?}");
            // Each slice has 20 requests per connection.
            assert_eq!(turns.len(), if cell == "1]" { 2 * 40 } else { 2 * 10 });
        }
    }

    #[test]
    fn slices_of_requests_add_up_to_what_was_asked_for() {
        let mut load = plan(&["a"], 1).load;
        for (requests, connections, count) in [(5000, 10, 25), (40, 2, 1), (1_000_001, 10, 50)] {
            (load.amount, load.connections) = (Amount::Requests(requests), connections);
            let slices = load.slices();
            assert_eq!(slices.len(), count);
            let each = slices.iter().map(|amount| match amount {
                Amount::Requests(requests) => *requests,
                Amount::Duration(_) => 0,
            });
            assert_eq!(each.sum::<u64>(), requests);
        }
    }

    #[test]
    fn no_more_rounds_than_are_needed() {
        let plan = plan(&["a", "b"], 9);
        let mut recorder = Recorder::default();
        let mut more = |_: &mut dyn Progress, rounds: &Rounds, _| Ok(rounds.finished < 4);
        let from = (&[true; 2][..], vec![Vec::new(); 2]);
        let rounds = run(&plan, from, 1, &mut recorder, &mut Silent, &mut more);
        assert_eq!((rounds.finished, rounds.halt), (4, None));
        assert_eq!(recorder.ran.len(), 8);
    }

    #[test]
    fn a_halt_keeps_what_was_measured() {
        let plan = plan(&["a", "b"], 3);
        let mut recorder = Recorder { halt_at: Some(1), ..Recorder::default() };
        let rounds = run_all(&plan, &[true; 2], 1, &mut recorder);
        assert_eq!(rounds.finished, 1);
        assert_eq!(rounds.halt, Some(Halt::Interrupted));
        assert_eq!(rounds.trials.iter().map(Vec::len).sum::<usize>(), 2);
    }

    #[test]
    fn a_resumed_run_skips_earlier_trials_and_keeps_the_order() {
        let mut plan = plan(&["a", "b", "c"], 4);
        plan.configurations[1].isolated = true;
        for halt_at in 0..8 {
            let mut whole = Recorder::default();
            run_all(&plan, &[true; 3], 9, &mut whole);
            let mut first = Recorder { halt_at: Some(halt_at), ..Recorder::default() };
            let earlier = run_all(&plan, &[true; 3], 9, &mut first);
            let mut second = Recorder::default();
            let all = go_on(&plan, (&[true; 3], earlier.trials), 9, &mut second);
            assert_eq!([first.ran, second.ran].concat(), whole.ran, "halted at {halt_at}");
            assert_eq!([first.turns, second.turns].concat(), whole.turns);
            assert_eq!((all.finished, all.trials[2].len()), (4, 4));
        }
    }

    #[test]
    fn a_place_for_results_that_is_lost_ends_it_at_once() {
        let plan = plan(&["a", "b"], 3);
        let mut recorder = Recorder::default();
        let full = || Halt::Broken("no space left".to_owned());
        let from = (&[true; 2][..], vec![Vec::new(); 2]);
        let rounds = run(&plan, from, 1, &mut recorder, &mut Silent, &mut |_, _, _| Err(full()));
        assert_eq!((rounds.halt, recorder.turns.len()), (Some(full()), 1));
    }
}

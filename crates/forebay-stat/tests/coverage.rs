//! Tests how often the 95 % interval of a ratio contains the true ratio in simulated experiments.
//! Rounds differ, slices differ within a round, and some slices are disturbed.

use forebay_stat::{Verdict, ratio_of_rounds};

const EXPERIMENTS: usize = 1500;

/// Parameters of the simulated machine.
#[derive(Clone, Copy)]
struct Noise {
    /// Standard deviation of a round's log ratio, because server starts differ.
    rounds: f64,
    /// Standard deviation of a slice's log ratio within its round.
    slices: f64,
    /// Share of slices that lose half of their rate. It applies to each side separately.
    disturbed: f64,
}

fn normal(random: &mut fastrand::Rng) -> f64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn experiment(
    random: &mut fastrand::Rng,
    (rounds, slices): (usize, usize),
    truth: f64,
    noise: Noise,
) -> Vec<Vec<(f64, f64)>> {
    let mut round = || {
        let start = truth.ln() + noise.rounds * normal(random);
        let mut slice = || {
            let log = start + noise.slices * normal(random);
            let mut side =
                |rate: f64| if random.f64() < noise.disturbed { rate / 2.0 } else { rate };
            (side(1000.0 * log.exp()), side(1000.0))
        };
        (0..slices).map(|_| slice()).collect()
    };
    (0..rounds).map(|_| round()).collect()
}

/// Returns the share of experiments whose interval contains the true ratio.
fn coverage(seed: u64, size: (usize, usize), noise: Noise) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let truth = 1.05;
    let holds = |_: &usize| {
        let [low, high] = ratio_of_rounds(&experiment(&mut random, size, truth, noise)).ci95;
        low <= truth && truth <= high
    };
    (0..EXPERIMENTS).filter(holds).count() as f64 / EXPERIMENTS as f64
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let calm = Noise { rounds: 0.0, slices: 0.08, disturbed: 0.0 };
    let starts = Noise { rounds: 0.02, ..calm };
    let disturbed = Noise { disturbed: 0.06, ..starts };
    for (case, noise) in [calm, starts, disturbed].into_iter().enumerate() {
        for (seed, size) in
            [(1, (2, 20)), (2, (4, 7)), (3, (6, 33)), (4, (12, 10)), (5, (6, 1)), (10, (10, 12))]
        {
            // With one slice per round, the interval is that of a plain mean over rounds. Disturbed
            // slices cannot be trimmed then, so this combination is not tested.
            if size.1 == 1 && case == 2 {
                continue;
            }
            let found = coverage(seed, size, noise);
            assert!((0.93..=0.97).contains(&found), "{found} for noise {case}, {size:?}");
        }
    }
}

#[test]
fn a_single_round_covers_what_varies_within_it() {
    for (seed, slices) in [(6, 10), (7, 20), (8, 50)] {
        let noise = Noise { rounds: 0.0, slices: 0.08, disturbed: 0.0 };
        let found = coverage(seed, (1, slices), noise);
        assert!((0.925..=0.975).contains(&found), "{found} for {slices} slices");
    }
}

#[test]
fn five_percent_are_found_and_nothing_is_not() {
    let noise = Noise { rounds: 0.005, slices: 0.08, disturbed: 0.05 };
    let mut random = fastrand::Rng::with_seed(9);
    let mut verdicts = |truth: f64| {
        let mut verdict =
            |_| ratio_of_rounds(&experiment(&mut random, (6, 33), truth, noise)).verdict();
        (0..200).map(&mut verdict).filter(|verdict| *verdict != Verdict::Same).count()
    };
    let (found, invented) = (verdicts(0.95), verdicts(1.0));
    assert!(found >= 180, "found {found} of 200");
    assert!(invented <= 10, "invented {invented} of 200");
}

/// The parameters were measured in `examples/validation`. They are the difference between two
/// starts of a Python server, and the share of extreme slices.
#[test]
fn the_same_load_in_more_rounds_finds_more() {
    let noise = Noise { rounds: 0.025, slices: 0.05, disturbed: 0.05 };
    let mut random = fastrand::Rng::with_seed(11);
    let mut found = |size: (usize, usize), truth: f64| {
        let mut verdict =
            |_| ratio_of_rounds(&experiment(&mut random, size, truth, noise)).verdict();
        (0..400).map(&mut verdict).filter(|verdict| *verdict != Verdict::Same).count()
    };
    let (few, many) = (found((6, 7), 40.0 / 42.0), found((10, 12), 40.0 / 42.0));
    assert!(many >= 380, "found {many} of 400");
    assert!(few < many - 40, "found {few} of 400 in six rounds, {many} in ten");
    let invented = found((10, 12), 1.0);
    assert!(invented <= 20, "invented {invented} of 400");
}

//! From trials to rows and reports, without running anything.

use std::path::Path;
use std::time::Duration;

use forebay_lab::{
    Cpu, CpuMethod, Experiment, Glance, Halt, Machine, Measured, Plan, Point, Results, Series,
    Slot, Trial, report, rows,
};
use forebay_load::{Bytes, Client, Failures, Outcome, Requests};
use forebay_stat::Latency;

const SECOND: Duration = Duration::from_secs(1);

/// A trial of one second with `completed` requests of `us` microseconds each.
fn trial(round: u32, completed: u64, us: u64) -> Trial {
    let mut latency = Latency::new();
    (0..completed).for_each(|_| latency.record_us(us));
    let outcome = Outcome {
        url: "http://127.0.0.1/".to_owned(),
        protocol: forebay_load::Protocol::Http,
        connections: 1,
        streams: 1,
        threads: 1,
        duration: SECOND,
        requests: Requests { sent: completed, completed, ..Requests::default() },
        bytes: Bytes::default(),
        latency,
        client: Client::default(),
        first_failure: None,
        gave_up: false,
    };
    let server = Series {
        cpu: Cpu { user: Duration::from_millis(30), system: Duration::from_millis(20) },
        cpu_method: CpuMethod::Cgroup,
        memory: vec![
            Point { at: Duration::ZERO, rss: 5_000_000 },
            Point { at: SECOND, rss: 7_000_000 },
        ],
        rss_start: 5_000_000,
        rss_end: 6_000_000,
        most: Glance { rss: 7_000_000, threads: 2, processes: 1, fds: 9 },
    };
    let measured = Some(Measured { outcome, server });
    Trial { slot: Slot { round, order: 1 }, measured, void: None, failed: false, notes: Vec::new() }
}

fn experiment(names: &[&str], trials: Vec<Vec<Trial>>) -> Experiment {
    let mut text = "title = \"T\"\n[load]\n".to_owned();
    for name in names {
        text += &format!("[[configuration]]\nname = {name:?}\nstart = [\"server\"]\n");
        text += "url = \"http://127.0.0.1:{port}\"\n";
    }
    let plan = Plan::parse(Path::new("experiment.toml"), &text).unwrap();
    let results = plan.configurations.iter().zip(trials);
    let results = results.map(|(configuration, trials)| Results {
        configuration: configuration.clone(),
        missing: Vec::new(),
        version: None,
        trials,
    });
    Experiment {
        results: results.collect(),
        seed: u64::MAX,
        against_itself: false,
        machine: Machine::default(),
        rounds_finished: 2,
        incomplete: None,
        halt: None,
        plan,
    }
}

#[test]
fn percentiles_are_of_all_requests_together() {
    // Averaged, the medians would be 550 us. Of all 1,100 requests, 1,000 took 1,000 us.
    let experiment = experiment(&["a"], vec![vec![trial(1, 100, 100), trial(2, 1000, 1000)]]);
    let row = &rows(&experiment)[0];
    assert_eq!(row.latency.percentile_us(50.0), 1000);
    assert_eq!(row.rate.unwrap().mean, 550.0);
    assert_eq!(row.cpu_us_per_request, Some(100_000.0 / 1100.0));
    assert_eq!(row.memory_growth, Some(1_000_000.0));
    assert_eq!(row.memory_most, Some(7_000_000));
}

#[test]
fn ratios_pair_what_ran_in_the_same_round() {
    // Round 2 of the baseline is lost; paired by place the ratios would be 2, 1 and 4.
    let mut lost = trial(2, 400, 10);
    lost.void = Some("x".to_owned());
    let baseline = vec![trial(1, 100, 10), lost, trial(3, 200, 10)];
    let candidate = vec![trial(1, 200, 10), trial(2, 100, 10), trial(3, 400, 10)];
    let experiment = experiment(&["a", "b"], vec![baseline, candidate]);
    let rows = rows(&experiment);
    let ratio = rows[1].ratio.unwrap();
    assert_eq!(ratio.pairs, 2);
    assert!((ratio.mean - 2.0).abs() < 1e-9);
    assert!(rows[0].ratio.is_none());
}

#[test]
fn a_void_trial_counts_for_nothing_but_its_failures() {
    let mut void = trial(2, 5, 10);
    void.void = Some("the server fell over".to_owned());
    let requests = &mut void.measured.as_mut().unwrap().outcome.requests;
    requests.failed = 3;
    requests.failures = Failures { read: 3, ..Failures::default() };
    let experiment = experiment(&["a"], vec![vec![trial(1, 100, 10), void]]);
    let row = &rows(&experiment)[0];
    assert_eq!((row.counted, row.failed), (1, 3));
    assert_eq!(row.rate.unwrap().mean, 100.0);
    assert_eq!(row.notes[0], "1 of 2 trials void: the server fell over");
    assert_eq!(row.notes[1], "failed requests: 3 read");
}

#[test]
fn notes_cannot_command_a_terminal() {
    let mut loud = trial(1, 100, 10);
    loud.notes = vec!["\u{1b}[31mred\nand more".to_owned()];
    let experiment = experiment(&["a"], vec![vec![loud]]);
    assert_eq!(rows(&experiment)[0].notes, [" [31mred and more"]);
}

#[test]
fn every_report_is_written_of_an_experiment_without_a_trial() {
    let mut empty = experiment(&["a", "b"], vec![Vec::new(), Vec::new()]);
    empty.halt = Some(Halt::Interrupted);
    empty.incomplete = Some("interrupted by a signal".to_owned());
    let page = report::html(&empty).unwrap();
    assert!(page.contains("interrupted by a signal") && !page.contains("<svg"));
    assert!(report::markdown(&empty).contains("**Incomplete:**"));
    assert!(report::table(&empty).contains("a (baseline)"));
    let json = report::json(&empty);
    assert_eq!(json["complete"], false);
    assert_eq!(json["seed"], u64::MAX);
}

#[test]
fn conclusions_name_a_winner_only_where_there_is_one() {
    let of = |rates: [u64; 3]| rates.iter().zip(1..).map(|(r, n)| trial(n, *r, 10)).collect();
    let trials =
        vec![of([100, 101, 99]), of([200, 204, 197]), of([101, 100, 100]), of([10, 900, 99])];
    let experiment = experiment(&["base", "fast", "same", "unsteady"], trials);
    let said = report::conclusions(&rows(&experiment));
    assert!(said[0].starts_with("fast: 2.00 times the rate of base"), "{said:?}");
    assert!(said[1].starts_with("same: no difference from base"), "{said:?}");
    assert!(said[2].starts_with("unsteady: cannot be told from base"), "{said:?}");
}

#[test]
fn charts_take_extreme_figures_and_names() {
    let name = "a name far too long for any axis <&\"'> that must still be well-formed";
    let trials = vec![vec![trial(1, 1, 1)], vec![trial(1, 60_000, 3_000_000), trial(2, 60_000, 1)]];
    let page = report::html(&experiment(&[name, "b"], trials)).unwrap();
    for chart in page.split("<svg ").skip(1) {
        let svg = format!("<svg {}</svg>", chart.split("</svg>").next().unwrap());
        roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

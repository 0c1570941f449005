//! Tests of rows and reports, made from trials that never ran.

use std::path::Path;
use std::time::Duration;

use forebay_lab::{
    Cpu, CpuMethod, Evidence, Experiment, Glance, Halt, Machine, Measured, Plan, Point, Results,
    Series, Slice, Trial, TrialId, report, rows,
};
use forebay_load::{Failures, Outcome, Requests};
use forebay_stat::{Latency, Verdict};

const SECOND: Duration = Duration::from_secs(1);

/// A trial of one second with `completed` requests of `us` microseconds each.
fn trial(round: u32, completed: u64, us: u64) -> Trial {
    let mut latency = Latency::new();
    (0..completed).for_each(|_| latency.record_us(us));
    let outcome = Outcome {
        url: "http://127.0.0.1/".to_owned(),
        duration: SECOND,
        requests: Requests { sent: completed, completed, ..Requests::default() },
        latency,
        ..Outcome::default()
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
        load: Some(1.5),
        most: Glance { rss: 7_000_000, threads: 2, processes: 1, fds: 9 },
    };
    let measured = Some(Measured { outcome, server, slices: Vec::new() });
    Trial {
        id: TrialId { round, order: 1 },
        measured,
        void: None,
        failed: false,
        notes: Vec::new(),
        start_failure: None,
    }
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
        profile: None,
    });
    Experiment {
        results: results.collect(),
        seed: u64::MAX,
        against_itself: false,
        machine: Machine::default(),
        rounds_finished: 2,
        elapsed: 4 * SECOND,
        alpha: 0.05,
        incomplete: None,
        halt: None,
        plan,
    }
}

#[test]
fn percentiles_are_of_all_requests_together() {
    // The mean of the two medians would be 550 us. Of all 1,100 requests, 1,000 took 1,000 us.
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
    // Round 2 of the baseline is void. If trials were paired by position, the ratios would be 2, 1
    // and 4.
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
    let said = report::conclusions(&experiment, &rows(&experiment));
    assert!(said[0].starts_with("fast: 2.00 times the rate of base"), "{said:?}");
    assert!(said[1].starts_with("same: no difference from base"), "{said:?}");
    assert!(said[2].starts_with("unsteady: its rate cannot be ranked against base"), "{said:?}");
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

/// A slice of 100 ms on a quiet machine.
fn slice(number: u32, completed: u64) -> Slice {
    let calibration = Duration::from_micros(100);
    Slice {
        number,
        duration: Duration::from_millis(100),
        completed,
        cpu: Duration::from_millis(50),
        rss: 5_000_000,
        evidence: Evidence { calibration, ..Evidence::default() },
        printed: None,
    }
}

/// Returns a trial whose slices have these numbers of completed requests.
fn sliced(round: u32, completed: &[u64]) -> Trial {
    let mut trial = trial(round, completed.iter().sum(), 10);
    trial.measured.as_mut().unwrap().slices =
        (0..).zip(completed).map(|(number, completed)| slice(number, *completed)).collect();
    trial
}

fn slices(trial: &mut Trial) -> &mut Vec<Slice> {
    &mut trial.measured.as_mut().unwrap().slices
}

#[test]
fn ratios_pair_slices_that_were_measured_side_by_side() {
    // The machine's speed varies like a wave. Whole trials differ by it, but pairs of slices do
    // not.
    let wave = [100, 140, 90, 60, 110, 100, 70, 130, 100, 95];
    let half: Vec<u64> = wave.iter().map(|rate| rate / 2 + 1).collect();
    let baseline = vec![sliced(1, &wave), sliced(2, &wave[2..]), sliced(3, &wave)];
    let candidate = vec![sliced(1, &half), sliced(2, &half[2..]), sliced(3, &half)];
    let rows = rows(&experiment(&["a", "b"], vec![baseline, candidate]));
    let ratio = rows[1].ratio.unwrap();
    assert_eq!((ratio.pairs, ratio.slices), (3, 28));
    assert!((0.50..0.52).contains(&ratio.mean), "{ratio:?}");
    assert_eq!(ratio.verdict(), Verdict::Slower);
    // The candidate uses the same CPU time for half of the requests.
    let cpu = rows[1].cpu_ratio.unwrap();
    assert!((1.9..2.0).contains(&cpu.mean) && cpu.verdict() == Verdict::Faster, "{cpu:?}");
    assert!(rows[0].cpu_ratio.is_none());
}

#[test]
fn a_disturbed_slice_is_left_out_of_its_pair_and_counted() {
    let mut disturbed = sliced(1, &[100; 12]);
    slices(&mut disturbed)[2].evidence.run_delay = Duration::from_millis(90);
    slices(&mut disturbed)[4].evidence.steal = Duration::from_millis(40);
    let calm = sliced(1, &[100; 12]);
    let experiment = experiment(&["a", "b"], vec![vec![calm], vec![disturbed]]);
    let rows = rows(&experiment);
    assert_eq!(rows[1].ratio.unwrap().slices, 10);
    assert_eq!((rows[1].slices, rows[1].disturbed, rows[0].disturbed), (12, 2, 0));
    assert_eq!(
        rows[1].notes,
        ["2 of 12 slices disturbed and left out: 1 stolen processor time, 1 run-queue delay"]
    );
    let json = report::json(&experiment);
    let of = |slice: usize| &json["configurations"][1]["trials"][0]["slices"][slice]["disturbed"];
    assert_eq!((of(1).is_null(), of(2).as_str()), (true, Some("run-queue delay")));
    assert_eq!(json["configurations"][1]["slices"]["disturbed"], 2);
}

#[test]
fn clock_ticks_are_not_divided_among_slices() {
    let by_ticks = |mut trial: Trial, ms: u64| {
        let measured = trial.measured.as_mut().unwrap();
        measured.server.cpu_method = CpuMethod::Proc;
        measured.server.cpu.user = Duration::from_millis(ms) - measured.server.cpu.system;
        trial
    };
    let of = |ms| -> Vec<Trial> {
        (1..=3).map(|round| by_ticks(sliced(round, &[100; 8]), ms)).collect()
    };
    let rows = rows(&experiment(&["a", "b"], vec![of(100), of(300)]));
    let cpu = rows[1].cpu_ratio.unwrap();
    assert_eq!(cpu.slices, 3, "whole trials are compared");
    assert!((cpu.mean - 3.0).abs() < 1e-9);
}

#[test]
fn isolated_configurations_are_compared_by_whole_trials() {
    let trials = || (1..=3).map(|round| sliced(round, &[100; 8])).collect::<Vec<Trial>>();
    let mut experiment = experiment(&["a", "b"], vec![trials(), trials()]);
    experiment.results[1].configuration.isolated = true;
    assert_eq!(rows(&experiment)[1].ratio.unwrap().slices, 3);
}

#[test]
fn a_leak_is_told_with_its_size_and_a_cache_is_none() {
    let growing = |of: &dyn Fn(u64) -> u64| -> Vec<Trial> {
        let mut trials: Vec<Trial> = (1..=3).map(|round| sliced(round, &[100; 24])).collect();
        for trial in &mut trials {
            let mut served = 0;
            for slice in slices(trial) {
                served += slice.completed;
                slice.rss += of(served);
            }
        }
        trials
    };
    let leaking = growing(&|served| served * 4100);
    let caching = growing(&|served| served.min(800) * 4100);
    let rows = rows(&experiment(&["leaks", "caches"], vec![leaking, caching]));
    let note = "grows by 4 kB a request [4 kB, 4 kB], in 3 of 3 trials of 2,400 requests: \
                a leak, or a cache that still fills; a longer duration shows which";
    assert_eq!(rows[0].notes, [note]);
    assert_eq!(rows[1].notes, [""; 0]);
    assert!(!rows[1].leak.unwrap().is_leak());
}

#[test]
fn many_comparisons_need_more_than_one() {
    // A difference of 4 % has a p-value of about 0.006. With the ratios of rate, CPU time and memory
    // of one candidate, that is enough. Among the ratios of five candidates, chance explains it.
    let of = |rates: [u64; 4]| (1..).zip(rates).map(|(n, r)| trial(n, r, 10)).collect();
    let plain = || of([1000, 1000, 1000, 1000]);
    let lucky = || of([1055, 1030, 1047, 1032]);
    let alone = rows(&experiment(&["a", "b"], vec![plain(), lucky()]))[1].ratio.unwrap();
    assert_eq!(alone.verdict(), Verdict::Faster, "{alone:?}");
    let others = || of([1020, 985, 1011, 990]);
    let trials = vec![plain(), lucky(), others(), others(), others(), others()];
    let experiment = experiment(&["a", "b", "c", "d", "e", "f"], trials);
    let among = rows(&experiment)[1].ratio.unwrap();
    assert_eq!(among.verdict(), Verdict::Same, "{among:?}");
    // The interval agrees with the verdict, and the text names the correction.
    assert!(among.ci95[0] < 1.0 && among.ci95[1] > alone.ci95[1], "{among:?}");
    assert_eq!((alone.comparisons, among.comparisons), (3, 15));
    let said = report::conclusions(&experiment, &rows(&experiment));
    assert!(said[0].contains("no difference from a was shown (95 % interval 0."), "{said:?}");
    assert!(said[0].contains("corrected for 15 comparisons (Holm)"), "{said:?}");
}

#[test]
fn verdicts_and_intervals_never_contradict_each_other() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..200 {
        let mut of = |centre: u64, spread: u64| -> Vec<Trial> {
            (1..=4).map(|round| trial(round, centre + random.u64(0..spread), 10)).collect()
        };
        let trials = vec![of(1000, 40), of(1000, 40), of(1040, 60), of(900, 300), of(1005, 2)];
        let experiment = experiment(&["a", "b", "c", "d", "e"], trials);
        for ratio in rows(&experiment).iter().filter_map(|row| row.ratio) {
            let [low, high] = ratio.ci95;
            let is_apart = low > 1.0 || high < 1.0;
            let is_small = (0.98..=1.02).contains(&ratio.mean);
            assert_eq!(ratio.verdict() != Verdict::Same, is_apart && !is_small, "{ratio:?}");
            assert_eq!(ratio.p_holm <= 0.05, is_apart, "{ratio:?}");
        }
    }
}

/// Returns three trials of `completed` requests, with this CPU time and memory.
fn using(completed: [u64; 3], cpu_ms: u64, rss: u64) -> Vec<Trial> {
    let of = |(round, completed)| {
        let mut trial = trial(round, completed, 10);
        let server = &mut trial.measured.as_mut().unwrap().server;
        server.cpu =
            Cpu { user: Duration::from_millis(cpu_ms + u64::from(round)), system: Duration::ZERO };
        server.most.rss = rss + u64::from(round) * 1000;
        trial
    };
    (1..).zip(completed).map(of).collect()
}

#[test]
fn the_headline_names_what_was_found() {
    let rates = [1000, 1400, 800];
    let mut costly = using([1390, 1010, 1000], 640, 40_000_000);
    let requests = &mut costly[0].measured.as_mut().unwrap().outcome.requests;
    requests.failed = 7;
    requests.failures = Failures { check: 7, ..Failures::default() };
    let experiment = experiment(&["a", "b"], vec![using(rates, 500, 20_000_000), costly]);
    let said = report::conclusions(&experiment, &rows(&experiment));
    assert_eq!(said[0], "b: 7 of 3,407 requests failed (check: 7).");
    assert!(said[1].starts_with("b: 2.00 times the memory"), "{said:?}");
    assert!(said[1].contains("its rate cannot be ranked against a,"), "{said:?}");
    // The CPU time per request of whole trials differs by more than the rates do.
    let steady = |cpu| using([1000, 1010, 990], cpu, 20_000_000);
    let experiment = self::experiment(&["a", "b"], vec![steady(500), steady(640)]);
    let said = report::conclusions(&experiment, &rows(&experiment));
    assert!(said[0].starts_with("b: 1.28 times the CPU time per request of a"), "{said:?}");
}

#[test]
fn on_a_busy_machine_the_headline_begins_with_cpu_time() {
    let trials = vec![using([1000, 1010, 990], 500, 0), using([500, 505, 495], 500, 0)];
    let mut experiment = experiment(&["a", "b"], trials);
    let first = |experiment: &Experiment| {
        report::conclusions(experiment, &rows(experiment)).first().cloned().unwrap()
    };
    assert!(first(&experiment).starts_with("b: 0.500 times the rate"));
    (experiment.machine.cores, experiment.machine.load_average) = (2, 8.0);
    assert!(first(&experiment).starts_with("b: 2.00 times the CPU time"));
    let said = report::conclusions(&experiment, &rows(&experiment));
    assert!(said[1].contains("load average 8 on 2 cores"), "{said:?}");
}

#[test]
fn advice_says_how_long_a_decision_takes() {
    let of = |rates: [u64; 4]| (1..).zip(rates).map(|(n, r)| trial(n, r, 10)).collect();
    let trials = vec![of([1000, 1000, 1000, 1000]), of([1050, 980, 1020, 990])];
    let experiment = experiment(&["a", "b"], trials);
    let said = report::conclusions(&experiment, &rows(&experiment));
    // Four rounds took 4 seconds.
    let advice = "more rounds (--rounds ";
    assert!(said[0].contains(advice) && said[0].contains("--resume, "), "{said:?}");
    assert!(said[0].ends_with("would narrow it to 2 % on either side."), "{said:?}");
}

#[test]
fn failed_requests_are_problems_unless_they_are_allowed() {
    let mut wrong = trial(1, 993, 10);
    let requests = &mut wrong.measured.as_mut().unwrap().outcome.requests;
    requests.failed = 7;
    let mut experiment = experiment(&["a"], vec![vec![wrong]]);
    assert!(experiment.problems()[0][0].starts_with("7 of 1,000 requests failed"));
    for (most, is_fine) in [("7", true), ("6", false), ("1%", true), ("0.5%", false)] {
        experiment.plan.check.max_failed = Some(most.parse().unwrap());
        assert_eq!(experiment.problems()[0].is_empty(), is_fine, "{most}");
    }
}

#[test]
fn the_table_fits_80_columns() {
    let long = ["http://127.0.0.1:8080/a/rather/long/path?and=query", "http://127.0.0.1:8081/x"];
    let mut loud = using([123_456, 1, 99], 500, 1_500_000_000);
    loud[0].notes = vec![
        "a note that is longer than a terminal of eighty columns is wide, so it must be \
                          broken at a space"
            .to_owned(),
    ];
    loud[1].measured.as_mut().unwrap().outcome.requests.resent = 12_345;
    let experiment = experiment(&long, vec![using([1000, 20_000, 3], 5, 5), loud]);
    let table = report::table(&experiment);
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}\n{table}", line.chars().count());
    }
    assert!(table.contains("8081/x") && table.contains("(12,345 resent)"), "{table}");
}

#[test]
fn every_trial_is_a_line_of_csv() {
    let mut void = trial(2, 5, 10);
    void.void = Some("gone, \"away\"".to_owned());
    void.measured = None;
    let csv = report::csv(&experiment(&["a"], vec![vec![trial(1, 100, 10), void]]));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1].starts_with("a,1,1,,100,100,0,1,10,10,500,5000000,6000000,7000000,1,2,9"));
    assert_eq!(lines[1].matches(',').count(), lines[0].matches(',').count());
    assert!(lines[2].starts_with("a,2,1,\"gone, \"\"away\"\"\",,,"), "{}", lines[2]);
}

#[test]
fn intervals_of_an_experiment_that_ended_by_them_are_wider() {
    let of = |rates: [u64; 4]| (1..).zip(rates).map(|(n, r)| trial(n, r, 10)).collect();
    let mut experiment = experiment(&["a", "b"], vec![of([1000; 4]), of([1055, 1030, 1047, 1032])]);
    let plain = rows(&experiment)[1].ratio.unwrap();
    experiment.alpha = 0.05 / 6.0;
    let looked = rows(&experiment)[1].ratio.unwrap();
    assert!(looked.half_width() > 1.5 * plain.half_width());
    assert!(looked.p > 5.0 * plain.p);
}

#[test]
fn a_report_is_read_back_as_it_was_written() {
    let mut odd = sliced(2, &[100, 37, 100]);
    slices(&mut odd)[1].duration = Duration::from_nanos(123_456_789);
    slices(&mut odd)[2].evidence.steal = Duration::from_micros(30_001);
    odd.notes = vec!["a note".to_owned()];
    let mut void = trial(3, 1, 5);
    (void.void, void.failed) = (Some("it crashed".to_owned()), true);
    let lost = Trial::failed(TrialId { round: 1, order: 2 }, "never answered");
    let mut experiment =
        experiment(&["a", "b"], vec![vec![trial(1, 70, 13), odd], vec![lost, void]]);
    experiment.results[0].version = Some("1.0".to_owned());
    experiment.results[1].missing = vec!["nothing".to_owned()];
    experiment.incomplete = Some("interrupted".to_owned());
    let json = report::json(&experiment);
    let read = report::read(&json.to_string()).unwrap();
    assert_eq!(report::json(&read), json);
    assert!(read.results[1].trials.iter().all(|trial| trial.failed));
}

#[test]
fn invalid_reports_are_refused_with_a_message() {
    let json = report::json(&experiment(&["a"], vec![vec![sliced(1, &[100; 3])]]));
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = json.clone();
        change(&mut changed);
        report::read(&changed.to_string()).unwrap_err()
    };
    assert!(report::read("").is_err() && report::read("{\"schema\": ").is_err());
    assert!(refused(&|json| json["schema"] = "forebay.bench/1".into()).contains("not a report"));
    assert!(refused(&|json| json["plan"] = serde_json::Value::Null).contains("plan"));
    assert!(refused(&|json| json["plan"]["load"]["slice"] = (-1.0).into()).contains("plan"));
    assert!(refused(&|json| json["configurations"][0]["name"] = "b".into()).contains("config"));
    assert!(refused(&|json| json["confidence"] = 7.into()).contains("confidence"));
    let trial = |json: &mut serde_json::Value| json["configurations"][0]["trials"][0].take();
    assert!(refused(&|json| drop(trial(json))).contains("round"));
    let of = |json: &'_ mut serde_json::Value, key: &str, value: f64| {
        json["configurations"][0]["trials"][0]["slices"][1][key] = value.into();
    };
    assert!(refused(&|json| of(json, "duration_s", -1.0)).contains("duration_s"));
    assert!(refused(&|json| of(json, "cpu_us", 1e300)).contains("cpu_us"));
}

//! `forebay compare --resume` continues after a run that ended in any way, but only with the same
//! experiment.

mod compare_support;

use std::fs;

use compare_support::{Experiment, wait_until};
use forebay_testkit::process::Process;
use rustix::process::Signal;
use serde_json::Value;

const ENDLESS: &str = "requests = 5\nwarmup = 0\nrounds = 500";
const SHORT: &str = "requests = 5\nwarmup = 0\nrounds = 1";

/// Returns the rounds and the orders of a configuration's trials.
fn trials(json: &Value, configuration: usize) -> Vec<(u64, u64)> {
    let trials = json["configurations"][configuration]["trials"].as_array().unwrap();
    let number = |trial: &Value, name: &str| trial[name].as_u64().unwrap();
    trials.iter().map(|trial| (number(trial, "round"), number(trial, "order"))).collect()
}

/// Ends a run with `signal` after two rounds are stored, and continues for two more.
fn goes_on_after(signal: Signal) {
    let experiment = Experiment::new(ENDLESS).server("one", "").server("two", "");
    let mut compare: Process = experiment.start(&["--seed", "5"]);
    let kept = || fs::exists(experiment.path("forebay-report/report.json")).unwrap();
    wait_until("two rounds were kept", || {
        assert!(!compare.has_ended(), "{}", compare.output());
        let finished = || experiment.json()["rounds_finished"].as_u64();
        (!kept() || finished() < Some(2)).then(String::new)
    });
    compare.signal(signal);
    compare.wait();
    experiment.wait_until_gone("the first run");
    let first = experiment.json();
    assert_eq!(first["complete"], false);
    let finished = first["rounds_finished"].as_u64().unwrap();

    let rounds = (finished + 2).to_string();
    let run = experiment.run(&["--resume", "--rounds", &rounds]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let whole = experiment.json();
    assert_eq!((&whole["complete"], &whole["seed"]), (&true.into(), &5.into()));
    assert_eq!(whole["rounds_finished"], finished + 2);
    for configuration in 0..2 {
        let (first, whole) = (trials(&first, configuration), trials(&whole, configuration));
        assert_eq!(whole[..first.len()], first);
        let rounds: Vec<u64> = whole.iter().map(|(round, _)| *round).collect();
        assert_eq!(rounds, (1..=finished + 2).collect::<Vec<u64>>());
    }
    assert_eq!(whole["configurations"][1]["ratio"]["pairs"], finished + 2);
    let of = |json: &Value| json["configurations"][0]["trials"][0].clone();
    assert_eq!(of(&whole), of(&first), "a trial is kept whole");
}

#[test]
fn a_run_continues_after_an_interrupt() {
    goes_on_after(Signal::INT);
}

#[test]
fn a_run_continues_after_a_kill() {
    goes_on_after(Signal::KILL);
}

#[test]
fn a_run_continues_when_the_disk_has_room() {
    let experiment = Experiment::new(SHORT).server("one", "").server("two", "");
    assert_eq!(experiment.run(&[]).code, Some(0));
    let first = experiment.json();
    // The file next to the report cannot be written, as on a full disk.
    let blocked = experiment.path("forebay-report/report.json.part");
    fs::create_dir(&blocked).unwrap();
    let run = experiment.run(&["--resume", "--rounds", "3"]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stderr.contains("cannot write"), "{}", run.stderr);
    assert_eq!(run.stderr.matches("requests/s").count(), 2, "it measured on: {}", run.stderr);
    assert_eq!(experiment.json(), first);
    experiment.wait_until_gone("a full disk");
    fs::remove_dir(&blocked).unwrap();
    let run = experiment.run(&["--resume", "--rounds", "3"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(trials(&experiment.json(), 1).len(), 3);
}

#[test]
fn a_report_that_cannot_be_written_at_the_end_is_written_by_resume() {
    let experiment = Experiment::new(SHORT).server("one", "").server("two", "");
    fs::create_dir_all(experiment.path("forebay-report/report.html.part")).unwrap();
    let run = experiment.run(&["--rounds", "2"]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    let expected = ["cannot write forebay-report/report.html", "free disk space", "--resume"];
    assert!(expected.iter().all(|part| run.stderr.contains(part)), "{}", run.stderr);
    let requests = experiment.requests();
    fs::remove_dir(experiment.path("forebay-report/report.html.part")).unwrap();
    let run = experiment.run(&["--rounds", "2", "--resume"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(experiment.requests(), requests, "nothing was measured again");
    assert!(experiment.read("forebay-report/report.html").contains("</html>"));
}

#[test]
fn another_experiment_is_refused_and_what_changed_is_named() {
    let experiment = Experiment::new(SHORT).server("one", "").server("two", "children");
    assert_eq!(experiment.run(&["--rounds", "2"]).code, Some(0));
    let requests = experiment.requests();
    for (arguments, why) in [
        (&["--connections", "3"][..], "load.connections was 2 and is 3"),
        (&["--duration", "1s"], "load.amount"),
        (&["--only", "one"], "there were 2 configurations and there are 1"),
        (&["--aa"], "against itself"),
        (&["--out", "elsewhere"], "elsewhere/report.json"),
    ] {
        let run = experiment.run(&[&["--resume"], arguments].concat());
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(why), "{}", run.stderr);
    }
    let report = experiment.path("forebay-report/report.json");
    let text = fs::read_to_string(&report).unwrap();
    fs::write(&report, text.replace("\"children\"", "\"stubborn\"")).unwrap();
    let run = experiment.run(&["--resume"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("configurations \"two\".start[4] was"), "{}", run.stderr);
    fs::write(&report, &text[..text.len() / 2]).unwrap();
    let run = experiment.run(&["--resume"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("cannot continue from"), "{}", run.stderr);
    assert_eq!(experiment.requests(), requests, "nothing was started");
}

#[test]
fn an_experiment_that_is_complete_is_not_run_again() {
    let experiment = Experiment::new(SHORT).server("one", "").server("two", "");
    assert_eq!(experiment.run(&[]).code, Some(0));
    let (first, requests) = (experiment.json(), experiment.requests());
    let run = experiment.run(&["--resume"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!((experiment.json(), experiment.requests()), (first, requests));
}

//! After `forebay compare` ends in any way, none of its processes and temporary files are left.

mod compare_support;

use std::fs;

use compare_support::{Experiment, wait_until};
use forebay_testkit::process::Process;
use rustix::process::{Pid, Signal, kill_process};

/// Long enough that every signal arrives in the middle.
const LONG: &str = "duration = \"60s\"\nwarmup = 20\nrounds = 2";
const SHORT: &str = "requests = 20\nwarmup = 0\nrounds = 1";
/// This server forks into the background, has children, and ignores SIGTERM.
const WORST: &str = "daemonize stubborn children";

#[test]
fn a_stubborn_daemon_is_gone_after_its_trial() {
    let experiment = Experiment::new(SHORT).server("daemon", WORST);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(experiment.pids().len(), 3);
    assert_eq!(experiment.processes(), []);
    assert_eq!(experiment.temporary(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn killed_when_its_first_keeper_opens() {
    killed_when("the keeper made its directory", |experiment| !experiment.temporary().is_empty());
}

#[test]
fn killed_when_the_server_starts() {
    killed_when("the server started", |experiment| !experiment.pids().is_empty());
}

#[test]
fn killed_during_the_warm_up() {
    killed_when("requests came", |experiment| experiment.requests() > 5);
}

#[test]
fn killed_under_load() {
    killed_when("many requests came", |experiment| experiment.requests() > 200);
}

#[test]
fn killed_at_once() {
    let experiment = Experiment::new(LONG).server("daemon", WORST);
    let mut compare = experiment.start(&[]);
    compare.signal(Signal::KILL);
    compare.wait();
    experiment.wait_until_gone("a kill at once");
}

#[test]
fn killed_while_a_trial_ends() {
    let experiment =
        Experiment::new("requests = 5\nwarmup = 0\nrounds = 50").server("daemon", WORST);
    let mut compare = experiment.start(&[]);
    // The server is ready, checked, and has answered five measured requests. Its end has begun or
    // is about to begin, and takes 300 ms.
    wait_for(&mut compare, "the load was over", || experiment.requests() >= 7);
    compare.signal(Signal::KILL);
    compare.wait();
    experiment.wait_until_gone("a kill while a trial ended");
}

#[test]
fn interrupted_under_load_it_tidies_up_and_writes_what_it_has() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let experiment = Experiment::new(LONG).server("daemon", WORST);
        let mut compare = experiment.start(&[]);
        wait_for(&mut compare, "requests came", || experiment.requests() > 50);
        compare.signal(signal);
        let exit = compare.wait();
        assert_eq!(exit.status.code(), Some(code), "{}", exit.output);
        assert_eq!(experiment.processes(), [], "before it returned");
        assert_eq!(experiment.temporary(), [] as [std::path::PathBuf; 0]);
        let json = experiment.json();
        assert_eq!((&json["complete"], &json["rounds_finished"]), (&false.into(), &0.into()));
        assert!(exit.output.contains("interrupted"), "{}", exit.output);
    }
}

#[test]
fn an_interrupt_keeps_the_rounds_that_were_finished() {
    let experiment = Experiment::new("requests = 5\nwarmup = 0\nrounds = 500").server("one", "");
    let mut compare = experiment.start(&[]);
    let finished = |compare: &Process| compare.output().matches("requests/s").count();
    compare.wait_until("finished two rounds", |compare| finished(compare) >= 2).unwrap();
    compare.signal(Signal::INT);
    let exit = compare.wait();
    assert_eq!(exit.status.code(), Some(130));
    let json = experiment.json();
    assert_eq!(json["complete"], false);
    assert!(json["configurations"][0]["trials"].as_array().unwrap().len() >= 2);
    assert!(json["configurations"][0]["rate"]["mean"].as_f64() > Some(0.0));
    experiment.wait_until_gone("an interrupt");
}

#[test]
fn a_second_interrupt_ends_it_at_once_and_still_leaves_nothing() {
    let lines = "ready_timeout = \"60s\"";
    let experiment = Experiment::new(LONG).server_with("mute", "mute stubborn", lines);
    let mut compare = experiment.start(&[]);
    wait_for(&mut compare, "the server started", || !experiment.pids().is_empty());
    compare.signal(Signal::INT);
    compare.signal(Signal::INT);
    let exit = compare.wait();
    assert_eq!(exit.status.code(), Some(130), "{}", exit.output);
    experiment.wait_until_gone("two interrupts");
}

#[test]
fn a_killed_keeper_is_tidied_up_after() {
    let experiment = Experiment::new(LONG).server("daemon", WORST);
    let mut compare = experiment.start(&["--rounds", "1"]);
    wait_for(&mut compare, "requests came", || experiment.requests() > 50);
    let keeper = experiment
        .processes()
        .into_iter()
        .find(|(_, command)| command.ends_with("__keeper "))
        .expect("a keeper runs")
        .0;
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    let exit = compare.wait();
    assert_eq!(exit.status.code(), Some(1), "{}", exit.output);
    assert!(exit.output.contains("its keeper was killed"), "{}", exit.output);
    assert_eq!(experiment.processes(), []);
    assert_eq!(experiment.temporary(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_killed_keeper_takes_no_other_server_with_it() {
    // The load lasts for ten seconds. The test waits for the first half second.
    let load = "requests = 300\nrate = 60\nwarmup = 0\nrounds = 1";
    let experiment = Experiment::new(load).server("one", WORST).server("two", WORST);
    let mut compare = experiment.start(&[]);
    wait_for(&mut compare, "requests came", || experiment.requests() > 30);
    let keeper = experiment
        .processes()
        .into_iter()
        .find(|(_, command)| command.ends_with("__keeper "))
        .expect("a keeper runs")
        .0;
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    let exit = compare.wait();
    assert_eq!(exit.status.code(), Some(1), "{}", exit.output);
    let json = experiment.json();
    let void = |index: usize| json["configurations"][index]["trials"][0]["void"].as_bool();
    assert_ne!(void(0), void(1), "{}", exit.output);
    assert_eq!(experiment.processes(), []);
    assert_eq!(experiment.temporary(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_killed_experiment_leaves_no_control_group() {
    let experiment = Experiment::new(LONG).server("one", "children");
    let mut compare = experiment.start(&[]);
    wait_for(&mut compare, "requests came", || experiment.requests() > 5);
    let of_keeper = |experiment: &Experiment| {
        let pids = experiment.processes();
        Experiment::cgroups()
            .into_iter()
            .filter(|path| {
                pids.iter().any(|(pid, _)| path.ends_with(format!("forebay-compare-{pid}")))
            })
            .collect::<Vec<_>>()
    };
    let groups = of_keeper(&experiment);
    if groups.is_empty() {
        forebay_testkit::peer::skip("no control group may be made here");
    }
    compare.signal(Signal::KILL);
    compare.wait();
    experiment.wait_until_gone("a kill with a control group");
    wait_until("the control group was removed", || {
        let left: Vec<_> = groups.iter().filter(|path| fs::exists(path).unwrap_or(false)).collect();
        (!left.is_empty()).then(|| format!("{left:?}"))
    });
}

fn killed_when(moment: &str, reached: impl Fn(&Experiment) -> bool) {
    let experiment = Experiment::new(LONG).server("daemon", WORST).server("other", WORST);
    let mut compare = experiment.start(&[]);
    wait_for(&mut compare, moment, || reached(&experiment));
    compare.signal(Signal::KILL);
    compare.wait();
    experiment.wait_until_gone(moment);
}

fn wait_for(compare: &mut Process, moment: &str, reached: impl Fn() -> bool) {
    compare.wait_until(moment, |_| reached()).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_next_run_removes_the_rest_of_a_killed_keeper() {
    let experiment = Experiment::new(LONG).server("daemon", WORST);
    let mut compare = experiment.start(&[]);
    wait_for(&mut compare, "requests came", || experiment.requests() > 5);
    let keepers: Vec<i32> = experiment
        .processes()
        .into_iter()
        .filter_map(|(pid, command)| command.contains("__keeper").then_some(pid))
        .collect();
    // A stopped process cannot clean up after its keeper before something kills it.
    compare.signal(Signal::STOP);
    for &keeper in &keepers {
        kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    }
    compare.signal(Signal::KILL);
    compare.wait();
    let left = |group: &std::path::PathBuf| {
        keepers.iter().any(|pid| group.ends_with(format!("forebay-compare-{pid}")))
    };
    if !Experiment::cgroups().iter().any(left) {
        // This machine has no control groups, so nothing distinguishes such processes from others.
        for (pid, _) in experiment.processes() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        return;
    }
    let next = experiment.start(&[]);
    wait_until("the next run swept", || {
        let groups = Experiment::cgroups();
        groups.iter().any(left).then(|| format!("{groups:?}"))
    });
    drop(next);
    experiment.wait_until_gone("a keeper killed with its run");
}

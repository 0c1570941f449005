//! `forebay compare --profile`: flame graphs in the page, stacks in a file, and notes if there are
//! none. A substitute for perf prints the given text; the last test uses the real perf.

mod compare_support;

use std::fs;
use std::process::Command;

use compare_support::{Experiment, Run};
use forebay_testkit::peer;
use rustix::process::Signal;
use serde_json::Value;

const SHORT: &str = "duration = \"300ms\"\nslice = \"100ms\"\nwarmup = 0\nrounds = 1";

/// Two valid samples and an invalid one.
const SAMPLES: &[u8] = b"perl 7 \n\t1 tcp_ack ([kernel.kallsyms])\n\t2 main (/usr/bin/perl)\n\n\
    perl 8 \n\t1 tcp_ack ([kernel.kallsyms])\n\t2 main (/usr/bin/perl)\n\n\
    <script>alert(1)</script>;\xff\" 9 \n\t1 a;b <img src=x> & c (/x)\n\n";

fn two() -> Experiment {
    Experiment::new(SHORT).server("one", "").server("<two>/..", "")
}

fn run(experiment: &Experiment, path: &str, fake: &str, arguments: &[&str]) -> Run {
    let mut command = experiment.compare(&[&["--profile"], arguments].concat());
    command.env("PATH", path).env("FAKE_PERF", fake);
    experiment.finish(command)
}

fn profile(experiment: &Experiment, configuration: usize) -> Value {
    experiment.json()["configurations"][configuration]["profile"].clone()
}

fn note(experiment: &Experiment, configuration: usize) -> String {
    profile(experiment, configuration)["notes"][0].as_str().unwrap_or_default().to_owned()
}

fn charts(page: &str) -> Vec<String> {
    let charts = page.split("<svg ").skip(1);
    charts.map(|chart| format!("<svg {}</svg>", chart.split_once("</svg>").unwrap().0)).collect()
}

#[test]
fn each_configuration_has_a_flame_graph_and_its_difference_to_the_baseline() {
    let experiment = two();
    let path = experiment.fake_perf(SAMPLES);
    let result = run(&experiment, &path, "", &[]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    assert!(result.stderr.contains("3 samples, "), "{}", result.stderr);
    experiment.wait_until_gone("profiles");

    let json = experiment.json();
    for configuration in 0..2 {
        let of = &json["configurations"][configuration];
        assert_eq!(of["trials"].as_array().unwrap().len(), 1, "a profile trial does not count");
        assert_eq!((&of["rate"]["n"], &of["profile"]["samples"]), (&1.into(), &3.into()));
        assert!(of["profile"]["requests"].as_u64() > Some(0));
        let function = &of["profile"]["functions"][0];
        assert_eq!((&function["function"], &function["kernel"]), (&"tcp_ack".into(), &true.into()));
        assert!((function["self"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }
    let stacks =
        "<script>alert(1)</script>:\u{fffd}\";a:b <img src=x> & c 1\nperl;main;tcp_ack_[k] 2\n";
    assert_eq!(profile(&experiment, 1)["file"], "profile--two--...folded");
    for file in ["profile-one.folded", "profile--two--...folded"] {
        assert_eq!(experiment.read(&format!("forebay-report/{file}")), stacks);
    }

    let page = experiment.read("forebay-report/report.html");
    for absent in ["<script", "<img", "\"http://", "\"https://", "src=\"", "href=", "url("] {
        assert!(!page.contains(absent), "{absent} in the page");
    }
    assert!(page.contains("&lt;two&gt;&#x2f;.. beside one</h3>"));
    let flames: Vec<String> =
        charts(&page).into_iter().filter(|chart| chart.contains("Flame graph")).collect();
    assert_eq!(flames.len(), 2 * 3, "two profiles and a difference, each wide and narrow");
    for flame in &flames {
        let document = roxmltree::Document::parse(flame).unwrap();
        let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        assert!(texts.iter().any(|text| text.starts_with("tcp_ack (kernel): ")), "{texts:?}");
        assert!(texts.contains(&"tcp_ack"), "{texts:?}");
    }
}

#[test]
fn the_steps_that_forebay_times_itself_stand_beside_its_stacks() {
    let experiment = Experiment::new(SHORT).lines(
        "path = \"/\"\n[[configuration]]\nname = \"one\"\nurl = \"http://127.0.0.1:{port}\"\n\
         start = [\"forebay\", \"serve\", \"{tmp}/site.toml\"]\ntemplates = [\"site.toml\"]\n",
    );
    let site = "[server]\ntiming = true\n[[site]]\nlisten = [\"127.0.0.1:{port}\"]\n\
                [[site.route]]\npath = \"/*\"\nrespond = { status = 200, body = \"ok\" }\n";
    fs::write(experiment.path("site.toml"), site).unwrap();
    let path = experiment.fake_perf(SAMPLES);
    let result = run(&experiment, &path, "", &[]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    let steps = profile(&experiment, 0)["server_timing_ms"].clone();
    let names: Vec<&str> =
        steps.as_array().unwrap().iter().map(|step| step[0].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["head", "route"], "{steps}");
    assert!(experiment.read("forebay-report/report.html").contains("one at a time: head "));
}

#[test]
fn perf_watches_the_processes_of_the_server_and_no_trial_that_counts() {
    let experiment = Experiment::new(SHORT).server("one", "children");
    let path = experiment.fake_perf(SAMPLES);
    assert_eq!(run(&experiment, &path, "", &["--rounds", "2"]).code, Some(0));
    let calls = experiment.read("perf-calls");
    let records: Vec<&str> = calls.lines().filter(|call| call.starts_with("record ")).collect();
    assert_eq!(records.len(), 1, "{calls}");
    if records[0].contains(" -a -G ") {
        assert!(records[0].contains(" -a -G forebay-compare-"), "{calls}");
        return;
    }
    let mut pids = experiment.pids().split_off(6);
    pids.sort();
    let watched = records[0].split_once(" -p ").unwrap().1.split(' ').next().unwrap();
    let mut watched: Vec<&str> = watched.split(',').collect();
    watched.sort_unstable();
    assert_eq!(watched, pids, "those of the third start");
}

#[test]
fn a_profile_is_added_to_a_finished_run_and_kept_by_the_next() {
    let experiment = two();
    let path = experiment.fake_perf(SAMPLES);
    assert_eq!(experiment.run(&[]).code, Some(0));
    let without = experiment.json();
    assert!(profile(&experiment, 0).is_null());
    assert_eq!(run(&experiment, &path, "", &["--resume"]).code, Some(0));
    let with = experiment.json();
    let trials = |json: &Value, index: usize| json["configurations"][index]["trials"].clone();
    assert_eq!((trials(&with, 0), trials(&with, 1)), (trials(&without, 0), trials(&without, 1)));
    let (page, requests) = (experiment.read("forebay-report/report.html"), experiment.requests());
    assert_eq!(experiment.run(&["--resume"]).code, Some(0));
    assert_eq!((experiment.json(), experiment.requests()), (with, requests));
    assert_eq!(experiment.read("forebay-report/report.html"), page);
    let file = experiment.path("forebay-report/profile-one.folded");
    fs::write(file, "damaged").unwrap();
    assert_eq!(experiment.run(&["--resume"]).code, Some(0));
    assert!(
        note(&experiment, 0).contains("profile-one.folded: line 1"),
        "{}",
        note(&experiment, 0)
    );
    assert_eq!(profile(&experiment, 1)["samples"], 3);
}

#[test]
fn without_perf_a_note_says_what_to_install() {
    let experiment = two();
    let path = experiment.path_without_perf();
    let result = run(&experiment, &path, "", &[]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    for configuration in 0..2 {
        assert!(note(&experiment, configuration).contains("apt-get install linux-perf"));
    }
    assert_eq!(experiment.pids().len(), 2, "no server was started for nothing");
    let page = experiment.read("forebay-report/report.html");
    assert_eq!(page.matches("apt-get install linux-perf").count(), 1, "said once");
    assert!(result.stderr.contains("linux-perf"), "{}", result.stderr);
}

#[test]
fn problems_with_perf_are_only_notes() {
    let cases = [
        ("refused", "kernel.perf_event_paranoid=1", 1),
        ("dies", "No space left on device", 2),
        ("garbage", "incompatible file format", 2),
        ("mute", "perf took no sample", 2),
    ];
    for (fake, why, records) in cases {
        let experiment = two();
        let path = experiment.fake_perf(SAMPLES);
        let result = run(&experiment, &path, fake, &[]);
        assert_eq!(result.code, Some(0), "{fake}: {}", result.stderr);
        for configuration in 0..2 {
            let note = note(&experiment, configuration);
            assert!(note.starts_with("not profiled: ") && note.contains(why), "{fake}: {note}");
        }
        let calls = experiment.read("perf-calls");
        // If profiling by control group fails, `compare` profiles by process.
        let by_group = calls.lines().filter(|call| call.contains(" -a -G ")).count();
        let by_process = calls.lines().filter(|call| call.contains(" -p ")).count();
        if fake == "refused" {
            assert_eq!(by_process, records, "{fake}: {calls}");
        }
        assert_eq!(by_group.max(by_process), records, "{fake}: {calls}");
        assert_eq!(experiment.json()["complete"], true);
        experiment.wait_until_gone(fake);
    }
}

#[test]
fn shares_are_known_where_perf_ends_before_the_load() {
    let long = SHORT.replace("300ms", "1s");
    let experiment = Experiment::new(&long).server("one", "").server("<two>/..", "");
    let path = experiment.fake_perf(SAMPLES);
    assert_eq!(run(&experiment, &path, "full", &[]).code, Some(0));
    let of = profile(&experiment, 1);
    assert_eq!((&of["samples"], &of["requests"]), (&3.into(), &Value::Null));
    assert!(note(&experiment, 1).contains("shares are right"));
    let page = experiment.read("forebay-report/report.html");
    assert!(page.contains("of the time than with one"), "a difference of shares");
}

#[test]
fn a_server_that_ends_or_runs_already_is_a_note() {
    // The crash comes after the check and the 20 measured requests.
    let load = "requests = 20\nwarmup = 0\nrounds = 1";
    let experiment = Experiment::new(load).server("one", "crash=60");
    let path = experiment.fake_perf(SAMPLES);
    let result = run(&experiment, &path, "", &[]);
    assert_eq!(result.code, Some(0), "{}", result.stderr);
    assert!(note(&experiment, 0).contains("the server was gone"), "{}", note(&experiment, 0));
    experiment.wait_until_gone("a crash");

    let server = Experiment::new(load).server("one", "");
    let mut command = std::process::Command::new("perl");
    let port = forebay_testkit::port::free_port();
    command.arg(server.path("server.pl")).arg(port.to_string()).arg(server.path("seen"));
    let mut running = forebay_testkit::process::Process::start(command);
    running.wait_until_listening(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let url = format!("http://127.0.0.1:{port}/");
    let run = server.run_without_file(&[
        "--url",
        &url,
        "--aa",
        "--duration",
        "100ms",
        "--rounds",
        "1",
        "--profile",
    ]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("did not start this server") || run.stderr.contains("linux-perf"));
}

#[test]
fn an_interrupt_keeps_the_rounds_and_leaves_nothing() {
    for (fake, moment) in [("", "perf-calls"), ("endless", "reading")] {
        let experiment = Experiment::new("requests = 20\nwarmup = 0\nrounds = 1").server("one", "");
        let path = experiment.fake_perf(SAMPLES);
        let mut command = experiment.compare(&["--profile"]);
        command.env("PATH", &path).env("FAKE_PERF", fake);
        let mut compare = forebay_testkit::process::Process::start(command);
        compare
            .wait_until(moment, |_| fs::exists(experiment.path(moment)).unwrap())
            .unwrap_or_else(|error| panic!("{error}"));
        compare.signal(Signal::INT);
        let exit = compare.wait();
        assert_eq!(exit.status.code(), Some(130), "{}", exit.output);
        assert_eq!(experiment.processes(), [], "before it returned");
        assert_eq!(experiment.temporary(), [] as [std::path::PathBuf; 0]);
        let json = experiment.json();
        assert_eq!(
            (&json["rounds_finished"], &json["configurations"][0]["rate"]["n"]),
            (&1.into(), &1.into())
        );
        assert_eq!(run(&experiment, &path, "", &["--resume"]).code, Some(0));
        assert_eq!(profile(&experiment, 0)["samples"], 3);
    }
}

#[test]
fn a_kill_leaves_nothing_of_perf() {
    let experiment = Experiment::new("requests = 20\nwarmup = 0\nrounds = 1").server("one", "");
    let path = experiment.fake_perf(SAMPLES);
    let mut command = experiment.compare(&["--profile"]);
    command.env("PATH", &path).env("FAKE_PERF", "endless");
    let mut compare = forebay_testkit::process::Process::start(command);
    let moment = experiment.path("reading");
    compare
        .wait_until("perf reads", |_| fs::exists(&moment).unwrap())
        .unwrap_or_else(|error| panic!("{error}"));
    compare.signal(Signal::KILL);
    compare.wait();
    experiment.wait_until_gone("a kill");
}

#[test]
fn stacks_that_cannot_be_written_are_written_by_resume() {
    let experiment = two();
    let path = experiment.fake_perf(SAMPLES);
    let blocked = experiment.path("forebay-report/profile-one.folded.part");
    fs::create_dir_all(&blocked).unwrap();
    let result = run(&experiment, &path, "", &[]);
    assert_eq!(result.code, Some(3), "{}", result.stderr);
    assert!(result.stderr.contains("cannot write forebay-report/profile-one.folded"));
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(run(&experiment, &path, "", &["--resume"]).code, Some(0));
    assert!(experiment.read("forebay-report/profile-one.folded").contains("tcp_ack_[k] 2"));
}

/// Returns the stacks of a configuration's profile from the real perf. `None` if this system
/// refuses perf, which the note then has to say.
fn real(experiment: &Experiment) -> Option<String> {
    let run = experiment.run(&["--profile", "--duration", "3s"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    experiment.wait_until_gone("a profile");
    let of = profile(experiment, 0);
    if of["samples"] == 0 {
        let note = note(experiment, 0);
        assert!(note.contains("perf may not watch the server"), "{note}");
        return None;
    }
    assert!(of["requests"].as_u64() > Some(0), "{of}");
    Some(experiment.read("forebay-report/profile-one.folded"))
}

/// Returns true if `perf script` is still in its root directory after it has looked into the mount
/// namespaces of other processes. In a chroot it is at the root of the namespace, and takes
/// function names from files with the same paths there.
fn perf_keeps_its_root() -> bool {
    let root = |mut command: Command| command.output().unwrap().stdout;
    let mut here = Command::new("stat");
    here.args(["--format=%d:%i", "/"]);
    let mut back = Command::new("nsenter");
    back.args(["--mount=/proc/self/ns/mnt", "stat", "--format=%d:%i", "/"]);
    let back = root(back);
    // If the system refuses us, it also refuses perf.
    back.is_empty() || root(here) == back
}

#[test]
fn the_real_perf_sees_the_stacks_of_processes_that_live_for_one_request() {
    if !peer::has(&["linux-perf", "python3"]) {
        return;
    }
    let experiment = Experiment::new(SHORT).lines(
        "[[configuration]]\nname = \"one\"\nurl = \"http://127.0.0.1:{port}\"\n\
         start = [\"/usr/bin/python3\", \"{dir}/forking.py\", \"{port}\", \"{dir}/seen\", \"15\"]\n",
    );
    fs::write(experiment.path("forking.py"), include_str!("compare_support/forking.py")).unwrap();
    let Some(stacks) = real(&experiment) else { return };
    // perf does not know the name of a process that has almost ended.
    let is_expected = |line: &str| line.starts_with("python3;") || line.starts_with("[unknown];");
    assert!(stacks.lines().all(is_expected), "{stacks}");
    assert!(stacks.contains("python3;"), "{stacks}");
    // perf finds callers and names.
    let names = if perf_keeps_its_root() {
        ";PyEval_EvalCode;_PyEval_EvalFrameDefault"
    } else {
        "asm_exc_page_fault_[k]"
    };
    assert!(stacks.contains(names), "{stacks}");
    let of = profile(&experiment, 0);
    // Each child takes 15 ms of CPU time, the server itself almost none. Processor time that others
    // use meanwhile is included. If the kernel's part is hidden, less is left.
    assert!(of["cpu_us_per_request"].as_f64().unwrap() > 1_000.0, "{of}");
}

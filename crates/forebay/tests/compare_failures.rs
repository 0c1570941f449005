//! `forebay compare` with servers that do not start, do not answer, or end early.

mod compare_support;

use compare_support::Experiment;

const SHORT: &str = "requests = 40\nwarmup = 5\nrounds = 2\ntimeout = \"2s\"";

#[test]
fn a_server_that_ends_at_once_is_quoted_at_once() {
    // A test that waits for ready_timeout fails.
    let lines = "ready_timeout = \"1h\"";
    let experiment = Experiment::new(SHORT).server_with("broken", "exit=7", lines);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("\"broken\" could not be started"), "{}", run.stderr);
    assert!(run.stderr.contains("exit status 7"), "{}", run.stderr);
    assert!(run.stderr.contains("| cannot read the flux table"), "{}", run.stderr);
    experiment.wait_until_gone("a server that ended");
    let json = experiment.json();
    assert_eq!(json["complete"], false);
    assert_eq!(json["output"][0], "cannot read the flux table");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let experiment = Experiment::new(SHORT).lines(
        "[[configuration]]\nname = \"absent\"\nstart = [\"no-such-program\"]\n\
         url = \"http://127.0.0.1:{port}\"\n",
    );
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("cannot run no-such-program"), "{}", run.stderr);
    experiment.wait_until_gone("a missing program");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let experiment = Experiment::new(SHORT).server_with("lost", "", "cwd = \"{dir}/no-such\"");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("/no-such to start in"), "{}", run.stderr);
}

#[test]
fn a_wrong_answer_is_not_ready() {
    let lines = "ready_timeout = \"400ms\"";
    let experiment = Experiment::new(SHORT).server_with("wrong", "wrong", lines);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("no correct reply within 400ms"), "{}", run.stderr);
    assert!(run.stderr.contains("a reply has status 500, not 200"), "{}", run.stderr);
    experiment.wait_until_gone("a wrong answer");
}

#[test]
fn a_server_that_never_answers_is_not_ready() {
    let lines = "ready_timeout = \"400ms\"";
    let experiment = Experiment::new(SHORT).server_with("mute", "mute", lines);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("no correct reply within 400ms"), "{}", run.stderr);
    assert!(run.stderr.contains("it printed nothing"), "{}", run.stderr);
    experiment.wait_until_gone("a mute server");
}

#[test]
fn a_body_without_the_text_is_not_ready() {
    let load = format!("{SHORT}\n[check]\nbody_contains = \"Goodbye\"");
    let experiment = Experiment::new(&load).server_with("hello", "", "ready_timeout = \"400ms\"");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("no correct reply within 400ms"), "{}", run.stderr);
}

#[test]
fn a_crash_under_load_voids_the_trial_and_the_others_go_on() {
    let experiment = Experiment::new(SHORT).server("steady", "").server("frail", "crash=30");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!(json["complete"], true);
    // One trial may be void if other programs used the machine.
    let steady = &json["configurations"][0];
    assert_eq!(steady["trials"].as_array().unwrap().len(), 2);
    assert!(steady["trials_counted"].as_u64() > Some(0), "{steady}");
    let frail = &json["configurations"][1];
    assert_eq!(frail["trials_counted"], 0);
    assert!(frail["ratio"].is_null());
    let reason = frail["trials"][0]["void_reason"].as_str().unwrap();
    assert!(reason.contains("SIGSEGV"), "{reason}");
    assert!(frail["notes"][0].as_str().unwrap().starts_with("2 of 2 trials void"), "{frail}");
    experiment.wait_until_gone("a crash");
}

#[test]
fn wrong_bodies_fail_the_run_unless_they_are_allowed() {
    let load = format!("{SHORT}\n[check]\nbody_contains = \"Hello\"");
    // The last reply of each trial is correct, so the server passes the check after the load.
    let experiment = Experiment::new(&load).server("honest", "").server("liar", "lies=20,30");
    let run = experiment.run(&["--junit", "junit.xml"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("liar: ") && run.stderr.contains("requests failed"),
        "{}",
        run.stderr
    );
    // The message contains the URL and the beginning of the body.
    assert!(run.stderr.contains("http://127.0.0.1:"), "{}", run.stderr);
    assert!(run.stderr.contains("its body begins \"Hallo from"), "{}", run.stderr);
    let xml = experiment.read("junit.xml");
    assert!(xml.contains("failures=\"1\" errors=\"0\""), "{xml}");
    let json = experiment.json();
    let (honest, liar) = (&json["configurations"][0], &json["configurations"][1]);
    assert_eq!(honest["problems"].as_array().unwrap().len(), 0, "{honest}");
    assert_eq!(liar["failures"]["check"], 20, "ten in each of two trials: {liar}");
    assert!(json["conclusions"][0].as_str().unwrap().starts_with("liar: 20 of 80"), "{json}");

    let run = experiment.run(&["--max-failed", "25%"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(experiment.run(&["--max-failed", "19"]).code, Some(1));
    assert_eq!(experiment.run(&["--max-failed", "many"]).code, Some(2));
}

#[test]
fn a_configuration_that_cannot_start_costs_its_row_alone() {
    let experiment =
        Experiment::new(SHORT).server("one", "").server("broken", "exit=7").server("two", "");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stderr.contains("\"broken\" could not be started"), "{}", run.stderr);
    assert!(run.stderr.contains("| cannot read the flux table"), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!((&json["complete"], &json["rounds_finished"]), (&true.into(), &2.into()));
    let [one, broken, two] = [0, 1, 2].map(|index| &json["configurations"][index]);
    assert_eq!((one["trials"].as_array().unwrap().len(), &two["ratio"]["pairs"]), (2, &2.into()));
    assert_eq!(broken["trials_counted"], 0);
    assert_eq!(broken["start_failure"]["output"][0], "cannot read the flux table");
    // The second round does not try the server again.
    assert_eq!(experiment.pids().len(), 4, "two servers in two rounds");
    experiment.wait_until_gone("a configuration that could not start");
}

#[test]
fn a_port_in_use_is_not_measured_by_mistake() {
    let (listener, address) = forebay_testkit::port::listener();
    let url = format!("url = \"http://{address}\"");
    let experiment = Experiment::new(SHORT).lines(&format!(
        "[[configuration]]\nname = \"fixed\"\nstart = [\"sleep\", \"60\"]\n{url}\n"
    ));
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("already listens at"), "{}", run.stderr);
    drop(listener);
    experiment.wait_until_gone("a port in use");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_starts() {
    let experiment = Experiment::new(SHORT).server("one", "");
    let run = experiment.run(&["--out", "/proc/no-such-place"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("/proc/no-such-place"), "{}", run.stderr);
    assert!(experiment.pids().is_empty());
}

#[test]
fn missing_programs_are_named_even_if_no_run_is_left() {
    let experiment =
        Experiment::new(SHORT).server_with("bare", "", "requires = [\"no-such-thing\"]");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("bare: not found: no-such-thing"), "{}", run.stderr);
}

#[test]
fn a_place_for_results_is_looked_at_before_anything_starts() {
    let experiment = Experiment::new(SHORT).server("plain", "");
    for (json, why) in [("no-such/x.json", "its directory does not exist"), ("seen", "a directory")]
    {
        let run = experiment.run(&["--json", json]);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains(why), "{}", run.stderr);
    }
    assert_eq!(experiment.run(&["--out", "/proc/self"]).code, Some(2));
    assert_eq!(experiment.requests(), 0);
    assert!(experiment.pids().is_empty());
}

#[test]
fn readers_of_its_output_may_leave() {
    let experiment = Experiment::new(SHORT).server("plain", "");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = experiment.compare(&[]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert_eq!(command.status().unwrap().code(), Some(0));
    experiment.wait_until_gone("a run that nobody watched");
}

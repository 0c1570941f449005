//! Services of an experiment: they run next to every server and are not measured.

mod compare_support;

use compare_support::Experiment;

const LOAD: &str = "requests = 20\nwarmup = 2\nrounds = 2";

const BACKEND: &str = "[[service]]\nname = \"back\"\n\
    start = [\"perl\", \"{dir}/server.pl\", \"{port}\", \"{dir}/seen\"]\n\
    stop_timeout = \"300ms\"\n";

/// A gateway that passes requests to the service.
const FRONT: &str = "[[configuration]]\nname = \"front\"\nurl = \"http://127.0.0.1:{port}\"\n\
    start = [\"forebay\", \"serve\", \"--to\", \"http://127.0.0.1:{back.port}\", \
    \"--listen\", \"127.0.0.1:{port}\", \"--threads\", \"1\"]\n";

#[test]
fn a_service_is_reached_and_neither_counted_nor_left_behind() {
    let experiment = Experiment::new(LOAD).lines(BACKEND).lines(FRONT);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    experiment.wait_until_gone("services");
    let json = experiment.json();
    let trials = json["configurations"][0]["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 2);
    for trial in trials {
        assert_eq!((&trial["void"], &trial["requests"]["completed"]), (&false.into(), &20.into()));
        assert_eq!(trial["server"]["processes_max"], 1, "the gateway alone: {trial}");
    }
    assert!(experiment.requests() >= 40, "the requests went through to the service");
}

#[test]
fn a_service_that_does_not_start_is_named_with_what_it_printed() {
    let service = "[[service]]\nname = \"db\"\n\
        start = [\"sh\", \"-c\", \"echo no disk left; exit 7\"]\n";
    let experiment = Experiment::new(LOAD).lines(service).server("one", "");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    for part in ["service db", "never listened", "7", "no disk left"] {
        assert!(run.stderr.contains(part), "{part} in {}", run.stderr);
    }
    experiment.wait_until_gone("a service that did not start");
}

#[test]
fn a_service_that_lacks_a_program_is_named() {
    let service = "[[service]]\nname = \"db\"\nstart = [\"no-such-program\"]\n\
        requires = [\"no-such-program\"]\n";
    let run = Experiment::new(LOAD).lines(service).server("one", "").run(&[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stderr.contains("apt-get install no-such-program"), "{}", run.stderr);
}

/// A configuration whose commands record the time when they run.
const COMMANDS: &str = "before = [\"sh\", \"-c\", \"echo before {port} >> {dir}/seen/order\"]\n\
                        after = [\"sh\", \"-c\", \"echo after {port} >> {dir}/seen/order\"]";

#[test]
fn commands_are_run_before_and_after_servers_and_the_whole() {
    let experiment = Experiment::new("requests = 5\nwarmup = 0\nrounds = 2")
        .server_with("one", "", COMMANDS)
        .at_the_top(
            "before = [\"sh\", \"-c\", \"echo first >> seen/order\"]\n\
             after = [\"sh\", \"-c\", \"echo last >> seen/order\"]\n",
        );
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let order = experiment.read("seen/order");
    let words: Vec<&str> = order.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(words, ["first", "before", "after", "before", "after", "last"]);
    let ports: Vec<&str> = order.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!((ports[0], ports[2]), (ports[1], ports[3]), "the placeholders of the same trial");
    experiment.wait_until_gone("commands");
}

#[test]
fn a_command_that_fails_or_never_ends_starts_no_server() {
    let failing = "before = [\"sh\", \"-c\", \"echo no table; exit 4\"]";
    let hanging = "before = [\"sleep\", \"1000\"]\nready_timeout = \"200ms\"";
    for (lines, why) in [(failing, "exit status 4"), (hanging, "did not end within 200ms")] {
        let experiment = Experiment::new("requests = 5\nrounds = 1").server_with("one", "", lines);
        let run = experiment.run(&[]);
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        assert!(
            run.stderr.contains("\"one\" could not be started: its command before: "),
            "{}",
            run.stderr
        );
        assert!(run.stderr.contains(why), "{}", run.stderr);
        assert!(experiment.pids().is_empty());
        experiment.wait_until_gone("a command that went wrong");
    }
}

#[test]
fn a_warm_up_ends_at_its_ceiling_with_a_note() {
    // One window of 250 ms is not enough to determine a steady rate.
    let load = "requests = 5\nwarmup = 0\nsteady = \"1ms\"\nrounds = 1";
    let experiment = Experiment::new(load).server("one", "");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let notes = experiment.json()["configurations"][0]["notes"].to_string();
    assert!(notes.contains("not steady after 1.00 ms of warm-up"), "{notes}");
    assert!(experiment.requests() > 10, "it was warmed up");
}

//! Services of an experiment: what runs beside every server and is not measured.

mod compare_support;

use compare_support::Experiment;

const LOAD: &str = "requests = 20\nwarmup = 2\nrounds = 2";

const BACKEND: &str = "[[service]]\nname = \"back\"\n\
    start = [\"perl\", \"{dir}/server.pl\", \"{port}\", \"{dir}/seen\"]\n\
    stop_timeout = \"300ms\"\n";

/// A gateway in front of the service.
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

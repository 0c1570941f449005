//! `[load.client]`: instead of the built-in load generator, a command loads the servers and prints
//! a number.

mod compare_support;

use std::fs;

use compare_support::Experiment;
use forebay_testkit::peer;
use serde_json::Value;

const ROUNDS: &str = "duration = \"10ms\"\nwarmup = 0\nrounds = 3";

/// An experiment whose client is this shell script.
fn client(script: &str, lines: &str) -> Experiment {
    let words = "\"sh\", \"client.sh\", \"{url}\", \"{duration}\", \"{seed}\", \"{connections}\"";
    let text = format!("{ROUNDS}\n[load.client]\ncommand = [{words}]\n{lines}");
    let experiment = Experiment::new(&text);
    fs::write(experiment.path("client.sh"), script).unwrap();
    experiment.server_with("one", "", "path = \"/one\"").server_with("two", "", "path = \"/two\"")
}

/// Returns the mean, the ratio and the verdict of the second configuration.
fn second(json: &Value) -> (f64, f64, &str) {
    let row = &json["configurations"][1];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let verdict = row["ratio"]["verdict"].as_str().unwrap_or_default();
    (number(&row["rate"]["mean"]), number(&row["ratio"]["mean"]), verdict)
}

#[test]
fn printed_numbers_are_compared_and_rounds_get_equal_arguments() {
    let script = "echo \"$1 $2 $3 $4 $URL $DURATION $SEED $CONNECTIONS $PORT\" >> seen/client\n\
                  case $URL in */one) echo tps = 100.$SEED;; *) echo tps = 151.$SEED;; esac\n\
                  echo actually processed: 50\n";
    let lines = "metric = { pattern = 'tps = ([0-9.]+)', unit = \"transactions/s\" }\n\
                 count = { pattern = 'processed: ([0-9]+)' }\n";
    let experiment = client(script, lines);
    let run = experiment.run(&["--seed", "5"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    let (mean, ratio, verdict) = second(&json);
    assert!((151.0..152.0).contains(&mean) && (1.49..1.52).contains(&ratio), "{mean} {ratio}");
    assert_eq!(verdict, "faster");
    let trial = &json["configurations"][1]["trials"][0];
    assert_eq!(trial["requests"]["completed"], 50);
    assert!(trial["server"]["cpu_us_per_request"].is_number(), "{trial}");
    assert!(run.stderr.contains("transactions/s"), "{}", run.stderr);
    let markdown = experiment.read("forebay-report/report.md");
    let said = "1.51 times as good as (by transactions/s) one";
    assert!(markdown.contains(said) && markdown.contains("| transactions/s |"), "{markdown}");
    assert!(experiment.read("forebay-report/report.html").contains("<h2>transactions&#x2f;s</h2>"));

    let seen = experiment.read("seen/client");
    let seen: Vec<Vec<&str>> = seen.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(seen.len(), 6, "once a trial");
    for words in &seen {
        assert_eq!(words[..4], words[4..8], "placeholders and environment");
        assert_eq!((words[1], words[3]), ("0.01", "2"));
        assert!(words[0].contains(&format!(":{}/", words[8])), "{words:?}");
    }
    let seeds: Vec<&str> = seen.iter().map(|words| words[2]).collect();
    assert!(seeds.chunks(2).all(|round| round[0] == round[1]), "{seeds:?}");
    assert!(seeds[0] != seeds[2] && seeds[2] != seeds[4], "{seeds:?}");
    // The results are complete: no run is missing, and reading them returns the same values.
    assert_eq!(experiment.run(&["--resume"]).code, Some(0));
    assert_eq!(experiment.json()["configurations"], json["configurations"]);
}

#[test]
fn the_ratio_is_inverted_if_less_is_better() {
    let script =
        "case $1 in */one) ms=20;; *) ms=10;; esac\necho loading\necho \"{\\\"ms\\\": $ms.$3}\"\n";
    let lines = "metric = { json = \"/ms\", unit = \"ms\", better = \"lower\" }\n";
    let experiment = client(script, lines);
    let run = experiment.run(&["--seed", "1"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    let (mean, ratio, verdict) = second(&json);
    assert!((10.0..11.0).contains(&mean), "{mean}");
    assert!((1.85..2.05).contains(&ratio) && verdict == "faster", "half the time: {ratio}");
}

#[test]
fn a_client_that_tells_nothing_voids_its_trials_and_says_why() {
    let pattern = "metric = { pattern = 'rate (\\S*)' }\ntimeout = \"300ms\"\n";
    for (script, why) in [
        ("echo no such host; exit 3", "exit status 3; the end of what it printed: no such host"),
        ("true", "printed nothing that fits rate"),
        ("echo rate NaN", "printed NaN, of which no ratio can be made"),
        ("echo rate -5", "printed -5, of which no ratio can be made"),
        ("echo rate inf", "printed inf, of which"),
        ("echo rate 0", "printed 0, of which"),
        ("echo rate fast", "\"fast\", which is no number"),
        ("sleep 77 & sleep 77", "did not end within 310ms and was ended"),
    ] {
        let experiment = client(script, pattern);
        let run = experiment.run(&["--rounds", "1"]);
        assert_eq!(run.code, Some(1), "{script}: {}", run.stderr);
        let json = experiment.json();
        let reason = json["configurations"][0]["trials"][0]["void_reason"].as_str().unwrap();
        assert!(reason.contains(why) && reason.contains("the client sh"), "{script}: {reason}");
        assert_eq!(json["configurations"][1]["ratio"], Value::Null);
        experiment.wait_until_gone(script);
    }
}

#[test]
fn a_client_that_is_not_installed_ends_the_experiment_before_it_begins() {
    let lines = "metric = { pattern = '(.+)' }\nrequires = [\"no-such-client\"]\n";
    let experiment = client("echo 1", lines);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stderr.contains("not installed: no-such-client"), "{}", run.stderr);
    assert_eq!(experiment.requests(), 0);
}

#[test]
fn a_server_of_any_protocol_is_ready_when_it_takes_connections() {
    let lines = "[load.client]\ncommand = [\"sh\", \"-c\", \"echo {url} {how}\"]\n\
                 metric = { pattern = 'tcp://127.0.0.1:[0-9]+ (.+)' }\n[matrix]\nhow = [7, 14]\n";
    let server = "[[configuration]]\nname = \"mute\"\nurl = \"tcp://127.0.0.1:{port}\"\n\
                  start = [\"perl\", \"{dir}/server.pl\", \"{port}\", \"{dir}/seen\", \"mute\"]\n";
    let experiment = Experiment::new(&format!("{ROUNDS}\n{lines}")).lines(server);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let (mean, ratio, _) = second(&experiment.json());
    assert_eq!(mean, 14.0, "a matrix fills in the client's command");
    assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn h2load_is_a_client() {
    if !peer::has(&["nghttp2-client"]) {
        return;
    }
    let lines = "duration = \"1s\"\nwarmup = 0\nrounds = 1\n[load.client]\n\
        command = [\"h2load\", \"--h1\", \"-c\", \"{connections}\", \"-D\", \"{duration}\", \"{url}\"]\n\
        metric = { pattern = 'finished in .*?, ([0-9.]+) req/s', unit = \"requests/s\" }\n\
        count = { pattern = 'requests: .*? ([0-9]+) succeeded' }\nrequires = [\"h2load\"]\n";
    let server = "[[configuration]]\nname = \"Forebay\"\nurl = \"http://127.0.0.1:{port}\"\n\
        path = \"/server.pl\"\n\
        start = [\"forebay\", \"serve\", \"{dir}\", \"--listen\", \"127.0.0.1:{port}\"]\n";
    let experiment = Experiment::new(lines).lines(server);
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let trial = experiment.json()["configurations"][0]["trials"][0].clone();
    assert!(trial["slices"][0]["printed"]["value"].as_f64() > Some(10.0), "{trial}");
    assert!(trial["requests"]["completed"].as_u64() > Some(10), "{trial}");
}

//! `forebay compare --save` and `--against`: an experiment and its earlier results.

mod compare_support;

use std::fs;
use std::process::Command;

use compare_support::Experiment;
use forebay_testkit::peer;

/// Enough rounds for an interval on a busy machine.
const LOAD: &str = "requests = 40\nwarmup = 2\nrounds = 4";

/// Serves from `built.pl`, which the build of a revision makes from `server.pl`.
fn experiment() -> Experiment {
    Experiment::new(LOAD).lines(
        "[[configuration]]\nname = \"app\"\nurl = \"http://127.0.0.1:{port}\"\n\
         start = [\"perl\", \"{dir}/built.pl\", \"{port}\", \"{tmp}\"]\nstop_timeout = \"300ms\"\n",
    )
}

fn with_build(build: &str) -> Experiment {
    experiment().lines(&format!("[against]\nbuild = {build:?}\n"))
}

/// Makes the server of this start by applying `change` to the existing one.
fn build_here(experiment: &Experiment, change: impl Fn(String) -> String) {
    fs::write(experiment.path("built.pl"), change(experiment.read("server.pl"))).unwrap();
}

/// Returns a server that takes 20 ms longer for each request.
fn slower(script: String) -> String {
    let change = "my $served = 0;";
    assert!(script.contains(change));
    script.replace(change, &format!("{change}\n$habit{{slow}} = 0.02;"))
}

/// Commits the experiment and its server.
fn commit(experiment: &Experiment) {
    experiment.compare(&[]);
    let script = "git init -q . && git add server.pl experiment.toml && \
                  git -c user.name=n -c user.email=e@example.org commit -qm one";
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", script]).current_dir(experiment.path(".")).status().unwrap();
    assert!(status.success());
}

fn names(json: &serde_json::Value) -> Vec<&str> {
    let all = json["configurations"].as_array().unwrap().iter();
    all.map(|configuration| configuration["name"].as_str().unwrap()).collect()
}

#[test]
fn an_older_revision_is_built_and_run_beside_the_new_one() {
    if !peer::has(&["git"]) {
        return;
    }
    let experiment = with_build("cp server.pl built.pl && echo built >> ../../builds");
    commit(&experiment);
    build_here(&experiment, slower);
    let run = experiment.run(&["--against", "HEAD"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("app: slower than app (HEAD) by"), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!(names(&json), ["app", "app (HEAD)"]);
    let (new, old) = (&json["configurations"][0], &json["configurations"][1]);
    assert_eq!(
        (&new["reference"], &new["ratio"]["verdict"]),
        (&"app (HEAD)".into(), &"slower".into())
    );
    // One trial may be void if other programs used the machine.
    let trials = [new, old].map(|build| build["trials"].as_array().unwrap().len());
    assert_eq!(trials, [4, 4]);
    assert!(old["ratio"].is_null(), "{old}");
    experiment.wait_until_gone("a comparison with a revision");

    build_here(&experiment, |script| script);
    let run = experiment.run(&["--against", "HEAD", "--threshold", "99%", "--rounds", "3"]);
    // 4: the interval is too wide to decide, because other programs used the machine.
    assert!(matches!(run.code, Some(0 | 4)), "{:?} {}", run.code, run.stderr);
    assert_eq!(experiment.read("builds"), "built\n", "it is built once");

    // A server that is many times slower, in one round: there is no interval and no decision.
    build_here(&experiment, slower);
    let junit = ["--rounds", "1", "--junit", "junit.xml"];
    let run = experiment.run(&[&["--against", "HEAD"], &junit[..]].concat());
    assert_eq!(run.code, Some(4), "{}", run.stderr);
    assert!(
        run.stderr.contains("app: inconclusive: run 5 more rounds (--rounds 6 --resume"),
        "{}",
        run.stderr
    );
    let xml = experiment.read("junit.xml");
    assert!(xml.contains("failures=\"0\" errors=\"1\""), "{xml}");
}

#[test]
fn saved_figures_are_compared_with_where_the_start_is_the_same() {
    let experiment = experiment();
    build_here(&experiment, |script| script);
    let run = experiment.run(&["--save", "first"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let first = experiment.json();
    build_here(&experiment, slower);
    let run = experiment.run(&["--against", "first", "--quiet"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!(names(&json), ["app", "app (first)"]);
    let old = &json["configurations"][1];
    assert_eq!(old["trials"], first["configurations"][0]["trials"], "not run again");
    assert_eq!(json["configurations"][0]["ratio"]["verdict"], "slower");
    assert!(old["notes"].to_string().contains("not together with the others"), "{old}");

    let run = experiment.run(&["--against", "first", "--connections", "3"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("load.connections was 2 and is 3"), "{}", run.stderr);
}

#[test]
fn a_saved_configuration_that_is_started_differently_is_run_again() {
    let experiment = Experiment::new("requests = 5\nwarmup = 0\nrounds = 1").server("app", "");
    assert_eq!(experiment.run(&["--save", "plain"]).code, Some(0));
    let saved = experiment.path("forebay-saved/plain.json");
    let text = fs::read_to_string(&saved).unwrap();
    // This simulates that the server was started with another argument then.
    fs::write(&saved, text.replace("{dir}/seen\"", "{dir}/seen\", \"children\"")).unwrap();
    let run = experiment.run(&["--against", "plain"]);
    assert_eq!(run.code, Some(4), "one round cannot decide: {}", run.stderr);
    let json = experiment.json();
    let old = &json["configurations"][1];
    assert_eq!((&old["name"], &old["saved"]), (&"app (plain)".into(), &serde_json::Value::Null));
    assert_eq!(old["trials"][0]["server"]["processes_max"], 3);
}

#[test]
fn an_unusable_earlier_result_is_refused_before_any_start() {
    if !peer::has(&["git"]) {
        return;
    }
    let experiment = with_build("echo no compiler; exit 3");
    let refused = |label: &str, why: &str| {
        let run = experiment.run(&["--against", label]);
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(why), "{}", run.stderr);
    };
    refused("main", "neither saved results (--save) nor a revision in git");
    commit(&experiment);
    refused("no-such-branch", "neither saved results (--save) nor a revision in git");
    refused("--upload-pack=x", "unexpected argument");
    refused("HEAD", "build = \"echo no compiler; exit 3\") failed");
    fs::create_dir(experiment.path("forebay-saved")).unwrap();
    fs::write(experiment.path("forebay-saved/torn.json"), "{\"schema\": \"fore").unwrap();
    refused("torn", "cannot read");
    assert!(experiment.pids().is_empty());
    let run = experiment.run(&["--save", "../elsewhere"]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
}

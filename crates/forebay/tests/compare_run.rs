//! `forebay compare` from the file to the reports: what it writes, says and returns.

mod compare_support;

use compare_support::Experiment;

const SHORT: &str = "requests = 40\nwarmup = 5\nrounds = 3";

#[test]
fn a_whole_experiment() {
    let experiment =
        Experiment::new(SHORT).server("one", "").server_with("two", "children", "notes = \"n1\"");
    let run = experiment.run(&["--seed", "7"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    experiment.wait_until_gone("a whole experiment");

    let json = experiment.json();
    assert_eq!(json["schema"], "forebay.compare/1");
    assert_eq!((&json["seed"], &json["complete"]), (&7.into(), &true.into()));
    assert!(json["machine"]["cores"].as_u64() >= Some(1));
    assert_eq!(json["configurations"][0]["baseline"], true);
    assert!(json["configurations"][0]["ratio"].is_null());
    assert!(json["configurations"][1]["ratio"]["mean"].as_f64() > Some(0.0));
    assert_eq!(json["configurations"][1]["notes"][0], "n1");
    for configuration in json["configurations"].as_array().unwrap() {
        assert_eq!(configuration["rate"]["n"], 3);
        let trials = configuration["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 3);
        for (index, trial) in trials.iter().enumerate() {
            assert_eq!(trial["round"], index + 1);
            assert_eq!(trial["requests"]["completed"], 40);
            assert_eq!(trial["requests"]["failed"], 0);
            assert_eq!(trial["void"], false, "{trial}");
            assert!(trial["latency_us"]["p50"].as_u64() > Some(0));
            assert!(trial["server"]["rss_start"].as_u64() > Some(100_000));
            assert!(trial["server"]["rss_max"].as_u64() >= trial["server"]["rss_start"].as_u64());
            assert!(trial["server"]["cpu_us_per_request"].as_f64() >= Some(0.0));
        }
    }
    let server = &json["configurations"][1]["trials"][0]["server"];
    assert_eq!((&server["processes_max"], &server["threads_max"]), (&3.into(), &3.into()));
    assert!(server["fds_max"].as_u64() > Some(9));

    assert!(run.stdout.contains("Requests/s"), "{}", run.stdout);
    assert!(run.stdout.contains(" 1  n1"), "{}", run.stdout);
    assert!(run.stderr.contains("seed 7"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("round")).count(), 6);
    assert!(experiment.read("forebay-report/report.md").contains("| one (baseline) |"));
}

#[test]
fn servers_of_a_round_are_loaded_slice_by_slice() {
    // Of so few slices none is taken for disturbed.
    let load = "requests = 200\nwarmup = 5\nrounds = 1";
    let experiment = Experiment::new(load).server("one", "").server("two", "").server_with(
        "apart",
        "",
        "isolated = true",
    );
    let run = experiment.run(&["--quiet"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    let slices = |configuration: usize| {
        let trial = &json["configurations"][configuration]["trials"][0];
        assert_eq!(trial["requests"]["completed"], 200, "{trial}");
        let slices = trial["slices"].as_array().unwrap().iter();
        slices
            .map(|slice| (slice["number"].as_u64().unwrap(), slice["completed"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    let all: Vec<(u64, u64)> = (0..5).map(|number| (number, 40)).collect();
    assert_eq!((slices(0), slices(1), slices(2)), (all.clone(), all, vec![(0, 200)]));
    let ratio = |index: usize| &json["configurations"][index]["ratio"];
    assert_eq!((&ratio(1)["pairs"], &ratio(1)["slices"]), (&1.into(), &5.into()));
    assert_eq!((&ratio(2)["pairs"], &ratio(2)["slices"]), (&1.into(), &1.into()));
    experiment.wait_until_gone("several servers at once");
}

#[test]
fn the_page_stands_alone_and_escapes_what_it_shows() {
    let load = format!("{SHORT}\nheaders = {{ X-Test = \"http://e.example/\" }}");
    let experiment = Experiment::new(&load).server_with(
        "<script>alert(1)</script>",
        "",
        "notes = \"<img alt=x> & \\\"quoted\\\"\"",
    );
    assert_eq!(experiment.run(&["--quiet"]).code, Some(0));
    let page = experiment.read("forebay-report/report.html");
    assert!(page.contains("A &lt;test&gt; &amp; more"));
    assert!(page.contains("&lt;script&gt;alert(1)"));
    for absent in ["<script", "<img", "http://", "https://", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(absent), "{absent} in the page");
    }
    let charts: Vec<&str> = page.split("<svg ").skip(1).collect();
    assert_eq!(charts.len(), 3);
    for chart in charts {
        let end = chart.find("</svg>").expect("a chart is closed") + "</svg>".len();
        let svg = format!("<svg {}", &chart[..end]);
        roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn the_seed_repeats_the_order() {
    let experiment =
        Experiment::new("requests = 5\nwarmup = 0\nrounds = 3").server("a", "").server("b", "");
    let order = |seed: &str| {
        assert_eq!(experiment.run(&["--quiet", "--seed", seed]).code, Some(0));
        let json = experiment.json();
        let trials = json["configurations"][0]["trials"].as_array().unwrap().clone();
        trials.iter().map(|trial| trial["order"].as_u64()).collect::<Vec<_>>()
    };
    let first = order("11");
    assert_eq!(first, order("11"));
    assert!((12..60).any(|seed| order(&seed.to_string()) != first));
}

#[test]
fn what_is_not_installed_is_named_and_the_rest_runs() {
    let experiment = Experiment::new(SHORT).server("here", "").server_with(
        "elsewhere",
        "",
        "requires = [\"no-such-server\", \"perl\"]",
    );
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("not installed: no-such-server (apt-get install no-such-server)"));
    let json = experiment.json();
    assert_eq!(json["configurations"][1]["missing"][0], "no-such-server");
    assert!(json["configurations"][1]["rate"].is_null());
    assert_eq!(json["configurations"][0]["rate"]["n"], 3);
}

#[test]
fn nothing_to_compare_is_an_error() {
    let lines = "requires = [\"no-such-server\"]";
    let run = Experiment::new(SHORT).server_with("elsewhere", "", lines).run(&[]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("every configuration lacks something"), "{}", run.stderr);
}

#[test]
fn templates_are_filled_in_and_the_environment_reaches_the_server() {
    let script = "echo \"$MARK\" > {dir}/seen/mark; pwd >> {dir}/seen/mark; \
                  exec perl {dir}/server.pl {port} {dir}/seen\n";
    let experiment = Experiment::new(SHORT).lines(
        "[[configuration]]\nname = \"scripted\"\nstart = [\"sh\", \"{tmp}/start.sh\"]\n\
         url = \"http://127.0.0.1:{port}\"\ntemplates = [\"start.sh\"]\ncwd = \"{tmp}\"\n\
         env = { MARK = \"port {port}\" }\n",
    );
    let start = experiment.compare(&["--rounds", "1"]).get_current_dir().unwrap().join("start.sh");
    std::fs::write(start, script).unwrap();
    let run = experiment.run(&["--rounds", "1"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let mark = experiment.read("seen/mark");
    let port = mark.lines().next().and_then(|line| line.strip_prefix("port "));
    assert!(port.is_some_and(|port| port.parse::<u16>().is_ok()), "{mark}");
    assert!(mark.contains("/tmp/forebay-compare-"), "{mark}");
}

#[test]
fn an_experiment_against_itself_tells_the_noise_floor() {
    let experiment = Experiment::new(SHORT).server("one", "").server("two", "");
    let run = experiment.run(&["--aa"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("Noise floor:"), "{}", run.stdout);
    let names: Vec<_> = experiment.json()["configurations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|configuration| configuration["name"].clone())
        .collect();
    assert_eq!(names, ["one", "one (again)"]);
}

#[test]
fn json_to_standard_output_is_all_there_is_on_it() {
    let experiment = Experiment::new(SHORT).server("one", "");
    let run = experiment.run(&["--json", "-", "--rounds", "1"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["rounds"], 1);
}

#[test]
fn connections_are_closed_where_the_command_says_so() {
    let experiment = Experiment::new(SHORT).server("one", "");
    let run = experiment.run(&["--rounds", "1", "--no-keepalive"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(experiment.json()["load"]["keepalive"], false);
}

#[test]
fn only_runs_what_is_named_and_the_baseline() {
    let experiment =
        Experiment::new(SHORT).server("one", "").server("two", "exit=1").server("three", "");
    let run = experiment.run(&["--only", "three", "--rounds", "1"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(experiment.json()["configurations"].as_array().unwrap().len(), 2);

    let run = experiment.run(&["--only", "tree"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("there are: one, two, three"), "{}", run.stderr);
}

#[test]
fn a_wrong_file_starts_nothing() {
    let experiment = Experiment::new("requests = 10").server_with("one", "", "cwdd = \"/\"");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("did you mean `cwd`?"), "{}", run.stderr);
    assert!(run.stderr.contains("experiment.toml:10:1"), "{}", run.stderr);
    assert!(experiment.pids().is_empty());
    assert_eq!(experiment.run(&["--rounds", "0"]).code, Some(2));
}

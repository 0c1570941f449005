//! `forebay compare` from the file to the reports: its files, output and exit code.

mod compare_support;

use std::net::SocketAddr;

use compare_support::Experiment;
use forebay_testkit::process::Process;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

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
    assert!(server["load_mean"].as_f64() >= Some(0.0), "{server}");

    assert!(run.stdout.contains("Requests/s"), "{}", run.stdout);
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 80), "{}", run.stdout);
    assert!(run.stdout.contains(" 1  n1"), "{}", run.stdout);
    assert!(run.stderr.contains("seed 7"), "{}", run.stderr);
    assert_eq!(run.stderr.lines().filter(|line| line.starts_with("round")).count(), 6);
    assert!(experiment.read("forebay-report/report.md").contains("| one (baseline) |"));
}

#[test]
fn servers_of_a_round_are_loaded_slice_by_slice() {
    // There are so few slices that none counts as disturbed.
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
    for absent in ["<script", "<img", "\"http://", "\"https://", "src=", "href=", "url(", "@import"]
    {
        assert!(!page.contains(absent), "{absent} in the page");
    }
    let charts: Vec<&str> = page.split("<svg ").skip(1).collect();
    // If no control group is possible, there is no chart of CPU time. Each chart exists for wide
    // and for narrow screens.
    let has_cpu = page.contains("Processor time</h2>");
    assert_eq!(charts.len(), 2 * (3 + usize::from(has_cpu)));
    assert!(page.contains("server.pl {port}"), "the command is told");
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
fn missing_programs_are_named_and_the_rest_runs() {
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
    assert!(run.stderr.contains("every configuration lacks a requirement"), "{}", run.stderr);
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

#[test]
fn servers_that_run_are_compared_without_a_file() {
    let server = |_| forebay_testkit::port::listener();
    let listeners: Vec<_> = (0..2).map(server).collect();
    let urls: Vec<String> =
        listeners.iter().map(|(_, address)| format!("http://{address}/any?thing")).collect();
    for (listener, _) in listeners {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || answer(&mut stream));
            }
        });
    }
    let experiment = Experiment::new("");
    let mut arguments = vec!["--rounds", "2", "--duration", "60ms", "--connections", "1"];
    urls.iter().for_each(|url| arguments.extend(["--url", url]));
    let run = experiment.run_without_file(&arguments);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!(json["configurations"][1]["name"], urls[1]);
    assert_eq!(json["configurations"][1]["ratio"]["pairs"], 2);
    // Processes that already run are not watched.
    assert!(json["configurations"][1]["cpu_us_per_request"].is_null());
    assert!(json["configurations"][1]["cpu_ratio"].is_null());
    assert!(!experiment.read("forebay-report/report.html").contains("Resident memory</h2>"));
    experiment.wait_until_gone("servers that ran");
}

#[test]
fn a_server_that_runs_on_this_machine_is_found_and_watched() {
    let experiment = Experiment::new("");
    let start = || {
        let port = forebay_testkit::port::free_port();
        let mut command = std::process::Command::new("perl");
        command.arg(experiment.path("server.pl")).arg(port.to_string());
        command.arg(experiment.path("seen")).arg("children");
        let mut server = Process::start(command);
        server.wait_until_listening(SocketAddr::from(([127, 0, 0, 1], port)));
        (server, format!("http://127.0.0.1:{port}/a/path/that/is/rather/long"))
    };
    let servers = [start(), start()];
    let urls: Vec<&str> = servers.iter().map(|(_, url)| url.as_str()).collect();
    let load = ["--rounds", "2", "--duration", "300ms", "--connections", "1"];
    let urls = ["--url", urls[0], "--url", urls[1]];
    let run = experiment.run_without_file(&[&load[..], &urls[..]].concat());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    for configuration in json["configurations"].as_array().unwrap() {
        let server = &configuration["trials"][0]["server"];
        assert_eq!(server["processes_max"], 3, "the server and two children: {server}");
        assert!(configuration["rss_max"].as_u64() > Some(1_000_000), "{configuration}");
        assert!(configuration["cpu_us_per_request"].as_f64() > Some(0.0), "{configuration}");
    }
    // Labels with the same beginning are cut to different texts.
    let page = experiment.read("forebay-report/report.html");
    for (_, url) in &servers {
        let port = url.trim_start_matches("http://127.0.0.1:").split('/').next().unwrap();
        assert!(page.contains(&format!(">…{port}&#x2f;a")), "{port}");
    }
}

/// Answers requests for `/any?thing` until the client closes.
fn answer(stream: &mut std::net::TcpStream) {
    use std::io::{Read, Write};
    let mut buffer = [0; 4096];
    let mut unread = Vec::new();
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        unread.extend_from_slice(&buffer[..n]);
        if unread.ends_with(b"\r\n\r\n") {
            let reply: &[u8] = if unread.starts_with(b"GET /any?thing HTTP/1.1\r\n") {
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
            } else {
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            };
            unread.clear();
            if stream.write_all(reply).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_server_that_does_not_run_is_named() {
    // A socket that is bound but does not listen refuses connections, and reserves its port.
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    let url = format!("http://{address}/");
    let experiment = Experiment::new("");
    let run = experiment.run_without_file(&["--url", &url, "--aa"]);
    assert_eq!(run.code, Some(3), "{}", run.stderr);
    assert!(run.stderr.contains("no correct reply within 5s"), "{}", run.stderr);
    experiment.wait_until_gone("a server that did not run");
}

#[test]
fn commands_are_compared_without_a_file() {
    let experiment = Experiment::new("");
    let seen = experiment.path("seen");
    let server = experiment.path("server.pl");
    let one = format!("perl {server} {{port}} {seen}");
    let two = format!("exec perl {server} \"$PORT\" {seen}");
    let run = experiment.run_without_file(&[
        "--cmd",
        &one,
        "--cmd",
        &two,
        "--rounds",
        "1",
        "--duration",
        "60ms",
    ]);
    // A busy machine can make the only trial void: the result is then inconclusive (4).
    assert!(matches!(run.code, Some(0 | 4)), "{}", run.stderr);
    assert_eq!(experiment.json()["configurations"][1]["name"], two);
    experiment.wait_until_gone("commands");
    assert_eq!(experiment.run_without_file(&["--cmd", &one]).code, Some(2), "nothing to compare");
    assert_eq!(experiment.run_without_file(&[]).code, Some(2));
}

#[test]
fn rounds_end_when_intervals_are_narrow() {
    let experiment =
        Experiment::new("requests = 10\nwarmup = 0").server("one", "").server("two", "");
    // With any noise, the run ends early: after a few looks, intervals have the level of 99 %.
    let run = experiment.run(&["--until", "+-99%", "--rounds", "6", "--quiet"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    assert_eq!(json["complete"], true);
    let finished = json["rounds_finished"].as_u64().unwrap();
    assert!((3..=6).contains(&finished), "{finished}");
    assert!(json["confidence"].as_f64() >= Some(0.95), "{}", json["confidence"]);
}

#[test]
fn errors_are_reported_to_build_servers() {
    let experiment = Experiment::new(SHORT).server("steady", "").server("frail", "crash=30");
    let run = experiment.run(&["--threshold", "5%", "--junit", "junit.xml"]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let xml = experiment.read("junit.xml");
    assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
    assert!(xml.contains("SIGSEGV"), "{xml}");
    let notes = experiment.json()["configurations"][1]["notes"].to_string();
    assert!(notes.contains("crashed after"), "{notes}");
    assert!(experiment.read("forebay-report/report.csv").lines().count() > 6);
}

#[test]
fn a_server_with_fewer_processes_than_connections_is_told_at_once() {
    let load = "duration = \"200ms\"\nslice = \"50ms\"\nwarmup = 0\nrounds = 2";
    let experiment = Experiment::new(load).server("one process", "keep=0.3");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let said = "fewer processes than kept connections; give it 2 processes, or isolated = true";
    assert_eq!(run.stderr.matches(said).count(), 1, "{}", run.stderr);
    assert!(experiment.json()["configurations"][0]["notes"].to_string().contains(said));
}

#[test]
fn a_matrix_is_measured_cell_by_cell() {
    let experiment = Experiment::new("requests = 20\nwarmup = 0\nrounds = 2")
        .server("one", "{extra}")
        .server("two", "")
        .lines("[matrix]\nconnections = [1, 2]\nextra = [\"children\"]\n");
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let json = experiment.json();
    let all = json["configurations"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    for (index, connections) in [(0, 1), (2, 2)] {
        let (one, two) = (&all[index], &all[index + 1]);
        assert_eq!(one["name"], format!("one [connections {connections}, extra children]"));
        assert_eq!((&two["reference"], &one["ratio"]), (&one["name"], &serde_json::Value::Null));
        assert_eq!(two["ratio"]["pairs"], 2);
        assert_eq!(one["trials"][0]["connections"], connections);
        assert_eq!(one["trials"][0]["server"]["processes_max"], 3);
    }
    experiment.wait_until_gone("a matrix");
}

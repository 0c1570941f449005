//! `forebay bench` as a user runs it: flags, report, result files and exit codes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const ABSENT: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// Starts a server that answers every read with `reply`. Returns its address.
fn server(reply: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    if stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).arg("bench").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_report_tells_rate_latency_and_replies() {
    let output = bench(&[&format!("http://{}/", server(HELLO)), "-n", "2000", "-c", "4"]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(report.lines().all(|line| line.chars().count() <= 80), "{report}");
    for part in ["2,000 completed", "4 connections", "p50", "p99", "200: 2,000", "Failed    0"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains("p99.9"), "only two latencies lie beyond it: {report}");
    assert!(output.stderr.is_empty(), "no progress bar without a terminal: {output:?}");
}

#[test]
fn few_requests_have_no_percentiles() {
    let output = bench(&[&format!("http://{}/", server(HELLO)), "-n", "12"]);
    assert!(text(&output.stdout).contains("too few requests for percentiles"));
}

#[test]
fn json_on_standard_output_is_the_documented_schema() {
    let url = format!("http://{}/", server(HELLO));
    let output = bench(&[&url, "-n", "500", "-c", "3", "-t", "2", "--json", "-"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "forebay.bench/1");
    assert_eq!((&json["method"], &json["interrupted"]), (&"GET".into(), &false.into()));
    assert!(json["version"].is_string() && json["requested_rate"].is_null());
    assert!(json["started_at"].as_str().unwrap().starts_with("20"), "{json}");
    assert_eq!(json["series"][0]["completed"], 500);
    assert_eq!((&json["requests"]["in_flight"], &json["problems"][0]), (&0.into(), &Value::Null));
    assert_eq!((&json["url"], &json["protocol"]), (&url.into(), &"http/1.1".into()));
    assert_eq!((&json["connections"], &json["threads"]), (&3.into(), &2.into()));
    assert_eq!(json["streams"], 1);
    assert_eq!(json["requests"]["sent"], 500);
    assert_eq!(json["requests"]["completed"], 500);
    assert_eq!(json["requests"]["failed"], 0);
    assert_eq!(json["requests"]["status"]["200"], 500);
    for kind in ["connect", "read", "write", "timeout", "protocol"] {
        assert_eq!(json["requests"]["failures"][kind], 0);
    }
    assert_eq!(json["bytes"]["body"], 2500);
    for place in ["mean", "sd", "min", "max", "p50", "p75", "p90", "p95", "p99", "p99_9"] {
        assert!(json["latency_us"][place].is_number(), "{place}: {json}");
    }
    for place in ["cpu_user_s", "cpu_system_s", "cpu_us_per_request"] {
        assert!(json["client"][place].is_number(), "{place}: {json}");
    }
    assert!(json["client"]["saturated"].is_boolean());
    assert!(json["rate_per_s"].as_f64().unwrap() > 0.0);
    assert!(json["duration_s"].as_f64().unwrap() > 0.0);
    assert!(json["histogram"].as_str().unwrap().starts_with("HISTFAAA"));
    assert!(text(&output.stderr).contains("requests/s"), "the report goes to standard error");
}

#[test]
fn result_files_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, csv, hlog) = (path("r.json"), path("r.csv"), path("r.hlog"));
    let url = format!("http://{}/", server(HELLO));
    let output =
        bench(&[&url, "-n", "50", "--json", &json, "--csv", &csv, "--hlog", &hlog, "--quiet"]);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
    let read = |path: &str| fs::read_to_string(path).unwrap();
    let value: Value = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!(value["requests"]["completed"], 50);
    let table = read(&csv);
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0].len()), (2, rows[1].len()));
    let column = rows[0].iter().position(|name| *name == "completed").unwrap();
    assert_eq!(rows[1][column], "50");
    assert!(read(&hlog).contains("HISTFAAA"));
}

#[test]
fn failures_and_error_replies_exit_with_1_unless_allowed() {
    let url = format!("http://{}/", server(ABSENT));
    let output = bench(&[&url, "-n", "20"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("20 replies were 4xx/5xx"), "{output:?}");
    assert_eq!(bench(&[&url, "-n", "20", "--allow-failures"]).status.code(), Some(0));

    let url = format!("http://{}/", server("no HTTP\r\n\r\n"));
    let output = bench(&[&url, "-n", "20"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("20 (protocol: 20)"), "{output:?}");
}

/// SETTINGS, and a reply with status 200 on stream 1: `:status` is an index of the static table.
const HTTP2: &str = "\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x05\0\0\0\x01\x08\x03200";

#[test]
fn http2_is_spoken_by_its_scheme_and_by_its_flag() {
    let address = server(HTTP2);
    let (h2c, http) = (format!("h2c://{address}/"), format!("http://{address}/"));
    for flags in [&[&h2c[..], "--json", "-"][..], &[&http, "--http2", "--json", "-"]] {
        let output = bench(&[flags, &["-n", "5", "-c", "1", "--no-keepalive"]].concat());
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["protocol"], &json["requests"]["completed"]), (&"h2c".into(), &5.into()));
    }
    let url = format!("h2c://{}/", server(HELLO));
    let output = bench(&[&url, "-n", "20", "--streams", "4"]);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains("10 connections of 4 streams"), "{report}");
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("speaks HTTP/1.1, not HTTP/2 with prior knowledge"), "{report}");
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    let url = "http://127.0.0.1:1/";
    let cases: &[(&[&str], &str)] = &[
        (&["localhost:8080"], "http://HOST:PORT/PATH"),
        (&["ws://127.0.0.1/", "-X", "POST"], "has the method GET"),
        (&["ws://127.0.0.1/", "-H", "Upgrade: x"], "leave out the field Upgrade"),
        (&["http://127.0.0.1:1/", "ajp://127.0.0.1:2/"], "a run has one protocol"),
        (&[url, url, "--weights", "1"], "1 weights are given for 2 URLs"),
        (&[url, url, "--weights", "1,0"], "above 0"),
        (&[url, "--requests-file", "/nonexistent"], "/nonexistent"),
        (&[url, "--fail-if", "p99=5"], "is not a condition"),
        (&[url, "--find-rate", "p99<5ms", "-r", "5"], "cannot be used with"),
        (&[url, "--arrivals", "even"], "required"),
        (&["http://127.0.0.1:1/", "--insecure"], "https://"),
        (&["ajp://127.0.0.1:1/", "--root", "/srv"], "use fcgi, scgi or uwsgi"),
        (&[url, "--secret", "x"], "use ajp"),
        (&[url, "--root", "/srv"], "use fcgi, scgi or uwsgi"),
        (&["fcgi://127.0.0.1:1/", "--param", "X"], "NAME=value"),
        (
            &["fcgi://127.0.0.1:1/", "--http2"],
            "HTTP/2 and gRPC are for http://, https:// and h2c://",
        ),
        (&[url, "--streams", "8"], "--http2 or --http3"),
        (&[url, "--http3"], "HTTP/3 is for https:// URLs"),
        (&["https+unix:///s:/x", "--http3"], "a host and port"),
        (&["https://127.0.0.1:1/", "--http3", "--http2"], "cannot be used with"),
        (&["https://127.0.0.1:1/", "--http3", "-H", "TE: gzip"], "only `TE: trailers`"),
        (&[url, "--http2", "--streams", "0"], "from 1"),
        (&[url, "--http2", "-H", "Connection: close"], "leave out the field Connection"),
        (&[url, "-n", "5", "-d", "5s"], "cannot be used with"),
        (&[url, "--shard", "0/4"], "the first of four is 1/4"),
        (&[url, "--shard", "1/11"], "10 connections (-c) cannot be divided among 11 shards"),
        (&[url, "--shard", "1/4", "-n", "3"], "3 requests (-n) cannot be divided"),
        (&[url, "--shard", "1/4", "--find-rate", "p99<1s"], "cannot be used with"),
        (&[url, "--replay", "/nonexistent"], "--replay /nonexistent: No such file"),
        (&[url, "--replay", "/dev/null"], "no request that can be sent"),
        (&[url, "--replay", "/bin/sh"], "no request that can be sent (not sent:"),
        (&[url, url, "--replay", "/dev/null"], "give the URL of its server alone"),
        (&[url, "--speed", "2"], "required"),
        (&[url, "--start-at", "10:00"], "seconds since 1970"),
        (&[url, "--start-at", "5"], "passed more than an hour ago"),
        (&[url, "-d", "5x"], "a number and a unit"),
        (&[url, "-c", "1q"], "is not a number"),
        (&[url, "-r", "5/h"], "is not a rate"),
        (&[url, "-c", "0"], "at least one connection"),
        (&[url, "-n", "0"], "at least one request"),
        (&[url, "-H", "no colon"], "name: value"),
        (&[url, "-H", "X: a\r\nY: b"], "not a header field"),
        (&[url, "-H", "Content-Length: 5"], "leave out"),
        (&[url, "-X", "G ET"], "cannot be sent"),
        (&[url, "-r", "0"], "rate"),
        (&[url, "-r", "5", "--think", "1s"], "cannot be used with"),
        (&[url, "--body-file", "/nonexistent"], "/nonexistent"),
        (&[url, "--body-file", "/dev/zero"], "larger than 64 MiB"),
        (&[url, "--json", "/nonexistent/r.json"], "directory does not exist"),
        (&[url, "--csv", "/"], "is a directory"),
        (&[url, "--csv", "-", "--json", "-"], "standard output"),
        (&[], "URL"),
    ];
    for (args, hint) in cases {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        let message = text(&output.stderr);
        assert!(message.contains(hint), "{args:?}: {message}");
    }
}

#[test]
fn unreachable_exits_with_3_and_names_the_address() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = bench(&[&format!("http://127.0.0.1:{port}/"), "-d", "60s"]);
    assert_eq!(output.status.code(), Some(3));
    let message = text(&output.stderr);
    assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
    assert!(message.contains("refused"), "{message}");
}

#[test]
fn an_interrupt_ends_the_run_with_a_report() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", &url, "-c", "1", "-d", "600s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    for _ in 0..3 {
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(HELLO.as_bytes()).unwrap();
    }
    // The fourth request shows that the third reply was counted.
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(
        report.contains("(interrupted)") && report.contains("(3 completed, 1 in flight"),
        "{report}"
    );
}

#[test]
fn a_termination_says_so_in_the_json_and_in_the_exit_code() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", &url, "-c", "1", "-d", "600", "--json", "-", "--quiet"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["interrupted"], &json["requests"]["in_flight"]), (&true.into(), &1.into()));
}

#[test]
fn a_server_that_never_answers_is_no_success() {
    // The system accepts the connections, but nobody reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let output = bench(&[&url, "-c", "3", "-d", "200ms"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = text(&output.stdout);
    assert!(report.contains("3 in flight at the end"), "{report}");
    assert!(report.contains("! no request was completed"), "{report}");
    let output = bench(&[&url, "-c", "3", "-d", "200ms", "--allow-failures"]);
    assert_eq!(output.status.code(), Some(1), "nothing was measured: {output:?}");
}

#[test]
fn a_rate_that_was_missed_is_no_success() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                thread::sleep(std::time::Duration::from_millis(20));
                let _ = stream.write_all(HELLO.as_bytes());
            }
        }
    });
    // One connection carries 50 requests per second, for a duration and for a number of requests.
    for end in [["-d", "1"], ["-n", "30"]] {
        let rate = &["-c", "1", "-r", "1k", "--arrivals", "even", "--json", "-"][..];
        let output = bench(&[&[&url[..]], &end[..], rate].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["requested_rate"], 1000.0);
        assert!(json["rate_shortfall"].as_f64().unwrap() > 0.8, "{json}");
        assert!(text(&output.stderr).contains("requests/s was missed by"), "{output:?}");
    }
}

/// Starts a server that answers at most 200 requests per second, over any number of connections.
fn slow_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let turn = Arc::new(Mutex::new(()));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, turn) = (stream.unwrap(), turn.clone());
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    let held = turn.lock().unwrap();
                    thread::sleep(std::time::Duration::from_millis(5));
                    drop(held);
                    if stream.write_all(HELLO.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_is_too_slow_for_the_rate_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [log, scenario] = [path("access.log"), path("scenario.toml")];
    let line = |n: u64| {
        let (minute, second) = (n / 300 / 60, n / 300 % 60);
        format!(
            "h - - [27/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET /{n} HTTP/1.1\" 200 5\n"
        )
    };
    fs::write(&log, (0..1200).map(line).collect::<String>()).unwrap();
    fs::write(&scenario, "[[scenario]]\n[[scenario.step]]\npath = '/'\n").unwrap();
    // There are enough connections to send each of 300 to 600 requests per second in time.
    thread::scope(|scope| {
        for args in [
            &["-r", "300", "-d", "2"][..],
            &["-r", "300", "-n", "600", "--arrivals", "even"],
            &["-r", "0", "--stages", "500ms:300,1500ms:300,1s:0"],
            &["-r", "300", "-d", "2", "--scenario", &scenario],
            &["--replay", &log],
            &["--replay", &log, "--speed", "2"],
            &["-r", "900", "-d", "2", "--shard", "1/3", "-c", "1800"],
            &["-r", "300", "-d", "2", "--allow-failures", "--format", "wrk"],
        ] {
            let args = args.to_vec();
            scope.spawn(move || {
                let url = format!("http://{}/", slow_server());
                let many = if args.contains(&"-c") { &[][..] } else { &["-c", "600"] };
                let output = bench(&[&[&url[..]], &args[..], many].concat());
                assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
                let all = text(&output.stdout) + &text(&output.stderr);
                let all = all.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(all.contains("was missed by"), "{args:?}: {all}");
            });
        }
    });
}

#[test]
fn a_rate_is_kept_as_an_open_loop() {
    let url = format!("http://{}/", server(HELLO));
    for arrivals in ["even", "poisson"] {
        let output = bench(&[&url, "-n", "100", "-r", "2000", "--arrivals", arrivals]);
        let report = text(&output.stdout);
        // On a busy machine, a run of 50 ms may be too short to say whether the rate was kept.
        assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
        assert!(report.contains("open loop") && report.contains("2,000 requests/s wanted"));
    }
}

/// Returns the address of a server that counts requests by their first line.
fn counting_server() -> (String, Arc<Mutex<BTreeMap<String, u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let counts = Arc::new(Mutex::new(BTreeMap::new()));
    let counted = counts.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, counted) = (stream.unwrap(), counted.clone());
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n").unwrap();
                    let line = head.lines().next().unwrap();
                    let line = line.trim_end_matches(" HTTP/1.1");
                    let mark = if head.contains("X-Mark: 1") { " marked" } else { "" };
                    *counted.lock().unwrap().entry(format!("{line}{mark}|{body}")).or_default() +=
                        1;
                    let status = if line.contains("missing") { ABSENT } else { HELLO };
                    stream.write_all(status.as_bytes()).unwrap();
                }
            });
        }
    });
    (address, counts)
}

#[test]
fn several_urls_are_requested_by_their_weights() {
    let (address, counts) = counting_server();
    let urls = ["/a", "/b?c", "/missing"].map(|path| format!("http://{address}{path}"));
    let [a, b, missing] = urls.each_ref();
    let run = ["--weights", "5,3,2", "-n", "1000", "-c", "4", "-t", "1", "--json", "-"];
    let output = bench(&[&[a.as_str(), b, missing], &run[..]].concat());
    assert_eq!(output.status.code(), Some(1), "replies with 404: {output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = [("GET /a|", 500), ("GET /b?c|", 300), ("GET /missing|", 200)];
    let expected = expected.map(|(line, count)| (line.to_owned(), count));
    assert_eq!(*counts.lock().unwrap(), BTreeMap::from(expected));
    for (index, count) in [500, 300, 200].into_iter().enumerate() {
        let part = &json["requests_by_url"][index];
        assert_eq!(
            (&part["url"], &part["completed"]),
            (&urls[index].clone().into(), &count.into())
        );
        assert!(part["latency_us"]["p99"].is_number(), "{part}");
    }
    let report = text(&output.stderr);
    assert!(report.contains("3 requests on 127.0.0.1:"), "{report}");
    assert!(report.contains("Requests          500  GET /a (mean"), "{report}");
}

#[test]
fn several_servers_are_loaded_at_once_each_with_its_share() {
    let servers = [counting_server(), counting_server()];
    let [first, second] = servers.each_ref().map(|(address, _)| address.as_str());
    let counted = |index: usize| std::mem::take(&mut *servers[index].1.lock().unwrap());
    let urls =
        [format!("http://{first}/a"), format!("http://{second}/b"), format!("http://{first}/c")];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.txt").to_str().unwrap().to_owned();
    let lines = format!("/a weight=2\n\nPOST {} weight=1\n@body\n\n/c weight=1\n", urls[1]);
    fs::write(&file, lines).unwrap();
    fs::write(folder.path().join("body"), "text").unwrap();
    let all = urls.each_ref().map(String::as_str);
    let end = ["-n", "1000", "-c", "8", "--json", "-"];
    for (what, line) in [
        (&[all[0], all[1], all[2], "--weights", "2,1,1"][..], "GET /b|"),
        (&[all[0], all[1], all[2], "--weights", "2,1,1", "-r", "10k"], "GET /b|"),
        (&[all[0], "--requests-file", &file], "POST /b|text"),
    ] {
        let output = bench(&[what, &end].concat());
        assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
        let sent = |lines: &[(&str, u64)]| -> BTreeMap<String, u64> {
            lines.iter().map(|(line, count)| ((*line).to_owned(), *count)).collect()
        };
        let got = counted(0);
        assert_eq!(got.values().sum::<u64>(), 750, "{got:?}");
        assert_eq!(got.keys().collect::<Vec<_>>(), ["GET /a|", "GET /c|"]);
        assert_eq!(counted(1), sent(&[(line, 250)]), "{what:?}");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["requests"]["completed"], 1000);
        let parts = json["requests_by_url"].as_array().unwrap();
        let urls_of = parts.iter().map(|part| part["url"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(urls_of, all, "in the order of the command line");
        assert_eq!(parts[1]["completed"], 250);
        for (index, (address, completed, connections)) in
            [(first, 750, 6), (second, 250, 2)].into_iter().enumerate()
        {
            let server = &json["servers"][index];
            assert_eq!(server["server"], address);
            assert_eq!((&server["completed"], &server["failed"]), (&completed.into(), &0.into()));
            assert_eq!(server["connections"], connections);
            assert_eq!(server["status"]["200"], completed);
        }
        let report = text(&output.stderr);
        assert!(report.contains("3 requests on 2 servers: 8 connections"), "{report}");
        assert!(report.contains(&format!("250  {second}:")), "{report}");
    }
    let h2c = format!("h2c://{second}/");
    for (args, why) in [
        (&[all[0], &h2c][..], "a run has one protocol"),
        (&[all[0], all[1], "-c", "1"], "cannot be divided among 2 servers"),
        (&[all[0], all[1], "-n", "1"], "cannot be divided among 2 servers"),
        (&[all[0], all[1], "--find-rate", "p99<1s"], "only possible for a single run"),
    ] {
        let output = bench(args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
    // The third server accepts no connection.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = bench(&[all[0], &format!("http://{closed}/")]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains(&closed.to_string()), "{output:?}");
}

#[test]
fn connections_go_to_another_address_and_the_host_field_stays() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                    let is_right = text.contains("\r\nHost: www.a.test:81\r\n");
                    stream.write_all(if is_right { HELLO } else { ABSENT }.as_bytes()).unwrap();
                }
            });
        }
    });
    for rule in [address.clone(), format!("WWW.a.test:81:{address}"), format!("::{address}")] {
        let run = ["--connect-to", &rule, "-n", "20", "-c", "2"];
        let output = bench(&[&["http://www.a.test:81/x"], &run[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{rule}: {output:?}");
    }
}

#[test]
fn shards_start_together_and_their_merged_counts_are_exact() {
    let (address, counts) = counting_server();
    let urls = ["/a", "/b"].map(|path| format!("http://{address}{path}"));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let start = format!("{:.3}", now.as_secs_f64() + 0.3);
    let files = ["1", "2", "3"].map(|n| path(&format!("{n}.json")));
    let children = [1, 2, 3].map(|n| {
        Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["bench", &urls[0], &urls[1], "--weights", "2,1", "-c", "7", "-n", "1000"])
            .args(["-t", "1", "-r", "5k", "--shard", &format!("{n}/3"), "--start-at", &start])
            .args(["--json", &files[n - 1], "--quiet", "--fail-if", "p50>60s"])
            .spawn()
            .unwrap()
    });
    for mut child in children {
        child.wait().unwrap();
    }
    let read =
        |file: &str| -> Value { serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap() };
    let shards: Vec<Value> = files.iter().map(|file| read(file)).collect();
    let numbers = |name: &str| shards.iter().map(|s| s[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(numbers("connections"), [3, 2, 2]);
    let sent = |shard: &Value| shard["requests"]["completed"].as_u64().unwrap();
    assert_eq!(shards.iter().map(sent).collect::<Vec<_>>(), [334, 333, 333]);
    assert_eq!(shards[1]["shard"]["requested_rate"], 5000.0);

    let (sum, csv) = (path("sum.json"), path("sum.csv"));
    let merge = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_forebay")).arg("merge").args(args).output().unwrap()
    };
    let [first, second, third] = files.each_ref().map(String::as_str);
    let output = merge(&[third, first, second, "--json", &sum, "--csv", &csv]);
    let report = text(&output.stdout);
    assert!(report.contains("2 requests on 127.0.0.1:"), "{output:?}");
    assert!(report.contains("7 connections") && report.contains("shard 3/3 on "), "{report}");
    let json = read(&sum);
    assert_eq!((&json["requests"]["completed"], &json["connections"]), (&1000.into(), &7.into()));
    assert_eq!(
        (&json["requested_rate"], &json["shards"][2]["number"]),
        (&5000.0.into(), &2.into())
    );
    let seen = counts.lock().unwrap().clone();
    for (index, line) in ["GET /a|", "GET /b|"].into_iter().enumerate() {
        let part = &json["requests_by_url"][index];
        assert_eq!(part["completed"].as_u64().unwrap(), seen[line], "{part}");
        assert!(part["histogram"].is_string() && part["latency_us"]["p99"].is_number(), "{part}");
    }
    assert_eq!(seen.values().sum::<u64>(), 1000);
    let series = json["series"].as_array().unwrap();
    assert_eq!(series.iter().map(|s| s["completed"].as_u64().unwrap()).sum::<u64>(), 1000);

    // A shard is missing, occurs twice, or has another load.
    let output = merge(&[first, third, "--quiet", "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems: Vec<_> = json["problems"].as_array().unwrap().iter().collect();
    assert!(problems.contains(&&"1 of 3 shards are missing: 2".into()), "{problems:?}");
    fs::copy(first, path("copy.json")).unwrap();
    // An encoded histogram never contains the colon of the address.
    let other = fs::read_to_string(first).unwrap().replace(&urls[1], &format!("{}c", urls[0]));
    fs::write(path("other.json"), other).unwrap();
    fs::write(path("text"), "{}").unwrap();
    for (file, why) in [
        (&path("copy.json"), "are both shard 1/3"),
        (&path("other.json"), "other.json: it mixed other requests, or other weights, than"),
        (&path("text"), "no result of `forebay bench --json`"),
        (&csv, "no JSON"),
        (&path("none.json"), "No such file"),
    ] {
        let output = merge(&[first, file]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{why}: {output:?}");
    }
}

#[test]
fn a_run_is_compared_with_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let url = format!("http://{}/", server(HELLO));
    let first = bench(&[&url, "-n", "200", "-c", "2", "--quiet", "--json", &path("old.json")]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let mut old: Value =
        serde_json::from_str(&fs::read_to_string(path("old.json")).unwrap()).unwrap();

    let again = |file: &str, more: &[&str]| {
        let common = ["-n", "200", "-c", "2", "--against", file];
        bench(&[&[url.as_str()], &common[..], more].concat())
    };
    let output = again(&path("old.json"), &["--json", "-"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(text(&output.stderr).contains("inconclusive: both runs need at least 7 seconds"));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["against"]["decision"], "inconclusive");
    assert_eq!(json["against"]["metrics"][0]["name"], "rate");

    let output = again(&path("old.json"), &["-r", "100", "--quiet"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("rate: none, now 100 poisson"), "{output:?}");
    old["series"] = Value::Null;
    fs::write(path("none.json"), old.to_string()).unwrap();
    let output = again(&path("none.json"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("it has no series of seconds"), "{output:?}");
}

#[test]
fn a_log_is_replayed_exactly_once() {
    let (address, counts) = counting_server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let line = |second: usize, request: &str| {
        format!(
            "::1 - - [10/Oct/2026:13:55:{second:02} +0000] \"{request} HTTP/1.1\" 200 1 \"-\"\n"
        )
    };
    let mut log = String::new();
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..500 {
        let target = format!("/page?{}", number % 130);
        log += &line(number / 10, &format!("GET {target}"));
        *expected.entry(format!("GET {target}|")).or_default() += 1;
    }
    log += &line(50, "POST /form");
    log += "no log line\n";
    fs::write(&file, log).unwrap();
    let url = format!("http://{address}/unused");
    let file = file.to_str().unwrap();
    // 49.9 s of the log take half a second, and -t 2 divides the order between threads.
    for speed in ["100", "max"] {
        counts.lock().unwrap().clear();
        let output =
            bench(&[&url, "--replay", file, "--speed", speed, "-t", "2", "--json", "-", "--quiet"]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["requests"]["completed"], 500, "{json}");
        assert_eq!(json["replay"]["skipped"], 2);
        assert_eq!(*counts.lock().unwrap(), expected, "{speed}");
        let message = text(&output.stderr);
        assert!(message.contains("not sent: 2;") && message.contains("501: a log has no bodies"));
    }
    for n in ["1", "2"] {
        let shard = format!("{n}/2");
        let run = ["--replay", file, "--speed", "max", "--shard", &shard, "--quiet"];
        assert_eq!(bench(&[&[url.as_str()], &run[..]].concat()).status.code(), Some(0));
    }
    let twice = expected.iter().map(|(line, count)| (line.clone(), count * 2)).collect();
    assert_eq!(*counts.lock().unwrap(), twice, "two shards send each request once");

    let har = folder.path().join("page.har");
    let entry = r#"{"startedDateTime": "2026-10-10T13:55:36Z", "request": {"method": "POST",
        "url": "https://shop.example/cart", "headers": [{"name": "X-Mark", "value": "1"}],
        "postData": {"text": "a=b"}}}"#;
    fs::write(&har, format!(r#"{{"log": {{"entries": [{entry}, {entry}]}}}}"#)).unwrap();
    counts.lock().unwrap().clear();
    let output = bench(&[&url, "--replay", har.to_str().unwrap(), "-n", "5", "--speed", "9k"]);
    assert_eq!(output.status.code(), Some(2), "a factor has no k");
    let output = bench(&[&url, "--replay", har.to_str().unwrap(), "-n", "5", "--speed", "100"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("2 requests of a log, at 100 times"), "{output:?}");
    assert_eq!(*counts.lock().unwrap(), [("POST /cart marked|a=b".to_owned(), 5)].into());
}

#[test]
fn each_request_has_its_own_values() {
    let (address, counts) = counting_server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users.csv");
    fs::write(&file, "user,mark\nann,1\n\"b b\",0\n").unwrap();
    let file = file.to_str().unwrap();
    let url = format!("http://{address}/u/{{user}}?{{n}}");
    let run = ["-n", "20", "-c", "4", "-t", "2", "-H", "X-Mark: {mark}", "--quiet"];
    let form = ["--data-urlencode", "name={user}&", "--values", file];
    let output = bench(&[&[url.as_str()], &run[..], &form].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let line = |n: u64| match n % 2 {
        1 => format!("POST /u/ann?{n} marked|name=ann%26"),
        _ => format!("POST /u/b%20b?{n}|name=b%20b%26"),
    };
    let expected: BTreeMap<String, u64> = (1..=20).map(|n| (line(n), 1)).collect();
    assert_eq!(*counts.lock().unwrap(), expected);

    counts.lock().unwrap().clear();
    let url = format!("http://{address}/{{random:3-3}}");
    let output =
        bench(&[&url, "-n", "6", "-c", "1", "--body", "{\"n\": {n}}", "-X", "PUT", "--quiet"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = (1..=6).map(|n| (format!("PUT /3|{{\"n\": {n}}}"), 1)).collect();
    assert_eq!(*counts.lock().unwrap(), expected);

    counts.lock().unwrap().clear();
    let output = bench(&[&url, "-n", "6", "-c", "1", "--body", "a", "--quiet"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(*counts.lock().unwrap(), [("POST /3|a".to_owned(), 6)].into());

    // A body from a file is sent as it is, unless the user wants values in it.
    let body = folder.path().join("body");
    fs::write(&body, "{n}{random:7-7}").unwrap();
    for (option, expected) in [(None, "{n}{random:7-7}"), (Some("--fill-body-file"), "17")] {
        counts.lock().unwrap().clear();
        let url = format!("http://{address}/{{n}}");
        let run = [&url, "-n", "1", "-X", "PUT", "--quiet", "--body-file", body.to_str().unwrap()];
        let output = bench(&run.into_iter().chain(option).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let expected = BTreeMap::from([(format!("PUT /1|{expected}"), 1)]);
        assert_eq!(*counts.lock().unwrap(), expected);
    }

    let url = format!("http://{address}/{{usr}}");
    for (args, why) in [
        (["--values", file], "no column has the name \"usr\": there are user, mark"),
        (["--values", "/dev/zero"], "larger than 64 MiB"),
        (["--values", "/bin/sh"], "it is not UTF-8"),
        (["-F", "x"], "write name=value or name=@FILE"),
    ] {
        let output = bench(&[&[url.as_str()], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(why), "{why}: {output:?}");
    }
}

#[test]
fn cookies_are_kept_for_each_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server_seen = seen.clone();
    // The server ends with the test. On a busy machine, one connection may send all requests.
    thread::spawn(move || {
        let seen = server_seen;
        for (id, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let seen = seen.clone();
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let head = String::from_utf8_lossy(&buffer[..n]).into_owned();
                    let cookie = head.lines().find_map(|line| line.strip_prefix("Cookie: "));
                    seen.lock().unwrap().push((id, cookie.unwrap_or("none").to_owned()));
                    let reply = HELLO.replace(
                        "\r\n\r\n",
                        &format!("\r\nSet-Cookie: id={id}; Path=/; HttpOnly\r\n\r\n"),
                    );
                    stream.write_all(reply.as_bytes()).unwrap();
                }
            });
        }
    });
    let output =
        bench(&[&url, "-n", "40", "-c", "2", "--cookies", "-H", "Cookie: own=1", "--quiet"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 40);
    for id in 0..2 {
        let of_one = seen.iter().filter(|(other, _)| *other == id).map(|(_, cookie)| cookie);
        for (index, cookie) in of_one.enumerate() {
            let expected = if index == 0 { "own=1".to_owned() } else { format!("own=1; id={id}") };
            assert_eq!(*cookie, expected);
        }
    }
}

#[test]
fn a_file_of_requests_is_sent_as_it_says() {
    let (address, counts) = counting_server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests.txt");
    fs::write(folder.path().join("body"), "from a file").unwrap();
    let lines = "# two forms\n/a weight=2\nPOST /b\nX-Mark: 1\n@body\n\n/c PUT x=1\n";
    fs::write(&file, lines).unwrap();
    let url = format!("http://{address}/unused");
    let output = bench(&[&url, "--requests-file", file.to_str().unwrap(), "-n", "40", "-c", "1"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = [("GET /a|", 20), ("POST /b marked|from a file", 10), ("PUT /c|x=1", 10)];
    let expected = expected.map(|(line, count)| (line.to_owned(), count));
    assert_eq!(*counts.lock().unwrap(), BTreeMap::from(expected));
}

#[test]
fn conditions_decide_about_the_exit_code() {
    let url = format!("http://{}/", server(HELLO));
    let run = |condition: &str| bench(&[&url, "-n", "500", "--quiet", "--fail-if", condition]);
    assert_eq!(run("p50>1h,failed>0").status.code(), Some(2), "there are no hours");
    assert_eq!(run("p50>60s,failed>0").status.code(), Some(0));
    let output = run("failed>0,max>0us");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("--fail-if max>0us: the maximum was"), "{output:?}");
    let output = run("p99>60s");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(text(&output.stderr).contains("1000 requests are needed"), "{output:?}");
}

#[test]
fn the_highest_rate_that_meets_goals_is_found_with_its_certainty() {
    // One connection at a time, 4 ms each: at most 250 requests per second on any machine.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                thread::sleep(std::time::Duration::from_millis(4));
                let _ = stream.write_all(HELLO.as_bytes());
            }
        }
    });
    let steps = ["-c", "1", "-d", "300ms", "--arrivals", "even", "--json", "-"];
    let output = bench(&[&[&url[..], "--find-rate", "failed<1%"], &steps[..]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = &json["find_rate"];
    // On a busy machine the search may not end in time.
    let code = if found["sure"] == true { 0 } else { 4 };
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let [rate, low, high] =
        [&found["rate"], &found["interval"][0], &found["interval"][1]].map(|v| v.as_f64().unwrap());
    assert!(low <= rate && rate <= high && rate < 260.0, "{found}");
    assert!(found["steps"].as_array().unwrap().len() >= 5, "{found}");
    assert!(
        text(&output.stderr).contains("is the highest rate that meets failed<1%"),
        "{output:?}"
    );

    let output = bench(&[&[&url[..], "--find-rate", "max<1us"], &steps[..]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let steps = json["find_rate"]["steps"].as_array().unwrap();
    let disturbed = steps.iter().filter(|step| !step["disturbance"].is_null()).count();
    // On a busy machine, the result is not sure.
    let code = if disturbed * 2 > steps.len() { 4 } else { 1 };
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(text(&output.stderr).contains("No rate was found"), "{output:?}");
}

#[test]
fn the_report_is_printed_as_other_programs_do() {
    let url = format!("http://{}/", server(HELLO));
    for (format, line) in [
        ("wrk", "Requests/sec:"),
        ("ab", "Complete requests: 200"),
        ("siege", "Transactions: 200 hits"),
        ("h2load", "200 done, 200 succeeded, 0 failed"),
        ("oha", "[200] 200 responses"),
    ] {
        let output = bench(&[&url, "-n", "200", "--format", format]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let words = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(line), "{format}: {words}");
    }
    let url = format!("http://{}/", server("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"));
    let output = bench(&[&url, "-n", "200", "--format", "siege"]);
    let words = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    for line in ["Transactions: 0 hits", "Availability: 0.00 %", "Failed transactions: 200"] {
        assert!(words.contains(line), "{line}: {words}");
    }
}

/// Reads one frame of a client and returns its opcode and its payload.
fn read_frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    assert!(head[1] & 0x80 != 0, "a client masks its frames");
    let (mut key, mut payload) = ([0; 4], vec![0; usize::from(head[1] & 0x7f)]);
    stream.read_exact(&mut key).ok()?;
    stream.read_exact(&mut payload).ok()?;
    payload.iter_mut().enumerate().for_each(|(index, byte)| *byte ^= key[index % 4]);
    Some((head[0], payload))
}

#[test]
fn messages_of_a_websocket_await_their_echo() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read_exact(&mut byte).is_err() {
                        return;
                    }
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                if head.starts_with("GET /refused") {
                    stream.write_all(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno").unwrap();
                    return;
                }
                assert!(head.contains("Sec-WebSocket-Version: 13"), "{head}");
                // The answer to the key of RFC 6455, section 1.3.
                let accept = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
                stream.write_all(accept.as_bytes()).unwrap();
                let mut count = 0;
                while let Some((opcode, payload)) = read_frame(&mut stream) {
                    if opcode == 0x8a {
                        assert_eq!(payload, b"ping");
                        continue;
                    }
                    assert_eq!((opcode, payload.as_slice()), (0x81, &b"hello"[..]));
                    count += 1;
                    // A ping, and the echo in two parts.
                    stream.write_all(b"\x89\x04ping\x01\x02he\x80\x03llo").unwrap();
                    if count == 50 {
                        return;
                    }
                }
            });
        }
    });
    let url = format!("ws://{address}/");
    let run = ["-c", "2", "-n", "40", "--body", "hello", "--json", "-"];
    let output = bench(&[&[&url[..]], &run[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["protocol"], &json["requests"]["status"]["101"]),
        (&"websocket".into(), &40.into())
    );
    assert_eq!(json["bytes"]["body"], 200);
    // The server closes a connection after fifty messages. A message without an echo is a failure,
    // and `bench` does not send it again.
    let run = ["-c", "1", "-n", "120", "--body", "hello", "--json", "-"];
    let output = bench(&[&[&url[..]], &run[..]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let requests = &json["requests"];
    let [completed, failed] =
        [&requests["completed"], &requests["failed"]].map(|v| v.as_u64().unwrap());
    assert_eq!((completed + failed, &requests["resent"]), (120, &0.into()), "{requests}");
    let output = bench(&[&format!("ws://{address}/refused"), "-n", "3"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).contains("403: 3"), "{output:?}");
}

//! `forebay bench` as a user runs it: flags, report, result files and exit codes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const ABSENT: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// A server that answers every read with `reply`; its address.
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

/// SETTINGS, and a reply of status 200 on stream 1: `:status` by its place in the static table.
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
    assert!(report.contains("speaks HTTP/1.1, not HTTP/2 with prior knowledge"), "{report}");
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_to_do() {
    let url = "http://127.0.0.1:1/";
    let cases: &[(&[&str], &str)] = &[
        (&["localhost:8080"], "http://HOST:PORT/PATH"),
        (&["ws://127.0.0.1/"], "not available in this version"),
        (&["http://127.0.0.1:1/", "--insecure"], "https://"),
        (&["ajp://127.0.0.1:1/", "--root", "/srv"], "use fcgi, scgi or uwsgi"),
        (&[url, "--secret", "x"], "use ajp"),
        (&[url, "--root", "/srv"], "use fcgi, scgi or uwsgi"),
        (&["fcgi://127.0.0.1:1/", "--param", "X"], "NAME=value"),
        (&["fcgi://127.0.0.1:1/", "--http2"], "HTTP/2 is for http://, https:// and h2c://"),
        (&[url, "--streams", "8"], "--http2"),
        (&[url, "--http2", "--streams", "0"], "from 1"),
        (&[url, "--http2", "-H", "Connection: close"], "leave out the field Connection"),
        (&[url, "-n", "5", "-d", "5s"], "cannot be used with"),
        (&[url, "-d", "5"], "a number and a unit"),
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
    // The fourth request says that the third reply was counted.
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(report.contains("ended early") && report.contains("(3 completed)"), "{report}");
}

#[test]
fn a_rate_is_kept_as_an_open_loop() {
    let url = format!("http://{}/", server(HELLO));
    for arrivals in ["even", "poisson"] {
        let output = bench(&[&url, "-n", "100", "-r", "2000", "--arrivals", arrivals]);
        let report = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(report.contains("open loop") && report.contains("2,000 requests/s wanted"));
    }
}

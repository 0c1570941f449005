//! Loads of `forebay bench` that change in stages, against a server that counts requests.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::Value;

/// Numbers of connections and requests that a server has received.
#[derive(Clone, Default)]
struct Received {
    connections: Arc<AtomicU64>,
    requests: Arc<AtomicU64>,
}

/// Starts a server that answers each request with 200. Returns its URL.
fn server() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let received = Received::default();
    let counts = received.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let counts = counts.clone();
            counts.connections.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || serve(stream.unwrap(), &counts.requests));
        }
    });
    (url, received)
}

fn serve(mut stream: TcpStream, requests: &AtomicU64) {
    let (mut buffer, mut head) = ([0; 4096], Vec::new());
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        head.extend_from_slice(&buffer[..n]);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            requests.fetch_add(1, Ordering::SeqCst);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }
}

fn bench(url: &str, args: &[&str]) -> (Output, Value) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", url, "--json"])
        .arg(json.path())
        .args(args)
        .output()
        .unwrap();
    let json = fs::read(json.path()).unwrap();
    (output, serde_json::from_slice(&json).unwrap_or_default())
}

fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("{name}: {json:#}"))
}

/// Returns the requests of the run that were due: those that were sent, and those that were not.
fn due(json: &Value) -> u64 {
    number(&json["requests"], "sent") + number(&json["requests"], "unsent")
}

/// Returns the sum of a count over all stages.
fn sum(json: &Value, name: &str) -> u64 {
    json["stages"].as_array().unwrap().iter().map(|stage| number(stage, name)).sum()
}

#[test]
fn a_rate_rises_stays_and_falls_with_an_exact_number_of_requests() {
    let (url, received) = server();
    let page = tempfile::NamedTempFile::new().unwrap();
    // 25 + 100 + 25 requests are due.
    let stages = "500ms:100,1s:100,500ms:0";
    let args = ["-r", "0", "--stages", stages, "--arrivals", "even", "-t", "2", "-c", "20"];
    let html = ["--html", page.path().to_str().unwrap(), "--allow-failures"];
    let (output, json) = bench(&url, &[&args[..], &html].concat());
    assert_eq!(due(&json), 150, "{json:#}");
    assert_eq!(number(&json["requests"], "sent"), received.requests.load(Ordering::SeqCst));
    let completed = number(&json["requests"], "completed");
    assert_eq!(sum(&json, "completed"), completed);
    assert_eq!(json["requested_rate"], 75.0);
    let stages = json["stages"].as_array().unwrap();
    let plan: Vec<_> = stages
        .iter()
        .map(|s| (s["from"].as_f64().unwrap(), s["target"].as_f64().unwrap()))
        .collect();
    assert_eq!(plan, [(0.0, 100.0), (100.0, 100.0), (100.0, 0.0)]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("Stages    0 to 100 requests/s in 500 ms:"), "{report}");
    let words: Vec<_> = report.split_whitespace().collect();
    assert!(words.join(" ").contains("75.0 requests/s wanted on average"), "{report}");
    let page = fs::read_to_string(page.path()).unwrap();
    assert!(page.contains("<td>0 to 100</td>") && page.contains("Target, requests per second"));
}

#[test]
fn shards_divide_the_stages_and_merge_adds_them_up() {
    let (url, received) = server();
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    let mut all_due = 0;
    for shard in ["1/3", "2/3", "3/3"] {
        let (_, json) = bench(
            &url,
            &["-r", "0", "--stages", "200ms:100,300ms:50", "--arrivals", "even", "--shard", shard],
        );
        all_due += due(&json);
        let file = folder.path().join(shard.replace('/', "-"));
        fs::write(&file, json.to_string()).unwrap();
        files.push(file);
    }
    // 10 + 22.5 requests are due.
    assert!((32..=33).contains(&all_due), "{all_due}");
    let sent = received.requests.load(Ordering::SeqCst);
    let sum_file = folder.path().join("sum.json");
    let merge = |files: &[std::path::PathBuf]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("merge").args(files).arg("--json").arg(&sum_file).output().unwrap()
    };
    let output = merge(&files);
    let json: Value = serde_json::from_slice(&fs::read(&sum_file).unwrap()).unwrap();
    assert!(sum(&json, "completed") <= sent, "{output:?}");
    assert_eq!(sum(&json, "completed"), number(&json["requests"], "completed"));
    let (_, other) = bench(&url, &["-r", "0", "--stages", "100ms:100", "--arrivals", "even"]);
    fs::write(&files[2], other.to_string()).unwrap();
    let error = String::from_utf8(merge(&files).stderr).unwrap();
    assert!(error.contains("it had other stages than"), "{error}");
}

#[test]
fn connections_are_opened_and_closed_in_stages() {
    let (url, received) = server();
    let think = ["--think", "5ms", "-t", "2"];
    let args = ["--stages", "300ms:6,200ms:6,0:2,200ms:2"];
    let (output, json) = bench(&url, &[&args[..], &think].concat());
    assert_eq!((&json["connections"], &json["requested_rate"]), (&6.into(), &Value::Null));
    // A pause of the machine may skip the time of a connection.
    assert!((2..=6).contains(&received.connections.load(Ordering::SeqCst)));
    assert_eq!(sum(&json, "completed"), number(&json["requests"], "completed"));
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("0 to 6 connections in 300 ms"), "{report}");

    // A second rise opens connections again. Scenarios count iterations.
    let (url, received) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    fs::write(&file, "[[scenario]]\nthink = '5ms'\n[[scenario.step]]\npath = '/'\nrepeat = 2\n")
        .unwrap();
    let args = ["--stages", "100ms:3,0:0,100ms:0,0:3,200ms:3", "-c", "3"];
    let (_, json) = bench(&url, &[&args[..], &["--scenario", file.to_str().unwrap()]].concat());
    assert!((3..=6).contains(&received.connections.load(Ordering::SeqCst)), "{json:#}");
    assert!(number(&json["iterations"][0], "completed") > 0, "{json:#}");
    assert!(number(&json["iterations"][0], "interrupted") <= 3, "{json:#}");
}

#[test]
fn a_rate_in_stages_counts_iterations_of_scenarios() {
    let (url, received) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    fs::write(&file, "[[scenario]]\n[[scenario.step]]\npath = '/'\nrepeat = 3\n").unwrap();
    let args = ["-r", "20", "--stages", "500ms:60,500ms:0", "--arrivals", "even", "-c", "20"];
    let scenario = ["--scenario", file.to_str().unwrap()];
    let (output, json) = bench(&url, &[&args[..], &scenario].concat());
    let counts = &json["iterations"][0];
    let begun = number(counts, "completed") + number(counts, "interrupted");
    // 20 + 15 iterations are due.
    assert_eq!(begun + number(&json["requests"], "unsent"), 35, "{json:#}");
    assert!(received.requests.load(Ordering::SeqCst) <= 105);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("20 to 60 iterations/s in 500 ms"), "{report}");
}

#[test]
fn impossible_stages_are_refused_with_the_next_step() {
    for (args, why) in [
        (&["--stages", "30s"][..], "write TIME:TARGET"),
        (&["--stages", "30s:1e3", "-r", "0"], "is not a rate"),
        (&["--stages", "1s:1.5"], "write a whole number, or add -r for rates"),
        (&["--stages", "1s:0"], "at least one needs a time and a target above 0"),
        (&["--stages", "0:5"], "at least one needs a time and a target above 0"),
        (&["--stages", "1s:1000M", "-r", "1"], "from 0 to 100 million"),
        (&["--stages", "300h:1,366h:1,8700h:1"], "more than a year"),
        (&["--stages", "1s:5", "-d", "1s"], "cannot be used with"),
        (&["--stages", "1s:5", "-n", "5"], "cannot be used with"),
        (&["--stages", "1s:5", "--find-rate", "p99<1s"], "cannot be used with"),
        (&["--stages", "1s:2", "--shard", "1/3"], "2 connections (-c) cannot be divided"),
        (&["-r", "0"], "the rate must be above 0"),
    ] {
        let (output, _) = bench("http://127.0.0.1:1/", args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

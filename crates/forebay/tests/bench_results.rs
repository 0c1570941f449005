//! Result files of `forebay bench` for build servers, and lifetimes of connections.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Starts a server that answers every read with 200. Returns its URL and number of connections.
fn server() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections: Arc<AtomicU64> = Arc::default();
    let count = connections.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                    if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (url, connections)
}

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).arg("bench").args(args).output().unwrap()
}

/// Returns the names of the cases, each with `failure`, `error` or nothing, and the message.
fn cases(xml: &str) -> Vec<(String, Option<(String, String)>)> {
    let document = roxmltree::Document::parse(xml).unwrap();
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    let result = |case: roxmltree::Node<'_, '_>| {
        let fault = case.children().find(roxmltree::Node::is_element)?;
        let message = fault.attribute("message").unwrap();
        Some((fault.tag_name().name().to_owned(), message.to_owned()))
    };
    cases.map(|case| (case.attribute("name").unwrap().to_owned(), result(case))).collect()
}

#[test]
fn junit_has_a_case_for_each_condition() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("junit.xml");
    let (url, _) = server();
    let junit = file.to_str().unwrap();
    let conditions = "p99>1m,max>0us,p99.999>1s";
    let output = bench(&[&url, "-n", "1500", "--fail-if", conditions, "--junit", junit]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let found = cases(&std::fs::read_to_string(&file).unwrap());
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["requests", "load", "fail-if p99>1m", "fail-if max>0us", "fail-if p99.999>1s"];
    assert_eq!(names, expected);
    let kind = |index: usize| found[index].1.as_ref().map(|(kind, _)| kind.as_str());
    assert_eq!(
        (0..5).map(kind).collect::<Vec<_>>(),
        [None, None, None, Some("failure"), Some("error")]
    );
}

#[test]
fn a_run_that_cannot_start_replaces_the_file_of_an_earlier_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("junit.xml");
    std::fs::write(&file, "an earlier run").unwrap();
    // Nothing listens on a port whose listener was closed.
    let url =
        format!("http://{}/", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let junit = file.to_str().unwrap();
    let output = bench(&[&url, "-n", "5", "--timeout", "500ms", "--junit", junit]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let found = cases(&std::fs::read_to_string(&file).unwrap());
    assert_eq!((found.len(), found[0].0.as_str()), (1, "load"));
    assert!(found[0].1.as_ref().unwrap().1.contains("refused"), "{found:?}");
    let missing = bench(&[&url, "--junit", "/nonexistent/x.xml"]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn connections_end_after_their_requests_or_their_time() {
    let run = |args: &[&str]| {
        let (url, connections) = server();
        let output = bench(&[&[&url, "-c", "1", "-n", "100"], args].concat());
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(report.contains("(100 completed)") && report.contains("Failed    0"), "{report}");
        assert_eq!(output.status.code(), Some(0), "{report}");
        connections.load(Ordering::SeqCst)
    };
    assert_eq!(run(&[]), 1);
    assert_eq!(run(&["--requests-per-connection", "10"]), 10);
    assert_eq!(run(&["--requests-per-connection", "7", "--connection-lifetime", "1h"]), 15);
    // Each connection is older than 1 us at its first reply.
    assert_eq!(run(&["--connection-lifetime", "1us"]), 100);
    let (url, _) = server();
    for args in [
        ["--requests-per-connection", "0"],
        ["--connection-lifetime", "0"],
        ["--requests-per-connection=5", "--http2"],
        ["--requests-per-connection=5", "--no-keepalive"],
    ] {
        let output = bench(&[&[url.as_str()][..], &args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
}

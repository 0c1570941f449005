//! The CPU time that `forebay compare` reports for a server equals the kernel's figure, including
//! ended children.

mod compare_support;

use compare_support::Experiment;
use forebay_testkit::peer;

/// Measured requests. They take a second of CPU time, so a clock tick of 10 ms hardly matters.
const REQUESTS: usize = 60;
/// Requests before the measured ones: the first that the server answers, and the check after the
/// warm-up. Another check follows them.
const BEFORE: usize = 2;
const BEHIND: usize = 1;

#[test]
fn children_that_end_with_their_request_are_counted() {
    if !peer::has(&["python3"]) {
        return;
    }
    let load = format!("requests = {REQUESTS}\nwarmup = 0\nrounds = 1");
    let experiment = Experiment::new(&load);
    std::fs::write(experiment.path("forking.py"), include_str!("compare_support/forking.py"))
        .unwrap();
    let experiment = experiment.lines(
        "[[configuration]]\nname = \"forks\"\nurl = \"http://127.0.0.1:{port}\"\n\
         start = [\"/usr/bin/python3\", \"{dir}/forking.py\", \"{port}\", \"{dir}/seen\", \"15\"]\n",
    );
    let run = experiment.run(&[]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let accounts = || -> Vec<(f64, f64)> {
        let number = |text: &str| text.parse::<f64>().unwrap();
        let line =
            |line: &str| line.split_once(' ').map(|(own, child)| (number(own), number(child)));
        experiment.read("seen/accounts").lines().filter_map(line).collect()
    };
    let accounts = accounts();
    // The last check may end the server before the server has waited for its child.
    let all = BEFORE + REQUESTS..=BEFORE + REQUESTS + BEHIND;
    assert!(all.contains(&accounts.len()), "{} of {all:?}", accounts.len());
    let own = accounts[BEFORE + REQUESTS - 1].0 - accounts[BEFORE - 1].0;
    let children: f64 = accounts[BEFORE..][..REQUESTS].iter().map(|(_, child)| child).sum();
    assert!(children > 4.0 * own, "{children} of children, {own} of the server itself");

    let json = experiment.json();
    let server = &json["configurations"][0]["trials"][0]["server"];
    let seconds = |name: &str| server[name].as_f64().unwrap();
    let counted = (seconds("cpu_user_s") + seconds("cpu_system_s")) * 1e6;
    let by_kernel = own + children;
    let error = counted / by_kernel - 1.0;
    assert!(error.abs() < 0.03, "{counted} counted, {by_kernel} by wait4: {error:+.4}; {server}");
}

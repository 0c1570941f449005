//! `examples/crawlers` in small, with cgit and with DokuWiki.

mod support;

use std::path::Path;
use std::process::Command;

use forebay_testkit::peer;

/// Runs the example with few crawlers, and returns its table.
fn run(application: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/crawlers/run.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--forebay").arg(support::program());
    command.args(["--application", application, "--seconds", "2", "--rounds", "1"]);
    command.args(["--crawlers", "4", "--difficulty", "4"]);
    let output = command.output().expect("python3 is installed");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{table}\n{}", String::from_utf8_lossy(&output.stderr));
    table
}

/// Returns the cells of the row of a server.
fn row<'t>(table: &'t str, server: &str) -> Vec<&'t str> {
    let found = table.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    found
        .into_iter()
        .find(|cells| cells.get(1) == Some(&server))
        .unwrap_or_else(|| panic!("{table}"))
}

fn only_the_challenge_keeps_crawlers_out(application: &str) {
    let table = run(application);
    for server in ["nginx, limit_req", "Forebay, no rules", "Forebay, rate_limit"] {
        assert_ne!(row(&table, server)[8], "0", "{table}");
    }
    let challenge = row(&table, "Forebay, challenge");
    assert_eq!((challenge[6], challenge[8]), ("0", "0"), "{table}");
    assert_ne!(challenge[2], "0", "{table}");
}

#[test]
fn only_a_challenge_keeps_crawlers_out_of_cgit() {
    if peer::has(&["cgit", "fcgiwrap", "git", "nginx"]) {
        only_the_challenge_keeps_crawlers_out("cgit");
    }
}

#[test]
fn only_a_challenge_keeps_crawlers_out_of_dokuwiki() {
    if peer::has(&["dokuwiki", "php-fpm", "nginx"]) {
        only_the_challenge_keeps_crawlers_out("dokuwiki");
    }
}

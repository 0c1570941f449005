//! The public tests of HTTP caches (http-cache-tests): in memory only, and with a store on disk.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::port::free_port;
use forebay_testkit::process::Process;
use serde_json::Value;
use support::serve;

/// Required tests that Forebay does not pass. The manual has the reasons.
const NOT_PASSED: [&str; 6] = [
    "age-parse-prefix",
    "headers-store-Transfer-Encoding",
    "stale-close-must-revalidate",
    "stale-close-no-cache",
    "stale-close-proxy-revalidate",
    "stale-close-s-maxage=2",
];
/// Numbers of required and optional tests, and the optional ones that pass.
const REQUIRED: usize = 157;
const OPTIONAL: usize = 86;
const OPTIONAL_PASSED: usize = 70;
/// A test fails if the machine is so busy that a reply with a lifetime of seconds becomes stale too
/// early. A test that failed is therefore repeated alone.
const REPEATS: usize = 3;

/// Prints the kind of each test as JSON.
const KINDS: &str = "import tests from './tests/index.mjs';\n\
    const kinds = {};\n\
    for (const suite of tests) for (const test of suite.tests)\n\
    if (!test.browser_only) kinds[test.id] = test.kind || 'required';\n\
    console.log(JSON.stringify(kinds));\n";

/// Runs Node in the folder of the tests, and returns its output.
fn node(package: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new("node");
    command.arg("--no-warnings").args(arguments).current_dir(package);
    let output = command.envs(variables.iter().copied()).output().expect("Node starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs all tests against the server at `base`. Returns the names of those that pass.
fn passed(package: &Path, base: &str) -> BTreeSet<String> {
    let variables = [("npm_config_base", base), ("npm_package_config_id", "")];
    let output = node(package, &["cli.mjs"], &variables);
    let results: BTreeMap<String, Value> = serde_json::from_str(&output).expect("JSON");
    results.into_iter().filter(|(_, result)| *result == true).map(|(id, _)| id).collect()
}

fn passes_alone(package: &Path, base: &str, id: &str) -> bool {
    let variables = [("npm_config_base", base), ("npm_config_id", id)];
    (0..REPEATS).any(|_| {
        let output = node(package, &["cli.mjs"], &variables);
        output.lines().last().is_some_and(|line| line.starts_with('✅'))
    })
}

/// Checks the results for a server with these lines in `[server]`.
fn check(package: &Path, kinds: &BTreeMap<String, String>, origin: u16, server: &str) {
    let forebay = serve(
        Folder::new(),
        &format!(
            "[server]\n{server}[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
             proxy = \"http://127.0.0.1:{origin}\"\ncache = {{ set_cookie = true }}\n"
        ),
    );
    let base = format!("http://{}", forebay.address);
    let passed = passed(package, &base);
    let of = |kind: &'static str| {
        kinds.iter().filter(move |(_, other)| *other == kind).map(|(id, _)| id)
    };
    assert_eq!((of("required").count(), of("optimal").count()), (REQUIRED, OPTIONAL));
    let failed = of("required").filter(|id| !passed.contains(*id));
    let unexpected = failed.filter(|id| !NOT_PASSED.contains(&id.as_str()));
    let unexpected: Vec<_> = unexpected.filter(|id| !passes_alone(package, &base, id)).collect();
    assert!(unexpected.is_empty(), "{server}{unexpected:?}");
    let optional = of("optimal").filter(|id| passed.contains(*id)).count();
    let failed = of("optimal").filter(|id| !passed.contains(*id));
    let missing = OPTIONAL_PASSED.saturating_sub(optional);
    let repeated = failed.filter(|id| passes_alone(package, &base, id)).take(missing).count();
    assert_eq!(repeated, missing, "{server}fewer optional tests pass");
    forebay.stop();
}

#[test]
fn the_public_tests_of_caches_pass() {
    let Some(package) = peer::npm_package("http-cache-tests") else { return };
    let kinds = node(&package, &["--input-type=module", "-e", KINDS], &[]);
    let kinds: BTreeMap<String, String> = serde_json::from_str(&kinds).expect("JSON");
    let (origin, folder) = (free_port(), Folder::new());
    let mut command = Command::new("node");
    command.args(["--no-warnings", "server/server.mjs"]).current_dir(&package);
    command.env("npm_config_protocol", "http").env("npm_config_port", origin.to_string());
    command.env("npm_config_pidfile", folder.path().join("pid"));
    let mut server = Process::start(command);
    server.wait_until_listening(std::net::SocketAddr::from(([127, 0, 0, 1], origin)));
    let (package, kinds) = (&package, &kinds);
    thread::scope(|scope| {
        // The tests wait most of the time, so both runs take as long as one.
        for server in ["", "cache_memory = \"1MiB\"\ncache_dir = \"{tmp}/cache\"\n"] {
            scope.spawn(move || check(package, kinds, origin, server));
        }
    });
    server.stop();
}

//! Tests of the servers in `examples/cgi-or-persistent`. The servers must answer as the script does
//! when it is run by hand, and leave no process behind.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::Process;
use forebay_testkit::{peer, stream::Address};

const QUERIES: [&str; 5] = [
    "",
    "gauge=Mill+Pond+%26+Race&from=2024-03-10&to=2024-04-20",
    "gauge=%3Cscript%3E",
    "from=yesterday",
    "%ZZ=%&&=&gauge=Alder%20Weir;to=2024-03-02",
];

#[test]
fn the_script_reads_its_query() {
    let page = by_hand("report.pl", QUERIES[1]);
    assert!(page.contains("<td>Mill Pond &amp; Race</td><td>42</td>"), "{page}");
    assert!(by_hand("report.pl", QUERIES[2]).contains("No readings match"));
    assert!(by_hand("report.pl", QUERIES[3]).starts_with("Status: 400 "));
    assert!(by_hand("report.pl", QUERIES[4]).contains("<p>2 readings.</p>"));
}

#[test]
fn nginx_with_fcgiwrap_serves_it() {
    if !peer::has(&["nginx", "fcgiwrap"]) {
        return;
    }
    serves(&["nginx.conf"], "start-nginx-fcgiwrap.sh", &["{tmp}"]);
}

#[test]
fn apache_mod_cgi_serves_it() {
    if peer::has(&["apache2"]) {
        let conf = "apache-cgi.conf";
        serves(
            &["apache.conf", conf],
            "start-apache.sh",
            &["{dir}", "{tmp}", "{tmp}/apache-cgi.conf"],
        );
    }
}

#[test]
fn apache_mod_perl_serves_it() {
    if peer::has(&["apache2", "libapache2-mod-perl2"]) {
        let conf = "apache-registry.conf";
        let arguments = ["{dir}", "{tmp}", "{tmp}/apache-registry.conf"];
        serves(&["apache.conf", conf], "start-apache.sh", &arguments);
    }
}

/// Starts a server as `forebay compare` does, sends all requests to it and stops it.
fn serves(templates: &[&str], script: &str, arguments: &[&str]) {
    let folder = Folder::new();
    let port = free_port();
    let fill = |text: &str| {
        text.replace("{port}", &port.to_string())
            .replace("{dir}", example().to_str().unwrap())
            .replace("{tmp}", folder.path().to_str().unwrap())
    };
    for template in templates {
        let text = std::fs::read_to_string(example().join(template)).unwrap();
        folder.write(template, fill(&text));
    }
    let mut command = Command::new("sh");
    command.arg(example().join(script)).args(arguments.iter().map(|argument| fill(argument)));
    let mut process = Process::start(command);
    let address = Address::Tcp(([127, 0, 0, 1], port).into());
    process.wait_until_ready(&address, "/time.pl");

    // Each query is sent twice. The second reply may come from a process that kept data of the
    // first request.
    for query in QUERIES.iter().chain(&QUERIES) {
        let reply = Client::connect(&address).get(&format!("/report.pl?{query}"));
        let (head, body) = by_hand_parts("report.pl", query);
        assert_eq!(format!("Status: {}", reply.status), head[.."Status: 200".len()], "{query}");
        assert_eq!(reply.text(), body, "{query}");
        assert_eq!(reply.header("Content-Type"), Some("text/html; charset=utf-8"));
    }
    assert!(Client::connect(&address).get("/time.pl").text().starts_with("The time is "));
    for path in ["/gauges.csv", "/nginx.conf", "/missing.pl"] {
        let status = Client::connect(&address).get(path).status;
        assert!((400..500).contains(&status), "{path}: {status}");
    }

    let exit = process.stop();
    assert!(exit.status.success(), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

fn by_hand(script: &str, query: &str) -> String {
    let script = example().join(script);
    let output = Command::new(script).env("QUERY_STRING", query).output().expect("perl is there");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the page is UTF-8")
}

fn by_hand_parts(script: &str, query: &str) -> (String, String) {
    let page = by_hand(script, query);
    let (head, body) = page.split_once("\n\n").expect("a CGI script ends its headers");
    (head.to_owned(), body.to_owned())
}

fn example() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/cgi-or-persistent");
    folder.canonicalize().expect("the example is in the repository")
}

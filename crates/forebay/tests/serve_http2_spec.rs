//! h2spec breaks each rule of HTTP/2 and HPACK in turn, with `forebay serve` as server.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::built_from_go;
use forebay_testkit::tls::Authority;

use support::{Forebay, serve};

/// The cases of the version in scripts/go/go.mod, including the strict ones.
const CASES: usize = 146;

/// A site with one file, whose body is long enough for the cases about windows.
fn site(listen: &str, keys: &str) -> Forebay {
    let folder = Folder::new();
    let identity = Authority::new("of the test").issue(&["localhost"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder.write("htdocs/index.html", "A page of more than five bytes.\n");
    serve(
        folder,
        &format!("[[site]]\nlisten = \"{listen}\"\n{keys}\n[[site.route]]\nfiles = \"htdocs\"\n"),
    )
}

/// Runs all cases. Returns the names of those that failed. `None` if h2spec is missing.
fn failures(forebay: &Forebay, flags: &[&str]) -> Option<Vec<String>> {
    let port = forebay.address.port().to_string();
    let output = Command::new(built_from_go("h2spec")?)
        .args(["--strict", "--timeout", "10", "--host", "127.0.0.1", "--port", &port])
        .args(flags)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let mut failed: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once("× "))
        .map(|(_, name)| name.trim().to_owned())
        .collect();
    failed.dedup();
    let (all, passed) = (CASES, CASES - failed.len());
    let sum = format!("{all} tests, {passed} passed, 0 skipped, {} failed", failed.len());
    assert!(said.contains(&sum), "not {sum:?}: {said}");
    Some(failed)
}

#[test]
fn every_case_of_h2spec_passes_over_tls() {
    let keys = "tls = { certificate = \"cert.pem\", key = \"key.pem\" }";
    let forebay = site("https://127.0.0.1:0", keys);
    let Some(failed) = failures(&forebay, &["--tls", "--insecure"]) else { return };
    assert_eq!(failed, [""; 0]);
    forebay.stop();
}

/// A listener of both protocols takes a connection without the preface for HTTP/1.1 and answers in
/// that protocol. h2spec takes this reply for a frame.
#[test]
fn every_case_of_h2spec_passes_in_cleartext_but_the_one_that_is_http1_there() {
    let forebay = site("127.0.0.1:0", "");
    let Some(failed) = failures(&forebay, &[]) else { return };
    assert_eq!(failed, ["2: Sends invalid connection preface"]);
    let mut client = forebay.connect();
    client.send("INVALID CONNECTION PREFACE\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    assert!(client.is_closed());
    forebay.stop();
}

//! Hosts for Python without a gateway: the modules of `python-cgi.py`, compared with the interpreter's, and
//! the parsers of `asgi.py`.

use std::process::Command;

use forebay_testkit::peer;

/// Exit code if the interpreter has no module `cgi` to compare with (3.13 and later).
const NOTHING_TO_COMPARE_WITH: i32 = 77;

#[test]
fn cgi_does_what_the_interpreters_own_does() {
    let here = env!("CARGO_MANIFEST_DIR");
    if !peer::has(&["python3"]) {
        return;
    }
    let python = "/usr/bin/python3";
    let output = Command::new(python)
        .arg(format!("{here}/tests/python/compare_cgi.py"))
        .arg(format!("{here}/../../hosts/python-cgi/cgi.py"))
        .output()
        .expect("python3 was there a moment ago");
    let text = String::from_utf8_lossy(&output.stdout);
    let faults = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(text.contains("compared, 0 differ"), "{text}"),
        Some(NOTHING_TO_COMPARE_WITH) => {
            peer::skip(&format!("{python} has no module cgi, which ended with 3.12"));
        }
        _ => panic!("{}\n{faults}", &text[..text.len().min(5000)]),
    }
}

#[test]
fn the_host_for_asgi_reads_requests_and_frames_however_they_are_cut() {
    let here = env!("CARGO_MANIFEST_DIR");
    if !peer::has(&["python3"]) {
        return;
    }
    let output = Command::new("/usr/bin/python3")
        .arg(format!("{here}/tests/python/split_asgi.py"))
        .arg(format!("{here}/../../hosts"))
        .output()
        .expect("python3 was there a moment ago");
    let (text, faults) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, b"same\n", "{faults}");
}

//! The modules that the host for Python scripts has of its own, compared with the interpreter's.

use std::process::Command;

/// The interpreter has `cgi` up to 3.12; without one there is nothing to compare with.
const NOTHING_TO_COMPARE_WITH: i32 = 77;

#[test]
fn cgi_does_what_the_interpreters_own_does() {
    let here = env!("CARGO_MANIFEST_DIR");
    let python = ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(|python| Command::new(python).arg("--version").output().is_ok());
    let Some(python) = python else {
        eprintln!("skipped: cgi_does_what_the_interpreters_own_does: python3 is not installed");
        return;
    };
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
            eprintln!("skipped: cgi_does_what_the_interpreters_own_does: {python} has no cgi");
        }
        _ => panic!("{}\n{faults}", &text[..text.len().min(5000)]),
    }
}

//! `examples/connectors`: no request hangs, and no part of a reply looks like a whole one.

mod support;

use std::path::Path;
use std::process::Command;

#[test]
fn slow_and_broken_backends_give_whole_replies_or_errors() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/connectors/run.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--forebay").arg(support::program()).args(["--requests", "3"]);
    let output = command.output().expect("python3 is installed");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(table.lines().count(), 22, "{table}");
}

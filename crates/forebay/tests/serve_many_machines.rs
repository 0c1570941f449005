//! `examples/many-machines/serve` with short loads: the expectations of the demonstration hold. They
//! are about counts, not about times.

mod support;

use std::path::Path;
use std::process::Command;

use forebay_testkit::peer::{has, skip};
use rustix::process::geteuid;
use support::program;

#[test]
fn the_demonstration_of_a_fleet_meets_its_expectations() {
    if !has(&["haproxy", "iproute2", "openssl", "pebble", "python3", "redis-server"]) {
        return;
    }
    if !geteuid().is_root() {
        return skip("a fleet in network namespaces needs root");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/many-machines/serve");
    let mut command = Command::new(script);
    command.args(["--duration", "0.2", "--connections", "8"]).env("BINARY", program());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("All expectations hold"), "{text}");
}

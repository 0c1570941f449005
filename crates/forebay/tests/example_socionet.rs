//! `examples/socionet`: the site answers under Forebay as under nginx and Apache with mod_perl.

mod support;

use std::path::Path;
use std::process::Command;

use forebay_testkit::peer;

#[test]
fn a_whole_site_of_mod_perl_answers_as_under_apache() {
    let packages = ["apache2", "libapache2-mod-perl2", "nginx", "postgresql", "libdbd-pg-perl"];
    let modules = ["libapache-dbi-perl", "libcgi-pm-perl", "libhtml-mason-perl"];
    if !peer::has(&packages) || !peer::has(&modules) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/socionet/run.py");
    let mut command = Command::new("python3");
    let output = command.arg(script).arg("--forebay").arg(support::program()).output();
    let output = output.expect("python3 is installed");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains(" 0 differ"), "{table}");
}

//! Every `golden/NAME.toml` gives the plan in `NAME.plan` or the diagnostic in `NAME.err`.
//!
//! `BLESS=1 cargo test -p forebay-conf --test golden` writes the current output. Read the
//! difference before you commit it. Paths are relative to `golden/base`.

use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_file_gives_what_its_golden_file_says() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("BLESS").is_some();
    let mut wrong = Vec::new();
    let mut count = 0;
    for typed in inputs(&dir) {
        let (extension, given) = outcome(&typed, &dir.join("base"));
        let golden = typed.with_extension(extension);
        let other = typed.with_extension(if extension == "plan" { "err" } else { "plan" });
        if bless {
            fs::write(&golden, &given).unwrap();
            let _ = fs::remove_file(other);
        } else if fs::read_to_string(&golden).unwrap_or_default() != given || other.exists() {
            wrong.push(format!("{} gives\n{given}", typed.display()));
        }
        count += 1;
    }
    assert!(count > 150, "only {count} golden files were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn inputs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut inputs: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    inputs.sort();
    inputs
}

/// Returns the extension of the golden file and its expected text, with the base directory
/// replaced.
fn outcome(typed: &Path, base: &Path) -> (&'static str, String) {
    let text = fs::read_to_string(typed).unwrap();
    let name = typed.file_name().unwrap().to_str().unwrap();
    let (extension, given) = match forebay_conf::parse(&text, name, base) {
        Ok(plan) => ("plan", format!("{plan:#?}\n")),
        Err(error) => ("err", error.plain()),
    };
    (extension, given.replace(base.to_str().unwrap(), "BASE"))
}

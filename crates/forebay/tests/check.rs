//! `forebay check`: exit code, and what goes where.

use std::path::Path;
use std::process::{Command, Output};

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("check").args(arguments).output().unwrap()
}

fn typed(name: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_valid_file_is_summed_up_in_one_line() {
    let text = "[[site]]\nlisten = 8080\n[[site.route]]\npath = \"/a\"\nrespond = \"a\"\n\
                [[site.route]]\nredirect = \"/a\"\n";
    let file = typed("valid.toml", text);
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(0));
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line, format!("{file}: ok, 1 site, 2 routes, 0 apps\n"));
    assert!(output.stderr.is_empty());
}

#[test]
fn an_error_goes_to_standard_error_without_colour() {
    let file = typed("wrong.toml", "[[site]]\nlisen = 8080\n");
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("{file}:2:1")), "{error}");
    assert!(error.contains("did you mean `listen`?"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn fewer_connections_than_threads_that_share_them_are_refused() {
    let text = |multiplex| {
        format!(
            "[server]\nthreads = 3\n[[site]]\nlisten = 8080\n[[site.route]]\nfastcgi = {{ \
             to = \"127.0.0.1:9000\", root = \"/nowhere\", multiplex = \"{multiplex}\", max_connections = 2 }}\n"
        )
    };
    let file = typed("shared.toml", &text("on"));
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("route on line 5") && error.contains("each of 3 threads"), "{error}");
    let served = Command::new(env!("CARGO_BIN_EXE_forebay")).args(["serve", &file]).output();
    assert_eq!(served.unwrap().status.code(), Some(2), "nor is it served");
    let file = typed("unshared.toml", &text("auto"));
    assert_eq!(check(&[&file]).status.code(), Some(0));
}

#[test]
fn the_schema_needs_no_file() {
    let output = check(&["--schema"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.starts_with(b"{"));
    assert_eq!(check(&[]).status.code(), Some(2));
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let file = typed("full.toml", "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"a\"\n");
    for argument in ["--schema", &file] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let output = command.arg("check").arg(argument).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{argument}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("forebay check: standard output: "), "{error}");
    }
}

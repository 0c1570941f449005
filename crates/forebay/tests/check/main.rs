//! `forebay check`: its exit code and both outputs.

mod applications;
mod expectations;
mod rights;
mod warnings;
mod ways_around;

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
    assert_eq!(but_root(output.stderr), "");
}

/// Returns standard error without the warning that root runs this test.
fn but_root(stderr: Vec<u8>) -> String {
    let text = String::from_utf8(stderr).unwrap();
    let others = text.strip_prefix("  ! WARNING: requests are served as root");
    let others = others.and_then(|text| text.split_once("logs are open\n"));
    others.map(|(_, rest)| rest.to_owned()).unwrap_or(text)
}

#[test]
fn serving_as_root_is_warned_about() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let text = "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"a\"\n";
    for (server, is_warned) in [
        ("", true),
        ("[server]\nuser = \"root\"\n", true),
        ("[server]\nuser = \"nobody\"\n", false),
    ] {
        let output = check(&[&typed("root.toml", &format!("{server}{text}"))]);
        assert_eq!(output.status.code(), Some(0), "{server}");
        let error = String::from_utf8(output.stderr).unwrap();
        let warning = "WARNING: requests are served as root";
        assert_eq!(error.contains(warning), is_warned, "{server}: {error}");
        assert_eq!(error.contains("give `user` in [server]"), is_warned, "{server}: {error}");
    }
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
             to = \"127.0.0.1:9000\", root = \"/nowhere\", multiplex = \"{multiplex}\", \
             max_connections = 2 }}\n"
        )
    };
    let file = typed("shared.toml", &text("on"));
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    let place = |file: &str| format!("(route on line 5 of {file}): each of 3 threads");
    assert!(error.contains(&place(&file)), "{error}");
    let served = Command::new(env!("CARGO_BIN_EXE_forebay")).args(["serve", &file]).output();
    let served = served.unwrap();
    assert_eq!(served.status.code(), Some(2), "nor is it served");
    assert_eq!(but_root(served.stderr), error);
    let file = typed("unshared.toml", &text("auto"));
    let output = check(&[&file]);
    assert_eq!(output.status.code(), Some(0), "not shared then");
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(note.contains("cannot share") && note.contains(&place(&file)), "{note}");
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
        let error = but_root(output.stderr);
        assert!(error.starts_with("forebay check: standard output: "), "{error}");
    }
}

#[test]
fn manual_pages_and_completions_know_each_subcommand() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_forebay")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man1");
    assert_eq!(run(&["man", dir.to_str().unwrap()]), "");
    let main = std::fs::read_to_string(dir.join("forebay.1")).unwrap();
    assert_eq!(run(&["man"]), main);
    for verb in [
        "serve",
        "check",
        "explain",
        "ctl",
        "bench",
        "merge",
        "compare",
        "init",
        "doctor",
        "man",
        "completions",
    ] {
        assert!(main.contains(&format!("forebay\\-{verb}(1)")), "{verb} in {main}");
        let page = std::fs::read_to_string(dir.join(format!("forebay-{verb}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        for word in ["serve", "explain", "compare", "threads"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
}

#[test]
fn manual_pages_that_cannot_be_written_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_forebay")).arg("man").arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write manual pages into"));
}

/// Returns the warnings of `check` about a site with these keys and routes.
fn warnings(name: &str, site: &str) -> String {
    let output = check(&[&typed(name, &format!("[[site]]\n{site}"))]);
    let error = but_root(output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    error.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_owner_of_a_socket_that_the_machine_does_not_know_is_an_error() {
    let site = "[[site]]\nlisten = \"unix:no-such.sock\"\nsocket_group = \"no-such-group\"\n\
                [[site.route]]\nrespond = \"a\"\n";
    let output = check(&[&typed("owner.toml", site)]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("there is no group no-such-group on this machine"), "{error}");
}

#[test]
fn a_rate_and_a_lifetime_without_their_tables_are_explained() {
    for (keys, help) in [
        ("rate_limit = \"10/s\"", "{ rate = \"10/s\" }"),
        ("rate_limit = [\"10/s\"]", "{ rate = \"10/s\" }"),
        ("cache = \"10m\"", "{ valid = \"10m\" }"),
    ] {
        let site = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\nproxy = \"http://127.0.0.1:9\"\n{keys}\n"
        );
        let output = check(&[&typed("short.toml", &site)]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(help), "{keys}: {error}");
    }
}

#[test]
fn only_a_file_is_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (fifo, folder) = (fifo.display().to_string(), folder.path().display().to_string());
    for command in ["check", "serve", "explain"] {
        for path in [&fifo, &folder, "/dev/zero"] {
            // `serve` with a directory serves its files.
            if command == "serve" && *path == folder {
                continue;
            }
            let mut forebay = Command::new(env!("CARGO_BIN_EXE_forebay"));
            forebay.arg(command);
            let arguments: &[&str] =
                if command == "explain" { &[path, "http://a/"] } else { &[path] };
            let output = forebay.args(arguments).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{command} {path}");
            let why = if path == folder { "Is a directory" } else { "it is not a file" };
            assert!(error.contains(why), "{command} {path}: {error}");
        }
    }
}

#[test]
fn sets_that_are_nested_too_deep_do_not_use_themselves() {
    let mut text =
        "[[site]]\nlisten = 8080\n[[site.route]]\nuse = [\"s0\"]\nrespond = \"x\"\n".to_owned();
    for depth in 0..40 {
        let next = depth + 1;
        text += &format!("[set.s{depth}]\nuse = [\"s{next}\", \"s{next}\"]\n");
    }
    text += "[set.s40]\ncompress = false\n";
    let error = String::from_utf8(check(&[&typed("deep.toml", &text)]).stderr).unwrap();
    assert!(error.contains("more than 20 deep") && !error.contains("uses itself"), "{error}");
}

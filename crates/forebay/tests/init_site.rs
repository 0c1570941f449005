//! `forebay init site`: its file serves a small application of each kind at once.

mod support;

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use support::{Forebay, program, serve_arguments};

const PSGI: &str = "sub { [200, ['Content-Type' => 'text/plain'], ['psgi ' . $_[0]{PATH_INFO}]] }";
const FLASK: &str = "from flask import Flask\nshop = Flask(__name__)\n\
    @shop.route('/a')\ndef a():\n    return 'flask'\n";
const FASTAPI: &str = "from fastapi import FastAPI\napi = FastAPI()\n\
    @api.get('/a')\ndef a():\n    return 'fastapi'\n";
const RACK: &str = "run ->(env) { [200, {'content-type' => 'text/plain'}, ['rack']] }\n";
const PERL: &str = "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nperl $ENV{PATH_INFO}\";";
const PYTHON: &str = "#!/usr/bin/python3\nprint('Content-Type: text/plain\\n\\npython')";

/// Returns the report of `init site` for the directory.
fn init(dir: &Path) -> String {
    let output = Command::new(program()).args(["init", "site"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes the site of the directory, and serves it on a free port.
fn site(folder: Folder, dir: &Path) -> Forebay {
    let report = init(dir);
    let file = dir.join("site.toml");
    assert!(report.contains("\nnext: forebay serve "), "{report}");
    let listen = ["--threads", "1", "--listen", "127.0.0.1:0"];
    serve_arguments(folder, &[&listen[..], &[file.to_str().unwrap()]].concat())
}

/// Serves what is written for these files, and compares the reply to `path`.
fn serves(files: &[(&str, &str)], path: &str, expected: &str) {
    let folder = Folder::new();
    for (name, text) in files {
        folder.script(name, text);
    }
    // The Python interpreter of Debian's modules.
    fs::create_dir_all(folder.path().join(".venv/bin")).unwrap();
    symlink("/usr/bin/python3", folder.path().join(".venv/bin/python")).unwrap();
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    let reply = forebay.get(path);
    assert_eq!(reply.text(), expected, "{}", forebay.output());
}

#[test]
fn files_and_scripts_are_served_at_once() {
    let files = [("index.html", "page"), ("cgi-bin/a.pl", PERL), ("cgi-bin/b.py", PYTHON)];
    let folder = Folder::new();
    let dir = folder.path().join("it's \"the\"\nsite");
    for (name, text) in files {
        folder.script(&format!("it's \"the\"\nsite/{name}"), text);
    }
    let forebay = site(folder, &dir);
    assert_eq!(forebay.get("/").text(), "page");
    assert_eq!(forebay.get("/cgi-bin/a.pl/x").text(), "perl /x", "{}", forebay.output());
    assert_eq!(forebay.get("/cgi-bin/b.py").text().trim_end(), "python");
    for path in ["/site.toml", "/site%2etoml", "//site.toml"] {
        assert_eq!(forebay.get(path).status, 404, "{path}");
    }
}

#[test]
fn an_application_in_perl_is_served_at_once() {
    if peer::has(&["libplack-perl"]) {
        serves(&[("app.psgi", PSGI)], "/a", "psgi /a");
    }
}

#[test]
fn applications_in_python_are_served_at_once() {
    if peer::has(&["python3", "python3-flask", "python3-fastapi"]) {
        serves(&[("app.py", FLASK)], "/a", "flask");
        serves(&[("main.py", FASTAPI)], "/a", "\"fastapi\"");
    }
}

#[test]
fn an_application_in_ruby_is_served_at_once() {
    if peer::has(&["ruby", "ruby-rack"]) {
        let files = [("config.ru", RACK), ("public/a.css", "css")];
        serves(&files, "/", "rack");
        serves(&files, "/a.css", "css");
    }
}

#[test]
fn an_application_in_php_is_served_at_once() {
    if peer::has_php_fpm() {
        let entry = "<?php echo 'php ', $_SERVER['REQUEST_URI'];";
        serves(&[("artisan", ""), ("public/index.php", entry)], "/a/b", "php /a/b");
    }
}

#[test]
fn a_file_that_exists_is_kept_without_force() {
    let folder = Folder::new();
    folder.write("index.html", "page");
    let file = folder.write("site.toml", "mine");
    let init = |arguments: &[&str]| {
        Command::new(program()).args(["init", "site"]).args(arguments).arg(folder.path()).output()
    };
    let output = init(&[]).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force replaces it"), "{output:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert!(init(&["--force"]).unwrap().status.success());
    assert!(fs::read_to_string(&file).unwrap().contains("[[site]]"));
}

#[test]
fn an_application_of_an_owner_without_a_name_does_not_run_as_root() {
    let folder = Folder::new();
    folder.write("app.psgi", PSGI);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(folder.path(), Some(54_321), None).unwrap();
    }
    init(folder.path());
    let site = fs::read_to_string(folder.path().join("site.toml")).unwrap();
    assert_eq!(site.contains("user = \"www-data\""), is_root, "{site}");
}

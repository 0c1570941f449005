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

/// Writes the files of an application whose `.htaccess` files restrict access.
fn closed_parts(folder: &Folder) {
    folder.write("conf/.htaccess", "<IfModule mod_authz_core.c>\nRequire all denied\n</IfModule>");
    folder.write("data/x y*/.htaccess", "Deny from all");
    folder.write("users/.htaccess", "AuthType Basic\nAuthUserFile /none\nRequire valid-user");
    folder.write("htaccess", "Require all denied");
    fs::create_dir_all(folder.path().join("linked")).unwrap();
    symlink("../htaccess", folder.path().join("linked/.htaccess")).unwrap();
    folder.write(
        ".htaccess",
        "<FilesMatch \"^(VERSION|secret.*)$\">\nRequire all denied\n</FilesMatch>\n\
         RewriteEngine on\nRewriteRule ^(temp|logs)/ - [F]\n",
    );
    for dir in ["conf", "conf/deep/er", "data/x y*", "users", "linked", "temp", "open"] {
        folder.write(&format!("{dir}/a.txt"), "text");
        folder.write(&format!("{dir}/a.php"), "<?php echo 'ran';");
        folder.write(&format!("{dir}/index.html"), "index");
    }
    folder.write("open/VERSION", "text");
    folder.write("secret.php", "<?php echo 'ran';");
}

#[test]
fn what_htaccess_files_refuse_is_refused() {
    let folder = Folder::new();
    closed_parts(&folder);
    let is_php = peer::has_php_fpm();
    folder.write(if is_php { "index.php" } else { "index.html" }, "home");
    let dir = folder.path().to_owned();
    let report = init(&dir);
    for file in ["", "conf/", "data/x y*/", "users/", "linked/"] {
        assert!(report.contains(&format!("\nread {file}.htaccess,")), "{report}");
    }
    assert!(
        report.contains("note: the site refuses more than Apache: users/.htaccess"),
        "{report}"
    );
    let file = dir.join("site.toml");
    let listen = ["--threads", "1", "--listen", "127.0.0.1:0"];
    let forebay = serve_arguments(folder, &[&listen[..], &[file.to_str().unwrap()]].concat());
    for path in ["/conf", "/data/x%20y*", "/users", "/linked", "/temp", "/conf/deep"] {
        for end in ["/", "/a.txt", "/a.php", "/a.php/x", "/none", "/%61.txt", "/./a.txt"] {
            let path = format!("{path}{end}");
            assert_eq!(forebay.get(&path).status, 403, "{path}");
        }
        assert_eq!(forebay.get(path).status, 403, "{path}");
    }
    for path in ["//conf/a.txt", "/open/../conf/a.txt", "/open/VERSION", "/secret.php/x"] {
        assert_eq!(forebay.get(path).status, 403, "{path}");
    }
    assert_eq!(forebay.get("/").text(), "home", "{}", forebay.output());
    assert_eq!(forebay.get("/open/a.txt").text(), "text");
    assert!(!is_php || forebay.get("/open/a.php").text() == "ran", "{}", forebay.output());
}

#[test]
fn a_site_that_htaccess_closes_is_closed() {
    let folder = Folder::new();
    folder.write("index.html", "page");
    folder.write("vendor/.htaccess", "deny from all");
    folder.write(".htaccess", "Require ip 10.1.2.3");
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    for path in ["/", "/index.html", "/vendor/x", "/site.toml"] {
        assert_eq!(forebay.get(path).status, 403, "{path}");
    }
    fs::remove_file(dir.join("site.toml")).unwrap();
    assert!(init(&dir).contains("note: one route refuses all requests"));
    let site = fs::read_to_string(dir.join("site.toml")).unwrap();
    assert!(site.contains("The routes above refuse all requests of this route:"), "{site}");
}

#[test]
fn only_a_front_controller_gets_paths_without_a_file() {
    if !peer::has_php_fpm() {
        return;
    }
    let missing = "RewriteEngine on\nRewriteCond %{REQUEST_FILENAME} !-f\n";
    for (rules, expected) in [
        (format!("{missing}RewriteRule (.*) page.php?id=$1 [L]"), (200, "page a/b")),
        (format!("{missing}#RewriteRule ^ index.php\nRewriteRule ^bin/ - [F]"), (404, "")),
    ] {
        let folder = Folder::new();
        folder.write("index.php", "<?php echo 'index';");
        folder.write("page.php", "<?php echo 'page ', $_GET['id'];");
        folder.write(".htaccess", &rules);
        let dir = folder.path().to_owned();
        let forebay = site(folder, &dir);
        let reply = forebay.get("/a/b");
        assert_eq!(reply.status, expected.0, "{rules}: {}", forebay.output());
        assert!(reply.status != 200 || reply.text() == expected.1, "{rules}: {}", reply.text());
        assert_eq!(forebay.get("/bin/x").status == 403, rules.contains("[F]"), "{rules}");
    }
}

#[test]
fn cgi_scripts_among_files_run_and_their_source_is_not_sent() {
    let folder = Folder::new();
    folder.script("index.cgi", PERL);
    folder.script("tool.cgi", PYTHON);
    folder.write("no-bit.cgi", "#!/bin/sh\n");
    folder.write("a.css", "css");
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    assert_eq!(forebay.get("/").text().trim_end(), "perl", "{}", forebay.output());
    assert_eq!(forebay.get("/index.cgi/x").text(), "perl /x");
    assert_eq!(forebay.get("/tool.cgi").text().trim_end(), "python");
    assert_eq!(forebay.get("/a.css").text(), "css");
    assert_ne!(forebay.get("/no-bit.cgi").status, 200);
    assert_eq!(forebay.get("/site.toml").status, 404);

    // A cgi-bin directory comes first, and the scripts outside of it have no route.
    let folder = Folder::new();
    folder.script("tool.cgi", PERL);
    folder.script("cgi-bin/b.cgi", PERL);
    folder.write("index.html", "page");
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    assert_eq!(forebay.get("/tool.cgi").status, 404);
    assert_eq!(forebay.get("/cgi-bin/b.cgi/x").text(), "perl /x", "{}", forebay.output());
    assert_eq!(forebay.get("/").text(), "page");
}

#[test]
fn the_source_of_scripts_beside_php_is_not_sent() {
    if peer::installed("php-cgi").is_none() {
        return;
    }
    let folder = Folder::new();
    folder.write("index.php", "<?php echo 'php';");
    folder.script("tools/r.cgi", PERL);
    folder.script("a.pl", PERL);
    folder.script("bin/run", PYTHON);
    folder.script("deep/er/tool.js", "#!/usr/bin/env node\n");
    folder.write("app.js", "script");
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    for path in ["/tools/r.cgi", "/tools/r.cgi/x", "/a.pl", "/bin/run", "/deep/er/tool.js"] {
        let reply = forebay.get(path);
        assert!(reply.status == 404 && !reply.text().contains("#!"), "{path}: {}", reply.text());
    }
    assert_eq!(forebay.get("/").text(), "php", "{}", forebay.output());
    assert_eq!(forebay.get("/app.js").text(), "script");
}

#[test]
fn uploaded_cgi_scripts_run_only_if_htaccess_lets_them() {
    let folder = Folder::new();
    folder.script("index.cgi", PERL);
    let off = [
        "Options -ExecCGI",
        "RemoveHandler .cgi",
        "RemoveHandler cgi",
        "SetHandler default-handler",
        "ForceType text/plain",
        "AddType text/plain .pl .cgi",
        "<FilesMatch \"\\.(cgi|pl)$\">\nSetHandler none\n</FilesMatch>",
        "<Files *>\nOptions -ExecCGI\n</Files>",
    ];
    for (at, rules) in off.iter().enumerate() {
        folder.write(&format!("off-{at}/.htaccess"), rules);
        folder.script(&format!("off-{at}/x.cgi"), PERL);
        folder.script(&format!("off-{at}/below/x.cgi"), PERL);
    }
    folder.write("on/.htaccess", "<Files *.html>\nForceType text/plain\n</Files>\nHeader set X y");
    folder.script("on/x.cgi", PERL);
    let dir = folder.path().to_owned();
    let forebay = site(folder, &dir);
    for (at, rules) in off.iter().enumerate() {
        for path in ["x.cgi", "x.cgi/y", "below/x.cgi", "none.cgi"] {
            assert_eq!(forebay.get(&format!("/off-{at}/{path}")).status, 403, "{rules}: {path}");
        }
    }
    assert_eq!(forebay.get("/on/x.cgi/y").text(), "perl /y", "{}", forebay.output());
    assert_eq!(forebay.get("/").text().trim_end(), "perl");
}

//! `check`, `explain` and `doctor` by root: they run nothing of an application, and judge as the user
//! that will serve.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{check, typed};

/// Python that leaves a file beside itself, in the directory of the application.
const PYTHON: &str = "open('APP/ran-' + __file__.replace('/', '_'), 'w').close()\n";
const PERL: &str = "open my $f, '>', 'APP/ran-perl'; 1;\n";
const RUBY: &str = "File.write('APP/ran-ruby', '')\n";
const PHP: &str = "<?php file_put_contents('APP/ran-php', '');\n";
const SHELL: &str = "#!/bin/sh\n: >APP/ran-shell\n";

/// An application directory that anybody may read, in which every file runs code when it is loaded.
fn hostile() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let app = dir.path().canonicalize().unwrap();
    let write = |name: &str, text: &str| {
        let file = app.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text.replace("APP", app.to_str().unwrap())).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    };
    let python = "json site sitecustomize usercustomize importlib/__init__ os io codecs encodings \
                  encodings/__init__ wsgi asgi pkg/__init__ _virtualenv warnings";
    for name in python.split_whitespace() {
        write(&format!("{name}.py"), PYTHON);
        write(&format!("lib/{name}.py"), PYTHON);
    }
    for name in ["strict.pm", "lib/strict.pm", "Plack.pm", "sitecustomize.pl", "app.psgi", "a.pl"] {
        write(name, PERL);
    }
    for name in ["config.ru", "rack.rb", "lib/rack.rb", "rubygems.rb", "Gemfile"] {
        write(name, RUBY);
    }
    write("index.php", PHP);
    write("php.ini", "auto_prepend_file = APP/index.php\n");
    write(".user.ini", "auto_prepend_file = APP/index.php\n");
    write("perl", SHELL);
    write("program", SHELL);
    // A virtual environment with the system's interpreter.
    write("venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n");
    for version in 8..20 {
        let packages = format!("venv/lib/python3.{version}/site-packages");
        write(&format!("{packages}/sitecustomize.py"), PYTHON);
        write(&format!("{packages}/evil.pth"), "import os; os.mkdir('APP/ran-pth')\n");
    }
    fs::create_dir_all(app.join("venv/bin")).unwrap();
    symlink("/usr/bin/python3", app.join("venv/bin/python")).unwrap();
    fs::set_permissions(&app, Permissions::from_mode(0o777)).unwrap();
    (dir, app)
}

#[test]
fn nothing_of_an_application_runs_as_the_checking_user() {
    let (_dir, app) = hostile();
    let venv = app.join("venv/bin/python");
    let env = "env = { PERL5OPT = \"-Mstrict\", PERL5LIB = \"lib:.\", RUBYOPT = \"-I. -rrack\", PYTHONPATH = \
               \"lib:.\", PYTHONSTARTUP = \"json.py\", PYTHONINSPECT = \"1\", PYTHONHOME = \".\" }\n";
    for server in [
        "",
        "[server]\nuser = \"nobody\"\n",
        "[server]\nuser = \"nobody\"\napp_user = \"daemon\"\n",
    ] {
        for table in [
            "kind = \"wsgi\"\nmodule = \"wsgi:app\"\ndir = \".\"".to_owned(),
            "kind = \"wsgi\"\nmodule = \"pkg.sub:app\"\ndir = \".\"\nlib = \"lib\"".to_owned(),
            format!(
                "kind = \"wsgi\"\nmodule = \"none:app\"\ndir = \".\"\npython = \"{}\"",
                venv.display()
            ),
            "kind = \"asgi\"\nmodule = \"asgi:app\"\ndir = \".\"\npython = \"venv/bin/python\""
                .to_owned(),
            "kind = \"python-cgi\"\ndir = \".\"\npython = \"program\"".to_owned(),
            "kind = \"python-cgi\"\ndir = \".\"".to_owned(),
            "kind = \"cgi-bin\"\ndir = \".\"".to_owned(),
            "kind = \"perl-cgi\"\ndir = \".\"\npreload = [\"strict\"]".to_owned(),
            "kind = \"psgi\"\nfile = \"app.psgi\"".to_owned(),
            "kind = \"rack\"\nfile = \"config.ru\"".to_owned(),
            "kind = \"php\"\nroot = \".\"\nuser = \"daemon\"".to_owned(),
            "kind = \"mono\"\ndir = \".\"".to_owned(),
            "kind = \"command\"\nrun = [\"./program\"]\nlisten = \"socket\"\nspeaks = \"http\""
                .to_owned(),
        ] {
            let file = app.join("site.toml");
            let env = if table.contains("\"php\"") { "" } else { env };
            let text = format!(
                "{server}[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \"/cgi/*\"\ncgi = \
                 \".\"\n[[site.route]]\napp = \"x\"\n[app.x]\n{table}\n{env}"
            );
            fs::write(&file, text).unwrap();
            let file = file.to_str().unwrap();
            for arguments in [
                vec!["check", file],
                vec!["doctor", file],
                vec!["explain", file, "http://a/index.php"],
                vec!["explain", file, "http://a/cgi/program"],
                vec!["init", "site", "--dry-run"],
            ] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
                command.args(&arguments).current_dir(&app).output().unwrap();
                let names = fs::read_dir(&app).unwrap().map(|entry| entry.unwrap().file_name());
                let ran = names.filter(|name| name.to_string_lossy().starts_with("ran-"));
                let ran: Vec<_> = ran.collect();
                assert!(ran.is_empty(), "{arguments:?} of {server}{table} ran {ran:?}");
            }
        }
    }
}

#[test]
fn a_missing_module_is_found_without_code_of_an_environment() {
    let dir = tempfile::tempdir().unwrap();
    let app = dir.path().canonicalize().unwrap();
    fs::set_permissions(&app, Permissions::from_mode(0o755)).unwrap();
    let find = |name: &str| {
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"wsgi\"\n\
             module = \"{name}\"\ndir = \".\"\npython = \"venv/bin/python\"\n"
        );
        fs::write(app.join("site.toml"), text).unwrap();
        let output = check(&[app.join("site.toml").to_str().unwrap()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() || error.contains("there is no module"), "{error}");
        output.status.success()
    };
    fs::create_dir_all(app.join("venv/bin")).unwrap();
    symlink("/usr/bin/python3", app.join("venv/bin/python")).unwrap();
    fs::write(app.join("venv/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    fs::create_dir(app.join("elsewhere")).unwrap();
    fs::write(app.join("elsewhere/by_pth.py"), "").unwrap();
    fs::write(app.join("own.py"), "").unwrap();
    for version in 8..20 {
        let packages = app.join(format!("venv/lib/python3.{version}/site-packages"));
        fs::create_dir_all(packages.join("package")).unwrap();
        let line = format!("{}\n", app.join("elsewhere").display());
        fs::write(packages.join("more.pth"), line).unwrap();
    }
    let cases = ["own:a", "own.sub:app", "package:a", "by_pth:a", "json:a", "sys:a", "nowhere:a"];
    assert_eq!(cases.map(find), [true, true, true, true, true, true, false]);
    for version in 8..20 {
        let packages = app.join(format!("venv/lib/python3.{version}/site-packages"));
        fs::write(packages.join("__editable__.hook.pth"), "import hook\n").unwrap();
    }
    assert!(find("nowhere:a"), "code of a .pth file may provide it");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Root's files, of which others may read only some.
#[test]
fn what_the_serving_user_is_refused_is_said() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    for name in ["private", "open", "open/closed"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    for (name, of_file) in
        [("private/python", 0o755), ("private/index.html", 0o644), ("open/index.html", 0o600)]
    {
        fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
        mode(&dir.join(name), of_file);
    }
    for name in ["private/shop.py", "open/shop.py", "open/config.ru"] {
        fs::write(dir.join(name), "").unwrap();
        mode(&dir.join(name), 0o600);
    }
    for (name, text) in [("open/gunicorn", "#!PRIVATE/python\n"), ("open/app.psgi", "1")] {
        fs::write(dir.join(name), text.replace("PRIVATE", dir.join("private").to_str().unwrap()))
            .unwrap();
        mode(&dir.join(name), 0o755);
    }
    let _listener = UnixListener::bind(dir.join("open/php.sock")).unwrap();
    mode(&dir.join("open/php.sock"), 0o600);
    mode(&dir.join("open/closed"), 0o700);
    mode(&dir.join("open"), 0o755);
    mode(&dir.join("private"), 0o700);
    mode(&dir, 0o755);
    let private = format!("it may not enter {}", dir.join("private").display());
    let app = |table: &str| format!("[[site.route]]\napp = \"x\"\n[app.x]\n{table}\n");
    for (server, rest, expected) in [
        ("", "[[site.route]]\nfiles = \"private\"\n".to_owned(), "nobody may not enter "),
        ("", "[[site.route]]\nfiles = \"open\"\n".to_owned(), "nobody may not read "),
        ("", "[[site.route]]\nfiles = \"open/closed\"\n".to_owned(), "open/closed"),
        ("", app("kind = \"python-cgi\"\ndir = \"open\"\npython = \"private/python\""), &private),
        ("", app("kind = \"wsgi\"\nmodule = \"shop:app\"\ndir = \"private\""), "nobody may not enter "),
        ("", app("kind = \"asgi\"\nmodule = \"shop:app\"\ndir = \"private\""), "nobody may not enter "),
        ("", app("kind = \"wsgi\"\nmodule = \"shop:app\"\ndir = \"open\""), "open/shop.py"),
        ("", app("kind = \"asgi\"\nmodule = \"shop:app\"\ndir = \"open\""), "open/shop.py"),
        ("", app("kind = \"rack\"\nfile = \"open/config.ru\""), "open/config.ru"),
        ("", app("kind = \"psgi\"\nfile = \"open/config.ru\""), "open/config.ru"),
        ("", app("kind = \"mono\"\ndir = \"private\""), "nobody may not enter "),
        (
            "",
            app("kind = \"perl-cgi\"\ndir = \"open\"\npreload = [\"open/config.ru\"]"),
            "open/config.ru",
        ),
        (
            "",
            app("kind = \"cgi-bin\"\ndir = \"open\"\npreload = [\"open/config.ru\"]"),
            "open/config.ru",
        ),
        (
            "",
            "[[site.route]]\nmaintenance = { page = \"open/gunicorn\", while_exists = \"private/closed\" }\n\
             respond = \"a\"\n"
                .to_owned(),
            "nobody may not enter ",
        ),
        (
            "",
            app("kind = \"command\"\nrun = [\"private/python\", \"{socket}\"]\nspeaks = \"http\""),
            &private,
        ),
        (
            "",
            app("kind = \"command\"\nrun = [\"open/gunicorn\", \"{socket}\"]\nspeaks = \"http\""),
            &private,
        ),
        (
            "app_user = \"daemon\"\n",
            app("kind = \"command\"\nrun = [\"private/python\", \"{socket}\"]\nspeaks = \"http\""),
            "app x cannot start: daemon may not run ",
        ),
        ("", "[[site.route]]\ncgi = \"private\"\n".to_owned(), "nobody may not enter "),
        (
            "",
            "[[site.route]]\nfastcgi = { to = \"unix:open/php.sock\", mount = \"\" }\n".to_owned(),
            "nobody may not connect to ",
        ),
        (
            "",
            "[[site.route]]\nscgi = { to = \"unix:open/none.sock\" }\n".to_owned(),
            "there is no such socket",
        ),
        ("", "[[site.route]]\nscgi = { to = \"unix:private/none.sock\" }\n".to_owned(), &private),
        (
            "cache_dir = \"private/cache\"\n",
            "[[site.route]]\nrespond = \"a\"\n".to_owned(),
            "nobody may not enter ",
        ),
        (
            "cache_dir = \"open\"\n",
            "[[site.route]]\nrespond = \"a\"\n".to_owned(),
            "nobody may not write to ",
        ),
    ] {
        let text = format!(
            "[server]\nuser = \"nobody\"\n{server}[[site]]\nlisten = \"127.0.0.1:8080\"\n{rest}"
        );
        let file = dir.join("site.toml");
        fs::write(&file, &text).unwrap();
        let file = file.to_str().unwrap();
        let output = check(&[file]);
        let error = String::from_utf8(output.stderr).unwrap();
        // The lines of a message are broken where it is shown.
        let flat = |text: &str| {
            text.replace('\u{2502}', "").split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(flat(&error).contains(&flat(expected)), "{expected}\n{text}\n{error}");
        let doctor =
            Command::new(env!("CARGO_BIN_EXE_forebay")).args(["doctor", file]).output().unwrap();
        let said = String::from_utf8(doctor.stdout).unwrap();
        assert!(said.contains(expected), "{expected}\n{text}\n{said}");
        assert!(!error.contains("there is no module"), "{text}\n{error}");
    }
}

/// `explain` by root answers for a script and for a socket as `serve` will.
#[test]
fn explain_judges_scripts_and_sockets_as_their_users() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    mode(&dir, 0o755);
    for (name, of_file) in [("no-bit.sh", 0o644), ("own.sh", 0o700), ("all.sh", 0o755)] {
        fs::write(dir.join(name), "#!/bin/sh\n").unwrap();
        mode(&dir.join(name), of_file);
    }
    let _listener = UnixListener::bind(dir.join("php.sock")).unwrap();
    mode(&dir.join("php.sock"), 0o600);
    let file = dir.join("site.toml");
    let to = "{ to = \"unix:php.sock\", mount = \"\" }";
    let text = format!(
        "[server]\nuser = \"nobody\"\n[[site]]\nlisten = \"127.0.0.1:8080\"\n[[site.route]]\npath = \
         \"/cgi/*\"\ncgi = \".\"\n[[site.route]]\npath = \"/bin/*\"\napp = \"x\"\n[[site.route]]\npath = \
         \"/fastcgi\"\nfastcgi = {to}\n[[site.route]]\npath = \"/scgi\"\nscgi = {to}\n[[site.route]]\npath = \
         \"/uwsgi\"\nuwsgi = {to}\n[[site.route]]\npath = \"/proxy\"\nproxy = \"unix:php.sock\"\n[app.x]\n\
         kind = \"cgi-bin\"\ndir = \".\"\n"
    );
    fs::write(&file, text).unwrap();
    let explain = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["explain", file.to_str().unwrap(), &format!("http://127.0.0.1:8080{path}")]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for start in ["/cgi", "/bin"] {
        for (name, expected) in [
            ("no-bit.sh", Some("403 cannot run ")),
            ("own.sh", Some("403 nobody may not run ")),
            ("all.sh", None),
        ] {
            let said = explain(&format!("{start}/{name}"));
            assert!(said.contains(expected.unwrap_or("SCRIPT_NAME")), "{start}/{name}\n{said}");
            assert_eq!(said.contains("403 "), expected.is_some(), "{start}/{name}\n{said}");
        }
    }
    for path in ["/fastcgi", "/scgi", "/uwsgi", "/proxy"] {
        let said = explain(path);
        assert!(said.contains("nobody may not connect to "), "{path}\n{said}");
    }
}

#[test]
fn programs_that_share_a_user_are_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let perl = "kind = \"perl-cgi\"\ndir = \"/\"\n";
    for (server, first, second, expected) in [
        ("", "", "", Some("app a, app b runs as nobody, as Forebay does")),
        ("", "user = \"daemon\"\n", "", Some("app b runs as nobody, as Forebay does")),
        ("app_user = \"daemon\"\n", "", "", Some("app a, app b run as daemon")),
        ("app_user = \"daemon\"\n", "user = \"www-data\"\n", "", None),
        ("app_user = \"nobody\"\n", "user = \"daemon\"\n", "", Some("app b runs as nobody")),
    ] {
        let text = format!(
            "[server]\nuser = \"nobody\"\n{server}[[site]]\nlisten = 8080\n[[site.route]]\npath = \"/a/*\"\n\
             app = \"a\"\n[[site.route]]\napp = \"b\"\n[app.a]\n{perl}{first}[app.b]\n{perl}{second}"
        );
        let output = check(&[&typed("shared.toml", &text)]);
        let error = String::from_utf8(output.stderr).unwrap();
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        match expected {
            Some(expected) => assert!(error.contains(expected), "{expected}\n{error}"),
            None => assert!(!error.contains("run as") && !error.contains("runs as"), "{error}"),
        }
    }
}

#[test]
fn an_open_address_of_the_administrator_is_warned_about() {
    for (address, is_open) in
        [("0.0.0.0:9900", true), ("[::]:9900", true), ("127.0.0.1:9900", false)]
    {
        let text = format!(
            "[server]\nadmin = \"{address}\"\n[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"a\"\n"
        );
        let error = String::from_utf8(check(&[&typed("admin.toml", &text)]).stderr).unwrap();
        assert_eq!(error.contains("can read the status"), is_open, "{error}");
    }
}

//! `forebay check`: its exit code and both outputs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
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

/// Returns the message of `check` and `serve` about an application in `folder`. Both refuse it with
/// the same message.
fn refused(folder: &Path, table: &str) -> String {
    let text = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"x\"\n\n[app.x]\n{table}\n"
    );
    let file = folder.join("site.toml");
    std::fs::write(&file, text).unwrap();
    let run = |verb: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        let output = command.arg(verb).arg(&file).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{verb} of {table}\n{error}");
        error
    };
    let error = run("check");
    assert_eq!(error, run("serve"));
    error.replace(folder.to_str().unwrap(), "FOLDER")
}

fn assert_points(error: &str, place: &str, texts: &[&str]) {
    assert!(error.contains(&format!("FOLDER/site.toml:{place}]")), "no {place} in\n{error}");
    for text in texts {
        assert!(error.contains(text), "no {text:?} in\n{error}");
    }
}

#[test]
fn programs_are_looked_for_as_serve_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("server"), "").unwrap();
    let rest = "speaks = \"http\"";
    let of = |run: &str, more: &str| {
        refused(
            folder,
            &format!("kind = \"command\"\nrun = [{run}, \"{{socket}}\"]\n{rest}\n{more}"),
        )
    };
    let absent = ["there is no program no-such in PATH", "help: install no-such"];
    assert_points(&of("\"no-such\"", ""), "8:8", &absent);
    assert_points(&of("\"./no-such\"", ""), "8:8", &["no program FOLDER/./no-such"]);
    assert_points(&of("\"{dir}/server\"", ""), "8:8", &["no run bit", "chmod +x FOLDER/server"]);
    // The PATH of the program counts.
    let path = format!("env = {{ PATH = \"{}\" }}", folder.display());
    assert_points(&of("\"sh\"", &path), "8:8", &["there is no program sh in PATH"]);
    let perl = format!("kind = \"psgi\"\nfile = \"server\"\n{path}");
    assert_points(&refused(folder, &perl), "7:8", &["no program perl in PATH", "install perl"]);
    let python = "kind = \"python-cgi\"\ndir = \".\"\npython = \"server\"";
    assert_points(&refused(folder, python), "9:10", &["no run bit"]);
    let python = format!("kind = \"wsgi\"\nmodule = \"a:b\"\n{path}");
    assert_points(&refused(folder, &python), "7:8", &["no program python3 in PATH"]);
}

#[test]
fn users_and_groups_are_looked_for_as_serve_does() {
    let folder = tempfile::tempdir().unwrap();
    let of =
        |keys: &str| refused(folder.path(), &format!("kind = \"perl-cgi\"\ndir = \".\"\n{keys}"));
    let user = ["there is no user no-such-user on this machine", "help: add the user"];
    assert_points(&of("user = \"no-such-user\""), "9:8", &user);
    assert_points(&of("group = \"no-such-group\""), "9:9", &["there is no group no-such-group"]);
    let server = "workers = 1\n[server]\nuser = \"no-such-user\"\ngroup = \"no-such-group\"";
    assert_points(&of(server), "11:8", &["no user no-such-user", "no group no-such-group"]);
    // A helper starts the processes of other users, but not as root.
    let both = "user = \"root\"\n[server]\nuser = \"nobody\"";
    assert_points(&of(both), "9:8", &["gives root up", "`user` in [server]", "remove one of"]);
    let alone = "group = \"daemon\"\n[server]\nuser = \"nobody\"";
    assert_points(&of(alone), "9:9", &["gives root up", "`group` alone", "remove one of"]);
}

#[test]
fn php_is_looked_for_as_serve_does_and_does_not_run_as_root() {
    let folder = tempfile::tempdir().unwrap();
    let table = "[[site]]\nlisten = 0\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"php\"\nroot = \".\"\n";
    let file = folder.path().join("site.toml");
    std::fs::write(&file, table).unwrap();
    let output = check(&[file.to_str().unwrap()]);
    let error = String::from_utf8(output.stderr).unwrap();
    let is_installed = !error.contains("neither php-fpm nor php-cgi");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(output.status.success(), is_installed && !is_root, "{error}");
    if is_installed && is_root {
        assert!(error.contains("site.toml:5:1]") && error.contains("not run as root"), "{error}");
    }
}

#[test]
fn mono_and_its_compiler_are_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let env = format!("env = {{ PATH = \"{}\" }}", folder.display());
    let app = format!("kind = \"mono\"\ndir = \".\"\n{env}");
    let write = |name: &str| {
        std::fs::write(folder.join(name), "").unwrap();
        std::fs::set_permissions(folder.join(name), Permissions::from_mode(0o755)).unwrap();
    };
    let help = "on Debian: apt-get install mono-devel";
    assert_points(&refused(folder, &app), "7:8", &["there is no program mono in PATH", help]);
    write("mono");
    assert_points(&refused(folder, &app), "7:8", &["there is no program mcs in PATH", help]);
}

#[test]
fn python_is_asked_for_the_module() {
    if !forebay_testkit::peer::has(&["python3"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("shop.py"), "raise SystemExit('this is not run')").unwrap();
    let of = |module: &str| {
        let text = format!(
            "[[site]]\nlisten = 0\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"wsgi\"\n\
             module = \"{module}\"\n"
        );
        let file = folder.join("site.toml");
        std::fs::write(&file, text).unwrap();
        check(&[file.to_str().unwrap()])
    };
    let output = of("shop:application");
    assert!(output.status.success(), "{output:?}");
    assert!(of("json:loads").status.success(), "a module of Python's");
    assert!(
        of("shop:application\"\nenv.PYTHONSAFEPATH = \"1").status.success(),
        "as the host does"
    );
    let output = of("shoop.web:application");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("there is no module shoop") && error.contains(":7:10]"), "{error}");
}

#[test]
fn python_is_not_asked_for_a_module_that_only_its_user_may_see() {
    if !forebay_testkit::peer::has(&["python3"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    mode(folder, 0o755).unwrap();
    let forebay = folder.join("forebay");
    // Another process writes the copy. Otherwise a child of another test could inherit the open
    // file, which then cannot be run.
    let copy = Command::new("cp").arg(env!("CARGO_BIN_EXE_forebay")).arg(&forebay).status();
    assert!(copy.unwrap().success());
    let app = folder.join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("shop.py"), "").unwrap();
    let of = |user: &str| {
        let text = format!(
            "[[site]]\nlisten = 0\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"wsgi\"\n\
             module = \"shop:application\"\ndir = \"app\"\n{user}"
        );
        let file = folder.join("site.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(&forebay);
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command.arg("check").arg(file).output().unwrap()
    };
    // Only root may list the directory.
    mode(&app, 0o311).unwrap();
    let (own, of_root) = (of(""), of("user = \"root\""));
    mode(&app, 0o755).unwrap();
    assert_eq!(own.status.code(), Some(2), "{own:?}");
    assert!(of_root.status.success(), "{of_root:?}");
}

#[test]
fn a_missing_watched_file_is_a_warning() {
    let text = "[[site]]\nlisten = 0\n[[site.route]]\napp = \"x\"\n[app.x]\nkind = \"perl-cgi\"\n\
                dir = \".\"\nwatch = [\".\", \"no-such-lib\"]\n";
    let output = check(&[&typed("watch.toml", text)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let warning = but_root(output.stderr);
    assert!(warning.trim_start().starts_with("! nothing to watch: "), "{warning}");
    assert!(warning.contains("no-such-lib does not exist"), "{warning}");
    assert!(warning.contains("watch.toml:8:15]"), "{warning}");
}

#[test]
fn source_that_no_route_runs_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.php"), "<?php").unwrap();
    let files = format!("[[site.route]]\npath = \"/*\"\nfiles = \"{}\"\n", folder.path().display());
    let php = format!(
        "[[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"unix:php.sock\", root = \"{}\" }}\n",
        folder.path().display()
    );
    let warning = "the source of index.php is sent: no route of this site runs it";
    for (routes, is_warned) in [(files.clone(), true), (php + &files, false)] {
        let text = format!("[[site]]\nlisten = 8080\n{routes}");
        let output = check(&[&typed("source.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        assert_eq!(error.contains(warning), is_warned, "{error}");
        assert_eq!(error.contains("source.toml:5:9"), is_warned, "{error}");
        // An upload directory must not run uploaded files.
        assert_eq!(error.contains("help: move it elsewhere, or refuse"), is_warned, "{error}");
    }
}

#[test]
fn source_of_other_names_that_no_route_runs_is_a_warning_too() {
    for name in ["a.phtml", "a.php5", "UP.PHP", "x.cgi", "x.pl", "y.py"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), "").unwrap();
        let dir = folder.path().display();
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\nsuffix = \".php\"\n\
             fastcgi = {{ to = \"unix:php.sock\", root = \"{dir}\" }}\n\
             [[site.route]]\npath = \"/*\"\nfiles = \"{dir}\"\n"
        );
        let output = check(&[&typed("sources.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        let warning = format!("the source of {name} is sent: no route of this site runs it");
        assert!(error.contains(&warning), "{name}: {error}");
    }
}

#[test]
fn a_strip_prefix_that_no_path_begins_with_is_a_warning() {
    for (path, prefix, is_warned) in [
        ("/d/*", "/shop", true),
        ("/shop/*", "/", true),
        ("/shop/*", "/shop", false),
        ("/shop/a", "/shop/", false),
        ("/*", "/shop", false),
    ] {
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\npath = \"{path}\"\n\
             proxy = {{ to = \"http://127.0.0.1:1\", strip_prefix = \"{prefix}\" }}\n"
        );
        let output = check(&[&typed("prefix.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        let error = but_root(output.stderr);
        assert_eq!(error.contains("strip_prefix"), is_warned, "{path} {prefix}: {error}");
    }
    let fastcgi = |keys: &str| {
        let said = warnings(
            "prefix.toml",
            &format!(
                "listen = 8080\n[[site.route]]\npath = \"/shop/*\"\n\
                 fastcgi = {{ to = \"127.0.0.1:1\", {keys} }}\n"
            ),
        );
        said.contains("no path of this route begins with the")
    };
    assert!(fastcgi("root = \"/srv\", strip_prefix = \"/store\""));
    assert!(!fastcgi("root = \"/srv\", strip_prefix = \"/shop\""));
    assert!(fastcgi("mount = \"/store\"") && !fastcgi("mount = \"\""));
}

#[test]
fn a_way_around_by_a_mount_point_is_a_warning() {
    let routes = |gate: &str, open: &str| {
        format!(
            "listen = 8080\n\
             [[site.route]]\npath = \"/shop/admin/*\"\ndeny = \"all\"\nscgi = {{ to = \"127.0.0.1:1\"{gate} }}\n\
             [[site.route]]\npath = \"/*\"\nscgi = {{ to = \"127.0.0.1:1\"{open} }}\n"
        )
    };
    let said = |gate: &str, open: &str| warnings("mount.toml", &routes(gate, open));
    let mounted = ", mount = \"/shop\"";
    // For the application, `/admin/x` is the same page.
    assert!(said(mounted, "").contains("/admin/x gets past the rule"), "{}", said(mounted, ""));
    assert!(!said("", "").contains("/admin/x gets past"), "{}", said("", ""));
}

#[test]
fn a_group_of_servers_that_no_route_names_is_a_warning() {
    let site = "[[site]]\nlisten = 8080\n[[site.route]]\n";
    let group = "[upstream.shop]\nto = \"http://127.0.0.1:3000\"\n";
    let unused = typed("unused.toml", &format!("{site}respond = \"a\"\n{group}"));
    let output = check(&[&unused]);
    assert_eq!(output.status.code(), Some(0));
    let warning = but_root(output.stderr);
    for text in [":5:1]", "no route passes requests to [upstream.shop]", "proxy = \"@shop\""] {
        assert!(warning.contains(text), "no {text} in\n{warning}");
    }
    let used = typed("used.toml", &format!("{site}proxy = \"@shop\"\n{group}"));
    assert_eq!(but_root(check(&[&used]).stderr), "");
}

#[test]
fn an_odd_line_among_users_is_a_warning_and_refused_where_nobody_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let text = format!(
        "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"in\"\n\
         basic_auth = {{ file = \"{}\" }}\n",
        file.display()
    );
    let path = typed("users.toml", &text);
    let user = "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";
    for (users, code, shown) in [
        (format!("{user}old:crypted\n"), 0, "its user cannot log in"),
        ("old:crypted\n".to_owned(), 2, "line 1"),
    ] {
        std::fs::write(&file, users).unwrap();
        let output = check(&[&path]);
        let error = String::from_utf8(output.stderr).unwrap().replace(['\n', '|'], " ");
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(shown), "{error}");
    }
}

#[test]
fn unusable_keys_and_realms_without_a_user_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let site = "[[site]]\nlisten = 8080\n[[site.route]]\nrespond = \"in\"\n";
    let digest = format!("digest_auth = {{ file = \"{}\", realm = \"staff\" }}\n", file.display());
    let token = format!("jwt = {{ key = \"{}\" }}\n", file.display());
    let hash = "0".repeat(32);
    for (rule, content, code, shown) in [
        (&digest, format!("ann:staff:{hash}\n"), 0, ""),
        (&digest, format!("ann:staff:{hash}\nold\n"), 0, "its user cannot log in"),
        (&digest, format!("ann:other:{hash}\n"), 0, "no user has the realm staff"),
        (&digest, "ann:staff\n".to_owned(), 2, "write the line anew: htdigest FILE REALM USER"),
        (&token, "-----BEGIN PRIVATE KEY-----\n".to_owned(), 2, "has a private key"),
        (&token, "key\n".to_owned(), 2, "is not a public key in PEM form"),
    ] {
        std::fs::write(&file, content).unwrap();
        let path = typed("gate.toml", &format!("{site}{rule}"));
        let output = check(&[&path]);
        let error = String::from_utf8(output.stderr).unwrap().replace(['\n', '|'], " ");
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(shown), "{error}");
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
fn a_rule_by_address_that_no_client_of_a_unix_socket_fulfils_is_warned_about() {
    let unix = "listen = \"unix:/tmp/no-such.sock\"\n";
    let route = "[[site.route]]\nrespond = \"a\"\n";
    let refuses = "this rule refuses all of them";
    for (site, rule, is_warned) in [
        (unix, "allow = [\"10.0.0.0/8\"]", true),
        (unix, "deny = [\"10.0.0.0/8\"]", true),
        (unix, "deny = [\"all\"]", false),
        (unix, "allow = [\"10.0.0.0/8\", \"unix\"]", false),
        ("listen = 8080\n", "allow = [\"10.0.0.0/8\"]", false),
        ("listen = \"unix:/tmp/x\"\ntrusted_proxies = \"unix\"\n", "deny = \"10.0.0.1\"", false),
        ("listen = \"unix:/tmp/x\"\nproxy_protocol = true\n", "deny = \"10.0.0.1\"", false),
        ("listen = \"ajp://unix:/tmp/x\"\n", "deny = \"10.0.0.1\"", false),
    ] {
        let said = warnings("unix.toml", &format!("{site}{route}{rule}\n"));
        assert_eq!(said.contains(refuses), is_warned, "{site}{rule}: {said}");
    }
    let old = format!("{unix}trusted_proxies = \"127.0.0.0/8\"\n{route}");
    assert!(warnings("unix.toml", &old).contains("write \"unix\" for them"));
}

#[test]
fn stored_replies_that_know_the_user_are_warned_about() {
    let route = "listen = 8080\n[[site.route]]\nproxy = 'http://127.0.0.1:3000'\n";
    let user = "request_headers = { X-User = '{user}' }\n";
    for (keys, is_warned) in
        [("cache = true\n", true), ("cache = { key = '{uri}{user}' }\n", false), ("", false)]
    {
        let said = warnings("cache.toml", &format!("{route}{user}{keys}"));
        let warning = "`X-User` names the user to the application";
        assert_eq!(said.contains(warning), is_warned, "{keys}: {said}");
    }
}

#[test]
fn a_refusal_of_one_family_of_addresses_is_warned_about() {
    for (rule, is_warned) in [
        ("deny = [\"0.0.0.0/0\"]", true),
        ("deny = [\"::/0\", \"10.0.0.1\"]", true),
        ("deny = [\"0.0.0.0/0\"]\nallow = [\"2001:db8::/32\"]", true),
        ("deny = [\"0.0.0.0/0\"]\nallow = [\"unix\"]", false),
        ("deny = [\"0.0.0.0/0\", \"::/0\"]", false),
        ("deny = [\"all\"]", false),
        ("deny = [\"10.0.0.0/8\"]", false),
    ] {
        let site = format!("listen = 8080\n[[site.route]]\nrespond = \"a\"\n{rule}\n");
        let said = warnings("family.toml", &site);
        assert_eq!(said.contains("write deny = [\"all\"]"), is_warned, "{rule}: {said}");
    }
}

#[test]
fn a_gate_that_other_methods_walk_around_is_warned_about() {
    let gated = "[[site.route]]\npath = \"/a/*\"\nmethods = [\"GET\"]\nrespond = \"a\"\n\
                 deny = [\"10.0.0.1\"]\n";
    let respond = "[[site.route]]\nrespond = \"b\"\n";
    for (below, is_warned) in [
        (respond.to_owned(), true),
        (format!("{respond}path = \"/a/b\"\n"), true),
        (format!("{respond}methods = [\"POST\"]\n"), true),
        (format!("{respond}methods = [\"HEAD\"]\n"), false),
        (format!("{respond}deny = [\"10.0.0.1\"]\n"), false),
        (format!("{respond}path = \"/b/*\"\n"), false),
        (
            format!("[[site.route]]\npath = \"/a/*\"\nrespond = {{ status = 403 }}\n{respond}"),
            false,
        ),
    ] {
        let said = warnings("methods.toml", &format!("listen = 8080\n{gated}{below}"));
        assert_eq!(
            said.contains("the gate of this route holds for GET"),
            is_warned,
            "{below}: {said}"
        );
    }
}

#[test]
fn an_owner_of_a_socket_that_the_machine_does_not_know_is_an_error() {
    let site = "[[site]]\nlisten = \"unix:/tmp/x\"\nsocket_group = \"no-such-group\"\n\
                [[site.route]]\nrespond = \"a\"\n";
    let output = check(&[&typed("owner.toml", site)]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("there is no group no-such-group on this machine"), "{error}");
}

#[test]
fn a_way_around_a_rule_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display().to_string();
    for dir in ["htdocs/admin", "other"] {
        std::fs::create_dir_all(folder.path().join(dir)).unwrap();
    }
    let deny = "deny = [\"0.0.0.0/0\", \"::/0\"]";
    let php = |path: &str| {
        format!(
            "[[site.route]]\n{path}suffix = \".php\"\nfastcgi = {{ to = \"unix:php.sock\", root = \"ROOT/htdocs\" }}\n"
        )
    };
    let files = |path: &str, root: &str| {
        format!("[[site.route]]\npath = \"{path}\"\nfiles = \"ROOT/{root}\"\n")
    };
    let gate = |paths: &str, action: &str| {
        format!("[[site.route]]\npaths = [{paths}]\n{deny}\n{action}\n")
    };
    let both = "\"/admin\", \"/admin/*\"";
    let proxy = |keys: &str| format!("proxy = {{ to = \"http://127.0.0.1:1\"{keys} }}");
    let respond = "respond = \"no\"";
    for (routes, path) in [
        // Another route serves the same directory, a part of it, or its parent.
        (
            gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\"") + &files("/all/*", "htdocs"),
            "/all/admin/x",
        ),
        (
            gate("\"/*\"", "files = \"ROOT/htdocs\"").replace("/*", "/a/*")
                + &files("/sub/*", "htdocs/admin"),
            "/sub/x",
        ),
        (gate(both, respond) + &files("/all/*", "htdocs") + &files("/*", "htdocs"), "/all/admin"),
        (
            gate("\"/admin/secret.txt\"", respond)
                + &files("/all/*", "htdocs")
                + &files("/*", "htdocs"),
            "/all/admin/secret.txt",
        ),
        // A route above this one takes a part first.
        (php("") + &gate(both, "files = \"ROOT/htdocs\""), "/x.php"),
        (php("") + &gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\""), "/admin/x.php"),
        (
            php("path = \"/admin/open/*\"\n")
                + &gate("\"/admin/*\"", "files = \"ROOT/htdocs/admin\""),
            "",
        ),
        // The same server with another prefix.
        (
            gate(both, respond)
                + &format!(
                    "[[site.route]]\npath = \"/api/*\"\n{}\n",
                    proxy(", strip_prefix = \"/api\"")
                )
                + &format!("[[site.route]]\n{}\n", proxy("")),
            "/api/admin",
        ),
        // The path without its slash, or with one.
        (gate("\"/admin/*\"", respond) + &format!("[[site.route]]\n{}\n", proxy("")), "/admin"),
        (gate("\"/admin\"", respond) + &format!("[[site.route]]\n{}\n", proxy("")), "/admin/"),
        (gate("\"/admin/*\"", respond) + &files("/*", "htdocs"), ""),
        (gate(both, respond) + &format!("[[site.route]]\n{}\n", proxy("")), ""),
        (gate(both, respond) + &files("/*", "htdocs") + "", ""),
        (gate("\"/admin/*\"", "files = \"ROOT/other\"") + &files("/all/*", "htdocs"), ""),
    ] {
        let routes = routes.replace("ROOT", &root);
        let output = check(&[&typed("around.toml", &format!("[[site]]\nlisten = 8080\n{routes}"))]);
        let error = but_root(output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        let expected = format!("WARNING: {path} gets past the rule");
        let is_right =
            if path.is_empty() { !error.contains("gets past") } else { error.contains(&expected) };
        assert!(is_right, "{path}\n{routes}\n{error}");
    }
}

#[test]
fn a_way_around_by_strip_prefix_names_the_path_at_the_backend() {
    let proxy = |path: &str, keys: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\n\
             proxy = {{ to = \"http://127.0.0.1:1\"{keys} }}\n"
        )
    };
    let gate = "[[site.route]]\npaths = [\"/a\", \"/a/*\"]\nrespond = { status = 403 }\n";
    let back = proxy("/back/*", ", strip_prefix = \"/back\"") + &proxy("/*", "");
    let said = warnings("strip.toml", &format!("listen = 8080\n{gate}{back}"));
    let said = said.replace("| ", "");
    assert!(said.contains("(/a and this path both become /a at the backend)"), "{said}");
    let gate = gate.replace("/a", "/back/a");
    let said = warnings("strip.toml", &format!("listen = 8080\n{gate}{back}"));
    let said = said.replace("| ", "");
    assert!(said.contains("(/back/a and this path both become /a at the backend)"), "{said}");
}

#[test]
fn a_rule_for_a_path_with_a_final_slash_is_warned_about() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("p")).unwrap();
    let files = format!("[[site.route]]\npath = \"/*\"\nfiles = \"{}\"\n", folder.path().display());
    let proxy = "[[site.route]]\nproxy = \"http://127.0.0.1:1\"\n".to_owned();
    let none = String::new();
    let deny = "deny = [\"all\"]\n";
    let own = format!("{deny}files = \"{}\"\n", folder.path().display());
    let respond = "respond = { status = 403 }\n";
    for (path, rule, below, is_warned) in [
        ("\"/p/\"", &*own, &files, true),
        ("\"/p/\"", &own, &proxy, true),
        ("\"/p/\"", respond, &files, true),
        ("\"/p/\"", respond, &files.replace("/*", "/p/*"), true),
        ("\"/p/\"", respond, &none, false),
        ("[\"/p\", \"/p/\", \"/p/*\"]", respond, &files, false),
        ("\"/\"", respond, &files, false),
        ("\"/p/\"", respond, &format!("{files}{deny}"), false),
        // Redirecting one page is usual. If there are files below it, the redirection is doubtful.
        ("\"/p/\"", "redirect = \"/new/\"\n", &files, true),
        ("\"/q/\"", "redirect = \"/new/\"\n", &files, false),
        ("\"/p/\"", "redirect = \"/p/index.html\"\n", &files, false),
        ("\"/p/\"", "redirect = \"/new/\"\n", &files.replace("/*", "/p/*"), false),
        ("\"/p/\"", "redirect = \"/new/\"\n", &proxy, false),
        ("\"/p/\"", "respond = \"hello\"\n", &files, true),
    ] {
        let site = format!("listen = 8080\n[[site.route]]\npaths = {path}\n{rule}{below}");
        let site = site.replace("paths = \"", "path = \"");
        let said = warnings("slash.toml", &site).replace("| ", "");
        let is_said = said.contains("\"/p/\" is this one path only")
            && said.contains("write paths = [\"/p\", \"/p/*\"]");
        assert_eq!(is_said, is_warned, "{path} {rule}{below}\n{said}");
    }
}

#[test]
fn a_script_that_a_route_of_files_keeps_from_being_run_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("up")).unwrap();
    std::fs::write(folder.path().join("up/x.php"), "<?php").unwrap();
    let root = folder.path().display();
    let upper = "suffix = \".PHP\"\n";
    let any_case = "suffix = \".PHP\"\nsuffix_ignore_case = true\n";
    for (ends, keys, is_warned) in [
        ("", "", true),
        ("", ", scripts = \"below\"", false),
        ("", ", scripts = \"refuse\"", false),
        (upper, "", false),
        (any_case, "", true),
        ("paths = [\"/up/robots.txt\", \"/up/y.php\"]\n", "", false),
        ("paths = [\"/up/robots.txt\", \"/up/x.php\"]\n", "", true),
        ("paths = [\"/up/\"]\n", "", true),
    ] {
        let (path, ends) =
            if ends.starts_with("paths") { (ends, "") } else { ("path = \"/up/*\"\n", ends) };
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\n{path}{ends}\
             files = {{ root = \"{root}/up\"{keys} }}\n[[site.route]]\nsuffix = \".php\"\n\
             fastcgi = {{ to = \"unix:php.sock\", root = \"{root}\" }}\n"
        );
        let output = check(&[&typed("kept.toml", &text)]);
        let error = but_root(output.stderr);
        assert_eq!(output.status.code(), Some(0), "{error}");
        let line = 6 + ends.lines().count();
        let warning =
            format!("x.php is not run: this route takes it first, and the route on line {line}");
        assert_eq!(error.contains(&warning), is_warned, "{ends}{keys}\n{error}");
    }
}

/// A site whose rules are tested.
fn with_tests(tests: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\nhosts = \"a.example\"\n\
         expect = [{tests}]\n\
         [[site.route]]\npath = \"/old/*\"\nredirect = {{ to = \"/new/{{rest}}\", status = 301 }}\n\
         [[site.route]]\npath = \"/secret/*\"\nallow = \"192.0.2.1\"\nrespond = \"s\"\n\
         [[site.route]]\nname = \"api\"\npath = \"/api/*\"\nproxy = \"http://127.0.0.1:9\"\n\
         [[site.route]]\npath = \"/x/*\"\nrespond = {{ status = 410, body = \"x\" }}\n"
    )
}

#[test]
fn tests_beside_the_rules_are_run_without_starting_anything() {
    let tests = "\"/old/a -> 301 /new/a\", \"POST /old/a -> 301\", \"/secret/x -> 403\", \
                 \"/api/x -> proxy\", \"/api/x -> route api\", \"/api/x -> 200\", \"/x/ -> 410\", \
                 \"/none -> 404\", \"http://a.example/x/ -> respond\"";
    let file = typed("tests-hold.toml", &with_tests(tests));
    let output = check(&[&file]);
    assert_eq!(but_root(output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
    let line = String::from_utf8(output.stdout).unwrap();
    let summary = "ok, 1 site, 4 routes, 0 apps; 8 tests hold, 1 needs --start";
    assert_eq!(line, format!("{file}: {summary}\n"));
}

#[test]
fn a_test_that_fails_is_shown_at_its_line_with_the_route_that_answered() {
    for (test, words) in [
        (
            "/old/a -> 302",
            "GET /old/a: the answer is 301 /new/a: the route on line 7 answers with `redirect`",
        ),
        ("/old/a -> 301 /other", "the answer is 301 /new/a"),
        ("/secret/x -> 200", "GET /secret/x: the answer is 403: the route on line 10"),
        ("/secret/x -> respond", "the answer is 403"),
        ("/api/x -> files", "a route with `proxy` answers: the route on line 14, \"api\""),
        ("POST /x/ -> route api", "POST /x/: another route answers"),
        ("http://b.example/none -> proxy", "GET b.example/none: the answer is 404"),
    ] {
        let file = typed("tests-fail.toml", &with_tests(&format!("\n\"/x/ -> 410\",\n\"{test}\"")));
        let output = check(&[&file]);
        assert_eq!(output.status.code(), Some(2), "{test}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(words), "{test}: {error}");
        assert!(error.contains("tests-fail.toml:6:1"), "{test}: {error}");
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(line.ends_with("tests-fail.toml: 1 test holds, 1 fails\n"), "{line}");
    }
}

#[test]
fn tests_are_run_against_running_origins_on_request() {
    let folder = forebay_testkit::folder::Folder::new();
    folder.script("cgi/status.sh", "#!/bin/sh\nprintf 'Status: 418\\n\\n'\n");
    folder.script("cgi/to.sh", "#!/bin/sh\nprintf 'Location: https://e.example/x\\n\\n'\n");
    folder.write("htdocs/a.txt", "a");
    let text = |last: &str| {
        format!(
            "[server]\nadmin = \"127.0.0.1:1\"\n[log]\naccess = \"access.log\"\n\
             [[site]]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:2\"]\nhosts = \"a.example\"\n\
             expect = [\"/status.sh -> 418\", \"/to.sh -> 302 https://e.example/x\", \"/a.txt -> 200\",\n\
             \"/status.sh -> cgi\", \"{last}\"]\n\
             [[site.route]]\nsuffix = \".sh\"\ncgi = \"cgi\"\n[[site.route]]\nfiles = \"htdocs\"\n"
        )
    };
    folder.write("site.toml", text("POST /status.sh -> 418"));
    let file = folder.path().join("site.toml").display().to_string();
    // The port of `admin` is occupied, but the tests do not need it.
    let output = check(&["--start", &file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(line.ends_with("; 5 tests hold\n"), "{line}");
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap_or_default();
    assert_eq!(log, "", "the tests are not in the log");
    folder.write("site.toml", text("/status.sh -> 200"));
    let output = check(&["--start", &file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("the answer is 418: the route on line 10 answers with `cgi`"),
        "{error}"
    );
    assert!(error.contains("site.toml:9:"), "{error}");
}

#[test]
fn twenty_two_sites_fit_in_110_lines() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites");
    let text = std::fs::read_to_string(example.join("forebay.toml")).unwrap();
    assert!(text.lines().count() <= 110, "{}", text.lines().count());
    assert_eq!(text.matches("[[site]]").count(), 22);
    let folder = forebay_testkit::folder::Folder::new();
    folder.write("forebay.toml", &text);
    folder.write("htpasswd", "");
    let map = std::fs::read_to_string(example.join("old/company.map")).unwrap();
    folder.write("old/company.map", map);
    for name in [
        "company/index.html",
        "blog/index.php",
        "blog/logo.txt",
        "wiki/index.php",
        "shop/index.php",
        "cloud/index.php",
        "cloud/config/config.php",
        "docs/index.html",
        "spa/index.html",
        "django-static/a.css",
        "rails-public/a.css",
    ] {
        folder.write(name, "x");
    }
    let file = folder.path().join("forebay.toml").display().to_string();
    let output = check(&[&file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{error}");
    let line = String::from_utf8(output.stdout).unwrap();
    // `www` adds a site.
    assert!(line.contains("ok, 23 sites") && line.contains("tests hold"), "{line}");
    assert!(!line.contains("fail") && !line.contains("--start"), "{line}");
}

#[test]
fn an_htaccess_file_that_no_rule_replaces_is_a_warning() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("htaccess");
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("private/.htaccess", "<Files *>\n  Require all denied\n</Files>\n");
    write("plain/.htaccess", "RewriteEngine On\n");
    let warning = |routes: &str| {
        let text = format!(
            "[[site]]\nlisten = 8080\n{routes}[[site.route]]\nfiles = \"{}\"\n",
            dir.display()
        );
        let output = check(&[&typed("htaccess.toml", &text)]);
        assert_eq!(output.status.code(), Some(0));
        but_root(output.stderr)
    };
    let text = warning("");
    assert!(text.contains("private/.htaccess restricts access for Apache"), "{text}");
    assert!(text.contains("1 more such file"), "{text}");
    let closed = "[[site.route]]\npath = \"/private/*\"\nrespond = { status = 403 }\n";
    let text = warning(closed);
    assert!(text.contains("plain/.htaccess has settings of Apache"), "{text}");
    let both = closed.replace("path = \"/private/*\"", "paths = [\"/private/*\", \"/plain/*\"]");
    assert_eq!(warning(&both), "");
    // A condition may leave the directory open.
    let some = closed.replace("respond", "when = { method = \"POST\" }\nrespond");
    assert!(warning(&some).contains("restricts access"));
}

#[test]
fn rules_that_admit_nobody_and_texts_with_placeholders_are_warnings() {
    let of_route = |keys: &str| {
        let site = format!("[[site]]\nlisten = 8080\n[[site.route]]\n{keys}\n");
        let output = check(&[&typed("warned.toml", &site)]);
        let error = but_root(output.stderr).replace("| ", "");
        assert_eq!(output.status.code(), Some(0), "{error}");
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let nobody = "this refuses all clients, also those in `allow`";
    let sent = "this text is sent as it is, with the names in braces";
    for (keys, warning, is_warned) in [
        ("allow = \"10.0.0.0/8\"\ndeny = \"all\"\nrespond = \"x\"", nobody, true),
        ("allow = \"10.0.0.0/8\"\ndeny = \"10.1.0.0/16\"\nrespond = \"x\"", nobody, false),
        ("deny = \"all\"\nrespond = \"x\"", nobody, false),
        ("respond = \"hi {host}\"", sent, true),
        ("respond = '{\"a\": {\"b\": 1}} {other} {status}'", sent, false),
    ] {
        let said = of_route(keys);
        assert_eq!(said.contains(warning), is_warned, "{keys}: {said}");
    }
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

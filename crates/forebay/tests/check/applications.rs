//! Applications: `check` looks for their programs and users as `serve` does.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::check;

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
    assert_points(&of("\"./no-such\"", ""), "8:8", &["no program FOLDER/no-such"]);
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

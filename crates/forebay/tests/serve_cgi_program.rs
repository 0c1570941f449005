//! `cgi` routes that are one program, with an own user and own limits.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::Process;
use support::{Forebay, site, write_configuration};

const SHOW: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s|%s|%s|%s' \
    \"$SCRIPT_NAME\" \"$PATH_INFO\" \"$DOCUMENT_ROOT\" \"$REMOTE_USER\"; pwd >&2\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.script("tools/show", SHOW);
    folder
}

fn show(route: &str, env: &str) -> Forebay {
    let route = format!(
        "[[site.route]]\n{route}\ncgi = {{ program = \"tools/show\", env = {{ {env} }} }}\n"
    );
    site(folder(), &route)
}

#[test]
fn one_program_answers_for_all_paths_of_its_route() {
    let env = "DOCUMENT_ROOT = \"/srv/www\", REMOTE_USER = \"joe\"";
    let forebay = show("path = [\"/tool\", \"/tool/*\"]", env);
    for (target, expected) in [
        ("/tool", "/tool||/srv/www|joe"),
        ("/tool/", "/tool|/|/srv/www|joe"),
        ("/tool/a.b/c%20d?x", "/tool|/a.b/c d|/srv/www|joe"),
        ("/tool/show", "/tool|/show|/srv/www|joe"),
    ] {
        assert_eq!(forebay.get(target).text(), expected, "{target}");
    }
    forebay.stop();
    let forebay = show("path = \"/*\"", "");
    assert!(forebay.get("/a/b").text().starts_with("|/a/b|"), "{}", forebay.get("/a/b").text());
    forebay.stop();
}

#[test]
fn one_program_finds_what_it_finds_behind_apaches_script_alias() {
    let folder = folder();
    let program = folder.path().join("tools/show").display().to_string();
    let conf = format!(
        "ScriptAlias /tool {program}\n<Directory />\nRequire all granted\n</Directory>\n\
         DocumentRoot {}\nSetEnv REMOTE_USER joe\n",
        folder.path().display()
    );
    let Some(apache) = peer::apache(&["alias", "cgi", "env"], &conf) else { return };
    let env = format!("REMOTE_USER = \"joe\", DOCUMENT_ROOT = \"{}\"", folder.path().display());
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = [\"/tool\", \"/tool/*\"]\n\
             cgi = {{ program = \"tools/show\", env = {{ {env} }} }}\n"
        ),
    );
    for target in ["/tool", "/tool/", "/tool/a/b%20c?x=y"] {
        let its = forebay_testkit::http::Client::connect(apache.address()).get(target);
        assert_eq!(forebay.get(target).text(), its.text(), "{target}");
    }
    forebay.stop();
}

#[test]
fn a_repository_is_cloned_through_gits_own_program() {
    let backend = "/usr/lib/git-core/git-http-backend";
    let git = |arguments: &[&str], dir: &std::path::Path| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=x", "-c", "user.email=x@x"]).args(arguments);
        command.current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", dir);
        command.env("GIT_TERMINAL_PROMPT", "0");
        Process::start(command).wait()
    };
    if !peer::has(&["git"]) {
        return;
    }
    let folder = Folder::new();
    let path = folder.path().to_owned();
    folder.write("work/file", "kept");
    for arguments in [
        &["init", "-q", "work"][..],
        &["-C", "work", "add", "file"],
        &["-C", "work", "commit", "-qm", "one"],
        &["clone", "-q", "--bare", "work", "repos/x.git"],
    ] {
        assert!(git(arguments, &path).status.success(), "{arguments:?}");
    }
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = \"/git/*\"\ncgi = {{ program = \"{backend}\", env = {{ \
             GIT_PROJECT_ROOT = \"{{tmp}}/repos\", GIT_HTTP_EXPORT_ALL = \"1\", \
             GIT_CONFIG_COUNT = \"1\", GIT_CONFIG_KEY_0 = \"safe.directory\", \
             GIT_CONFIG_VALUE_0 = \"*\" }} }}\n"
        ),
    );
    let url = format!("http://{}/git/x.git", forebay.address);
    let cloned = git(&["clone", "-q", &url, "copy"], &path);
    assert!(cloned.status.success(), "{} {}", cloned.output, forebay.output());
    assert_eq!(std::fs::read_to_string(path.join("copy/file")).unwrap(), "kept");
    forebay.stop();
}

#[test]
fn scripts_of_a_route_have_its_user_and_limits() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    folder.script(
        "cgi/who",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nid -un; id -g; ulimit -n\n\
         echo told > /dev/stderr\necho said > /dev/stdout\n",
    );
    let mut forebay = site(
        folder,
        "[[site.route]]\npath = \"/cgi-bin/*\"\n\
         cgi = { dir = \"cgi\", user = \"nobody\", group = \"daemon\", limits = { open_files = 99 } }\n",
    );
    assert_eq!(forebay.get("/cgi-bin/who").text(), "nobody\n1\n99\nsaid\n", "{}", forebay.output());
    forebay.wait_for_output("who: told");
    forebay.stop();
}

#[test]
fn a_program_or_user_that_is_not_there_is_a_mistake_in_the_file() {
    let folder = folder();
    folder.write("tools/plain", "x");
    let check = |cgi: &str, server: &str| {
        let text = format!(
            "{server}[[site]]\nlisten = 8080\n[[site.route]]\npath = \"/*\"\ncgi = {cgi}\n"
        );
        let file = write_configuration(&folder, &text);
        let output = Command::new(support::program()).arg("check").arg(file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (cgi, server, words) in [
        ("{ program = \"tools/plain\" }", "", "chmod +x"),
        ("{ program = \"tools/none\" }", "", "no such file"),
        ("{ program = \"tools/show\", dir = \"tools\" }", "", "both `dir` and `program`"),
        ("{ dir = \"tools\", user = \"no-such-user\" }", "", "there is no user no-such-user"),
        ("{ dir = \"tools\", user = \"root\" }", "[server]\nuser = \"nobody\"\n", "gives root"),
    ] {
        let (code, said) = check(cgi, server);
        assert_eq!(code, Some(2), "{cgi}: {said}");
        assert!(said.contains(words), "{cgi}: {said}");
    }
}

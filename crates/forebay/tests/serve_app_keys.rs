//! Keys of applications and of their routes: PATH_INFO after a suffix, variables that replace those
//! of requests, libraries, `strip_prefix` of commands, settings and version of PHP, and log
//! messages about scripts that may not run.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::has_php_fpm;
use support::{Forebay, serve, write_configuration};

const HEAD: &str = "Content-Type: text/plain\\n\\n";

fn user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user = \"www-data\"" } else { "" }
}

fn site(folder: Folder, routes: &str) -> Forebay {
    serve(folder, &format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{routes}"))
}

fn show(line: &str) -> String {
    if line.contains("perl") {
        format!(
            "{line}\nprint \"{HEAD}\", join '|', map {{ $ENV{{$_}} // '' }} \
             qw(SCRIPT_NAME PATH_INFO DOCUMENT_ROOT REMOTE_USER OWN);\n"
        )
    } else {
        format!(
            "{line}\nimport os\nprint(\"{HEAD}\" + '|'.join(os.environ.get(name, '') for name in \
             'SCRIPT_NAME PATH_INFO DOCUMENT_ROOT REMOTE_USER OWN'.split()), end='')\n"
        )
    }
}

#[test]
fn path_info_follows_a_script_behind_a_suffix_route() {
    for (route, app) in [
        ("app = \"x\"", "[app.x]\nkind = \"perl-cgi\"\ndir = \"www\"\nworkers = 1\n"),
        ("app = \"x\"", "[app.x]\nkind = \"cgi-bin\"\ndir = \"www\"\nworkers = 1\n"),
        ("cgi = \"www\"", ""),
    ] {
        let folder = Folder::new();
        folder.script("www/index.cgi", show("#!/usr/bin/perl"));
        folder.script("www/sub/x.pl", show("#!/usr/bin/perl"));
        folder.script("www/docs.cgi/other.txt", "#!/bin/sh\necho never run\n");
        folder.script("www/other.txt", "#!/bin/sh\necho never run\n");
        let forebay = site(
            folder,
            &format!(
                "[[site.route]]\nsuffix = [\".cgi\", \".pl\"]\n{route}\n\
                 [[site.route]]\npath = \"/*\"\nrespond = \"below\"\n{app}"
            ),
        );
        let text = |target: &str| forebay.get(target).text().to_owned();
        for (target, expected) in [
            ("/index.cgi/a/b", "/index.cgi|/a/b|"),
            ("/index.cgi/", "/index.cgi|/|"),
            ("/index.cgi", "/index.cgi||"),
            ("/sub/x.pl/index.cgi", "/sub/x.pl|/index.cgi|"),
            ("/sub/x.pl/a%20b?c", "/sub/x.pl|/a b|"),
        ] {
            assert!(text(target).starts_with(expected), "{route} {target}: {}", text(target));
        }
        // The route does not match a directory with such a name, or a name that only begins like
        // this.
        for target in ["/docs.cgi/other.txt", "/none.cgi/a", "/index.cgis/a", "/x"] {
            assert_eq!(text(target), "below", "{route} {target}");
        }
        // A suffix in PATH_INFO does not make another file a script.
        assert_eq!(forebay.get("/other.txt/x.cgi").status, 404, "{route}");
        forebay.stop();
    }
}

#[test]
fn path_info_follows_php_behind_a_suffix_route() {
    if !has_php_fpm() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/x.php", "<?php echo $_SERVER['SCRIPT_NAME'], '|', $_SERVER['PATH_INFO'];");
    folder.write("www/evil.jpg", "<?php echo 'ran';");
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\nsuffix = \".php\"\napp = \"x\"\n\
             [app.x]\nkind = \"php\"\nroot = \"www\"\n{}\n",
            user()
        ),
    );
    assert_eq!(forebay.get("/x.php/a/b").text(), "/x.php|/a/b");
    assert_eq!(forebay.get("/x.php/a.jpg").text(), "/x.php|/a.jpg");
    assert_eq!(forebay.get("/evil.jpg/x.php").status, 404);
    forebay.stop();
}

const ENV: &str = "env = { DOCUMENT_ROOT = \"/srv/www\", REMOTE_USER = \"joe\", OWN = \"word\" }\n";

#[test]
fn env_may_set_what_requests_say() {
    let folder = Folder::new();
    folder.script("cgi/x.pl", show("#!/usr/bin/perl"));
    folder.script("cgi/x.py", show("#!/usr/bin/env python3"));
    let psgi = "sub { my $env = shift; [200, ['Content-Type', 'text/plain'],\
        [join '|', map { $env->{$_} // '' } qw(SCRIPT_NAME PATH_INFO DOCUMENT_ROOT REMOTE_USER)]] }";
    folder.write("app.psgi", psgi);
    let (mut routes, mut tables) = (String::new(), String::new());
    for (name, kind, keys) in [
        ("registry", "perl-cgi", "dir = \"cgi\"\nworkers = 1\n"),
        ("fork", "perl-cgi", "dir = \"cgi\"\nworkers = 1\nmode = \"fork\"\n"),
        ("python-cgi", "python-cgi", "dir = \"cgi\"\nworkers = 1\n"),
        ("cgi-bin", "cgi-bin", "dir = \"cgi\"\nworkers = 1\n"),
        ("psgi", "psgi", "file = \"app.psgi\"\nworkers = 1\n"),
    ] {
        routes += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        tables += &format!("[app.{name}]\nkind = \"{kind}\"\n{keys}{ENV}");
    }
    let forebay = site(folder, &format!("{routes}{tables}"));
    for (target, expected) in [
        ("/registry/x.pl/p", "/registry/x.pl|/p|/srv/www|joe|word"),
        ("/fork/x.pl/p", "/fork/x.pl|/p|/srv/www|joe|word"),
        ("/python-cgi/x.py/p", "/python-cgi/x.py|/p|/srv/www|joe|word"),
        ("/cgi-bin/x.pl/p", "/cgi-bin/x.pl|/p|/srv/www|joe|word"),
        ("/cgi-bin/x.py/p", "/cgi-bin/x.py|/p|/srv/www|joe|word"),
        ("/psgi/p", "/psgi|/p|/srv/www|joe"),
    ] {
        for _ in 0..3 {
            assert_eq!(forebay.get(target).text(), expected, "{target}: {}", forebay.output());
        }
    }
    forebay.stop();
}

#[test]
fn explain_shows_the_variables_that_an_application_adds() {
    let folder = Folder::new();
    folder.script("cgi/x.pl", show("#!/usr/bin/perl"));
    fs::create_dir(folder.path().join("lib")).unwrap();
    let text = format!(
        "[[site]]\nlisten = 8080\n[[site.route]]\npath = \"/*\"\napp = \"x\"\n\
         [app.x]\nkind = \"perl-cgi\"\ndir = \"cgi\"\nlib = [\"lib\"]\n{ENV}"
    );
    let file = write_configuration(&folder, &text);
    let mut command = Command::new(support::program());
    command.arg("explain").arg(&file).arg("/x.pl").env_remove("PERL5LIB");
    let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let (variables, environment) = said.split_once("environment\n").expect(&said);
    assert!(variables.contains("  DOCUMENT_ROOT=/srv/www\n"), "{said}");
    assert!(variables.contains("  REMOTE_USER=joe\n"), "{said}");
    assert_eq!(variables.matches("DOCUMENT_ROOT=").count(), 1, "{said}");
    assert!(environment.contains("  OWN=word\n"), "{said}");
    assert!(environment.contains(&format!("  PERL5LIB={}/lib\n", folder.path().display())));
}

#[test]
fn libraries_are_looked_for_where_the_key_says() {
    let folder = Folder::new();
    folder.write("lib/Own.pm", "package Own; sub word { 'perl word' } 1;\n");
    folder.write("lib/own_word.py", "WORD = 'python word'\n");
    let perl = format!("#!/usr/bin/perl\nuse Own;\nprint \"{HEAD}\", Own::word();\n");
    let python =
        format!("#!/usr/bin/env python3\nimport own_word\nprint(\"{HEAD}\" + own_word.WORD)\n");
    let shell = format!("#!/bin/sh\nprintf '{HEAD}'\nperl -MOwn -e 'print Own::word()'\n");
    folder.script("cgi/x.pl", perl);
    folder.script("cgi/x.py", python);
    folder.script("cgi/x.sh", shell);
    let forebay = site(
        folder,
        "[[site.route]]\npath = \"/*\"\napp = \"x\"\n\
         [app.x]\nkind = \"cgi-bin\"\ndir = \"cgi\"\nlib = \"lib\"\nworkers = 1\n",
    );
    for (target, expected) in
        [("/x.pl", "perl word"), ("/x.py", "python word\n"), ("/x.sh", "perl word")]
    {
        assert_eq!(forebay.get(target).text(), expected, "{}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn a_command_is_not_told_the_prefix() {
    let folder = Folder::new();
    folder.write("www/sub/index.html", "found");
    let run = "run = [\"python3\", \"-m\", \"http.server\", \"{port}\", \"--bind\", \"127.0.0.1\"]";
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = \"/shop/*\"\napp = \"x\"\n\
             [app.x]\nkind = \"command\"\n{run}\nspeaks = \"http\"\ndir = \"www\"\n\
             strip_prefix = \"/shop\"\n"
        ),
    );
    assert_eq!(forebay.get("/shop/sub/index.html").text(), "found", "{}", forebay.output());
    let reply = forebay.get("/shop/sub");
    assert_eq!(reply.status, 301);
    assert!(reply.header("Location").is_some_and(|to| to.ends_with("/shop/sub/")), "{reply:?}");
    forebay.stop();
}

#[test]
fn php_has_the_settings_and_the_version_that_it_was_given() {
    if !has_php_fpm() {
        return;
    }
    let php = |keys: &str| {
        let folder = Folder::new();
        folder.write(
            "www/x.php",
            "<?php echo ini_get('upload_max_filesize'), '|', ini_get('memory_limit'), '|', \
             ini_get('date.timezone'), '|', PHP_MAJOR_VERSION, '.', PHP_MINOR_VERSION;",
        );
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"x\"\n\
             [app.x]\nkind = \"php\"\nroot = \"www\"\n{}\n{keys}",
            user()
        );
        (folder, text)
    };
    let ini = "ini = { upload_max_filesize = \"64M\", memory_limit = \"77M\", \
        \"date.timezone\" = \"Europe/Berlin\" }\n";
    let (folder, text) = php(ini);
    let forebay = serve(folder, &text);
    let said = forebay.get("/x.php").text().to_owned();
    let version = said.strip_prefix("64M|77M|Europe/Berlin|").unwrap_or_else(|| panic!("{said}"));
    forebay.stop();
    let (folder, text) = php(&format!("version = \"{version}\"\n"));
    let forebay = serve(folder, &text);
    assert!(forebay.get("/x.php").text().ends_with(&format!("|{version}")));
    forebay.stop();
    let refused = |keys: &str| {
        let (folder, text) = php(keys);
        let file = write_configuration(&folder, &text);
        let output = Command::new(support::program()).arg("check").arg(file).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{keys}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused("version = \"5.2\"\n");
    assert!(
        said.contains("php-fpm5.2") && said.contains(&format!("installed: {version}")),
        "{said}"
    );
    assert!(refused("version = \"eight\"\n").contains("is not a version of PHP"));
    assert!(refused("ini = { \"a b\" = \"c\" }\n").contains("is not a PHP setting"));
    assert!(refused("ini = { a = \"b\\nc\" }\n").contains("control character"));
}

#[test]
fn the_run_bit_is_named_only_where_it_is_the_run_bit() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    let mode = |name: &str, mode| {
        let file = folder.script(&format!("cgi/{name}"), "#!/bin/sh\nprintf 'a: b\\n\\nx'\n");
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("none", 0o644);
    mode("owner", 0o700);
    let mut forebay =
        site(folder, "[[site.route]]\npath = \"/*\"\ncgi = { dir = \"cgi\", user = \"nobody\" }\n");
    assert_eq!(forebay.get("/none").status, 403);
    forebay.wait_for_output("it has no run bit; try chmod +x");
    assert!(forebay.get("/owner").status >= 400);
    forebay.wait_for_output("this user may not run it");
    assert_eq!(forebay.output().matches("run bit").count(), 1, "{}", forebay.output());
    forebay.stop();
}

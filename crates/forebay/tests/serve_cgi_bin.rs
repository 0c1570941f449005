//! `kind = "cgi-bin"`: scripts of several languages in one directory. The first line of each names
//! its interpreter, and a persistent worker runs it if possible. Also scripts of another language
//! with `perl-cgi` and `python-cgi`.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::{Forebay, command, serve, write_configuration};

const HEAD: &str = "Content-Type: text/plain\\n\\n";

fn perl(line: &str) -> String {
    format!("{line}\nour $n; $n++; print \"{HEAD}perl $$ $n $ENV{{SCRIPT_NAME}}\";\n")
}

fn python(line: &str) -> String {
    format!("{line}\nimport os\nprint(\"{HEAD}python\", os.getpid(), end='')\n")
}

fn shell() -> String {
    format!("#!/bin/sh\nprintf '{HEAD}sh %s %s' \"$$\" \"$OWN\"\n")
}

/// A usual mixture of scripts. No worker can run most of them.
fn mixture() -> Folder {
    let folder = Folder::new();
    folder.script("cgi/a.cgi", perl("#!/usr/bin/perl -w"));
    folder.script("cgi/env.cgi", perl("#!/usr/bin/env perl"));
    folder.script("cgi/space", perl("#! /usr/bin/perl -w"));
    folder.script("cgi/split.pl", perl("#!/usr/bin/env -S perl -w"));
    folder.script("cgi/crlf.pl", perl("#!/usr/bin/perl\r").replace('\n', "\r\n"));
    folder.script("cgi/b.cgi", python("#!/usr/bin/env python3"));
    folder.script("cgi/c.cgi", shell());
    let elf =
        "#include <stdio.h>\nint main(void) { puts(\"Content-Type: text/plain\\n\\nelf\"); }\n";
    folder.write("elf.c", elf);
    folder
}

fn serve_as(kind: &str, folder: Folder, keys: &str) -> Forebay {
    serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/cgi-bin/*\"\n\
             app = \"scripts\"\n[app.scripts]\nkind = \"{kind}\"\ndir = \"cgi\"\nworkers = 1\n{keys}"
        ),
    )
}

/// Returns the process that answered: the second word of the reply.
fn process(forebay: &Forebay, name: &str) -> String {
    let reply = forebay.get(&format!("/cgi-bin/{name}"));
    assert_eq!(reply.status, 200, "{name}: {} {}", reply.text(), forebay.output());
    reply.text().split(' ').nth(1).unwrap_or_else(|| panic!("{}", reply.text())).to_owned()
}

#[test]
fn each_script_of_a_cgi_bin_is_run_by_what_its_first_line_names() {
    let folder = mixture();
    let elf = folder.path().join("cgi/elf");
    let source = folder.path().join("elf.c");
    let has_elf = Command::new("cc").arg("-o").arg(&elf).arg(source).status();
    let has_elf = has_elf.is_ok_and(|status| status.success());
    let forebay = serve_as("cgi-bin", folder, "env = { OWN = \"word\" }\n");
    let text = |name: &str| forebay.get(&format!("/cgi-bin/{name}")).text().to_owned();
    for name in ["a.cgi", "env.cgi", "space", "split.pl", "crlf.pl"] {
        assert!(text(name).starts_with("perl "), "{name}: {} {}", text(name), forebay.output());
    }
    assert!(text("b.cgi").starts_with("python "), "{}", text("b.cgi"));
    assert!(text("c.cgi").starts_with("sh ") && text("c.cgi").ends_with(" word"));
    if has_elf {
        assert_eq!(text("elf"), "elf\n");
    }
    // Perl and Python keep one worker each; scripts of a shell do not.
    for warm in ["a.cgi", "b.cgi"] {
        assert_eq!(process(&forebay, warm), process(&forebay, warm), "{warm}");
    }
    assert_eq!(process(&forebay, "a.cgi"), process(&forebay, "env.cgi"));
    assert_ne!(process(&forebay, "c.cgi"), process(&forebay, "c.cgi"));
    forebay.stop();
}

#[test]
fn interleaved_scripts_of_all_languages_answer_as_under_apache() {
    let folder = mixture();
    for (name, words) in [("x.pl", "perl"), ("x.py", "python"), ("x.sh", "sh")] {
        let text = match words {
            "perl" => {
                "#!/usr/bin/perl\nread STDIN, $_, $ENV{CONTENT_LENGTH} || 0;\n\
                print \"Content-Type: text/plain\\n\\nperl $ENV{PATH_INFO} $_\";\n"
            }
            "python" => {
                "#!/usr/bin/python3\nimport os, sys\n\
                print('Content-Type: text/plain\\n\\npython', os.environ.get('PATH_INFO', ''),\
                sys.stdin.read(), end='')\n"
            }
            _ => {
                "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nsh %s ' \"$PATH_INFO\"\nexec cat\n"
            }
        };
        folder.script(&format!("cgi/{name}"), text);
    }
    let dir = folder.path().join("cgi").display().to_string();
    let conf = format!(
        "ScriptAlias /cgi-bin/ {dir}/\n<Directory {dir}>\nRequire all granted\n</Directory>\n"
    );
    let apache = peer::apache(&["alias", "cgi"], &conf);
    let Some(apache) = apache else { return };
    let forebay = serve_as("cgi-bin", folder, "");
    let ask = |address: std::net::SocketAddr, name: &str, at: usize| {
        let mut client = forebay_testkit::http::Client::connect(address);
        client.send(format!(
            "POST /cgi-bin/{name}/p{at} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n{at:03}"
        ));
        let reply = client.reply();
        (reply.status, reply.text().to_owned())
    };
    let its = std::net::SocketAddr::from(([127, 0, 0, 1], apache.port()));
    for at in 0..30 {
        for name in ["x.pl", "x.py", "x.sh"] {
            assert_eq!(ask(forebay.address, name, at), ask(its, name, at), "{name} {at}");
        }
    }
    forebay.stop();
}

#[test]
fn another_language_is_never_run_by_perl() {
    // This is valid Perl: a call of `print` with a string and a statement modifier.
    let both = "#!/usr/bin/env python3\nprint (\"Content-Type: text/plain\\n\\n\" + \"python\" )\n";
    let modes = ["registry", "registry-prefork", "perlrun", "fork", "cgi"];
    for mode in modes {
        let folder = mixture();
        folder.script("cgi/both.cgi", both);
        folder.script("cgi/no-line.py", "print (\"Content-Type: text/plain\\n\\n\")\n");
        let forebay = serve_as("perl-cgi", folder, &format!("mode = \"{mode}\"\n"));
        assert!(forebay.get("/cgi-bin/a.cgi").text().starts_with("perl "), "{mode}");
        for _ in 0..2 {
            assert_eq!(forebay.get("/cgi-bin/both.cgi").text(), "python\n", "{mode}");
            assert!(forebay.get("/cgi-bin/c.cgi").text().starts_with("sh "), "{mode}");
        }
        assert_eq!(forebay.get("/cgi-bin/no-line.py").status, 500, "{mode}");
        // The file changes from one language to the other and back.
        let file = forebay.folder.path().join("cgi/a.cgi");
        for (text, expected) in [(shell(), "sh "), (perl("#!/usr/bin/perl"), "perl ")] {
            let new = forebay.folder.script("cgi/new", &text);
            fs::rename(new, &file).unwrap();
            assert!(forebay.get("/cgi-bin/a.cgi").text().starts_with(expected), "{mode}");
        }
        forebay.stop();
    }
}

#[test]
fn another_language_is_never_run_by_python() {
    for mode in ["fresh", "fork"] {
        let forebay = serve_as("python-cgi", mixture(), &format!("mode = \"{mode}\"\n"));
        assert!(forebay.get("/cgi-bin/b.cgi").text().starts_with("python "), "{mode}");
        assert!(forebay.get("/cgi-bin/a.cgi").text().starts_with("perl "), "{mode}");
        assert!(forebay.get("/cgi-bin/c.cgi").text().starts_with("sh "), "{mode}");
        forebay.stop();
    }
}

#[test]
fn a_wrong_first_line_is_a_500_that_quotes_it() {
    let folder = mixture();
    folder.script("cgi/none", "print \"Content-Type: text/plain\\n\\nx\";\n");
    folder.script("cgi/empty", "");
    folder.script("cgi/wrong", "#!/usr/bin/nosuch -w\n");
    folder.script("cgi/crlf.sh", shell().replace('\n', "\r\n"));
    folder.script("cgi/old.py", "#!/opt/python2/bin/python2.7\nprint 'x'\n");
    folder.write("cgi/no-bit.sh", shell());
    let mut forebay = serve_as("cgi-bin", folder, "");
    for (name, status, word) in [
        ("none", 500, "neither a program nor a script with a #! line"),
        ("empty", 500, "neither a program nor a script with a #! line"),
        ("wrong", 500, "\"#!/usr/bin/nosuch -w\", names an interpreter that does not exist"),
        ("crlf.sh", 500, "\"#!/bin/sh\\r\", ends in a carriage return"),
        ("old.py", 500, "\"#!/opt/python2/bin/python2.7\", names an interpreter"),
        ("no-bit.sh", 403, "try chmod +x"),
    ] {
        assert_eq!(forebay.get(&format!("/cgi-bin/{name}")).status, status, "{name}");
        forebay.wait_for_output(word);
    }
    forebay.stop();
}

#[test]
fn a_first_line_that_names_nothing_leaves_the_script_to_the_workers() {
    for (kind, name, text) in [
        ("perl-cgi", "x.pl", perl as fn(&str) -> String),
        ("python-cgi", "x.py", python as fn(&str) -> String),
    ] {
        let folder = Folder::new();
        for (count, line) in ["#!", "#! \t", "#!\r"].iter().enumerate() {
            folder.script(&format!("cgi/{count}/{name}"), text(line));
        }
        let forebay = serve_as(kind, folder, "");
        for count in 0..3 {
            let reply = forebay.get(&format!("/cgi-bin/{count}/{name}"));
            assert_eq!(reply.status, 200, "{kind} {count}: {}", forebay.output());
            assert!(kind.starts_with(reply.text().split(' ').next().unwrap()), "{}", reply.text());
        }
        forebay.stop();
    }
}

#[test]
fn all_scripts_of_an_application_have_its_user_limits_and_variables() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = mixture();
    let who = format!(
        "#!/bin/sh\nprintf '{HEAD}'\nid -u\nulimit -n\necho \"$OWN\"\necho logged > /dev/stderr\n"
    );
    folder.script("cgi/who", who);
    let perl = format!(
        "#!/usr/bin/perl\nprint \"{HEAD}$<\\n\", `sh -c 'ulimit -n'`, \"$ENV{{OWN}}\\n\";\n"
    );
    folder.script("cgi/who.pl", perl);
    fs::set_permissions(folder.path().join("cgi"), fs::Permissions::from_mode(0o755)).unwrap();
    let keys = "user = \"nobody\"\nlimits = { open_files = 77 }\nenv = { OWN = \"word\" }\n";
    for kind in ["cgi-bin", "perl-cgi"] {
        let folder_of = mixture();
        for name in ["who", "who.pl"] {
            let text = fs::read(folder.path().join("cgi").join(name)).unwrap();
            folder_of.script(&format!("cgi/{name}"), text);
        }
        let mut forebay = serve_as(kind, folder_of, keys);
        let expected = forebay.get("/cgi-bin/who.pl").text().to_owned();
        assert!(expected.ends_with("\n77\nword\n") && !expected.starts_with("0\n"), "{expected}");
        assert_eq!(forebay.get("/cgi-bin/who").text(), expected, "{}", forebay.output());
        forebay.wait_for_output("who: logged");
        // The error message about a script that cannot run comes from Forebay, not from the
        // script's process.
        let wrong = forebay.folder.script("cgi/wrong", "#!/usr/bin/nosuch\n");
        assert_eq!(forebay.get("/cgi-bin/wrong").status, 500);
        forebay.wait_for_output("\"#!/usr/bin/nosuch\", names an interpreter");
        fs::set_permissions(wrong, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(forebay.get("/cgi-bin/wrong").status, 403);
        forebay.stop();
    }
}

#[test]
fn a_script_of_another_language_is_bound_by_the_limits_on_time_output_and_number() {
    let folder = mixture();
    folder.script("cgi/slow", "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 1000\n");
    folder.script("cgi/large", format!("#!/bin/sh\nprintf '{HEAD}'\nexec yes\n"));
    let keys = "request_timeout = \"2s\"\nmax_output = \"64k\"\nmax_processes = 1\n";
    let forebay = serve_as("cgi-bin", folder, keys);
    assert_eq!(forebay.get("/cgi-bin/slow").status, 504);
    let pid = fs::read_to_string(forebay.folder.path().join("cgi/slow.pid")).unwrap();
    assert!(eventually(|| !support::is_alive(&pid)));
    let mut client = forebay.connect();
    client.send("GET /cgi-bin/large HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(client.try_reply().is_err(), "cut off");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert!(forebay.get("/cgi-bin/c.cgi").text().starts_with("sh ")));
        }
    });
    forebay.stop();
}

#[test]
fn a_language_that_appears_is_warm_from_the_next_reload_on() {
    let folder = Folder::new();
    folder.script("cgi/c.cgi", shell());
    let mut forebay = serve_as("cgi-bin", folder, "");
    assert!(forebay.get("/cgi-bin/c.cgi").text().starts_with("sh "));
    forebay.folder.script("cgi/a.cgi", perl("#!/usr/bin/perl"));
    assert_ne!(process(&forebay, "a.cgi"), process(&forebay, "a.cgi"));
    forebay.signal(Signal::HUP);
    assert!(eventually(|| process(&forebay, "a.cgi") == process(&forebay, "a.cgi")));
    forebay.stop();
}

#[test]
fn a_virtual_environment_that_all_python_scripts_name_is_that_of_the_workers() {
    let folder = Folder::new();
    let ask = ["-c", "import os, sys; print(os.path.realpath(sys.executable))"];
    let python = Command::new("python3").args(ask).output().expect("python3").stdout;
    let python = String::from_utf8(python).unwrap();
    let python = std::path::Path::new(python.trim());
    folder.write("venv/pyvenv.cfg", format!("home = {}\n", python.parent().unwrap().display()));
    fs::create_dir_all(folder.path().join("venv/bin")).unwrap();
    let own = folder.path().join("venv/bin/python3");
    symlink(python, &own).unwrap();
    let text = format!(
        "#!{}\nimport os, sys\nprint(\"{HEAD}python\", os.getpid(), sys.prefix, end='')\n",
        own.display()
    );
    folder.script("cgi/a.py", &text);
    let place = folder.path().join("venv").display().to_string();
    for kind in ["cgi-bin", "python-cgi"] {
        let other = Folder::new();
        other.script("cgi/a.py", &text);
        let forebay = serve_as(kind, other, "");
        let reply = forebay.get("/cgi-bin/a.py").text().to_owned();
        assert!(reply.ends_with(&place), "{kind}: {reply}");
        assert_eq!(process(&forebay, "a.py"), process(&forebay, "a.py"), "{kind}");
        // A script for the system's Python does not see the environment.
        let plain = text.replace(&own.display().to_string(), "/usr/bin/env python3");
        forebay.folder.script("cgi/b.py", plain);
        let reply = forebay.get("/cgi-bin/b.py");
        assert_eq!(reply.status, 200, "{}", forebay.output());
        assert!(!reply.text().ends_with(&place), "{kind}: {}", reply.text());
        forebay.stop();
    }
}

#[test]
fn a_program_with_the_setuid_bit_is_run_as_the_kernel_has_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = mixture();
    let source = "#include <stdio.h>\n#include <unistd.h>\n\
        int main(void) { printf(\"Content-Type: text/plain\\n\\n%d\", geteuid()); }\n";
    let source = folder.write("wrapper.c", source);
    let file = folder.path().join("cgi/wrapper");
    let is_made = Command::new("cc").arg("-o").arg(&file).arg(source).status();
    if !is_made.is_ok_and(|status| status.success()) {
        return;
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    let owner = fs::metadata(&file).unwrap().uid();
    let forebay = serve_as("cgi-bin", folder, "user = \"nobody\"\n");
    let reply = forebay.get("/cgi-bin/wrapper");
    assert_eq!(reply.text(), owner.to_string(), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn explain_says_who_runs_a_script_and_why() {
    let folder = mixture();
    let text = "[[site]]\nlisten = 8080\n[[site.route]]\npath = \"/cgi-bin/*\"\napp = \"x\"\n\
        [app.x]\nkind = \"cgi-bin\"\ndir = \"cgi\"\n";
    let file = write_configuration(&folder, text);
    let says = |path: &str| {
        let mut command = Command::new(support::program());
        let output = command.arg("explain").arg(&file).arg(path).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    drop(command(&[]));
    for (path, words) in [
        (
            "/cgi-bin/a.cgi",
            "a worker of [app.x] for Perl, as its first line is \"#!/usr/bin/perl -w\"",
        ),
        ("/cgi-bin/b.cgi", "a worker of [app.x] for Python"),
        ("/cgi-bin/c.cgi", "a process for the request, as its first line is \"#!/bin/sh\""),
    ] {
        assert!(says(path).contains(words), "{}", says(path));
    }
}

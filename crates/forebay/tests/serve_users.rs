//! `forebay serve` and the users of its processes: descriptors that scripts inherit, memory of the
//! server that they can read, and their error output in the log.

mod support;

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use support::{Forebay, program, serve_command, site, write_configuration};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a user for the applications of a test, because PHP and others refuse to run as root.
fn user() -> &'static str {
    if is_root() { "user = \"www-data\"\n" } else { "" }
}

/// Perl code that lists its descriptors, one per line, without the one that reads the directory.
const LIST: &str = "opendir my $d, '/proc/self/fd'; my $own = fileno($d) // -1;\n\
    for (sort { $a <=> $b } grep { /\\d/ } readdir $d) {\n\
        my $to = readlink \"/proc/self/fd/$_\"; next if !defined $to || $to =~ m{/proc/}; \
        print \"$_ $to\\n\" }\n";

#[test]
fn descriptors_of_the_starting_shell_reach_no_program() {
    let folder = Folder::new();
    let head = "print \"Content-Type: text/plain\\n\\n\";\n";
    folder.script("cgi/list", format!("#!/usr/bin/perl\n{head}{LIST}"));
    folder.script("perl/list", format!("#!/usr/bin/perl\n{head}{LIST}"));
    let python = "#!/usr/bin/env python3\nimport os\nprint('Content-Type: text/plain\\n')\n\
        for n in sorted(os.listdir('/proc/self/fd'), key=int):\n \
        print(n, os.readlink('/proc/self/fd/' + n) if os.path.exists('/proc/self/fd/' + n) else '')\n";
    folder.script("python/list.py", python);
    folder.write(
        "server.pl",
        format!(
            "use IO::Socket::UNIX; use Socket; $SIG{{PIPE}} = 'IGNORE';\n\
             my $l = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 9) or die;\n\
             while (my $c = $l->accept) {{ while (<$c>) {{ last if /^\\r?$/ }} my $out = '';\n\
             open my $o, '>', \\$out; select $o; {LIST} select STDOUT;\n\
             print $c \"HTTP/1.0 200 OK\\r\\n\\r\\n$out\"; close $c }}\n"
        ),
    );
    folder.write("secret", "a secret of the shell");
    let user = user();
    let file = write_configuration(
        &folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
             [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
             [[site.route]]\npath = \"/python/*\"\napp = \"python\"\n\
             [[site.route]]\npath = \"/*\"\napp = \"command\"\n\
             [app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\nworkers = 1\n{user}\
             [app.python]\nkind = \"python-cgi\"\ndir = \"python\"\nworkers = 1\n{user}\
             [app.command]\nkind = \"command\"\nspeaks = \"http\"\nrun = [\"perl\", \"server.pl\", \"{{socket}}\"]\n{user}"
        ),
    );
    let mut shell = Command::new("sh");
    let leak = "exec 3<\"$1/secret\" 4<\"$1/secret\" 5<\"$1/secret\" 9<\"$1/secret\"; exec \"$2\" serve \"$3\"";
    shell.args(["-c", leak, "sh"]).arg(folder.path()).arg(program()).arg(file);
    let forebay = serve_command(folder, shell);
    for target in ["/cgi/list", "/perl/list", "/python/list.py", "/command"] {
        let reply = forebay.get(target);
        assert_eq!(reply.status, 200, "{target}: {}", forebay.output());
        assert!(reply.text().contains("0 "), "{target}: {}", reply.text());
        assert!(!reply.text().contains("secret"), "{target}: {}", reply.text());
    }
    forebay.stop();
}

/// The output of each kind of program, and its form in the access log.
const NOISE: &str = r"a \033[31m b\rc\000d\377e\303\244 \\ f";
const SHOWN: &str = r"a \x1b[31m b\x0dc\x00d\xffe\xc3\xa4 \\ f";

#[test]
fn error_output_of_scripts_is_escaped_in_the_log_as_requests_are() {
    let folder = Folder::new();
    let head = "printf 'Content-Type: text/plain\\n\\nok'";
    folder.script("cgi/noise", format!("#!/bin/sh\n{head}\nprintf 'cgi {NOISE}\\n' >&2\n"));
    let perl = |name: &str| {
        format!(
            "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nok\";\n\
             binmode STDERR; print STDERR \"{name} {NOISE}\\n\";\n"
        )
    };
    folder.script("perl/noise", perl("perl"));
    folder.script("perl/long", "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nok\";\nprint STDERR 'y' x 100_000;\n");
    folder.script("cgi/long", "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nok\";\nprint STDERR 'z' x 20_000;\n");
    let user = user();
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
             [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
             [app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\nworkers = 1\n{user}"
        ),
    );
    for target in ["/cgi/noise", "/perl/noise", "/perl/long", "/cgi/long"] {
        assert_eq!(forebay.get(target).text(), "ok", "{target}: {}", forebay.output());
    }
    for name in ["cgi", "perl"] {
        let line = format!("{name} {SHOWN}\n");
        assert!(eventually(|| forebay.output().contains(&line)), "{line}: {}", forebay.output());
    }
    for letter in ["y", "z"] {
        assert!(eventually(|| forebay.output().contains(&letter.repeat(8192))));
        assert!(!forebay.output().contains(&letter.repeat(8193)), "a line has a bound");
    }
    let (exit, _folder) = forebay.stop();
    let odd = |byte: u8| byte != b'\n' && !(0x20..0x7f).contains(&byte);
    assert!(!exit.output.bytes().any(odd), "{:?}", exit.output);
}

/// Python code that tries to read the memory of the process with this id.
const SPY: &str = r#"#!/usr/bin/env python3
import ctypes, os, sys
pid = sys.argv[1] if len(sys.argv) > 1 else str(os.getppid())
if len(sys.argv) < 2:
    print("Content-Type: text/plain\n")
def attempt(name, what):
    try:
        print(name, "reached", what())
    except OSError as error:
        print(name, "refused", error.errno)
attempt("mem", lambda: open("/proc/%s/mem" % pid, "rb").close())
attempt("environ", lambda: open("/proc/%s/environ" % pid, "rb").read())
attempt("maps", lambda: open("/proc/%s/maps" % pid, "rb").read(1))
attempt("descriptors", lambda: os.listdir("/proc/%s/fd" % pid))
libc = ctypes.CDLL(None, use_errno=True)
def attach():
    if libc.ptrace(16, int(pid), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
attempt("ptrace", attach)
print("user", os.getuid(), "done")
"#;

fn assert_refused(whose: &str, text: &str) {
    assert!(text.contains("done"), "{whose}: {text}");
    assert_eq!(text.matches("refused").count(), 5, "{whose}: {text}");
}

/// Runs a program as systemd's `User=` does.
fn as_www_data(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=www-data", "--regid=www-data", "--init-groups"]).arg(program);
    command
}

#[test]
fn scripts_of_an_unprivileged_server_do_not_reach_its_memory() {
    if !is_root() || !as_www_data(program()).arg("--version").output().unwrap().status.success() {
        return peer::skip("only root can start a server as another user, who may run it");
    }
    let folder = Folder::new();
    folder.script("cgi/spy", SPY);
    let file = write_configuration(
        &folder,
        "[server]\nadmin = \"127.0.0.1:0\"\nadmin_token = \"a-secret-of-forty-two-letters-and-more\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n",
    );
    let mut command = as_www_data(program());
    command.arg("serve").arg(file).env("A_SECRET", "of the service manager");
    let forebay = serve_command(folder, command);
    assert_refused("/cgi/spy", forebay.get("/cgi/spy").text());
    let spy = |pid: u32| {
        let spy = forebay.folder.path().join("cgi/spy");
        let output = as_www_data(spy).arg(pid.to_string()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_refused("Forebay", &spy(forebay.process.id()));
    // The spy can read memory if nothing forbids it: nginx's worker makes itself dumpable again.
    if let Some(nginx) = peer::installed("nginx") {
        let tmp = forebay.folder.path().display();
        let text = format!(
            "daemon off; user www-data; error_log stderr; pid {tmp}/pid; events {{}}\n\
             http {{ access_log off; server {{ listen unix:{tmp}/nginx; }} }}\n"
        );
        let file = forebay.folder.write("nginx.conf", text);
        let mut command = Command::new(nginx);
        command.arg("-c").arg(file).args(["-e", "stderr"]);
        let nginx = Process::start(command);
        let mut workers = Vec::new();
        let is_up = eventually(|| {
            workers = support::proc::children(nginx.id());
            let status =
                workers.first().map(|pid| fs::read_to_string(format!("/proc/{pid}/status")));
            matches!(status, Some(Ok(status)) if status.contains("Uid:\t33"))
        });
        assert!(is_up, "{}", nginx.output());
        assert!(spy(workers[0]).contains("mem reached"), "{}", spy(workers[0]));
    }
    stop(forebay);
}

fn stop(forebay: Forebay) {
    let (exit, _folder) = forebay.stop();
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

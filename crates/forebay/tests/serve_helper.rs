//! `forebay serve` without root's rights: the helper that starts applications as other users, and
//! the requests that it refuses to a hostile gateway.

mod helper;
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use support::{Forebay, program};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn stop(forebay: Forebay) {
    let (exit, _folder) = forebay.stop();
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

/// The users of the gateway and of its applications.
const GATEWAY: &str = "www-data";
const APPS: &str = "daemon";

/// Returns the number after `name` in the status of a process, such as the first one of `Uid:`.
fn status_of(pid: u32, name: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn number_of(user: &str) -> u32 {
    let output = Command::new("id").args(["-u", user]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Perl code that prints its user and its process id, and the result of a signal to the gateway.
const WHO: &str = "#!/usr/bin/perl\n\
    my ($gateway) = $ENV{QUERY_STRING} =~ /gateway=(\\d+)/;\n\
    if ($ENV{QUERY_STRING} =~ /crash/) { kill KILL => $$; sleep 60 }\n\
    if ($ENV{QUERY_STRING} =~ /child/) { system 'sleep 1000 </dev/null >/dev/null 2>&1 & true' }\n\
    my $sent = kill(TERM => $gateway) ? 'sent' : $! + 0;\n\
    print \"Content-Type: text/plain\\n\\n$< $> $$ $sent $ENV{OWN} \", -t STDIN ? 'tty' : 'ok';\n";
const WHO_PYTHON: &str = "#!/usr/bin/env python3\nimport os\n\
    def number(text): return int(text.split('gateway=')[1].split('&')[0])\n\
    query = os.environ['QUERY_STRING']\n\
    if 'crash' in query: os.kill(os.getpid(), 9)\n\
    if 'child' in query: os.system('sleep 1000 </dev/null >/dev/null 2>&1 & true')\n\
    try:\n    os.kill(number(query), 15); sent = 'sent'\n\
    except OSError as error: sent = error.errno\n\
    print('Content-Type: text/plain\\n')\n\
    print(os.getuid(), os.geteuid(), os.getpid(), sent, os.environ.get('OWN'), 'ok')\n";

const HELPED: [&str; 4] = ["/cgi/who", "/perl/who", "/python/who.py", "/bin/who.sh"];

/// Returns a gateway of one user, with a script, Perl and Python workers and a `cgi-bin` of another
/// user. `None` if this machine does not allow it.
fn separated(more: &str) -> Option<Forebay> {
    if !is_root() {
        peer::skip("only root can start a server as another user");
        return None;
    }
    let folder = Folder::new();
    folder.script("cgi/who", WHO);
    folder.script("perl/who", WHO);
    folder.script("python/who.py", WHO_PYTHON);
    folder.script("bin/who.sh", "#!/bin/sh\nexec /usr/bin/perl \"${0%/*}/../cgi/who\"\n");
    Some(support::serve(folder, &separated_as(APPS, more)))
}

fn separated_as(user: &str, more: &str) -> String {
    let app = |kind: &str, name: &str| {
        format!(
            "[app.{name}]\nkind = \"{kind}\"\ndir = \"{name}\"\nuser = \"{user}\"\n\
             env = {{ OWN = \"word\" }}\n{}",
            if kind == "cgi-bin" { "" } else { "workers = 1\n" }
        )
    };
    format!(
        "[server]\nuser = \"{GATEWAY}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/cgi/*\"\n\
         cgi = {{ dir = \"cgi\", user = \"{user}\", env = {{ OWN = \"word\" }}, timeout = \"5s\" }}\n\
         [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
         [[site.route]]\npath = \"/python/*\"\napp = \"python\"\n\
         [[site.route]]\npath = \"/bin/*\"\napp = \"bin\"\n{}{}{}{more}",
        app("perl-cgi", "perl"),
        app("python-cgi", "python"),
        app("cgi-bin", "bin"),
    )
}

/// Returns the id of the user that runs a target.
fn who(forebay: &Forebay, target: &str, query: &str) -> u32 {
    let reply = forebay.get(&format!("{target}?gateway={}&{query}", forebay.process.id()));
    assert_eq!(reply.status, 200, "{target}: {}", forebay.output());
    let words: Vec<_> = reply.text().split_whitespace().collect();
    let user = number_of(APPS).to_string();
    // EPERM is 1.
    assert_eq!([words[0], words[1]], [&user, &user], "{target}: {}", reply.text());
    assert_eq!(words[3..], ["1", "word", "ok"], "{target}: {}", reply.text());
    words[2].parse().unwrap()
}

fn all_are_helped(forebay: &Forebay, query: &str) {
    for target in HELPED {
        who(forebay, target, query);
    }
}

#[test]
fn applications_have_a_user_of_their_own_below_a_gateway_without_root() {
    let Some(forebay) = separated("") else { return };
    let gateway = forebay.process.id();
    assert_eq!(status_of(gateway, "Uid:"), Some(number_of(GATEWAY)));
    for target in HELPED {
        who(&forebay, target, "");
        who(&forebay, target, "");
    }
    let mut client = forebay.connect();
    for target in HELPED {
        let head = format!(
            "POST {target}?gateway={gateway} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        );
        client.send([head.as_bytes(), &vec![b'x'; 100_000]].concat());
        assert_eq!(client.reply().status, 200, "{target}: {}", forebay.output());
    }
    stop(forebay);
}

#[test]
fn a_helped_process_that_crashes_is_replaced() {
    let Some(mut forebay) = separated("") else { return };
    for target in HELPED {
        let before = who(&forebay, target, "");
        let reply = forebay.get(&format!("{target}?gateway=1&crash"));
        assert_eq!(reply.status, 502, "{target}: {}", forebay.output());
        let is_back = eventually(|| {
            forebay.get(&format!("{target}?gateway={}", forebay.process.id())).status == 200
        });
        assert!(is_back, "{target}: {}", forebay.output());
        assert_ne!(before, who(&forebay, target, ""), "{target}");
    }
    // A reload keeps the users, and starts what has changed.
    let file = forebay.folder.path().join("site.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("workers = 1", "workers = 2")).unwrap();
    forebay.signal(rustix::process::Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    all_are_helped(&forebay, "");
    // The helper refuses a user that the configuration did not name at the start.
    fs::write(&file, text.replace(&format!("user = \"{APPS}\"\nenv"), "user = \"nobody\"\nenv"))
        .unwrap();
    forebay.signal(rustix::process::Signal::HUP);
    forebay.wait_for_output("no application was to run as nobody when Forebay started");
    all_are_helped(&forebay, "");
    stop(forebay);
}

/// Returns all processes of the applications' user below these processes.
fn of_user(pids: &[u32]) -> Vec<u32> {
    let user = number_of(APPS);
    pids.iter().copied().filter(|pid| status_of(*pid, "Uid:") == Some(user)).collect()
}

/// Returns the arguments of a process, separated by zero bytes.
fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}

/// Returns true if the process exists and is no zombie.
fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn helped_processes_end_with_the_gateway_and_with_the_helper() {
    for who_ends in ["gateway", "helper", "signal"] {
        let Some(mut forebay) = separated("") else { return };
        // A child that a CGI script has left continues.
        all_are_helped(&forebay, "");
        for target in ["/perl/who", "/python/who.py"] {
            who(&forebay, target, "child");
        }
        let gateway = forebay.process.id();
        // Active requests, whose processes sleep.
        forebay.folder.script("cgi/slow", "#!/bin/sh\nsleep 1000\n");
        let mut slow = forebay.connect();
        slow.send("GET /cgi/slow HTTP/1.1\r\nHost: x\r\n\r\n");
        let all = || support::proc::descendants(gateway);
        // The script needs a moment to start `sleep`.
        let has_begun = || {
            all().into_iter().any(|pid| command_line(pid).contains("cgi/slow"))
                && of_user(&all()).len() > 3
        };
        assert!(eventually(has_begun), "{}", forebay.output());
        let (all, of_apps) = (all(), of_user(&all()));
        assert!(of_apps.len() > 3, "{of_apps:?}");
        let is_helper = |pid: &&u32| command_line(**pid).contains("__helper");
        let helper = *all.iter().find(is_helper).expect("a helper");
        assert_eq!(status_of(helper, "Uid:"), Some(0));
        match who_ends {
            "gateway" => support::proc::kill(gateway),
            "helper" => support::proc::kill(helper),
            _ => forebay.signal(rustix::process::Signal::TERM),
        }
        let have_ended = eventually(|| !of_apps.iter().any(|pid| runs(*pid)));
        assert!(
            have_ended,
            "{who_ends}: {:?}",
            of_apps.iter().filter(|pid| runs(**pid)).collect::<Vec<_>>()
        );
        if who_ends == "helper" {
            forebay.wait_for_output("replaces it");
            all_are_helped(&forebay, "");
        } else {
            assert!(eventually(|| !runs(helper)), "{who_ends}");
        }
        drop(slow);
        drop(forebay);
    }
}

/// The helper, controlled by a gateway that an attacker has taken over.
struct Captive {
    helper: std::process::Child,
    socket: std::os::fd::OwnedFd,
}

impl Captive {
    /// `rooms` is the directory for private directories of programs.
    fn start(rooms: &std::path::Path) -> Self {
        let (socket, theirs) = pair();
        let mut command = Command::new(program());
        let rooms = format!("{}:{}", number_of(GATEWAY), rooms.display());
        command.args(["__helper", &rooms, "1:1:1:daemon"]).stdin(theirs);
        Self { helper: command.spawn().unwrap(), socket }
    }

    /// Sends a message with these descriptors, and a socket for its result.
    fn send(
        &self,
        message: &[u8],
        descriptors: &[std::os::fd::BorrowedFd<'_>],
    ) -> std::os::fd::OwnedFd {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        use std::os::fd::AsFd;
        let (status, theirs) = pair();
        let mut passed = vec![theirs.as_fd()];
        passed.extend(descriptors);
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&passed));
        let pieces = [std::io::IoSlice::new(message)];
        sendmsg(&self.socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        status
    }

    /// Starts `sh -c TEXT` with these options. Returns its output, or the reason of the refusal.
    fn run(&self, options: &str, dir: &str, variable: &str, text: &str) -> Result<String, String> {
        use std::os::fd::AsFd;
        let options = options.replace(' ', "\0");
        let message = format!("L{dir}\x001\0{variable}\0{options}\0--\0/bin/sh\0-c\0{text}\0");
        let null = fs::File::open("/dev/null").unwrap();
        let (mut output, its_output) = std::io::pipe().unwrap();
        let its = [null.as_fd(), its_output.as_fd(), its_output.as_fd()];
        let status = self.send(message.as_bytes(), &its);
        drop(its_output);
        let report = report(&status);
        if report[0] != b'S' {
            return Err(String::from_utf8_lossy(&report[5..]).into_owned());
        }
        let mut text = String::new();
        std::io::Read::read_to_string(&mut output, &mut text).unwrap();
        Ok(text)
    }
}

fn pair() -> (std::os::fd::OwnedFd, std::os::fd::OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn report(status: &std::os::fd::OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 4096];
    let (read, _) =
        rustix::net::recv(status, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
    assert_ne!(read, 0, "no report");
    bytes[..read].to_vec()
}

#[test]
fn a_gateway_that_was_taken_over_gets_no_more_of_the_helper_than_programs_of_its_users() {
    if !is_root() {
        return peer::skip("only root can start processes as another user");
    }
    let rooms = Folder::new();
    let mut captive = Captive::start(&rooms.path().join("rooms"));
    let daemon = "--user 1:daemon --only-group 1";
    let run = |options: &str, dir: &str, variable: &str, text: &str| {
        captive.run(options, dir, variable, text)
    };
    let whole = run(daemon, "/", "A=b c", "id -u; id -g; id -G; echo \"$A\"; pwd; ls /proc/$$/fd");
    let whole = whole.unwrap();
    assert!(whole.starts_with("1\n1\n1\nb c\n/\n0\n1\n2\n"), "{whole}");
    assert!(whole.lines().count() <= 9, "no descriptor of the helper's: {whole}");
    for options in [
        "--user 0:root --only-group 0",
        "--user 1:daemon --only-group 0",
        "--user 1:daemon --group 1",
        "--user 2:bin --only-group 2",
        "--only-group 1",
        "--limit core=0",
        "--user 1:daemon --only-group 1 --user 0:root",
        "--user 1:daemon --only-group 1 --cgroup /sys/fs/cgroup",
        "--user 1:daemon --only-group 1 --dir /root",
        "--user 1:daemon --only-group 1 --parent 1",
    ] {
        let refused = run(options, "/", "A=b", "id").unwrap_err();
        assert!(refused.contains("refuses"), "{options}: {refused}");
    }
    // A process that is still root would load the library.
    let folder = Folder::new();
    let library = folder.path().join("evil.so");
    let said = run(daemon, "/", &format!("LD_PRELOAD={}", library.display()), ":").unwrap();
    assert_eq!(said.matches("cannot be preloaded").count(), 1, "{said}");
    // The process enters a directory as its user.
    folder.write("private/file", "");
    let private = folder.path().join("private");
    fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let said = run(daemon, private.to_str().unwrap(), "A=b", "cat file; id -u").unwrap();
    assert!(said.contains("cannot enter") && !said.contains("1\n"), "{said}");
    for garbage in [
        &b"L"[..],
        b"",
        b"X\0",
        b"L/\x00999999999999\0",
        b"G../../x\x001\0\0\0",
        &vec![b'L'; 100_000],
    ] {
        if !garbage.is_empty() {
            let report = report(&captive.send(garbage, &[]));
            assert!(matches!(report[0], b'F' | b'G'), "{report:?}");
        }
    }
    // A file that was passed keeps its owner.
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let file = folder.write("owned", "");
    let opened = fs::File::options().append(true).open(&file).unwrap();
    let message = "L/\x000\0--user\x001:daemon\0--only-group\x001\0--\0/bin/true\0";
    let status = captive.send(message.as_bytes(), &[opened.as_fd(); 3]);
    assert_eq!(report(&status)[0], b'S');
    assert_eq!(report(&status)[0], b'E');
    assert_eq!(fs::metadata(&file).unwrap().uid(), 0);
    assert!(run(daemon, "/", "A=b", "id -u").is_ok(), "it goes on");
    drop(captive.socket);
    assert!(captive.helper.wait().unwrap().success());
}

/// A Perl script that tells its user, its groups, and which of the paths in its query it can read or
/// connect to.
const REACHES: &str = "#!/usr/bin/perl\nuse Socket;\n\
    print \"Content-Type: text/plain\\n\\n$< $(\";\n\
    for (split /,/, $ENV{QUERY_STRING}) {\n\
        print ' reads' if open my $f, '<', $_;\n\
        socket my $s, PF_UNIX, SOCK_STREAM, 0; print ' connects' if connect $s, pack_sockaddr_un $_;\n\
        print ' writes' if -w $_ }\n";

#[test]
fn programs_without_a_user_run_as_the_app_user_and_reach_nothing_of_the_gateway() {
    if !is_root() {
        return peer::skip("only root can start a server as another user");
    }
    let folder = Folder::new();
    for name in ["cgi/reaches", "perl/reaches", "bin/reaches"] {
        folder.script(name, REACHES);
    }
    folder.write("keys/account.key", "secret");
    let keys = folder.path().join("keys");
    fs::set_permissions(&keys, Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&keys, Some(number_of(GATEWAY)), None).unwrap();
    let configuration = format!(
        "[server]\nuser = \"{GATEWAY}\"\napp_user = \"{APPS}\"\nadmin = \"unix:admin.sock\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
         [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
         [[site.route]]\npath = \"/bin/*\"\napp = \"bin\"\n\
         [app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\nworkers = 1\n\
         [app.bin]\nkind = \"cgi-bin\"\ndir = \"bin\"\n\
         [app.program]\nkind = \"command\"\nuser = \"games\"\nlisten = \"inherit\"\nspeaks = \"http\"\n\
         run = [\"/bin/sleep\", \"1000\"]\n"
    );
    let forebay = support::serve(folder, &configuration);
    let home = forebay.folder.path();
    // The socket of another user's application is in a room below /run or the temporary directory.
    let rooms = ["/run".into(), std::env::temp_dir()].into_iter().flat_map(fs::read_dir);
    let rooms = rooms.flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let rooms = rooms.filter(|path| path.to_string_lossy().contains("/forebay-"));
    let inner = rooms.flat_map(|room| fs::read_dir(room).into_iter().flatten());
    let sockets = inner.filter_map(|entry| Some(entry.ok()?.path().join("socket")));
    // Other servers may run on this machine.
    let is_own = |socket: &PathBuf| {
        let room = socket.parent().map(fs::metadata);
        room.is_some_and(|room| room.is_ok_and(|room| room.uid() == number_of("games")))
    };
    let sockets: Vec<_> = sockets.filter(is_own).collect();
    assert!(!sockets.is_empty(), "{}", forebay.output());
    let mut paths = vec![home.join("keys/account.key"), home.join("admin.sock")];
    paths.extend(sockets);
    paths.push(format!("/proc/{}/environ", forebay.process.id()).into());
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    for target in ["/cgi/reaches", "/perl/reaches", "/bin/reaches"] {
        let reply = forebay.get(&format!("{target}?{}", paths.join(",")));
        assert_eq!(reply.status, 200, "{target}: {}", forebay.output());
        let words: Vec<_> = reply.text().split_whitespace().map(str::to_owned).collect();
        assert_eq!(words[0], number_of(APPS).to_string(), "{target}: {words:?}");
        let gateway = number_of(GATEWAY).to_string();
        assert!(!words.contains(&gateway), "{target} keeps a group: {words:?}");
        let verbs: Vec<_> = words.iter().filter(|word| word.ends_with('s')).collect();
        assert!(verbs.is_empty(), "{target} reaches something: {words:?}");
    }
    stop(forebay);
}

#[test]
fn an_application_that_its_user_may_not_run_stops_no_other() {
    if !is_root() {
        return peer::skip("only root can start a server as another user");
    }
    let folder = Folder::new();
    folder.script("private/run", "#!/bin/sh\nexec sleep 1000\n");
    folder.script("open/run", format!("#!{}\n", folder.path().join("private/run").display()));
    folder.write("private/app.psgi", "sub { [200, [], []] }");
    fs::set_permissions(folder.path().join("private"), Permissions::from_mode(0o700)).unwrap();
    for server in ["", "app_user = \"daemon\"\n"] {
        let command = |run: &str| {
            format!("kind = \"command\"\nrun = [\"{run}\", \"{{socket}}\"]\nspeaks = \"http\"\n")
        };
        for table in [
            command("private/run"),
            command("open/run"),
            "kind = \"python-cgi\"\ndir = \"open\"\npython = \"private/run\"\n".to_owned(),
            "kind = \"psgi\"\nfile = \"private/app.psgi\"\n".to_owned(),
            "kind = \"perl-cgi\"\ndir = \"private\"\n".to_owned(),
        ] {
            let copy = Folder::new();
            let mut all = Command::new("cp");
            all.arg("-a").arg(folder.path().join(".")).arg(copy.path());
            assert!(all.status().unwrap().success());
            let text = fs::read_to_string(copy.path().join("open/run")).unwrap();
            let text = text.replace(folder.path().to_str().unwrap(), copy.path().to_str().unwrap());
            copy.script("open/run", text);
            let configuration = format!(
                "[server]\nuser = \"{GATEWAY}\"\n{server}[[site]]\nlisten = \"127.0.0.1:0\"\n\
                 [[site.route]]\npath = \"/ok\"\nrespond = \"ok\"\n[[site.route]]\napp = \"x\"\n\
                 [app.x]\n{table}"
            );
            let mut forebay = support::serve(copy, &configuration);
            assert_eq!(forebay.get("/ok").text(), "ok", "{table}: {}", forebay.output());
            assert!(forebay.get("/x").status >= 400, "{table}: {}", forebay.output());
            let private = forebay.folder.path().join("private").display().to_string();
            forebay.wait_for_output(&format!("may not enter {private}"));
            // A reload can do what the start could.
            forebay.signal(rustix::process::Signal::HUP);
            forebay.wait_for_output("serving by the configuration as it is now");
            stop(forebay);
        }
    }
}

#[test]
fn owners_of_new_directories_run_their_applications_at_once() {
    if !is_root() {
        return peer::skip("only root can start a server as another user");
    }
    let folder = Folder::new();
    let site = |folder: &Folder, host: &str, user: &str| {
        let path = format!("srv/{host}");
        folder.script(&format!("{path}/who"), WHO);
        std::os::unix::fs::chown(folder.path().join(path), Some(number_of(user)), None).unwrap();
    };
    site(&folder, "a.example", "daemon");
    let configuration = format!(
        "[server]\nuser = \"{GATEWAY}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         hosts_from = \"srv/*\"\n[[site.route]]\napp = \"own\"\n\
         [app.own]\nkind = \"perl-cgi\"\ndir = \"srv/{{host}}\"\nuser = \"{{owner}}\"\n\
         workers = 1\nenv = {{ OWN = \"word\" }}\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"default\"\n"
    );
    let forebay = support::serve(folder, &configuration);
    let runs_as = |host: &str| {
        let gateway = forebay.process.id();
        let reply = forebay.ask(format!(
            "GET /who?gateway={gateway} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ));
        let first = reply.text().split_whitespace().next().unwrap_or_default().to_owned();
        first.parse::<u32>().map_err(|_| reply.text().to_owned())
    };
    assert_eq!(runs_as("a.example"), Ok(number_of("daemon")));
    assert_eq!(runs_as("b.example"), Err("default".to_owned()));
    site(&forebay.folder, "b.example", "games");
    let games = Ok(number_of("games"));
    assert!(eventually(|| runs_as("b.example") == games), "{}", forebay.output());
    assert_eq!(runs_as("a.example"), Ok(number_of("daemon")));
    stop(forebay);
}

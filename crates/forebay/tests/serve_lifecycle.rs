//! `forebay serve` from its start to its end: its messages if it cannot start, and its stop.

mod support;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::{Exit, Process, eventually};
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::stream::Address;
use rustix::process::Signal;
use support::proc::{descendants, waits};
use support::{Forebay, command, is_alive, serve, serve_command, site, write_configuration};

fn run(arguments: &[&str]) -> Exit {
    Process::start(command(arguments)).wait()
}

fn slow_script() -> Folder {
    let folder = Folder::new();
    // Answers when somebody writes to the FIFO.
    folder.script(
        "cgi/slow",
        "#!/bin/sh\necho $$ > \"$WHERE/pid\"\nread x < \"$WHERE/go\"\n\
         printf 'Content-Type: text/plain\\n\\nfinished'\n",
    );
    let fifo = folder.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    folder
}

const SLOW: &str = "[[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\", env = { WHERE = \"{tmp}\" } }\n\
                    [[site.route]]\nrespond = \"hello\"\n";

/// Sends a request to the slow script and waits until the script runs.
fn ask_slow(forebay: &Forebay) -> (Client, String) {
    let mut client = forebay.connect();
    client.send("GET /cgi/slow HTTP/1.1\r\nHost: h\r\n\r\n");
    let path = forebay.folder.path().join("pid");
    assert!(eventually(|| fs::read_to_string(&path).is_ok_and(|pid| pid.ends_with('\n'))));
    (client, fs::read_to_string(path).unwrap())
}

#[test]
fn an_idle_server_sleeps_and_knows_the_time_afterwards() {
    let forebay = serve(
        Folder::new(),
        "[server]\nthreads = 2\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nrespond = \"hello\"\n",
    );
    let id = forebay.process.id();
    // With ticks, the two threads would wait 40 times a second.
    assert!(eventually(|| {
        let before = waits(id);
        thread::sleep(Duration::from_secs(3));
        waits(id).saturating_sub(before) < 20
    }));
    // A second less is correct, too: `Date` has no fractions.
    let earliest = SystemTime::now() - Duration::from_secs(1);
    let reply = forebay.get("/");
    let date = httpdate::parse_http_date(reply.header("Date").unwrap()).unwrap();
    assert!(date >= earliest && date <= SystemTime::now(), "{date:?}, not {earliest:?}");
}

#[test]
fn a_request_under_way_is_finished() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut forebay = site(slow_script(), SLOW);
        let mut idle = forebay.connect();
        assert_eq!(idle.get("/").text(), "hello");
        let (mut client, _) = ask_slow(&forebay);
        forebay.signal(signal);
        let address = Address::Tcp(forebay.address);
        assert!(eventually(|| Client::try_connect(&address).is_err()), "nobody new is let in");
        assert!(idle.is_closed(), "who waits for nothing is sent away");
        fs::write(forebay.folder.path().join("go"), "\n").unwrap();
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "finished"));
        assert_eq!(reply.header("Connection"), Some("close"));
        assert!(client.is_closed());
        let Forebay { process, .. } = forebay;
        let exit = process.wait();
        assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
        assert!(exit.survivors.is_empty() && !exit.output.contains("panicked"), "{}", exit.output);
    }
}

/// After reads that filled a buffer exactly, the event loop assumed that more bytes were available.
#[test]
fn who_sent_a_body_of_any_length_and_waits_for_nothing_is_sent_away() {
    let echo = support::echo::Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let lengths = (1..=64).map(|length| length * 4096).chain([100_000]);
    let idle: Vec<_> = lengths
        .map(|length| {
            let mut client = forebay.connect();
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
            client.send(head);
            client.send(vec![b'x'; length]);
            assert_eq!(client.reply().status, 200);
            client
        })
        .collect();
    // The grace time is longer than the time that a test waits.
    forebay.stop();
    drop(idle);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut forebay = site(slow_script(), SLOW);
    let (mut client, script) = ask_slow(&forebay);
    forebay.signal(Signal::TERM);
    let address = Address::Tcp(forebay.address);
    assert!(eventually(|| Client::try_connect(&address).is_err()));
    forebay.signal(Signal::TERM);
    assert!(client.rest().is_empty());
    let Forebay { process, .. } = forebay;
    let exit = process.wait();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    assert!(eventually(|| !is_alive(&script)), "the script ends, too");
}

#[test]
fn scripts_do_not_outlive_a_forebay_that_is_killed() {
    let folder = Folder::new();
    folder.script(
        "cgi/slow",
        "#!/bin/sh\nsleep 1000 & echo $! > \"$WHERE/child\"\necho $$ > \"$WHERE/pid\"\nwait\n",
    );
    folder.script("cgi/quick", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nquick'\n");
    let mut forebay = site(folder, SLOW);
    let (_client, script) = ask_slow(&forebay);
    // The script writes its file before its thread has noted its group. A thread that answers has.
    for _ in 0..10 {
        assert_eq!(forebay.get("/cgi/quick").text(), "quick");
    }
    let child = fs::read_to_string(forebay.folder.path().join("child")).unwrap();
    assert!(is_alive(&script) && is_alive(&child));
    forebay.signal(Signal::KILL);
    assert!(eventually(|| !is_alive(&script)), "the script ends");
    assert!(eventually(|| !is_alive(&child)), "and what it has started");
}

#[test]
fn scripts_may_open_as_many_files_as_forebay_was_started_with() {
    let folder = Folder::new();
    // The limit is set after the script has started.
    folder.script(
        "cgi/limit",
        "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9 10; do\n[ \"$(ulimit -Sn)\" = 123 ] && break\nsleep 0.5\n\
         done\nprintf 'Content-Type: text/plain\\n\\n'; ulimit -Sn\n",
    );
    let file = support::write_configuration(
        &folder,
        &format!("[[site]]\nlisten = \"unix:{{tmp}}/s\"\n{SLOW}"),
    );
    let mut limited = std::process::Command::new("sh");
    limited.args([
        "-c",
        "ulimit -Sn 123; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_forebay"),
        "serve",
    ]);
    let mut process = Process::start({
        limited.arg(file);
        limited
    });
    process.wait_for_output("forebay: serving unix:");
    let socket = folder.path().join("s");
    assert_eq!(Client::connect(&socket).get("/cgi/limit").text(), "123\n");
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.id())).unwrap();
    let own = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(!own.contains(" 123 "), "its own limit is raised: {own}");
    assert_eq!(process.stop().status.code(), Some(0));
}

#[test]
fn grace_has_an_end() {
    let folder = slow_script();
    let configuration =
        format!("[server]\ngrace = \"500ms\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n{SLOW}");
    let forebay = serve(folder, &configuration);
    let (mut client, script) = ask_slow(&forebay);
    let Forebay { mut process, folder: _folder, .. } = forebay;
    process.signal(Signal::TERM);
    assert!(client.rest().is_empty());
    let exit = process.wait();
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    assert!(eventually(|| !is_alive(&script)), "the script ends, too");
}

#[test]
fn a_stop_under_load_breaks_no_reply() {
    let backend = support::echo::Echo::start();
    let forebay = site(Folder::new(), &backend.route());
    let served = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let address = Address::Tcp(forebay.address);
                scope.spawn(move || {
                    let mut served = 0;
                    while let Ok(mut client) = Client::try_connect(&address) {
                        while let Ok(reply) = client.try_get("/") {
                            assert_eq!(reply.status, 200);
                            served += 1;
                            if reply.header("Connection").is_some() {
                                break;
                            }
                        }
                    }
                    served
                })
            })
            .collect();
        assert!(eventually(|| backend.whole() > 200));
        let Forebay { process, .. } = forebay;
        let exit = process.stop();
        assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
        assert!(!exit.output.contains("panicked"), "{}", exit.output);
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    // If a client lost a reply, it would have got fewer replies than the backend sent.
    assert_eq!(served, backend.whole());
}

/// Returns true if all threads of the process are stopped.
fn is_stopped(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
    threads.into_iter().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}

#[test]
fn connections_that_wait_in_a_queue_at_the_signal_to_stop_are_served() {
    let mut forebay = site(Folder::new(), "[[site.route]]\nrespond = \"hello\"\n");
    let id = forebay.process.id();
    forebay.signal(Signal::STOP);
    assert!(eventually(|| is_stopped(id)));
    let mut clients: Vec<_> = (0..20).map(|_| forebay.connect()).collect();
    clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
    // When the process continues, it first gets the signal to stop.
    forebay.signal(Signal::TERM);
    forebay.signal(Signal::CONT);
    for client in &mut clients {
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "hello"));
    }
    forebay.stop();
}

#[test]
fn an_upload_under_way_is_finished() {
    let backend = ScriptedBackend::tcp([vec![
        ScriptStep::ReadHead,
        ScriptStep::Read(4),
        ScriptStep::send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ]]);
    let routes = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port());
    let mut forebay = site(Folder::new(), &routes);
    let mut client = forebay.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab");
    backend.wait_for_connection();
    forebay.signal(Signal::TERM);
    let address = Address::Tcp(forebay.address);
    assert!(eventually(|| Client::try_connect(&address).is_err()));
    client.send("cd");
    let reply = client.reply();
    assert_eq!((reply.text(), reply.header("Connection")), ("ok", Some("close")));
    let Forebay { process, .. } = forebay;
    assert_eq!(process.wait().status.code(), Some(0));
}

#[test]
fn a_port_in_use_is_named() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let folder = Folder::new();
    let exit = run(&[folder.path().to_str().unwrap(), "--listen", &address]);
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains(&address), "{}", exit.output);
    assert!(exit.output.contains("another program"), "{}", exit.output);

    let forebay = site(Folder::new(), "[[site.route]]\nrespond = \"x\"\n");
    let taken = forebay.address.to_string();
    let exit = run(&[folder.path().to_str().unwrap(), "--listen", &taken]);
    assert_eq!(exit.status.code(), Some(3), "even where another forebay has it: {}", exit.output);
    assert_eq!(forebay.get("/").text(), "x");
}

#[test]
fn errors_are_reported_before_any_start() {
    let folder = Folder::new();
    let file = folder.write(
        "site.toml",
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\nfile = \"htdocs\"\n",
    );
    let file = file.to_str().unwrap();
    let exit = run(&[file]);
    assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
    assert!(exit.output.contains(&format!("{file}:5")), "{}", exit.output);
    assert!(exit.output.contains("did you mean"), "{}", exit.output);

    let missing = folder.path().join("none.toml");
    let exit = run(&[missing.to_str().unwrap()]);
    assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
    assert!(exit.output.contains("none.toml"), "{}", exit.output);
    for arguments in
        [&["--to", "ftp://x/"][..], &[], &["--listen", "nonsense", "."], &["--no-such-flag"]]
    {
        let exit = run(arguments);
        assert_eq!(exit.status.code(), Some(2), "{arguments:?}: {}", exit.output);
        assert!(!exit.output.is_empty(), "{arguments:?}");
    }
}

#[test]
fn signals_while_applications_start_end_nothing() {
    let folder = Folder::new();
    folder.write(
        "app.psgi",
        "open my $loads, '>', \"$ENV{WHERE}/loads\";\n\
         for (1 .. 2000) { last if -e \"$ENV{WHERE}/go\"; select undef, undef, undef, 0.01 }\n\
         sub { [200, [], ['up']] };\n",
    );
    let file = write_configuration(
        &folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"slow\"\n\
         [app.slow]\nkind = \"psgi\"\nfile = \"app.psgi\"\nenv = { WHERE = \"{tmp}\" }\n",
    );
    let mut process = Process::start(command(&[file.to_str().unwrap()]));
    assert!(eventually(|| folder.path().join("loads").exists()), "{}", process.output());
    process.signal(Signal::HUP);
    process.signal(Signal::USR1);
    folder.write("go", "");
    process.wait_for_output("serving http://");
    process.wait_for_output("serving by the configuration as it is now");
    let exit = process.stop();
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
}

/// Serves as `www-data` if possible, with its log in a directory of root.
fn logging_as_another_user() -> (Forebay, bool) {
    let folder = Folder::new();
    folder.write("logs/old", "");
    let logs = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.path().join("logs"), logs).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let user = if is_root { "[server]\nuser = \"www-data\"\n" } else { "" };
    let forebay = serve(
        folder,
        &format!(
            "{user}[log]\naccess = \"logs/access.log\"\nformat = \"%U\"\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/own/*\"\n\
             respond = \"own\"\nlog = {{ access = \"logs/own.log\" }}\n\
             [[site.route]]\nrespond = \"hello\"\n"
        ),
    );
    (forebay, is_root)
}

#[test]
fn a_log_is_rotated_after_root_was_given_up() {
    let (mut forebay, is_root) = logging_as_another_user();
    let logs = forebay.folder.path().join("logs");
    let (path, text) = (logs.join("access.log"), |name: &str| {
        fs::read_to_string(logs.join(name)).unwrap_or_default()
    });
    for round in 1..=3 {
        forebay.get(&format!("/before-{round}"));
        forebay.get(&format!("/own/{round}"));
        assert!(eventually(|| text("access.log").contains(&format!("/before-{round}"))));
        assert!(eventually(|| text("own.log") == format!("/own/{round}\n")), "{}", text("own.log"));
        let old = format!("old-{round}");
        fs::rename(&path, logs.join(&old)).unwrap();
        fs::rename(logs.join("own.log"), logs.join("old-own.log")).unwrap();
        forebay.signal(Signal::USR1);
        let are_there = || path.exists() && logs.join("own.log").exists();
        assert!(eventually(are_there), "{}", forebay.output());
        forebay.get(&format!("/behind-{round}"));
        assert!(eventually(|| text("access.log").contains(&format!("/behind-{round}"))));
        assert!(!text(&old).contains(&format!("/behind-{round}")), "{}", text(&old));
        let owner = fs::metadata(&path).unwrap().uid();
        assert_ne!(owner == 0, is_root, "the new log is the user's");
    }
    // Another program has made the file, as logrotate does with `create`.
    fs::rename(&path, logs.join("old-4")).unwrap();
    fs::write(&path, "").unwrap();
    forebay.signal(Signal::USR1);
    forebay.get("/a");
    let moved_on = || {
        forebay.get("/last");
        text("access.log").contains("/last")
    };
    assert!(eventually(moved_on), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_link_in_place_of_the_log_is_not_opened_by_root() {
    let (mut forebay, is_root) = logging_as_another_user();
    if !is_root {
        return;
    }
    let path = forebay.folder.path().join("logs/access.log");
    let secret = forebay.folder.write("secret", "");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let links: [fn(&Path, &Path) -> std::io::Result<()>; 2] =
        [|to, at| std::os::unix::fs::symlink(to, at), |to, at| fs::hard_link(to, at)];
    for (count, link) in links.into_iter().enumerate() {
        fs::remove_file(&path).unwrap();
        link(&secret, &path).unwrap();
        forebay.signal(Signal::USR1);
        let refusals = || {
            forebay.output().matches("cannot reopen the access log, keeping the old file").count()
        };
        assert!(eventually(|| refusals() == count + 1), "{}", forebay.output());
        forebay.get("/forged");
    }
    // The parent directory is exchanged for another one of root.
    fs::remove_file(&path).unwrap();
    let folder = forebay.folder.path().to_owned();
    let (logs, moved, vault) = (folder.join("logs"), folder.join("moved"), folder.join("vault"));
    forebay.folder.write("vault/other", "");
    fs::set_permissions(&vault, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&logs, &moved).unwrap();
    std::os::unix::fs::symlink(&vault, &logs).unwrap();
    forebay.signal(Signal::USR1);
    forebay.wait_for_output("its path leads to another directory than at start; restart Forebay");
    assert!(!vault.join("access.log").exists() && !moved.join("access.log").exists());
    fs::remove_file(&logs).unwrap();
    fs::rename(&moved, &logs).unwrap();
    forebay.signal(Signal::USR1);
    assert!(eventually(|| path.exists()), "{}", forebay.output());
    let (_, _folder) = forebay.stop();
    assert_eq!(fs::read_to_string(secret).unwrap(), "");
}

#[test]
fn the_opener_of_the_log_ends_only_with_its_server() {
    let (mut forebay, is_root) = logging_as_another_user();
    if !is_root {
        return;
    }
    let path = forebay.folder.path().join("logs/access.log");
    let is_opener = |id: &u32| {
        fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("__open-log"))
    };
    let opener = descendants(forebay.process.id()).into_iter().find(is_opener).expect("an opener");
    let opener = rustix::process::Pid::from_raw(opener.cast_signed()).unwrap();
    for signal in [Signal::USR1, Signal::HUP, Signal::INT, Signal::TERM] {
        rustix::process::kill_process(opener, signal).unwrap();
    }
    fs::remove_file(&path).unwrap();
    forebay.signal(Signal::USR1);
    assert!(eventually(|| path.exists()), "{}", forebay.output());
    // With its server, which `stop` checks.
    forebay.stop();
}

#[test]
fn without_proc_a_server_gives_up_root_all_the_same() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let hidden = "mount -t tmpfs tmpfs /proc";
    let unshare = |script: &str| {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["-m", "sh", "-c", script, "sh"]);
        unshare
    };
    if !unshare(hidden).output().is_ok_and(|output| output.status.success()) {
        peer::skip("/proc cannot be hidden here (unshare -m; mount -t tmpfs)");
        return;
    }
    let folder = Folder::new();
    let file = write_configuration(
        &folder,
        "[server]\nuser = \"www-data\"\n[log]\naccess = \"access.log\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"hello\"\n",
    );
    let serve = command(&["--threads", "2", file.to_str().unwrap()]);
    let mut mounted = unshare(&format!("{hidden} && exec \"$@\""));
    mounted.arg(serve.get_program()).args(serve.get_args());
    let mut forebay = serve_command(folder, mounted);
    forebay.wait_for_output("cannot start the process that reopens access logs as root");
    assert_eq!(forebay.get("/").text(), "hello");
    forebay.stop();
}

/// A program of a container's first process must reap what others leave.
#[test]
fn as_process_1_the_server_reaps_orphans_and_passes_signals_on() {
    let unshare = || {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        peer::skip("no process can be process 1 here (unshare --pid --mount-proc)");
        return;
    }
    let folder = Folder::new();
    let script =
        "#!/bin/sh\n(sleep 0.01 >/dev/null 2>&1 &)\nprintf 'Content-Type: text/plain\\n\\nok'\n";
    folder.script("cgi/leave", script);
    let configuration = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\ncgi = \"cgi\"\n";
    let file = write_configuration(&folder, configuration);
    let serve = command(&["--threads", "2", file.to_str().unwrap()]);
    let mut first = unshare();
    first.arg(serve.get_program()).args(serve.get_args());
    let mut forebay = serve_command(folder, first);
    for _ in 0..20 {
        assert_eq!(forebay.get("/leave").text(), "ok");
    }
    // The first process below `unshare`, which takes no signals for it.
    let [init, ..] = support::proc::children(forebay.process.id())[..] else {
        panic!("no process 1")
    };
    let is_zombie = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        stat.contains(&format!(") Z {init} "))
    };
    let has_zombies = || fs::read_dir("/proc").unwrap().flatten().any(is_zombie);
    assert!(eventually(|| !has_zombies()), "{}", forebay.output());
    support::proc::signal(init, Signal::USR2);
    forebay.wait_for_output("process 1 of a container");
    support::proc::signal(init, Signal::TERM);
    assert_eq!(forebay.process.wait().status.code(), Some(0));
}

const LOGGED: &str = "[log]\naccess = \"logs/access.log\"\nformat = \"%U\"\n\
                      [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"hello\"\n";
const AS_ANOTHER: &str = "[server]\nuser = \"www-data\"\n";

/// Returns the message of `check` and `serve` about a configuration that both refuse.
fn refused(folder: &Folder, configuration: &str) -> String {
    let file = write_configuration(folder, configuration);
    let said = ["check", "serve"].map(|verb| {
        let mut command = std::process::Command::new(support::program());
        command.arg(verb).arg(&file);
        let exit = Process::start(command).wait();
        assert_eq!(exit.status.code(), Some(2), "{verb}: {}", exit.output);
        exit.output
    });
    assert_eq!(said[0], said[1]);
    said[0].split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The log's directory may belong to the user, who may make a link before root opens the log.
#[test]
fn root_follows_links_of_its_own_alone_when_it_opens_the_log() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let configuration = format!("{AS_ANOTHER}{LOGGED}");
    let folder = Folder::new();
    let secret = folder.write("secret", "");
    folder.write("logs/old", "");
    let path = folder.path().join("logs/access.log");
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    std::os::unix::fs::lchown(&path, Some(33), Some(33)).unwrap();
    let said = refused(&folder, &configuration);
    assert!(said.contains("belongs to user 33") && said.contains("chown -h root"), "{said}");
    fs::remove_file(&path).unwrap();
    fs::hard_link(&secret, &path).unwrap();
    let file = write_configuration(&folder, &configuration);
    let exit = run(&[file.to_str().unwrap()]);
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("a second name"), "{}", exit.output);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "");
    // An administrator has moved the log to another disk. New files there belong to the user.
    fs::remove_file(&path).unwrap();
    folder.write("disk/old", "");
    let disk = folder.path().join("disk");
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("../disk/access", &path).unwrap();
    let mut forebay = serve(folder, &configuration);
    let log = disk.join("access");
    assert_eq!(fs::metadata(&log).unwrap().uid(), 33);
    fs::rename(&log, disk.join("rotated")).unwrap();
    forebay.signal(Signal::USR1);
    assert!(eventually(|| log.exists()), "{}", forebay.output());
    forebay.get("/rotated");
    let (_, _folder) = forebay.stop();
    assert_eq!(fs::read_to_string(&log).unwrap(), "/rotated\n");
}

#[test]
fn a_fifo_is_no_access_log() {
    let folder = Folder::new();
    folder.write("logs/old", "");
    let path = folder.path().join("logs/access.log");
    let make_fifo = || {
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    };
    make_fifo();
    let said = refused(&folder, LOGGED);
    assert!(said.contains("neither a regular file"), "{said}");
    fs::remove_file(&path).unwrap();
    let mut forebay = serve(folder, LOGGED);
    let old = path.with_file_name("old");
    fs::rename(&path, &old).unwrap();
    make_fifo();
    forebay.signal(Signal::USR1);
    forebay.wait_for_output("cannot reopen the access log, keeping the old file");
    forebay.get("/on");
    let (_, _folder) = forebay.stop();
    assert_eq!(fs::read_to_string(old).unwrap(), "/on\n");
}

#[test]
fn devices_and_standard_output_are_access_logs() {
    for path in ["/dev/null", "/dev/stdout", "/dev/stderr"] {
        let forebay = serve(Folder::new(), &LOGGED.replace("logs/access.log", path));
        forebay.get("/a-line");
        let (exit, _folder) = forebay.stop();
        assert_eq!(exit.output.contains("/a-line"), path != "/dev/null", "{}", exit.output);
    }
}

#[test]
fn a_second_signal_ends_what_waits_for_who_reads_no_log() {
    let folder = Folder::new();
    let fifo = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _reader = fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let file = write_configuration(&folder, &LOGGED.replace("logs/access.log", "stdout"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$@\" > \"$0\""]).arg(&fifo);
    let forebay = command(&["--threads", "2", file.to_str().unwrap()]);
    shell.arg(forebay.get_program()).args(forebay.get_args());
    let mut forebay = serve_command(folder, shell);
    let long = format!("/{}", "x".repeat(4000));
    (0..40).for_each(|_| assert_eq!(forebay.get(&long).status, 200));
    forebay.signal(Signal::USR1);
    assert_eq!(forebay.get("/").status, 200);
    forebay.signal(Signal::TERM);
    let address = Address::Tcp(forebay.address);
    assert!(eventually(|| Client::try_connect(&address).is_err()));
    forebay.signal(Signal::TERM);
    forebay.process.wait();
}

/// The program handles the first signal itself. It has an hour for this.
#[test]
fn a_second_signal_ends_applications_that_ignore_the_first() {
    let folder = Folder::new();
    folder.write(
        "app.py",
        "import http.server, os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         open('pid', 'w').write(str(os.getpid()))\n\
         http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), \
         http.server.SimpleHTTPRequestHandler).serve_forever()\n",
    );
    let mut forebay = serve(
        folder,
        "[server]\ngrace = \"1h\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"deaf\"\n\
         [app.deaf]\nkind = \"command\"\nrun = [\"python3\", \"{tmp}/app.py\", \"{port}\"]\nspeaks = \"http\"\ndir = \"{tmp}\"\n\
         stop_timeout = \"1h\"\n",
    );
    assert!(eventually(|| forebay.get("/app.py").status == 200), "{}", forebay.output());
    let id = fs::read_to_string(forebay.folder.path().join("pid")).unwrap();
    forebay.signal(Signal::TERM);
    let address = Address::Tcp(forebay.address);
    assert!(eventually(|| Client::try_connect(&address).is_err()));
    forebay.signal(Signal::TERM);
    let Forebay { process, folder: _folder, .. } = forebay;
    let exit = process.wait();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    assert!(eventually(|| !is_alive(&id)), "the application ends, too");
}

#[test]
fn an_application_that_does_not_start_is_named() {
    let folder = Folder::new();
    folder.write("scripts/x.pl", "");
    let configuration = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"shop\"\n\
         [app.shop]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nenv = { PERL5OPT = \"-MNo::Such\" }\n";
    let mut forebay = serve(folder, configuration);
    forebay.wait_for_output("its requests are answered with 503");
    assert_eq!(forebay.get("/x.pl").status, 503);
    let (exit, _folder) = forebay.stop();
    assert!(exit.output.contains("shop") && exit.output.contains("No/Such"), "{}", exit.output);
    assert!(exit.output.contains("did not become ready"), "{}", exit.output);
    assert!(!exit.output.contains("signal"), "it has ended by itself: {}", exit.output);
}

#[test]
fn a_unix_socket_is_served_and_replaced_when_stale() {
    let folder = Folder::new();
    let path = folder.path().join("http.socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let configuration = "[[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{tmp}/http.socket\"]\n\
                         [[site.route]]\nrespond = \"hello\"\n";
    let forebay = serve(folder, configuration);
    assert_eq!(Client::connect(&path).get("/").text(), "hello");
    assert_eq!(forebay.get("/").text(), "hello");
    let folder = Folder::new();
    let second = format!("unix:{}", path.display());
    let exit = run(&[folder.path().to_str().unwrap(), "--listen", &second]);
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert_eq!(Client::connect(&path).get("/").text(), "hello");
    forebay.stop();
    assert!(!path.exists(), "it goes with its server");
}

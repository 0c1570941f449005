//! `forebay serve` with persistent Perl workers for unchanged CGI scripts.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use rustix::process::{Pid, Signal, kill_process};
use support::{Forebay, chunked, is_alive, pattern, serve};

const HELLO: &str =
    "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nhello $ENV{QUERY_STRING}\";\n";
const PID: &str = "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n$$\";\n";
const ECHO: &str = "#!/usr/bin/perl\nbinmode STDIN; binmode STDOUT;\n\
    print \"Content-Type: application/octet-stream\\nX-Length: $ENV{CONTENT_LENGTH}\\n\\n\";\n\
    local $/ = \\65536; while (my $piece = <STDIN>) { print $piece }\n";

fn app(files: &[(&str, &str)], keys: &str) -> Forebay {
    let folder = Folder::new();
    for (name, content) in [("hello.pl", HELLO), ("pid.pl", PID), ("echo.pl", ECHO)] {
        folder.script(&format!("scripts/{name}"), content);
    }
    for (name, content) in files {
        folder.script(&format!("scripts/{name}"), content);
    }
    serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/s/*\"\napp = \"scripts\"\n\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nmode = \"registry\"\n\
             env = {{ WHERE = \"{{tmp}}\" }}\n{keys}\n"
        ),
    )
}

#[test]
fn one_worker_answers_many_requests() {
    let forebay = app(&[], "workers = 1");
    let pids: Vec<_> = (0..20).map(|_| forebay.get("/s/pid.pl").text().to_owned()).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    assert!(is_alive(&pids[0]));
    let (exit, _) = forebay.stop();
    assert!(!is_alive(&pids[0]), "{}", exit.output);
}

#[test]
fn clients_of_both_threads_are_served() {
    let forebay = app(&[], "workers = 2");
    thread::scope(|scope| {
        for client in 0..8 {
            let forebay = &forebay;
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for n in 0..50 {
                    let reply = connection.get(&format!("/s/hello.pl?{client}.{n}"));
                    assert_eq!(reply.text(), format!("hello {client}.{n}"));
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn requests_that_wait_for_each_other_all_get_a_worker() {
    // Enough requests that some find as many busy workers as processors, while others are idle.
    let seats = thread::available_parallelism().map_or(1, usize::from) + 2;
    let meeting = format!(
        "#!/usr/bin/perl\nopen my $seat, '>', \"$ENV{{WHERE}}/seat.$ENV{{QUERY_STRING}}\";\n\
         for (1 .. 2000) {{ last if {seats} <= (() = glob \"$ENV{{WHERE}}/seat.*\");\n\
         select undef, undef, undef, 0.01 }}\n\
         print \"Content-Type: text/plain\\n\\n\", scalar(() = glob \"$ENV{{WHERE}}/seat.*\");\n"
    );
    let forebay = app(&[("meeting.pl", &meeting)], &format!("workers = {seats}"));
    let each = |ask: &(dyn Fn(&mut Client, usize) + Sync)| {
        thread::scope(|scope| {
            for number in 0..seats {
                let forebay = &forebay;
                scope.spawn(move || ask(&mut forebay.connect(), number));
            }
        });
    };
    // Many requests that only compute: from then on, requests wait for a worker that has just
    // begun.
    each(&|client, _| (0..400).for_each(|_| assert_eq!(client.get("/s/hello.pl").status, 200)));
    let meet = |client: &mut Client, number| {
        assert_eq!(client.get(&format!("/s/meeting.pl?{number}")).text(), seats.to_string());
    };
    each(&meet);
    forebay.stop();
}

#[test]
fn bodies_arrive_exactly() {
    let forebay = app(&[], "workers = 1");
    let body = pattern(1_000_000);
    let mut client = forebay.connect();
    for length in [1, 65_536, 65_537, 262_145, 1_000_000] {
        client.send(format!(
            "POST /s/echo.pl HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(&body[..length]);
        let reply = client.reply();
        assert!(reply.body == body[..length], "{length}");
        client.send("POST /s/echo.pl HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body[..length].chunks(9_001).collect::<Vec<_>>()));
        let reply = client.reply();
        assert_eq!(reply.header("X-Length"), Some(length.to_string().as_str()));
        assert!(reply.body == body[..length], "chunked {length}");
    }
    assert_eq!(client.get("/s/hello.pl?x").text(), "hello x");
}

#[test]
fn output_arrives_as_it_is_printed() {
    let steps = "#!/usr/bin/perl\n$| = 1;\nprint \"Content-Type: text/plain\\n\\none\";\n\
        open my $go, '<', \"$ENV{WHERE}/go\"; <$go>; close $go;\nprint 'two';\n";
    let forebay = app(&[("steps.pl", steps)], "workers = 1");
    let fifo = forebay.folder.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut client = forebay.connect();
    client.send("GET /s/steps.pl HTTP/1.1\r\nHost: h\r\n\r\n");
    client.reply_to_head();
    assert_eq!(client.bytes(8), b"3\r\none\r\n");
    fs::write(&fifo, "\n").unwrap();
    assert_eq!(client.bytes(13), b"3\r\ntwo\r\n0\r\n\r\n");
    assert_eq!(client.get("/s/hello.pl?x").text(), "hello x");
}

#[test]
fn output_during_a_pause_is_not_delayed() {
    // The second piece of each pair is printed after a pause that makes the gateway send the first.
    let pairs = "#!/usr/bin/perl\n$| = 1;\nprint \"Content-Type: text/plain\\n\\n\";\n\
        for my $pair (1 .. 40) {\nprint 'A'; select undef, undef, undef, $pair / 10_000; print 'B';\n\
        open my $go, '<', \"$ENV{WHERE}/go\"; <$go>; close $go;\n}\n";
    let forebay = app(&[("pairs.pl", pairs)], "workers = 1");
    let fifo = forebay.folder.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut client = forebay.connect();
    client.send("GET /s/pairs.pl HTTP/1.0\r\nHost: h\r\n\r\n");
    client.reply_to_head();
    for pair in 1..=40 {
        assert_eq!(client.bytes(2), b"AB", "pair {pair}");
        fs::write(&fifo, "\n").unwrap();
    }
}

#[test]
fn failures_are_clean() {
    let files = [
        ("dies.pl", "#!/usr/bin/perl\ndie \"for a reason\\n\";\n"),
        ("syntax.pl", "#!/usr/bin/perl\nthis is no perl(;\n"),
        ("no-header.pl", "#!/usr/bin/perl\nprint 'hello world';\n"),
        ("kill.pl", "#!/usr/bin/perl\nkill 9, $$; sleep 10;\n"),
        ("status.pl", "#!/usr/bin/perl\nprint \"Status: 404 Gone Away\\nX-A: b\\n\\nno\";\n"),
        ("exit.pl", "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nbye\"; exit 3;\n"),
    ];
    let mut forebay = app(&files, "workers = 1");
    for (name, status) in [
        ("dies.pl", 500),
        ("syntax.pl", 500),
        ("no-header.pl", 502),
        ("kill.pl", 502),
        ("status.pl", 404),
        ("exit.pl", 200),
        ("missing.pl", 404),
        ("hello.pl", 200),
    ] {
        let reply = forebay.get(&format!("/s/{name}"));
        assert_eq!(reply.status, status, "{name}: {}", forebay.output());
    }
    for word in ["for a reason", "syntax error"] {
        forebay.wait_for_output(word);
    }
    forebay.stop();
}

#[test]
fn a_worker_killed_under_load_costs_at_most_its_request() {
    /// A worker was killed after its reply had begun, so the connection ends.
    const CUT_OFF: u16 = 0;
    let forebay = app(&[], "workers = 2");
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let forebay = &forebay;
                scope.spawn(move || {
                    let mut counts = BTreeMap::new();
                    let mut connection = forebay.connect();
                    for n in 0..100 {
                        let reply = connection.try_get(&format!("/s/hello.pl?{n}"));
                        let status = reply.as_ref().map_or(CUT_OFF, |reply| reply.status);
                        match reply {
                            Ok(reply) if status == 200 => {
                                assert_eq!(reply.text(), format!("hello {n}"));
                            }
                            Ok(_) => {}
                            Err(_) => connection = forebay.connect(),
                        }
                        *counts.entry(status).or_insert(0) += 1;
                    }
                    counts
                })
            })
            .collect();
        for _ in 0..5 {
            let pid = forebay.connect().try_get("/s/pid.pl");
            if let Ok(pid) = pid
                && pid.status == 200
            {
                let kill = std::process::Command::new("kill").args(["-9", pid.text()]).status();
                assert!(kill.is_ok());
            }
        }
        let mut sum = BTreeMap::new();
        for client in clients {
            for (status, count) in client.join().unwrap() {
                *sum.entry(status).or_insert(0) += count;
            }
        }
        sum
    });
    let served = counts.get(&200).copied().unwrap_or(0);
    assert!(served >= 395, "{counts:?}: {}", forebay.output());
    assert!(counts.keys().all(|status| matches!(*status, 200 | 502 | CUT_OFF)), "{counts:?}");
    assert!(eventually(|| forebay.get("/s/hello.pl").status == 200));
    forebay.stop();
}

#[test]
fn workers_are_recycled_without_a_failure() {
    let forebay = app(&[], "workers = 2\nmax_requests = 10");
    thread::scope(|scope| {
        for _ in 0..4 {
            let forebay = &forebay;
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for n in 0..50 {
                    let reply = connection.get(&format!("/s/hello.pl?{n}"));
                    assert_eq!(reply.text(), format!("hello {n}"), "{}", forebay.output());
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn limits_of_an_application_hold() {
    let slow = "#!/usr/bin/perl\nopen my $f, '>', \"$ENV{WHERE}/pid\"; print $f \"$$\\n\"; close $f;\n\
        sleep 1000;\n";
    let keys = "workers = 1\nrequest_timeout = \"2s\"\nqueue = 1\nqueue_timeout = \"500ms\"";
    let forebay = app(&[("slow.pl", slow)], keys);
    let mut first = forebay.connect();
    first.send("GET /s/slow.pl HTTP/1.1\r\nHost: h\r\n\r\n");
    let pid = forebay.folder.path().join("pid");
    assert!(eventually(|| fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))));
    assert_eq!(forebay.get("/s/hello.pl").status, 503, "waited for too long");
    assert_eq!(first.reply().status, 504);
    let pid = fs::read_to_string(pid).unwrap();
    assert!(eventually(|| !is_alive(&pid)));
    assert!(eventually(|| forebay.get("/s/hello.pl").status == 200));
    forebay.stop();
}

/// A worker's script, which writes its client's address, and the first of which waits for a file.
const TURNS: &str = "#!/usr/bin/perl\nopen my $f, '>>', \"$ENV{WHERE}/turns\";\n\
    print $f \"$ENV{REMOTE_ADDR}\\n\"; close $f;\n\
    until (-e \"$ENV{WHERE}/go\") { select undef, undef, undef, 0.01 }\n\
    print \"Content-Type: text/plain\\n\\nx\";\n";

/// Sends 20 requests of one visitor and then one of another to one worker. Returns the addresses in
/// the order in which they were served.
fn turns(keys: &str) -> Vec<String> {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let folder = Folder::new();
    folder.script("scripts/turns.pl", TURNS);
    let forebay = serve(
        folder,
        &format!(
            "[server]\nadmin = \"{admin}\"\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
             [[site.route]]\napp = \"scripts\"\n\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 1\n\
             queue_timeout = \"60s\"\nenv = {{ WHERE = \"{{tmp}}\" }}\n{keys}\n"
        ),
    );
    let wait = |number: usize| {
        let metric = format!("forebay_app_waiting{{app=\"scripts\"}} {number}\n");
        let asked = || {
            let mut client = Client::connect(admin);
            client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.reply().text().contains(&metric)
        };
        assert!(eventually(asked), "{number} wait; {}", forebay.output());
    };
    let ask = |address: &str| {
        let mut client = forebay.connect();
        client.send(format!(
            "GET /turns.pl HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {address}\r\n\r\n"
        ));
        client
    };
    let written = forebay.folder.path().join("turns");
    let mut clients = vec![ask("192.0.2.1")];
    assert!(eventually(|| written.exists()));
    clients.extend((0..20).map(|_| ask("192.0.2.1")));
    wait(20);
    clients.push(ask("192.0.2.2"));
    wait(21);
    forebay.folder.write("go", "");
    for mut client in clients {
        assert_eq!(client.reply().status, 200);
    }
    let turns = fs::read_to_string(written).unwrap();
    forebay.stop();
    turns.lines().map(str::to_owned).collect()
}

#[test]
fn a_visitor_does_not_wait_behind_all_requests_of_another() {
    let place = |turns: &[String]| turns.iter().position(|client| client == "192.0.2.2").unwrap();
    for mode in ["registry", "fork"] {
        let fair = turns(&format!("mode = \"{mode}\""));
        assert_eq!(fair.len(), 22, "{fair:?}");
        assert!(place(&fair) <= 2, "{mode} {fair:?}");
        let by_arrival = turns(&format!("mode = \"{mode}\"\nfair = \"\""));
        assert_eq!(place(&by_arrival), 21, "{mode} {by_arrival:?}");
    }
}

#[test]
fn clients_that_leave_early_do_not_cost_a_worker_each() {
    let forebay = app(&[], "workers = 1");
    let pid = forebay.get("/s/pid.pl").text().to_owned();
    for _ in 0..20 {
        let mut client = forebay.connect();
        client.send("GET /s/hello.pl HTTP/1.1\r\nHost: h\r\n\r\n");
        drop(client);
    }
    assert_eq!(forebay.get("/s/pid.pl").text(), pid);
    forebay.stop();
}

#[test]
fn a_worker_is_freed_on_request_when_the_client_has_gone() {
    let slow = "#!/usr/bin/perl\nopen my $f, '>', \"$ENV{WHERE}/pid\"; print $f \"$$\\n\"; close $f;\n\
        sleep 1000;\n";
    let forebay =
        app(&[("slow.pl", slow)], "workers = 1\nqueue_timeout = \"15s\"\non_abort = \"stop\"");
    let mut client = forebay.connect();
    client.send("GET /s/slow.pl HTTP/1.1\r\nHost: h\r\n\r\n");
    let pid = forebay.folder.path().join("pid");
    assert!(eventually(|| fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'))));
    drop(client);
    assert_eq!(forebay.get("/s/hello.pl?x").text(), "hello x");
    forebay.stop();
}

#[test]
fn scripts_answer_as_behind_mod_perl() {
    let dump = "#!/usr/bin/perl\nuse strict; use warnings;\n\
        print \"Content-Type: text/plain\\nX-Own: yes\\n\\n\";\n\
        for (qw(GATEWAY_INTERFACE REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_URI \
        SERVER_NAME SERVER_PROTOCOL REMOTE_ADDR CONTENT_LENGTH CONTENT_TYPE HTTP_HOST \
        HTTP_USER_AGENT HTTP_X_THING HTTP_COOKIE)) {\n\
        print \"$_=\", $ENV{$_} // '(none)', \"\\n\" }\n\
        local $/; print defined($_ = <STDIN>) ? $_ : '', \"\\n\"; print \"args @ARGV\\n\";\n\
        our $count; print 'count ', ++$count > 0 ? 'kept' : '', \"\\n\";\n";
    let forebay = app(&[("dump.pl", dump)], "workers = 1");
    let dir = forebay.folder.path().join("scripts");
    let conf = format!(
        "PerlModule ModPerl::Registry\nAlias /s/ \"{0}/\"\n<Directory \"{0}\">\n\
         Options ExecCGI\nSetHandler perl-script\nPerlResponseHandler ModPerl::Registry\n\
         PerlOptions +ParseHeaders\nRequire all granted\n</Directory>\nUseCanonicalName Off\n",
        dir.display()
    );
    let Some(apache) = peer::apache(&["alias", "perl"], &conf) else { return };
    for request in [
        "GET /s/dump.pl HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /s/dump.pl/a%20b/c?x=y%20z HTTP/1.1\r\nHost: localhost\r\nUser-Agent: t\r\n\
         X-Thing: 1\r\nX-Thing: 2\r\nCookie: a=b\r\n\r\n",
        "POST /s/dump.pl HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
         Content-Length: 4\r\n\r\nbody",
        "GET /s/hello.pl?1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let answers = [Client::connect(forebay.address), Client::connect(apache.address())].map(
            |mut client| {
                client.send(request);
                let reply = client.reply();
                // Some versions of ModPerl::Registry set CGI-Perl/1.1.
                let text = reply.text().replace("CGI-Perl/1.1", "CGI/1.1");
                (reply.status, reply.header("X-Own").map(str::to_owned), text)
            },
        );
        assert_eq!(answers[0], answers[1], "{request}");
    }
    apache.stop();
}

/// A script that prints a text from its own module.
const USES: (&str, &str) = (
    "uses.pl",
    "use lib $ENV{WHERE} . '/lib'; require Own;\nprint \"Content-Type: text/plain\\n\\n\", Own::word();\n",
);

/// Requests `/s/uses.pl` while `during` runs. Every reply is one of `words`.
fn ask_meanwhile(forebay: &Forebay, words: &[&str], during: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.get("/s/uses.pl");
                    assert_eq!(reply.status, 200, "{}", forebay.output());
                    assert!(words.contains(&reply.text()), "{}", reply.text());
                }
            });
        }
        during();
        drop(stopping);
    });
}

#[test]
fn a_change_of_watched_files_replaces_the_workers_without_a_failure() {
    let folder = Folder::new();
    let module = |word: &str| format!("package Own; sub word {{ '{word}' }} 1;\n");
    folder.write("lib/Own.pm", module("old"));
    folder.script("scripts/uses.pl", USES.1);
    folder.script("scripts/pid.pl", PID);
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/s/*\"\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 3\nwatch = [\"../lib\"]\n\
         env = { WHERE = \"{tmp}\" }\n",
    );
    let old = forebay.get("/s/pid.pl").text().to_owned();
    ask_meanwhile(&forebay, &["old", "new"], || {
        fs::write(forebay.folder.path().join("lib/Own.pm"), module("new")).unwrap();
        assert!(eventually(|| !is_alive(&old)), "{}", forebay.output());
        let all_are_new = || (0..20).all(|_| forebay.get("/s/uses.pl").text() == "new");
        assert!(eventually(all_are_new), "{}", forebay.output());
    });
    forebay.wait_for_output("files have changed");
    forebay.stop();
}

#[test]
fn a_missing_watched_file_is_reported_and_noticed_later() {
    let mut forebay = app(&[], "workers = 1\nwatch = [\"restart.txt\"]");
    forebay.wait_for_output("nothing to watch: ");
    let old = forebay.get("/s/pid.pl").text().to_owned();
    fs::write(forebay.folder.path().join("scripts/restart.txt"), "").unwrap();
    assert!(eventually(|| !is_alive(&old)), "{}", forebay.output());
    assert!(eventually(|| forebay.get("/s/pid.pl").status == 200), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn workers_are_replaced_when_they_are_old() {
    let forebay = app(&[USES], "workers = 2\nmax_age = \"300ms\"");
    forebay.folder.write("lib/Own.pm", "package Own; sub word { 'x' } 1;\n");
    let old = forebay.get("/s/pid.pl").text().to_owned();
    ask_meanwhile(&forebay, &["x"], || {
        assert!(eventually(|| !is_alive(&old)), "{}", forebay.output());
    });
    forebay.stop();
}

#[test]
fn workers_have_the_user_and_the_limits_that_they_were_given() {
    if !rustix::process::geteuid().is_root() {
        return peer::skip("only root can start processes as another user");
    }
    let keys = "workers = 1\nuser = \"www-data\"\nlimits = { open_files = 99, processes = 500 }";
    let forebay = app(&[], keys);
    let reply = forebay.get("/s/pid.pl");
    assert_eq!(reply.status, 200, "{}", forebay.output());
    let proc = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", reply.text())).unwrap();
    assert!(proc("status").contains("\nUid:\t33\t33\t33\t33\n"));
    let limits = proc("limits");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("99"));
    let pid = reply.text().to_owned();
    kill_process(Pid::from_raw(forebay.process.id() as i32).unwrap(), Signal::KILL).unwrap();
    assert!(eventually(|| !is_alive(&pid)), "it ends with Forebay all the same");
}

#[test]
fn workers_of_a_user_need_root() {
    if rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    folder.script("scripts/pid.pl", PID);
    let text = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"a\"\n[app.a]\n\
         kind = \"perl-cgi\"\ndir = \"scripts\"\nuser = \"root\"\n";
    let file = support::write_configuration(&folder, text);
    let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
    assert!(exit.output.contains("only root can start processes"), "{}", exit.output);
}

#[test]
fn a_psgi_file_that_has_changed_is_loaded_at_a_reload_without_a_failure() {
    let folder = Folder::new();
    let psgi = |word: &str| {
        format!("my $w = '{word}'; sub {{ [200, ['Content-Type', 'text/plain'], [$w]] }}\n")
    };
    folder.write("app.psgi", psgi("old"));
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
         [app.a]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 2\n",
    );
    let own = Pid::from_raw(forebay.process.id() as i32).unwrap();
    let reloads = || forebay.output().matches("configuration as it is now").count();
    ask_meanwhile(&forebay, &["old", "new"], || {
        kill_process(own, Signal::HUP).unwrap();
        assert!(eventually(|| reloads() == 1));
        assert!(!forebay.output().contains("files have changed"), "{}", forebay.output());
        fs::write(forebay.folder.path().join("app.psgi"), psgi("new")).unwrap();
        kill_process(own, Signal::HUP).unwrap();
        assert!(eventually(|| reloads() == 2));
        let all_are_new = || (0..20).all(|_| forebay.get("/").text() == "new");
        assert!(eventually(all_are_new), "{}", forebay.output());
    });
    forebay.stop();
}

#[test]
fn workers_that_ended_at_once_are_started_again_for_a_request() {
    let folder = Folder::new();
    folder.write("lib/Own.pm", "package Own; sub word { 'x' } 1;\n");
    folder.script("scripts/pid.pl", PID);
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/s/*\"\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = { min = 0, max = 2 }\n\
         env = { PERL5OPT = \"-I{tmp}/lib -MOwn\" }\nidle_timeout = \"50ms\"\n",
    );
    let first = forebay.get("/s/pid.pl").text().to_owned();
    assert!(eventually(|| !is_alive(&first)), "it ends when idle");
    fs::write(forebay.folder.path().join("lib/Own.pm"), "die 'broken for now';\n").unwrap();
    assert!(eventually(|| forebay.get("/s/pid.pl").status == 503));
    forebay.wait_for_output("broken for now");
    forebay.wait_for_output("the next start is in");
    fs::write(forebay.folder.path().join("lib/Own.pm"), "1;\n").unwrap();
    assert!(eventually(|| forebay.get("/s/pid.pl").status == 200), "{}", forebay.output());
    forebay.stop();
}

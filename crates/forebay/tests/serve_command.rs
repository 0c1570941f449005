//! `forebay serve` with programs that listen themselves (`kind = "command"`).

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use rustix::process::Signal;
use support::load::{self, Counts};
use support::proc::descendants;
use support::{Forebay, chunked, is_alive, pattern, serve, write_configuration};

/// An HTTP server in core Perl. Its first argument is its address. It answers with the request and
/// its process id. Each kept connection has a child process.
const SERVER: &str = r#"
use strict; use warnings; use IO::Socket::INET; use IO::Socket::UNIX; use Socket;
$| = 1; $SIG{PIPE} = $SIG{CHLD} = 'IGNORE';
my ($where, @how) = @ARGV;
my $listen = $where =~ m{^/} ? IO::Socket::UNIX->new(Local => $where, Listen => 100)
    : $where eq 'fd3' ? do { open my $fd, '+<&=', 3 or die "fd 3: $!"; $fd }
    : IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $where, Listen => 100, ReuseAddr => 1);
die "cannot listen on $where: $!\n" if !$listen;
print "serving as $$ (@how)\n";
my $parent = $$;
while (1) {
    accept my $client, $listen or next;
    next if fork;
    close $listen;
    $client->autoflush(1);
    my $served = 0;
    while (defined(my $line = <$client>)) {
        my ($method, $target) = split / /, $line;
        my ($length, $host) = (0);
        while (defined($line = <$client>) && $line =~ /\S/) {
            $host = $1 if $line =~ /^host: *(.*?)\r/i;
            $length = $1 if $line =~ /^content-length:\s*(\d+)/i;
        }
        read $client, my $body, $length if $length;
        if ($target eq '/first') { exit if $served }
        $served = 1;
        if ($target eq '/exit') { kill 9, $parent; exit }
        if ($target =~ m{^/hang}) { print "hanging\n"; sleep 1000 }
        if ($target eq '/echo') {
            print $client "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
            while (<$client>) { print $client "<$_" }
            exit;
        }
        if ($target eq '/stream') {
            print $client "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            while (!-e 'go') { print $client "1\r\nx\r\n"; select undef, undef, undef, 0.05 }
            print $client "0\r\n\r\n";
            next;
        }
        if ($target eq '/fork') { if (!fork) { sleep 1000; exit } }
        my $text = $target eq '/env' ? join('', map { "$_=$ENV{$_}\n" } sort keys %ENV)
            : $target eq '/pid' ? $parent : $target eq '/how' ? "@how" : $target eq '/host' ? $host
            : "$method $target " . ($body // '');
        print $client "HTTP/1.1 200 OK\r\nContent-Length: ", length $text, "\r\n\r\n$text";
    }
    exit;
}
"#;

fn command(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("server.pl", SERVER);
    serve(folder, &configuration(keys))
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"own\"\n\
         [app.own]\nkind = \"command\"\n{keys}\n"
    )
}

const SOCKET: &str = "run = [\"perl\", \"{dir}/server.pl\", \"{socket}\"]\nspeaks = \"http\"";

#[test]
fn a_program_on_its_own_socket_is_asked() {
    let mut forebay = command(SOCKET);
    let mut client = forebay.connect();
    assert_eq!(client.get("/a?b").text(), "GET /a?b ");
    client.send("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.reply().text(), "POST /p body");
    let pid = client.get("/pid").text().to_owned();
    forebay.wait_for_output(&format!("serving as {pid}"));
    assert!(is_alive(&pid));
    forebay.stop();
    assert!(!is_alive(&pid));
}

/// Returns the number of guardians below a process. Each has one program.
fn guards(root: u32) -> usize {
    rooms_of(&descendants(root)).len()
}

fn kill(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}

#[test]
fn a_port_is_found_for_a_program() {
    let python = "run = [\"python3\", \"-u\", \"-m\", \"http.server\", \"--bind\", \"127.0.0.1\", \
                  \"{port}\"]\nspeaks = \"http\"\nworkers = 2";
    let forebay = command(python);
    for _ in 0..6 {
        let reply = forebay.get("/server.pl");
        assert_eq!((reply.status, reply.text()), (200, SERVER));
    }
    assert_eq!(forebay.get("/missing").status, 404);
    forebay.stop();
}

#[test]
fn a_program_is_told_its_own_name_where_it_asks_for_that() {
    let port = "run = [\"perl\", \"{dir}/server.pl\", \"{port}\"]\nspeaks = \"http\"";
    let ask = "GET /host HTTP/1.1\r\nHost: www.example.org\r\n\r\n";
    for (keys, own) in [(SOCKET, "localhost"), (port, "127.0.0.1:")] {
        for (host, told) in [("", "www.example.org"), ("host = \"backend\"", own)] {
            let forebay = command(&format!("{keys}\n{host}"));
            let reply = forebay.ask(ask);
            let host = reply.text().trim_end_matches(|c: char| c.is_ascii_digit());
            assert_eq!(host, told, "{}", forebay.output());
            forebay.stop();
        }
    }
}

#[test]
fn sockets_are_passed_on_by_both_conventions() {
    for listen in ["inherit", "inherit-port"] {
        let forebay = command(&format!(
            "run = [\"perl\", \"{{dir}}/server.pl\", \"fd3\"]\nspeaks = \"http\"\n\
             listen = \"{listen}\"\nenv = {{ OWN = \"x {{dir}}\" }}"
        ));
        let env = forebay.get("/env").text().to_owned();
        let value = |name: &str| {
            let line = env.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("{name} in {env}")).to_owned()
        };
        assert_eq!(value("LISTEN_FDS"), "1");
        assert_eq!(value("LISTEN_PID"), forebay.get("/pid").text());
        assert_eq!(value("OWN"), format!("x {}", forebay.folder.path().display()));
        let starter = value("SERVER_STARTER_PORT");
        let (place, fd) = starter.rsplit_once('=').unwrap();
        assert_eq!(fd, "3");
        assert_eq!(place.starts_with('/'), listen == "inherit", "{place}");
        assert!(!env.contains("CARGO"), "the environment is not passed on: {env}");
        forebay.stop();
    }
}

#[test]
fn starlet_runs_as_under_start_server() {
    if !forebay_testkit::peer::has_perl("Plack::Handler::Starlet", "starlet") {
        return;
    }
    for listen in ["inherit-port", "inherit"] {
        let folder = Folder::new();
        folder.write(
            "app.psgi",
            "sub { my $e = shift; read $e->{'psgi.input'}, my $b, $e->{CONTENT_LENGTH} || 0;\n\
             [200, ['Content-Type', 'text/plain'], [\"$e->{REQUEST_METHOD} $e->{PATH_INFO} $b\"]] }\n",
        );
        let forebay = serve(
            folder,
            &configuration(&format!(
                "run = [\"plackup\", \"-s\", \"Starlet\", \"-E\", \"deployment\", \
                 \"--max-workers\", \"2\", \"{{dir}}/app.psgi\"]\nspeaks = \"http\"\n\
                 listen = \"{listen}\"\nconnections = 2"
            )),
        );
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = forebay.connect();
                    for n in 0..25 {
                        let reply = client.get(&format!("/{n}"));
                        assert_eq!(reply.text(), format!("GET /{n} "), "{}", forebay.output());
                        client.send("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxy");
                        assert_eq!(client.reply().text(), "POST /p xy");
                    }
                });
            }
        });
        let left = descendants(forebay.process.id());
        forebay.stop();
        assert!(left.len() >= 3, "guard, parent and workers: {left:?}");
        assert!(left.iter().all(|pid| !is_alive(&pid.to_string())));
    }
}

#[test]
fn starman_listens_on_a_socket_of_its_own() {
    if !forebay_testkit::peer::has_perl("Starman", "starman") {
        return;
    }
    let folder = Folder::new();
    folder.write("app.psgi", "sub { [200, ['Content-Type', 'text/plain'], [$$]] }\n");
    let forebay = serve(
        folder,
        &configuration(
            "run = [\"starman\", \"--listen\", \"{socket}\", \"--workers\", \"2\", \
             \"{dir}/app.psgi\"]\nspeaks = \"http\"\nconnections = 2",
        ),
    );
    for _ in 0..20 {
        assert_eq!(forebay.get("/").status, 200);
    }
    forebay.stop();
}

#[test]
fn a_fastcgi_program_listens_on_descriptor_0() {
    if !forebay_testkit::peer::has_perl("FCGI", "libfcgi-perl") {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "own.pl",
        "use FCGI; my %env; my $r = FCGI::Request(\\*STDIN, \\*STDOUT, \\*STDERR, \\%env);\n\
         while ($r->Accept() >= 0) { read STDIN, my $b, $env{CONTENT_LENGTH} || 0;\n\
         print \"Content-Type: text/plain\\r\\n\\r\\n\",\n\
         join '|', @env{qw(REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING)}, length $b; }\n",
    );
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/own/*\"\napp = \"own\"\n\
         [app.own]\nkind = \"command\"\nrun = [\"perl\", \"{dir}/own.pl\"]\nspeaks = \"fastcgi\"\n\
         listen = \"stdin\"\nworkers = 2\n",
    );
    let body = pattern(300_000);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                for n in 0..20 {
                    let reply = client.get(&format!("/own/a/b?{n}"));
                    assert_eq!(
                        reply.text(),
                        format!("GET|/own|/a/b|{n}|0"),
                        "{}",
                        forebay.output()
                    );
                    client.send(
                        "POST /own/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
                    );
                    client.send(chunked(&[&body]));
                    assert_eq!(client.reply().text(), "POST|/own|/||300000");
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn scripts_are_found_by_fcgiwrap() {
    let Some(fcgiwrap) = forebay_testkit::peer::installed("fcgiwrap") else { return };
    let folder = Folder::new();
    folder
        .script("cgi/a.sh", "#!/bin/sh\necho Content-Type: text/plain; echo; echo $SCRIPT_NAME\n");
    let forebay = serve(
        folder,
        &configuration(&format!(
            "run = [{fcgiwrap:?}]\nspeaks = \"fastcgi\"\nlisten = \"stdin\"\nroot = \"cgi\""
        )),
    );
    assert_eq!(forebay.get("/a.sh").text(), "/a.sh\n");
    assert_eq!(forebay.get("/b.sh").status, 403, "fcgiwrap says so");
    forebay.stop();
}

#[test]
fn a_program_starts_with_the_first_request_and_stops_when_idle() {
    let keys = format!("{SOCKET}\nworkers = {{ min = 0, max = 2 }}\nidle_timeout = \"200ms\"");
    let forebay = command(&keys);
    assert!(descendants(forebay.process.id()).is_empty(), "nothing runs before the first request");
    let first = forebay.get("/pid").text().to_owned();
    assert!(eventually(|| descendants(forebay.process.id()).is_empty()), "it stops when idle");
    assert!(!is_alive(&first));
    let second = forebay.get("/pid").text().to_owned();
    assert_ne!(first, second);
    forebay.stop();
}

#[test]
fn output_of_a_failed_start_is_shown() {
    let folder = Folder::new();
    let exit = support::check_start(
        &folder,
        &configuration(
            "run = [\"sh\", \"-c\", \"echo no such module >&2; exit 3; : {port}\"]\n\
             speaks = \"http\"",
        ),
    );
    assert_eq!(exit.status.code(), Some(3));
    assert!(exit.output.contains("app own: process"), "{}", exit.output);
    assert!(exit.output.contains("exit code 3"), "{}", exit.output);
    assert!(exit.output.contains("no such module"), "{}", exit.output);
}

#[test]
fn a_program_that_never_listens_is_abandoned() {
    let folder = Folder::new();
    let exit = support::check_start(
        &folder,
        &configuration(
            "run = [\"sh\", \"-c\", \"echo thinking; sleep 1000 & wait; : {socket}\"]\n\
             speaks = \"http\"\nstart_timeout = \"2s\"",
        ),
    );
    assert_eq!(exit.status.code(), Some(3));
    assert!(exit.output.contains("did not listen within start_timeout"), "{}", exit.output);
    assert!(exit.output.contains("thinking"), "{}", exit.output);
}

#[test]
fn a_program_that_is_not_there_or_listens_nowhere_is_refused() {
    let folder = Folder::new();
    let file = write_configuration(
        &folder,
        &configuration("run = [\"no-such-program\", \"{socket}\"]\nspeaks = \"http\""),
    );
    let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
    assert_eq!(exit.status.code(), Some(2));
    assert!(exit.output.contains("no program no-such-program in PATH"), "{}", exit.output);
}

#[test]
fn a_program_that_ends_is_started_anew_and_no_request_waits_in_vain() {
    let forebay = command(SOCKET);
    let mut client = forebay.connect();
    let first = client.get("/pid").text().to_owned();
    assert_eq!(client.get("/exit").status, 502);
    let second = client.get("/pid");
    assert_eq!(second.status, 200, "{}", forebay.output());
    assert_ne!(second.text(), first);
    forebay.stop();
}

#[test]
fn a_crash_loop_is_shown_and_ends() {
    let folder = Folder::new();
    folder.write("server.pl", SERVER);
    let port = forebay_testkit::port::free_port();
    let start = "test -e good || { echo broken >&2; exit 1; }; exec perl server.pl $0";
    let mut forebay = serve(
        folder,
        &format!(
            "[server]\nadmin = \"127.0.0.1:{port}\"\n{}",
            configuration(&format!(
                "run = [\"sh\", \"-c\", \"{start}\", \"{{socket}}\"]\nspeaks = \"http\"\n\
                 workers = {{ min = 0, max = 1 }}\nqueue_timeout = \"20s\""
            ))
        ),
    );
    let reply = forebay.get("/a");
    assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("1")));
    forebay.wait_for_output("broken");
    forebay.wait_for_output("the next start is in");
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let status = |path: &str| Client::connect(admin).get(path).text().to_owned();
    let is_told = |path: &str, text: &str| eventually(|| status(path).contains(text));
    assert!(is_told("/status", "exit code 1: unasked; it wrote: broken"));
    assert!(is_told("/metrics", "forebay_app_crash_loop{app=\"own\"} 1\n"));
    fs::write(forebay.folder.path().join("good"), "").unwrap();
    assert!(eventually(|| forebay.get("/a").status == 200), "{}", forebay.output());
    assert!(is_told("/metrics", "forebay_app_crash_loop{app=\"own\"} 0\n"));
    forebay.stop();
}

#[test]
fn a_request_on_a_connection_that_closes_does_not_wait_for_itself() {
    let forebay = command(&format!("{SOCKET}\nconnections = 1"));
    let mut client = forebay.connect();
    assert_eq!(client.get("/a").status, 200);
    // The program closes a used connection, as it may.
    assert_eq!(client.get("/first").text(), "GET /first ", "{}", forebay.output());
    forebay.stop();
}

#[test]
fn requests_wait_in_a_queue_with_limits() {
    let keys = format!(
        "{SOCKET}\nconnections = 1\nqueue = 1\nqueue_timeout = \"1s\"\non_abort = \"stop\""
    );
    let mut forebay = command(&keys);
    let mut busy = forebay.connect();
    busy.send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.wait_for_output("hanging");
    let mut waiting = forebay.connect();
    waiting.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| forebay.get("/b").status == 503), "the queue is full");
    assert_eq!(waiting.reply().status, 503, "it waited for too long");
    drop(busy);
    forebay.stop();
}

#[test]
fn a_program_that_hangs_is_replaced() {
    let keys = format!("{SOCKET}\nconnections = 1\nrequest_timeout = \"2s\"");
    let forebay = command(&keys);
    let first = forebay.get("/pid").text().to_owned();
    assert_eq!(forebay.get("/hang").status, 504);
    let second = forebay.get("/pid");
    assert_eq!(second.status, 200, "{}", forebay.output());
    assert_ne!(second.text(), first);
    assert!(eventually(|| !is_alive(&first)));
    forebay.stop();
}

#[test]
fn a_slow_request_is_the_only_one_to_fail_while_others_are_answered() {
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], forebay_testkit::port::free_port()));
    let forebay =
        command(&format!("{SOCKET}\nrequest_timeout = \"2s\"\n[server]\nadmin = \"{admin}\""));
    let process = forebay.get("/pid").text().to_owned();
    let mut stream = forebay.connect();
    stream.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(stream.bytes(12), b"HTTP/1.1 200");
    assert_eq!(forebay.get("/hang").status, 504);
    let metrics = Client::connect(admin).get("/metrics").text().to_owned();
    assert!(metrics.contains("forebay_limit_reached_total{limit=\"request_timeout\"} 1\n"));
    assert_eq!(forebay.get("/pid").text(), process, "{}", forebay.output());
    forebay.folder.write("go", "");
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n0\r\n\r\n") {
        read.extend(stream.bytes(1));
    }
    forebay.stop();
}

#[test]
fn a_program_that_says_nothing_is_replaced_and_may_finish_what_it_has() {
    let mut forebay = command(&format!("{SOCKET}\nrequest_timeout = \"10s\""));
    let first = forebay.get("/pid").text().to_owned();
    let mut tunnel = forebay.connect();
    tunnel.send("GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(tunnel.reply_to_head().status, 101);
    assert_eq!(forebay.get("/hang").status, 504);
    forebay.wait_for_output("may finish its other requests");
    tunnel.send("hello\n");
    assert_eq!(tunnel.bytes(7), b"<hello\n");
    let second = forebay.get("/pid");
    assert_eq!(second.status, 200, "{}", forebay.output());
    assert_ne!(second.text(), first);
    drop(tunnel);
    assert!(eventually(|| !is_alive(&first)));
    forebay.stop();
}

/// Four clients send requests while `during` runs.
fn load(forebay: &Forebay, during: impl FnOnce()) -> Counts {
    load::load(forebay, 4, |client| client.try_get("/how"), |_| during())
}

#[test]
fn processes_killed_under_load_cost_at_most_the_requests_that_they_have() {
    let forebay = command(&format!("{SOCKET}\nworkers = 3\nconnections = 4"));
    let counts = load(&forebay, || {
        for _ in 0..10 {
            let reply = forebay.get("/pid");
            // It may be one of the lost requests, see below.
            if reply.status != 200 {
                assert_eq!(reply.status, 502, "{}", forebay.output());
                continue;
            }
            kill(reply.text());
            assert!(eventually(|| !is_alive(reply.text())));
        }
    });
    assert!(
        counts.keys().all(|status| matches!(status, 200 | 502)),
        "{counts:?}: {}",
        forebay.output()
    );
    // A request that may have killed its process is not sent to another one. A process has at most
    // four requests, one of each client.
    let lost = counts.get(&502).copied().unwrap_or(0);
    assert!(lost <= 40, "{counts:?}: {}", forebay.output());
    assert!(eventually(|| guards(forebay.process.id()) == 3), "as many as before");
    forebay.stop();
}

#[test]
fn a_change_of_files_replaces_the_processes_without_a_failure() {
    let keys = format!("{SOCKET}\nworkers = 2\nconnections = 4\nwatch = \"server.pl\"");
    let mut forebay = command(&keys);
    let old = forebay.get("/pid").text().to_owned();
    let counts = load(&forebay, || {
        fs::write(forebay.folder.path().join("server.pl"), format!("{SERVER}\n# changed\n"))
            .unwrap();
        assert!(eventually(|| !is_alive(&old)), "{}", forebay.output());
    });
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    forebay.wait_for_output("files have changed");
    assert!(eventually(|| guards(forebay.process.id()) == 2));
    forebay.stop();
}

#[test]
fn a_broken_change_keeps_the_old_processes() {
    let mut forebay = command(&format!("{SOCKET}\nwatch = [\"server.pl\"]"));
    let old = forebay.get("/pid").text().to_owned();
    fs::write(forebay.folder.path().join("server.pl"), "die 'half a program';\n").unwrap();
    forebay.wait_for_output("half a program");
    assert_eq!(forebay.get("/pid").text(), old);
    fs::write(forebay.folder.path().join("server.pl"), SERVER).unwrap();
    assert!(eventually(|| forebay.get("/pid").text() != old), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn processes_are_recycled_by_requests_by_age_and_by_cpu_time() {
    let keys = "workers = 2\nconnections = 4";
    for limit in ["max_requests = 50", "max_age = \"500ms\"", "max_cpu = \"100ms\""] {
        let forebay = command(&format!("{SOCKET}\n{keys}\n{limit}"));
        let old = forebay.get("/pid").text().to_owned();
        let counts = load(&forebay, || {
            assert!(eventually(|| !is_alive(&old)), "{}", forebay.output());
        });
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
        forebay.stop();
    }
}

#[test]
fn another_definition_takes_over_without_a_failure() {
    let with = |how: &str| {
        configuration(&format!(
            "run = [\"perl\", \"{{dir}}/server.pl\", \"{{socket}}\", \"{how}\"]\n\
             speaks = \"http\"\nworkers = 2\nconnections = 4"
        ))
    };
    let folder = Folder::new();
    folder.write("server.pl", SERVER);
    let forebay = serve(folder, &with("0"));
    let pid = rustix::process::Pid::from_raw(forebay.process.id() as i32).unwrap();
    let counts = load(&forebay, || {
        for round in 1..=3 {
            write_configuration(&forebay.folder, &with(&round.to_string()));
            rustix::process::kill_process(pid, Signal::HUP).unwrap();
            let how = round.to_string();
            assert!(eventually(|| forebay.get("/how").text() == how), "{}", forebay.output());
        }
    });
    assert_eq!(counts.keys().collect::<Vec<_>>(), [&200], "{counts:?}: {}", forebay.output());
    let same = forebay.get("/pid").text().to_owned();
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    assert!(eventually(|| forebay.output().matches("configuration as it is now").count() == 4));
    assert!(is_alive(&same), "what did not change runs on");
    assert!(eventually(|| guards(forebay.process.id()) == 2));
    forebay.stop();
}

#[test]
fn processes_that_are_still_being_started_hear_the_word_to_end() {
    for _ in 0..4 {
        // Only the message can end them in time.
        let forebay = command(&format!("{SOCKET}\nworkers = 4\nstop_timeout = \"1h\""));
        forebay.stop();
    }
}

#[test]
fn nothing_outlives_forebay_even_killed() {
    let forebay = command(&format!("{SOCKET}\nworkers = 2"));
    for _ in 0..4 {
        forebay.get("/fork");
    }
    let mut all = Vec::new();
    // Both exist; the second one may still be starting.
    let are_two = || {
        all = descendants(forebay.process.id());
        all.len() > 4 && rooms_of(&all).len() == 2
    };
    assert!(eventually(are_two), "{all:?}");
    let rooms = rooms_of(&all);
    kill(&forebay.process.id().to_string());
    assert!(eventually(|| all.iter().all(|pid| !is_alive(&pid.to_string()))), "{all:?}");
    assert!(eventually(|| rooms.iter().all(|room| !std::path::Path::new(room).exists())));
}

#[test]
fn nothing_is_left_when_a_guard_is_killed() {
    let mut forebay = command(SOCKET);
    let first = forebay.get("/pid").text().to_owned();
    let guard = descendants(forebay.process.id())[0];
    assert_ne!(guard.to_string(), first);
    kill(&guard.to_string());
    assert!(eventually(|| !is_alive(&first)));
    let how = format!("process {first} ended with its guardian, signal 9 (SIGKILL): unasked");
    forebay.wait_for_output(&how);
    assert!(eventually(|| forebay.get("/pid").status == 200));
    forebay.stop();
}

/// Returns the directories of the guardians among these processes. A process that a guardian has
/// just forked counts as guardian.
fn rooms_of(pids: &[u32]) -> BTreeSet<String> {
    let lines = pids.iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")));
    let lines: Vec<String> = lines.map(Result::unwrap_or_default).collect();
    let words = lines.iter().map(|line| line.split('\0').collect::<Vec<_>>());
    words.filter(|w| w.get(1) == Some(&"__guardian")).map(|w| w[2].to_owned()).collect()
}

#[test]
fn a_process_has_the_user_and_the_limits_that_it_was_given() {
    if !rustix::process::geteuid().is_root() {
        return forebay_testkit::peer::skip("only root can start processes as another user");
    }
    let forebay = command(&format!(
        "{SOCKET}\nuser = \"www-data\"\n\
         limits = {{ open_files = 77, memory = \"1GiB\", cpu_time = \"100s\", core = 0 }}"
    ));
    let reply = forebay.get("/pid");
    assert_eq!(reply.status, 200, "{}", forebay.output());
    let proc = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", reply.text())).unwrap();
    let status = proc("status");
    let ids = |name: &str| -> BTreeSet<String> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    // The entries of this machine's databases of users and groups, which are the same everywhere.
    let of_user = |option: &str| -> BTreeSet<String> {
        let output = Command::new("id").args([option, "www-data"]).output().unwrap();
        let ids = String::from_utf8(output.stdout).unwrap();
        ids.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(ids("Uid:"), of_user("-u"));
    assert_eq!(ids("Gid:"), of_user("-g"));
    assert_eq!(ids("Groups:"), of_user("-G"));
    let limits = proc("limits");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max open files"), "77");
    assert_eq!(limit("Max address space"), (1u64 << 30).to_string());
    assert_eq!(limit("Max cpu time"), "100");
    assert_eq!(limit("Max core file size"), "0");
    let env = forebay.get("/env").text().to_owned();
    assert!(env.contains("USER=www-data\n") && env.contains("HOME=/var/www\n"), "{env}");
    forebay.stop();
}

#[test]
fn a_process_may_open_as_many_files_as_forebay_was_let() {
    let forebay = command(SOCKET);
    let soft = |pid: &str| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    // Forebay raises its own limit; the limit of this test is the one from its start.
    assert_eq!(soft(forebay.get("/pid").text()), soft("self"));
    forebay.stop();
}

#[test]
fn an_unknown_user_is_refused() {
    let folder = Folder::new();
    let file =
        write_configuration(&folder, &configuration(&format!("{SOCKET}\nuser = \"no-such-user\"")));
    let exit = Process::start(support::command(&[file.to_str().unwrap()])).wait();
    assert_eq!(exit.status.code(), Some(2));
    assert!(exit.output.contains("no user no-such-user"), "{}", exit.output);
}

#[test]
fn upgraded_connections_hold_their_process() {
    let folder = Folder::new();
    folder.write(
        "up.pl",
        "use IO::Socket::UNIX; $| = 1;\n\
         my $l = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 10) or die;\n\
         while (1) { my $c = $l->accept or next; next if fork; $c->autoflush(1);\n\
         while (<$c>) { last if !/\\S/ }\n\
         print $c \"HTTP/1.1 101 S\\r\\nConnection: upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n\";\n\
         while (<$c>) { print $c \"<$_\" } exit }\n",
    );
    let forebay = serve(
        folder,
        &configuration(
            "run = [\"perl\", \"{dir}/up.pl\", \"{socket}\"]\nspeaks = \"http\"\nconnections = 1\nqueue_timeout = \"200ms\"",
        ),
    );
    let mut client = forebay.connect();
    let ask = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    client.send(ask);
    assert_eq!(client.reply_to_head().status, 101);
    client.send("hello\n");
    assert_eq!(client.bytes(7), b"<hello\n");
    assert_eq!(forebay.ask(ask).status, 503, "the one connection is taken");
    drop(client);
    let again = || {
        let mut client = forebay.connect();
        client.send(ask);
        client.reply_to_head().status == 101
    };
    assert!(eventually(again));
    forebay.stop();
}

#[test]
fn the_status_shows_each_process() {
    let folder = Folder::new();
    folder.write("server.pl", SERVER);
    let port = forebay_testkit::port::free_port();
    let mut forebay = serve(
        folder,
        &format!(
            "[server]\nadmin = \"127.0.0.1:{port}\"\nadmin_token = \"a-token-of-this-test\"\n{}",
            configuration(&format!("{SOCKET}\nworkers = 2\non_abort = \"stop\""))
        ),
    );
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let ask = |target: &str| Client::connect(admin).get(target).text().to_owned();
    let own = || {
        let status: serde_json::Value = serde_json::from_str(&ask("/status")).unwrap();
        status["apps"][0].clone()
    };
    let are_idle = || {
        let app = own();
        let workers = app["workers"].as_array().unwrap();
        workers.len() == 2 && workers.iter().all(|w| w["state"] == "idle")
    };
    assert!(eventually(are_idle));
    let pid = forebay.get("/pid").text().to_owned();
    let mut hanging = forebay.connect();
    hanging.send("GET /hang?q HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.wait_for_output("hanging");
    let app = own();
    let workers = app["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2, "{app:#}");
    assert!(workers.iter().any(|w| w["pid"].as_u64() == pid.parse().ok()), "{app:#}");
    let busy = workers.iter().find(|w| w["state"] == "busy").unwrap_or_else(|| panic!("{app:#}"));
    assert_eq!(busy["current_request"], "GET /hang?...", "visitors' queries need the token");
    for target in ["/status", "/status.json", "/apps/own"] {
        for accept in ["text/html", "*/*"] {
            let ask = |more: &str| {
                let head =
                    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n");
                let mut client = Client::connect(admin);
                client.send(format!("{head}{more}\r\n"));
                client.reply().text().to_owned()
            };
            assert!(!ask("").contains("hang?q"), "{target} {accept}");
            assert!(!ask("Authorization: Bearer another\r\n").contains("hang?q"), "{target}");
            let told = ask("Authorization: Bearer a-token-of-this-test\r\n");
            assert!(told.contains("hang?q"), "{target} {accept}: {told}");
        }
    }
    assert!(busy["rss"].as_u64().unwrap() > 1_000_000, "{app:#}");
    assert_eq!((&app["starts"], &app["crashes"]), (&2.into(), &0.into()));
    assert!(app["crash_loop"].is_null());
    let metrics = ask("/metrics");
    for line in [
        "forebay_workers{app=\"own\",state=\"busy\"} 1",
        "forebay_worker_starts_total{app=\"own\"} 2",
        "forebay_app_waiting{app=\"own\"} 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    kill(&pid);
    assert!(eventually(|| own()["crashes"] == 1));
    drop(hanging);
    forebay.stop();
}

#[test]
fn a_control_group_holds_or_is_said_to_be_impossible() {
    let mut forebay = command(&format!("{SOCKET}\ncgroup = {{ memory = \"200MiB\" }}"));
    let pid = forebay.get("/pid").text().to_owned();
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    if !groups.contains("forebay-own-") {
        forebay.wait_for_output("no control group, so the limits of `cgroup` do not hold: ");
    }
    forebay.stop();
}

#[test]
fn uwsgi_speaks_two_protocols_of_its_own() {
    if !forebay_testkit::peer::has(&["uwsgi-core", "uwsgi-plugin-python3"]) {
        return;
    }
    for protocol in ["scgi", "uwsgi"] {
        let folder = Folder::new();
        folder.write(
            "app.py",
            "def application(e, start):\n    start('200 OK', [('Content-Type', 'text/plain')])\n\
             \x20   n = len(e['wsgi.input'].read(int(e.get('CONTENT_LENGTH') or 0)))\n\
             \x20   return [f\"{e['SCRIPT_NAME']}|{e['PATH_INFO']}|{n}\".encode()]\n",
        );
        let forebay = serve(
            folder,
            &format!(
                "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/shop/*\"\n\
                 app = \"shop\"\n[app.shop]\nkind = \"command\"\nspeaks = \"{protocol}\"\n\
                 run = [\"uwsgi\", \"--plugin\", \"python3\", \"--{protocol}-socket\", \
                 \"{{socket}}\", \"--wsgi-file\", \"{{dir}}/app.py\", \"--master\", \"--processes\", \
                 \"2\", \"--die-on-term\", \"--need-app\"]\nconnections = 2\n"
            ),
        );
        let mut client = forebay.connect();
        for _ in 0..10 {
            assert_eq!(client.get("/shop/a/b").text(), "/shop|/a/b|0", "{}", forebay.output());
            client.send("POST /shop/ HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n12345");
            assert_eq!(client.reply().text(), "/shop|/|5");
        }
        let left = descendants(forebay.process.id());
        forebay.stop();
        assert!(left.iter().all(|pid| !is_alive(&pid.to_string())));
    }
}

/// A FastCGI program that ends after ten requests, as a guard against leaks. The others end by
/// themselves in the same way, but speak SCGI and HTTP.
const SHORT_LIVED: [(&str, &str); 3] = [
    (
        "fastcgi",
        "use FCGI; my $n = 0; my $request = FCGI::Request();
         while ($request->Accept >= 0) {
             read STDIN, my $body, $ENV{CONTENT_LENGTH} || 0;
             print \"Content-Type: text/plain\\r\\n\\r\\n$ENV{REQUEST_METHOD} $body $$\";
             $request->Finish; last if ++$n == 10 }",
    ),
    (
        "scgi",
        "my $n = 0; while (accept my $client, STDIN) {
             local $/ = ':'; my $length = <$client> or next; chop $length; read $client, my $head, $length + 1;
             my %of = split /\\0/, substr $head, 0, -1; read $client, my $body, $of{CONTENT_LENGTH};
             print $client \"Content-Type: text/plain\\r\\n\\r\\n$of{REQUEST_METHOD} $body $$\";
             close $client; last if ++$n == 10 }",
    ),
    (
        "http",
        "my $n = 0; while (accept my $client, STDIN) {
             my ($method, $length) = ('', 0);
             while (<$client>) { $method ||= (split)[0]; $length = $1 if /^content-length: (\\d+)/i;
                 last if !/\\S/ }
             read $client, my $body, $length;
             print $client \"HTTP/1.0 200 OK\\r\\n\\r\\n$method $body $$\" if $method;
             close $client; last if $method && ++$n == 10 }",
    ),
];

#[test]
fn no_request_is_lost_where_programs_end_themselves() {
    for (speaks, program) in SHORT_LIVED {
        if speaks == "fastcgi" && !peer::has_perl("FCGI", "libfcgi-perl") {
            continue;
        }
        for workers in ["1", "3", "{ min = 0, max = 2 }"] {
            let folder = Folder::new();
            folder.write("own.pl", program);
            let keys = format!(
                "run = [\"perl\", \"own.pl\"]\nspeaks = \"{speaks}\"\nlisten = \"stdin\"\n\
                 connections = 1\nworkers = {workers}"
            );
            let forebay = serve(folder, &configuration(&keys));
            let processes = std::sync::Mutex::new(BTreeSet::new());
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        let mut client = forebay.connect();
                        for n in 0..15 {
                            let get = client.get("/x");
                            let request = format!(
                                "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nbody{}",
                                n % 10
                            );
                            client.send(&request);
                            let post = client.reply();
                            for (reply, begin) in
                                [(get, "GET  "), (post, &*format!("POST body{} ", n % 10))]
                            {
                                let text = reply.text();
                                assert!(
                                    text.starts_with(begin),
                                    "{speaks}: {text}\n{}",
                                    forebay.output()
                                );
                                processes.lock().unwrap().insert(text[begin.len()..].to_owned());
                            }
                        }
                    });
                }
            });
            assert!(processes.into_inner().unwrap().len() >= 24, "each ends after ten requests");
            let output = forebay.output();
            assert!(!output.contains(" ended, "), "it is no failure: {output}");
            forebay.stop();
        }
    }
}

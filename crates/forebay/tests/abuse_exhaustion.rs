//! Descriptors and disk space run out. The server keeps running and names the shortage. It works as
//! before when the shortage has ended.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::echo::Echo;
use support::{Forebay, command, proc, serve_command, site, write_configuration};

const MANY: u64 = 1000;
/// CPU clock ticks that a waiting server may use. If it spun, its second thread would spin as well.
const BUSY: u64 = 50;

#[test]
fn without_descriptors_new_connections_wait_and_old_ones_go_on() {
    let mut forebay = site(Folder::new(), "[[site.route]]\nrespond = \"here\"\n");
    let pid = forebay.process.id();
    let mut kept = forebay.connect();
    assert_eq!(kept.get("/").text(), "here");
    proc::starve(pid);
    let mut waiting: Vec<Client> = (0..30).map(|_| forebay.connect()).collect();
    for client in &mut waiting {
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    forebay.wait_for_output("raise the limit on open files");
    // This is not a wait for an event, but the period in which the test counts CPU time.
    let (started, ticks) = (Instant::now(), proc::processor_ticks(pid));
    while started.elapsed() < Duration::from_secs(1) {
        assert_eq!(kept.get("/").text(), "here");
        thread::sleep(Duration::from_millis(20));
    }
    let spent = proc::processor_ticks(pid) - ticks;
    assert!(spent < BUSY, "{spent} hundredths of a second of processor time in one second");
    proc::limit_descriptors(pid, MANY);
    for client in &mut waiting {
        assert_eq!(client.reply().text(), "here");
    }
    forebay.wait_for_output("connections are accepted again");
    let (exit, _) = forebay.stop();
    // Once for each of the two threads, not for each attempt.
    assert!(exit.output.matches("they wait").count() <= 2, "{}", exit.output);
}

#[test]
fn without_descriptors_the_answer_is_a_503_with_the_reason() {
    let folder = Folder::new();
    folder.write("htdocs/file.txt", "a file");
    let body = "print \"Content-Type: text/plain\\n\\nran\";\n";
    folder.script("scripts/run.pl", format!("#!/usr/bin/perl\n{body}"));
    folder.script("scripts/run.cgi", format!("#!/usr/bin/perl\n{body}"));
    let backend = Echo::start();
    let other = Echo::start();
    let routes = format!(
        "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n\
         [[site.route]]\nsuffix = \".cgi\"\ncgi = {{ dir = \"scripts\" }}\n\
         [[site.route]]\nsuffix = \".pl\"\napp = \"scripts\"\n\
         [[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"127.0.0.1:1\", root = \"/none\" }}\n\
         [[site.route]]\nproxy = {{ to = [\"{}\", \"{}\"] }}\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 1\n",
        backend.url(),
        other.url()
    );
    let mut forebay = site(folder, &routes);
    let pid = forebay.process.id();
    let mut kept = forebay.connect();
    let mut another = forebay.connect();
    for client in [&mut another, &mut kept] {
        assert_eq!(client.get("/run.pl").text(), "ran");
    }
    let open = proc::descriptors(pid).len();
    proc::starve(pid);
    for (target, what) in [
        ("/files/file.txt", "cannot open a file"),
        ("/run.cgi", "cannot run"),
        ("/x.php", "cannot connect to 127.0.0.1:1"),
        ("/proxied", ": GET /proxied"),
    ] {
        let reply = kept.get(target);
        assert_eq!(reply.status, 503, "{target}: {}", forebay.output());
        forebay.wait_for_output(what);
    }
    forebay.wait_for_output("raise the limit on open files");
    let reply = post(&mut another, "/run.cgi", 1_000_000);
    assert_eq!(reply.status, 503, "{}", forebay.output());
    forebay.wait_for_output("cannot spool a request body");
    assert_eq!(kept.get("/run.pl").text(), "ran", "a worker that is there needs nothing new");
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("not reloaded");
    // The connection with the unread body is closed, and nothing has leaked.
    drop(another);
    assert!(eventually(|| proc::descriptors(pid).len() == open - 1));
    proc::limit_descriptors(pid, MANY);
    assert_eq!(kept.get("/files/file.txt").text(), "a file");
    assert_eq!(kept.get("/run.cgi").text(), "ran");
    // Neither backend has failed, so neither is excluded.
    for _ in 0..4 {
        assert_eq!(forebay.get("/proxied").status, 200);
    }
    assert!(backend.whole() > 0 && other.whole() > 0);
    assert!(!forebay.output().contains("is left out"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn idle_connections_to_backends_make_room_for_what_needs_a_descriptor() {
    let backends = [Echo::start(), Echo::start()];
    let folder = Folder::new();
    let routes = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/one\"\nproxy = \"{}\"\n\
         [[site.route]]\npath = \"/other\"\nproxy = \"{}\"\n\
         [[site.route]]\nrespond = \"here\"\n",
        backends[0].url(),
        backends[1].url()
    );
    let file = write_configuration(&folder, &routes);
    let file = file.to_str().expect("a plain name");
    let mut forebay = support::serve_arguments(folder, &["--threads", "1", file]);
    let pid = forebay.process.id();
    let mut kept = forebay.connect();
    assert_eq!(kept.get("/one").status, 200);
    proc::fill_descriptors(pid);
    assert_eq!(kept.get("/other").status, 200, "{}", forebay.output());
    // The connection that is idle now makes room for a client, but for no second one.
    let (mut client, mut waiting) = (forebay.connect(), forebay.connect());
    assert_eq!(client.get("/").text(), "here");
    waiting.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.wait_for_output("cannot accept connections");
    assert_eq!(kept.get("/one").status, 503);
    proc::limit_descriptors(pid, MANY);
    assert_eq!(waiting.reply().text(), "here");
    forebay.wait_for_output("idle connections to backends are closed");
    assert!(!forebay.output().contains("is left out"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_worker_that_cannot_be_started_comes_when_it_can() {
    let folder = Folder::new();
    let body = "print \"Content-Type: text/plain\\n\\n$$\";\n";
    folder.script("scripts/pid.pl", format!("#!/usr/bin/perl\n{body}"));
    let route = "[[site.route]]\npath = \"/*\"\napp = \"scripts\"\n\
        [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 1\n\
        queue_timeout = \"200ms\"\n";
    let mut forebay = site(folder, route);
    let pid = forebay.process.id();
    let mut kept = forebay.connect();
    let worker: u32 = kept.get("/pid.pl").text().parse().expect("a process id");
    proc::starve(pid);
    proc::kill(worker);
    assert!(eventually(|| matches!(kept.get("/pid.pl").status, 503)), "{}", forebay.output());
    forebay.wait_for_output("Too many open files");
    proc::limit_descriptors(pid, MANY);
    assert!(eventually(|| kept.get("/pid.pl").status == 200), "{}", forebay.output());
    proc::starve(pid);
    forebay.stop();
}

#[test]
fn a_limit_on_file_sizes_is_a_500_and_not_the_end() {
    let folder = Folder::new();
    let body = "print \"Content-Type: text/plain\\n\\nran\";\n";
    folder.script("scripts/run.cgi", format!("#!/usr/bin/perl\n{body}"));
    let configuration = "[log]\naccess = \"{tmp}/log\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
        [[site.route]]\npath = \"/*\"\ncgi = { dir = \"scripts\" }\n";
    let mut forebay = support::serve(folder, configuration);
    // Enough for the messages on standard error, which is a file here.
    proc::limit_file_size(forebay.process.id(), 32 * 1024);
    let reply = post(&mut forebay.connect(), "/run.cgi", 300_000);
    assert_eq!(reply.status, 500, "{}", forebay.output());
    forebay.wait_for_output("cannot spool a request body");
    let (mut client, target) = (forebay.connect(), format!("/run.cgi?{}", "x".repeat(4000)));
    let said = eventually(|| {
        assert_eq!(client.get(&target).text(), "ran");
        forebay.output().contains("the access log cannot be written")
    });
    assert!(said, "{}", forebay.output());
    proc::limit_file_size(forebay.process.id(), 1 << 30);
    assert_eq!(post(&mut forebay.connect(), "/run.cgi", 300_000).text(), "ran");
    forebay.stop();
}

fn post(client: &mut Client, target: &str, length: usize) -> Reply {
    let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    client.send(head);
    // A server that refuses the body need not read all of it.
    let _ = client.try_send(&vec![b'x'; length]);
    client.reply()
}

/// Serves with an own disk of this many KiB at `{tmp}/disk`, for temporary files and logs. Returns
/// `None`, with the reason in the output, if the test may not mount it.
fn serve_on_small_disk(folder: Folder, kib: usize, configuration: &str) -> Option<Forebay> {
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("the folder is ours");
    let shell = |script: &str| {
        let mut unshare = Command::new("unshare");
        // Works without root's rights, in a user namespace.
        let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        unshare.args([flags, "sh", "-c", script, "sh"]).arg(&disk);
        unshare
    };
    let mount = format!("mount -t tmpfs -o size={kib}k tmpfs \"$1\"");
    if !shell(&mount).output().is_ok_and(|output| output.status.success()) {
        peer::skip("a tmpfs cannot be mounted here (unshare -m; mount -t tmpfs)");
        return None;
    }
    let file = write_configuration(&folder, configuration);
    let serve = command(&["--threads", "2", file.to_str().expect("a plain name")]);
    let mut mounted = shell(&format!("{mount} && shift && exec \"$@\""));
    mounted.arg(serve.get_program()).args(serve.get_args()).env("TMPDIR", &disk);
    Some(serve_command(folder, mounted))
}

/// The path of the disk in the server's mount namespace.
fn disk(forebay: &Forebay) -> PathBuf {
    let inside = forebay.folder.path().join("disk");
    let root = PathBuf::from(format!("/proc/{}/root", forebay.process.id()));
    root.join(inside.strip_prefix("/").expect("an absolute path"))
}

#[test]
fn a_full_disk_below_the_spool_is_a_500_that_says_so() {
    const DISK: usize = 1024;
    let folder = Folder::new();
    let count = "my $n = 0; while (read STDIN, my $b, 65536) { $n += length $b }\n\
        print \"Content-Type: text/plain\\n\\n$n\";\n";
    folder.script("scripts/count.pl", format!("#!/usr/bin/perl\n{count}"));
    folder.script("scripts/count.cgi", format!("#!/usr/bin/perl\n{count}"));
    let configuration = "[[site]]\nlisten = \"127.0.0.1:0\"\n\
        [[site.route]]\nsuffix = \".cgi\"\ncgi = { dir = \"scripts\" }\n\
        [[site.route]]\nsuffix = \".pl\"\napp = \"scripts\"\n\
        [[site.route]]\nsuffix = \".php\"\nfastcgi = { to = \"127.0.0.1:1\", root = \"/none\" }\n\
        [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 2\n";
    let Some(mut forebay) = serve_on_small_disk(folder, DISK, configuration) else { return };
    let pid = forebay.process.id();
    for target in ["/count.cgi", "/count.pl"] {
        assert_eq!(post(&mut forebay.connect(), target, 300_000).text(), "300000");
    }
    let open = proc::descriptors(pid).len();
    for round in 0..3 {
        for target in ["/count.cgi", "/count.pl", "/x.php"] {
            let reply = post(&mut forebay.connect(), target, 3 * 1024 * DISK);
            assert_eq!(reply.status, 500, "{target}: {}", forebay.output());
        }
        // The space is free again, also for several clients at the same time.
        thread::scope(|scope| {
            for client in 0..2 {
                let forebay = &forebay;
                let target = ["/count.cgi", "/count.pl"][(round + client) % 2];
                scope.spawn(move || {
                    let reply = post(&mut forebay.connect(), target, 300_000);
                    assert_eq!(reply.text(), "300000", "{}", forebay.output());
                });
            }
        });
    }
    forebay.wait_for_output("No space left on device");
    forebay.wait_for_output("name another directory as `spool_dir`");
    assert!(eventually(|| proc::descriptors(pid).len() <= open + 4));
    forebay.stop();
}

#[test]
fn a_full_disk_below_the_access_log_loses_lines_and_no_request() {
    let configuration = "[log]\naccess = \"{tmp}/disk/log\"\nformat = \"%r %s end\"\n\
        [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"here\"\n";
    let Some(mut forebay) = serve_on_small_disk(Folder::new(), 256, configuration) else { return };
    let disk = disk(&forebay);
    fs::write(disk.join("other"), vec![0; 128 * 1024]).expect("there is room for it");
    let mut client = forebay.connect();
    let target = format!("/{}", "x".repeat(4000));
    let mut ask_until = |forebay: &mut Forebay, text: &str| {
        let said = eventually(|| {
            assert_eq!(client.get(&target).text(), "here");
            forebay.output().contains(text)
        });
        assert!(said, "never said {text:?}: {}", forebay.output());
    };
    ask_until(&mut forebay, "the access log cannot be written");
    fs::remove_file(disk.join("other")).expect("it is there");
    ask_until(&mut forebay, "the access log is written again");
    let log = fs::read_to_string(disk.join("log")).expect("it is text");
    let whole = |line: &&str| line.starts_with("GET /x") && line.ends_with(" 200 end");
    let lines = log.lines().count();
    assert!(lines - log.lines().filter(whole).count() <= 2, "{lines} lines");
    assert!(lines > 30, "{lines} lines");
    forebay.stop();
}

#[test]
fn an_access_log_that_takes_nothing_holds_nobody_up() {
    let mut forebay = support::serve(
        Folder::new(),
        "[log]\naccess = \"/dev/full\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nrespond = \"here\"\n",
    );
    let mut client = forebay.connect();
    for _ in 0..2000 {
        assert_eq!(client.get("/").text(), "here");
    }
    forebay.wait_for_output("the access log cannot be written");
    let (exit, _) = forebay.stop();
    assert_eq!(exit.output.matches("cannot be written").count(), 1, "{}", exit.output);
}

#[test]
fn a_full_disk_below_the_cache_loses_stored_replies_and_no_request() {
    let echo = Echo::start();
    let configuration = format!(
        "[server]\ncache_memory = \"1MiB\"\ncache_dir = \"{{tmp}}/disk/cache\"\n\
         cache_disk = \"16MiB\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         proxy = \"{}\"\ncache = {{ valid = \"1h\" }}\n",
        echo.url()
    );
    let Some(mut forebay) = serve_on_small_disk(Folder::new(), 2048, &configuration) else {
        return;
    };
    let mut client = forebay.connect();
    let padding = "x".repeat(6000);
    for round in 0..3 {
        for page in 0..400 {
            let reply = client.get(&format!("/{page}?{padding}"));
            assert_eq!(reply.status, 200, "round {round}: {}", forebay.output());
            assert!(reply.text().starts_with(&format!("GET /{page}?xxx")), "{}", reply.text());
        }
    }
    forebay.wait_for_output("the cache cannot write a reply");
    let (exit, _) = forebay.stop();
    assert_eq!(exit.output.matches("the cache cannot").count(), 1, "{}", exit.output);
}

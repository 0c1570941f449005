//! `forebay serve` with workers that are killed, leak, hang, do not start, or whose code changes,
//! all under load. `FOREBAY_ABUSE_SECONDS` sets the duration; `examples/abuse` runs for a minute.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use rustix::process::{Pid, Signal, kill_process};
use support::{Forebay, is_alive, serve, write_configuration};

const WORKERS: usize = 3;
const HELLO: &str =
    "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\nhello $ENV{QUERY_STRING}\";\n";
const LEAK: &str = "#!/usr/bin/perl\nour @kept; push @kept, 'x' x 2_000_000;\n\
    print \"Content-Type: text/plain\\n\\nkept\";\n";
const HANG: &str = "#!/usr/bin/perl\nsleep 1000;\n";

fn version(n: u64) -> String {
    format!("#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n{n}\";\n")
}

fn configuration(mode: &str, round: usize) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/s/*\"\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = {WORKERS}\n\
         mode = \"{mode}\"\nmax_memory = \"60M\"\nrequest_timeout = \"3s\"\nmax_requests = 2000\n\
         queue_timeout = \"20s\"\nenv = {{ ROUND = \"{round}\" }}\n"
    )
}

fn abused(mode: &str) -> Forebay {
    let folder = Folder::new();
    for (name, text) in [("hello.pl", HELLO), ("leak.pl", LEAK), ("hang.pl", HANG)] {
        folder.script(&format!("scripts/{name}"), text);
    }
    folder.script("scripts/version.pl", version(0));
    serve(folder, &configuration(mode, 0))
}

fn how_long() -> Duration {
    let seconds = std::env::var("FOREBAY_ABUSE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

/// Returns the worker processes of a gateway.
fn workers(of: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let all = children.collect::<String>();
    let own = fs::read(format!("/proc/{of}/cmdline")).unwrap_or_default();
    all.split_whitespace()
        // A worker has the name of its script. The other child is the shell that ends their process
        // groups. It has our name until it has started.
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| !line.is_empty() && !line.starts_with(b"/bin/sh") && line != own)
        })
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn kill(pid: i32) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// State that all threads of an abuse share.
struct Abuse {
    over: AtomicBool,
    /// The last version of the code that is complete, and the last that has been started.
    written: AtomicU64,
    begun: AtomicU64,
}

#[test]
fn a_request_that_crashed_its_worker_is_not_tried_on_another() {
    let forebay = abused("registry");
    forebay.folder.script("scripts/poison.pl", "#!/usr/bin/perl\nkill 9, $$; sleep 10;\n");
    let own = forebay.process.id();
    for _ in 0..5 {
        assert!(eventually(|| workers(own).len() == WORKERS), "{}", forebay.output());
        let before = workers(own);
        assert_eq!(forebay.get("/s/hello.pl?").status, 200, "{}", forebay.output());
        assert_eq!(forebay.get("/s/poison.pl").status, 502, "{}", forebay.output());
        let left = || before.iter().filter(|pid| is_alive(&pid.to_string())).count();
        assert!(eventually(|| left() < WORKERS));
        assert_eq!(left(), WORKERS - 1, "{}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn requests_succeed_but_for_those_of_killed_workers() {
    let (mut counts, kills) = abuse("registry");
    assert_eq!(counts.remove(&504), Some(1), "the one that hangs: {counts:?}");
    let lost = counts.remove(&502).unwrap_or(0);
    assert!(lost <= kills, "{lost} of {kills} kills");
    assert!(counts[&200] > 0, "{counts:?}");
    assert_eq!(counts.len(), 1, "{counts:?}");
    println!("{} served, {lost} lost by {kills} kills", counts[&200]);
}

#[test]
fn a_process_for_each_request_loses_no_more() {
    let (mut counts, kills) = abuse("fork");
    assert_eq!(counts.remove(&504), Some(1), "the one that hangs: {counts:?}");
    let lost = counts.remove(&502).unwrap_or(0);
    assert!(lost <= kills, "{lost} of {kills} kills");
    assert!(counts[&200] > 0 && counts.len() == 1, "{counts:?}");
}

/// Runs all abuse at the same time. Returns the number of each status, and the number of killed
/// workers.
fn abuse(mode: &str) -> (BTreeMap<u16, u64>, u64) {
    let mut forebay = abused(mode);
    let abuse = Abuse { over: AtomicBool::new(false), written: 0.into(), begun: 0.into() };
    let until = Instant::now() + how_long();
    let (mut counts, mut kills) = (BTreeMap::new(), 0);
    let address = forebay.address;
    let folder = forebay.folder.path().to_owned();
    let id = forebay.process.id();
    thread::scope(|scope| {
        let abuse = &abuse;
        let clients: Vec<_> = (0..4)
            .map(|n| scope.spawn(move || ask_all_the_time(address, n, abuse)))
            .chain([scope.spawn(move || leak(address, abuse))])
            .chain([scope.spawn(move || hang(address))])
            .collect();
        let mut round = 0;
        while Instant::now() < until {
            round += 1;
            edit(&folder, round, abuse);
            if round % 4 == 0 {
                let all = workers(id);
                if let Some(&victim) = all.get(round as usize / 4 % all.len().max(1)) {
                    kill(victim);
                    kills += 1;
                }
            }
            if round % 40 == 20 {
                write_configuration(&forebay.folder, &configuration(mode, round as usize));
                forebay.signal(Signal::HUP);
            }
            // This is the pace of the abuse, not a wait for an event.
            thread::sleep(Duration::from_millis(25));
        }
        abuse.over.store(true, Ordering::SeqCst);
        for client in clients {
            for (status, count) in client.join().unwrap() {
                *counts.entry(status).or_insert(0) += count;
            }
        }
    });
    assert!(eventually(|| workers(id).len() == WORKERS), "{:?}: {}", workers(id), forebay.output());
    assert_eq!(forebay.get("/s/hello.pl?x").text(), "hello x");
    forebay.stop();
    (counts, kills)
}

fn edit(folder: &std::path::Path, n: u64, abuse: &Abuse) {
    let (new, file) = (folder.join("scripts/new"), folder.join("scripts/version.pl"));
    fs::write(&new, version(n)).unwrap();
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    abuse.begun.store(n, Ordering::SeqCst);
    fs::rename(new, file).unwrap();
    abuse.written.store(n, Ordering::SeqCst);
}

fn ask_all_the_time(
    address: std::net::SocketAddr,
    client: usize,
    abuse: &Abuse,
) -> BTreeMap<u16, u64> {
    let mut counts = BTreeMap::new();
    let mut connection = forebay_testkit::http::Client::connect(address);
    for n in 0.. {
        if abuse.over.load(Ordering::SeqCst) {
            break;
        }
        let least = abuse.written.load(Ordering::SeqCst);
        let target =
            if n % 2 == 0 { "/s/version.pl".into() } else { format!("/s/hello.pl?{client}.{n}") };
        let Ok(reply) = connection.try_get(&target) else {
            // The reply had begun when its worker was killed.
            *counts.entry(502).or_insert(0) += 1;
            connection = forebay_testkit::http::Client::connect(address);
            continue;
        };
        if reply.status == 200 && n % 2 == 0 {
            let most = abuse.begun.load(Ordering::SeqCst);
            let seen = reply.text().parse::<u64>().unwrap();
            assert!((least..=most).contains(&seen), "{seen} of {least} to {most}");
        } else if reply.status == 200 {
            assert_eq!(reply.text(), format!("hello {client}.{n}"));
        }
        *counts.entry(reply.status).or_insert(0) += 1;
        if reply.header("Connection").is_some_and(|value| value == "close") {
            connection = forebay_testkit::http::Client::connect(address);
        }
    }
    counts
}

fn leak(address: std::net::SocketAddr, abuse: &Abuse) -> BTreeMap<u16, u64> {
    let mut counts = BTreeMap::new();
    while !abuse.over.load(Ordering::SeqCst) {
        let reply = forebay_testkit::http::Client::connect(address).try_get("/s/leak.pl");
        *counts.entry(reply.map_or(502, |reply| reply.status)).or_insert(0) += 1;
        // The supervisor checks memory once a second, so the test leaks no faster.
        thread::sleep(Duration::from_millis(40));
    }
    counts
}

/// Only once, because the request occupies a worker until the time limit.
fn hang(address: std::net::SocketAddr) -> BTreeMap<u16, u64> {
    // A worker that is killed while it hangs answers 502, but this test needs the time limit.
    for _ in 0..20 {
        let reply = forebay_testkit::http::Client::connect(address).try_get("/s/hang.pl");
        let status = reply.map_or(502, |reply| reply.status);
        if status == 504 {
            return [(504, 1)].into();
        }
        assert_eq!(status, 502);
    }
    panic!("killed each time");
}

#[test]
fn an_application_that_dies_at_start_does_not_keep_the_machine_busy() {
    let mut forebay = abused("registry");
    // No interpreter can start from now on, because its directory is missing.
    let folder = forebay.folder.path().to_owned();
    fs::rename(folder.join("scripts"), folder.join("away")).unwrap();
    for pid in workers(forebay.process.id()) {
        kill(pid);
    }
    forebay.wait_for_output("cannot start perl");
    forebay.wait_for_output("the next start is in");
    assert!(eventually(|| forebay.get("/s/hello.pl").status >= 500 || !folder.join("x").exists()));
    let tries = forebay.output().matches("cannot start perl").count();
    assert!(tries < 50, "{tries}");
    fs::rename(folder.join("away"), folder.join("scripts")).unwrap();
    assert!(eventually(|| forebay.get("/s/hello.pl?x").status == 200), "{}", forebay.output());
    assert!(eventually(|| workers(forebay.process.id()).len() == WORKERS));
    forebay.stop();
}

#[test]
fn no_process_outlives_a_forebay_that_is_killed() {
    let busy = "#!/usr/bin/perl\nmy $child = fork; exec 'sleep', '1000' if defined $child && !$child;\n\
        open my $f, '>', \"$ENV{WHERE}/new\"; print $f \"$$ $child \", getppid, \"\\n\"; close $f;\n\
        rename \"$ENV{WHERE}/new\", \"$ENV{WHERE}/pids\"; sleep 1000;\n";
    for mode in ["registry", "perlrun", "fork", "cgi"] {
        let folder = Folder::new();
        folder.script("scripts/busy.pl", busy);
        let text = format!("{}[app.scripts.env]\nWHERE = \"{{tmp}}\"\n", configuration(mode, 0));
        let text = text.replace("env = { ROUND = \"0\" }\n", "");
        let mut forebay = serve(folder, &text);
        let mut client = forebay.connect();
        client.send("GET /s/busy.pl HTTP/1.1\r\nHost: h\r\n\r\n");
        let file = forebay.folder.path().join("pids");
        assert!(eventually(|| file.exists()), "{}", forebay.output());
        let text = fs::read_to_string(&file).unwrap();
        let own = forebay.process.id().to_string();
        let mut pids: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        pids.retain(|pid| *pid != own);
        pids.extend(workers(forebay.process.id()).iter().map(ToString::to_string));
        assert!(pids.len() > WORKERS && pids.iter().all(|pid| is_alive(pid)), "{pids:?}");
        forebay.signal(Signal::KILL);
        assert!(eventually(|| !pids.iter().any(|pid| is_alive(pid))), "{mode}: {pids:?}");
    }
}

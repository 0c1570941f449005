//! `forebay serve` and SIGHUP: the configuration changes without a lost request, or not at all.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::{Address, TestStream};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use support::echo::Echo;
use support::{Forebay, is_alive, pattern, serve, write_configuration};

const DONE: &str = "serving by the configuration as it is now";

/// Writes the configuration and waits until the server uses it.
fn reload(forebay: &mut Forebay, configuration: &str) {
    write_configuration(&forebay.folder, configuration);
    reload_as_it_is(forebay);
}

fn reload_as_it_is(forebay: &mut Forebay) {
    let before = forebay.output().matches(DONE).count();
    forebay.signal(Signal::HUP);
    forebay
        .process
        .wait_until("reloaded", |process| process.output().matches(DONE).count() > before)
        .unwrap_or_else(|error| panic!("{error}"));
}

fn respond(listen: &str, body: &str) -> String {
    format!("[[site]]\nlisten = {listen}\n[[site.route]]\nrespond = \"{body}\"\n")
}

#[test]
fn ten_reloads_under_load_lose_no_request() {
    const CLIENTS: usize = 6;
    const MOST: usize = 20_000;
    let folder = Folder::new();
    let file = pattern(70_000);
    folder.write("htdocs/file.bin", &file);
    folder.script("scripts/hello.pl", "print \"Content-Type: text/plain\\n\\nhello $$\\n\";\n");
    let backend = Echo::start();
    // Every second reload changes the application, so the old one has to drain.
    let configuration = |round: usize| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n\
             [[site.route]]\nsuffix = \".pl\"\napp = \"scripts\"\n{}\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 2\n\
             env = {{ ROUND = \"{}\" }}\n",
            backend.route(),
            round / 2
        )
    };
    let mut forebay = serve(folder, &configuration(0));
    let address = forebay.address;
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = |client: &mut Client, turn: usize| {
        count.fetch_add(1, Ordering::Relaxed);
        let target = ["/files/file.bin", "/hello.pl", "/backend"][turn % 3];
        let reply = client.get(target);
        assert_eq!(reply.status, 200, "{target}: {}", String::from_utf8_lossy(&reply.body));
        match turn % 3 {
            0 => assert!(reply.body == file, "a file of {} bytes", reply.body.len()),
            1 => assert!(reply.text().starts_with("hello "), "{}", reply.text()),
            _ => assert!(reply.text().starts_with("GET /backend"), "{}", reply.text()),
        }
    };
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (stop, ask) = (&stop, &ask);
            scope.spawn(move || {
                let mut kept = Client::connect(address);
                for turn in client.. {
                    match client % 2 {
                        0 => ask(&mut kept, turn),
                        _ => ask(&mut Client::connect(address), turn),
                    }
                    if stop.load(Ordering::Relaxed) || turn > MOST / CLIENTS {
                        return;
                    }
                }
            });
        }
        for round in 1..=10 {
            let before = count.load(Ordering::Relaxed);
            reload(&mut forebay, &configuration(round));
            assert!(eventually(|| count.load(Ordering::Relaxed) > before + 3 * CLIENTS));
        }
        stop.store(true, Ordering::Relaxed);
    });
    forebay.stop();
}

#[test]
fn a_mistake_in_the_configuration_changes_nothing() {
    let mut forebay = serve(Folder::new(), &respond("\"127.0.0.1:0\"", "first"));
    let mut kept = forebay.connect();
    assert_eq!(kept.get("/").text(), "first");
    for (wrong, words) in [
        ("[[site]]\nlistne = \"127.0.0.1:0\"\n", "did you mean `listen`"),
        ("[[site]", "site.toml:1"),
        ("[[site]]\nlisten = \"192.0.2.1:80\"\n[[site.route]]\nrespond = \"x\"\n", "192.0.2.1:80"),
        (
            concat!(
                "[log]\naccess = \"{tmp}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n",
                "[[site.route]]\nrespond = \"x\"\n"
            ),
            "directory",
        ),
    ] {
        let before = forebay.output().len();
        write_configuration(&forebay.folder, wrong);
        forebay.signal(Signal::HUP);
        forebay
            .process
            .wait_until("said so", |process| {
                let output = process.output();
                output[before..].contains("not reloaded") && output[before..].contains(words)
            })
            .unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_eq!(kept.get("/").text(), "first");
        assert_eq!(forebay.get("/").text(), "first");
    }
    // A pipe whose writer never comes must not hold up later reloads.
    let file = forebay.folder.path().join("site.toml");
    fs::remove_file(&file).unwrap();
    mknodat(CWD, &file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("is a pipe or a device");
    fs::remove_file(&file).unwrap();
    // The files of a directory must not replace the sites.
    fs::create_dir(&file).unwrap();
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("is a directory, not a configuration file");
    assert_eq!(forebay.get("/").text(), "first");
    fs::remove_dir(&file).unwrap();
    reload(&mut forebay, &respond("\"127.0.0.1:0\"", "second"));
    assert_eq!(kept.get("/").text(), "second", "the connection is kept");
    forebay.stop();
}

#[test]
fn listeners_come_and_go() {
    let folder = Folder::new();
    let socket = folder.path().join("other.sock");
    let mut forebay = serve(folder, &respond("\"127.0.0.1:0\"", "first"));
    let both = format!("[\"127.0.0.1:0\", \"unix:{}\"]", socket.display());
    reload(&mut forebay, &respond(&both, "both"));
    assert_eq!(forebay.get("/").text(), "both");
    let mut kept = Client::connect(&socket);
    assert_eq!(kept.get("/").text(), "both");
    reload(&mut forebay, &respond("\"127.0.0.1:0\"", "one"));
    assert_eq!(forebay.get("/").text(), "one");
    // An old connection gets one more answer, with the notice that it ends.
    let last = kept.get("/");
    assert_eq!((last.text(), last.header("Connection")), ("both", Some("close")));
    assert!(kept.is_closed());
    let address = Address::from(&socket);
    assert!(eventually(|| TestStream::connect(&address, forebay_testkit::DEADLINE).is_err()));
    forebay.stop();
}

#[test]
fn limits_and_logs_change() {
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n";
    let first = format!("[log]\naccess = \"a.log\"\nformat = \"%U\"\n{site}");
    let second = format!(
        "[server.limits]\ntarget = 100\n[log]\naccess = \"b.log\"\nformat = \"2 %U\"\n{site}"
    );
    let mut forebay = serve(Folder::new(), &first);
    let long = format!("/{}", "x".repeat(200));
    assert_eq!(forebay.get("/one").status, 200);
    assert_eq!(forebay.get(&long).status, 200);
    // A request is logged after its reply was sent.
    let first_log = forebay.folder.path().join("a.log");
    // Threads pass their lines on one after the other.
    let has_both = |text: &str| text.len() == long.len() + 6 && text.contains("/one\n");
    assert!(eventually(|| fs::read_to_string(&first_log).is_ok_and(|text| has_both(&text))));
    reload(&mut forebay, &second);
    assert_eq!(forebay.get("/two").status, 200);
    assert_eq!(forebay.get(&long).status, 414);
    let (_, folder) = forebay.stop();
    let log = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(has_both(&log("a.log")), "{}", log("a.log"));
    assert!(log("b.log").contains("2 /two\n"), "{}", log("b.log"));
}

#[test]
fn an_application_that_did_not_change_keeps_its_processes() {
    let folder = Folder::new();
    folder.script("a/pid.pl", "print \"Content-Type: text/plain\\n\\n$$\";\n");
    folder.script("b/pid.pl", "print \"Content-Type: text/plain\\n\\n$$\";\n");
    let configuration = |more: &str| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/a/*\"\napp = \"a\"\n[[site.route]]\npath = \"/b/*\"\napp = \"b\"\n\
             [app.a]\nkind = \"perl-cgi\"\ndir = \"a\"\nworkers = 1\n\
             [app.b]\nkind = \"perl-cgi\"\ndir = \"b\"\nworkers = 1\n{more}\n"
        )
    };
    let mut forebay = serve(folder, &configuration(""));
    let pids = |forebay: &Forebay| {
        ["/a/pid.pl", "/b/pid.pl"].map(|target| forebay.get(target).text().to_owned())
    };
    let [a, b] = pids(&forebay);
    reload(&mut forebay, &configuration("queue = 7"));
    let [same, other] = pids(&forebay);
    assert_eq!(same, a);
    assert_ne!(other, b);
    assert!(eventually(|| !is_alive(&b)), "the old process ends");
    assert!(is_alive(&a));
    forebay.stop();
}

#[test]
fn requests_under_way_and_in_the_queue_end_on_the_old_application() {
    let folder = Folder::new();
    let script = "my $dir = $ENV{DIR};\n\
                  open(my $came, '>>', \"$dir/came\"); print $came 'x'; close $came;\n\
                  until (-e \"$dir/go\") { select(undef, undef, undef, 0.01) }\n\
                  print \"Content-Type: text/plain\\n\\n$ENV{ROUND}\";\n";
    folder.script("scripts/wait.pl", script);
    let configuration = |round: &str| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
             [app.a]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 1\n\
             env = {{ ROUND = \"{round}\", DIR = \"{{tmp}}\" }}\n"
        )
    };
    let mut forebay = serve(folder, &configuration("old"));
    let mut waiting: Vec<_> = (0..3).map(|_| forebay.connect()).collect();
    let came = forebay.folder.path().join("came");
    for client in &mut waiting {
        client.send("GET /wait.pl HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(eventually(|| came.exists()));
    }
    reload(&mut forebay, &configuration("new"));
    fs::write(forebay.folder.path().join("go"), "").unwrap();
    let replies: Vec<_> = waiting.iter_mut().map(forebay_testkit::http::Client::reply).collect();
    assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
    assert_eq!(replies[0].text(), "old");
    assert_eq!(forebay.get("/wait.pl").text(), "new");
    forebay.stop();
}

#[test]
fn a_backend_that_is_down_stays_down_with_other_health_keys() {
    let live = Echo::start();
    let admin = free_port();
    let configuration = |health: &str| {
        format!(
            "[server]\nadmin = \"127.0.0.1:{admin}\"\n[upstream.all]\n\
             to = [\"http://127.0.0.1:{}\", \"{}\"]\nhealth = {health}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nproxy = \"@all\"\n",
            free_port(),
            live.url()
        )
    };
    let first = configuration("{ path = \"/\", interval = \"100ms\" }");
    let mut forebay = serve(Folder::new(), &first);
    let is_up = || {
        let admin = std::net::SocketAddr::from(([127, 0, 0, 1], admin));
        let status = Client::connect(admin).get("/status.json");
        let status: serde_json::Value = serde_json::from_str(status.text()).unwrap();
        status["backends"][0]["state"] == "up"
    };
    assert!(eventually(|| !is_up()));
    for health in
        ["{ path = \"/other\", interval = \"1h\" }", "{ path = \"/\", interval = \"2h\" }"]
    {
        let text = first.lines().map(|line| match line.strip_prefix("health") {
            Some(_) => format!("health = {health}\n"),
            None => format!("{line}\n"),
        });
        reload(&mut forebay, &text.collect::<String>());
        assert!(!is_up(), "{health}");
    }
    forebay.stop();
}

#[test]
fn the_state_of_backends_survives_a_reload() {
    use std::net::TcpListener;
    let live = Echo::start();
    // It accepts connections and closes them: each is one attempt.
    let broken = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\n\
         proxy = {{ to = [\"http://{}\", \"{}\"], max_fails = 1, fail_timeout = \"1h\" }}\n",
        broken.local_addr().unwrap(),
        live.url()
    );
    let attempts = std::sync::Arc::new(AtomicUsize::new(0));
    let counting = attempts.clone();
    thread::spawn(move || {
        for stream in broken.incoming() {
            counting.fetch_add(1, Ordering::Relaxed);
            drop(stream);
        }
    });
    let mut forebay = serve(Folder::new(), &site);
    let ask = |forebay: &Forebay| {
        for _ in 0..6 {
            assert_eq!(forebay.get("/x").status, 200);
        }
    };
    ask(&forebay);
    let before = attempts.load(Ordering::Relaxed);
    assert!(before > 0, "the broken one is tried first");
    reload_as_it_is(&mut forebay);
    ask(&forebay);
    assert_eq!(attempts.load(Ordering::Relaxed), before, "it is still left out");
    forebay.stop();
}

/// Starts a reload with an application that does not listen until there is a file `go`, and then
/// ends. Returns its process id.
fn begin_slow_reload(forebay: &mut Forebay) -> String {
    let wait =
        "echo $$ > started.new; mv started.new started; while [ ! -e go ]; do sleep 0.05; done";
    let slow = format!(
        "{}[app.slow]\nkind = \"command\"\nspeaks = \"http\"\ndir = \".\"\nstart_timeout = \"1h\"\n\
         run = [\"sh\", \"-c\", \"{wait}\", \"{{socket}}\"]\n",
        respond("\"127.0.0.1:0\"", "slow")
    );
    write_configuration(&forebay.folder, &slow);
    forebay.signal(Signal::HUP);
    let started = forebay.folder.path().join("started");
    assert!(eventually(|| started.exists()), "{}", forebay.output());
    fs::read_to_string(started).unwrap().trim().to_owned()
}

#[test]
fn a_stop_does_not_wait_for_a_reload() {
    let mut forebay = serve(Folder::new(), &respond("\"127.0.0.1:0\"", "first"));
    let slow = begin_slow_reload(&mut forebay);
    assert_eq!(forebay.get("/").text(), "first");
    assert!(is_alive(&slow));
    let (exit, _folder) = forebay.stop();
    assert!(exit.status.success(), "{exit:?}");
    assert!(eventually(|| !is_alive(&slow)), "what the reload has started ends, too");
}

#[test]
fn a_reload_that_is_asked_for_during_another_comes_after_it() {
    let mut forebay = serve(Folder::new(), &respond("\"127.0.0.1:0\"", "first"));
    begin_slow_reload(&mut forebay);
    write_configuration(&forebay.folder, &respond("\"127.0.0.1:0\"", "last"));
    forebay.signal(Signal::HUP);
    forebay.folder.write("go", "");
    assert!(eventually(|| forebay.get("/").text() == "last"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn unchangeable_keys_are_reported_at_a_reload() {
    let site = respond("\"127.0.0.1:0\"", "x");
    let mut forebay = serve(Folder::new(), &site);
    reload(&mut forebay, &format!("[server]\nthreads = 7\n{site}"));
    forebay.wait_for_output("change only with a restart");
    assert_eq!(forebay.get("/").text(), "x");
    forebay.stop();
}

#[test]
fn included_files_and_maps_are_read_again() {
    let folder = Folder::new();
    folder.write("conf.d/a.toml", respond("\"127.0.0.1:0\"", "first"));
    folder.write("token", "one");
    folder.write("moved.map", "/old /new\n");
    let mut forebay = serve(folder, "include = \"conf.d/*.toml\"\n");
    assert_eq!(forebay.get("/").text(), "first");
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n\
                [[site.route]]\nredirect = { file = \"../moved.map\" }\n\
                [[site.route]]\nrespond = \"{file.../token}\"\n";
    forebay.folder.write("conf.d/a.toml", site);
    reload_as_it_is(&mut forebay);
    assert_eq!(forebay.get("/").text(), "one");
    assert_eq!(forebay.get("/old?q=1").header("location"), Some("/new?q=1"));
    forebay.folder.write("token", "two");
    forebay.folder.write("moved.map", "/old /newer\n");
    reload_as_it_is(&mut forebay);
    assert_eq!(forebay.get("/").text(), "two");
    assert_eq!(forebay.get("/old").header("location"), Some("/newer"));
    // An error in an included file keeps the whole old configuration.
    forebay.folder.write("conf.d/a.toml", "[[site]\n");
    forebay.signal(Signal::HUP);
    let process = &mut forebay.process;
    let said = |output: &str| output.contains("not reloaded") && output.contains("a.toml:1");
    process.wait_until("said so", |process| said(&process.output())).unwrap();
    assert_eq!(forebay.get("/").text(), "two");
    forebay.stop();
}

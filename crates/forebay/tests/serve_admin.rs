//! Information for the administrator of `forebay serve`: status, metrics, steps and limits.

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use rustix::process::Signal;
use serde_json::Value;
use support::echo::Echo;
use support::{Forebay, serve, write_configuration};

/// A server with an admin listener.
struct Watched {
    forebay: Forebay,
    admin: SocketAddr,
    configuration: String,
}

fn watched(server: &str, site: &str) -> Watched {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\n{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n{site}"
    );
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "text");
    folder.script("cgi/x", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nscript'\n");
    Watched { forebay: serve(folder, &configuration), admin, configuration }
}

impl Watched {
    fn page(&self, target: &str) -> String {
        Client::connect(self.admin).get(target).text().to_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.page("/status")).unwrap()
    }

    /// Returns the value of a line of /metrics.
    fn metric(&self, name: &str) -> u64 {
        let metrics = self.page("/metrics");
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    fn limit(&self, name: &str) -> u64 {
        self.metric(&format!("forebay_limit_reached_total{{limit=\"{name}\"}}"))
    }
}

/// Returns the names in a `Server-Timing` field. Each has a duration.
fn steps(field: &str) -> Vec<&str> {
    let parts = field.split(", ").map(|part| {
        let (name, took) = part.split_once(";dur=").expect(field);
        assert!(took.parse::<f64>().is_ok_and(|took| took >= 0.0), "{field}");
        name
    });
    parts.collect()
}

#[test]
fn steps_are_not_timed_unless_asked_for() {
    let watched = watched("", "[[site.route]]\nrespond = \"hello\"\n");
    assert_eq!(watched.forebay.get("/").header("Server-Timing"), None);
    assert!(eventually(|| watched.status()["requests"] == 1));
    assert_eq!(watched.status()["steps"], serde_json::json!({}));
    assert_eq!(watched.metric("forebay_step_duration_seconds_count{step=\"head\"}"), 0);
    watched.forebay.stop();
}

#[test]
fn steps_are_told_to_clients_and_counted() {
    let echo = Echo::start();
    let site = format!(
        "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n\
         [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n{}",
        echo.route()
    );
    let watched = watched("timing = true", &site);
    let mut client = watched.forebay.connect();
    let reply = client.get("/files/a.txt");
    let field = reply.header("Server-Timing").unwrap();
    assert_eq!(steps(field), ["head", "route", "origin"]);
    for target in ["/cgi/x", "/echo"] {
        let reply = client.get(target);
        let field = reply.header("Server-Timing").unwrap();
        assert_eq!(steps(field), ["head", "route", "connect", "origin"], "{target}");
    }
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe");
    client.send("llo");
    let reply = client.reply();
    let names = steps(reply.header("Server-Timing").unwrap()).join(" ");
    assert!(names.starts_with("head route") && names.ends_with("origin"), "{names}");
    assert_eq!(
        watched.forebay.ask("nonsense\r\n\r\n").header("Server-Timing").map(steps).unwrap(),
        ["head"]
    );

    let count = |step: &str| {
        watched.metric(&format!("forebay_step_duration_seconds_count{{step=\"{step}\"}}"))
    };
    assert!(eventually(|| count("reply") == 5), "every reply is counted once");
    assert_eq!((count("head"), count("route"), count("origin")), (5, 4, 4));
    assert_eq!(watched.status()["steps"]["connect"]["count"], 3);
    assert!(watched.status()["steps"]["head"]["mean_us"].as_f64().unwrap() > 0.0);
    let bucket = "forebay_step_duration_seconds_bucket{step=\"origin\",le=\"+Inf\"}";
    assert_eq!(watched.metric(bucket), 4);
    watched.forebay.stop();
}

#[test]
fn connecting_to_an_application_is_a_step() {
    const REPLY: &str = "Content-Type: text/plain\r\n\r\nhello";
    for protocol in ["scgi", "uwsgi"] {
        let answer = [
            ScriptStep::Read(1),
            ScriptStep::send(REPLY),
            ScriptStep::FinishSending,
            ScriptStep::ReadToEnd,
        ];
        let backend = ScriptedBackend::tcp([answer.to_vec()]);
        let to = backend.port();
        let site = format!("[[site.route]]\n{protocol} = {{ to = \"127.0.0.1:{to}\" }}\n");
        let watched = watched("timing = true", &site);
        let reply = watched.forebay.get("/");
        let field = reply.header("Server-Timing").unwrap();
        assert_eq!(steps(field), ["head", "route", "connect", "origin"], "{protocol}");
        watched.forebay.stop();
    }
}

#[test]
fn a_reload_turns_timing_on_and_off() {
    let mut watched = watched("timing = false", "[[site.route]]\nrespond = \"hello\"\n");
    let mut client = watched.forebay.connect();
    assert_eq!(client.get("/").header("Server-Timing"), None);
    for (timing, is_told) in [("true", true), ("false", false)] {
        let other = watched.configuration.replace("timing = false", &format!("timing = {timing}"));
        write_configuration(&watched.forebay.folder, &other);
        watched.forebay.signal(Signal::HUP);
        assert!(eventually(|| client.get("/").header("Server-Timing").is_some() == is_told));
    }
    watched.forebay.stop();
}

#[test]
fn requests_are_counted_by_route_across_reloads() {
    let routes = "[[site.route]]\npath = \"/gone\"\nname = \"old-pages\"\nrespond = { status = 410 }\n\
         [[site.route]]\npaths = [\"/a\", \"/b/*\"]\nrespond = \"hello\"\n\
         [[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\nfallback_to = \"/a\"\n";
    let mut watched =
        watched("route_metrics = true", &format!("hosts = [\"a.example\", \"*\"]\n{routes}"));
    let ask = |watched: &Watched| {
        for target in ["/gone", "/a", "/b/c", "/files/a.txt", "/files/none", "/nothing"] {
            watched.forebay.get(target);
        }
        let mut client = watched.forebay.connect();
        client.send("BREW /a HTTP/1.1\r\nHost: x\r\n\r\n");
        client.reply();
    };
    let counted = |watched: &Watched, route: &str, method: &str, code: u16| {
        let of =
            format!("site=\"a.example\",route=\"{route}\",method=\"{method}\",code=\"{code}\"");
        watched
            .page("/metrics")
            .contains(&of)
            .then(|| watched.metric(&format!("forebay_route_requests_total{{{of}}}")))
    };
    let is_counted = |watched: &Watched, times: u64| {
        for (route, method, code, n) in [
            ("old-pages", "GET", 410, Some(times)),
            // Two requests for the route's own paths, and one from `fallback_to`.
            ("/a /b/*", "GET", 200, Some(3 * times)),
            ("/a /b/*", "other", 200, Some(times)),
            ("/files/*", "GET", 200, Some(times)),
            ("/files/*", "GET", 404, None),
        ] {
            assert_eq!(counted(watched, route, method, code), n, "{route}");
        }
    };
    ask(&watched);
    assert!(eventually(|| watched.status()["requests"] == 7));
    is_counted(&watched, 1);
    // Another route above, and other lines, change nothing.
    let above = "[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n";
    let changed =
        watched.configuration.replacen("[[site.route]]", &format!("{above}[[site.route]]"), 1);
    write_configuration(&watched.forebay.folder, &changed);
    watched.forebay.signal(Signal::HUP);
    assert!(eventually(|| watched.forebay.get("/new").status == 200));
    ask(&watched);
    assert!(eventually(|| counted(&watched, "old-pages", "GET", 410) == Some(2)));
    is_counted(&watched, 2);
    assert!(Client::connect(watched.admin).get("/status").text().contains("\"old-pages\""));
    watched.forebay.stop();
}

#[test]
fn each_limit_on_requests_is_counted() {
    let watched = watched(
        "limits = { head_size = \"4KiB\", fields = 10, target = 100, max_body = 5, \
         keepalive_requests = 3 }\n\
         timeouts = { head = \"1s\", body_idle = \"1s\", keep_alive = \"2s\" }",
        "[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n[[site.route]]\nrespond = \"hello\"\n",
    );
    let ask = |bytes: String| watched.forebay.ask(bytes).status;
    let fields = |count: usize, size: usize| {
        let field = |at| format!("A{at}: {}\r\n", "b".repeat(size));
        format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", (0..count).map(field).collect::<String>())
    };
    assert_eq!(ask(fields(11, 1)), 431);
    assert_eq!(watched.limit("fields"), 1);
    assert_eq!(ask(fields(2, 3000)), 431);
    assert_eq!((watched.limit("head_size"), watched.limit("fields")), (1, 1));
    assert_eq!(ask(format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(100))), 414);
    assert_eq!(watched.limit("target"), 1);
    let get_body = "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na";
    assert_eq!(ask(get_body.to_owned()), 400);
    assert_eq!(watched.limit("get_body"), 1);
    let post = "POST /cgi/x HTTP/1.1\r\nHost: h\r\nContent-Length: ";
    assert_eq!(ask(format!("{post}6\r\n\r\nabcdef")), 413);
    assert_eq!(watched.limit("max_body"), 1);
    assert_eq!(ask(format!("{post}5\r\n\r\nabc")), 408);
    assert_eq!(watched.limit("body_idle"), 1);
    assert_eq!(ask("GET / HTTP/1.1\r\nHo".to_owned()), 408);
    assert_eq!(watched.limit("head"), 1);
    let mut client = watched.forebay.connect();
    for _ in 0..3 {
        client.get("/");
    }
    assert!(client.is_closed());
    assert_eq!(watched.limit("keepalive_requests"), 1);
    let mut client = watched.forebay.connect();
    client.get("/");
    assert!(client.is_closed());
    assert!(eventually(|| watched.limit("keep_alive") == 1));
    let status = watched.status();
    assert_eq!(status["limits_reached"]["target"], 1);
    assert_eq!(status["limits_reached"]["connections"], 0);
    let mut client = Client::connect(watched.admin);
    client.send("GET /status HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n");
    assert!(client.reply().text().contains("<td>target</td><td>1</td>"));
    watched.forebay.stop();
}

#[test]
fn each_limit_on_connections_is_counted() {
    let site = "[[site.route]]\nrespond = \"hello\"\n";
    let unkept = watched("timeouts = { keep_alive = \"0s\" }", site);
    assert_eq!(unkept.forebay.get("/").header("Connection"), Some("close"));
    assert_eq!(unkept.limit("keepalive_requests"), 0, "there is none");
    unkept.forebay.stop();

    let per_address = watched("limits = { connections_per_address = 1 }", site);
    let mut first = per_address.forebay.connect();
    assert_eq!(first.get("/").status, 200);
    assert!(per_address.forebay.try_get("/").is_err());
    assert_eq!(per_address.limit("connections_per_address"), 1);
    per_address.forebay.stop();

    let echo = Echo::start();
    let total = watched("limits = { connections = 1 }", &echo.route());
    let mut first = total.forebay.connect();
    // A request is active, so its connection is not closed for other clients.
    first.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na");
    assert!(eventually(|| total.status()["backends"][0]["active"] == 1), "it is under way");
    let second = total.forebay.connect();
    assert!(eventually(|| total.limit("connections") >= 1));
    drop((first, second));
    assert!(eventually(|| total.forebay.try_get("/").is_ok()));
    total.forebay.stop();
}

#[test]
fn a_body_that_comes_too_slowly_is_given_up() {
    let echo = Echo::start();
    let watched = watched(
        "limits = { body_rate = \"1000B\" }\ntimeouts = { body_idle = \"1s\" }",
        &echo.route(),
    );
    let post =
        |length: usize| format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let mut slow = watched.forebay.connect();
    slow.send(post(100_000));
    let mut dripped = 0;
    // A client that sends a byte every 20 ms is never idle.
    while slow.try_send(b"x").is_ok() && dripped < 10_000 && watched.limit("body_rate") == 0 {
        std::thread::sleep(Duration::from_millis(20));
        dripped += 1;
    }
    let reply = slow.reply();
    assert_eq!((reply.status, reply.header("Connection")), (408, Some("close")));
    assert!(slow.is_closed());
    assert_eq!((watched.limit("body_rate"), watched.limit("body_idle")), (1, 0));
    assert_eq!(echo.whole(), 0);

    // A request that takes longer than the idle time, but is fast enough.
    let mut fast = watched.forebay.connect();
    fast.send(post(100_000));
    for _ in 0..80 {
        fast.send([b'x'; 1250]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fast.reply().status, 200);
    watched.forebay.stop();
}

#[test]
fn the_administrator_is_told_which_methods_there_are() {
    let watched = watched("", "[[site.route]]\nrespond = \"hello\"\n");
    for head in ["POST /status HTTP/1.1\r\nContent-Length: 9", "DELETE /metrics HTTP/1.1"] {
        let mut visitor = Client::connect(watched.admin);
        visitor.send(format!("{head}\r\nHost: localhost\r\n\r\n"));
        if head.starts_with("POST") {
            visitor.send("some body");
        }
        let reply = visitor.reply();
        assert_eq!((reply.status, reply.header("Allow")), (405, Some("GET, HEAD")), "{head}");
    }
    let mut visitor = Client::connect(watched.admin);
    visitor.send("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(visitor.reply_to_head().status, 200);
    assert_eq!(visitor.rest(), b"", "no body");
    let mut visitor = Client::connect(watched.admin);
    visitor.send("nonsense\r\n\r\n");
    assert_eq!(visitor.reply().status, 400);
    watched.forebay.stop();
}

#[test]
fn backends_are_shown_as_they_are() {
    let echo = Echo::start();
    let dead = free_port();
    let (go, wait) = std::sync::mpsc::channel();
    let slow = vec![ScriptStep::ReadHead, ScriptStep::Signal(go), ScriptStep::ReadToEnd];
    let slow = ScriptedBackend::tcp(vec![slow]);
    let site = format!(
        "[[site.route]]\npath = \"/slow\"\non_abort = \"stop\"\nproxy = \"http://127.0.0.1:{}\"\n[[site.route]]\n\
         proxy = {{ to = [\"{}\", {{ url = \"http://127.0.0.1:{dead}\" }}], fail_timeout = \"1h\" }}\n",
        slow.port(),
        echo.url(),
    );
    let mut watched = watched("", &site);
    for _ in 0..4 {
        assert_eq!(watched.forebay.get("/").status, 200);
    }
    let mut client = watched.forebay.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    wait.recv_timeout(forebay_testkit::DEADLINE).unwrap();

    let check = |watched: &Watched, active: u64| {
        let status = watched.status();
        let rows = status["backends"].as_array().unwrap();
        let row = |at: usize, key: &str| rows[at][key].clone();
        assert_eq!(rows.len(), 3);
        assert_eq!(row(0, "address"), format!("127.0.0.1:{}", slow.port()));
        assert_eq!(
            (row(0, "route"), row(1, "route"), row(2, "server")),
            (1.into(), 2.into(), 2.into())
        );
        assert_eq!((row(0, "active"), row(0, "requests")), (active.into(), 1.into()));
        assert_eq!((row(1, "state"), row(1, "requests")), ("up".into(), 4.into()));
        assert_eq!((row(2, "state"), row(2, "failures")), ("down".into(), 1.into()));
        let label = |server: u64, port: u16| {
            format!("{{site=\"1\",route=\"2\",server=\"{server}\",address=\"127.0.0.1:{port}\"}}")
        };
        let echo_port = echo.url().rsplit(':').next().unwrap().parse().unwrap();
        assert_eq!(watched.metric(&format!("forebay_backend_up{}", label(1, echo_port))), 1);
        assert_eq!(watched.metric(&format!("forebay_backend_up{}", label(2, dead))), 0);
        let failures = format!("forebay_backend_failures_total{}", label(2, dead));
        assert_eq!(watched.metric(&failures), 1);
    };
    check(&watched, 1);
    let mut visitor = Client::connect(watched.admin);
    visitor.send("GET /status HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n");
    let page = visitor.reply().text().to_owned();
    assert!(page.contains("<td>down</td>") && page.contains("site 1, route 2"), "{page}");

    // The state of an unchanged route survives a reload.
    watched.forebay.signal(Signal::HUP);
    watched.forebay.wait_for_output("serving by the configuration as it is now");
    check(&watched, 1);
    drop(client);
    assert!(eventually(|| watched.status()["backends"][0]["active"] == 0));
    check(&watched, 0);
    watched.forebay.stop();
}

#[test]
fn backends_of_other_protocols_are_shown_too() {
    for (protocol, more) in
        [("scgi", ""), ("uwsgi", ""), ("fastcgi", ", root = \"/nowhere\", scripts = \"*\"")]
    {
        let (go, wait) = std::sync::mpsc::channel();
        let slow = ScriptedBackend::tcp([vec![
            ScriptStep::Read(1),
            ScriptStep::Signal(go),
            ScriptStep::ReadToEnd,
        ]]);
        let (slow_port, dead) = (slow.port(), free_port());
        let to = |to: u16| format!("{protocol} = {{ to = \"127.0.0.1:{to}\"{more} }}\n");
        let site = format!(
            "[[site.route]]\npath = \"/slow\"\non_abort = \"stop\"\n{}[[site.route]]\n{}",
            to(slow_port),
            to(dead)
        );
        let mut watched = watched("", &site);
        for _ in 0..3 {
            assert_eq!(watched.forebay.get("/x").status, 502, "{protocol}");
        }
        let mut client = watched.forebay.connect();
        client.send("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
        wait.recv_timeout(forebay_testkit::DEADLINE).unwrap();

        let check = |watched: &Watched, active: u64| {
            let rows = watched.status()["backends"].clone();
            let numbers = |at: usize| {
                ["active", "requests", "failures"].map(|key| rows[at][key].as_u64().unwrap())
            };
            assert_eq!(rows[0]["address"], format!("127.0.0.1:{slow_port}"), "{protocol}");
            assert_eq!((numbers(0), numbers(1)), ([active, 1, 0], [0, 3, 3]), "{protocol}");
            assert_eq!(rows[1]["state"], "down", "{protocol}: it refuses everything");
            let label = format!("site=\"1\",route=\"2\",server=\"1\",address=\"127.0.0.1:{dead}\"");
            assert_eq!(watched.metric(&format!("forebay_backend_failures_total{{{label}}}")), 3);
        };
        check(&watched, 1);
        watched.forebay.signal(Signal::HUP);
        watched.forebay.wait_for_output("serving by the configuration as it is now");
        check(&watched, 1);
        drop(client);
        assert!(eventually(|| watched.status()["backends"][0]["active"] == 0), "{protocol}");
        check(&watched, 0);
        watched.forebay.stop();
    }
}

#[test]
fn a_lone_backend_that_refuses_everything_is_down() {
    let dead = free_port();
    let watched = watched("", &format!("[[site.route]]\nproxy = \"http://127.0.0.1:{dead}\"\n"));
    assert_eq!(watched.forebay.get("/").status, 502);
    let backend = &watched.status()["backends"][0];
    assert_eq!((&backend["state"], &backend["failures"]), (&"down".into(), &1.into()));
    watched.forebay.stop();
}

#[test]
fn each_limit_on_what_answers_is_counted() {
    let silent = ScriptedBackend::tcp([vec![ScriptStep::ReadHead, ScriptStep::ReadToEnd]]);
    let site = format!(
        "[[site.route]]\npath = \"/slow/*\"\n\
         cgi = {{ dir = \"cgi\", timeout = \"3s\", max_processes = 1 }}\n\
         [[site.route]]\npath = \"/long/*\"\ncgi = {{ dir = \"cgi\", max_output = 100 }}\n\
         [[site.route]]\nproxy = {{ to = \"http://127.0.0.1:{}\", reply_timeout = \"300ms\" }}\n",
        silent.port()
    );
    let watched = watched("", &site);
    let folder = &watched.forebay.folder;
    folder.script("cgi/sleep", "#!/bin/sh\n: > ../running\nsleep 100\n");
    folder.script("cgi/long", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%0200d' 1\n");
    assert_eq!(watched.forebay.get("/").status, 504);
    assert_eq!(watched.limit("reply_idle"), 1);
    let reply = watched.forebay.try_get("/long/long");
    assert!(reply.is_err() || reply.unwrap().status == 502);
    assert!(eventually(|| watched.limit("max_output") == 1));

    let mut first = watched.forebay.connect();
    first.send("GET /slow/sleep HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| folder.path().join("running").exists()));
    let mut second = watched.forebay.connect();
    second.send("GET /slow/sleep HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(first.reply().status, 504);
    // The second one may have reached the limit by now, too.
    assert!(matches!(watched.limit("timeout"), 1 | 2));
    // The request waited for a place, for all of its time limit or for a part of it.
    assert!(matches!(second.reply().status, 503 | 504));
    assert_eq!(watched.limit("timeout") + watched.limit("max_processes"), 2);
    watched.forebay.stop();
}

#[test]
fn each_limit_on_sending_is_counted() {
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    let backend = ScriptedBackend::tcp([vec![
        ScriptStep::ReadHead,
        ScriptStep::send(switching),
        ScriptStep::ReadToEnd,
    ]]);
    let site = format!(
        "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n\
         [[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n",
        backend.port()
    );
    let watched = watched("timeouts = { write = \"300ms\", tunnel_idle = \"300ms\" }", &site);
    watched.forebay.folder.write("htdocs/large", vec![b'x'; 20_000_000]);
    let mut client = watched.forebay.connect();
    client.send("GET /files/large HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| watched.limit("write") == 1), "the client reads nothing");
    let mut client = watched.forebay.connect();
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.reply().status, 101);
    assert!(eventually(|| watched.limit("tunnel_idle") == 1), "nobody says anything");
    watched.forebay.stop();
}

/// A web page whose own name points to the admin address cannot read from there.
#[test]
fn the_administrator_is_answered_by_addresses_and_names_that_were_given() {
    let watched =
        watched("admin_hosts = [\"Status.example.org\"]", "[[site.route]]\nrespond = \"hello\"\n");
    let ask = |fields: &str| {
        let mut client = Client::connect(watched.admin);
        client.send(format!("GET /status HTTP/1.1\r\n{fields}Connection: close\r\n\r\n"));
        client.reply()
    };
    for host in
        ["127.0.0.1", "127.0.0.1:9", "[::1]:9", "localhost", "LOCALHOST:9", "status.example.org."]
    {
        assert_eq!(ask(&format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "org:80"] {
        let reply = ask(&format!("Host: {host}\r\n"));
        assert_eq!(reply.status, 421, "{host}");
        assert!(reply.text().contains("admin_hosts of [server]"), "{}", reply.text());
    }
    watched.forebay.stop();
}

const TOKEN: &str = "0123456789abcdef";

/// Sends POST to the admin listener with these fields and this form.
fn post(watched: &Watched, target: &str, fields: &str, form: &str) -> (u16, Option<String>) {
    let mut client = Client::connect(watched.admin);
    let length = form.len();
    client.send(format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n{form}"
    ));
    let reply = client.reply();
    (reply.status, reply.header("Location").map(str::to_owned))
}

/// Returns the process of the application if one can take requests.
fn process_of_app(watched: &Watched) -> Option<u64> {
    let status = watched.status();
    let workers = status["apps"][0]["workers"].as_array()?;
    let idle: Vec<_> = workers.iter().filter(|worker| worker["state"] == "idle").collect();
    if let [worker] = idle[..] { worker["pid"].as_u64() } else { None }
}

const APP: &str = "[[site.route]]\npath = \"/*\"\napp = \"a/b\"\n\
     [app.\"a/b\"]\nkind = \"wsgi\"\nmodule = \"app:app\"\nworkers = 1\n";

fn watched_app(server: &str) -> Watched {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\n{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n{APP}"
    );
    let folder = Folder::new();
    folder.write(
        "app.py",
        "def app(environ, start):\n    start('200 OK', [])\n    return [b'answered']\n",
    );
    Watched { forebay: serve(folder, &configuration), admin, configuration }
}

#[test]
fn an_application_is_restarted_by_who_has_the_token() {
    let watched = watched_app(&format!("admin_token = \"{TOKEN}\""));
    assert_eq!(watched.forebay.get("/").text(), "answered");
    let mut old = None;
    assert!(eventually(|| {
        old = process_of_app(&watched);
        old.is_some()
    }));
    let restart = "/apps/a%2Fb/restart";
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    for wrong in ["", "0123456789abcde", "0123456789abcdee", "0123456789abcdef0"] {
        assert_eq!(post(&watched, restart, &bearer(wrong), "").0, 403, "{wrong}");
        assert_eq!(post(&watched, restart, "", &format!("token={wrong}")).0, 403, "{wrong}");
    }
    assert_eq!(post(&watched, "/apps/none/restart", &bearer(TOKEN), "").0, 404);
    assert_eq!(post(&watched, "/apps/a%2Fb", &bearer(TOKEN), "").0, 405);
    assert_eq!(post(&watched, "/status", &bearer(TOKEN), "").0, 405);
    assert_eq!(process_of_app(&watched), old, "nothing was restarted");
    assert_eq!(post(&watched, restart, &bearer(TOKEN), "").0, 202);
    let mut new = None;
    assert!(
        eventually(|| {
            new = process_of_app(&watched);
            new.is_some() && new != old
        }),
        "{}",
        watched.forebay.output()
    );
    // As the form of the page does.
    let page = watched.page("/apps/a%2Fb");
    assert!(page.contains("action=\"/apps/a%2Fb/restart\""), "{page}");
    assert!(page.contains("<th>CPU</th>") && page.contains("ended unexpectedly"), "{page}");
    let cpu = &watched.status()["apps"][0]["workers"][0]["cpu_s"];
    assert!(cpu.as_f64().is_some_and(|seconds| seconds >= 0.0), "{cpu}");
    let (status, location) =
        post(&watched, restart, "Accept: text/html\r\n", &format!("token={TOKEN}"));
    assert_eq!((status, location.as_deref()), (303, Some("/apps/a%2Fb")));
    let is_another = || process_of_app(&watched).is_some_and(|pid| Some(pid) != new);
    assert!(eventually(is_another), "{}", watched.forebay.output());
    assert_eq!(watched.forebay.get("/").text(), "answered");
    watched.forebay.stop();
}

#[test]
fn stored_replies_are_counted_and_purged_by_who_has_the_token() {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\nadmin_token = \"{TOKEN}\"\n[[site]]\n\
         listen = \"127.0.0.1:0\"\n[[site.route]]\ncgi = \"scripts\"\ncache = {{ valid = \"1h\" }}\n"
    );
    let folder = Folder::new();
    folder.script(
        "scripts/now.sh",
        "#!/bin/sh\nprintf 'Cache-Tag: one, two\\nContent-Type: text/plain\\n\\n%s' $$\n",
    );
    let watched = Watched { forebay: serve(folder, &configuration), admin, configuration };
    let get = |target: &str| watched.forebay.get(target).text().to_owned();
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let url = "http://localhost/now.sh";
    for (purge, is_gone) in [
        (format!("url={url}"), true),
        (format!("url={url}?x"), false),
        (format!("prefix={}", url.trim_end_matches(".sh")), true),
        ("tag=two".to_owned(), true),
        ("tag=tw".to_owned(), false),
        ("all=1&soft=1".to_owned(), true),
    ] {
        let before = get("/now.sh");
        assert_eq!(get("/now.sh"), before);
        let path = format!("/cache/purge?{purge}");
        assert_eq!(post(&watched, &path, "", "").0, 403);
        assert_eq!(get("/now.sh"), before);
        assert_eq!(post(&watched, &path, &bearer, "").0, 200, "{purge}");
        assert_eq!(get("/now.sh") != before, is_gone, "{purge}");
    }
    assert_eq!(post(&watched, "/cache/purge?al=1", &bearer, "").0, 400);
    assert_eq!(post(&watched, "/cache/other", &bearer, "").0, 404);
    let cache = &watched.status()["cache"];
    assert_eq!(cache["replies"], 1, "{cache}");
    assert!(cache["hits"].as_u64() > Some(5) && cache["misses"].as_u64() > Some(3), "{cache}");
    let metrics = watched.page("/metrics");
    assert!(metrics.contains("forebay_cache_requests_total{result=\"hit\"}"), "{metrics}");
    watched.forebay.stop();
}

#[test]
fn without_a_token_nothing_is_restarted() {
    let watched = watched_app("");
    let page = watched.page("/apps/a%2Fb");
    assert!(page.contains("<h1>a/b</h1>") && !page.contains("<form"), "{page}");
    let field = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(post(&watched, "/apps/a%2Fb/restart", &field, "").0, 403);
    assert_eq!(Client::connect(watched.admin).get("/apps/none").status, 404);
    watched.forebay.stop();
}

#[test]
fn values_from_files_are_not_shown() {
    let token = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("secret-token");
    std::fs::write(&token, "127.0.0.77\n").unwrap();
    let token = format!("{{file.{}}}", token.display());
    let site = format!(
        "[[site.route]]\nmethods = \"PUT\"\nproxy = \"@group\"\n\
         [[site.route]]\nproxy = \"http://{token}:1\"\n\
         [upstream.group]\nto = \"http://{token}:2\"\n"
    );
    let watched = watched("", &site);
    for page in ["/status", "/metrics", "/"] {
        let shown = watched.page(page);
        assert!(!shown.contains("127.0.0.77"), "{page}: {shown}");
    }
    assert!(watched.page("/status").contains("secret-token}:1"));
    watched.forebay.stop();
}

#[test]
fn the_status_names_who_takes_the_time() {
    let site = "trusted_proxies = [\"127.0.0.1\"]\n[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
                [[site.route]]\nfiles = \"htdocs\"\n";
    let watched = watched("timing = true", site);
    let ask = |target: &str, client: &str, agent: &str| {
        let reply = watched.forebay.ask(format!(
            "GET {target} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\
             User-Agent: {agent}\r\n\r\n"
        ));
        assert_eq!(reply.status, 200);
    };
    for _ in 0..5 {
        ask("/cgi/x?secret", "192.0.2.7", "<b>bot");
        ask("/a.txt", "198.51.100.1", "browser");
    }
    let first = |kind: &str| watched.status()["top"][kind][0]["name"].clone();
    assert!(eventually(|| first("paths") == "/cgi/x"), "{}", watched.status()["top"]);
    assert_eq!(first("clients"), "192.0.2.7");
    assert_eq!(first("networks"), "192.0.2.0/24");
    assert_eq!(first("agents"), "<b>bot");
    assert_eq!(watched.status()["top"]["clients"][0]["requests"], 5);
    watched.forebay.stop();
}

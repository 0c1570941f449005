//! Scenarios of `forebay bench`, against a server that checks each request.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_testkit::folder::Folder;
use serde_json::Value;

type Answer = fn(&str) -> String;

/// Requests that a server has received, by their first line.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<String>>>);

impl Received {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn lines(&self) -> BTreeMap<String, usize> {
        let mut lines = BTreeMap::new();
        for request in self.all() {
            *lines.entry(request.lines().next().unwrap().to_owned()).or_default() += 1;
        }
        lines
    }
}

/// Starts a server that answers each request with `answer`. Returns its URL.
fn server(answer: Answer) -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let received = Received::default();
    let log = received.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, log) = (stream.unwrap(), log.clone());
            thread::spawn(move || serve(stream, answer, &log));
        }
    });
    (url, received)
}

fn serve(mut stream: TcpStream, answer: Answer, log: &Received) {
    while let Some(request) = read_request(&mut stream) {
        log.0.lock().unwrap().push(request.clone());
        if stream.write_all(answer(&request).as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let (mut bytes, mut byte) = (Vec::new(), [0]);
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).into_owned();
    let length = field(&head, "Content-Length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some(head + &String::from_utf8_lossy(&body))
}

fn field<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let fields = request.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

fn reply(status: u16, fields: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
}

/// Runs a scenario file. Returns the output and the JSON of the run.
fn bench(url: &str, scenario: &str, args: &[&str]) -> (Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    fs::write(path("s.toml"), scenario).unwrap();
    fs::write(path("photo.txt"), "a photo").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", url, "--json"])
        .arg(path("r.json"))
        .arg("--scenario")
        .arg(path("s.toml"))
        .args(args)
        .output()
        .unwrap();
    let json = fs::read(path("r.json")).ok().map(|json| serde_json::from_slice(&json).unwrap());
    (output, json.unwrap_or_default())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A shop: a form with a token, a login that redirects, and an account that needs the cookie.
fn shop(request: &str) -> String {
    let line = request.lines().next().unwrap();
    let body = request.split("\r\n\r\n").nth(1).unwrap();
    match line.split(' ').take(2).collect::<Vec<_>>()[..] {
        ["GET", "/form"] => reply(200, "", "<input name=t value='a&b \"c'>"),
        ["POST", "/login"] if body == "token=a%26b%20%22c&user=u" => {
            reply(302, "Location: account?x#top\r\nSet-Cookie: sid=s1; Path=/\r\n", "")
        }
        ["GET", "/account?x"] if field(request, "Cookie") == Some("sid=s1") => {
            reply(200, "X-Kind: page\r\n", "{\"id\": 7, \"name\": \"Bob\"}")
        }
        ["POST", "/item/7"] if body == "{\"t\": \"a&b \\\"c\"}" => reply(201, "", ""),
        _ => reply(400, "", "unexpected"),
    }
}

const SHOP: &str = r#"
[[scenario]]
name = "buyer"
[[scenario.step]]
name = "form"
path = "/form"
extract.token = { regex = "value='([^']*)'" }
[[scenario.step]]
name = "login"
path = "/login"
form = { token = "{token}", user = "u" }
extract.id = { json = "/id" }
extract.sid = { cookie = "sid" }
check.status = 200
check.fields.X-Kind = "^page$"
check.body_matches = '"name": "B\w+"'
check.json = { "/id" = 7, "/name" = "Bob" }
think = "1ms..2ms"
[[scenario.step]]
name = "buy"
path = "/item/{id}"
body = '{"t": "{token}"}'
fields = { Content-Type = "application/json", X-Sid = "{sid}", X-N = "{n}" }
repeat = 2
check.status = [200, 201]
"#;

#[test]
fn steps_use_values_of_earlier_replies_and_counts_are_exact() {
    let (url, received) = server(shop);
    let junit = tempfile::NamedTempFile::new().unwrap();
    let html = tempfile::NamedTempFile::new().unwrap();
    let [xml, page] = [junit.path(), html.path()].map(|path| path.to_str().unwrap());
    let args = ["-n", "20", "-c", "3", "-t", "2", "--junit", xml, "--html", page];
    let (output, json) = bench(&url, SHOP, &args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = received.lines();
    let expected = [
        ("GET /account?x HTTP/1.1", 20),
        ("GET /form HTTP/1.1", 20),
        ("POST /item/7 HTTP/1.1", 40),
        ("POST /login HTTP/1.1", 20),
    ];
    assert_eq!(lines, expected.map(|(line, count)| (line.to_owned(), count)).into());
    assert_eq!(
        (&json["requests"]["completed"], &json["requests"]["failed"]),
        (&100.into(), &0.into())
    );
    let iterations = &json["iterations"][0];
    assert_eq!((&iterations["name"], &iterations["completed"]), (&"buyer".into(), &20.into()));
    assert!(iterations["time_us"]["min"].as_u64().unwrap() >= 1000, "the pause is included");
    let steps = json["requests_by_url"].as_array().unwrap();
    let steps: Vec<_> = steps
        .iter()
        .map(|s| (s["name"].as_str().unwrap(), s["completed"].as_u64().unwrap()))
        .collect();
    assert_eq!(steps, [("form", 20), ("login", 40), ("buy", 40)]);
    let numbers: Vec<_> = received
        .all()
        .iter()
        .filter_map(|r| Some(field(r, "X-N")?.parse::<u32>().unwrap()))
        .collect();
    assert_eq!(numbers.iter().sum::<u32>(), 2 * 210, "each iteration has its number");
    // No user has cookies of another one.
    let cookies = received
        .all()
        .iter()
        .filter(|r| r.starts_with("GET /form") && r.contains("Cookie"))
        .count();
    assert_eq!(cookies, 0);
    let report = text(&output.stdout);
    for part in ["3 steps", "Iterations", "20  buyer", "40  login"] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(fs::read_to_string(xml).unwrap().contains("name=\"step login\"/>"));
    assert!(fs::read_to_string(page).unwrap().contains("<td>login</td><td>40</td><td>0</td>"));
}

#[test]
fn a_failed_step_ends_the_iteration_unless_the_scenario_continues() {
    let scenario = "[[scenario]]\nname = 'a'\n[[scenario.step]]\nname = 'bad'\npath = '/nothing'\n\
                    [[scenario.step]]\nname = 'form'\npath = '/form'\ncheck.body_contains = 'value='\n";
    let (url, received) = server(shop);
    let (output, json) = bench(&url, scenario, &["-n", "7", "-c", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(received.all().len(), 7);
    assert_eq!(
        (&json["iterations"][0]["failed"], &json["iterations"][0]["completed"]),
        (&7.into(), &0.into())
    );
    assert_eq!(json["requests_by_url"][0]["failures"]["check"], 7);
    let why = json["first_failure"].as_str().unwrap();
    assert!(why.starts_with("check: bad: the status is 400, not below 400"), "{why}");

    let (url, received) = server(shop);
    let scenario = scenario.replace("name = 'a'", "name = 'a'\nstop_on_failure = false");
    let (_, json) = bench(&url, &scenario, &["-n", "7", "-c", "2"]);
    assert_eq!(received.all().len(), 14);
    assert_eq!(
        (&json["iterations"][0]["failed"], &json["requests"]["completed"]),
        (&7.into(), &7.into())
    );
    // An expected error status is a success.
    let (url, _) = server(shop);
    let scenario = scenario.replace("'/nothing'", "'/nothing'\ncheck.status = 400");
    assert_eq!(bench(&url, &scenario, &["-n", "7", "--quiet"]).0.status.code(), Some(0));
}

/// Returns values that would change the next request, if they were sent unchanged.
fn hostile(request: &str) -> String {
    let line = request.lines().next().unwrap();
    match line.split(' ').nth(1).unwrap() {
        "/lines" => reply(200, "", r#"{"v": "a\r\nX-Evil: 1\r\n\r\n"}"#),
        "/long" => reply(200, "", &format!("v={}.", "x".repeat(5000))),
        "/huge" => reply(200, "", &format!("{}v=1.", " ".repeat(2 << 20))),
        "/target" => reply(200, "", "v=a b/../?x#y HTTP/1.1\r\nX-Evil: 1."),
        "/away" => reply(302, "Location: http://evil.example/\r\n", ""),
        "/loop" => reply(302, "Location: /loop\r\n", ""),
        "/alias" => reply(307, "Location: http://www.example/end\r\n", ""),
        _ => reply(200, "", "ok"),
    }
}

#[test]
fn values_of_a_hostile_server_cannot_leave_their_place() {
    let run = |first: &str, extract: &str, second: &str| {
        let (url, received) = server(hostile);
        let scenario = format!(
            "hosts = ['www.example']\n[[scenario]]\n[[scenario.step]]\npath = '{first}'\n{extract}\n\
             [[scenario.step]]\n{second}\n"
        );
        let (output, json) = bench(&url, &scenario, &["-n", "1", "-c", "1"]);
        let why = json["first_failure"].as_str().unwrap_or_default().to_owned();
        (received.all(), why, text(&output.stderr))
    };
    let (json, regex) = ("extract.v = { json = '/v' }", "extract.v = { regex = 'v=([^.]*)' }");
    let everything = "extract.v = { regex = '(?s)v=(.*)[.]$' }";
    let (requests, why, _) = run("/lines", json, "path = '/x'\nfields = { X-V = '{v}' }");
    assert!(requests.len() == 1 && why.contains("line break"), "{why}");
    let (requests, why, _) = run("/lines", json, "path = '/x'\nmultipart = { v = '{v}' }");
    assert!(requests.len() == 1 && why.contains("line break"), "{why}");
    let (requests, why, _) = run("/lines", json, "path = '/{v}'");
    assert!(requests[1].starts_with("GET /a%0D%0AX-Evil%3A%201%0D%0A%0D%0A HTTP/1.1\r\n"), "{why}");
    let (requests, why, _) = run("/target", everything, "path = '/{v}/z'");
    assert!(
        requests[1].starts_with("GET /a%20b%2F..%2F%3Fx%23y%20HTTP%2F1.1%0D%0AX-Evil"),
        "{why}"
    );
    let (requests, why, _) = run("/long", regex, "path = '/x?{v}'");
    assert!(requests.len() == 1 && why.contains("longer than 4096 bytes"), "{why}");
    let (requests, why, _) = run("/huge", regex, "path = '/x?{v}'");
    assert!(requests.len() == 1 && why.contains("no value for v in its first MiB"), "{why}");
    let (requests, why, _) = run("/away", "", "path = '/x'");
    assert!(requests.len() == 1 && why.contains("it leads to evil.example"), "{why}");
    let (requests, why, _) = run("/loop", "redirects = 3", "path = '/x'");
    assert!(requests.len() == 4 && why.contains("more than 3 times"), "{why}");
    let (requests, _, _) = run("/away", "redirects = 0", "path = '/x'");
    assert_eq!(requests.len(), 2);
    let (requests, _, _) = run("/alias", "method = 'POST'\nbody = 'b'", "path = '/x'");
    assert!(requests[1].starts_with("POST /end ") && requests[1].ends_with("\r\n\r\nb"));
    assert_eq!(field(&requests[1], "Host"), Some("www.example"));
}

#[test]
fn scenarios_are_mixed_by_weight_and_users_live_for_their_iterations() {
    fn answer(request: &str) -> String {
        let is_known = request.contains("Cookie: id=1");
        let cookie = if is_known { "" } else { "Set-Cookie: id=1\r\n" };
        reply(200, cookie, if is_known { "known" } else { "new" })
    }
    let scenario = "[[scenario]]\nname = 'often'\nweight = 3\niterations = 2\n[[scenario.step]]\npath = '/a'\n\
                    [[scenario]]\nname = 'rare'\ncookies = false\niterations = 2\n[[scenario.step]]\npath = '/b'\n";
    let (url, received) = server(answer);
    let (output, json) = bench(&url, scenario, &["-n", "40", "-c", "1"]);
    assert!(output.status.success(), "{output:?}");
    let counts = json["iterations"].as_array().unwrap();
    let counts: Vec<_> = counts.iter().map(|c| c["completed"].as_u64().unwrap()).collect();
    assert_eq!(counts, [30, 10]);
    let known = |path: &str| {
        let all = received.all();
        all.iter().filter(|r| r.starts_with(path) && r.contains("Cookie: id=1")).count()
    };
    assert_eq!(
        (known("GET /a"), known("GET /b")),
        (15, 0),
        "every second iteration has the cookie"
    );
}

#[test]
fn an_open_loop_counts_iterations_from_their_due_time() {
    let (url, received) = server(hostile);
    let scenario = "[[scenario]]\nthink = '30ms'\n[[scenario.step]]\npath = '/x'\n[[scenario.step]]\npath = '/y'\n";
    let args = ["-n", "8", "-c", "1", "-r", "1000", "--arrivals", "even", "--allow-failures"];
    let (_, json) = bench(&url, scenario, &args);
    assert_eq!(received.all().len(), 16);
    // With one user, each iteration takes 30 ms, so the last one begins 200 ms after its due time.
    let slowest = json["iterations"][0]["time_us"]["max"].as_u64().unwrap();
    assert!(slowest >= 200_000, "{slowest}");
    let first_step = json["requests_by_url"][0]["latency_us"]["max"].as_u64().unwrap();
    assert!(first_step >= 190_000, "{first_step}");
    let second = json["requests_by_url"][1]["latency_us"]["min"].as_u64().unwrap();
    assert!(second < 30_000, "the pause is no latency: {second}");
}

#[test]
fn mistakes_in_the_file_have_their_line_and_the_next_step() {
    let step = "[[scenario]]\n[[scenario.step]]\n";
    for (scenario, line, why, help) in [
        ("[[scenaro]]\n".to_owned(), 1, "unknown key `scenaro`", "did you mean `scenario`?"),
        (format!("{step}pth = '/'"), 3, "unknown key `pth`", "did you mean `path`?"),
        (format!("{step}path = '/'\ncheck.stats = 1"), 4, "unknown key `stats`", "`status`"),
        (format!("{step}path = 'x'"), 3, "it must begin with /", "/login"),
        (format!("{step}path = '/'\nthink = '3s..1s'"), 4, "longer than", "exponential 2s"),
        (
            format!("{step}path = '/'\nextract.a = {{ regex = '(' }}"),
            4,
            "unclosed group",
            "regular",
        ),
        (format!("{step}path = '/'\nextract.a = {{}}"), 4, "no single source", "json"),
        (format!("{step}path = '/'\ncheck.status = 'x'"), 4, "no status", "[200, 302]"),
        (
            format!("{step}path = '/{{a}}'\nextract.a = {{ cookie = 'a' }}"),
            2,
            "before a step",
            "earlier",
        ),
        (format!("{step}path = '/'\nrepeat = 0"), 4, "too small", "from 1"),
        (
            format!("{step}path = '/'\nbody = 'a'\nform = {{ a = 'b' }}"),
            2,
            "only one body",
            "one of",
        ),
        ("[[scenario]]\n".to_owned(), 1, "no step", "[[scenario.step]]"),
    ] {
        let (output, _) = bench("http://127.0.0.1:1/", &scenario, &[]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(why) && error.contains(help), "{scenario}: {error}");
        assert!(error.lines().count() > 3 && !error.contains('\u{fffd}'), "{error}");
        assert!(error.contains(&format!("s.toml:{line}:")), "{scenario}: {error}");
    }
    let (output, _) = bench("http://127.0.0.1:1/", &format!("{step}path = '/{{tokn}}'"), &[]);
    assert!(text(&output.stderr).contains("no value has the name \"tokn\""), "{output:?}");
}

/// Sets a cookie of 4,000 bytes whose name is in the query.
fn many_cookies(request: &str) -> String {
    let target = request.split(' ').nth(1).unwrap();
    let value = "y".repeat(4000);
    let name = target.split('?').nth(1).unwrap_or("none");
    reply(200, &format!("Set-Cookie: c{name}={value}\r\n"), "ok")
}

#[test]
fn all_protocols_perform_scenarios_and_refuse_heads_that_are_too_long() {
    let long = "[[scenario]]\n[[scenario.step]]\npath = '/set?{random:1-999999}'\nrepeat = 60\n";
    let check_long = |url: &str, args: &[&str], received: &Received| {
        let (_, json) = bench(url, long, &[&["-n", "3", "-c", "1"][..], args].concat());
        assert_eq!(json["requests"]["failures"]["write"], 3, "{json:#}");
        assert_eq!(json["iterations"][0]["failed"], 3);
        let why = json["first_failure"].as_str().unwrap();
        assert!(why.contains("malformed") && why.contains("large"), "{why}");
        let all = received.all();
        let sent = json["requests"]["completed"].as_u64().unwrap();
        assert_eq!(all.len() as u64, sent);
        assert!(all.iter().all(|request| !request.contains("xxxx")), "no placeholder is invented");
    };
    let (url, received) = server(many_cookies);
    check_long(&url, &[], &received);

    let (backend, received) = server(shop);
    let (cookies, long_received) = server(many_cookies);
    let folder = Folder::new();
    let routes = format!(
        "[[site.route]]\npath = '/set'\nproxy = '{}'\n[[site.route]]\nproxy = '{}'\n",
        cookies.trim_end_matches('/'),
        backend.trim_end_matches('/')
    );
    let (front, authority) = support::http3::site(folder, &routes);
    let ca = front.folder.write("ca.pem", &authority.pem);
    let url = format!("https://localhost:{}/", front.address.port());
    for (flags, protocol) in [
        (&["-c", "3"][..], "https"),
        (&["-c", "2", "--http2", "--streams", "2"], "h2"),
        (&["-c", "2", "--http3", "--streams", "2"], "http3"),
    ] {
        let ca = ["-n", "12", "--ca", ca.to_str().unwrap()];
        let (output, json) = bench(&url, SHOP, &[flags, &ca].concat());
        assert_eq!(output.status.code(), Some(0), "{protocol}: {output:?} {json:#}");
        assert_eq!((&json["iterations"][0]["completed"]), &12, "{protocol}");
        assert_eq!(json["requests"]["completed"], 60, "{protocol}");
        assert_eq!(received.all().len(), 60, "{protocol}");
        received.0.lock().unwrap().clear();
    }
    let args = ["--http2", "--ca", ca.to_str().unwrap()];
    check_long(&url, &args, &long_received);
}

/// Redirects `/login` to another name of the server. Each name sets its own cookie.
fn two_names(request: &str) -> String {
    match request.split(' ').nth(1).unwrap() {
        "/login" => {
            let fields =
                "Location: http://www.example/end\r\nSet-Cookie: here=1; Domain=example\r\n";
            reply(307, fields, "")
        }
        "/end" => reply(302, "Location: /there\r\nSet-Cookie: there=2\r\n", ""),
        _ => reply(200, "", "ok"),
    }
}

#[test]
fn credentials_go_to_another_name_of_the_server_only_if_the_file_says_so() {
    let run = |top: &str| {
        let scenario = format!(
            "hosts = ['www.example']\n{top}\nfields = {{ Authorization = 'Basic x', Cookie = 'own=3' }}\n\
             [[scenario]]\n[[scenario.step]]\npath = '/login'\n[[scenario.step]]\npath = '/home'\n"
        );
        let (url, received) = server(two_names);
        let (output, _) = bench(&url, &scenario, &["-n", "1", "-c", "1"]);
        assert!(output.status.success(), "{output:?}");
        let credentials = |request: &String| {
            let of = |name| field(request, name).unwrap_or("-").to_owned();
            (of("Authorization"), of("Cookie"))
        };
        received.all().iter().map(credentials).collect::<Vec<_>>()
    };
    let pair =
        |(authorization, cookie): (&str, &str)| (authorization.to_owned(), cookie.to_owned());
    let apart = [("Basic x", "own=3"), ("-", "-"), ("-", "there=2"), ("Basic x", "own=3; here=1")];
    assert_eq!(run(""), apart.map(pair));
    let together = [
        ("Basic x", "own=3"),
        ("Basic x", "own=3; here=1"),
        ("Basic x", "own=3; here=1; there=2"),
        ("Basic x", "own=3; here=1; there=2"),
    ];
    assert_eq!(run("share_credentials = true"), together.map(pair));
}

#[test]
fn iterations_that_were_never_due_are_not_interrupted() {
    let (url, received) = server(hostile);
    let scenario = "[[scenario]]\n[[scenario.step]]\npath = '/x'\n";
    let args = ["-d", "500ms", "-c", "40", "-r", "10", "--arrivals", "even", "--allow-failures"];
    let (_, json) = bench(&url, scenario, &args);
    let counts = &json["iterations"][0];
    let [completed, interrupted] =
        ["completed", "interrupted"].map(|name| counts[name].as_u64().unwrap());
    assert_eq!(completed + interrupted, received.all().len() as u64);
}

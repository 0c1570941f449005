//! Changes of a running server through `admin`: `/control/` and `forebay ctl`.

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::echo::Echo;
use support::{Forebay, program, serve, write_configuration};

const TOKEN: &str = "0123456789abcdefgh";

/// A server with two backends, whose administrator uses TCP with a token.
struct Controlled {
    forebay: Forebay,
    admin: SocketAddr,
    configuration: String,
    backends: [Echo; 2],
}

fn controlled() -> Controlled {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let backends = [Echo::start(), Echo::start()];
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\nadmin_token = \"{TOKEN}\"\n\
         [upstream.shop]\nto = [\"{}\", \"{}\"]\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\nhosts = [\"a.example\", \"*\"]\n\
         [[site.route]]\npath = \"/hello\"\nrespond = \"hello\"\n\
         [[site.route]]\nproxy = {{ to = \"@shop\" }}\n",
        backends[0].url(),
        backends[1].url(),
    );
    let forebay = serve(Folder::new(), &configuration);
    Controlled { forebay, admin, configuration, backends }
}

impl Controlled {
    /// Sends a request to `/control/` with these fields.
    fn ask(&self, what: &str, fields: &str, body: &str) -> Reply {
        let mut client = Client::connect(self.admin);
        client.send(format!(
            "POST /control/{what} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{fields}\r\n",
            body.len()
        ));
        let _ = client.try_send(body.as_bytes());
        client.reply()
    }

    fn order(&self, what: &str, body: &Value) -> (u16, Value) {
        let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
        let reply = self.ask(what, &fields, &body.to_string());
        (reply.status, serde_json::from_str(reply.text()).unwrap())
    }

    fn replace(&self, text: &str, more: &str) -> (u16, Value) {
        let fields =
            format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/toml\r\n{more}");
        let reply = self.ask("configuration", &fields, text);
        (reply.status, serde_json::from_str(reply.text()).unwrap())
    }

    fn status(&self) -> Value {
        serde_json::from_str(Client::connect(self.admin).get("/status.json").text()).unwrap()
    }

    fn address(&self, backend: usize) -> String {
        self.backends[backend].url().trim_start_matches("http://").to_owned()
    }

    fn served(&self) -> [u64; 2] {
        let status = self.status();
        [0, 1].map(|at| status["backends"][at]["requests"].as_u64().unwrap())
    }

    /// Sends four requests. Returns the number that each backend got.
    fn four(&self) -> [u64; 2] {
        let before = self.served();
        for _ in 0..4 {
            assert_eq!(self.forebay.get("/").status, 200);
        }
        let after = self.served();
        [0, 1].map(|at| after[at] - before[at])
    }
}

#[test]
fn backends_drain_and_sites_close_over_reloads() {
    let mut server = controlled();
    assert_eq!(server.four(), [2, 2]);
    let first = server.address(0);
    let (status, answer) = server.order("backend", &json!({"backend": first, "state": "drain"}));
    assert_eq!((status, &answer["generation"]), (200, &json!(2)), "{answer}");
    assert_eq!(server.four(), [0, 4]);
    let (status, answer) =
        server.order("backend", &json!({"backend": server.address(1), "state": "down"}));
    assert_eq!(status, 409, "{answer}");
    assert_eq!(server.four(), [0, 4]);

    // The file is read again: the change stays, and a route is new.
    let more = "[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n[[site.route]]\nproxy";
    let other = server.configuration.replace("[[site.route]]\nproxy", more);
    write_configuration(&server.forebay.folder, &other);
    assert_eq!(server.order("reload", &json!({})).0, 200);
    assert_eq!(server.forebay.get("/new").text(), "new");
    assert_eq!(server.four(), [0, 4]);
    server.forebay.signal(Signal::HUP);
    assert!(eventually(|| server.status()["configuration"]["generation"] == 4));
    assert_eq!(server.four(), [0, 4]);

    let weight = json!({"backend": first, "upstream": "shop", "weight": 3});
    // The drain is a change of all groups, so it cannot be undone for one group.
    let ready = json!({"backend": first, "upstream": "shop", "state": "ready"});
    assert_eq!(server.order("backend", &ready).0, 409);
    assert_eq!(server.order("backend", &weight).0, 200);
    assert_eq!(server.order("backend", &json!({"backend": first, "state": "ready"})).0, 200);
    assert_eq!(server.four(), [3, 1]);
    assert_eq!(server.status()["backends"][0]["weight"], 3);

    let close = json!({"site": "A.example", "closed": true, "retry_after": "90s"});
    assert_eq!(server.order("maintenance", &close).0, 200);
    let reply = server.forebay.get("/hello");
    assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("90")));
    assert_eq!(server.forebay.get("/").status, 503);
    let close = json!({"site": "a.example", "closed": true, "except": ["127.0.0.0/8"]});
    assert_eq!(server.order("maintenance", &close).0, 200);
    assert_eq!(server.forebay.get("/hello").status, 200);
    let changes = &server.status()["configuration"]["changes"];
    assert_eq!(changes.as_array().unwrap().len(), 2, "{changes}");

    assert_eq!(server.order("reset", &json!({})).0, 200);
    assert_eq!(server.four(), [2, 2]);
    assert_eq!(server.status()["configuration"]["changes"], json!([]));
    let output = server.forebay.output();
    assert!(output.contains("made configuration 2: backend"), "{output}");
    assert!(output.contains("127.0.0.1:") && output.contains("was refused a change"), "{output}");
    server.forebay.stop();
}

#[test]
fn a_posted_configuration_replaces_the_running_one_or_changes_nothing() {
    let mut server = controlled();
    let text = server.configuration.replace("respond = \"hello\"", "respond = \"posted\"");
    let mut client = server.forebay.connect();
    assert_eq!(client.get("/hello").text(), "hello");
    assert_eq!(server.replace(&text, "If-Match: \"7\"\r\n").0, 412);
    assert_eq!(server.replace(&text, "If-Match: nothing\r\n").0, 412);
    assert_eq!(server.replace(&text, "If-Match: \"1\"\r\n").0, 200);
    // A connection stays open.
    assert_eq!(client.get("/hello").text(), "posted");
    assert_eq!(server.status()["configuration"]["source"], "posted");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let on_taken = text.replace(
        "listen = \"127.0.0.1:0\"",
        &format!("listen = [\"127.0.0.1:0\", \"127.0.0.1:{port}\"]"),
    );
    let expecting = text.replace("hosts =", "expect = [\"/hello -> 404\"]\nhosts =");
    let app = format!(
        "{text}[app.none]\nkind = \"command\"\nrun = [\"/bin/false\", \"{{port}}\"]\nspeaks = \"http\"\n"
    );
    for (wrong, status, why) in [
        ("", 422, "site"),
        ("nonsense", 422, "posted.toml"),
        (&*expecting, 422, "the answer is 200"),
        (&*on_taken, 409, "another program uses it"),
        (&*app, 422, "none"),
    ] {
        let wrong = wrong.replace("posted", "wrong");
        let (found, answer) = server.replace(&wrong, "");
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(why), "{answer}");
        assert_eq!(client.get("/hello").text(), "posted");
    }
    assert_eq!(server.status()["configuration"]["generation"], 2);

    // Of two clients that replace the same configuration, one is refused.
    let statuses = thread::scope(|scope| {
        let replace = || scope.spawn(|| server.replace(&text, "If-Match: \"2\"\r\n").0);
        let both = [replace(), replace()];
        both.map(|one| one.join().unwrap())
    });
    assert!(statuses == [200, 412] || statuses == [412, 200], "{statuses:?}");

    // A reload reads the file, which has not changed.
    server.forebay.signal(Signal::HUP);
    assert!(eventually(|| client.get("/hello").text() == "hello"));
    // Threads apply a configuration before its number is shown.
    assert!(eventually(|| server.status()["configuration"]["source"] == "file"));
    server.forebay.stop();
}

#[test]
fn only_the_administrator_changes_anything() {
    let server = controlled();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let json = "Content-Type: application/json\r\n";
    let drain = json!({"backend": server.address(0), "state": "drain"}).to_string();
    for (fields, status) in [
        (json.to_owned(), 403),
        (format!("Authorization: Bearer {TOKEN}x\r\n{json}"), 403),
        (format!("Authorization: Basic {TOKEN}\r\n{json}"), 403),
        (format!("{token}Content-Type: text/plain\r\n"), 415),
        (format!("{token}Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (token.clone(), 415),
        (format!("{token}{json}Origin: http://evil.example\r\n"), 403),
        (format!("{token}{json}Origin: null\r\n"), 403),
        (format!("{token}{json}Sec-Fetch-Site: cross-site\r\n"), 403),
        (format!("{token}{json}Sec-Fetch-Site: same-site\r\n"), 403),
    ] {
        assert_eq!(server.ask("backend", &fields, &drain).status, status, "{fields}");
    }
    // A form of a web page may contain the token of `/apps/NAME/restart`, but never changes this.
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(server.ask("reload", form, &format!("token={TOKEN}")).status, 403);

    let send = |bytes: &str| {
        let mut client = Client::connect(server.admin);
        client.send(bytes);
        client.reply()
    };
    let reload = |host: &str| format!("POST /control/reload HTTP/1.1\r\nHost: {host}\r\n{token}");
    assert_eq!(send(&format!("{}Content-Length: 0\r\n\r\n", reload("evil.example"))).status, 421);
    let preflight = "OPTIONS /control/reload HTTP/1.1\r\nHost: localhost\r\n\
                     Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n";
    let reply = send(preflight);
    assert_eq!(reply.status, 403);
    assert_eq!(reply.header("Access-Control-Allow-Origin"), None);
    let get = format!("GET /control/reload HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
    assert_eq!(send(&get).status, 405);

    // Bodies that are too large, without a length, or incomplete.
    let head = format!(
        "POST /control/configuration HTTP/1.1\r\nHost: localhost\r\n{token}\
         Content-Type: application/toml\r\n"
    );
    assert_eq!(send(&format!("{head}Content-Length: 99999999999\r\n\r\n")).status, 413);
    assert_eq!(send(&format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")).status, 411);
    let mut half = Client::connect(server.admin);
    half.send(format!("{head}Content-Length: 100\r\n\r\nhalf"));
    let mut heads: Vec<_> = (0..4).map(|_| Client::connect(server.admin)).collect();
    heads.iter_mut().for_each(|client| client.send("POST /control/reload HT"));
    // These clients delay no other one.
    assert_eq!(server.order("reset", &json!({})).0, 200);
    half.finish_sending();
    assert_eq!(half.reply().status, 400);
    for nonsense in ["{}", "[1]", "{\"backend\": \"x\", \"state\": \"off\"}", "\u{0}"] {
        let reply = server.ask("backend", &format!("{token}{json}"), nonsense);
        assert_eq!(reply.status, 400, "{nonsense}");
    }
    let plan = "GET /control/plan HTTP/1.1\r\nHost: localhost\r\n";
    assert_eq!(send(&format!("{plan}\r\n")).status, 403);
    let shown = send(&format!("{plan}{token}\r\n"));
    assert_eq!(shown.status, 200);
    assert!(shown.text().contains("(hidden)") && !shown.text().contains(TOKEN));
    for nonsense in [json!({"settings": 1}), json!({"settings": [{"part": "x"}]}), json!({"x": 1})]
    {
        assert_eq!(server.order("diff", &nonsense).0, 400, "{nonsense}");
    }
    let (status, answer) = server.order("diff", &json!({"settings": []}));
    assert_eq!(status, 200);
    assert!(answer["difference"].as_array().unwrap().len() >= 4, "{answer}");
    assert!(!answer.to_string().contains(TOKEN));
    assert_eq!(server.order("nothing", &json!({})).0, 404);
    assert_eq!(server.status()["configuration"]["changes"], json!([]));
    assert_eq!(server.four(), [2, 2]);
    assert!(!server.forebay.output().contains(TOKEN));
    server.forebay.stop();
}

/// Runs `forebay ctl`. Returns exit code, standard output and standard error.
fn ctl(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(program());
    command.arg("ctl").args(arguments);
    command.env_remove("FOREBAY_ADMIN").env_remove("FOREBAY_ADMIN_TOKEN");
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn ctl_controls_a_server_over_a_unix_socket() {
    let folder = Folder::new();
    let echo = Echo::start();
    let socket = folder.path().join("admin.sock");
    let configuration = format!(
        "[server]\nadmin = \"unix:admin.sock\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         expect = [\"/hello -> 200\"]\n[[site.route]]\npath = \"/hello\"\nrespond = \"hello\"\n\
         [[site.route]]\nproxy = {{ to = [\"{}\", \"http://127.0.0.1:9\"] }}\n",
        echo.url(),
    );
    let forebay = serve(folder, &configuration);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let admin = format!("--admin=unix:{}", socket.display());
    let file = forebay.folder.path().join("site.toml");
    let config = format!("--config={}", file.display());
    let done = |arguments: &[&str]| {
        let (code, out, error) = ctl(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {error}");
        out
    };
    assert!(done(&[&admin, "drain", "127.0.0.1:9"]).contains("drains\nconfiguration 2 runs"));
    let shown = done(&["status", &config]);
    assert!(shown.contains("drain, up") && shown.contains("changed: backend"), "{shown}");
    let answer = done(&["maintenance", "on", "*", &config, "--json", "--retry-after=1h"]);
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["generation"], 3);
    assert_eq!(forebay.get("/hello").header("Retry-After"), Some("3600"));
    done(&["maintenance", "off", "*", &config]);
    assert_eq!(forebay.get("/hello").status, 200);
    done(&["weight", "127.0.0.1:9", "7", &config]);
    done(&["weight", "127.0.0.1:9", "default", &config]);
    done(&["undrain", "127.0.0.1:9", &config]);
    done(&["reset", &config]);
    done(&["reload", &config]);
    assert_eq!(done(&["diff", &config]), "no difference\n");
    let shown = done(&["plan", &config]);
    assert!(shown.contains("route /hello\n    path = \"/hello\"\n"), "{shown}");
    let other = configuration.replace("= \"hello\"", "= \"y\"");
    let other = forebay.folder.write("next.toml", other);
    let check = |running: &str| {
        let mut command = Command::new(program());
        command.arg("check").arg(&other).args(["--diff", running]);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for running in [format!("unix:{}", socket.display()), file.display().to_string()] {
        let (code, shown) = check(&running);
        assert_eq!(code, Some(0), "{shown}");
        let lines = "route /hello\n    - respond = \"hello\"\n    + respond = \"y\"\n";
        assert!(shown.contains(lines), "{running}: {shown}");
    }
    assert_eq!((check("unix:/none").0, check("/none").0), (Some(3), Some(2)));
    let posted =
        forebay.folder.write("other.toml", configuration.replace("= \"hello\"", "= \"x\""));
    done(&["replace", posted.to_str().unwrap(), &config]);
    assert_eq!(forebay.get("/hello").text(), "x");
    let output = forebay.output();
    let user = rustix::process::getuid().as_raw();
    assert!(output.contains(&format!("user {user} (process ")), "{output}");

    let broken = forebay.folder.write("broken.toml", "[[site]]\n");
    for (arguments, code, why) in [
        (&["drain", "127.0.0.1:10", &config] as &[&str], 2, "there are: "),
        (&["weight", "127.0.0.1:9", "0", &config], 2, "1 to 256"),
        (&["maintenance", "on", "b.example", &config], 2, "there is no site b.example"),
        (&["replace", broken.to_str().unwrap(), &config], 2, "listen"),
        (&["replace", "/none", &config], 2, "cannot read /none"),
        (&["status", "--config=/none"], 2, "/none"),
        (&["status", "--admin=unix:/none"], 3, "is Forebay running?"),
        (&["maintenance", "maybe", "*", &config], 2, "maybe"),
        (&["status", "--admin=ftp://x"], 2, "cannot listen on"),
    ] {
        let (found, _, error) = ctl(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {error}");
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    assert_eq!(forebay.get("/hello").text(), "x");
    forebay.stop();
}

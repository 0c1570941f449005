//! `forebay serve` with CGI scripts: their variables, the treatment of their output, and that no
//! process lives longer than it may.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Framing, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use support::{Forebay, chunked, is_alive, pattern, site};

const HELLO: &str =
    "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nhello %s' \"$QUERY_STRING\"\n";

fn scripts(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    folder.script("cgi/hello", HELLO);
    for (name, content) in files {
        folder.script(&format!("cgi/{name}"), content);
    }
    folder
}

fn cgi(files: &[(&str, &str)]) -> Forebay {
    cgi_with(files, "")
}

fn cgi_with(files: &[(&str, &str)], keys: &str) -> Forebay {
    let routes = format!(
        "[[site.route]]\npath = \"/cgi-bin/*\"\n\
         cgi = {{ dir = \"cgi\", env = {{ WHERE = \"{{tmp}}\" }}{keys} }}\n"
    );
    site(scripts(files), &routes)
}

/// Returns the text that a script has written into a file of the folder, after it has written.
fn written(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    let mut text = String::new();
    let has_come = eventually(|| {
        text = fs::read_to_string(&path).unwrap_or_default();
        text.ends_with('\n')
    });
    assert!(has_come, "{name} was not written");
    text.trim().to_owned()
}

#[test]
fn scripts_get_the_environment_of_the_rfc() {
    let forebay =
        cgi(&[("sub/env", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nexec env\n")]);
    let reply = forebay.ask(
        "GET /cgi-bin/sub/env/more%20info/x?a=b%20c&d HTTP/1.1\r\nHost: example.org:81\r\n\
         User-Agent: test\r\nX-Thing: 1\r\nX_Thing: 2\r\nX.Dot: 3\r\nProxy: http://evil/\r\n\
         Cookie: a=1\r\nCookie: b=2\r\nAccept: x\r\naccept: y\r\nAuthorization: Basic eDp5\r\n\r\n",
    );
    let env: BTreeMap<_, _> =
        reply.text().lines().filter_map(|line| line.split_once('=')).collect();
    let folder = forebay.folder.path().display().to_string();
    let file = format!("{folder}/cgi/sub/env");
    let port = forebay.address.port().to_string();
    for (name, value) in [
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_NAME", "/cgi-bin/sub/env"),
        ("PATH_INFO", "/more info/x"),
        ("QUERY_STRING", "a=b%20c&d"),
        ("REQUEST_URI", "/cgi-bin/sub/env/more%20info/x?a=b%20c&d"),
        ("SERVER_NAME", "example.org"),
        ("SERVER_PORT", &port),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("HTTP_HOST", "example.org:81"),
        ("HTTP_USER_AGENT", "test"),
        ("HTTP_X_THING", "1"),
        ("HTTP_COOKIE", "a=1; b=2"),
        ("HTTP_ACCEPT", "x, y"),
        ("SCRIPT_FILENAME", &file),
        ("WHERE", &folder),
    ] {
        assert_eq!(env.get(name), Some(&value), "{name}: {env:?}");
    }
    for absent in ["HTTP_PROXY", "CONTENT_LENGTH", "CONTENT_TYPE", "HTTP_X_DOT", "CARGO", "HOME"] {
        assert_eq!(env.get(absent), None, "{absent}");
    }
    assert!(env.contains_key("PATH") && env.contains_key("REMOTE_PORT"));
    // As in lighttpd and fcgiwrap, and unlike Apache: no other program checks the user.
    assert_eq!(env.get("HTTP_AUTHORIZATION"), Some(&"Basic eDp5"));
}

#[test]
fn a_script_runs_in_its_own_folder_without_our_descriptors() {
    let forebay = cgi(&[(
        "sub/where",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\npwd -P\nls -l /proc/$$/fd\n",
    )]);
    let reply = forebay.get("/cgi-bin/sub/where");
    let (folder, descriptors) = reply.text().split_once('\n').unwrap();
    let expected = forebay.folder.path().join("cgi/sub").canonicalize().unwrap();
    assert_eq!(Path::new(folder), expected);
    let is_ours = |line: &&str| line.contains("socket:") || line.contains("anon_inode:");
    assert_eq!(descriptors.lines().find(is_ours), None, "{descriptors}");
}

#[test]
fn bodies_arrive_exactly() {
    let echo = "#!/bin/sh\nprintf 'Content-Type: application/octet-stream\\nX-Length: %s\\n\\n' \
                \"$CONTENT_LENGTH\"\nexec cat\n";
    let forebay = cgi(&[("echo", echo)]);
    let body = pattern(1_000_000);
    let mut client = forebay.connect();
    for length in [1, 65_536, 65_537, 1_000_000] {
        let expected = length.to_string();
        client.send(format!(
            "POST /cgi-bin/echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(&body[..length]);
        let reply = client.reply();
        assert_eq!(reply.header("X-Length"), Some(expected.as_str()));
        assert!(reply.body == body[..length], "{length}");
        client.send("POST /cgi-bin/echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body[..length].chunks(9_001).collect::<Vec<_>>()));
        let reply = client.reply();
        assert_eq!(reply.header("X-Length"), Some(expected.as_str()), "told although chunked");
        assert!(reply.body == body[..length], "chunked {length}");
    }
    assert!(client.get("/cgi-bin/echo").body.is_empty());
    // A script that does not read its body.
    let length = body.len();
    client.send(format!(
        "POST /cgi-bin/hello HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), "hello ");
    assert_eq!(client.get("/cgi-bin/hello?x").text(), "hello x");
}

#[test]
fn the_output_of_scripts_is_the_reply() {
    let print = |text: &str| format!("#!/bin/sh\nprintf '{text}'\n");
    let cases = [
        ("status", print("Status: 404 Not Here\\nX-A: b\\n\\nno"), 404, "no"),
        ("crlf", print("Content-Type: text/plain\\r\\n\\r\\nyes"), 200, "yes"),
        ("location", print("Location: http://example.org/\\n\\n"), 302, ""),
        ("see-other", print("Status: 303\\nLocation: /cgi-bin/hello\\n\\n"), 303, ""),
        ("cookies", print("Set-Cookie: a\\nSet-Cookie: b\\n\\n"), 200, ""),
        ("length", print("Content-Length: 3\\n\\nabc"), 200, "abc"),
        (
            "hop",
            print("Connection: close\\nTransfer-Encoding: chunked\\nX: y\\n\\nhop"),
            200,
            "hop",
        ),
        ("nothing", print("Content-Type: text/plain\\n\\n"), 200, ""),
        ("204", print("Status: 204\\n\\nignored"), 204, ""),
        ("exit", print("Content-Type: text/plain\\n\\ndone") + "exit 3\n", 200, "done"),
    ];
    let files: Vec<_> = cases.iter().map(|(name, text, ..)| (*name, text.as_str())).collect();
    let forebay = cgi(&files);
    let mut client = forebay.connect();
    for (name, _, status, body) in &cases {
        let reply = client.get(&format!("/cgi-bin/{name}"));
        assert_eq!((reply.status, reply.text()), (*status, *body), "{name}");
        assert!(reply.header("Status").is_none() && reply.header("Connection").is_none(), "{name}");
    }
    assert_eq!(client.get("/cgi-bin/status").reason, "Not Here");
    assert_eq!(client.get("/cgi-bin/cookies").headers_named("Set-Cookie"), ["a", "b"]);
    client.send("HEAD /cgi-bin/hello HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    assert_eq!(client.get("/cgi-bin/hello").text(), "hello ");
}

#[test]
fn a_local_redirect_is_followed_inside() {
    let forebay =
        cgi(&[("local", "#!/bin/sh\nprintf 'Location: /cgi-bin/hello?from=local\\n\\n'\n")]);
    let reply = forebay.get("/cgi-bin/local");
    // RFC 3875 section 6.2.2. The only other reasonable result is a redirection that the client
    // follows.
    match reply.status {
        200 => assert_eq!(reply.text(), "hello from=local"),
        status => {
            assert_eq!(status, 302);
            assert_eq!(reply.header("Location"), Some("/cgi-bin/hello?from=local"));
        }
    }
}

/// Two scripts: one sends a local redirect to the other, with a cookie.
const SETS_A_COOKIE: &str = "#!/bin/sh\nprintf 'Location: /cgi-bin/hello?from=local\\nSet-Cookie: a=1\\n\
                             Set-Cookie: b=2\\nX-Kept: yes\\n\\n'\n";

/// Checks the cookies of a reply to a local redirect.
fn has_cookies_of_the_redirect(reply: &Reply, server: &str) {
    assert_eq!((reply.status, reply.text()), (200, "hello from=local"), "{server}");
    assert_eq!(reply.headers_named("Set-Cookie"), ["a=1", "b=2"], "{server}");
    assert_eq!(reply.headers_named("X-Kept"), ["yes"], "{server}");
    assert_eq!(reply.header("Location"), None, "{server}");
}

#[test]
fn a_local_redirect_keeps_its_cookies_as_with_apache() {
    let folder = scripts(&[("local", SETS_A_COOKIE)]);
    folder.script(
        "perl/local.pl",
        "#!/usr/bin/perl\nprint \"Location: /cgi-bin/hello?from=local\\nSet-Cookie: a=1\\n\
         Set-Cookie: b=2\\nX-Kept: yes\\n\\n\";\n",
    );
    folder.script(
        "python/local.py",
        "#!/usr/bin/python3\nprint('Location: /cgi-bin/hello?from=local\\nSet-Cookie: a=1\\n\
         Set-Cookie: b=2\\nX-Kept: yes\\n')\n",
    );
    let forebay = site(
        folder,
        "[[site.route]]\npath = \"/cgi-bin/*\"\ncgi = \"cgi\"\n\
         [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
         [[site.route]]\npath = \"/python/*\"\napp = \"python\"\n\
         [app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\n\
         [app.python]\nkind = \"python-cgi\"\ndir = \"python\"\n",
    );
    for target in ["/cgi-bin/local", "/perl/local.pl", "/python/local.py"] {
        has_cookies_of_the_redirect(&forebay.get(target), target);
    }
    forebay.stop();
    let conf = "ScriptAlias /cgi-bin/ \"{tmp}/cgi/\"\nScriptSock \"{tmp}/cgid\"\n\
                <Directory />\nRequire all granted\n</Directory>\n";
    let Some(apache) = peer::apache(&["cgid", "alias"], conf) else { return };
    apache.folder().script("cgi/hello", HELLO);
    apache.folder().script("cgi/local", SETS_A_COOKIE);
    let ask = |target| Client::connect(apache.address()).get(target);
    // Apache answers 503 until its process for scripts has started.
    assert!(eventually(|| ask("/cgi-bin/hello").status != 503));
    has_cookies_of_the_redirect(&ask("/cgi-bin/local"), "Apache");
}

#[test]
fn a_program_that_does_not_run_is_an_error_with_advice() {
    let bad = [
        ("no-interpreter", "#!/no/such/interpreter\n", 500, "interpreter"),
        ("no-shebang", "just text\n", 500, "#!"),
        ("no-header", "#!/bin/sh\necho hello world\n", 502, "hello world"),
        ("unended", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n'\n", 502, "header"),
        ("silent", "#!/bin/sh\nexit 1\n", 502, "printed nothing"),
        ("bad-status", "#!/bin/sh\nprintf 'Status: x\\n\\n'\n", 502, "Status"),
        ("bad-field", "#!/bin/sh\nprintf 'A: b\\000c\\n\\n'\n", 502, "control"),
        ("split", "#!/bin/sh\nprintf 'A: b\\rSet-Cookie: c\\n\\n'\n", 502, "control"),
        (
            "endless-head",
            "#!/bin/sh\nwhile :; do echo 'A: bbbbbbbbbbbbbbbbb'; done\n",
            502,
            "too large",
        ),
    ];
    let files: Vec<_> = bad.iter().map(|(name, text, ..)| (*name, *text)).collect();
    let mut forebay = cgi(&files);
    for (name, _, status, word) in bad {
        let reply = forebay.get(&format!("/cgi-bin/{name}"));
        assert_eq!(reply.status, status, "{name}: {}", forebay.output());
        assert!(!reply.text().contains("/tmp"), "{name}: paths are nobody's business");
        forebay
            .process
            .wait_until("logged it", |process| {
                let output = process.output();
                output.lines().any(|line| line.contains(name) && line.contains(word))
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let file = forebay.folder.write("cgi/no-run-bit", HELLO);
    assert_eq!(forebay.get("/cgi-bin/no-run-bit").status, 403);
    forebay.wait_for_output(&format!("chmod +x {}", file.display()));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(forebay.get("/cgi-bin/no-run-bit").text(), "hello ");
    for target in ["/cgi-bin/", "/cgi-bin/missing", "/cgi-bin/../cgi/hello", "/cgi-bin/%2e%2e/x"] {
        let status = forebay.get(target).status;
        assert!(matches!(status, 403 | 404), "{target}: {status}");
    }
    forebay.stop();
}

#[test]
fn error_output_is_logged_and_may_be_long() {
    let noisy = "#!/bin/sh\necho 'to the log' >&2\ni=0\nwhile [ $i -lt 2000 ]; do \
        echo 'a line of error output that fills the pipe again and again, without end' >&2; \
        i=$((i+1)); done\nprintf 'Content-Type: text/plain\\n\\ndone'\n";
    let mut forebay = cgi(&[("noisy", noisy)]);
    assert_eq!(forebay.get("/cgi-bin/noisy").text(), "done");
    forebay.wait_for_output("to the log");
    let output = forebay.output();
    let line = output.lines().find(|line| line.contains("to the log")).unwrap();
    assert!(line.contains("cgi/noisy"), "{line}");
    assert!(output.len() < 400_000);
}

#[test]
fn large_output_is_streamed() {
    let large = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
                 head -c 50000000 /dev/zero | tr '\\0' 'x'\n";
    let forebay = cgi(&[("large", large)]);
    let reply = forebay.get("/cgi-bin/large");
    assert_eq!(reply.framing, Framing::Chunked);
    assert!(reply.body.len() == 50_000_000 && reply.body.iter().all(|&byte| byte == b'x'));
}

#[test]
fn output_arrives_as_it_is_printed() {
    let steps = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\none'\nread x < \"$WHERE/go1\"\n\
                 printf two\nread x < \"$WHERE/go2\"\nprintf three\n";
    let forebay = cgi(&[("steps", steps)]);
    let fifos = ["go1", "go2"].map(|name| forebay.folder.path().join(name));
    assert!(std::process::Command::new("mkfifo").args(&fifos).status().unwrap().success());
    let mut client = forebay.connect();
    client.send("GET /cgi-bin/steps HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = client.reply_to_head();
    assert_eq!(head.header("Transfer-Encoding"), Some("chunked"));
    assert_eq!(client.bytes(8), b"3\r\none\r\n");
    fs::write(&fifos[0], "\n").unwrap();
    assert_eq!(client.bytes(8), b"3\r\ntwo\r\n");
    fs::write(&fifos[1], "\n").unwrap();
    assert_eq!(client.bytes(15), b"5\r\nthree\r\n0\r\n\r\n");
}

#[test]
fn a_reply_shorter_or_longer_than_it_says_is_cut() {
    let short = "#!/bin/sh\nprintf 'Content-Length: 10\\n\\nabc'\n";
    let long = "#!/bin/sh\nprintf 'Content-Length: 3\\n\\nabcdefgh'\n";
    let forebay = cgi(&[("short", short), ("long", long)]);
    for name in ["short", "long"] {
        let mut client = forebay.connect();
        match client.try_get(&format!("/cgi-bin/{name}")) {
            Ok(reply) => assert_eq!(reply.status, 502, "{name}"),
            Err(error) => assert!(!error.to_string().contains("in time"), "{name}: {error}"),
        }
    }
}

/// Writes its own process id and that of a child, and waits.
const SLEEPER: &str = "#!/bin/sh\nsleep 1000 &\necho \"$$ $!\" > \"$WHERE/pids\"\n";

fn assert_all_end(pids: &str) {
    for pid in pids.split(' ') {
        assert!(eventually(|| !is_alive(pid)), "{pid} goes on");
    }
}

#[test]
fn a_script_that_takes_too_long_ends_with_its_children() {
    let before = format!("{SLEEPER}wait\n");
    let during = format!("{SLEEPER}printf 'Content-Type: text/plain\\n\\nabc'\nwait\n");
    let mut forebay = cgi_with(&[("before", &before), ("during", &during)], ", timeout = \"3s\"");
    assert_eq!(forebay.get("/cgi-bin/before").status, 504);
    forebay.wait_for_output("before took longer than");
    assert_all_end(&written(forebay.folder.path(), "pids"));
    assert!(forebay.try_get("/cgi-bin/during").is_err(), "cut, as it had begun");
    assert_all_end(&written(forebay.folder.path(), "pids"));
    assert_eq!(forebay.get("/cgi-bin/hello").status, 200);
    forebay.stop();
}

#[test]
fn a_script_ends_with_its_client_on_request() {
    let before = format!("{SLEEPER}wait\n");
    let during = format!("{SLEEPER}printf 'Content-Type: text/plain\\n\\nabc'\nwait\n");
    for (name, script) in [("before", before), ("during", during)] {
        let route = "[[site.route]]\npath = \"/cgi-bin/*\"\non_abort = \"stop\"\n\
                     cgi = { dir = \"cgi\", env = { WHERE = \"{tmp}\" } }\n";
        let forebay = site(scripts(&[(name, &script)]), route);
        let mut client = forebay.connect();
        client.send(format!("GET /cgi-bin/{name} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let pids = written(forebay.folder.path(), "pids");
        assert!(pids.split(' ').all(is_alive));
        drop(client);
        assert_all_end(&pids);
        assert_eq!(forebay.get("/cgi-bin/hello").status, 200);
        forebay.stop();
    }
}

#[test]
fn a_script_may_leave_work_behind() {
    let script = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nsoon'\nexec >&- 2>&-\n\
                  read x < \"$WHERE/go\"\necho done > \"$WHERE/result\"\n";
    let forebay = cgi(&[("later", script)]);
    let fifo = forebay.folder.path().join("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut client = forebay.connect();
    assert_eq!(client.get("/cgi-bin/later").text(), "soon");
    drop(client);
    fs::write(&fifo, "\n").unwrap();
    assert_eq!(written(forebay.folder.path(), "result"), "done");
}

#[test]
fn no_more_processes_run_than_allowed() {
    let script = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
        mkdir \"$WHERE/lock\" || echo 'two at once'\nls \"$WHERE\" > /dev/null\nls / > /dev/null\n\
        rmdir \"$WHERE/lock\"\necho fine\n";
    let forebay = cgi_with(&[("alone", script)], ", max_processes = 1");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(forebay.get("/cgi-bin/alone").text(), "fine\n");
                }
            });
        }
    });
}

#[test]
fn too_long_a_wait_for_a_place_is_refused() {
    let script = format!("{SLEEPER}wait\n");
    let forebay = cgi_with(&[("sleeper", &script)], ", max_processes = 1, timeout = \"1s\"");
    let mut first = forebay.connect();
    first.send("GET /cgi-bin/sleeper HTTP/1.1\r\nHost: h\r\n\r\n");
    written(forebay.folder.path(), "pids");
    let statuses: Vec<_> = thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..3).map(|_| scope.spawn(|| forebay.get("/cgi-bin/sleeper").status)).collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(first.reply().status, 504);
    assert!(statuses.iter().all(|status| matches!(status, 503 | 504)), "{statuses:?}");
    assert_eq!(forebay.get("/cgi-bin/hello").status, 200);
}

#[test]
fn scripts_answer_as_behind_apache() {
    let dump = "#!/bin/sh\nprintf 'Content-Type: text/plain\\nX-Own: yes\\nStatus: 201 Made\\n\\n'\n\
        for name in GATEWAY_INTERFACE REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING REQUEST_URI \
        SERVER_NAME SERVER_PROTOCOL SERVER_ADDR REMOTE_ADDR CONTENT_LENGTH CONTENT_TYPE HTTP_HOST \
        HTTP_USER_AGENT HTTP_X_THING HTTP_COOKIE HTTP_ACCEPT SCRIPT_FILENAME REQUEST_SCHEME \
        HTTP_PROXY; do\n\
        eval \"printf '%s=%s,%s\\n' $name \\\"\\${$name}\\\" \\\"\\${$name+set}\\\"\"\ndone\npwd\ncat\n";
    let folder = scripts(&[("dump", dump)]);
    let dir = folder.path().join("cgi");
    let conf = format!(
        "ScriptAlias /cgi-bin/ \"{0}/\"\n<Directory \"{0}\">\nRequire all granted\n</Directory>\n\
         UseCanonicalName Off\n",
        dir.display()
    );
    let Some(apache) = peer::apache(&["alias", "cgi"], &conf) else { return };
    let routes = "[[site.route]]\npath = \"/cgi-bin/*\"\ncgi = \"cgi\"\n";
    let forebay = site(folder, routes);
    for request in [
        "GET /cgi-bin/dump HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /cgi-bin/dump/a%20b/c?x=y%20z HTTP/1.1\r\nHost: localhost\r\nUser-Agent: t\r\n\
         X-Thing: 1\r\nX-Thing: 2\r\nCookie: a=b\r\nAccept: */*\r\nProxy: http://evil/\r\n\
         Authorization: Basic eDp5\r\n\r\n",
        "POST /cgi-bin/dump HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
         Content-Length: 4\r\n\r\nbody",
        "GET /cgi-bin/dump HTTP/1.0\r\nHost: localhost\r\n\r\n",
    ] {
        let answers = [Client::connect(forebay.address), Client::connect(apache.address())].map(
            |mut client| {
                client.send(request);
                let reply = client.reply();
                let own = reply.header("X-Own").map(str::to_owned);
                (reply.status, reply.reason.clone(), own, reply.text().to_owned())
            },
        );
        assert_eq!(answers[0], answers[1], "{request}");
    }
    apache.stop();
}

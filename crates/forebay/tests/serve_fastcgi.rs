//! `forebay serve` with php-fpm, fcgiwrap and scripted FastCGI peers.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::stream::Address;
use support::{Forebay, chunked, pattern, serve};

const ECHO: &str = "<?php header('Content-Type: application/octet-stream');
    readfile('php://input');";
const DUMP: &str = "<?php foreach ($_SERVER as $k => $v) if (is_string($v)) echo \"$k=$v\\n\";";

fn php_folder() -> Folder {
    let folder = Folder::new();
    folder.write("htdocs/hello.php", "<?php echo 'hello ', $_GET['n'] ?? '';");
    folder.write("htdocs/index.php", "<?php echo 'index';");
    folder.write("htdocs/dir/index.php", "<?php echo 'dir ', $_SERVER['SCRIPT_NAME'];");
    folder.write("htdocs/echo.php", ECHO);
    folder.write("htdocs/dump.php", DUMP);
    folder.write("htdocs/pid.php", "<?php echo getmypid();");
    let die = "<?php file_put_contents(dirname(__DIR__) . '/died/of', 'x', FILE_APPEND);
        posix_kill(getmypid(), 9); sleep(10);";
    folder.write("htdocs/die.php", die);
    folder.write("died/of", "");
    for name in ["died", "died/of"] {
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    folder.write("htdocs/log.php", "<?php error_log('a word to the log'); echo 'logged';");
    folder
        .write("htdocs/status.php", "<?php http_response_code(404); header('X-A: b'); echo 'no';");
    folder.write(
        "htdocs/large.php",
        "<?php for ($i = 0; $i < 3000; $i++) echo str_repeat('x', 1000);",
    );
    folder.write(
        "htdocs/env.php",
        "<?php echo $_SERVER['PATH_INFO'] ?? '-', '|', \
        $_SERVER['SCRIPT_NAME'], '|', $_SERVER['QUERY_STRING'], '|', $_SERVER['REQUEST_URI'];",
    );
    folder
}

fn front_of(php: &Peer, folder: Folder, keys: &str) -> Forebay {
    let to = php.socket().display();
    serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\n\
             fastcgi = {{ to = \"unix:{to}\", root = \"htdocs\"{keys} }}\n"
        ),
    )
}

#[test]
fn requests_of_many_clients_share_few_processes() {
    let Some(php) = peer::php_fpm(2) else { return };
    let forebay = front_of(&php, php_folder(), ", max_connections = 2");
    thread::scope(|scope| {
        for client in 0..8 {
            let forebay = &forebay;
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for n in 0..60 {
                    let n = client * 1000 + n;
                    let reply = connection.get(&format!("/hello.php?n={n}"));
                    assert_eq!(reply.text(), format!("hello {n}"), "{}", forebay.output());
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn an_idle_connection_is_no_obstacle_to_another_thread() {
    let Some(php) = peer::php_fpm(1) else { return };
    let forebay = front_of(&php, php_folder(), ", max_connections = 1");
    // A new connection goes to the thread with fewer connections, so both threads serve these two.
    let (mut first, mut second) = (forebay.connect(), forebay.connect());
    for _ in 0..20 {
        assert_eq!(first.get("/hello.php?n=1").text(), "hello 1");
        assert_eq!(second.get("/hello.php?n=2").text(), "hello 2");
    }
}

#[test]
fn an_idle_connection_is_let_go_after_a_while() {
    let Some(php) = peer::php_fpm(1) else { return };
    let forebay = front_of(&php, php_folder(), "");
    assert_eq!(forebay.get("/hello.php").text(), "hello ");
    // Its only process is free again after Forebay has closed the connection.
    let other = front_of(&php, php_folder(), ", keep_conn = false");
    assert_eq!(other.get("/hello.php?n=2").text(), "hello 2");
}

#[test]
fn processes_that_are_recycled_lose_nothing() {
    let Some(php) = peer::php_fpm_with(2, "pm.max_requests = 10") else { return };
    let forebay = front_of(&php, php_folder(), ", max_connections = 2");
    thread::scope(|scope| {
        for client in 0..4 {
            let forebay = &forebay;
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for n in 0..60 {
                    let body = format!("{client} {n}");
                    let length = body.len();
                    connection.send(format!(
                        "POST /echo.php HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}"
                    ));
                    let reply = connection.reply();
                    assert_eq!(reply.text(), body, "{}", forebay.output());
                    let reply = connection.get(&format!("/hello.php?n={n}"));
                    assert_eq!(reply.text(), format!("hello {n}"), "{}", forebay.output());
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn bodies_arrive_exactly() {
    let Some(php) = peer::php_fpm(2) else { return };
    let forebay = front_of(&php, php_folder(), "");
    let body = pattern(1_000_000);
    let mut client = forebay.connect();
    for length in [0, 1, 65_535, 65_536, 1_000_000] {
        client.send(format!(
            "POST /echo.php HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        ));
        client.send(&body[..length]);
        assert!(client.reply().body == body[..length], "{length}");
        client.send(
            "POST /echo.php HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\
             Content-Type: application/octet-stream\r\n\r\n",
        );
        client.send(chunked(&body[..length].chunks(10_007).collect::<Vec<_>>()));
        assert!(client.reply().body == body[..length], "chunked {length}");
    }
    let large = client.get("/large.php");
    assert!(large.body == [b'x'; 3_000_000]);
}

#[test]
fn paths_are_split_as_php_expects() {
    let Some(php) = peer::php_fpm(2) else { return };
    let forebay = front_of(&php, php_folder(), "");
    for (target, body) in [
        ("/env.php", "-|/env.php||/env.php"),
        ("/env.php?a=b&c", "-|/env.php|a=b&c|/env.php?a=b&c"),
        ("/env.php/more/info?x", "/more/info|/env.php|x|/env.php/more/info?x"),
        ("/env.php/a%20b", "/a b|/env.php||/env.php/a%20b"),
        ("/x/../env.php", "-|/env.php||/x/../env.php"),
        ("/", "index"),
        ("/dir/", "dir /dir/index.php"),
    ] {
        let text = forebay.get(target).text().to_owned();
        let text = text.strip_prefix('|').map_or(text.clone(), |rest| format!("-|{rest}"));
        assert_eq!(text, body, "{target}");
    }
    for target in ["/missing.php", "/missing.php/x", "/../x.php", "/hello.php%00", "/dir"] {
        let status = forebay.get(target).status;
        assert!(matches!(status, 400 | 403 | 404), "{target}: {status}");
    }
    let reply = forebay.get("/status.php");
    assert_eq!((reply.status, reply.header("X-A"), reply.text()), (404, Some("b"), "no"));
    let mut client = forebay.connect();
    client.send("HEAD /hello.php HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    assert_eq!(client.get("/hello.php").text(), "hello ");
}

#[test]
fn messages_of_php_are_logged() {
    let lines = "php_admin_value[error_log] =\nphp_admin_flag[log_errors] = on\n\
                 catch_workers_output = no";
    let Some(php) = peer::php_fpm_with(1, lines) else { return };
    let mut forebay = front_of(&php, php_folder(), "");
    assert_eq!(forebay.get("/log.php").text(), "logged");
    forebay.wait_for_output("a word to the log");
}

#[test]
fn a_process_killed_in_the_middle_is_a_bad_gateway() {
    let Some(php) = peer::php_fpm(2) else { return };
    let forebay = front_of(&php, php_folder(), "");
    for n in 0..5 {
        assert_eq!(forebay.get("/hello.php?n=1").text(), "hello 1");
        let request = "POST /die.php HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(forebay.ask(request).status, 502, "{n}");
    }
    let died = fs::read_to_string(forebay.folder.path().join("died/of")).unwrap();
    assert_eq!(died, "xxxxx", "each was passed on once");
    assert!(eventually(|| forebay.get("/hello.php").status == 200));
    forebay.stop();
}

#[test]
fn php_sees_what_it_sees_behind_nginx() {
    let Some(php) = peer::php_fpm(2) else { return };
    let folder = php_folder();
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; server_name localhost; root {}/htdocs;\n\
         location ~ ^(.+\\.php)(/.*)?$ {{\n\
         fastcgi_split_path_info ^(.+\\.php)(/.*)$;\n\
         include /etc/nginx/fastcgi_params;\n\
         fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;\n\
         fastcgi_param PATH_INFO $fastcgi_path_info;\n\
         fastcgi_pass unix:{}; }} }}",
        folder.path().display(),
        php.socket().display(),
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    let forebay = front_of(&php, folder, "");
    let requests = [
        "GET /dump.php HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /dump.php/path%20info?a=b%20c HTTP/1.1\r\nHost: localhost\r\nX-Thing: 1\r\n\
         Cookie: a=b\r\nAuthorization: Basic eDp5\r\nAccept: */*\r\nReferer: http://r/\r\n\
         User-Agent: test\r\nX_Under: no\r\nProxy: http://evil/\r\nConnection: close\r\n\r\n",
        "GET http://localhost/dump.php HTTP/1.1\r\nHost: other\r\n\r\n",
        "POST /dump.php?q HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
         Content-Length: 3\r\n\r\nabc",
        "POST /dump.php HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
         Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ];
    for request in requests {
        let ours = dump(forebay.address.into(), request);
        let theirs = dump(nginx.address().clone(), request);
        assert_eq!(ours, theirs, "{request}");
    }
}

/// Returns the parameters by name. Leaves out those that must differ and those that PHP adds.
fn dump(address: Address, request: &str) -> BTreeMap<String, String> {
    let mut client = Client::connect(address);
    client.send(request);
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let differ = [
        "SERVER_SOFTWARE",
        "SERVER_PORT",
        "REMOTE_PORT",
        // nginx passes on the value from the client without checking it.
        "REMOTE_USER",
        // The field is about the client's connection; the body has a length by now.
        "HTTP_TRANSFER_ENCODING",
        // RFC 3875 has it, but Debian's fastcgi_params does not.
        "PATH_TRANSLATED",
        "REQUEST_TIME",
        "REQUEST_TIME_FLOAT",
    ];
    let pairs = reply.text().lines().filter_map(|line| line.split_once('='));
    pairs
        .filter(|(name, _)| !differ.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn fcgiwrap_runs_scripts() {
    let Some(wrap) = peer::fcgiwrap(2) else { return };
    let folder = Folder::new();
    folder.script(
        "htdocs/a.cgi",
        // The script reads all input before it prints, because fcgiwrap does not read while it
        // writes.
        "#!/bin/sh\nbody=$(cat)\nprintf 'Content-Type: text/plain\\n\\n%s|%s|%s' \
         \"$QUERY_STRING\" \"$PATH_INFO\" \"$body\"\n",
    );
    let to = wrap.socket().display();
    let forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\n\
             fastcgi = {{ to = \"unix:{to}\", root = \"htdocs\", index = \"index.cgi\", \
             max_connections = 2 }}\n"
        ),
    );
    assert_eq!(forebay.get("/a.cgi/p?q=1").text(), "q=1|/p|");
    let body = "x".repeat(200_000);
    let mut client = forebay.connect();
    for _ in 0..20 {
        client.send(format!(
            "POST /a.cgi HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(client.reply().text(), format!("||{body}"));
    }
    forebay.stop();
}

fn scripted(backend: &ScriptedBackend) -> Forebay {
    let folder = Folder::new();
    folder.write("x", "");
    let configuration = format!(
        "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         fastcgi = {{ to = \"unix:{}\", root = \".\", index = \"index.cgi\" }}\n\
         on_abort = \"stop\"\n",
        backend.path().display()
    );
    support::serve_file(folder, &configuration)
}

#[test]
fn the_backend_is_left_when_the_client_has_gone() {
    let backend = ScriptedBackend::unix([vec![ScriptStep::Read(24), ScriptStep::ReadToEnd]]);
    let forebay = scripted(&backend);
    let mut client = forebay.connect();
    client.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    backend.wait_for_connection();
    drop(client);
    assert_eq!(backend.records()[0].failure, None);
    forebay.stop();
}

#[test]
fn a_socket_that_is_not_there_is_a_bad_gateway() {
    let folder = php_folder();
    let mut forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         fastcgi = { to = \"unix:{tmp}/none\", root = \"htdocs\" }\n",
    );
    assert_eq!(forebay.get("/hello.php").status, 502);
    forebay.wait_for_output("/none");
}

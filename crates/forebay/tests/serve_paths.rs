//! A backend gets the path that Forebay matched. No spelling of a path brings a request past a
//! route that refuses it, to a backend that reads the path in another way.

mod support;

use std::collections::BTreeSet;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{UwsgiApp, UwsgiSocket, apache, nginx, starman, uwsgi_tcp, wsgiref};
use forebay_testkit::stream::Address;
use support::echo::Echo;
use support::site;

const DENIED: &str = "[[site.route]]\npaths = [\"/admin\", \"/admin/*\"]\nrespond = { status = 403, body = \"no\" }\n";

/// Returns targets that some servers read as /admin/x.php: with encoded slashes, dots and repeated
/// slashes.
fn ways() -> Vec<String> {
    let mut ways = Vec::new();
    let slashes = ["/", "//", "%2f", "%2F", "\\", "%5c", "%5C", "/%2f", "%2f/", "/./", "/%2e/"];
    ways.extend(slashes.iter().map(|slash| format!("/admin{slash}x.php")));
    ways.extend(slashes.iter().map(|slash| format!("{slash}admin/x.php")));
    let starts_with_slash = |way: &String| way.starts_with('/');
    ways.retain(starts_with_slash);
    for dots in ["..", "%2e%2e", ".%2e", "%2E."] {
        for slash in ["/", "%2f", "%2F", "\\", "%5c"] {
            ways.push(format!("/x/{dots}{slash}admin/x.php"));
            ways.push(format!("/x{slash}{dots}/admin/x.php"));
        }
    }
    ways.extend(
        [
            "/%61dmin/x.php",
            "/%2e/admin/x.php",
            "/admin/y/..%2fx.php",
            "/public%2f..%2fadmin%2fx.php",
            "/x//../admin/x.php",
            "/x/%2f../../admin/x.php",
            "/x/..;/admin/x.php",
            "//admin//x.php",
            "/.//admin/x.php",
        ]
        .map(str::to_owned),
    );
    ways
}

/// Returns all paths that a server may read from `path`.
fn readings(path: &str) -> BTreeSet<String> {
    let decoded = |path: &str| {
        let mut pieces = path.split('%');
        let mut decoded = pieces.next().unwrap().to_owned();
        for piece in pieces {
            let byte = piece.get(..2).and_then(|two| u8::from_str_radix(two, 16).ok());
            match byte {
                Some(byte) => {
                    decoded.extend([char::from(byte)].into_iter().chain(piece[2..].chars()));
                }
                None => decoded.extend(['%'].into_iter().chain(piece.chars())),
            }
        }
        decoded
    };
    let without_parameters = |path: &str| {
        let segments = path.split('/').map(|segment| segment.split(';').next().unwrap());
        segments.collect::<Vec<_>>().join("/")
    };
    let path = path.split('?').next().unwrap();
    let mut readings = BTreeSet::from([path.to_owned(), decoded(path)]);
    for read in readings.clone() {
        readings.insert(read.replace('\\', "/"));
    }
    for read in readings.clone() {
        readings.insert(without_parameters(&read));
    }
    for read in readings.clone() {
        readings.insert(without_dots(&read, true));
        readings.insert(without_dots(&read, false));
        // `//host/path`.
        let rest = read.strip_prefix("//").and_then(|rest| rest.split_once('/'));
        readings.extend(rest.map(|(_, path)| format!("/{path}")));
    }
    readings
}

fn without_dots(path: &str, merges: bool) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            "" if merges => {}
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

fn is_admin(path: &str) -> bool {
    readings(path).iter().any(|path| path == "/admin" || path.starts_with("/admin/"))
}

/// Returns the status of each target and, for those with 200, the path that the backend got.
fn asked(address: impl Into<Address>, ways: &[String]) -> Vec<(u16, String)> {
    let address = address.into();
    let ask = |target: &String| {
        let mut client = Client::connect(&address);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
        let reply = client.reply();
        (reply.status, String::from_utf8_lossy(&reply.body).into_owned())
    };
    ways.iter().map(ask).collect()
}

fn target_of(request: &str) -> &str {
    request.split(' ').nth(1).unwrap()
}

/// Sends all targets to a site that denies one route and passes the rest to `routes`. Their backend
/// answers with the paths that it gets, one per line. None may belong to the denied route.
fn none_gets_past(name: &str, folder: Folder, keys: &str, routes: &str) {
    let forebay = site(folder, &format!("{keys}{DENIED}{routes}"));
    let mut ways = ways();
    assert!(ways.len() >= 55, "{}", ways.len());
    // REQUEST_URI has the dots.
    ways.extend(["/admin/../x", "//admin/./../x", "/x/%2f./../admin/x"].map(str::to_owned));
    for (target, (status, body)) in ways.iter().zip(asked(forebay.address, &ways)) {
        assert!(matches!(status, 200 | 400 | 403 | 404), "{name}: {target}: {status}");
        for seen in body.lines().filter(|_| status == 200) {
            assert!(!is_admin(seen), "{name}: {target} reached the backend as {seen}");
        }
    }
    // Other requests reach the backend.
    let fine = ["/x%20y/%252f/z".to_owned(), "/a//b/../c".to_owned()];
    let answers = asked(forebay.address, &fine);
    assert!(answers.iter().all(|(status, _)| *status == 200), "{name}: {answers:?}");
    forebay.stop();
}

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_applications_of_other_protocols() {
    for socket in [UwsgiSocket::Fastcgi, UwsgiSocket::Uwsgi, UwsgiSocket::Scgi] {
        let Some(peer) = uwsgi_tcp(socket, UwsgiApp::Wsgi(UWSGI_APP)) else { return };
        let to = format!("to = \"127.0.0.1:{}\"", peer.port());
        let action = match socket {
            UwsgiSocket::Fastcgi => {
                format!("fastcgi = {{ {to}, root = \"/nowhere\", scripts = \"*\" }}")
            }
            UwsgiSocket::Uwsgi => format!("uwsgi = {{ {to} }}"),
            UwsgiSocket::Scgi => format!("scgi = {{ {to} }}"),
        };
        for keys in KEYS {
            let route = format!("[[site.route]]\n{action}\n");
            none_gets_past(&format!("{socket:?}"), Folder::new(), keys, &route);
        }
    }
}

const UWSGI_APP: &str = "\
def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    seen = environ.get('SCRIPT_NAME', '') + environ['PATH_INFO']
    return [(seen + '\\n' + environ['REQUEST_URI'] + '\\n').encode('latin-1')]
";

const KEYS: [&str; 2] = ["", "encoded_slashes = \"pass\"\n"];

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_an_http_backend() {
    for keys in KEYS {
        let echo = Echo::start();
        let forebay = site(Folder::new(), &format!("{keys}{DENIED}{}", echo.route()));
        let ways = ways();
        for (target, (status, body)) in ways.iter().zip(asked(forebay.address, &ways)) {
            assert!(matches!(status, 200 | 400 | 403 | 404), "{target}: {status}");
            assert!(status != 200 || !is_admin(target_of(&body)), "{target}: {body}");
        }
        forebay.stop();
    }
}

const PSGI: &str = r#"sub { my $env = shift;
    [200, ['Content-Type' => 'text/plain'], ["$env->{SCRIPT_NAME}$env->{PATH_INFO}\n$env->{REQUEST_URI}\n"]] };
"#;

const WSGI: &str = "\
def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    seen = environ.get('SCRIPT_NAME', '') + environ['PATH_INFO']
    return [(seen + '\\n').encode('latin-1')]
";

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_starman() {
    let folder = Folder::new();
    let Some(peer) = starman(&folder.write("app.psgi", PSGI)) else { return };
    for keys in KEYS {
        let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", peer.port());
        none_gets_past("starman", Folder::new(), keys, &route);
    }
}

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_wsgiref() {
    let folder = Folder::new();
    let Some(peer) = wsgiref(&folder.write("app.py", WSGI)) else { return };
    for keys in KEYS {
        let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", peer.port());
        none_gets_past("wsgiref", Folder::new(), keys, &route);
    }
}

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_our_hosts() {
    for keys in KEYS {
        let folder = Folder::new();
        folder.write("app.psgi", PSGI);
        let route = "[[site.route]]\napp = \"a\"\n[app.a]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 1\n";
        none_gets_past("psgi", folder, keys, route);
    }
}

#[test]
fn no_way_of_writing_a_path_gets_past_a_route_to_cgi_scripts() {
    const SCRIPT: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s\\n%s\\n' \"$PATH_INFO\" \"$REQUEST_URI\"\n";
    let folder = Folder::new();
    folder.script("cgi/s", SCRIPT);
    let denied = DENIED.replace("/admin", "/s/admin");
    let forebay = site(folder, &format!("{denied}[[site.route]]\ncgi = \"cgi\"\n"));
    let below: Vec<_> = ways().iter().map(|way| format!("/s{way}")).collect();
    for (target, (status, body)) in below.iter().zip(asked(forebay.address, &below)) {
        for seen in body.lines().filter(|_| status == 200) {
            let seen = seen.strip_prefix("/s").unwrap_or(seen);
            assert!(!is_admin(seen), "{target} reached the script as {seen}");
        }
    }
    forebay.stop();
}

#[test]
fn a_backend_is_sent_the_path_that_was_matched() {
    let echo = Echo::start();
    let routes = format!(
        "encoded_slashes = \"pass\"\n[[site.route]]\npath = \"/api/*\"\n\
         proxy = {{ to = \"{}\", strip_prefix = \"/api\" }}\n{}",
        echo.url(),
        echo.route()
    );
    let forebay = site(Folder::new(), &routes);
    for (asked_for, sent) in [
        ("/a%20b/%c3%a9?x=//../y", "/a%20b/%c3%a9?x=//../y"),
        ("/%252e%252e%252fx", "/%252e%252e%252fx"),
        ("/a%2Fb%5cc", "/a%2Fb%5cc"),
        ("//host/a", "/host/a"),
        ("/a//b/./%7Ec/%2e%2E/d?q", "/a/b/d?q"),
        ("/a/..", "/"),
        ("http://h//a", "/a"),
        ("/%61pi/%61", "/%61"),
        ("/x/../api//b", "/b"),
    ] {
        let reply = forebay.ask(format!("GET {asked_for} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(target_of(&reply), sent, "{asked_for}");
    }
    // The body after a head that was cleaned, and the request after that.
    let mut client = forebay.connect();
    client.send(
        "POST //a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
         GET /b/../c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    for sent in ["/a", "/c", "/d"] {
        let reply = String::from_utf8_lossy(&client.reply().body).into_owned();
        assert_eq!(target_of(&reply), sent);
        assert_eq!(reply.ends_with("\r\n\r\nabc"), sent == "/a", "{reply}");
    }
    forebay.stop();
}

/// nginx passes the target on unchanged, so a backslash gets past its rule.
#[test]
fn nginx_lets_nothing_but_backslashes_past() {
    let echo = Echo::start();
    let Some(peer) = nginx(&format!(
        "server {{ listen 127.0.0.1:{{port}};\n location /admin {{ return 403; }}\n\
         location / {{ proxy_pass {}; }} }}",
        echo.url()
    )) else {
        return;
    };
    let ways = ways();
    let answers = asked(peer.address(), &ways);
    let past = ways
        .iter()
        .zip(answers)
        .filter(|(_, (status, body))| *status == 200 && is_admin(target_of(body)));
    for (target, _) in past {
        let lower = target.to_ascii_lowercase();
        assert!(lower.contains('\\') || lower.contains("%5c") || lower.contains("..;"), "{target}");
    }
}

/// Apache refuses encoded slashes and merges slashes. A backslash has no meaning for it, and
/// parameters are left to the backend.
#[test]
fn apache_lets_nothing_but_backslashes_and_parameters_past() {
    let echo = Echo::start();
    let conf = format!(
        "<Location /admin>\nRequire all denied\n</Location>\nProxyPass / {}/\n",
        echo.url()
    );
    let Some(peer) = apache(&["proxy", "proxy_http"], &conf) else { return };
    let ways = ways();
    let answers = asked(peer.address(), &ways);
    let past = ways
        .iter()
        .zip(answers)
        .filter(|(_, (status, body))| *status == 200 && is_admin(target_of(body)));
    for (target, (_, body)) in past {
        let lower = target.to_ascii_lowercase();
        let known = lower.contains('\\') || lower.contains("%5c") || lower.contains("..;");
        assert!(known, "{target}: {body}");
    }
}

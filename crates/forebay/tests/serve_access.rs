//! Access to routes by address and by password, compared with nginx and Apache with the same files.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, UwsgiApp, UwsgiSocket, apache, nginx, uwsgi};
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::{Address, TestStream};
use support::echo::Echo;
use support::{Forebay, serve, serve_file, site};

/// Clients of the trusted proxy 127.0.0.1, and the status for each.
const CLIENTS: [(&str, u16); 6] = [
    ("10.1.2.3", 200),
    ("10.0.0.5", 403),
    ("192.0.2.1", 403),
    ("192.0.2.7", 200),
    ("2001:db8::1", 200),
    ("2001:db9::1", 403),
];

fn ask_as(address: impl Into<Address>, client: &str) -> u16 {
    let mut connection = Client::connect(address);
    connection.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\r\n"));
    connection.reply().status
}

#[test]
fn clients_are_let_in_by_address_and_deny_goes_first() {
    let forebay = site(
        Folder::new(),
        "trusted_proxies = \"127.0.0.1\"\n[[site.route]]\nrespond = \"in\"\n\
         allow = [\"10.0.0.0/8\", \"192.0.2.7\", \"2001:db8::/32\"]\ndeny = [\"10.0.0.5\"]\n",
    );
    for (client, status) in CLIENTS {
        assert_eq!(ask_as(forebay.address, client), status, "{client}");
    }
    forebay.stop();
    let forebay = site(
        Folder::new(),
        "[[site.route]]\npath = \"/a\"\nrespond = \"in\"\ndeny = \"127.0.0.0/8\"\n\
         [[site.route]]\nrespond = \"other\"\n",
    );
    assert_eq!(forebay.get("/a").status, 403, "no route below takes it");
    assert_eq!(forebay.get("/b").status, 200);
    forebay.stop();
}

#[test]
fn nginx_lets_the_same_in() {
    let Some(peer) = nginx(
        "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;\n\
         server { listen 127.0.0.1:{port}; root {tmp}; location = / {\n\
         deny 10.0.0.5; allow 10.0.0.0/8; allow 192.0.2.7; allow 2001:db8::/32; deny all;\n\
         try_files /none /page; } location = /page { } }",
    ) else {
        return;
    };
    peer.folder().write("page", "in");
    for (client, status) in CLIENTS {
        assert_eq!(ask_as(peer.address(), client), status, "{client}");
    }
}

const PASSWORD: &str = "p:ss w\u{f6}rd";

/// Writes a file with a user for each kind of hash of htpasswd. All have the same password.
fn users(folder: &Folder) -> bool {
    if !peer::has(&["apache2-utils"]) {
        return false;
    }
    let mut text = String::from("# users\n\n");
    for (user, option) in [("bcrypt", "-B"), ("apr1", "-m"), ("sha256", "-2"), ("sha512", "-5")] {
        let output = Command::new("htpasswd").args(["-nb", option, user, PASSWORD]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        if output.is_empty() {
            // An htpasswd before 2.4.58 has no SHA-crypt.
            let kind = if option == "-2" { "-5" } else { "-6" };
            if !peer::has(&["openssl"]) {
                return false;
            }
            let made = Command::new("openssl").args(["passwd", kind, PASSWORD]).output().unwrap();
            text.push_str(&format!("{user}:{}", String::from_utf8(made.stdout).unwrap()));
        } else {
            text.push_str(&output);
        }
    }
    folder.write("users", text);
    true
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for piece in text.as_bytes().chunks(3) {
        let bits = piece.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - piece.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at <= piece.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

fn ask_with(address: impl Into<Address>, target: &str, user: &str, password: &str) -> Reply {
    let token = base64(&format!("{user}:{password}"));
    let mut client = Client::connect(address);
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: h\r\nAuthorization: Basic {token}\r\nConnection: close\r\n\r\n"
    ));
    client.reply()
}

/// Checks the replies to right and wrong passwords, and to invalid fields.
fn passwords_are_checked(address: impl Into<Address>, target: &str) {
    let address = address.into();
    for user in ["bcrypt", "apr1", "sha256", "sha512"] {
        // Twice: the second time, the server remembers the password.
        for _ in 0..2 {
            assert_eq!(ask_with(&address, target, user, PASSWORD).status, 200, "{user}");
            assert_eq!(ask_with(&address, target, user, "p:ss").status, 401, "{user}");
        }
        assert_eq!(ask_with(&address, target, user, "").status, 401, "{user}");
    }
    assert_eq!(ask_with(&address, target, "nobody", PASSWORD).status, 401);
    assert_eq!(ask_with(&address, target, "", PASSWORD).status, 401);
    for field in
        ["", "Authorization: Basic\r\n", "Authorization: Basic !\r\n", "Authorization: x\r\n"]
    {
        let mut client = Client::connect(&address);
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n"));
        let reply = client.reply();
        let challenge = reply.header("WWW-Authenticate").unwrap_or_default();
        assert!(
            reply.status == 401 && challenge.starts_with("Basic realm=\"a "),
            "{field}: {challenge}"
        );
    }
}

const GUARDED: &str = "basic_auth = { file = \"users\", realm = 'a \"realm\"' }\n";

#[test]
fn users_are_let_in_by_the_passwords_of_htpasswd() {
    let folder = Folder::new();
    if !users(&folder) {
        return;
    }
    let forebay = site(folder, &format!("[[site.route]]\nrespond = \"in\"\n{GUARDED}"));
    passwords_are_checked(forebay.address, "/");
    forebay.stop();
}

#[test]
fn apache_lets_the_same_users_in() {
    let conf = "<Location />\nAuthType Basic\nAuthName 'a realm'\nAuthUserFile \"{tmp}/users\"\n\
                Require valid-user\n</Location>\nDocumentRoot \"{tmp}\"\n";
    let modules = ["auth_basic", "authn_core", "authn_file", "authz_user"];
    let Some(peer) = apache(&modules, conf) else { return };
    if users(peer.folder()) {
        peer.folder().write("page", "in");
        passwords_are_checked(peer.address(), "/page");
    }
}

#[test]
fn nginx_lets_the_same_users_in() {
    let Some(peer) = nginx(
        "server { listen 127.0.0.1:{port}; root {tmp}; location = /page {\n\
         auth_basic 'a realm'; auth_basic_user_file {tmp}/users; } }",
    ) else {
        return;
    };
    if users(peer.folder()) {
        peer.folder().write("page", "in");
        passwords_are_checked(peer.address(), "/page");
    }
}

const WSGI: &str = "\
def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [('%s=%s\\n' % (name, environ.get(name))).encode() for name in
            ('REMOTE_USER', 'AUTH_TYPE', 'HTTP_AUTHORIZATION')]
";

fn user_is_known(forebay: &Forebay, target: &str) {
    let reply = ask_with(forebay.address, target, "apr1", PASSWORD);
    let text = reply.text();
    assert_eq!(reply.status, 200, "{target}: {text}");
    assert!(text.contains("REMOTE_USER=apr1\n"), "{target}: {text}");
    assert!(text.contains("AUTH_TYPE=Basic\n"), "{target}: {text}");
    assert!(!text.contains("AUTHORIZATION=Basic"), "{target}: {text}");
}

#[test]
fn scripts_and_applications_know_the_user_and_not_the_password() {
    let folder = Folder::new();
    if !users(&folder) {
        return;
    }
    let body = "printf 'Content-Type: text/plain\\n\\n'; env\n";
    folder.script("cgi/env.sh", format!("#!/bin/sh\n{body}"));
    let print = "print \"$_=$ENV{$_}\\n\" for keys %ENV;\n";
    folder.script(
        "perl/env.pl",
        format!("#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\";\n{print}"),
    );
    folder.script(
        "python/env.py",
        "#!/usr/bin/python3\nimport os\nprint('Content-Type: text/plain\\n')\n\
         for item in os.environ.items(): print('%s=%s' % item)\n",
    );
    folder
        .write("app.psgi", "sub { my $e = shift; [200, [], [map \"$_=$e->{$_}\\n\", keys %$e]] }");
    folder.write("app.py", WSGI);
    let mut routes = String::new();
    let apps = ["perl", "python", "psgi", "wsgi"];
    routes.push_str(&format!("[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n{GUARDED}"));
    for app in apps {
        routes
            .push_str(&format!("[[site.route]]\npath = \"/{app}/*\"\napp = \"{app}\"\n{GUARDED}"));
    }
    routes.push_str(
        "[app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\n[app.python]\nkind = \"python-cgi\"\ndir = \"python\"\n\
         [app.psgi]\nkind = \"psgi\"\nfile = \"app.psgi\"\n[app.wsgi]\nkind = \"wsgi\"\ndir = \".\"\nmodule = \"app:application\"\n",
    );
    let forebay = site(folder, &routes);
    for target in ["/cgi/env.sh", "/perl/env.pl", "/python/env.py", "/psgi/", "/wsgi/"] {
        user_is_known(&forebay, target);
        assert_eq!(forebay.get(target).status, 401, "{target}");
    }
    forebay.stop();
}

#[test]
fn applications_of_other_protocols_know_the_user() {
    for socket in [UwsgiSocket::Uwsgi, UwsgiSocket::Scgi, UwsgiSocket::Fastcgi] {
        let Some(peer) = uwsgi(socket, UwsgiApp::Wsgi(WSGI)) else { return };
        let to = format!("to = \"unix:{}\"", peer.socket().display());
        let action = match socket {
            UwsgiSocket::Uwsgi => format!("uwsgi = {{ {to} }}"),
            UwsgiSocket::Scgi => format!("scgi = {{ {to} }}"),
            UwsgiSocket::Fastcgi => {
                format!("fastcgi = {{ {to}, root = \"{{tmp}}\", scripts = \"*\" }}")
            }
        };
        let folder = Folder::new();
        folder.write("x", "there");
        if !users(&folder) {
            return;
        }
        let forebay = site(folder, &format!("[[site.route]]\n{action}\n{GUARDED}"));
        user_is_known(&forebay, "/x");
        forebay.stop();
    }
}

/// Returns the status and the body that curl gets with the Digest scheme.
fn curl_digest(address: &str, target: &str, password: &str, more: &[&str]) -> (String, String) {
    let url = format!("http://{address}{target}");
    let user = format!("ann:{password}");
    let output = Command::new("curl")
        .args(["-sS", "--max-time", "60", "--digest", "-u", &user, "-w", "\\n%{http_code}"])
        .args(more)
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

/// The lines of `htdigest` for the user `ann` of the realm `a "realm"`, whose password is `p:ss w`.
const DIGEST_LINES: [&str; 2] = [
    "ann:a \"realm\":91ad9826f7d0dc26724f688f226834cdcbd2f9818666fda18ba55e23d61b90f6\n",
    "ann:a \"realm\":5286ff1e6c58f67ffd10d3f9f6fbc2a7\n",
];

#[test]
fn users_are_let_in_by_the_passwords_of_htdigest() {
    if !peer::has(&["curl"]) {
        return;
    }
    for (lines, name) in [
        (DIGEST_LINES.concat(), "both"),
        (DIGEST_LINES[0].into(), "sha"),
        (DIGEST_LINES[1].into(), "md5"),
    ] {
        let folder = Folder::new();
        folder.write("users", lines);
        folder.write("files/index.html", "page");
        folder.script("cgi/env.sh", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; env\n");
        let guard = "digest_auth = { file = \"users\", realm = 'a \"realm\"' }\n";
        // For `/`, the rules of two routes check the same credentials.
        let forebay = site(
            folder,
            &format!(
                "[[site.route]]\npath = \"/index.html\"\nfiles = \"files\"\n{guard}\
                 [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n{guard}\
                 [[site.route]]\nfiles = \"files\"\n{guard}"
            ),
        );
        let address = forebay.address.to_string();
        let page = ("200".to_owned(), "page".to_owned());
        for target in ["/", "/index.html", "/a/../index.html?x=1&y"] {
            assert_eq!(curl_digest(&address, target, "p:ss w", &[]), page, "{name} {target}");
            assert_eq!(curl_digest(&address, target, "p:ss", &[]).0, "401", "{name} {target}");
        }
        // The second transfer reuses the nonce with the next count.
        let url = format!("http://{address}/?second");
        let (_, bodies) = curl_digest(&address, "/?first", "p:ss w", &[&url]);
        assert_eq!(bodies.matches("page").count(), 2, "{name} {bodies}");
        let post = ["--data", "a=b", "--path-as-is"];
        let (status, body) = curl_digest(&address, "/cgi/../cgi/env.sh", "p:ss w", &post);
        assert_eq!(status, "200", "{name} {body}");
        for line in ["REMOTE_USER=ann", "AUTH_TYPE=Digest"] {
            assert!(body.lines().any(|one| one == line), "{name} {body}");
        }
        assert!(!body.contains("HTTP_AUTHORIZATION"), "{name} {body}");
        forebay.stop();
    }
}

#[test]
fn apache_lets_the_same_users_in_by_digest() {
    let conf = "<Location />\nAuthType Digest\nAuthName 'a realm'\n\
                AuthUserFile \"{tmp}/users\"\nRequire valid-user\n</Location>\n\
                DocumentRoot \"{tmp}\"\n";
    let modules = ["auth_digest", "authn_core", "authn_file", "authz_user"];
    let Some(peer) = apache(&modules, conf) else { return };
    if !peer::has(&["curl"]) {
        return;
    }
    // Apache compares a realm with quotes in another way.
    peer.folder().write("users", "ann:a realm:3afc8d6ffdccd583e620b5587109c0e6\n");
    peer.folder().write("page", "in");
    let address = format!("127.0.0.1:{}", peer.port());
    assert_eq!(curl_digest(&address, "/page", "p:ss w", &[]), ("200".into(), "in".into()));
    assert_eq!(curl_digest(&address, "/page", "p:ss", &[]).0, "401");
}

#[test]
fn http_backends_get_the_field_and_the_log_has_the_user() {
    let folder = Folder::new();
    if !users(&folder) {
        return;
    }
    let echo = Echo::start();
    let forebay = serve(
        folder,
        &format!(
            "[log]\naccess = \"access.log\"\nformat = \"common\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
             {}{GUARDED}",
            echo.route()
        ),
    );
    let reply = ask_with(forebay.address, "/a", "apr1", PASSWORD);
    assert!(reply.text().contains("\r\nAuthorization: Basic "), "{}", reply.text());
    assert_eq!(forebay.get("/b").status, 401);
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    // Each thread writes its own lines, in any order.
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_by_key(|line| line.contains(" /b "));
    assert!(lines[0].starts_with("127.0.0.1 - apr1 ["), "{log}");
    assert!(lines[1].starts_with("127.0.0.1 - - [") && lines[1].contains(" 401 "), "{log}");
}

#[test]
fn users_are_read_again_when_their_file_has_changed() {
    let folder = Folder::new();
    if !users(&folder) {
        return;
    }
    let file = folder.path().join("users");
    let forebay = site(folder, &format!("[[site.route]]\nrespond = \"in\"\n{GUARDED}"));
    let status = || ask_with(forebay.address, "/", "apr1", PASSWORD).status;
    assert_eq!(status(), 200);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("apr1:", "renamed:")).unwrap();
    assert!(eventually(|| status() == 401), "a password that was remembered is forgotten");
    std::fs::remove_file(&file).unwrap();
    assert!(eventually(|| status() == 500), "without the file nobody is let in");
    std::fs::write(&file, text).unwrap();
    assert!(eventually(|| status() == 200));
    forebay.stop();
}

/// The server has one thread, which the first `open` would block for ever.
#[test]
fn a_fifo_in_place_of_the_file_of_users_stops_nobody() {
    let folder = Folder::new();
    let file = folder.write("users", "");
    let configuration = format!(
        "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/in\"\nrespond = \"in\"\n{GUARDED}[[site.route]]\nrespond = \"out\"\n"
    );
    let forebay = serve_file(folder, &configuration);
    assert_eq!(ask_with(forebay.address, "/in", "a", "b").status, 401);
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert!(eventually(|| ask_with(forebay.address, "/in", "a", "b").status == 500));
    assert_eq!(forebay.get("/in").status, 401);
    assert_eq!(forebay.get("/out").status, 200);
    let (exit, folder) = forebay.stop();
    assert!(exit.output.contains("not a regular file"), "{}", exit.output);
    // `check` and `serve` refuse the FIFO at the start, too.
    let site = support::write_configuration(&folder, &configuration);
    for what in ["check", "serve"] {
        let mut command = Command::new(support::program());
        command.arg(what).arg(&site);
        let exit = Process::start(command).wait();
        assert_eq!(exit.status.code(), Some(2), "{what}: {}", exit.output);
        assert!(exit.output.contains("is not a file"), "{what}: {}", exit.output);
    }
}

/// The server has one thread: other requests do not wait for a hash that takes two seconds.
#[test]
fn a_password_that_is_checked_stops_nobody_else() {
    if !peer::has(&["apache2-utils"]) {
        return;
    }
    let folder = Folder::new();
    let made = Command::new("htpasswd").args(["-nbBC", "14", "slow", "x"]).output().unwrap();
    folder.write("users", made.stdout);
    let forebay = serve_file(
        folder,
        &format!(
            "[server]\nthreads = 1\n[log]\naccess = \"access.log\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
             [[site.route]]\npath = \"/slow\"\nrespond = \"in\"\n{GUARDED}[[site.route]]\nrespond = \"in\"\n"
        ),
    );
    let mut client = forebay.connect();
    let token = base64("slow:x");
    client.send(format!("GET /slow HTTP/1.1\r\nHost: h\r\nAuthorization: Basic {token}\r\n\r\n"));
    assert_eq!(forebay.get("/other").status, 200);
    assert_eq!(client.reply().status, 200);
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert!(log.lines().next().unwrap().contains("/other"), "{log}");
}

/// 80 connections send wrong passwords, and each hash takes a second. The server answers one after
/// the other.
#[test]
fn wrong_passwords_keep_nobody_out_who_is_logged_in() {
    if !peer::has(&["apache2-utils"]) {
        return;
    }
    let folder = Folder::new();
    let made = Command::new("htpasswd").args(["-nbBC", "12", "me", "x"]).output().unwrap();
    folder.write("users", made.stdout);
    let route =
        |path: &str| format!("[[site.route]]\npath = \"{path}\"\nrespond = \"in\"\n{GUARDED}");
    let forebay = site(folder, &format!("{}{}", route("/a"), route("/b")));
    assert_eq!(ask_with(forebay.address, "/a", "me", "x").status, 200);
    let mut attackers: Vec<_> = (0..80).map(|_| forebay.connect()).collect();
    for (at, attacker) in attackers.iter_mut().enumerate() {
        let token = base64(&format!("me:wrong{at}"));
        attacker
            .send(format!("GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: Basic {token}\r\n\r\n"));
    }
    // Over both threads. Each of them had to hash the password once for each route.
    for path in ["/a", "/b"].repeat(8) {
        assert_eq!(ask_with(forebay.address, path, "me", "x").status, 200, "{path}");
    }
    let mut is_answered = |client: &mut Client| {
        let TestStream::Tcp(stream) = client.stream() else {
            panic!("it was connected to an address")
        };
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_ok()
    };
    let answered = attackers.iter_mut().map(&mut is_answered).filter(|is| *is).count();
    assert!(answered < 70, "{answered} of 80 were answered before");
    drop(attackers);
    forebay.stop();
}

#[test]
fn a_file_of_users_with_a_line_that_is_none_is_refused_with_its_number() {
    let folder = Folder::new();
    folder.write("users", "# users\na:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let file = support::write_configuration(
        &folder,
        &format!("[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"in\"\n{GUARDED}"),
    );
    for what in ["check", "serve"] {
        let output = Command::new(support::program()).arg(what).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{what}");
        assert!(said.contains("line 2"), "{what}: {said}");
    }
}

/// Returns the redirect targets of requests: the request, and `Location`.
fn redirected(to: &str, path: &str, cases: &[(&str, Option<&str>)]) {
    let forebay = site(
        Folder::new(),
        &format!(
            "encoded_slashes = \"pass\"\n[[site.route]]\npath = \"{path}\"\n\
             redirect = {{ to = \"{to}\", status = 301 }}\n"
        ),
    );
    for (target, location) in cases {
        let reply = forebay.ask(format!("GET {target} HTTP/1.1\r\nHost: Example.org:80\r\n\r\n"));
        assert_eq!(reply.header("Location"), *location, "{to}: {target}");
        assert_eq!(reply.status, if location.is_some() { 301 } else { 404 });
    }
    forebay.stop();
}

#[test]
fn redirections_keep_what_was_asked() {
    redirected(
        "https://{host}{uri}",
        "/*",
        &[
            ("/", Some("https://Example.org/")),
            ("/a%20b/%c3%a9?x=y&z", Some("https://Example.org/a%20b/%c3%a9?x=y&z")),
            ("//evil.example/..//a?b", Some("https://Example.org/a?b")),
            ("/a%0d%0aX:y", Some("https://Example.org/a%0d%0aX:y")),
            ("/a\\b\"<", Some("https://Example.org/a%5Cb%22%3C")),
            ("http://other.example/x?y", Some("https://other.example/x?y")),
        ],
    );
    redirected(
        "https://new.example:8443/base/{rest}?from={path}&{query}",
        "/old/*",
        &[
            ("/old/a/b?c=d", Some("https://new.example:8443/base/a/b?from=/old/a/b&c=d")),
            ("/%6fld/%61", Some("https://new.example:8443/base/%61?from=/%6fld/%61&")),
            ("/x", None),
        ],
    );
    redirected(
        "/{rest}",
        "/old*",
        &[("/old//evil.example", Some("/evil.example")), ("/olda", Some("/a"))],
    );
    redirected("{path}", "/*", &[("//evil.example", Some("/evil.example"))]);
}

#[test]
fn a_redirection_goes_to_no_host_that_is_none() {
    let forebay = site(Folder::new(), "[[site.route]]\nredirect = \"https://{host}{uri}\"\n");
    for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a;b=c\r\n\r\n"] {
        let reply = forebay.ask(request);
        assert_eq!((reply.status, reply.header("Location")), (400, None), "{request}");
    }
    let reply = forebay.ask("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n");
    assert_eq!(reply.header("Location"), Some("https://[::1]/"));
    forebay.stop();
}

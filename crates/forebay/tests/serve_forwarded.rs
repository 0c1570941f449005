//! Who the client is behind proxies: `forebay serve`, nginx's realip and Apache's mod_remoteip give
//! the same address for the same headers.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::forwarded::{CASES, FORGED};
use forebay_testkit::http::Client;
use forebay_testkit::peer::{apache, nginx, starman};
use forebay_testkit::stream::Address;
use support::echo::Echo;
use support::site;

const SCRIPT: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s' \"$REMOTE_ADDR\"\n";

/// What the server takes for the client in each case.
fn answers(address: impl Into<Address>, target: &str) -> Vec<String> {
    let address = address.into();
    let answer = |(fields, _): &(&[&str], &str)| {
        let mut client = Client::connect(&address);
        let fields: String =
            fields.iter().map(|value| format!("X-Forwarded-For: {value}\r\n")).collect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{fields}: {}", String::from_utf8_lossy(&reply.body));
        reply.text().trim().to_owned()
    };
    CASES.iter().map(answer).collect()
}

fn expected() -> Vec<String> {
    CASES.iter().map(|(_, client)| client.to_string()).collect()
}

#[test]
fn forebay_finds_the_client() {
    let folder = Folder::new();
    folder.script("cgi/who.sh", SCRIPT);
    let trusted = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\", \"fd00::/8\"]";
    let forebay =
        site(folder, &format!("{trusted}\n[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n"));
    assert_eq!(answers(forebay.address, "/who.sh"), expected());
    forebay.stop();
}

#[test]
fn what_clients_claim_reaches_no_psgi_application_over_http() {
    let folder = Folder::new();
    let app = "sub { my $env = shift; [200, [], [map \"$_: $env->{$_}\\n\", grep /^HTTP_/, keys %$env]] }";
    let Some(peer) = starman(&folder.write("app.psgi", app)) else { return };
    let route = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", peer.port());
    let forebay = site(Folder::new(), &route);
    let reply = forebay.ask(format!("GET / HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n"));
    let text = reply.text();
    assert!(!text.contains("6.6.6."), "{text}");
    assert!(text.contains("HTTP_X_FORWARDED_FOR: 127.0.0.1\n"), "{text}");
    forebay.stop();
}

const ALL_VARIABLES: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nenv\n";

#[test]
fn what_clients_claim_reaches_no_script() {
    let folder = Folder::new();
    folder.script("cgi/env.sh", ALL_VARIABLES);
    let forebay = site(folder, "[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n");
    let reply = forebay.ask(format!("GET /env.sh HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n"));
    assert!(!reply.text().contains("6.6.6."), "{}", reply.text());
    assert!(reply.text().contains("HTTP_X_OWN=fine"), "{}", reply.text());
    forebay.stop();
}

#[test]
fn what_a_trusted_proxy_says_reaches_backends_of_all_kinds() {
    let folder = Folder::new();
    folder.script("cgi/env.sh", ALL_VARIABLES);
    let echo = Echo::start();
    let routes = "[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n";
    let trusted = "trusted_proxies = \"127.0.0.1\"\n";
    let forebay = site(folder, &format!("{trusted}{routes}{}", echo.route()));
    let told = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Port: 8443\r\nX_Forwarded_Port: 1\r\n";
    let ask = |path: &str| {
        let reply = forebay.ask(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{told}\r\n"));
        reply.text().to_owned()
    };
    let echoed = ask("/");
    assert!(echoed.contains("X-Forwarded-Port: 8443\r\n"), "{echoed}");
    assert!(!echoed.contains("X_Forwarded_Port"), "{echoed}");
    let variables = ask("/cgi/env.sh");
    assert!(variables.contains("HTTP_X_FORWARDED_PORT=8443\n"), "{variables}");
    assert!(variables.contains("HTTP_X_FORWARDED_FOR=192.0.2.1\n"), "{variables}");
    forebay.stop();
}

/// nginx drops all names with an underscore, and passes on the rest of what clients claim.
#[test]
fn nginx_drops_names_with_underscores() {
    let echo = Echo::start();
    let Some(nginx) = nginx(&format!(
        "server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass {}; }} }}",
        echo.url()
    )) else {
        return;
    };
    let mut client = Client::connect(nginx.address());
    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n"));
    let reply = client.reply();
    assert!(!reply.text().contains("X_Forwarded_For"), "{}", reply.text());
    assert!(reply.text().contains("X-Forwarded-Port: 6.6.6.5"), "{}", reply.text());
}

#[test]
fn nginx_finds_the_same() {
    let Some(nginx) = nginx(
        "set_real_ip_from 127.0.0.0/8; set_real_ip_from 10.0.0.0/8; set_real_ip_from fd00::/8;\n\
         real_ip_header X-Forwarded-For; real_ip_recursive on;\n\
         server { listen 127.0.0.1:{port}; location / { return 200 $remote_addr; } }",
    ) else {
        return;
    };
    assert_eq!(answers(nginx.address(), "/"), expected());
}

#[test]
fn apache_finds_the_same() {
    let folder = Folder::new();
    folder.script("who.sh", SCRIPT);
    let conf = format!(
        "RemoteIPHeader X-Forwarded-For\n\
         RemoteIPInternalProxy 127.0.0.0/8 10.0.0.0/8 fd00::/8\n\
         ScriptAlias /cgi/ \"{}/\"\n<Directory />\nRequire all granted\n</Directory>\n",
        folder.path().display()
    );
    let Some(apache) = apache(&["remoteip", "cgi", "alias"], &conf) else { return };
    assert_eq!(answers(apache.address(), "/cgi/who.sh"), expected());
}

//! The client's address if there are proxies: `forebay serve`, nginx's realip and Apache's
//! mod_remoteip find the same address for the same fields.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::forwarded::{CASES, FORGED};
use forebay_testkit::http::Client;
use forebay_testkit::peer::{apache, nginx, starman};
use forebay_testkit::stream::Address;
use support::echo::Echo;
use support::{serve, site};

const SCRIPT: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s' \"$REMOTE_ADDR\"\n";

/// Returns the address that the server uses for the client in each case.
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
fn forged_fields_reach_no_psgi_application_over_http() {
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
fn forged_fields_reach_no_script() {
    let folder = Folder::new();
    folder.script("cgi/env.sh", ALL_VARIABLES);
    let forebay = site(folder, "[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n");
    let reply = forebay.ask(format!("GET /env.sh HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n"));
    assert!(!reply.text().contains("6.6.6."), "{}", reply.text());
    assert!(reply.text().contains("HTTP_X_OWN=fine"), "{}", reply.text());
    forebay.stop();
}

#[test]
fn fields_of_a_trusted_proxy_reach_backends_of_all_kinds() {
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

/// nginx drops all names with an underscore, and passes on all other fields of clients.
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

/// Rules by address on a Unix socket, by path, and the status for a client that connects to it.
const UNIX_RULES: [(&str, &str, u16); 7] = [
    ("/local", "allow = [\"127.0.0.1\", \"::1\"]", 403),
    ("/any", "allow = [\"0.0.0.0/0\", \"::/0\"]", 403),
    ("/unix", "allow = [\"unix\"]", 200),
    ("/except", "deny = [\"10.0.0.0/8\"]", 403),
    ("/unix-except", "allow = [\"unix\", \"127.0.0.1\"]\ndeny = [\"10.0.0.0/8\"]", 200),
    ("/all", "allow = [\"all\"]", 200),
    ("/none", "allow = [\"unix\"]\ndeny = [\"all\"]", 403),
];

#[test]
fn clients_of_a_unix_socket_have_no_address() {
    let folder = Folder::new();
    folder.script("cgi/env.sh", ALL_VARIABLES);
    let echo = Echo::start();
    let mut routes = String::from("[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n");
    for (path, rule, _) in UNIX_RULES {
        routes += &format!("[[site.route]]\npath = \"{path}\"\n{rule}\nrespond = \"in\"\n");
    }
    let configuration = format!(
        "[log]\naccess = \"access.log\"\n[server.limits]\nconnections_per_address = 1\n\
         [[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{{tmp}}/s\"]\n{routes}{}",
        echo.route()
    );
    let forebay = serve(folder, &configuration);
    let socket = forebay.folder.path().join("s");
    // No address can be counted, so more than one connection is possible.
    let mut clients = [Client::connect(&socket), Client::connect(&socket)];
    for (path, _, status) in UNIX_RULES {
        assert_eq!(clients[0].get(path).status, status, "{path}");
    }
    let variables = clients[1].get("/cgi/env.sh").text().to_owned();
    assert!(variables.contains("\nREMOTE_ADDR=unix:\n"), "{variables}");
    assert!(variables.contains("\nSERVER_PORT=80\n"), "{variables}");
    let echoed = clients[1].get("/echo").text().to_owned();
    assert!(echoed.contains("X-Forwarded-For: unknown\r\n"), "{echoed}");
    // One connection, because a second one may arrive before the first has ended.
    let mut local = forebay.connect();
    assert_eq!(local.get("/local").status, 200);
    assert_eq!(local.get("/unix").status, 403);
    drop(local);
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let is_theirs = |line: &str| line.starts_with("unix: - - ") && line.contains("GET /unix ");
    assert!(log.lines().any(is_theirs), "{log}");
}

#[test]
fn nginx_knows_no_address_of_clients_of_a_unix_socket() {
    let Some(nginx) = nginx(
        "server { listen 127.0.0.1:{port}; listen unix:{tmp}/s; \n\
         location / { return 200 $remote_addr; }\n\
         location = /local { allow 127.0.0.1; deny all; try_files /none /page; }\n\
         location = /unix { allow unix:; deny all; try_files /none /page; }\n\
         root {tmp}; location = /page { } }",
    ) else {
        return;
    };
    nginx.folder().write("page", "in");
    let socket = nginx.folder().path().join("s");
    let get = |path: &str| Client::connect(&socket).get(path);
    assert_eq!(get("/").text(), "unix:");
    for (path, _, status) in UNIX_RULES.iter().filter(|rule| ["/local", "/unix"].contains(&rule.0))
    {
        assert_eq!(get(path).status, *status, "{path}");
    }
}

#[test]
fn a_proxy_on_a_unix_socket_names_its_clients() {
    let rule = "[[site.route]]\npath = \"/in\"\nallow = [\"192.0.2.1\"]\nrespond = \"in\"\n";
    let echo = Echo::start();
    let ask = |socket: &std::path::Path, head: &str, fields: &str, path: &str| {
        let mut client = Client::connect(socket);
        client.send(format!("{head}GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        client.reply()
    };
    // An address of this machine included these peers before they had a name of their own.
    for (trusted, is_warned) in [("unix", false), ("127.0.0.1", true)] {
        let site = format!(
            "[[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{{tmp}}/s\"]\n\
             trusted_proxies = [\"10.0.0.0/8\", \"{trusted}\"]\n{rule}{}",
            echo.route()
        );
        let forebay = serve(Folder::new(), &site);
        let socket = forebay.folder.path().join("s");
        let from = |fields: &str| ask(&socket, "", fields, "/in").status;
        assert_eq!(from("X-Forwarded-For: 192.0.2.1\r\n"), 200);
        assert_eq!(from("X-Forwarded-For: 192.0.2.1, 10.0.0.1\r\n"), 200);
        assert_eq!(from("Forwarded: for=192.0.2.1\r\n"), 200);
        assert_eq!(from("X-Forwarded-For: 192.0.2.2\r\n"), 403);
        assert_eq!(from("X-Forwarded-For: unix:\r\n"), 403);
        assert_eq!(from(""), 403);
        let fields = "X-Forwarded-For: 192.0.2.1\r\n";
        let echoed = ask(&socket, "", fields, "/").text().to_owned();
        assert!(echoed.contains("X-Forwarded-For: 192.0.2.1\r\n"), "{echoed}");
        let output = forebay.output();
        assert_eq!(output.contains("write \"unix\""), is_warned, "{output}");
        forebay.stop();
    }
    let site = format!(
        "[[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{{tmp}}/s\"]\nproxy_protocol = true\n\
         trusted_proxies = [\"unix\"]\n{rule}"
    );
    let forebay = serve(Folder::new(), &site);
    let socket = forebay.folder.path().join("s");
    let announced = |line: &str| ask(&socket, line, "", "/in").status;
    assert_eq!(announced("PROXY TCP4 192.0.2.1 192.0.2.9 1 2\r\n"), 200);
    assert_eq!(announced("PROXY TCP4 192.0.2.2 192.0.2.9 1 2\r\n"), 403);
    assert_eq!(announced("PROXY UNKNOWN\r\n"), 403);
    forebay.stop();
}

/// Returns the permission bits, owner and group of a socket.
fn access_of(socket: &std::path::Path) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::symlink_metadata(socket).unwrap();
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

/// Returns the user and group of a name in `/etc/passwd`.
fn ids(name: &str) -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let user = users.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
    let mut numbers = user.split(':').skip(2).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_unix_socket_has_the_mode_and_the_owner_that_its_site_says() {
    let listen = "[[site]]\nlisten = [\"127.0.0.1:0\", \"unix:{tmp}/s\"]\n";
    let route = "[[site.route]]\nrespond = \"in\"\n";
    let (own, own_group) =
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let serves = |keys: &str, expected: (u32, u32, u32)| {
        let forebay = serve(Folder::new(), &format!("{listen}{keys}{route}"));
        let socket = forebay.folder.path().join("s");
        assert_eq!(access_of(&socket), expected, "{keys}");
        assert_eq!(Client::connect(&socket).get("/").text(), "in");
        forebay
    };
    let mut forebay = serves("", (0o660, own, own_group));
    // A server that runs as another user could not change it.
    let changed = format!("{listen}socket_mode = \"0666\"\n{route}");
    support::write_configuration(&forebay.folder, &changed);
    forebay.signal(rustix::process::Signal::HUP);
    forebay.wait_for_output("`socket_group` of unix:");
    forebay.wait_for_output("change only with a restart");
    forebay.stop();
    serves("socket_mode = \"0600\"\n", (0o600, own, own_group)).stop();
    if rustix::process::geteuid().is_root() {
        let (user, group) = ids("www-data");
        let keys = "socket_user = \"www-data\"\nsocket_group = \"www-data\"\n";
        serves(keys, (0o660, user, group)).stop();
        serves("socket_group = \"www-data\"\n", (0o660, own, group)).stop();
    }
}

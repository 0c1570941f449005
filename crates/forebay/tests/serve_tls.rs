//! HTTPS: handshakes, certificates by name, and clients that break the rules of TLS.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::stream::TestStream;
use forebay_testkit::tls::{Authority, Identity, connect};
use rustix::process::Signal;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};

use support::{Forebay, serve};

/// Returns a site with these routes over TLS, and the authority of its certificate.
fn site(folder: Folder, routes: &str) -> (Forebay, Authority) {
    let authority = Authority::new("of the test");
    write_identity(&folder, "", &authority.issue(&["localhost"]));
    let forebay = serve(folder, &format!("{SITE}{routes}"));
    (forebay, authority)
}

const SITE: &str = "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
                    tls = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
const HELLO: &str = "[[site.route]]\nrespond = \"hello\"\n";

/// Writes `cert.pem` and `key.pem`, with the prefix `name`.
fn write_identity(folder: &Folder, name: &str, identity: &Identity) {
    folder.write(&format!("{name}cert.pem"), &identity.certificate);
    folder.write(&format!("{name}key.pem"), &identity.key);
}

fn ask(client: &mut Client, host: &str, target: &str) -> (u16, String) {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let reply = client.reply();
    (reply.status, String::from_utf8(reply.body).unwrap())
}

fn handshake(client: &mut Client) -> (Option<ProtocolVersion>, Option<HandshakeKind>) {
    let TestStream::Tls(stream) = client.stream() else { unreachable!() };
    (stream.conn.protocol_version(), stream.conn.handshake_kind())
}

#[test]
fn tls_1_2_and_1_3_are_spoken() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    for (version, name) in [(&TLS12, ProtocolVersion::TLSv1_2), (&TLS13, ProtocolVersion::TLSv1_3)]
    {
        let mut config = authority.client_of(None, &[version]);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut client = connect(forebay.address, "localhost", config).unwrap();
        assert_eq!(handshake(&mut client).0, Some(name));
        for _ in 0..3 {
            assert_eq!(ask(&mut client, "localhost", "/"), (200, "hello".into()));
        }
    }
    forebay.stop();
}

#[test]
fn sessions_are_resumed_whichever_thread_takes_the_connection() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(authority.client_of(None, &[version]));
        let mut kinds = Vec::new();
        for _ in 0..8 {
            let mut client = connect(forebay.address, "localhost", config.clone()).unwrap();
            ask(&mut client, "localhost", "/");
            kinds.push(handshake(&mut client).1);
        }
        assert_eq!(kinds[0], Some(HandshakeKind::Full));
        assert!(kinds[1..].iter().all(|kind| *kind == Some(HandshakeKind::Resumed)), "{kinds:?}");
    }
}

#[test]
fn large_bodies_go_both_ways_though_the_client_is_slow_to_read() {
    let folder = Folder::new();
    let big: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    folder.write("htdocs/big", &big);
    let routes = "[[site.route]]\npath = \"/cgi\"\ncgi = { program = \"/bin/cat\" }\nmax_body = \"64MiB\"\n\
                  [[site.route]]\nfiles = \"htdocs\"\n";
    let (forebay, authority) = site(folder, routes);
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    // Requested twice before a byte is read: the second one waits for room after the first.
    for _ in 0..2 {
        client.send("GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    for _ in 0..2 {
        assert!(client.reply().body == big);
    }
    let head =
        format!("POST /cgi HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", big.len() + 18);
    client.send(head);
    client.send("Content-Type: a\n\n\n");
    client.send(&big);
    let reply = client.reply();
    assert_eq!(reply.status, 200);
    assert!(reply.body[1..] == big);
}

#[test]
fn applications_see_that_the_client_came_by_tls() {
    let folder = Folder::new();
    folder.script(
        "show",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s %s' \"$HTTPS\" \"$REQUEST_SCHEME\"\n",
    );
    let routes = "[[site.route]]\ncgi = { program = \"{tmp}/show\" }\n";
    let (forebay, authority) = site(folder, routes);
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    assert_eq!(ask(&mut client, "localhost", "/"), (200, "on https".into()));
}

#[test]
fn the_certificate_is_that_of_the_site_that_the_client_names() {
    let folder = Folder::new();
    let mut configuration = String::new();
    let mut authorities = Vec::new();
    for (at, host) in ["a.example", "*.b.example", "*"].into_iter().enumerate() {
        let authority = Authority::new(host);
        let names = ["a.example", "x.b.example", "y.b.example", "other.example"];
        write_identity(&folder, &at.to_string(), &authority.issue(&names));
        authorities.push(authority);
        configuration += &format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\nhosts = [\"{host}\"]\n\
             tls = {{ certificate = \"{at}cert.pem\", key = \"{at}key.pem\" }}\n\
             [[site.route]]\nrespond = \"{at}\"\n"
        );
    }
    let forebay = serve(folder, &configuration);
    for (name, at) in
        [("a.example", 0), ("x.b.example", 1), ("y.b.example", 1), ("other.example", 2)]
    {
        for (other, authority) in authorities.iter().enumerate() {
            let connected = connect(forebay.address, name, authority.client());
            assert_eq!(connected.is_ok(), at == other, "{name} {at} {other}");
            let Ok(mut client) = connected else { continue };
            assert_eq!(ask(&mut client, name, "/"), (200, at.to_string()));
            // Another name with the same certificate, and a name with another certificate.
            let (same, different) = [
                ("A.EXAMPLE", "x.b.example"),
                ("z.b.example", "a.example"),
                ("none.example", "y.b.example"),
            ][at];
            assert_eq!(ask(&mut client, same, "/"), (200, at.to_string()));
            assert_eq!(ask(&mut client, different, "/").0, 421);
        }
    }
}

#[test]
fn a_reload_swaps_certificates_and_keeps_connections() {
    let (mut forebay, authority) = site(Folder::new(), HELLO);
    let mut kept = connect(forebay.address, "localhost", authority.client()).unwrap();
    assert_eq!(ask(&mut kept, "localhost", "/").0, 200);
    let other = Authority::new("another");
    write_identity(&forebay.folder, "", &other.issue(&["localhost"]));
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    assert_eq!(ask(&mut kept, "localhost", "/").0, 200);
    let mut client = connect(forebay.address, "localhost", other.client()).unwrap();
    assert_eq!(ask(&mut client, "localhost", "/").0, 200);
    assert!(connect(forebay.address, "localhost", authority.client()).is_err());
    // A key of another certificate changes nothing.
    forebay.folder.write("key.pem", &other.issue(&["localhost"]).key);
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("does not belong to the certificate");
    connect(forebay.address, "localhost", other.client()).unwrap();
    forebay.stop();
}

#[test]
fn http_on_an_https_port_gets_an_explanation() {
    let (forebay, _) = site(Folder::new(), HELLO);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let reply = client.reply();
    assert_eq!(reply.status, 400);
    assert!(String::from_utf8_lossy(&reply.body).contains("https://"));
    assert!(client.is_closed());
}

#[test]
fn tls_on_a_plain_port_gets_an_answer() {
    let forebay = support::site(Folder::new(), HELLO);
    let config = Authority::new("nobody").client();
    assert!(connect(forebay.address, "localhost", config).is_err());
    assert_eq!(forebay.ask([0x16, 3, 1, 2, 0, 1]).status, 400);
}

#[test]
fn a_connection_ends_with_close_notify() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    for request in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "bad\r\n\r\n",
    ] {
        let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
        client.send(request);
        let mut reply = Vec::new();
        // Without `close_notify`, the end is an error (UnexpectedEof).
        client.stream().read_to_end(&mut reply).unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 "), "{request}");
    }
}

#[test]
fn a_body_cut_short_without_close_notify_is_no_body() {
    let (forebay, authority) =
        site(Folder::new(), "[[site.route]]\ncgi = { program = \"/bin/cat\" }\n");
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
    let TestStream::Tls(stream) = client.stream() else { unreachable!() };
    stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 400"), "{reply:?}");
    assert_eq!(
        ask(&mut connect(forebay.address, "localhost", authority.client()).unwrap(), "x", "/").0,
        502
    );
}

#[test]
fn invalid_handshakes_end_only_their_connection() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    let record =
        |length: u16, body: &[u8]| [&[0x16, 3, 1][..], &length.to_be_bytes(), body].concat();
    for (what, bytes) in [
        ("zeros", vec![0; 100]),
        ("noise", (0..4000_u32).map(|n| ((n * 7919) >> 3) as u8 | 0x80).collect()),
        ("SSL 2", b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10".to_vec()),
        ("a record too large", record(0xffff, &[1; 20_000])),
        ("an empty record", record(0, &[])),
        ("no ClientHello", record(4, &[2, 0, 0, 0])),
        ("a ClientHello that lies", record(8, &[1, 0, 0, 4, 3, 3, 9, 9])),
        (
            "a message too large",
            record(0x3000, &[&[1, 0xff, 0xff, 0xff][..], &[0; 0x2ffc]].concat()),
        ),
        ("application data", b"\x17\x03\x03\x00\x05hello".to_vec()),
    ] {
        let mut client = TcpStream::connect(forebay.address).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        // The server may refuse it before it has read everything.
        let _ = client.write_all(&bytes);
        // The server may wait for the rest of the announced length.
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        match client.read_to_end(&mut answer) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}"),
            // At most an alert.
            Ok(_) => assert!(answer.is_empty() || answer[0] == 0x15, "{what}: {answer:?}"),
        }
    }
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    assert_eq!(ask(&mut client, "localhost", "/").0, 200);
    forebay.stop();
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    let TestStream::Tls(stream) = client.stream() else { unreachable!() };
    stream.sock.write_all(b"\x17\x03\x03\x00\x20not encrypted by any key at all!").unwrap();
    let mut answer = Vec::new();
    let error = stream.read_to_end(&mut answer).unwrap_err();
    assert!(answer.is_empty(), "{error}");
}

#[test]
fn a_handshake_has_the_time_of_a_head() {
    let folder = Folder::new();
    write_identity(&folder, "", &Authority::new("of the test").issue(&["localhost"]));
    let forebay = serve(folder, &format!("[server.timeouts]\nhead = \"300ms\"\n{SITE}{HELLO}"));
    let begun = [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"];
    let clients = begun.map(|begun| {
        let mut client = TcpStream::connect(forebay.address).unwrap();
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.write_all(begun).unwrap();
        client
    });
    for mut client in clients {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty());
    }
    forebay.stop();
}

#[test]
fn a_client_of_another_protocol_version_or_protocol_is_refused() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    let mut config: ClientConfig = authority.client();
    config.alpn_protocols = vec![b"no-such".to_vec()];
    let error = connect(forebay.address, "localhost", config).unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn mistakes_about_certificates_are_told_where_they_are_typed() {
    let folder = Folder::new();
    let authority = Authority::new("of the test");
    write_identity(&folder, "", &authority.issue(&["localhost"]));
    write_identity(&folder, "other-", &authority.issue(&["localhost"]));
    write_identity(&folder, "old-", &authority.issue_expired(&["localhost"]));
    folder.write("empty.pem", "");
    folder.write(
        "locked.pem",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let listen = "[[site]]\nlisten = \"https://127.0.0.1:8443\"\n";
    for (tls, place, said) in [
        ("", ":2:10", "no certificate"),
        ("tls = { certificate = \"cert.pem\" }\n", ":3:7", "no `key`"),
        ("tls = { certificate = \"none.pem\", key = \"key.pem\" }\n", ":3:23", "no such file"),
        (
            "tls = { certificate = \"empty.pem\", key = \"key.pem\" }\n",
            ":3:23",
            "BEGIN CERTIFICATE",
        ),
        ("tls = { certificate = \"key.pem\", key = \"key.pem\" }\n", ":3:23", "BEGIN CERTIFICATE"),
        ("tls = { certificate = \"cert.pem\", key = \"cert.pem\" }\n", ":3:41", "no private key"),
        ("tls = { certificate = \"cert.pem\", key = \"locked.pem\" }\n", ":3:41", "is encrypted"),
        (
            "tls = { certificate = \"cert.pem\", key = \"other-key.pem\" }\n",
            ":3:41",
            "does not belong",
        ),
        (
            "tls = { certificate = \"cert.pem\", key = \"key.pem\", \
             ciphers = \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\" }\n",
            ":3:62",
            "no client can connect",
        ),
        (
            "tls = { certificate = \"old-cert.pem\", key = \"old-key.pem\" }\n",
            ":3:23",
            "WARNING: the certificate",
        ),
    ] {
        let file = support::write_configuration(&folder, &format!("{listen}{tls}{HELLO}"));
        let mut command = std::process::Command::new(support::program());
        let output = command.arg("check").arg(file).output().unwrap();
        let said_instead = String::from_utf8(output.stderr).unwrap();
        assert!(
            said_instead.contains(said) && said_instead.contains(place),
            "{tls}\n{said_instead}"
        );
        assert_eq!(
            output.status.code(),
            Some(if said.starts_with("WARNING") { 0 } else { 2 }),
            "{tls}"
        );
    }
    for (configuration, said) in [
        (
            format!(
                "[[site]]\nlisten = \"127.0.0.1:80\"\ntls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n{HELLO}"
            ),
            "without an https:// listener",
        ),
        (
            format!("{SITE}{HELLO}[[site]]\nlisten = \"127.0.0.1:8443\"\nhosts = \"a\"\n{HELLO}")
                .replace(":0\"", ":8443\""),
            "with TLS and without TLS",
        ),
        (format!("[[site]]\nlisten = \"https://127.0.0.1:443/\"\n{HELLO}"), "last slash"),
    ] {
        let file = support::write_configuration(&folder, &configuration);
        let mut command = std::process::Command::new(support::program());
        let output = command.arg("check").arg(file).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn clients_show_certificates_that_scripts_and_backends_are_told_of() {
    let folder = Folder::new();
    let (authority, clients) = (Authority::new("of servers"), Authority::new("of clients"));
    let alice = clients.issue(&["alice, of here"]);
    write_identity(&folder, "", &authority.issue(&["localhost", "open.example"]));
    folder.write("ca.pem", &clients.pem);
    folder.script(
        "show",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s|%s|%s|%s' \"$SSL_CLIENT_VERIFY\" \
         \"$SSL_CLIENT_S_DN\" \"$SSL_PROTOCOL\" \"$HTTP_X_SUBJECT\"\n",
    );
    let backend = support::echo::Echo::start();
    let routes = format!(
        "[[site.route]]\npath = \"/show\"\ncgi = {{ program = \"{{tmp}}/show\" }}\n\
         [[site.route]]\nproxy = \"{}\"\n",
        backend.url()
    );
    let asking = "client_ca = \"ca.pem\", client_subject_field = \"X-Subject\"";
    let site = |host: &str, more: &str| {
        format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\nhosts = \"{host}\"\ntls = {{ certificate = \
             \"cert.pem\", key = \"key.pem\"{more} }}\n{routes}"
        )
    };
    let sites = [
        site("localhost", &format!(", {asking}")),
        site("open.example", &format!(", client_auth = \"request\", {asking}")),
        site("none.example", ""),
    ];
    let forebay = serve(folder, &sites.concat());
    let connect = |name: &str, identity: Option<&Identity>| {
        let config = authority.client_of(identity, rustls::ALL_VERSIONS);
        let mut client = connect(forebay.address, name, config)?;
        client.try_send(format!("GET /show HTTP/1.1\r\nHost: {name}\r\nX-Subject: CN=bob\r\nX_Subject: CN=bob\r\n\r\n").as_bytes())?;
        client.try_reply().map(|reply| (client, String::from_utf8(reply.body).unwrap()))
    };
    let (mut client, told) = connect("localhost", Some(&alice)).unwrap();
    assert_eq!(told, "SUCCESS|CN=alice\\, of here|TLSv1.3|");
    client.send(
        "GET / HTTP/1.1\r\nHost: localhost\r\nx_subject: CN=bob\r\nX-SUBJECT: CN=bob\r\n\r\n",
    );
    let echoed = String::from_utf8(client.reply().body).unwrap().to_ascii_lowercase();
    assert!(echoed.contains("x-subject: cn=alice\\, of here"), "{echoed}");
    assert!(!echoed.contains("bob"), "{echoed}");
    // No certificate, or one of another authority.
    assert!(connect("localhost", None).is_err());
    assert!(connect("localhost", Some(&authority.issue(&["alice"]))).is_err());
    let (mut client, told) = connect("open.example", None).unwrap();
    assert_eq!(told, "NONE||TLSv1.3|");
    assert!(connect("open.example", Some(&authority.issue(&["alice"]))).is_err());
    // A connection without a certificate does not reach a site that requires one.
    assert_eq!(ask(&mut client, "localhost", "/show").0, 421);
    assert_eq!(ask(&mut client, "none.example", "/show").0, 200);
    forebay.stop();
}

#[test]
fn clients_without_tls_are_sent_to_https() {
    let folder = Folder::new();
    write_identity(&folder, "", &Authority::new("of the test").issue(&["localhost"]));
    let site = SITE
        .replace("\"https", "[\"127.0.0.1:0\", \"https")
        .replace(":0\"\n", ":0\"]\nredirect_to_https = true\n");
    let forebay = serve(folder, &format!("{site}{HELLO}"));
    let reply = forebay
        .ask("POST /a%20b?c=d HTTP/1.1\r\nHost: Example.org:80\r\nContent-Length: 2\r\n\r\nxy");
    assert_eq!(
        (reply.status, reply.header("Location")),
        (308, Some("https://Example.org:0/a%20b?c=d"))
    );
    forebay.stop();
}

#[test]
fn backends_are_spoken_to_by_tls_and_verified() {
    let folder = Folder::new();
    let (authority, clients) = (Authority::new("of servers"), Authority::new("of clients"));
    for (name, identity) in [
        ("", authority.issue(&["backend.example", "127.0.0.1"])),
        ("old-", authority.issue_expired(&["backend.example", "127.0.0.1"])),
        ("alice-", clients.issue(&["alice"])),
    ] {
        write_identity(&folder, name, &identity);
    }
    folder.write("ca.pem", &authority.pem);
    folder.write("other.pem", &Authority::new("another").pem);
    folder.write("clients.pem", &clients.pem);
    let big: Vec<u8> = (0..2 << 20).map(|at: u32| (at % 251) as u8).collect();
    folder.write("htdocs/big", &big);
    let copy = |name: &str| (name.to_owned(), std::fs::read(folder.path().join(name)).unwrap());
    let files = [
        "cert.pem",
        "key.pem",
        "old-cert.pem",
        "old-key.pem",
        "ca.pem",
        "other.pem",
        "clients.pem",
        "alice-cert.pem",
        "alice-key.pem",
    ]
    .map(copy);
    let behind = |site: &str| {
        let folder = Folder::new();
        for (name, bytes) in &files {
            folder.write(name, bytes);
        }
        folder.write("htdocs/big", &big);
        serve(folder, &format!("{site}[[site.route]]\nfiles = \"htdocs\"\n"))
    };
    let good = behind(SITE);
    let old = behind(&SITE.replace("\"cert", "\"old-cert").replace("\"key", "\"old-key"));
    let asking = behind(&SITE.replace(" }", ", client_ca = \"clients.pem\" }"));
    let mut routes = String::new();
    let alice = ", client_certificate = \"alice-cert.pem\", client_key = \"alice-key.pem\"";
    let cases = [
        (&good, "ca = \"ca.pem\"".to_owned(), ""),
        (&good, "ca = \"ca.pem\", server_name = \"backend.example\"".into(), ""),
        (&good, "ca = \"other.pem\", verify = false".into(), ""),
        (&old, "verify = false, ca = \"ca.pem\"".into(), ""),
        (&asking, format!("ca = \"ca.pem\"{alice}"), ""),
        (&good, "ca = \"other.pem\"".into(), "its issuer is not trusted here"),
        (&good, "ca = \"ca.pem\", server_name = \"no.example\"".into(), "it is for other names"),
        (&old, "ca = \"ca.pem\"".into(), "expired"),
        // The server's alert, or the end of the connection.
        (&asking, "ca = \"ca.pem\"".into(), "connection to"),
    ];
    for (at, (behind, tls, _)) in cases.iter().enumerate() {
        routes += &format!(
            "[[site.route]]\npath = \"/{at}/*\"\nproxy = {{ to = \"https://{}\", strip_prefix = \"/{at}\", tls = \
             {{ {tls} }} }}\n",
            behind.address
        );
    }
    let mut forebay = support::site(folder, &routes);
    let mut client = forebay.connect();
    for (at, (_, tls, error)) in cases.iter().enumerate() {
        // The second one over a kept connection.
        for _ in 0..2 {
            let reply = client.get(&format!("/{at}/big"));
            assert_eq!(reply.status, if error.is_empty() { 200 } else { 502 }, "{tls}");
            assert!(reply.status != 200 || reply.body == big, "{tls}");
        }
        forebay.wait_for_output(error);
    }
    assert!(forebay.output().contains("WARNING: the certificates of these servers are not"));
    forebay.stop();
}

/// Runs `forebay bench` with 40 requests over 4 connections. Returns its JSON.
fn bench(forebay: &Forebay, options: &[&str]) -> serde_json::Value {
    let url = format!("https://localhost:{}/", forebay.address.port());
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", &url, "-n", "40", "-c", "4", "-t", "2", "--json", "-"])
        .args(options)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bench_loads_http_1_and_2_over_tls() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    forebay.folder.write("ca.pem", &authority.pem);
    let ca = forebay.folder.path().join("ca.pem");
    let ca = ca.to_str().unwrap();
    let json = bench(&forebay, &["--ca", ca]);
    assert_eq!(
        (&json["requests"]["completed"], &json["handshakes"]["full"]),
        (&40.into(), &4.into())
    );
    let json = bench(&forebay, &["--ca", ca, "--http2", "--streams", "8"]);
    assert_eq!(json["protocol"], "h2");
    assert_eq!(
        (&json["requests"]["completed"], &json["handshakes"]["full"]),
        (&40.into(), &4.into())
    );
    for more in [&["--insecure"][..], &["--insecure", "--http2"]] {
        let json = bench(&forebay, &[more, &["--no-keepalive", "--tls-resume"]].concat());
        assert_eq!(json["handshakes"]["full"], 4, "{json}");
        assert_eq!(json["handshakes"]["resumed"], 36, "{json}");
        assert!(json["handshakes"]["time_us"]["p50"].is_number());
    }
}

#[test]
fn certificates_are_swapped_under_load_without_a_failure() {
    let (mut forebay, authority) = site(Folder::new(), HELLO);
    forebay.folder.write("ca.pem", &authority.pem);
    let ca = forebay.folder.path().join("ca.pem");
    let url = format!("https://localhost:{}/", forebay.address.port());
    let mut load = Command::new(env!("CARGO_BIN_EXE_forebay"));
    load.args(["bench", &url, "-n", "1500", "-c", "4", "-t", "1", "--no-keepalive", "--json", "-"]);
    load.arg("--ca").arg(ca).stdout(std::process::Stdio::piped());
    let load = load.stderr(std::process::Stdio::null()).spawn().unwrap();
    for _ in 0..5 {
        write_identity(&forebay.folder, "", &authority.issue(&["localhost"]));
        let count = |output: &str| output.matches("serving by the configuration").count();
        let before = count(&forebay.process.output());
        forebay.signal(Signal::HUP);
        let waited = forebay.process.wait_until("reloaded", |p| count(&p.output()) > before);
        waited.unwrap_or_else(|error| panic!("{error}"));
    }
    let output = load.wait_with_output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["requests"]["failed"], 0, "{json}");
    assert_eq!(
        (&json["requests"]["completed"], &json["handshakes"]["full"]),
        (&1500.into(), &1500.into())
    );
}

//! Identity of the client: fields of trusted proxies, PROXY headers of both versions in both
//! directions, and claims by others, which do not count.

use forebay_testkit::forwarded::{CASES, FORGED};

use crate::world::{Backend, World, in_memory};

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Returns a site with these keys that logs each client's address.
fn site(keys: &str) -> String {
    format!(
        "[log]\naccess = \"stdout\"\nformat = \"%h\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         {keys}\n{PROXIED}"
    )
}

/// Returns the logged address of the last answered request.
fn logged(world: &World) -> String {
    world.gateway.access_lines().pop().expect("it was answered").trim_end().to_owned()
}

/// Returns the logged clients of all cases, for requests from 127.0.0.1.
fn clients(keys: &str) -> Vec<String> {
    let mut clients = Vec::new();
    let configuration = site(keys).replace("proxy = \"http://10.0.0.1:3000\"", "respond = \"x\"");
    in_memory(&configuration, async |world| {
        for (fields, _) in CASES {
            let fields = fields.iter().map(|value| format!("X-Forwarded-For: {value}\r\n"));
            let fields: String = fields.collect();
            let mut client = world.client_from("127.0.0.1:4000");
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            assert_eq!(client.reply(GET).await.status(), 200, "{fields}");
            drop(client);
            tokio::task::yield_now().await;
            clients.push(logged(world));
        }
    });
    clients
}

#[test]
fn the_client_is_the_first_that_no_trusted_proxy_is() {
    let trusted = "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\", \"fd00::/8\"]";
    assert_eq!(clients(trusted), CASES.map(|(_, client)| client));
}

#[test]
fn nobody_is_believed_unless_the_site_says_so() {
    assert_eq!(clients(""), ["127.0.0.1"; CASES.len()]);
}

#[test]
fn a_trusted_proxy_is_believed_about_the_chain_and_the_scheme() {
    in_memory(&site("trusted_proxies = [\"192.0.2.0/24\", \"10.0.0.1\"]"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9, 10.0.0.1\r\n\
                       X-Forwarded-Proto: https\r\n\r\n";
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.values("x-forwarded-for"), ["9.9.9.9, 10.0.0.1, 192.0.2.7"]);
        assert_eq!(asked.values("x-forwarded-proto"), ["https"]);
    });
}

/// Returns the values of the `X-Forwarded-` fields that a backend receives for a request with these
/// fields, or the status of a refusal.
fn passed_on(keys: &str, fields: &str) -> Result<Vec<String>, u16> {
    let mut passed = Ok(Vec::new());
    in_memory(&site(keys), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
        passed = tokio::select! {
            (asked, _connection) = backend.answer(OK) => {
                let fields = asked.fields.into_iter();
                Ok(fields.filter(|(n, _)| n.contains("orwarded")).map(|(_, v)| v).collect())
            }
            reply = client.reply(GET) => Err(reply.status()),
        };
    });
    passed
}

const TRUSTING: &str = "trusted_proxies = \"192.0.2.0/24\"";
const FORWARDED: &str = "Forwarded: for=\"[2001:db8::1]:80\";proto=https\r\n";

fn sent(chain: &str, proto: &str) -> Result<Vec<String>, u16> {
    let port = if proto == "https" { "443" } else { "80" };
    Ok([format!("{chain}192.0.2.7"), proto.into(), "h".into(), port.into()].into())
}

#[test]
fn forwarded_of_a_stranger_is_dropped_and_of_a_trusted_proxy_passed_on() {
    assert_eq!(passed_on("", FORWARDED), sent("", "http"));
    assert_eq!(passed_on("", "Forwarded: =\r\n"), sent("", "http"));
    assert_eq!(passed_on(TRUSTING, FORWARDED), sent("2001:db8::1, ", "https"));
    assert_eq!(passed_on(TRUSTING, "Forwarded: for=_x\r\n"), sent("", "http"));
    assert_eq!(passed_on(TRUSTING, "Forwarded: =\r\n"), Err(400));
}

#[test]
fn only_the_fields_that_the_site_names_are_believed() {
    let both = format!("{FORWARDED}X-Forwarded-For: 203.0.113.1\r\nX-Forwarded-Host: evil\r\n");
    assert_eq!(passed_on(TRUSTING, &both), Err(400), "nothing says which is the proxy's");
    let by = |which: &str| format!("{TRUSTING}\nforwarded = \"{which}\"");
    assert_eq!(passed_on(&by("forwarded"), &both), sent("2001:db8::1, ", "https"));
    let alone = "X-Forwarded-For: 203.0.113.1\r\n";
    assert_eq!(passed_on(&by("forwarded"), alone), sent("", "http"));
    assert_eq!(passed_on(&by("x-forwarded"), FORWARDED), sent("", "http"));
    let both = format!("{FORWARDED}{alone}");
    assert_eq!(passed_on(&by("x-forwarded"), &both), sent("203.0.113.1, ", "http"));
}

#[test]
fn a_contradiction_is_refused_and_logged() {
    in_memory(&site(TRUSTING), async |world| {
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.1\r\n\
                       Forwarded: for=203.0.113.2\r\n\r\n";
        let reply = world.ask(request).await;
        assert_eq!((reply.status(), reply.field("connection")), (400, Some("close")));
        let errors = world.errors();
        let hint = "contradict each other; set the site's key `forwarded`";
        assert!(errors.iter().any(|error| error.contains(hint)), "{errors:?}");
    });
}

#[test]
fn forged_fields_reach_no_http_backend() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert!(!format!("{asked:?}").contains("6.6.6."), "{asked:?}");
        assert_eq!((asked.field("x-own"), asked.field("x_key")), (Some("fine"), None));
    });
}

#[test]
fn forged_fields_reach_no_application_of_another_protocol() {
    for protocol in ["scgi", "uwsgi"] {
        let route = format!("[[site.route]]\n{protocol} = {{ to = \"10.0.0.1:3000\" }}\n");
        in_memory(&route, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{FORGED}\r\n")).await;
            let connection = backend.accept().await;
            let mut asked = Vec::new();
            while !asked.windows(9).any(|part| part == b"HTTP_X_OW") {
                connection.link.read(&mut asked).await.unwrap();
            }
            let asked = String::from_utf8_lossy(&asked).into_owned();
            assert!(!asked.contains("6.6.6."), "{protocol}: {asked:?}");
        });
    }
}

#[test]
fn more_of_a_trusted_proxys_word_is_passed_on_but_not_by_joined_names() {
    in_memory(&site(TRUSTING), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 203.0.113.1\r\n\
                       X-Forwarded-Port: 8443\r\nX_Forwarded_Port: 1\r\n\r\n";
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.field("x-forwarded-port"), Some("8443"));
        assert_eq!(asked.field("x_forwarded_port"), None);
    });
}

fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, content].concat()
}

const V1: &[u8] = b"PROXY TCP4 203.0.113.7 198.51.100.9 1234 443\r\n";

/// Returns the client that the backend receives for a connection that begins with this header.
async fn named(world: &World, backend: &mut Backend, header: &[u8], seed: u64) -> String {
    let mut client = world.client();
    client.send_in_pieces([header, GET.as_bytes()].concat(), seed).await;
    let (asked, connection) = backend.answer(OK).await;
    assert_eq!(client.reply(GET).await.text(), "ok");
    drop(connection);
    asked.field("x-forwarded-for").unwrap().to_owned()
}

#[test]
fn a_proxy_header_names_the_client_whatever_its_pieces() {
    let v4 = [203, 0, 113, 7, 198, 51, 100, 9, 0x04, 0xd2, 0x01, 0xbb];
    in_memory(&site("proxy_protocol = true"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (header, client) in [
            (V1.to_vec(), "203.0.113.7"),
            (b"PROXY TCP6 2001:db8::7 ::1 1234 443\r\n".to_vec(), "2001:db8::7"),
            (v2(0x21, 0x11, &v4), "203.0.113.7"),
            (b"PROXY UNKNOWN\r\n".to_vec(), "192.0.2.7"),
            (v2(0x20, 0, &[]), "192.0.2.7"),
        ] {
            for seed in 0..10 {
                assert_eq!(named(world, &mut backend, &header, seed).await, client, "{seed}");
            }
        }
    });
}

#[test]
fn requests_that_follow_the_first_have_the_same_client() {
    in_memory(&site("proxy_protocol = true"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send([V1, GET.repeat(3).as_bytes()].concat()).await;
        let mut connection = backend.accept().await;
        for _ in 0..3 {
            let asked = connection.request().await;
            assert_eq!(asked.values("x-forwarded-for"), ["203.0.113.7"]);
            connection.send(OK).await;
            client.reply(GET).await;
        }
    });
}

#[test]
fn a_connection_without_a_good_proxy_header_is_closed() {
    in_memory(&site("proxy_protocol = true"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for bytes in [
            GET.as_bytes(),
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            b"PROXY nonsense\r\n",
            &v2(0x21, 0x11, &[0; 3]),
            b"\0\0\0\0",
        ] {
            let mut client = world.client();
            client.send(bytes).await;
            client.send(GET).await;
            assert!(client.is_closed().await, "{:?}", bytes.escape_ascii());
        }
        let errors = world.errors();
        let message = "192.0.2.7: the connection does not begin with a PROXY header";
        assert!(errors.iter().any(|error| error.contains(message)), "{errors:?}");
        assert!(!backend.has_visitor());
    });
}

#[test]
fn only_trusted_peers_may_send_a_proxy_header() {
    in_memory(&site("proxy_protocol = true\ntrusted_proxies = \"10.0.0.0/8\""), async |world| {
        let mut client = world.client();
        client.send([V1, GET.as_bytes()].concat()).await;
        assert!(client.is_closed().await);
    });
    let trusting = "proxy_protocol = true\ntrusted_proxies = [\"10.0.0.0/8\", \"192.0.2.7\"]";
    in_memory(&site(trusting), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        assert_eq!(named(world, &mut backend, V1, 1).await, "203.0.113.7");
        // The named client is not a trusted proxy, so its own field does not count.
        let request = GET.replace("Host", "X-Forwarded-For: 9.9.9.9\r\nHost");
        let mut client = world.client();
        client.send([V1, request.as_bytes()].concat()).await;
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.values("x-forwarded-for"), ["203.0.113.7"]);
    });
}

fn sending_proxy(version: &str, keys: &str) -> String {
    let proxy = format!("{{ to = \"http://10.0.0.1:3000\", send_proxy = \"{version}\" }}");
    site(keys).replace("\"http://10.0.0.1:3000\"", &proxy)
}

#[test]
fn each_connection_to_a_backend_begins_with_a_line_that_names_the_client() {
    in_memory(&sending_proxy("v1", ""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        for _ in 0..3 {
            client.send(GET).await;
            let mut connection = backend.accept().await;
            let line = connection.line().await.unwrap();
            assert_eq!(line, "PROXY TCP4 192.0.2.7 127.0.0.1 4000 80");
            assert_eq!(connection.request().await.start, "GET / HTTP/1.1");
            connection.send(OK).await;
            assert_eq!(client.reply(GET).await.text(), "ok");
            assert!(connection.is_closed().await, "a connection of its own for each request");
        }
    });
}

#[test]
fn version_2_of_a_proxy_header_names_the_client_too() {
    in_memory(&sending_proxy("v2", ""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let mut connection = backend.accept().await;
        let header = v2(0x21, 0x11, &[192, 0, 2, 7, 127, 0, 0, 1, 0x0f, 0xa0, 0, 80]);
        assert_eq!(connection.exactly(header.len()).await.unwrap(), header);
        assert_eq!(connection.request().await.start, "GET / HTTP/1.1");
    });
}

#[test]
fn the_client_in_a_proxy_header_is_who_a_trusted_proxy_says() {
    in_memory(&sending_proxy("v1", TRUSTING), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (client, line) in [
            ("203.0.113.7", "PROXY TCP4 203.0.113.7 127.0.0.1 0 80"),
            // Both addresses must be of one family.
            ("2001:db8::7", "PROXY TCP6 2001:db8::7 ::ffff:127.0.0.1 0 80"),
        ] {
            let mut asking = world.client();
            let request = GET.replace("Host", &format!("X-Forwarded-For: {client}\r\nHost"));
            asking.send(request).await;
            let mut connection = backend.accept().await;
            assert_eq!(connection.line().await.unwrap(), line);
        }
    });
}

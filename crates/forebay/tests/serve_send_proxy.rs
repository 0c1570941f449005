//! Backends that get the client's address in a PROXY header.

mod support;

use std::net::SocketAddr;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::nginx;
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{Record, ScriptStep, ScriptedBackend};
use support::{Forebay, site};

const REPLY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn front(url: &str, keys: &str, site_keys: &str) -> Forebay {
    let route = format!(
        "{site_keys}\n[[site.route]]\npath = \"/*\"\nproxy = {{ to = \"{url}\", {keys} }}\n"
    );
    site(Folder::new(), &route)
}

/// Sends this many requests on one client connection. Returns the first bytes of each backend
/// connection, and the addresses of the client connection. The backend would keep its connections.
fn begun(version: &str, count: usize, length: usize) -> (SocketAddr, SocketAddr, Vec<Record>) {
    let script = vec![
        ScriptStep::Read(length),
        ScriptStep::ReadHead,
        ScriptStep::send(REPLY),
        ScriptStep::ReadToEnd,
    ];
    let backend = ScriptedBackend::tcp(vec![script; count]);
    let url = format!("http://127.0.0.1:{}", backend.port());
    let forebay = front(&url, &format!("send_proxy = \"{version}\""), "");
    let mut client = forebay.connect();
    let own = client.local_addr();
    for _ in 0..count {
        assert_eq!(client.get("/x").text(), "ok");
    }
    let address = forebay.address;
    forebay.stop();
    (own, address, backend.finish())
}

#[test]
fn each_connection_begins_with_a_line_that_names_the_client() {
    let (own, server, records) = begun("v1", 2, 6);
    let line = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}", own.port(), server.port());
    for record in &records {
        let received = String::from_utf8_lossy(&record.received);
        assert!(received.starts_with(&format!("{line}\r\nGET /x HTTP/1.1\r\n")), "{received}");
    }
    assert_eq!(records.len(), 2, "a connection of its own for each request");
}

#[test]
fn nginx_reads_it() {
    let Some(nginx) = nginx(
        "server { listen 127.0.0.1:{port} proxy_protocol; location / {\n\
         return 200 \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port\"; } }",
    ) else {
        return;
    };
    for version in ["v1", "v2"] {
        let url = format!("http://127.0.0.1:{}", nginx.port());
        let forebay = front(&url, &format!("send_proxy = \"{version}\""), "");
        let mut client = forebay.connect();
        for _ in 0..3 {
            let expected =
                format!("127.0.0.1 {} {}", client.local_addr().port(), forebay.address.port());
            assert_eq!(client.get("/").text(), expected);
        }
        forebay.stop();
    }
}

#[test]
fn health_checks_speak_for_forebay_itself() {
    let folder = Folder::new();
    folder.script(
        "cgi/who",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'; echo $REMOTE_PORT\n",
    );
    let backend =
        site(folder, "proxy_protocol = true\n[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n");
    for version in ["v1", "v2"] {
        let url = format!("http://{}", backend.address);
        let keys = format!(
            "send_proxy = \"{version}\", health = {{ path = \"/missing\", interval = \"20ms\", falls = 1 }}"
        );
        let mut front = front(&url, &keys, "");
        // It got an answer. Without a header it would not.
        front.wait_for_output("is down: /missing answered 404");
        let mut client = front.connect();
        let port = client.local_addr().port().to_string();
        assert!(eventually(|| client.get("/who").text().trim() == port));
        front.stop();
    }
    backend.stop();
}

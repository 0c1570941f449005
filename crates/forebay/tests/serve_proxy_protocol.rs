//! `forebay serve` with proxies that send the client's address in a PROXY header.

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;

use forebay_testkit::folder::Folder;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, command};
use forebay_testkit::stream::{Address, TestStream};
use forebay_testkit::{DEADLINE, peer};
use support::{Forebay, serve};

const SCRIPT: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
                      echo \"$REMOTE_ADDR $REMOTE_PORT $SERVER_ADDR $SERVER_PORT\"\n";
const GET: &str = "GET /who.sh HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

fn site(keys: &str) -> Forebay {
    site_with("", keys)
}

fn site_with(server: &str, keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.script("cgi/who.sh", SCRIPT);
    let site = format!(
        "{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         proxy_protocol = true\n{keys}\n[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n"
    );
    serve(folder, &site)
}

/// Sends each piece in its own write. Returns all bytes of the answer.
fn exchange(address: SocketAddr, pieces: &[&[u8]]) -> String {
    let mut stream = TestStream::connect(&Address::Tcp(address), DEADLINE).unwrap();
    for piece in pieces {
        // The server may refuse at once and close before the client has sent everything.
        let _ = stream.write_all(piece);
    }
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}

fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, content].concat()
}

#[test]
fn the_header_names_client_and_server() {
    let forebay = site("");
    let v4 = [192, 0, 2, 7, 198, 51, 100, 9, 0x04, 0xd2, 0x01, 0xbb];
    for (header, expected) in [
        (b"PROXY TCP4 192.0.2.7 198.51.100.9 1234 443\r\n".to_vec(), "192.0.2.7 1234 198.51.100.9"),
        (b"PROXY TCP6 2001:db8::7 ::1 1234 443\r\n".to_vec(), "2001:db8::7 1234 ::1"),
        (v2(0x21, 0x11, &v4), "192.0.2.7 1234 198.51.100.9"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1 "),
        (v2(0x20, 0, &[]), "127.0.0.1 "),
    ] {
        let whole = [&header[..], GET.as_bytes()].concat();
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        for pieces in [vec![&whole[..]], vec![&header[..], GET.as_bytes()], bytes] {
            let reply = exchange(forebay.address, &pieces);
            assert!(reply.contains(expected), "{reply}");
        }
    }
    forebay.stop();
}

#[test]
fn only_trusted_peers_may_name_the_client() {
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.9 1234 443\r\n";
    let forebay = site("trusted_proxies = \"10.0.0.0/8\"");
    assert_eq!(exchange(forebay.address, &[header, GET.as_bytes()]), "");
    forebay.stop();
    let forebay = site("trusted_proxies = [\"10.0.0.0/8\", \"127.0.0.1\"]");
    assert!(exchange(forebay.address, &[header, GET.as_bytes()]).contains("192.0.2.7 1234"));
    // The client in the header is no trusted proxy, so its own fields about other clients do not
    // count.
    let forwarded = GET.replace("Host", "X-Forwarded-For: 203.0.113.1\r\nHost");
    assert!(exchange(forebay.address, &[header, forwarded.as_bytes()]).contains("192.0.2.7 1234"));
    forebay.stop();
}

#[test]
fn haproxy_names_its_clients() {
    if !peer::has(&["haproxy"]) {
        return;
    }
    let forebay = site("");
    for option in ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"]
    {
        let folder = Folder::new();
        let port = free_port();
        let file = folder.write(
            "haproxy.cfg",
            format!(
                "global\n  maxconn 100\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 20s\n  \
                 timeout server 20s\nfrontend f\n  bind 127.0.0.1:{port}\n  unique-id-format %pid\n  \
                 default_backend b\nbackend b\n  server s {} {option}\n",
                forebay.address
            ),
        );
        let mut run = command("haproxy");
        run.arg("-db").arg("-f").arg(file);
        let mut haproxy = Process::start(run);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        haproxy.wait_until_listening(address);
        let mut stream = TestStream::connect(&Address::Tcp(address), DEADLINE).unwrap();
        let TestStream::Tcp(tcp) = &stream else { unreachable!("it was asked for") };
        let own = tcp.local_addr().unwrap();
        stream.write_all(GET.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let expected = format!("127.0.0.1 {} 127.0.0.1 {port}", own.port());
        assert!(reply.contains(&expected), "{option}: {expected}: {reply}");
    }
    forebay.stop();
}

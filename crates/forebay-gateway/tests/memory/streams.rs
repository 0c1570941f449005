//! `[[stream]]`: TCP connections that are passed to backends.

use std::time::Duration;

use forebay_admin::BackendsOf;
use forebay_net::limit::Limit;
use tokio::time::timeout;

use crate::world::{Peer, in_memory};

const ECHO: &str = "[[stream]]\nlisten = \"127.0.0.1:5432\"\nto = \"10.0.0.1:5432\"\n";
const NAMED: &str = "[[stream]]\nlisten = \"127.0.0.1:443\"\nsni = \"db.example.org\"\nto = \
    \"10.0.0.1:1\"\n[[stream]]\nlisten = \"127.0.0.1:443\"\nsni = [\"*.example.org\", \
    \"mail.example.net\"]\nto = \"10.0.0.2:1\"\n";
const UNRECOGNIZED_NAME: &[u8] = &[0x15, 3, 3, 0, 2, 2, 112];
const DECODE_ERROR: &[u8] = &[0x15, 3, 3, 0, 2, 2, 50];

fn vector(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// Returns a ClientHello that names these servers, in records of at most `size` bytes.
fn hello(names: &[&str], size: usize) -> Vec<u8> {
    let name = |name: &&str| [&[0][..], &vector(name.as_bytes())].concat();
    let list: Vec<u8> = names.iter().flat_map(name).collect();
    let mut extensions = [&[0, 10][..], &vector(&[0, 2, 0, 29])].concat();
    if !names.is_empty() {
        extensions.extend([&[0, 0][..], &vector(&vector(&list))].concat());
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(vector(&[0x13, 0x01]));
    body.extend([1, 0]);
    body.extend(vector(&extensions));
    let message = [&[1], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
    let record = |piece: &[u8]| [&[22, 3, 1][..], &vector(piece)].concat();
    message.chunks(size).flat_map(record).collect()
}

async fn has_nothing(peer: &mut Peer) -> bool {
    timeout(Duration::from_secs(5), peer.more()).await.is_err()
}

#[test]
fn bytes_and_ends_pass_both_ways() {
    in_memory(&format!("[log]\naccess = \"stdout\"\n{ECHO}"), async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        let mut client = world.client();
        // The server may speak first, as in SMTP.
        let mut server = backend.accept().await;
        server.send("220 ready\r\n").await;
        assert_eq!(client.exactly(11).await.unwrap(), b"220 ready\r\n");
        client.send(&b"\x16\x03 no matter what\0"[..]).await;
        client.link.finish();
        let (rest, outcome) = server.rest().await;
        assert_eq!((&rest[..], outcome.is_ok()), (&b"\x16\x03 no matter what\0"[..], true));
        server.send("all of it").await;
        server.link.finish();
        let (rest, outcome) = client.rest().await;
        assert_eq!((&rest[..], outcome.is_ok()), (&b"all of it"[..], true));
        let mut client = world.client();
        let mut server = backend.accept().await;
        server.link.finish();
        assert!(client.is_closed().await);
        client.send("still heard").await;
        client.link.finish();
        assert_eq!(server.rest().await.0, b"still heard");
        settle().await;
        let lines = world.gateway.access_lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("192.0.2.7 - - ["), "{lines:?}");
        assert!(lines[0].contains("] \"TCP -\" closed 20 18 "), "{lines:?}");
        assert!(lines[0].ends_with(" \"10.0.0.1:5432\""), "{lines:?}");
        assert_eq!(world.gateway.connections(), 0);
    });
}

/// Lets the gateway finish what it does.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[test]
fn a_failure_of_one_side_resets_the_other() {
    in_memory(ECHO, async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        let mut client = world.client();
        let server = backend.accept().await;
        server.link.reset();
        assert!(client.rest().await.1.is_err());
        let client = world.client();
        let mut server = backend.accept().await;
        client.link.reset();
        assert!(server.rest().await.1.is_err());
    });
}

#[test]
fn a_slow_reader_stops_the_sender() {
    in_memory(ECHO, async |world| {
        const ALL: usize = 1 << 20;
        let mut backend = world.backend("10.0.0.1:5432");
        let mut client = world.client();
        client.link.limit_room(1000);
        let mut server = backend.accept().await;
        server.link.limit_room(1000);
        let (mut sent, piece) = (0, [b'x'; 1000]);
        while timeout(Duration::from_secs(5), server.send(piece)).await.is_ok() {
            sent += piece.len();
            assert!(sent < ALL, "the gateway keeps everything");
        }
        // The gateway holds one buffer of 16 KiB, and the links hold 64 KiB.
        assert!(sent < 100_000, "{sent}");
        let reading = async {
            while client.unread().len() < ALL {
                assert!(client.more().await.unwrap());
            }
        };
        let sending = async {
            for _ in 0..ALL / piece.len() + 2 {
                server.send(piece).await;
            }
        };
        tokio::join!(reading, sending);
    });
}

#[test]
fn the_server_name_selects_the_stream() {
    let default = "[[stream]]\nlisten = \"127.0.0.1:443\"\nto = \"10.0.0.3:1\"\n";
    in_memory(&format!("{NAMED}{default}"), async |world| {
        let addresses = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"];
        let mut backends = addresses.map(|address| world.backend(address));
        for (seed, size) in [(1, 1 << 14), (2, 1), (3, 50)] {
            for (names, chosen) in [
                (&["Db.Example.org"][..], 0),
                (&["www.example.org"], 1),
                (&["mail.example.net"], 1),
                (&["example.org"], 2),
                (&["192.0.2.1"], 2),
                (&[], 2),
            ] {
                let bytes = [&hello(names, size)[..], b"early data"].concat();
                let mut client = world.client();
                client.send_in_pieces(&bytes, seed).await;
                let mut server = backends[chosen].accept().await;
                assert_eq!(server.exactly(bytes.len()).await.unwrap(), bytes, "{names:?}");
                server.send("not read here").await;
                assert_eq!(client.exactly(13).await.unwrap(), b"not read here");
            }
        }
        assert!(!backends.iter_mut().any(|of| of.has_visitor()));
    });
}

#[test]
fn other_first_messages_reach_no_backend() {
    in_memory(NAMED, async |world| {
        let mut backends = [world.backend("10.0.0.1:1"), world.backend("10.0.0.2:1")];
        let whole = hello(&["db.example.org"], 1 << 14);
        let mut long = whole.clone();
        long[8] += 1;
        let padded = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0x50, 0]].concat();
        for (bytes, alert) in [
            (hello(&["example.com"], 1 << 14), UNRECOGNIZED_NAME),
            (hello(&[], 1 << 14), UNRECOGNIZED_NAME),
            (hello(&["db.example.org", "www.example.org"], 1 << 14), DECODE_ERROR),
            (hello(&["db.example.org."], 1 << 14), DECODE_ERROR),
            (hello(&["db.example.org\0"], 1 << 14), DECODE_ERROR),
            ([&long[..], &[0; 20]].concat(), DECODE_ERROR),
            ([&padded[..], &[0; 20_000]].concat(), DECODE_ERROR),
            (b"GET / HTTP/1.1\r\nHost: db.example.org\r\n\r\n".to_vec(), b""),
            (b"SSH-2.0-x\r\n".to_vec(), b""),
        ] {
            let mut client = world.client();
            client.send(&bytes[..bytes.len().min(16_000)]).await;
            client.send(&bytes[bytes.len().min(16_000)..]).await;
            let (reply, _) = client.rest().await;
            assert_eq!(reply, alert, "{:?}", String::from_utf8_lossy(&bytes[..20]));
        }
        // A first message that never ends reaches no backend, either.
        let mut client = world.client();
        client.send(&whole[..whole.len() - 1]).await;
        assert!(client.is_closed().await);
        let mut silent = world.client();
        assert!(silent.is_closed().await);
        assert_eq!(world.gateway.reached(Limit::Head), 2);
        assert!(!backends.iter_mut().any(|of| of.has_visitor()));
        settle().await;
        assert_eq!(world.gateway.connections(), 0);
    });
}

#[test]
fn a_proxy_header_names_the_client_and_is_sent_on() {
    let with = |version: &str| {
        format!(
            "{ECHO}proxy_protocol = true\ntrusted_proxies = \"192.0.2.0/24\"\n\
                 send_proxy = \"{version}\"\ndeny = \"198.51.100.66\"\n"
        )
    };
    let v1 = b"PROXY TCP4 198.51.100.7 203.0.113.5 4711 5432\r\n";
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x07\xcb\0\x71\x05\x12\x67\x15\x38";
    for (version, header) in [("v1", &v1[..]), ("v2", v2)] {
        in_memory(&with(version), async |world| {
            let mut backend = world.backend("10.0.0.1:5432");
            for incoming in [&v1[..], v2] {
                let mut client = world.client();
                client.send_in_pieces([incoming, b"hello"].concat(), 5).await;
                let mut server = backend.accept().await;
                let expected = [header, b"hello"].concat();
                assert_eq!(server.exactly(expected.len()).await.unwrap(), expected);
            }
            // The rules are about the client that the proxy names.
            let mut denied = world.client();
            denied.send("PROXY TCP4 198.51.100.66 203.0.113.5 4711 5432\r\n").await;
            assert!(denied.is_closed().await);
            let mut missing = world.client();
            missing.send("hello").await;
            assert!(missing.is_closed().await);
            let mut stranger = world.client_from("198.51.100.9:1");
            stranger.send(v1).await;
            assert!(stranger.is_closed().await);
            assert!(!backend.has_visitor());
        });
    }
}

#[test]
fn addresses_are_allowed_and_denied() {
    let rules = "allow = [\"192.0.2.0/24\"]\ndeny = [\"192.0.2.66\"]\n";
    in_memory(&format!("[log]\naccess = \"stdout\"\n{ECHO}{rules}"), async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        for address in ["192.0.2.66:1", "203.0.113.1:1", "[2001:db8::1]:1"] {
            assert!(world.client_from(address).is_closed().await, "{address}");
        }
        assert!(!backend.has_visitor());
        let _client = world.client_from("192.0.2.7:1");
        backend.accept().await;
        let lines = world.gateway.access_lines();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].contains("\"TCP -\" denied 0 0 ") && lines[0].ends_with(" \"-\""));
    });
}

#[test]
fn the_next_backend_is_used_if_one_is_dead() {
    let two = "[[stream]]\nlisten = \"127.0.0.1:5432\"\nto = [\"10.0.0.1:1\", \"10.0.0.2:1\"]\n\
               send_proxy = \"v1\"\nconnect_timeout = \"2s\"\n";
    in_memory(two, async |world| {
        // The first refuses connections.
        let mut second = world.backend("10.0.0.2:1");
        for _ in 0..4 {
            let mut client = world.client();
            client.send("whole").await;
            let mut server = second.accept().await;
            let line = server.line().await.unwrap();
            assert!(line.starts_with("PROXY TCP4 192.0.2.7 127.0.0.1 4000 80"), "{line}");
            assert_eq!(server.exactly(5).await.unwrap(), b"whole");
        }
        let rows = world.status().backends;
        assert!(matches!(rows[0].of, BackendsOf::Stream { stream: 1, line: 1 }), "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.is_up).collect::<Vec<_>>(), [false, true]);
        assert_eq!((rows[0].failures, rows[1].requests, rows[1].failures), (1, 4, 0));
        let errors = world.errors();
        assert!(errors[0].contains("10.0.0.1:1 is left out for 10s"), "{errors:?}");
        // If neither backend accepts, the client's connection is reset.
        world.fall_silent("10.0.0.1:1");
        world.fall_silent("10.0.0.2:1");
        assert!(world.client().rest().await.1.is_err());
        let errors = world.errors();
        let text = "cannot connect to 10.0.0.";
        assert!(errors.iter().any(|line| line.contains(text)), "{errors:?}");
    });
}

#[test]
fn backups_weights_and_hashes_are_those_of_groups() {
    let text = "[upstream.db]\nto = [{ url = \"10.0.0.1:1\" }, { url = \"10.0.0.2:1\", backup = \
                true }]\n[[stream]]\nlisten = \"127.0.0.1:1\"\nto = \"@db\"\n[[stream]]\nlisten = \
                \"127.0.0.1:2\"\nto = [\"10.0.0.3:1\", \"10.0.0.4:1\"]\nbalance = \"hash\"\n";
    in_memory(text, async |world| {
        let mut first = world.backend("10.0.0.1:1");
        let mut backup = world.backend("10.0.0.2:1");
        let mut hashed = [world.backend("10.0.0.3:1"), world.backend("10.0.0.4:1")];
        let mut kept = Vec::new();
        for _ in 0..3 {
            kept.push((world.client_at(0), first.accept().await));
        }
        assert!(!backup.has_visitor());
        let row = &world.status().backends[0];
        assert!(matches!(&row.of, BackendsOf::Upstream(name) if name == "db"), "{row:?}");
        assert_eq!((row.active, row.requests), (3, 3));
        kept.clear();
        settle().await;
        assert_eq!(world.status().backends[0].active, 0);
        let clients: Vec<_> = (0..6).map(|_| world.client_at(1)).collect();
        settle().await;
        let visitors: Vec<_> = hashed.iter_mut().map(|of| of.has_visitor()).collect();
        assert_eq!(
            visitors.iter().filter(|visited| **visited).count(),
            1,
            "one address, one server"
        );
        drop(clients);
    });
}

#[test]
fn an_idle_connection_ends() {
    in_memory(&format!("{ECHO}idle_timeout = \"30s\"\n"), async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        let mut client = world.client();
        let mut server = backend.accept().await;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(25)).await;
            server.send("x").await;
            client.exactly(1).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(35)).await;
        assert!(client.is_closed().await && server.is_closed().await);
        assert_eq!(world.gateway.reached(Limit::TunnelIdle), 1);
    });
}

#[test]
fn connections_keep_their_backend_when_the_configuration_changes() {
    in_memory(ECHO, async |world| {
        let mut old = world.backend("10.0.0.1:5432");
        let mut new = world.backend("10.0.0.9:5432");
        let mut client = world.client();
        let mut server = old.accept().await;
        world.reload_as(&ECHO.replace("10.0.0.1", "10.0.0.9"));
        client.send("to the old one").await;
        assert_eq!(server.exactly(14).await.unwrap(), b"to the old one");
        let _other = world.client();
        new.accept().await;
        assert!(!old.has_visitor());
        server.send("back").await;
        assert_eq!(client.exactly(4).await.unwrap(), b"back");
    });
}

#[test]
fn a_stopping_server_waits_for_silent_connections_until_the_grace_is_over() {
    in_memory(&format!("[log]\naccess = \"stdout\"\n{ECHO}"), async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        let mut client = world.client();
        let mut server = backend.accept().await;
        world.gateway.stop();
        assert!(has_nothing(&mut client).await, "a long query is silent");
        server.send("a row").await;
        assert_eq!(client.exactly(5).await.unwrap(), b"a row");
        world.gateway.end();
        assert!(client.rest().await.1.is_err(), "not a regular end");
        assert!(server.rest().await.1.is_err());
        settle().await;
        let lines = world.gateway.access_lines();
        assert!(lines[0].contains(" stopped 5 0 "), "{lines:?}");
    });
}

#[test]
fn connections_of_streams_count_against_the_limits() {
    let limits = "[server.limits]\nconnections = 2\nconnections_per_address = 1\n";
    in_memory(&format!("{limits}{ECHO}"), async |world| {
        let mut backend = world.backend("10.0.0.1:5432");
        let first = world.client();
        let _server = backend.accept().await;
        assert!(world.client().rest().await.1.is_err(), "the address has its connection");
        assert_eq!(world.gateway.reached(Limit::ConnectionsPerAddress), 1);
        let _second = world.client_from("192.0.2.8:1");
        let _other = backend.accept().await;
        let _third = world.client_from("192.0.2.9:1");
        settle().await;
        assert!(!backend.has_visitor(), "a busy connection is not closed for another");
        drop(first);
        backend.accept().await;
    });
}

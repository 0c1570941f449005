//! gRPC calls: gateway errors become a gRPC status, and cancelling a stream on one side cancels it
//! on the other.

use forebay_wire::http2::{Cause, ErrorCode};
use tokio::task::spawn_local;

use crate::http2_backend::{ADDRESS, Http2Backend, Served, proxied};
use crate::http2_client::{Http2Client, Reply};
use crate::world::{World, in_memory};

const CALL: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

/// Sends a call with its message.
fn call(client: &mut Http2Client, path: &str) -> u32 {
    let stream = client.ask("POST", path, CALL, false);
    client.send_data(stream, b"\0\0\0\0\x01a", true);
    stream
}

async fn reply_to_call(world: &World, path: &str) -> Reply {
    let mut client = Http2Client::connect(world).await;
    let stream = call(&mut client, path);
    client.reply(stream).await
}

fn site() -> String {
    let log =
        "[log]\naccess = \"stdout\"\nformat = \"%>s %U\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
    let gone = "[[site.route]]\npath = \"/gone\"\nproxy = \"h2c://10.0.0.9:3000\"\n";
    let denied =
        "[[site.route]]\npath = \"/denied\"\nallow = [\"198.51.100.1\"]\nrespond = \"in\"\n";
    let small =
        format!("[[site.route]]\npath = \"/small\"\nmax_body = 2\nproxy = \"h2c://{ADDRESS}\"\n");
    let closed =
        "[[site.route]]\npath = \"/closed\"\nrespond = { status = 503, body = \"closed\" }\n";
    let silent = format!(
        "[[site.route]]\npath = \"/silent\"\n[site.route.proxy]\nto = \"h2c://{ADDRESS}\"\n\
         reply_timeout = \"3s\"\n"
    );
    format!("{log}{gone}{denied}{small}{closed}{silent}")
}

#[test]
fn errors_of_the_gateway_are_a_status_of_grpc() {
    in_memory(&site(), async |world| {
        let mut backend = Http2Backend::new(world);
        spawn_local(async move {
            let mut served = backend.accept().await;
            while served.turn().await {}
        });
        for (path, code, message) in [
            ("/none", "12", "404 Not Found"),
            ("/gone", "14", "502 Bad Gateway"),
            ("/denied", "7", "403 Forbidden"),
            ("/small", "8", "413 Content Too Large"),
            ("/closed", "14", "503 Service Unavailable"),
            ("/silent", "4", "504 Gateway Timeout"),
        ] {
            let reply = reply_to_call(world, path).await;
            assert_eq!((reply.status, reply.is_whole, reply.text()), (200, true, ""), "{path}");
            assert_eq!(reply.field("content-type"), Some("application/grpc"), "{path}");
            assert_eq!(reply.field("grpc-status"), Some(code), "{path}");
            assert_eq!(reply.field("grpc-message"), Some(message), "{path}");
            assert_eq!(reply.field("content-length"), None, "{path}");
            let lines = world.gateway.access_lines();
            assert_eq!(lines.last().unwrap().trim_end(), format!("200 {path}"));
        }
    });
}

#[test]
fn calls_whose_head_is_refused_get_a_status_of_grpc() {
    in_memory(&site(), async |world| {
        let long = "/".repeat(9_000);
        let many: Vec<_> = (0..200).map(|n| (format!("x-{n}"), "a")).collect();
        let mut fields = CALL.to_vec();
        fields.extend(many.iter().map(|(name, value)| (&name[..], *value)));
        for (path, fields, message) in
            [(&long[..], CALL, "414 "), ("/", &fields, "431 Request Header Fields Too Large")]
        {
            let mut client = Http2Client::connect(world).await;
            let stream = client.ask("POST", path, fields, true);
            let reply = client.reply(stream).await;
            assert_eq!((reply.status, reply.field("grpc-status")), (200, Some("2")));
            assert!(reply.field("grpc-message").unwrap().starts_with(message), "{reply:?}");
            // The next request on this exchange does not count as a call.
            let stream = client.get(&long);
            let reply = client.reply(stream).await;
            assert_eq!((reply.status, reply.field("grpc-status")), (414, None));
        }
    });
}

#[test]
fn other_clients_get_errors_as_pages() {
    in_memory(&site(), async |world| {
        for content_type in ["text/plain", "application/grpc-web+proto"] {
            let mut client = Http2Client::connect(world).await;
            let fields = [("content-type", content_type)];
            let stream = client.ask("POST", "/none", &fields, true);
            let reply = client.reply(stream).await;
            assert_eq!((reply.status, reply.field("grpc-status")), (404, None));
            assert!(reply.text().starts_with("<!DOCTYPE html>"));
        }
        let request = "POST /gone HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\
                       Content-Length: 0\r\n\r\n";
        let reply = world.ask(request).await;
        assert_eq!((reply.status(), reply.field("grpc-status")), (502, None));
    });
}

/// Returns a call that the backend has received, with its streams on both sides.
async fn taken(world: &World, backend: &mut Http2Backend) -> (Http2Client, u32, Served, u32) {
    let mut client = Http2Client::connect(world).await;
    let stream = call(&mut client, "/");
    client.flush();
    let mut served = client.during(backend.accept()).await;
    let (id, _) = client.during(served.request()).await;
    (client, stream, served, id)
}

#[test]
fn a_backend_that_cancels_a_call_has_it_cancelled_for_the_client() {
    let log = "[log]\naccess = \"stdout\"\nformat = \"%>s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
    in_memory(&format!("{log}{}", proxied("max_fails = 1")), async |world| {
        let mut backend = Http2Backend::new(world);
        for (messages, logged) in [(0, "502"), (1, "200")] {
            let (mut client, stream, mut served, id) = taken(world, &mut backend).await;
            if messages > 0 {
                served.head(id, 200, &[("content-type", "application/grpc")], false);
                served.data(id, b"\0\0\0\0\x01b", false);
                served.flush();
                client.until(|client| client.so_far(stream).body.len() == 6).await;
            }
            served.reset(id, ErrorCode::CANCEL);
            served.flush();
            let reply = client.reply(stream).await;
            assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::CANCEL)), "{messages}");
            let lines = world.gateway.access_lines();
            assert_eq!(lines.last().unwrap().trim_end(), logged);
        }
        let errors = world.errors();
        assert!(!errors.iter().any(|line| line.contains("left out")), "{errors:#?}");
    });
}

#[test]
fn a_client_that_cancels_a_call_has_it_cancelled_for_the_backend() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let (mut client, stream, mut served, id) = taken(world, &mut backend).await;
        served.head(id, 200, &[("content-type", "application/grpc")], false);
        served.data(id, b"\0\0\0\0\x01b", false);
        served.flush();
        client.until(|client| client.so_far(stream).body.len() == 6).await;
        client.codec.reset(stream, ErrorCode::CANCEL, tokio::time::Instant::now().into_std());
        client.flush();
        served.until(|served| served.asked.get(&id).is_some_and(|asked| asked.reset)).await;
    });
}

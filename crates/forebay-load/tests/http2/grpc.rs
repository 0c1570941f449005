//! Calls of gRPC: on grpc-go, and on servers that violate the rules.

use forebay_load::{GrpcStatus, Outcome, Spec, Url};
use forebay_testkit::peer;

use crate::frames::{FrameServer, frame, says};
use crate::support::{load, spec};

fn calls(outcome: &Outcome, name: &str) -> u64 {
    let status = GrpcStatus::named(name).unwrap();
    outcome.requests.grpc.as_ref().unwrap().status.get(&status).copied().unwrap_or(0)
}

#[test]
fn grpc_go_answers_every_kind_of_call() {
    let Some(server) = peer::routeguide() else { return };
    // A rectangle from (0, 0) to (1, 2) has six points. Fields with the value 0 are left out.
    let rectangle = [0x0a, 0, 0x12, 4, 0x08, 1, 0x10, 2];
    // A negative latitude takes ten bytes.
    let south = [8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for (method, message, messages, status, received) in [
        ("GetFeature", &b"\x08\x0a\x10\x14"[..], 1, "OK", 1),
        ("GetFeature", &south, 1, "NOT_FOUND", 0),
        ("ListFeatures", &rectangle, 1, "OK", 6),
        ("RecordRoute", b"\x08\x0a", 500, "OK", 1),
        ("RouteChat", b"", 30, "OK", 30),
        ("NoMethod", b"", 1, "UNIMPLEMENTED", 0),
    ] {
        let url = format!("grpc://127.0.0.1:{}/routeguide.RouteGuide/{method}", server.port());
        let load_spec = Spec {
            method: "POST".to_owned(),
            body: message.to_vec(),
            messages,
            connections: 2,
            streams: 4,
            ..spec(Url::parse(&url).unwrap(), 40)
        };
        let outcome = load(&load_spec).unwrap();
        assert_eq!(calls(&outcome, status), 40, "{method}: {:?}", outcome.first_failure);
        let counts = outcome.requests.grpc.as_ref().unwrap();
        assert_eq!(counts.messages, 40 * received, "{method}");
        let failed = if status == "OK" { 0 } else { 40 };
        assert_eq!(outcome.requests.failures.check, failed, "{method}");
        if failed > 0 {
            assert!(outcome.first_failure.as_ref().unwrap().contains(status));
        }
        let json = outcome.to_json();
        assert_eq!(Outcome::from_json(&json).unwrap().requests, outcome.requests);
        assert_eq!(json["requests"]["grpc"]["status"][status], 40);
    }
}

/// Returns a field of an HPACK block: a literal without indexing, with a new name.
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

#[test]
fn replies_without_a_valid_status_fail() {
    let server = FrameServer::start(b"", |place| {
        let id = place.stream;
        let kind = [vec![0x88], field("content-type", "application/grpc")].concat();
        let ok = field("grpc-status", "0");
        let head = frame(1, 4, id, &kind);
        let message = b"\0\0\0\0\x02hi";
        says(match place.request {
            // Trailers, and a reply of trailers alone.
            0 => [head, frame(0, 0, id, message), frame(1, 5, id, &ok)].concat(),
            1 => frame(1, 5, id, &[kind, field("grpc-status", "8")].concat()),
            // No trailers, a status in the head with messages, a cut message, an HTTP error.
            2 => [head, frame(0, 1, id, message)].concat(),
            3 => [frame(1, 4, id, &[kind, ok].concat()), frame(0, 1, id, message)].concat(),
            4 => [head, frame(0, 0, id, &message[..6]), frame(1, 5, id, &ok)].concat(),
            _ => frame(1, 5, id, &[0x8d]),
        })
    });
    let url = Url::parse(&server.url().as_str().replace("h2c:", "grpc:")).unwrap();
    let url = url.with_target("/a.B/C").unwrap();
    let load_spec = Spec { connections: 1, method: "POST".to_owned(), ..spec(url.clone(), 6) };
    let outcome = load(&load_spec).unwrap();
    assert_eq!(calls(&outcome, "OK"), 1);
    assert_eq!(calls(&outcome, "RESOURCE_EXHAUSTED"), 1);
    let failures = &outcome.requests.failures;
    assert_eq!((outcome.requests.completed, failures.check, failures.protocol), (1, 1, 4));
    for wrong in [
        Spec { method: "PUT".to_owned(), ..load_spec.clone() },
        Spec { messages: usize::MAX, ..load_spec.clone() },
        Spec { url: url.with_target("/a").unwrap(), ..load_spec.clone() },
        Spec { url: server.url(), messages: 2, ..load_spec },
    ] {
        assert!(load(&wrong).is_err());
    }
}

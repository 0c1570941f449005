//! Traces: the fields that backends get, and the spans that a collector gets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread;

use forebay_net::trace::ExportResult;
use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::tls::{Authority, Identity};
use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

use crate::application::{Application, reply};
use crate::world::{World, in_memory};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn configuration(port: u16, keys: &str) -> String {
    format!(
        "[log]\naccess = \"stdout\"\nformat = \"json\"\n\
         [traces]\nto = \"http://127.0.0.1:{port}\"\nservice = \"shop\"\n{keys}\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = \"192.0.2.7\"\n\
         [[site.route]]\npath = \"/scgi\"\nscgi = {{ to = \"10.0.0.2:1\" }}\n\
         [[site.route]]\npath = \"/uwsgi\"\nuwsgi = {{ to = \"10.0.0.2:2\" }}\n\
         [[site.route]]\npath = \"/fastcgi\"\nfastcgi = {{ to = \"10.0.0.2:3\", mount = \"\" }}\n\
         [[site.route]]\npath = \"/ajp\"\najp = \"10.0.0.2:4\"\n\
         [[site.route]]\nname = \"all\"\nproxy = \"http://10.0.0.1:3000\"\n"
    )
}

/// Takes one export. Returns the collector's request line and the document.
fn export(listener: &TcpListener) -> (String, Value) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let (mut request, mut piece) = (Vec::new(), [0; 65536]);
    loop {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "the request is cut off");
        request.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.split_once("Content-Length: ").unwrap().1.split('\r').next().unwrap();
        if body.len() >= length.parse().unwrap() {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            let document = serde_json::from_str(body).expect("the document is JSON in UTF-8");
            return (head.lines().next().unwrap().to_owned(), document);
        }
    }
}

#[test]
fn a_collector_gets_traces_over_tls_with_its_fields_if_it_proves_its_name() {
    let folder = Folder::new();
    let authority = Authority::new("of the collector");
    folder.write("ca.pem", &authority.pem);
    let exported_to = |identity: &Identity, server_name: &str| {
        let (listener, port) = listener();
        let config = identity.server();
        let collector = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let session = ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = StreamOwned::new(session, stream);
            let (mut request, mut piece) = (Vec::new(), [0; 65536]);
            while !request.ends_with(b"]}") {
                match stream.read(&mut piece) {
                    Ok(length @ 1..) => request.extend_from_slice(&piece[..length]),
                    _ => return String::new(),
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap();
            String::from_utf8(request).unwrap()
        });
        let keys = format!(
            "headers = {{ Authorization = \"Bearer of traces\" }}\n\
             tls = {{ ca = \"{}\", server_name = \"{server_name}\" }}",
            folder.path().join("ca.pem").display()
        );
        let configuration =
            configuration(port, &keys).replace("http://127.0.0.1", "https://127.0.0.1");
        in_memory(&configuration, async |world| {
            let _application = Application::start(world, |_, _| reply("", "x"));
            assert_eq!(world.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.status(), 200);
        });
        collector.join().unwrap()
    };
    let identity = authority.issue(&["collector.example"]);
    let request = exported_to(&identity, "collector.example");
    assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nAuthorization: Bearer of traces\r\n"), "{request}");
    assert_eq!(exported_to(&identity, "other.example"), "", "the names differ");
    let stranger = Authority::new("unknown").issue(&["collector.example"]);
    assert_eq!(exported_to(&stranger, "collector.example"), "", "nobody vouches for it");
}

fn spans(document: &Value) -> &Vec<Value> {
    document["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap()
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key)?;
    let value = &found["value"];
    value.get("stringValue").or_else(|| value.get("intValue"))
}

/// Sends a request with these fields from the trusted proxy, or from another client. Returns the
/// fields of the trace that the backend gets.
async fn passed(
    world: &World,
    application: &Application,
    is_trusted: bool,
    fields: &str,
) -> (Option<String>, Option<String>) {
    let address = if is_trusted { "192.0.2.7:4000" } else { "198.51.100.9:4000" };
    let mut client = world.client_from(address);
    let request = format!("GET /a?b=1 HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n");
    client.send(&request).await;
    assert_eq!(client.reply(&request).await.status(), 200);
    let asked = application.seen.borrow_mut().pop().unwrap();
    assert!(asked.values("traceparent").len() <= 1 && asked.values("tracestate").len() <= 1);
    let field = |name| asked.field(name).map(str::to_owned);
    (field("traceparent"), field("tracestate"))
}

#[test]
fn a_request_of_a_trusted_proxy_continues_its_trace() {
    let (listener, port) = listener();
    let mut span_id = String::new();
    in_memory(&configuration(port, ""), async |world| {
        let application = Application::start(world, |_, _| reply("", "x"));
        let fields = format!("traceparent: {PARENT}\r\nTraceState: a=1\r\ntracestate: b=2\r\n");
        let (parent, state) = passed(world, &application, true, &fields).await;
        let parent = parent.unwrap();
        assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-01"), "{parent}");
        assert_ne!(parent, PARENT);
        assert_eq!(state.as_deref(), Some("a=1,b=2"));
        parent[36..52].clone_into(&mut span_id);
        let line = world.gateway.access_lines().pop().unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["trace_id"], &line["span_id"]), (&TRACE.into(), &(*span_id).into()));
        assert!(line["upstream_us"].is_u64(), "{line}");
    });
    let (start, document) = export(&listener);
    assert_eq!(start, "POST /v1/traces HTTP/1.1");
    let resource = &document["resourceSpans"][0]["resource"];
    assert_eq!(attribute(resource, "service.name"), Some(&"shop".into()));
    let (server, steps) = spans(&document).split_first().unwrap();
    assert_eq!((&server["name"], &server["kind"]), (&"GET all".into(), &2.into()));
    assert_eq!((&server["traceId"], &server["spanId"]), (&TRACE.into(), &span_id.into()));
    assert_eq!(server["parentSpanId"], "00f067aa0ba902b7");
    for (key, value) in [
        ("http.request.method", "GET"),
        ("url.path", "/a"),
        ("server.address", "shop.example"),
        ("client.address", "192.0.2.7"),
        ("http.route", "all"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(attribute(server, key), Some(&value.into()), "{key}");
    }
    // Queries may have secrets.
    assert_eq!(attribute(server, "url.query"), None);
    assert!(!document.to_string().contains("b=1"), "{document}");
    let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names.first(), Some(&"head"));
    for name in ["route", "connect", "origin", "reply"] {
        let step = steps.iter().find(|step| step["name"] == name).expect(name);
        assert_eq!(step["parentSpanId"], server["spanId"]);
        let time = |key: &str| step[key].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    }
    let connect = steps.iter().find(|step| step["name"] == "connect").unwrap();
    assert_eq!(attribute(connect, "forebay.upstream"), Some(&"10.0.0.1:3000".into()));
}

#[test]
fn other_traces_are_not_accepted() {
    let (_listener, port) = listener();
    in_memory(&configuration(port, ""), async |world| {
        let application = Application::start(world, |_, _| reply("", "x"));
        let unsampled = PARENT.replace("-01", "-00");
        let fields = format!("traceparent: {unsampled}\r\ntracestate: a=1\r\n");
        let (parent, state) = passed(world, &application, true, &fields).await;
        assert_eq!((parent, state), (Some(unsampled), Some("a=1".to_owned())));
        for (is_trusted, fields) in [
            (false, format!("traceparent: {PARENT}\r\n")),
            (true, format!("traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n")),
            (true, format!("traceparent: {}\r\n", PARENT.to_uppercase())),
            (true, format!("traceparent: {PARENT}x\r\n")),
            (true, format!("traceparent: {PARENT}, {PARENT}\r\n")),
            (true, "traceparent: \r\n".to_owned()),
            (true, "x: y\r\n".to_owned()),
            (false, format!("Connection: traceparent\r\nTRACEPARENT: {PARENT}\r\n")),
        ] {
            let fields = format!("{fields}tracestate: evil=1\r\n");
            let (parent, state) = passed(world, &application, is_trusted, &fields).await;
            let parent = parent.expect("a new trace");
            assert!(parent.len() == 55 && parent.ends_with("-01"), "{parent}");
            assert!(!parent.contains(TRACE), "{fields}");
            assert_eq!(state, None, "{fields}");
        }
        // An invalid `tracestate` is dropped, and the trace continues.
        let fields = format!("traceparent: {PARENT}\r\ntracestate: A=1\r\n");
        let (parent, state) = passed(world, &application, true, &fields).await;
        assert!(parent.unwrap().contains(TRACE) && state.is_none());
    });
}

#[test]
fn requests_that_are_not_sampled_have_no_trace() {
    let (_listener, port) = listener();
    in_memory(&configuration(port, "sample = 0\naccept = \"none\""), async |world| {
        let application = Application::start(world, |_, _| reply("", "x"));
        let fields = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
        for (is_trusted, fields) in [(true, &*fields), (false, &*fields), (true, "")] {
            assert_eq!(passed(world, &application, is_trusted, fields).await, (None, None));
        }
        let line = world.gateway.access_lines().pop().unwrap();
        assert!(!line.contains("trace_id"), "{line}");
    });
}

#[test]
fn each_kind_of_backend_gets_the_trace() {
    let (_listener, port) = listener();
    in_memory(&configuration(port, ""), async |world| {
        for (number, path) in [(1, "/scgi"), (2, "/uwsgi"), (3, "/fastcgi"), (4, "/ajp")] {
            let mut backend = world.backend(&format!("10.0.0.2:{number}"));
            let mut client = world.client();
            let fields = format!("traceparent: {PARENT}\r\n");
            client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await;
            let mut connection = backend.accept().await;
            let has_trace = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
                text.contains("traceparent") && text.contains(&format!("00-{TRACE}-"))
            };
            while !has_trace(connection.unread()) {
                assert!(connection.more().await.unwrap(), "{path} gets no trace");
            }
        }
    });
}

#[test]
fn hostile_bytes_stay_within_their_attribute() {
    let (listener, port) = listener();
    in_memory(&configuration(port, "query = true"), async |world| {
        let _application = Application::start(world, |_, _| "HTTP/1.1 500 E\r\n\r\n".to_owned());
        let mut client = world.client();
        let rest = b" HTTP/1.1\r\nHost: h\r\nUser-Agent: \"}]\xff\t\\\r\n\r\n";
        client.send([b"GET /%00\"}]?\\", &b"q".repeat(5000)[..], rest].concat()).await;
        client.reply("GET").await;
    });
    let (_, document) = export(&listener);
    let server = &spans(&document)[0];
    let agent = attribute(server, "user_agent.original").unwrap();
    assert_eq!(agent, "\"}]\u{fffd}\t\\");
    // The queue for a slow collector must not take much memory.
    let query = attribute(server, "url.query").unwrap().as_str().unwrap();
    assert!(query.starts_with("\\qq") && query.len() == 2048, "{}", query.len());
}

#[test]
fn a_collector_that_hangs_delays_no_request() {
    let (_listener, port) = listener();
    let before = ExportResult::Dropped.requests();
    in_memory(&configuration(port, ""), async |world| {
        let _application = Application::start(world, |_, _| reply("", "x"));
        let mut client = world.client();
        for _ in 0..4000 {
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.reply("GET").await.status(), 200);
            world.gateway.access_lines();
        }
    });
    // At most 2048 requests wait in the queue, and two batches of 512 in the thread.
    assert!(ExportResult::Dropped.requests() - before >= 900);
}

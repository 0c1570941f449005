//! `[metrics]`: the metrics that an OpenTelemetry collector gets.

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::Address;
use rustix::process::Signal;
use serde_json::Value;
use support::{Forebay, serve};

/// A collector. It answers the n-th export with the n-th of these replies, and then with 200.
fn collector(replies: &'static [&'static str]) -> (u16, Receiver<(String, Value)>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, received) = channel();
    thread::spawn(move || {
        let mut replies = replies.iter().copied();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 65536]);
            loop {
                let length = stream.read(&mut piece).unwrap();
                assert!(length > 0, "the request is cut off");
                request.extend_from_slice(&piece[..length]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.split_once("Content-Length: ").unwrap().1.split('\r').next();
                if body.len() >= length.unwrap().parse().unwrap() {
                    let document = serde_json::from_str(body).expect("JSON");
                    let reply = replies.next().unwrap_or("HTTP/1.1 200 OK\r\n\r\n{}");
                    let _ = stream.write_all(reply.as_bytes());
                    if sender.send((head.to_owned(), document)).is_err() {
                        return;
                    }
                    break;
                }
            }
        }
    });
    (port, received)
}

fn shop(port: u16, keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("files/a.txt", "a");
    let site = "[server]\nadmin = \"unix:admin.sock\"\nroute_metrics = true\n";
    serve(
        folder,
        &format!(
            "{site}[metrics]\nto = \"http://127.0.0.1:{port}\"\nservice = \"shop\"\n\
             interval = \"1s\"\n{keys}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\nhosts = [\"a.example\", \"b\"]\n[[site.route]]\n\
             name = \"of-files\"\nfiles = \"files\"\n"
        ),
    )
}

fn metrics(document: &Value) -> &Vec<Value> {
    document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap()
}

fn metric<'d>(document: &'d Value, name: &str) -> &'d Value {
    metrics(document).iter().find(|metric| metric["name"] == name).unwrap()
}

/// The value of an attribute.
fn attribute<'p>(point: &'p Value, key: &str) -> Option<&'p str> {
    let all = point["attributes"].as_array().unwrap();
    all.iter().find(|one| one["key"] == key)?["value"]["stringValue"].as_str()
}

fn points(metric: &Value) -> &Vec<Value> {
    let kind = ["sum", "gauge", "histogram"].into_iter().find(|kind| metric.get(*kind).is_some());
    metric[kind.unwrap()]["dataPoints"].as_array().unwrap()
}

#[test]
fn a_collector_gets_the_metrics_of_the_table() {
    let (port, exports) = collector(&[]);
    let forebay = shop(port, "headers = { Authorization = \"Bearer x\" }");
    for path in ["/a.txt", "/a.txt", "/none"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n");
        assert!([200, 404].contains(&forebay.ask(request).status));
    }
    let is_complete = |document: &Value| {
        let all = points(metric(document, "forebay_requests_total"));
        let found = all.iter().find(|point| attribute(point, "class") == Some("2xx")).unwrap();
        found["asDouble"] == 2.0
    };
    let (head, document) = exports.iter().find(|(_, document)| is_complete(document)).unwrap();
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nAuthorization: Bearer x"), "{head}");
    let resource = &document["resourceMetrics"][0]["resource"];
    assert_eq!(attribute(resource, "service.name"), Some("shop"));

    // The names are those of /metrics, and each has one kind.
    let socket = Address::Unix(forebay.folder.path().join("admin.sock"));
    let shown = Client::connect(socket).get("/metrics").text().to_owned();
    let families = |text: &str| -> BTreeSet<String> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let with_values: BTreeSet<String> = families(&shown)
        .into_iter()
        .filter(|name| shown.lines().any(|line| line.starts_with(&**name)))
        .collect();
    let exported: BTreeSet<String> = metrics(&document)
        .iter()
        .map(|metric| metric["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(exported, with_values);
    for one in metrics(&document) {
        for point in points(one) {
            assert!(point["timeUnixNano"].as_str().unwrap().parse::<u64>().unwrap() > 1 << 60);
        }
    }
    let sum = &metric(&document, "forebay_connections_accepted_total")["sum"];
    assert_eq!((&sum["aggregationTemporality"], &sum["isMonotonic"]), (&2.into(), &true.into()));
    assert_eq!(metric(&document, "forebay_connections")["gauge"]["dataPoints"][0]["asDouble"], 0.0);
    let durations = &points(metric(&document, "forebay_request_duration_seconds"))[0];
    assert_eq!(durations["count"], "3");
    let counts = durations["bucketCounts"].as_array().unwrap();
    let total: u64 = counts.iter().map(|n| n.as_str().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(
        (total, counts.len()),
        (3, durations["explicitBounds"].as_array().unwrap().len() + 1)
    );
    let routes = points(metric(&document, "forebay_route_requests_total"));
    assert!(routes.iter().any(|point| attribute(point, "code") == Some("404")), "{routes:?}");

    // The last export has what came after the one before.
    assert_eq!(
        forebay.ask("GET /a.txt HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").status,
        200
    );
    forebay.stop();
    let (_, last) = exports.try_iter().last().unwrap();
    let requests = points(metric(&last, "forebay_requests_total"));
    let good = requests.iter().find(|point| attribute(point, "class") == Some("2xx")).unwrap();
    assert_eq!(good["asDouble"], 3.0);
}

#[test]
fn a_collector_that_fails_delays_nothing_and_is_named_once() {
    const REPLIES: &[&str] = &[
        "HTTP/1.1 503 Service Unavailable\r\n\r\n",
        "no reply of HTTP\r\n",
        "",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    let (port, exports) = collector(REPLIES);
    let mut forebay = shop(port, "");
    forebay.wait_for_output("metrics are lost: the collector at");
    assert_eq!(
        forebay.ask("GET /a.txt HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").status,
        200
    );
    forebay.wait_for_output("the collector of metrics at");
    assert_eq!(forebay.process.output().matches("metrics are lost").count(), 1);
    assert!(exports.iter().take(REPLIES.len() + 1).count() == REPLIES.len() + 1);
    // A reload ends the export, and the next one begins another.
    let file = forebay.folder.path().join("site.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let (other_port, other) = collector(&[]);
    let here = format!("127.0.0.1:{port}");
    std::fs::write(&file, text.replace(&here, &format!("127.0.0.1:{other_port}"))).unwrap();
    forebay.signal(Signal::HUP);
    assert!(other.recv_timeout(DEADLINE).is_ok(), "{}", forebay.output());
    assert!(eventually(|| exports.try_iter().count() == 0));
    forebay.stop();
}

#[test]
fn times_are_measured_for_an_export_that_a_reload_begins() {
    let folder = Folder::new();
    folder.write("files/a.txt", "a");
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nfiles = \"files\"\n";
    let mut forebay = serve(folder, site);
    let (port, exports) = collector(&[]);
    let table = format!("[metrics]\nto = \"http://127.0.0.1:{port}\"\ninterval = \"1s\"\n");
    std::fs::write(forebay.folder.path().join("site.toml"), table + site).unwrap();
    forebay.signal(Signal::HUP);
    exports.recv_timeout(DEADLINE).unwrap();
    assert_eq!(
        forebay.ask("GET /a.txt HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n").status,
        200
    );
    let is_measured = |document: &Value| {
        let all = metrics(document).iter();
        let durations = all.filter(|one| one["name"] == "forebay_request_duration_seconds");
        durations.flat_map(points).any(|point| point["count"] == "1")
    };
    let mut later = (0..20).map(|_| exports.recv_timeout(DEADLINE).unwrap());
    assert!(later.any(|(_, document)| is_measured(&document)));
    forebay.stop();
}

/// True if the collector has understood all that was sent. It leaves out defaults, and adds some.
fn has_all(received: &Value, sent: &Value) -> bool {
    match (sent, received) {
        (Value::Object(sent), Value::Object(received)) => sent.iter().all(|(key, sent)| {
            let is_default = match sent {
                Value::Array(items) => items.is_empty(),
                Value::String(text) => text.is_empty() || text == "0",
                _ => false,
            };
            received.get(key).map_or(is_default, |received| has_all(received, sent))
        }),
        (Value::Array(sent), Value::Array(received)) => {
            let mut pairs = received.iter().zip(sent);
            received.len() == sent.len() && pairs.all(|(received, sent)| has_all(received, sent))
        }
        (Value::Number(sent), Value::Number(received)) => sent.as_f64() == received.as_f64(),
        _ => sent == received,
    }
}

#[test]
fn the_opentelemetry_collector_understands_metrics_and_traces() {
    let Some(mut real) = peer::otlp_collector() else { return };
    let (port, exports) = collector(&[]);
    for port in [port, real.port()] {
        let traces = format!("[traces]\nto = \"http://127.0.0.1:{port}\"\nservice = \"shop\"");
        let forebay = shop(port, &traces);
        for path in ["/a.txt?q=%22", "/none/%5c%22"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: b\r\nUser-Agent: \"a\\\u{e4}\r\nConnection: close\r\n\r\n"
            );
            forebay.ask(request);
        }
        let (end, _) = forebay.stop();
        assert!(!end.output.contains("are lost"), "{}", end.output);
    }
    let printed = |real: &mut peer::Peer| -> Vec<Value> {
        let output = real.process().output();
        output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    for kind in ["resourceMetrics", "resourceSpans"] {
        let of_kind = printed(&mut real);
        let mut of_kind = of_kind.iter().filter(|document| document.get(kind).is_some());
        assert!(of_kind.next().is_some(), "no {kind} from Forebay itself");
    }
    let (mut metrics, mut spans) = (0, 0);
    for (head, sent) in exports.try_iter() {
        let path = head.split(' ').nth(1).unwrap();
        let body = sent.to_string();
        let length = body.len();
        let before = printed(&mut real).len();
        let mut client = Client::connect(real.address().clone());
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "{\"partialSuccess\":{}}"), "{sent}");
        let received = printed(&mut real).remove(before);
        assert!(has_all(&received, &sent), "{sent}\n{received}");
        metrics += usize::from(path == "/v1/metrics");
        let of_scope = &sent["resourceSpans"][0]["scopeSpans"][0]["spans"];
        spans += of_scope.as_array().map_or(0, Vec::len);
    }
    assert!(metrics > 0 && spans >= 2, "{metrics} {spans}");
}

#[test]
fn a_stop_does_not_wait_for_a_silent_collector() {
    // Both take connections and never answer. An export that reaches its time limit is reported.
    let silent = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let [metrics, traces] = silent.each_ref().map(|one| one.local_addr().unwrap().port());
    let forebay = shop(metrics, &format!("[traces]\nto = \"http://127.0.0.1:{traces}\""));
    let request = "GET /a.txt HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n";
    assert_eq!(forebay.ask(request).status, 200);
    let (end, _) = forebay.stop();
    assert!(!end.output.contains("are lost"), "{}", end.output);
}

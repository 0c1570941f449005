//! Failed requests are counted by kind. A failed request never keeps a run from ending.

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use forebay_load::{
    Arrivals, Check, Control, Error, Failures, FetchError, Outcome, Rate, Requests, Spec, Stop,
    Url, fetch, run,
};
use support::{Server, load, load_without_failure, spec};

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Returns a port without a listener. The port was free a moment ago.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn truncated_bodies_are_read_failures() {
    let replies: [&[u8]; 4] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot a hundred",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"H",
    ];
    for reply in replies {
        let server = Server::start(move |peer| {
            peer.request();
            peer.send(reply);
        });
        let outcome = load(&spec(server.url(), 10)).unwrap();
        let expected = Failures { read: 10, ..Failures::default() };
        assert_eq!(outcome.requests.failures, expected, "{outcome:?}");
        assert_eq!((outcome.requests.sent, outcome.requests.completed), (10, 0));
        assert!(outcome.first_failure.unwrap().contains("middle of a reply"));
    }
}

#[test]
fn closing_without_a_reply_is_a_read_failure_on_a_new_connection() {
    let server = Server::start(|peer| {
        peer.request();
    });
    let outcome = load(&spec(server.url(), 10)).unwrap();
    let expected = Failures { read: 10, ..Failures::default() };
    assert_eq!(outcome.requests.failures, expected, "{outcome:?}");
    assert_eq!(outcome.requests.resent, 0);
}

#[test]
fn a_kept_connection_that_closes_on_a_request_is_a_failure_and_nothing_is_resent() {
    for method in ["GET", "POST"] {
        // Each connection carries nine replies. The server reads the tenth request and sends no
        // reply.
        let server = Server::start(|peer| {
            for _ in 0..9 {
                if peer.request().is_none() {
                    return;
                }
                peer.send(HELLO);
            }
            peer.request();
        });
        let spec = Spec { method: method.to_owned(), ..spec(server.url(), 200) };
        let outcome = load(&spec).unwrap();
        let Requests { sent, resent, completed, ref failures, .. } = outcome.requests;
        assert_eq!((sent, resent), (200, 0), "{method}: {outcome:?}");
        assert_eq!((server.requests(), completed + failures.read), (200, 200), "{outcome:?}");
        assert!(failures.read >= 18, "{outcome:?}");
        assert!(outcome.first_failure.unwrap().contains("on a kept connection"));
    }
}

#[test]
fn a_reset_on_a_kept_connection_resends_idempotent_requests() {
    for (method, resent) in [("GET", 2), ("POST", 0)] {
        let outcome = load_with_resets(method);
        let Requests { completed, failed, resent: counted, .. } = outcome.requests;
        assert_eq!((completed + failed, counted), (4, resent), "{method}: {outcome:?}");
        assert_eq!(outcome.requests.failures.read, 2 - resent, "{method}: {outcome:?}");
    }
}

/// Sends four requests to a server that resets two connections with an unread request.
fn load_with_resets(method: &str) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    let server = thread::spawn(move || {
        for number in 0.. {
            let Ok((mut stream, _)) = listener.accept() else { return };
            for request in 0.. {
                // The server leaves a part of the second request unread, so that its close causes a
                // reset.
                let is_last = number < 2 && request == 1;
                if stream.read(&mut [0; 4096][..if is_last { 1 } else { 4096 }]).unwrap() == 0 {
                    return;
                }
                if is_last {
                    break;
                }
                stream.write_all(HELLO).unwrap();
            }
        }
    });
    let method = method.to_owned();
    let outcome = load(&Spec { connections: 1, method, ..spec(url, 4) }).unwrap();
    drop(server);
    outcome
}

#[test]
fn a_wrong_reply_is_quoted_with_its_url() {
    let server = Server::answering(HELLO);
    for (status, text) in [(404, None), (200, Some(b"Goodbye".to_vec()))] {
        let check = Some(Check { status, body_contains: text });
        let outcome = load(&Spec { check, ..spec(server.url(), 3) }).unwrap();
        assert_eq!(outcome.requests.failures.check, 3);
        let why = outcome.first_failure.unwrap();
        assert!(why.contains(server.url().as_str()) && why.contains("begins \"hello\""), "{why}");
    }
}

#[test]
fn a_server_that_never_answers_is_a_problem() {
    let server = Server::start(|peer| {
        peer.request();
        peer.wait_for_close();
    });
    let stop = Stop::Duration(Duration::from_millis(100));
    let outcome = load(&Spec { stop, ..spec(server.url(), 1) }).unwrap();
    assert_eq!((outcome.requests.in_flight, outcome.requests.failed), (2, 0));
    assert_eq!(outcome.problems(), ["no request was completed"]);
    // The server answers only the second connection. The first request waits for longer than any
    // reply took.
    let server = Server::start(|peer| {
        while peer.request().is_some() && peer.number > 0 {
            peer.send(HELLO);
        }
        peer.wait_for_close();
    });
    let stop = Stop::Duration(Duration::from_millis(1500));
    let outcome = load(&Spec { stop, threads: 1, ..spec(server.url(), 1) }).unwrap();
    assert!(outcome.requests.completed > 0);
    let problems = outcome.problems();
    assert!(problems.iter().any(|problem| problem.contains("in flight")), "{problems:?}");
}

#[test]
fn garbage_is_a_protocol_failure() {
    let replies: [&[u8]; 6] = [
        b"220 smtp.example.org ESMTP\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ];
    for reply in replies {
        let server = Server::start(move |peer| {
            peer.request();
            peer.send(reply);
            peer.wait_for_close();
        });
        let outcome = load(&spec(server.url(), 6)).unwrap();
        let expected = Failures { protocol: 6, ..Failures::default() };
        assert_eq!(outcome.requests.failures, expected, "{outcome:?}");
    }
}

#[test]
fn heads_and_interim_replies_without_end_are_protocol_failures() {
    let endless: [&[u8]; 2] = [b"HTTP/1.1 100 Continue\r\n\r\n", b"X-Field: x\r\n"];
    for piece in endless {
        let server = Server::start(move |peer| {
            peer.request();
            if piece.starts_with(b"X") {
                peer.send(b"HTTP/1.1 200 OK\r\n");
            }
            (0..20_000).for_each(|_| peer.send(piece));
            peer.wait_for_close();
        });
        let outcome = load(&spec(server.url(), 2)).unwrap();
        assert_eq!(outcome.requests.failures.protocol, 2, "{outcome:?}");
    }
}

#[test]
fn never_answering_is_a_timeout_and_the_connection_is_replaced() {
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            if peer.number % 2 == 1 {
                peer.send(HELLO);
            }
        }
    });
    let timeout = Duration::from_millis(100);
    let spec = Spec { connections: 1, timeout, ..spec(server.url(), 5) };
    let outcome = load(&spec).unwrap();
    let expected = Failures { timeout: 1, ..Failures::default() };
    assert_eq!(outcome.requests.failures, expected, "{outcome:?}");
    assert_eq!((outcome.requests.sent, outcome.requests.completed), (5, 4));
    assert_eq!(server.connections(), 2);
}

#[test]
fn trickling_without_end_is_a_timeout() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
        peer.wait_for_close();
    });
    let spec = Spec { timeout: Duration::from_millis(100), ..spec(server.url(), 4) };
    let outcome = load(&spec).unwrap();
    assert_eq!(outcome.requests.failures, Failures { timeout: 4, ..Failures::default() });
}

#[test]
fn a_refused_port_is_unreachable() {
    let url = Url::parse(&format!("http://127.0.0.1:{}/", closed_port())).unwrap();
    for stop in [Stop::Requests(1000), Stop::Duration(Duration::from_secs(60))] {
        let error = load(&Spec { stop, ..spec(url.clone(), 1) }).unwrap_err();
        let Error::Unreachable { endpoint, source } = error else { panic!("{error:?}") };
        assert!(url.as_str().contains(&endpoint));
        assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn a_socket_that_is_not_there_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http+unix://{}:/", folder.path().join("none.sock").display());
    let error = load(&spec(Url::parse(&url).unwrap(), 5)).unwrap_err();
    assert!(error.to_string().contains("none.sock"), "{error}");
}

#[test]
fn a_host_that_does_not_resolve_says_so() {
    let error = load(&spec(Url::parse("http://no-such-host.invalid/").unwrap(), 1)).unwrap_err();
    assert!(matches!(error, Error::Resolve { .. }), "{error}");
}

#[test]
fn the_second_address_of_a_name_is_tried() {
    // Nothing listens on ::1, which may be the first address of localhost.
    let server = Server::answering(HELLO);
    let url = format!("http://localhost:{}/", server.address.port());
    load_without_failure(&spec(Url::parse(&url).unwrap(), 20), 20);
}

#[test]
fn a_server_that_goes_away_ends_a_counted_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        for _ in 0..10 {
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(HELLO).unwrap();
        }
    });
    let timeout = Duration::from_millis(200);
    let base = spec(Url::parse(&url).unwrap(), 1_000_000);
    let outcome = load(&Spec { connections: 1, timeout, ..base }).unwrap();
    server.join().unwrap();
    assert_eq!(outcome.requests.completed, 10);
    assert!(outcome.gave_up);
    let connect = outcome.requests.failures.connect;
    assert!((2..50).contains(&connect), "no busy loop: {outcome:?}");
}

#[test]
fn a_duration_ends_with_requests_in_flight_that_are_no_failures() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(HELLO);
        peer.request();
        peer.wait_for_close();
    });
    let stop = Stop::Duration(Duration::from_millis(300));
    let outcome = load(&Spec { stop, ..spec(server.url(), 1) }).unwrap();
    let requests = outcome.requests;
    assert_eq!((requests.sent, requests.completed, requests.failed), (4, 2, 0));
    assert_eq!(requests.in_flight, 2);
}

#[test]
fn cancelling_ends_the_run_with_what_was_measured() {
    let server = Server::answering(HELLO);
    let control = Arc::new(Control::default());
    let watcher = control.clone();
    let cancel = thread::spawn(move || {
        while watcher.completed.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        watcher.cancelled.store(true, Ordering::Relaxed);
    });
    let stop = Stop::Duration(Duration::from_secs(600));
    let outcome = run(&Spec { stop, ..spec(server.url(), 1) }, &control).unwrap();
    cancel.join().unwrap();
    assert!(outcome.requests.completed > 0);
    assert!(outcome.duration < Duration::from_secs(60));
    assert_eq!(control.completed.load(Ordering::Relaxed), outcome.requests.completed);
    assert!(outcome.is_interrupted);
    let seconds = outcome.series.iter().map(|second| second.completed).sum::<u64>();
    assert_eq!(seconds, outcome.requests.completed);
}

/// Starts a server on a Unix socket that answers up to `replies` requests of each connection.
fn over_unix(folder: &Path, replies: usize) -> Url {
    let path = folder.join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                for _ in 0..replies {
                    if !stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {
                        break;
                    }
                    stream.write_all(HELLO).unwrap();
                }
            });
        }
    });
    Url::parse(&format!("http+unix://{}:/x", path.display())).unwrap()
}

#[test]
fn unix_sockets_carry_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let url = over_unix(folder.path(), usize::MAX);
    load_without_failure(&spec(url.clone(), 1000), 1000);
    assert_eq!(fetch(&url, Duration::from_secs(10), &[]).unwrap().body, b"hello");
}

#[test]
fn silent_closes_after_each_reply_are_no_failures_over_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    load_without_failure(&spec(over_unix(folder.path(), 1), 100), 100);
}

#[test]
fn an_open_loop_sends_what_is_due() {
    for arrivals in [Arrivals::Even, Arrivals::Poisson] {
        let server = Server::answering(HELLO);
        let rate = Some(Rate { per_second: 2000.0, arrivals });
        load_without_failure(&Spec { rate, ..spec(server.url(), 200) }, 200);
        assert_eq!(server.requests(), 200);
    }
}

#[test]
fn an_open_loop_counts_latency_from_the_planned_instant() {
    // A request is due every ms, and each reply takes 50 ms. Queue and latency therefore grow.
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            thread::sleep(Duration::from_millis(50));
            peer.send(HELLO);
        }
    });
    let rate = Some(Rate { per_second: 1000.0, arrivals: Arrivals::Even });
    let base = spec(server.url(), 11);
    let outcome = load_without_failure(&Spec { rate, connections: 1, threads: 1, ..base }, 11);
    // The last of 11 requests waits for ten others. Its reply comes at least 11 * 50 ms - 10 ms
    // after its planned instant.
    assert!(outcome.latency.max_us() >= 539_000, "{}", outcome.latency.max_us());
    // The last request was due after 10 ms and was sent after 500 ms.
    assert!(outcome.shortfall > 0.9 && outcome.has_missed_rate(), "{outcome:?}");
}

#[test]
fn unsent_requests_of_an_open_loop_are_reported() {
    let server = Server::start(|peer| {
        peer.request();
        peer.wait_for_close();
    });
    let rate = Some(Rate { per_second: 100.0, arrivals: Arrivals::Even });
    let stop = Stop::Duration(Duration::from_secs(1));
    let base = spec(server.url(), 1);
    let outcome = load(&Spec { rate, stop, connections: 1, threads: 1, ..base }).unwrap();
    assert_eq!((outcome.requests.sent, outcome.requests.unsent), (1, 99));
    assert!(outcome.shortfall > 0.98 && outcome.has_missed_rate(), "{outcome:?}");
}

#[test]
fn specifications_without_sense_are_refused() {
    let url = Url::parse("http://127.0.0.1:1/").unwrap();
    let h2c = Url::parse("h2c://127.0.0.1:1/").unwrap();
    let base = || spec(url.clone(), 1);
    let field = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let think = Some(Duration::from_secs(1));
    let rate = |per_second| Some(Rate { per_second, arrivals: Arrivals::Even });
    for spec in [
        Spec { connections: 0, ..base() },
        Spec { threads: 0, ..base() },
        Spec { stop: Stop::Requests(0), ..base() },
        Spec { stop: Stop::Duration(Duration::ZERO), ..base() },
        Spec { timeout: Duration::ZERO, ..base() },
        Spec { method: "G ET".into(), ..base() },
        Spec { method: String::new(), ..base() },
        Spec { method: "CONNECT".into(), ..base() },
        Spec { headers: field("X", "a\r\nY: b"), ..base() },
        Spec { headers: field("X:", "a"), ..base() },
        Spec { headers: field("content-length", "3"), ..base() },
        Spec { headers: field("Transfer-Encoding", "gzip"), ..base() },
        Spec { headers: field("Expect", "200-ok"), ..base() },
        Spec { headers: field("Expect", "100-continue"), url: h2c.clone(), ..base() },
        Spec { headers: field("Transfer-Encoding", "chunked"), url: h2c, ..base() },
        Spec { rate: rate(0.0), ..base() },
        Spec { rate: rate(f64::NAN), ..base() },
        Spec { rate: rate(5.0), think, ..base() },
        Spec { connections: 1 << 40, ..base() },
    ] {
        let error = load(&spec).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{spec:?}: {error:?}");
    }
}

#[test]
fn fetch_reads_one_reply() {
    let server = Server::start(|peer| {
        let request = String::from_utf8(peer.request().unwrap()).unwrap();
        assert!(request.contains("\r\nX-Probe: 1\r\n"), "{request}");
        peer.trickle(b"HTTP/1.1 503 Busy\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n");
        peer.trickle(b"5\r\nhello\r\n0\r\n\r\n");
    });
    let headers = [("X-Probe".to_owned(), "1".to_owned())];
    let reply = fetch(&server.url(), Duration::from_secs(15), &headers).unwrap();
    assert_eq!((reply.status, reply.body.as_slice()), (503, b"hello".as_slice()));
    let fields: BTreeMap<_, _> = reply.headers.into_iter().collect();
    assert_eq!(fields["X-A"], "b");
}

#[test]
fn fetch_says_what_went_wrong() {
    let second = Duration::from_secs(15);
    let url = Url::parse(&format!("http://127.0.0.1:{}/", closed_port())).unwrap();
    assert!(matches!(fetch(&url, second, &[]), Err(FetchError::Connect(_))));

    let silent = Server::start(|peer| peer.wait_for_close());
    let brief = Duration::from_millis(100);
    assert!(matches!(fetch(&silent.url(), brief, &[]), Err(FetchError::Timeout(_))));

    let garbage = Server::answering("SSH-2.0-OpenSSH_9.2\r\n\r\n");
    assert!(matches!(fetch(&garbage.url(), second, &[]), Err(FetchError::Protocol(_))));

    let short = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
    });
    assert!(matches!(fetch(&short.url(), second, &[]), Err(FetchError::Exchange(_))));
}

#[test]
fn fetch_keeps_the_first_mebibyte() {
    let server = Server::start(|peer| {
        peer.request();
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n");
        while peer.send_all(&[b'x'; 65_536]) {}
    });
    let reply = fetch(&server.url(), Duration::from_secs(15), &[]).unwrap();
    assert_eq!(reply.body.len(), 1024 * 1024);
}

//! Several requests at once on connections of FastCGI, and applications that break the rules.

mod support;

use std::time::Duration;

use forebay_load::{Arrivals, Lifetime, Rate, Spec, Stop, Url};
use support::{Peer, Server, load, load_without_failure, spec};

const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const GET_VALUES: u8 = 9;
const VALUES: u8 = 10;

const HELLO: &[u8] = b"Content-Type: text/plain\r\n\r\nhello";

fn record(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let ([id1, id0], [length1, length0]) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
    [&[1, kind, id1, id0, length1, length0, 0, 0], content].concat()
}

/// Returns the answer about FCGI_MPXS_CONNS.
fn multiplexes(value: u8) -> Vec<u8> {
    record(VALUES, 0, &[b"\x0f\x01FCGI_MPXS_CONNS", &[value][..]].concat())
}

/// Returns the end of a request, with this protocol status.
fn end(id: u16, status: u8) -> Vec<u8> {
    record(END_REQUEST, id, &[0, 0, 0, 0, status, 0, 0, 0])
}

fn reply(id: u16) -> Vec<u8> {
    [record(STDOUT, id, HELLO), end(id, 0)].concat()
}

/// Reads the next record. Returns its type, request ID and content.
fn next(peer: &mut Peer) -> Option<(u8, u16, Vec<u8>)> {
    let header = peer.some(8)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let content = peer.some(usize::from(word(4)))?;
    assert!(header[0] == 1 && header[6] == 0);
    Some((header[1], word(2), content))
}

/// Reads records until the end of a request, and returns its ID. Confirms FCGI_MPXS_CONNS.
fn request(peer: &mut Peer) -> Option<u16> {
    loop {
        match next(peer)? {
            (GET_VALUES, 0, _) => {
                peer.send(&multiplexes(b'1'));
                // Many applications close the connection after this answer.
                return None;
            }
            (STDIN, id, content) if content.is_empty() => return Some(id),
            (BEGIN_REQUEST, _, content) => assert_eq!(content[2], 1, "keeps the connection"),
            _ => {}
        }
    }
}

/// Starts an application that answers each request with the records that `script` returns for its
/// index on the connection and its ID.
fn answering(script: impl Fn(u64, u16) -> Vec<u8> + Send + Sync + 'static) -> Server {
    Server::start(move |peer| {
        for index in 0.. {
            let Some(id) = request(peer) else { return };
            if !peer.send_all(&script(index, id)) {
                return;
            }
        }
    })
}

/// Returns the settings for `n` requests over one connection with `streams` streams.
fn over(server: &Server, streams: usize, n: u64) -> Spec {
    let url = Url::parse(&format!("fcgi://{}/", server.address)).unwrap();
    Spec { connections: 1, threads: 1, streams, ..spec(url, n) }
}

#[test]
fn replies_in_another_order_and_interleaved_complete_their_requests() {
    let answers_together = |count: usize| {
        Server::start(move |peer| {
            loop {
                // The application answers only when it has as many requests.
                let ids: Vec<u16> = (0..count).map_while(|_| request(peer)).collect();
                let last_first = || ids.iter().rev();
                let heads = last_first().map(|id| record(STDOUT, *id, &HELLO[..9]));
                let bodies = ids.iter().map(|id| record(STDOUT, *id, &HELLO[9..]));
                let ends = last_first().map(|id| end(*id, 0));
                let bytes: Vec<u8> = heads.chain(bodies).chain(ends).flatten().collect();
                if ids.len() < count || !peer.send_all(&bytes) {
                    return;
                }
            }
        })
    };
    let server = answers_together(4);
    let outcome = load_without_failure(&over(&server, 4, 400), 400);
    // The first connection only asks for FCGI_MPXS_CONNS.
    assert_eq!((outcome.bytes.body, server.connections()), (2000, 2));
    // Of the last four requests, each connection may send some.
    let single = answers_together(1);
    let spec = Spec { connections: 3, threads: 2, ..over(&single, 4, 1200) };
    load_without_failure(&spec, 1200);
    let rate = Some(Rate { per_second: 20_000.0, arrivals: Arrivals::Even });
    load_without_failure(&Spec { rate, ..over(&server, 4, 400) }, 400);
}

#[test]
fn an_application_that_does_not_multiplex_is_named() {
    let why = |server: &Server, timeout: u64| {
        let timeout = Duration::from_millis(timeout);
        let spec = Spec { timeout, connections: 2, ..over(server, 4, 10) };
        load(&spec).unwrap_err().to_string()
    };
    let hint = "leave out --streams";
    let denies = Server::start(|peer| {
        next(peer);
        peer.send(&multiplexes(b'0'));
        peer.wait_for_close();
    });
    let text = why(&denies, 15_000);
    assert!(text.contains("FCGI_MPXS_CONNS is not 1") && text.contains(hint), "{text}");
    let silent = Server::start(Peer::wait_for_close);
    let text = why(&silent, 100);
    assert!(text.contains("did not answer FCGI_GET_VALUES") && text.contains(hint), "{text}");
    let closes = Server::start(|peer| drop(next(peer)));
    let text = why(&closes, 15_000);
    assert!(text.contains("the server closed") && text.contains(hint), "{text}");
    let other = Server::start(|peer| {
        next(peer);
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        peer.wait_for_close();
    });
    let text = why(&other, 15_000);
    assert!(text.contains("not valid FastCGI") && text.contains(hint), "{text}");
    // With one request at a time, the application is not asked.
    load_without_failure(&over(&answering(|_, id| reply(id)), 1, 10), 10);
}

#[test]
fn broken_replies_are_counted_failures() {
    let failed = |script: fn(u64, u16) -> Vec<u8>| {
        let outcome = load(&over(&answering(script), 2, 40)).unwrap();
        let requests = outcome.requests;
        assert_eq!(requests.completed + requests.failed, 40);
        assert_eq!(requests.failures.protocol, requests.failed, "{:?}", requests.failures);
        (requests.failed, outcome.first_failure.unwrap_or_default())
    };
    // Refusals concern one request, and the connection continues.
    let (count, why) = failed(|index, id| if index % 10 == 9 { end(id, 1) } else { reply(id) });
    assert!(count == 4 && why.contains("refused a second request"), "{count} {why}");
    let (count, why) = failed(|index, id| if index % 10 == 9 { end(id, 2) } else { reply(id) });
    assert!(count == 4 && why.contains("is overloaded"), "{count} {why}");
    // The head of this reply is larger than any that bench accepts.
    let (count, why) = failed(|index, id| {
        let endless = record(STDOUT, id, &[b'x'; 60_000]);
        if index % 10 == 9 { [&endless[..], &endless, &end(id, 0)].concat() } else { reply(id) }
    });
    assert!(count == 4 && why.contains("reply of the script is malformed"), "{count} {why}");
    // Other violations end the connection, with up to two requests each time.
    let unknown = "which is not running";
    let (count, why) = failed(|index, id| match index % 10 {
        9 => record(STDOUT, 999, b"x"),
        _ => reply(id),
    });
    assert!((1..=20).contains(&count) && why.contains(unknown), "{count} {why}");
    let (count, why) = failed(|index, id| match index % 10 {
        9 => [reply(id), end(id, 0)].concat(),
        _ => reply(id),
    });
    assert!(count <= 20 && (count == 0 || why.contains(unknown)), "{count} {why}");
    let (count, why) = failed(|index, id| match index % 10 {
        9 => b"HTTP/1.1 500 Oh\r\n\r\n".to_vec(),
        _ => reply(id),
    });
    assert!((1..=20).contains(&count) && why.contains("FastCGI version 72"), "{count} {why}");
}

#[test]
fn a_request_without_an_end_times_out_alone() {
    let server = answering(|index, id| if index == 5 { Vec::new() } else { reply(id) });
    let spec = Spec { timeout: Duration::from_millis(200), ..over(&server, 3, 500_000) };
    let outcome = load(&Spec { stop: Stop::Duration(Duration::from_millis(500)), ..spec }).unwrap();
    let requests = &outcome.requests;
    assert_eq!((requests.failures.timeout, requests.failed), (1, 1), "{requests:?}");
    assert!(requests.completed > 100 && server.connections() == 2, "{requests:?}");
}

#[test]
fn settings_that_streams_exclude_are_refused() {
    let url = Url::parse("fcgi://127.0.0.1:9/").unwrap();
    let spec = Spec { streams: 2, ..Spec::new(url) };
    let why = |spec: Spec| load(&spec).unwrap_err().to_string();
    let lifetime = Lifetime { requests: Some(5), age: None };
    assert!(why(Spec { lifetime, ..spec.clone() }).contains("one request at a time"));
    assert!(why(Spec { keepalive: false, ..spec.clone() }).contains("without keep-alive"));
    let http = Url::parse("http://127.0.0.1:9/").unwrap();
    assert!(why(Spec { streams: 2, ..Spec::new(http) }).contains("HTTP/3 or FastCGI"));
}

//! FastCGI requests that share connections: with fastcgi-mono-server4, and with applications that
//! interleave, refuse, stop answering or invent records.

mod support;

use std::collections::HashSet;
use std::fs;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::process::eventually;
use support::Forebay;
use support::fastcgi::{
    ABORT, Application, BEGIN, Connection, GET_VALUES, STDIN, end, end_with, record, stdout, values,
};

/// A gateway with one thread, so that all requests share one connection.
fn front_of_socket(socket: &str, root: &str, keys: &str) -> Forebay {
    serve_by("threads = 1\ntimeouts = { reply_idle = \"30s\" }", socket, root, keys)
}

fn serve_by(server: &str, socket: &str, root: &str, keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("x", "");
    let root =
        if root.is_empty() { folder.path().to_str().unwrap().to_owned() } else { root.into() };
    support::serve_file(
        folder,
        &format!(
            "[server]\n{server}\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
             fastcgi = {{ to = \"unix:{socket}\", root = \"{root}\", index = \"none\"{keys} }}\n"
        ),
    )
}

fn front_of(application: &Application, keys: &str) -> Forebay {
    front_of_socket(application.path().to_str().unwrap(), "", keys)
}

const ON: &str = ", multiplex = \"on\"";
const AUTO: &str = ", multiplex = \"auto\"";

/// Answers requests with their query. Answers each `group` of requests in reverse order.
fn backwards(connection: &mut Connection, group: usize) {
    loop {
        let asked: Vec<_> = (0..group).map_while(|_| connection.asked()).collect();
        if asked.len() < group {
            return;
        }
        for one in &asked {
            connection.send(stdout(one.id, "Content-Type: text/plain\n\n<"));
        }
        for one in asked.iter().rev() {
            connection.send(stdout(one.id, &one.query()));
        }
        for one in asked.iter().rev() {
            connection.send([stdout(one.id, ">"), end(one.id)].concat());
        }
    }
}

/// Sends requests at the same time, each over its own connection, and checks that each gets its own
/// reply.
fn ask_at_once(forebay: &Forebay, count: usize) {
    let mut clients: Vec<Client> = (0..count).map(|_| forebay.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /x?{n} HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let reply = client.reply();
        assert_eq!(reply.text(), format!("<{n}>"), "{}", forebay.output());
    }
}

#[test]
fn interleaved_replies_reach_their_own_clients() {
    let application = Application::start(|connection| backwards(connection, 20));
    let forebay = front_of(&application, ON);
    for _ in 0..10 {
        ask_at_once(&forebay, 20);
    }
    assert_eq!(application.accepted(), 1);
    forebay.stop();
}

#[test]
fn bodies_go_interleaved_too() {
    let application = Application::start(|connection| {
        while let Some(asked) = connection.asked() {
            let sum: usize = asked.body.iter().map(|&byte| usize::from(byte)).sum();
            connection.answer(asked.id, &format!("{} {sum}", asked.body.len()));
        }
    });
    let forebay = front_of(&application, ON);
    thread::scope(|scope| {
        for client in 0..4 {
            let forebay = &forebay;
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for length in [0, 3, 65_536, 700_000] {
                    let body = vec![client; length];
                    connection.send(format!(
                        "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
                    ));
                    connection.send(&body);
                    let sum = length * usize::from(client);
                    assert_eq!(connection.reply().text(), format!("{length} {sum}"));
                }
            });
        }
    });
    assert_eq!(application.accepted(), 1);
}

#[test]
fn an_application_that_refuses_is_asked_one_request_at_a_time() {
    // On its first connection, the first request runs until another one was refused.
    let application = Application::start(|connection| {
        let mut running = None;
        let mut waits = connection.number == 0;
        while let Some(record) = connection.record() {
            let is_end = record.kind == STDIN && record.content.is_empty();
            match running {
                None if record.kind == BEGIN => running = Some((record.id, false)),
                Some((id, _)) if record.kind == BEGIN && record.id != id => {
                    connection.send(end_with(record.id, 1));
                    waits = false;
                }
                Some((id, _)) if is_end && record.id == id => running = Some((id, true)),
                _ => {}
            }
            if let Some((id, true)) = running.filter(|_| !waits) {
                connection.answer(id, "done");
                running = None;
            }
        }
    });
    let mut forebay = front_of(&application, ON);
    for _ in 0..3 {
        let mut clients: Vec<Client> = (0..10).map(|_| forebay.connect()).collect();
        for client in &mut clients {
            client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
        }
        for client in &mut clients {
            assert_eq!(client.reply().text(), "done");
        }
    }
    forebay.wait_for_output("refuses to multiplex");
    assert!(application.accepted() > 9, "{}", application.accepted());
    forebay.stop();
}

#[test]
fn an_overloaded_connection_gets_fewer_requests() {
    // The application accepts two requests at a time on a connection, but says so too late.
    let application = Application::start(|connection| {
        let mut running = Vec::new();
        let mut refused = HashSet::new();
        while let Some(record) = connection.record() {
            match record.kind {
                BEGIN if running.len() == 2 => {
                    connection.send(end_with(record.id, 2));
                    refused.insert(record.id);
                }
                BEGIN => running.push(record.id),
                STDIN
                    if record.content.is_empty()
                        && running.len() == 2
                        && refused.contains(&record.id) =>
                {
                    for id in running.drain(..) {
                        connection.answer(id, "done");
                    }
                }
                STDIN if record.content.is_empty() && connection.number > 0 => {
                    running.retain(|&id| id != record.id);
                    connection.answer(record.id, "done");
                }
                _ => {}
            }
        }
    });
    let forebay = front_of(&application, ON);
    let mut clients: Vec<Client> = (0..3).map(|_| forebay.connect()).collect();
    for client in &mut clients {
        client.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.reply().text(), "done", "{}", forebay.output());
    }
    forebay.stop();
}

/// Answers GET_VALUES with `answer`, and requests one by one.
fn asked_first(answer: Option<Vec<u8>>, asked: &Mutex<Sender<()>>, connection: &mut Connection) {
    let mut ids = Vec::new();
    while let Some(record) = connection.record() {
        match record.kind {
            GET_VALUES => {
                let _ = asked.lock().unwrap().send(());
                if let Some(answer) = &answer {
                    connection.send(answer);
                }
            }
            BEGIN => ids.push(record.id),
            STDIN if record.content.is_empty() => {
                connection.answer(record.id, &format!("{}", ids.len()));
            }
            _ => {}
        }
    }
}

fn auto(answer: Option<Vec<u8>>) -> (Application, Forebay, Receiver<()>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let application =
        Application::start(move |connection| asked_first(answer.clone(), &tell, connection));
    let forebay = front_of(&application, ", multiplex = \"auto\"");
    (application, forebay, told)
}

#[test]
fn it_is_asked_whether_it_multiplexes() {
    let yes = values(&[("FCGI_MPXS_CONNS", "1"), ("FCGI_MAX_REQS", "10")]);
    let no = values(&[("FCGI_MPXS_CONNS", "0")]);
    for (answer, multiplexes) in [
        (Some(yes), true),
        (Some(no), false),
        (Some(values(&[])), false),
        (Some(record(11, 0, &[9, 0, 0, 0, 0, 0, 0, 0])), false),
        (Some(b"not FastCGI at all".to_vec()), false),
        (None, false),
    ] {
        let what = match &answer {
            Some(_) if multiplexes => "",
            Some(_) => "does not multiplex",
            None => "does not say whether",
        };
        // An answer counts within 250 ms, which a busy machine may not keep.
        assert!((0..5).any(|_| says(&what_was_found_out(&answer), what)), "{answer:?}");
    }
}

/// Returns true if the log contains `what`, or, if `what` is empty, no message about multiplexing.
fn says(log: &str, what: &str) -> bool {
    if what.is_empty() { !log.contains("multiplex") } else { log.contains(what) }
}

/// Lets Forebay ask an application with this answer about multiplexing. Returns the log.
fn what_was_found_out(answer: &Option<Vec<u8>>) -> String {
    let (application, forebay, told) = auto(answer.clone());
    for _ in 0..3 {
        assert_eq!(forebay.get("/x").status, 200, "{answer:?}");
    }
    assert!(told.recv_timeout(DEADLINE).is_ok(), "it was asked");
    assert!(told.try_recv().is_err(), "once");
    // One connection for the question, which is closed, and one for the requests.
    assert_eq!(application.accepted(), 2, "{answer:?}");
    let (exit, _) = forebay.stop();
    exit.output
}

/// A gateway of two threads.
fn front_of_two_threads(application: &Application, keys: &str) -> Forebay {
    let server = "threads = 2\ntimeouts = { connect = \"3s\" }";
    serve_by(server, application.path().to_str().unwrap(), "", keys)
}

#[test]
fn no_thread_takes_the_connections_of_another() {
    let application = Application::start(|connection| {
        while let Some(asked) = connection.asked() {
            thread::sleep(Duration::from_millis(20));
            connection.answer(asked.id, "done");
        }
    });
    // One request at a time on each of two connections. Twelve clients wait for them all the time.
    let keys = ", multiplex = \"on\", max_streams = 1, max_connections = 2";
    let forebay = front_of_two_threads(&application, keys);
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                for _ in 0..30 {
                    let reply = client.get("/x");
                    assert_eq!((reply.status, reply.text()), (200, "done"), "{}", forebay.output());
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn threads_without_a_connection_each_share_none() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let yes = values(&[("FCGI_MPXS_CONNS", "1")]);
    let application =
        Application::start(move |connection| asked_first(Some(yes.clone()), &tell, connection));
    let mut forebay =
        front_of_two_threads(&application, ", multiplex = \"auto\", max_connections = 1");
    forebay.wait_for_output("requests cannot share connections to unix:");
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(forebay.get("/x").status, 200));
        }
    });
    assert!(told.try_recv().is_err(), "there is nothing to ask");
    forebay.stop();
}

#[test]
fn made_up_records_mix_nothing() {
    type Broken = fn(u16) -> Vec<u8>;
    let cases: [(&str, Broken); 6] = [
        ("an unknown number", |_| stdout(999, "evil")),
        ("the end of an unknown number", |_| end(999)),
        ("a second end", |id| [end(id), end(id)].concat()),
        ("number 0", |_| stdout(0, "evil")),
        ("garbage", |_| b"HTTP/1.1 200 OK\r\n\r\nevil".to_vec()),
        ("a request", |id| record(BEGIN, id, &[0, 1, 0, 0, 0, 0, 0, 0])),
    ];
    for (what, broken) in cases {
        let application = Application::start(move |connection| {
            if connection.number > 0 {
                return backwards(connection, 1);
            }
            let (Some(first), Some(second)) = (connection.asked(), connection.asked()) else {
                return;
            };
            let head = "Content-Type: text/plain\n\n";
            connection.send(stdout(first.id, &format!("{head}whole")));
            connection.send(stdout(second.id, &format!("{head}half")));
            let bytes = broken(first.id);
            if what != "a second end" {
                connection.send(end(first.id));
            }
            connection.send(bytes);
            while connection.record().is_some() {}
        });
        let forebay = front_of(&application, ON);
        let (mut first, mut second) = (forebay.connect(), forebay.connect());
        first.send("POST /x?a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na");
        assert!(eventually(|| application.accepted() == 1));
        second.send("POST /x?b HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nb");
        // Either request may arrive first. One reply is complete, one is cut off.
        let outcomes = [first.try_reply(), second.try_reply()];
        let texts: Vec<_> =
            outcomes.iter().flatten().map(forebay_testkit::http::Reply::text).collect();
        assert!(texts.contains(&"whole"), "{what}: {texts:?}");
        assert!(!texts.iter().any(|text| text.contains("half") || text.contains("evil")), "{what}");
        assert_eq!(forebay.get("/x?c").text(), "<c>", "{what}: a new connection serves");
        forebay.stop();
    }
}

#[test]
fn a_request_that_nobody_waits_for_is_aborted() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let application = Application::start(move |connection| {
        while let Some(record) = connection.record() {
            match record.kind {
                STDIN if record.content.is_empty() => {
                    let _ = tell.lock().unwrap().send((STDIN, record.id));
                }
                ABORT => {
                    let _ = tell.lock().unwrap().send((ABORT, record.id));
                    // Records that it still sends belong to no request. fastcgi-mono-server4 may
                    // end a request twice.
                    let late = stdout(record.id, "A: b\n\nlate");
                    connection.send([late.clone(), end(record.id), late, end(record.id)].concat());
                }
                _ => {}
            }
        }
    });
    let server = "threads = 1\n[defaults]\non_abort = \"stop\"";
    let forebay = serve_by(server, application.path().to_str().unwrap(), "", ON);
    let mut leaves = forebay.connect();
    leaves.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    let begun = told.recv_timeout(DEADLINE).unwrap();
    drop(leaves);
    assert_eq!(told.recv_timeout(DEADLINE).unwrap(), (ABORT, begun.1));
    // The connection continues.
    let mut stays = forebay.connect();
    stays.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    let next = told.recv_timeout(DEADLINE).unwrap();
    assert_eq!(next.0, STDIN);
    assert_ne!(next.1, begun.1, "another number");
    assert_eq!(application.accepted(), 1);
    drop(stays);
    forebay.stop();
}

#[test]
fn a_slow_client_holds_up_nobody_else() {
    const PIECES: usize = 2000;
    let application = Application::start(|connection| {
        while let Some(asked) = connection.asked() {
            if asked.query() != "large" {
                connection.answer(asked.id, &format!("<{}>", asked.query()));
                continue;
            }
            // The large reply is sent whole. Small ones between its parts are possible only if the
            // client reads.
            connection.send(stdout(asked.id, "A: b\n\n"));
            let piece = "x".repeat(60_000);
            for _ in 0..PIECES {
                connection.send(stdout(asked.id, &piece));
            }
            connection.send(end(asked.id));
        }
    });
    // With `buffer = false`, a slow client still delays nobody else.
    let keys = "multiplex = \"on\", max_buffered = \"256k\" }\nbuffer = false\n#";
    let forebay = front_of(&application, &format!(", {keys}"));
    let mut slow = forebay.connect();
    slow.send("GET /x?large HTTP/1.1\r\nHost: h\r\n\r\n");
    // The client reads a little, and then nothing.
    let _ = slow.bytes(1000);
    for n in 0..5 {
        assert_eq!(
            forebay.get(&format!("/x?{n}")).text(),
            format!("<{n}>"),
            "{}",
            forebay.output()
        );
    }
    assert_eq!(application.accepted(), 1);
    // The slow client's reply was visibly cut off.
    let got = slow.rest();
    assert!(got.len() < PIECES * 60_000 && !got.ends_with(b"0\r\n\r\n"), "{}", got.len());
    forebay.stop();
}

#[test]
fn a_client_alone_on_a_connection_gets_all_however_slow() {
    let application = Application::start(|connection| {
        while let Some(asked) = connection.asked() {
            connection.send(stdout(asked.id, "A: b\n\n"));
            let piece = "x".repeat(60_000);
            for _ in 0..500 {
                connection.send(stdout(asked.id, &piece));
            }
            connection.send(end(asked.id));
        }
    });
    let forebay = front_of(&application, ", multiplex = \"on\", max_buffered = \"128k\"");
    let mut slow = forebay.connect();
    slow.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(slow.reply().body.len(), 30_000_000);
    forebay.stop();
}

#[test]
fn a_connection_that_dies_is_made_anew() {
    let application = Application::start(|connection| {
        // Each sends one request and leaves.
        if let Some(asked) = connection.asked() {
            connection.answer(asked.id, "once");
        }
    });
    let forebay = front_of(&application, ON);
    for _ in 0..20 {
        assert_eq!(forebay.get("/x").text(), "once", "{}", forebay.output());
    }
    forebay.stop();
}

const SLOW_HANDLER: &str = r#"<%@ WebHandler Language="C#" Class="Slow" %>
using System.Threading;
using System.Web;
public class Slow : IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(HttpContext context) {
        int sleep;
        if (int.TryParse(context.Request.QueryString["sleep"], out sleep)) Thread.Sleep(sleep);
        context.Response.ContentType = "text/plain";
        context.Response.Write("slow " + context.Request.QueryString["n"]);
    }
}
"#;

/// Returns the number of connections to the application's socket.
fn connections(mono: &Peer) -> usize {
    let path = mono.socket().to_str().unwrap();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    // State 03 is "connected". The accepting side has the path.
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields.get(5) == Some(&"03") && fields.last() == Some(&path)).count()
}

fn mono(options: &[&str], keys: &str) -> Option<(Folder, Peer, Forebay)> {
    let application = Folder::new();
    application.write("slow.ashx", SLOW_HANDLER);
    let mono = peer::mono_fastcgi(&application, options)?;
    let root = application.path().to_str().unwrap();
    let forebay = front_of_socket(mono.socket().to_str().unwrap(), root, keys);
    assert_eq!(forebay.get("/slow.ashx?n=0").text(), "slow 0", "{}", forebay.output());
    Some((application, mono, forebay))
}

/// Sends fifty slow requests at the same time. Returns the largest number of connections during
/// that time.
///
/// Returns `None` if Mono has mixed up its own records. Its threads write without a lock, so
/// replies that end at the same time get wrong types, lengths and statuses, or no end. (Here they
/// end 15 ms apart.)
fn fifty_slow_requests(mono: &Peer, forebay: &Forebay) -> Option<usize> {
    let mut clients: Vec<Client> = (0..50).map(|_| forebay.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let sleep = 300 + 15 * n;
        client.send(format!("GET /slow.ashx?sleep={sleep}&n={n} HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
    let (start, mut most) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(250) {
        most = most.max(connections(mono));
        thread::sleep(Duration::from_millis(5));
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let Ok(reply) = client.try_reply() else { return None };
        // Sometimes Mono's table of encodings has a race.
        let is_fault = reply.status >= 400 && reply.text().contains("No data is available for enc");
        if !is_fault && reply.text() != format!("slow {n}") {
            // No client gets the reply of another, whatever Mono sent.
            assert!(
                !reply.text().starts_with("slow "),
                "{n}: {}{}",
                reply.text(),
                forebay.output()
            );
            return None;
        }
    }
    Some(most)
}

/// As [`fifty_slow_requests`], with a Mono with these options that does not mix up its records.
fn connections_of_fifty(options: &[&str], keys: &str) -> Option<usize> {
    for _ in 0..5 {
        let (_application, mono, forebay) = mono(options, keys)?;
        if let Some(most) = fifty_slow_requests(&mono, &forebay) {
            forebay.stop();
            return Some(most);
        }
    }
    panic!("Mono mixes up its records each time");
}

#[test]
fn fifty_slow_requests_share_a_connection_to_mono() {
    let Some(most) = connections_of_fifty(&["/multiplex=True"], ON) else { return };
    assert_eq!(most, 1);
}

#[test]
fn mono_that_multiplexes_is_found_out() {
    // An answer counts within 250 ms, which a busy machine may not keep.
    for _ in 0..5 {
        let Some((_application, mono, forebay)) = mono(&["/multiplex=True"], AUTO) else { return };
        if !forebay.output().contains("does not multiplex") {
            let Some(most) = fifty_slow_requests(&mono, &forebay) else { continue };
            assert_eq!(most, 1, "{}", forebay.output());
            return;
        }
    }
    panic!("it never answers in time");
}

#[test]
fn mono_that_does_not_multiplex_is_found_out() {
    for _ in 0..5 {
        let Some((_application, mono, mut forebay)) = mono(&[], AUTO) else { return };
        forebay.wait_for_output("multiplex requests");
        // The answer may have come too late.
        if forebay.output().contains("does not multiplex") {
            let Some(most) = fifty_slow_requests(&mono, &forebay) else { continue };
            assert!(most > 1, "{}", forebay.output());
            forebay.stop();
            return;
        }
    }
    panic!("it never answers in time");
}

//! `forebay serve` with an application that behaves like HyperFastCgi, which is no longer
//! available, and the problems of its users with other servers. It answers neither GET_VALUES nor
//! ABORT_REQUEST. It keeps or closes a connection by the flag of each request, and accepts
//! interleaved requests.

mod support;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::fastcgi::{
    ABORT, Application, Asked, BEGIN, Connection, PARAMS, Record, STDIN, end, stdout,
};
use support::{Forebay, pattern};

/// Returns bodies, or the query if there is none. `open` counts its connections.
fn hyper(connection: &mut Connection, open: &AtomicUsize) {
    open.fetch_add(1, Ordering::AcqRel);
    while let Some(asked) = connection.asked() {
        if asked.body.is_empty() {
            connection.answer(asked.id, &asked.query());
        } else {
            connection.send(stdout(asked.id, "Content-Type: application/octet-stream\r\n\r\n"));
            for piece in asked.body.chunks(8000) {
                connection.send(support::fastcgi::record(6, asked.id, piece));
            }
            connection.send(end(asked.id));
        }
        if !asked.keeps {
            break;
        }
    }
    open.fetch_sub(1, Ordering::AcqRel);
}

/// Answers, but never answers "slow". Like fastcgi-mono-server4, releases a connection only in the
/// protocol: at the end of a request that does not keep it. `lost` counts the others.
fn mono(connection: &mut Connection, lost: &AtomicUsize) {
    let mut asked = Asked::default();
    while let Some(Record { kind, id, content }) = connection.record() {
        match kind {
            BEGIN => asked = Asked { id, keeps: content[2] & 1 == 1, ..Asked::default() },
            PARAMS => asked.params.extend(content),
            STDIN if content.is_empty() && asked.query() != "slow" => {
                connection.answer(id, &asked.query());
                if !asked.keeps {
                    return;
                }
            }
            ABORT if !asked.keeps => return,
            _ => {}
        }
    }
    lost.fetch_add(1, Ordering::AcqRel);
}

struct Setup {
    open: Arc<AtomicUsize>,
    application: Application,
    forebay: Forebay,
}

fn setup(keys: &str) -> Setup {
    let open = Arc::<AtomicUsize>::default();
    let count = open.clone();
    let application = Application::start(move |connection| hyper(connection, &count));
    let forebay = serve(2, &application, keys);
    Setup { open, application, forebay }
}

fn serve(threads: usize, application: &Application, keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("x", "");
    support::serve_file(
        folder,
        &format!(
            "[server]\nthreads = {threads}\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
             fastcgi = {{ to = \"unix:{}\", root = \".\", index = \"none\"{keys} }}\n\
             on_abort = \"stop\"\n",
            application.path().display()
        ),
    )
}

/// Sends requests of `clients` at the same time, each over its own connection, or over a new one
/// for each request.
fn run(forebay: &Forebay, clients: usize, requests: usize, keep: bool) {
    thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let mut connection = forebay.connect();
                for n in 0..requests {
                    if !keep {
                        connection = forebay.connect();
                    }
                    let reply = connection.get(&format!("/x?{client}-{n}"));
                    assert_eq!(reply.text(), format!("{client}-{n}"), "{}", forebay.output());
                }
            });
        }
    });
}

/// HyperFastCgi#23: sockets never closed. #28: later runs completed fewer and fewer requests.
#[test]
fn connections_are_closed_in_time_and_later_runs_go_as_the_first() {
    for keys in ["", ", keep_conn = false", ", multiplex = \"on\""] {
        let Setup { open, application, forebay } = setup(keys);
        for _ in 0..3 {
            run(&forebay, 20, 50, false);
            if keys.is_empty() {
                assert!(application.accepted() < 1000, "connections are used again");
            }
        }
        let files = || fs::read_dir(format!("/proc/{}/fd", forebay.process.id())).unwrap().count();
        assert!(eventually(|| open.load(Ordering::Acquire) == 0), "{keys}");
        assert!(eventually(|| files() < 40), "{keys}: {} files", files());
        forebay.stop();
    }
}

/// fastcgi-mono-server4 serves nobody after it has lost all of its 1,024 connections.
#[test]
fn no_connection_is_closed_without_a_farewell() {
    for keys in ["", ", max_connections = 3", ", keep_conn = false", ", multiplex = \"on\""] {
        let (lost, open) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (lose, count) = (lost.clone(), open.clone());
        let application = Application::start(move |connection| {
            count.fetch_add(1, Ordering::AcqRel);
            mono(connection, &lose);
            count.fetch_sub(1, Ordering::AcqRel);
        });
        let forebay = serve(2, &application, keys);
        run(&forebay, 20, 20, false);
        // The idle connections close after a while.
        assert!(eventually(|| open.load(Ordering::Acquire) == 0), "{keys}");
        let mut client = forebay.connect();
        client.send("GET /x?slow HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(eventually(|| open.load(Ordering::Acquire) == 1), "{keys}");
        drop(client);
        assert!(eventually(|| open.load(Ordering::Acquire) == 0), "{keys}");
        // These connections close at the stop.
        run(&forebay, 3, 3, true);
        forebay.stop();
        assert!(eventually(|| open.load(Ordering::Acquire) == 0), "{keys}");
        assert_eq!(lost.load(Ordering::Acquire), 0, "{keys}");
    }
}

/// #35: hangs if front end and application disagree about keeping connections.
#[test]
fn an_application_may_close_what_was_to_be_kept_and_keep_what_was_to_be_closed() {
    let closes = Application::start(|connection| {
        if let Some(asked) = connection.asked() {
            connection.answer(asked.id, "closed");
        }
    });
    // The connections that it keeps end when the other side closes.
    let keeps = Application::start(|connection| {
        while let Some(asked) = connection.asked() {
            connection.answer(asked.id, "kept");
        }
    });
    for (application, keys, text) in
        [(&closes, "", "closed"), (&keeps, ", keep_conn = false", "kept")]
    {
        let forebay = serve(1, application, keys);
        let mut client = forebay.connect();
        for n in 0..50 {
            assert_eq!(client.get("/x").text(), text, "{n}: {}", forebay.output());
        }
        assert_eq!(application.accepted(), 50, "{text}");
        forebay.stop();
    }
}

/// #37: drops connections of a thousand clients over a Unix socket.
#[test]
fn hundreds_of_clients_over_a_unix_socket() {
    let Setup { application: _application, forebay, .. } = setup("");
    run(&forebay, 300, 5, true);
    forebay.stop();
}

/// #55: interleaves replies of two requests within a record.
#[test]
fn replies_do_not_run_into_each_other() {
    for keys in ["", ", multiplex = \"on\"", ", multiplex = \"auto\""] {
        let Setup { application: _application, forebay, .. } = setup(keys);
        run(&forebay, 16, 60, true);
        forebay.stop();
    }
}

/// #67: 502 for a body of 46 KB.
#[test]
fn bodies_of_any_size_come_back() {
    let body = pattern(300_000);
    for keys in ["", ", keep_conn = false", ", multiplex = \"on\""] {
        let Setup { application: _application, forebay, .. } = setup(keys);
        let mut client = forebay.connect();
        for length in [1, 8192, 46_000, 46_080, 65_535, 65_536, 131_071, 300_000] {
            client.send(format!("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
            client.send(&body[..length]);
            assert!(client.reply().body == body[..length], "{length}: {}", forebay.output());
        }
        forebay.stop();
    }
}

/// #76: 502 as soon as the front end keeps more connections than the application has threads.
#[test]
fn an_application_of_few_threads_is_not_asked_for_more() {
    let open = Arc::<AtomicUsize>::default();
    let (count, most) = (open.clone(), Arc::<AtomicUsize>::default());
    let seen = most.clone();
    let application = Application::start(move |connection| {
        seen.fetch_max(count.load(Ordering::Acquire) + 1, Ordering::AcqRel);
        hyper(connection, &count);
    });
    let folder = Folder::new();
    folder.write("x", "");
    let forebay = support::serve_file(
        folder,
        &format!(
            "[server]\nthreads = 2\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
             fastcgi = {{ to = \"unix:{}\", root = \".\", index = \"none\", max_connections = 4 }}\n",
            application.path().display()
        ),
    );
    run(&forebay, 32, 30, true);
    // Closed connections may be counted until their threads notice.
    assert!(most.load(Ordering::Acquire) <= 16, "{most:?}");
    forebay.stop();
}

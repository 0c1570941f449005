//! Backends that break the rules, with pipelined clients whose other backends keep them. No client
//! gets the reply of another one, no reply at all, or half a reply that looks complete.

mod support;

use std::sync::Arc;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::process::Exit;
use support::hostile::{
    Case, Expect, Hostile, Protocol, Then, end, good, record, record_of, stdout,
};
use support::identity::{self, Asker, Outcome};
use support::{Forebay, serve};

const CLIENTS: usize = 4;
const ROUNDS: usize = 2;
/// Maximum bytes of a log that holds all messages of a test. The server cuts error output per
/// request.
const LOG: usize = 4 << 20;

fn case(name: &'static str, sends: impl AsRef<[u8]>, then: Then, expect: Expect) -> Case {
    Case { name, sends: sends.as_ref().to_vec(), drips: false, then, expect }
}

fn http_cases() -> Vec<Case> {
    use Expect::{Body, Cut, CutOr, Status};
    use Then::{Close, Hang, Keep, Reset};
    let bad_gateway = |name, sends: &str| case(name, sends, Close, Status(502));
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let with_head = |fields: &str, body: &str| format!("{}{body}", head(fields));
    let chunked = |body: &str| with_head("Transfer-Encoding: chunked\r\n", body);
    let poison = with_head("Content-Length: 6\r\n", "poison");
    let line = "X-Field: value\r\n";
    let mut cases = vec![
        bad_gateway("another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        bad_gateway("nothing", ""),
        case("a reset", "", Reset, Status(502)),
        bad_gateway("half a status line", "HTTP/1.1 20"),
        bad_gateway("a head without end", "HTTP/1.1 200 OK\r\nA: b\r\n"),
        bad_gateway("no status line", "Content-Length: 2\r\n\r\nok"),
        bad_gateway("a version in lower case", "http/1.1 200 OK\r\n\r\n"),
        bad_gateway("a status of two digits", "HTTP/1.1 99 Early\r\n\r\n"),
        bad_gateway("a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n"),
        bad_gateway("a folded length", &head("Content-Length:\r\n 2\r\n")),
        bad_gateway("a space before the colon", &head("Content-Length : 2\r\n")),
        bad_gateway("a NUL in a field", &head("A: \0\r\n")),
        bad_gateway("two lengths", &head("Content-Length: 2\r\nContent-Length: 3\r\n")),
        bad_gateway("a negative length", &head("Content-Length: -1\r\n")),
        bad_gateway("a length beyond 64 bits", &head("Content-Length: 99999999999999999999\r\n")),
        bad_gateway("an unknown coding", &head("Transfer-Encoding: gzip, what\r\n")),
        bad_gateway("a switch nobody asked for", "HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\n"),
        case("headers without end", head(&line.repeat(40_000)), Hang, Status(502)),
        case(
            "a header without end",
            head(&format!("A: {}\r\n", "b".repeat(1 << 20))),
            Hang,
            Status(502),
        ),
        case(
            "interim replies without end",
            "HTTP/1.1 103 E\r\n\r\n".repeat(40_000),
            Hang,
            Status(502),
        ),
        case("a short body", with_head("Content-Length: 100\r\n", "short"), Close, Cut),
        case(
            "a short body and a reset",
            with_head("Content-Length: 100\r\n", "short"),
            Reset,
            CutOr(502),
        ),
        case("a short body and silence", with_head("Content-Length: 100\r\n", "short"), Hang, Cut),
        case("silence", "", Hang, Status(504)),
        case("a head and silence", "HTTP/1.1 200 OK\r\nA: ", Hang, Status(504)),
        case("no chunk size", chunked("zz\r\nabc\r\n0\r\n\r\n"), Keep, Cut),
        case("a signed chunk size", chunked("+3\r\nabc\r\n0\r\n\r\n"), Keep, Cut),
        case("a chunk longer than its size", chunked("2\r\nabc\r\n0\r\n\r\n"), Keep, Cut),
        case("a chunk size beyond 64 bits", chunked("fffffffffffffffff\r\nabc"), Keep, Cut),
        case("chunks without end", chunked("3\r\nabc\r\n"), Close, Cut),
        case(
            "a chunk extension without end",
            chunked(&format!("3;{}", "x".repeat(1 << 20))),
            Hang,
            Cut,
        ),
        case("trailers without end", chunked(&format!("0\r\n{}", line.repeat(40_000))), Hang, Cut),
        case(
            "another reply behind the first",
            with_head("Content-Length: 2\r\n", "ok") + &poison,
            Keep,
            Body("ok"),
        ),
        case(
            "another behind the last chunk",
            chunked("2\r\nok\r\n0\r\n\r\n") + &poison,
            Keep,
            Body("ok"),
        ),
        case(
            "garbage behind a reply",
            with_head("Content-Length: 2\r\n", "ok\r\n\r\n"),
            Keep,
            Body("ok"),
        ),
        case("a body behind a 204", format!("HTTP/1.1 204 No\r\n\r\n{poison}"), Keep, Status(204)),
        case(
            "a body behind a 304",
            format!("HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n{poison}"),
            Keep,
            Status(304),
        ),
        case(
            "an error of its own",
            "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
            Close,
            Status(500),
        ),
    ];
    let drip = good(Protocol::Http, "slowly");
    cases.push(Case { drips: true, ..case("byte by byte", drip, Keep, Body("slowly")) });
    cases
}

fn fastcgi_cases() -> Vec<Case> {
    use Expect::{Body, Cut, CutOr, Status};
    use Then::{Close, Hang, Keep, Reset};
    let head = || stdout("Content-Type: text/plain\r\n\r\n");
    let ok = |before: Vec<u8>, behind: Vec<u8>| {
        [before, head(), stdout("ok"), stdout(""), end(0), behind].concat()
    };
    let poison = || [head(), stdout("poison"), stdout(""), end(0)].concat();
    let flood = record(7, "error output without end\n".repeat(2_000).as_bytes()).repeat(40);
    let lines = stdout(&"X-Field: value\r\n".repeat(4_000)).repeat(10);
    let mut cases = vec![
        case(
            "another protocol",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            Close,
            Status(502),
        ),
        case("nothing", "", Close, Status(502)),
        case("a reset", "", Reset, Status(502)),
        case("half a record", &stdout("Content-Type: text/plain")[..20], Close, Status(502)),
        case("another version", record_of(2, 1, 6, b"A: b\r\n\r\nok"), Hang, Status(502)),
        case("the end alone", end(0), Keep, Status(502)),
        case("an end that is too short", record(3, &[0; 4]), Hang, Status(502)),
        case("an overloaded application", end(2), Keep, Status(503)),
        case("a refusal to multiplex", end(1), Keep, Status(502)),
        case("an unknown role", end(3), Keep, Status(502)),
        case("an unknown protocol status", end(77), Keep, Status(502)),
        case("no header", [stdout("no header at all\r\n\r\n"), end(0)].concat(), Keep, Status(502)),
        case("headers without end", lines, Hang, Status(502)),
        case(
            "half a header",
            [stdout("Content-Type: text/plain\r\n"), end(0)].concat(),
            Keep,
            Status(502),
        ),
        case(
            "an interim status",
            [stdout("Status: 101 Go\r\n\r\n"), end(0)].concat(),
            Keep,
            Status(502),
        ),
        case(
            "output of another request",
            ok(record_of(1, 2, 6, b"A: b\r\n\r\npoison"), vec![]),
            Keep,
            CutOr(502),
        ),
        case(
            "the end of another request",
            ok(record_of(1, 2, 3, &[0; 8]), vec![]),
            Keep,
            CutOr(502),
        ),
        case(
            "a request in place of a reply",
            ok(record(1, &[0, 1, 1, 0, 0, 0, 0, 0]), vec![]),
            Keep,
            CutOr(502),
        ),
        case("an unknown type", ok(record(99, b"what"), vec![]), Keep, CutOr(502)),
        case("a management record", ok(record_of(1, 0, 10, b""), vec![]), Keep, Body("ok")),
        case("error output without measure", ok(flood, vec![]), Keep, Body("ok")),
        case("another reply behind the first", ok(vec![], poison()), Keep, Body("ok")),
        case("output behind the end", ok(vec![], stdout("poison")), Keep, Body("ok")),
        case("garbage behind the end", ok(vec![], b"garbage".to_vec()), Keep, Body("ok")),
        case("no end", [head(), stdout("ok"), stdout("")].concat(), Close, CutOr(502)),
        case("no end and silence", [head(), stdout("ok")].concat(), Hang, Cut),
        case("silence", "", Hang, Status(504)),
        case(
            "less than it says",
            [stdout("Content-Length: 9\r\n\r\nok"), end(0)].concat(),
            Keep,
            CutOr(502),
        ),
        case(
            "more than it says",
            [stdout("Content-Length: 2\r\n\r\nokay"), end(0)].concat(),
            Keep,
            CutOr(502),
        ),
        case(
            "an error of its own",
            [stdout("Status: 500 No\r\n\r\n"), end(0)].concat(),
            Keep,
            Status(500),
        ),
    ];
    let drip = good(Protocol::Fastcgi, "slowly");
    cases.push(Case { drips: true, ..case("byte by byte", drip, Keep, Body("slowly")) });
    cases
}

/// Perl code of each script. It does the same in its own process and in a persistent worker.
fn scripts() -> Vec<(&'static str, &'static str, Expect)> {
    use Expect::{Body, Cut, CutOr, Status};
    const OK: &str = "print \"Content-Type: text/plain\\n\\nok\";";
    vec![
        ("nothing", "", Status(502)),
        ("garbage", "print \"\\0\\1\\2\" x 1000;", Status(502)),
        ("no header", "print \"hello world\\n\\n\";", Status(502)),
        ("half a header", "print \"Content-Type: text/plain\\n\";", Status(502)),
        ("headers without end", "print \"X: y\\n\" x 100000;", Status(502)),
        ("a header without end", "print 'X: ', 'y' x 1000000;", Status(502)),
        ("a control byte", "print \"X: a\\rSet-Cookie: b\\n\\n\";", Status(502)),
        ("an interim status", "print \"Status: 100 Continue\\n\\n\";", Status(502)),
        ("a status of two digits", "print \"Status: 99 No\\n\\n\";", Status(502)),
        ("less than it says", "print \"Content-Length: 9\\n\\nok\";", CutOr(502)),
        ("more than it says", "print \"Content-Length: 2\\n\\nokay\";", CutOr(502)),
        ("a head and death", "$| = 1; print \"A: b\\n\\nok\"; kill 9, $$; sleep 9;", CutOr(502)),
        ("half a head and death", "$| = 1; print \"A: b\\n\"; kill 9, $$; sleep 9;", Status(502)),
        ("much and death", "$| = 1; print \"A: b\\n\\n\", 'x' x 500000; kill 9, $$; sleep 9;", Cut),
        (
            "a framing of its own",
            "print \"Transfer-Encoding: chunked\\nA: b\\n\\nok\";",
            Body("ok"),
        ),
        ("a connection of its own", "print \"Connection: close\\nA: b\\n\\nok\";", Body("ok")),
        (
            "error output without measure",
            "print STDERR \"error output without end\\n\" x 40000;\n\
             print \"Content-Type: text/plain\\n\\nok\";",
            Body("ok"),
        ),
        ("another reply behind it", "print \"A: b\\nContent-Length: 2\\n\\nok\";", Body("ok")),
        ("a plain reply", OK, Body("ok")),
        ("byte by byte", "$| = 1; print for split //, \"A: b\\n\\nslowly\";", Body("slowly")),
    ]
}

fn proxy_to(backend: &Hostile) -> Forebay {
    let routes = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         proxy = {{ to = \"http://{}\", reply_timeout = \"2s\", max_fails = 0 }}\n",
        backend.authority()
    );
    serve(Folder::new(), &routes)
}

fn fastcgi_to(backend: &Hostile) -> Forebay {
    let routes = format!(
        "[server]\ntimeouts = {{ reply_idle = \"2s\" }}\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         fastcgi = {{ to = \"{}\", root = \"/nowhere\", index = \"index.cgi\", max_connections = 8 }}\n",
        backend.authority()
    );
    serve(Folder::new(), &routes)
}

#[test]
fn http_backends_that_break_the_rules_harm_only_their_own_replies() {
    let cases = Arc::new(http_cases());
    let backend = Hostile::start(Protocol::Http, &cases);
    between_good_ones(proxy_to(&backend), &cases);
}

#[test]
fn fastcgi_applications_that_break_the_rules_harm_only_their_own_replies() {
    let cases = Arc::new(fastcgi_cases());
    let backend = Hostile::start(Protocol::Fastcgi, &cases);
    let (exit, _) = between_good_ones(fastcgi_to(&backend), &cases);
    assert!(exit.output.len() < LOG, "{} bytes of log", exit.output.len());
}

#[test]
fn scripts_that_break_the_rules_harm_only_their_own_replies() {
    let folder = Folder::new();
    let mut cases = Vec::new();
    for (number, (name, code, expect)) in scripts().into_iter().enumerate() {
        folder.script(&format!("scripts/{number}"), format!("#!/usr/bin/perl\n{code}\n"));
        cases.push(case(name, "", Then::Close, expect));
    }
    folder.script("scripts/good", identity::PERL);
    let cgi = "[[site]]\nlisten = \"127.0.0.1:0\"\n\
        [[site.route]]\npath = \"/*\"\ncgi = { dir = \"scripts\" }\n";
    let (exit, folder) = between_good_ones(serve(folder, cgi), &cases);
    assert!(exit.output.contains("ended by signal 9"), "{}", exit.output);
    assert!(exit.output.len() < LOG, "{} bytes of log", exit.output.len());
    let app = "[[site]]\nlisten = \"127.0.0.1:0\"\n\
        [[site.route]]\npath = \"/*\"\napp = \"scripts\"\n\
        [app.scripts]\nkind = \"perl-cgi\"\ndir = \"scripts\"\nworkers = 3\n";
    between_good_ones(serve(folder, app), &cases);
}

#[test]
fn an_upload_to_a_backend_that_breaks_the_rules_harms_nobody_else() {
    let cases = Arc::new(http_cases());
    let backend = Hostile::start(Protocol::Http, &cases);
    uploads_between_good_ones(proxy_to(&backend), &cases);
    let cases = Arc::new(fastcgi_cases());
    let backend = Hostile::start(Protocol::Fastcgi, &cases);
    uploads_between_good_ones(fastcgi_to(&backend), &cases);
}

/// As [`between_good_ones`], with bodies that no backend reads. Backends that keep the connection
/// anyway would take the rest of the body for a request, so this leaves them out.
fn uploads_between_good_ones(forebay: Forebay, cases: &[Case]) {
    const BODY: usize = 1 << 20;
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let forebay = &forebay;
            scope.spawn(move || {
                for (number, case) in cases.iter().enumerate() {
                    if case.then == Then::Keep {
                        continue;
                    }
                    let mut asker = Asker::new(forebay.address, client);
                    assert_eq!(asker.ask("/good"), Outcome::Whole);
                    let mut client = forebay.connect();
                    client.send(format!(
                        "POST /{number} HTTP/1.1\r\nHost: h\r\nContent-Length: {BODY}\r\n\r\n"
                    ));
                    // The gateway may refuse an upload in the middle.
                    let _refused = client.try_send(&vec![b'x'; BODY]);
                    let name = case.name;
                    match client.try_reply() {
                        Ok(reply) => assert!(reply.status >= 500, "{name}: {reply:?}"),
                        Err(error) => assert!(!error.to_string().contains("in time"), "{name}"),
                    }
                    assert_eq!(asker.ask("/good"), Outcome::Whole, "{name}");
                }
            });
        }
    });
    forebay.stop();
}

/// Several clients send all cases, each between two requests that get correct answers.
fn between_good_ones(forebay: Forebay, cases: &[Case]) -> (Exit, Folder) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let forebay = &forebay;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for at in 0..cases.len() {
                        // Each client has another order, so that different cases meet.
                        let number = (at * (2 * client + 1) + round) % cases.len();
                        try_case(forebay, client, number, &cases[number]);
                    }
                }
            });
        }
    });
    let (exit, folder) = forebay.stop();
    (exit, folder)
}

fn try_case(forebay: &Forebay, client: usize, number: usize, case: &Case) {
    let mut connection = forebay.connect();
    let request = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (first, last) = (format!("first{client}n{number}"), format!("last{client}n{number}"));
    let requests = [
        request(&format!("/good?id={first}")),
        request(&format!("/{number}")),
        request(&format!("/good?id={last}")),
    ];
    connection.send(requests.concat());
    let name = case.name;
    let check = |connection: &mut Client, id: &str| {
        let reply = connection.try_reply().unwrap_or_else(|error| panic!("{name}, {id}: {error}"));
        assert!(reply.body == identity::body(id).as_bytes(), "{name}, {id}: {reply:?}");
    };
    check(&mut connection, &first);
    let outcome = connection.try_reply();
    if let Err(error) = &outcome {
        assert!(!error.to_string().contains("in time"), "{name}: {error}");
    }
    let outcome = outcome.ok();
    assert!(fits(case.expect, outcome.as_ref()), "{name}: {outcome:?}\n{}", forebay.output());
    if outcome.is_some() {
        check(&mut connection, &last);
    }
}

fn fits(expect: Expect, outcome: Option<&Reply>) -> bool {
    match (expect, outcome) {
        (Expect::Cut | Expect::CutOr(_), None) => true,
        // If nothing was passed on yet, the client can get an error status.
        (Expect::Cut, Some(reply)) => reply.status == 502,
        (Expect::CutOr(status) | Expect::Status(status), Some(reply)) => reply.status == status,
        (Expect::Body(body), Some(reply)) => reply.status == 200 && reply.body == body.as_bytes(),
        _ => false,
    }
}

//! A scripted FastCGI application, and requests that share its connections.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::world::{Backend, Peer, World, in_memory};

const BEGIN: u8 = 1;
const ABORT: u8 = 2;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const GET_VALUES: u8 = 9;

/// Returns a record for a request.
pub fn record(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let (id, length) = (id.to_be_bytes(), (content.len() as u16).to_be_bytes());
    [&[1, kind, id[0], id[1], length[0], length[1], 0, 0], content].concat()
}

pub fn stdout(id: u16, text: &str) -> Vec<u8> {
    record(6, id, text.as_bytes())
}

pub fn end(id: u16) -> Vec<u8> {
    end_with(id, 0)
}

/// Returns END_REQUEST with this protocol status: 1 cannot multiplex, 2 overloaded.
pub fn end_with(id: u16, status: u8) -> Vec<u8> {
    record(3, id, &[0, 0, 0, 0, status, 0, 0, 0])
}

/// A connection from the gateway to an application.
pub struct Connection {
    peer: Peer,
    open: HashMap<u16, Asked>,
}

/// A request.
#[derive(Default)]
pub struct Asked {
    pub id: u16,
    params: Vec<u8>,
    body: Vec<u8>,
}

impl Connection {
    pub async fn accept(application: &mut Backend) -> Self {
        Self { peer: application.accept().await, open: HashMap::new() }
    }

    /// Returns the next record; `None` if the gateway has closed.
    async fn record(&mut self) -> Option<(u8, u16, Vec<u8>)> {
        let header = self.peer.exactly(8).await.ok()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut content = self.peer.exactly(length + usize::from(header[6])).await.ok()?;
        content.truncate(length);
        Some((header[1], u16::from_be_bytes([header[2], header[3]]), content))
    }

    /// Returns the next complete request. Requests may be interleaved.
    pub async fn asked(&mut self) -> Option<Asked> {
        loop {
            let (kind, id, content) = self.record().await?;
            match (kind, self.open.get_mut(&id)) {
                (BEGIN, None) => drop(self.open.insert(id, Asked { id, ..Asked::default() })),
                (BEGIN, Some(_)) => panic!("request {id} begins twice"),
                (PARAMS, Some(asked)) => asked.params.extend(content),
                (STDIN, Some(_)) if content.is_empty() => return self.open.remove(&id),
                (STDIN, Some(asked)) => asked.body.extend(content),
                _ => {}
            }
        }
    }

    pub async fn send(&mut self, bytes: Vec<u8>) {
        self.peer.send(bytes).await;
    }

    /// Sends a complete reply with this text.
    async fn answer(&mut self, id: u16, text: &str) {
        let head = format!("Content-Type: text/plain\n\n{text}");
        self.send([stdout(id, &head), end(id)].concat()).await;
    }
}

impl Asked {
    /// Returns the value of a variable: the bytes between its name and the next pair's lengths.
    fn variable(&self, name: &str) -> Option<String> {
        let at = self.params.windows(name.len()).position(|part| part == name.as_bytes())?;
        let length = usize::from(self.params[at - 1]);
        let start = at + name.len();
        Some(String::from_utf8(self.params[start..start + length].to_vec()).unwrap())
    }

    fn query(&self) -> String {
        self.variable("QUERY_STRING").expect("it is sent")
    }
}

fn route(keys: &str) -> String {
    format!(
        "[[site.route]]\npath = \"/*\"\nfastcgi = {{ to = \"10.0.0.1:9000\", root = \"/srv/www\", \
         scripts = \"*\"{keys} }}\n"
    )
}

const ON: &str = ", multiplex = \"on\"";

/// Returns clients that have each sent a request for `/x?n`, with n from 0.
async fn ask_at_once(world: &World, count: usize) -> Vec<Peer> {
    let mut clients = Vec::new();
    for n in 0..count {
        let mut client = world.client();
        client.send(format!("GET /x?{n} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
        clients.push(client);
    }
    clients
}

#[test]
fn a_local_redirect_keeps_its_cookies_and_what_is_not_about_the_document() {
    in_memory(&route(""), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send("GET /first HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let mut connection = Connection::accept(&mut application).await;
        for (target, sent) in [
            (
                "/first",
                "Location: /second?x\nSet-Cookie: a=1\nSet-Cookie: b=2; Path=/\nX-A: b\nX-B: c\n\
              Content-Language: de\nX-Accel-Redirect: /x\n\n",
            ),
            ("/second?x", "Location: /third\nSet-Cookie: c=3\nETag: \"e\"\n\n"),
            ("/third", "Status: 404\nSet-Cookie: d=4\nX-B: d\n\nend"),
        ] {
            let asked = connection.asked().await.unwrap();
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            assert_eq!(asked.variable("SCRIPT_NAME").as_deref(), Some(path));
            assert_eq!(asked.variable("QUERY_STRING").as_deref(), Some(query));
            assert_eq!(asked.variable("REQUEST_URI").as_deref(), Some("/first"));
            connection.send([stdout(asked.id, sent), end(asked.id)].concat()).await;
        }
        let reply = client.reply("").await;
        assert_eq!((reply.status(), reply.text()), (404, "end"));
        let mut cookies = reply.values("set-cookie");
        cookies.sort_unstable();
        assert_eq!(cookies, ["a=1", "b=2; Path=/", "c=3", "d=4"]);
        assert_eq!((reply.values("x-a"), reply.values("x-b")), (vec!["b"], vec!["d"]));
        for name in ["etag", "content-language", "x-accel-redirect", "location"] {
            assert_eq!(reply.field(name), None, "{name}");
        }
        // The next request gets no fields of the redirects.
        client.send("GET /x?0 HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let asked = connection.asked().await.unwrap();
        connection.answer(asked.id, "next").await;
        let reply = client.reply("").await;
        assert_eq!((reply.text(), reply.field("set-cookie")), ("next", None));
    });
}

#[test]
fn params_that_replace_a_variable_are_sent_once() {
    let keys = ", params = { SERVER_NAME = \"other\", PATH_INFO = \"/own\", HTTP_HOST = \"x\" }";
    in_memory(&route(keys), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send("GET /x HTTP/1.1\r\nHost: name\r\n\r\n").await;
        let mut connection = Connection::accept(&mut application).await;
        let asked = connection.asked().await.unwrap();
        for (name, value) in [("SERVER_NAME", "other"), ("PATH_INFO", "/own"), ("HTTP_HOST", "x")] {
            let sent = asked.params.windows(name.len()).filter(|part| *part == name.as_bytes());
            assert_eq!((sent.count(), asked.variable(name).as_deref()), (1, Some(value)), "{name}");
        }
        connection.answer(asked.id, "ok").await;
        assert_eq!(client.reply("").await.text(), "ok");
    });
}

#[test]
fn a_request_has_its_variables_and_its_body() {
    in_memory(&route(", params = { OWN = \"value\" }"), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        let head = "POST /dir/x%20y?a=b%20c HTTP/1.1\r\nHost: name:81\r\nX-Thing: 1\r\n\
                    Proxy: http://evil/\r\nContent-Type: text/x-own\r\nContent-Length: 5\r\n\r\nhello";
        client.send(head).await;
        let mut connection = Connection::accept(&mut application).await;
        let asked = connection.asked().await.unwrap();
        assert_eq!(asked.body, b"hello");
        for (name, value) in [
            ("REQUEST_METHOD", "POST"),
            ("SCRIPT_NAME", "/dir/x y"),
            ("SCRIPT_FILENAME", "/srv/www/dir/x y"),
            ("DOCUMENT_ROOT", "/srv/www"),
            ("REQUEST_URI", "/dir/x%20y?a=b%20c"),
            ("QUERY_STRING", "a=b%20c"),
            ("CONTENT_TYPE", "text/x-own"),
            ("CONTENT_LENGTH", "5"),
            ("REMOTE_ADDR", "192.0.2.7"),
            ("SERVER_PORT", "80"),
            ("HTTP_HOST", "name:81"),
            ("HTTP_X_THING", "1"),
            ("OWN", "value"),
        ] {
            assert_eq!(asked.variable(name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(asked.variable("HTTP_PROXY"), None);
        connection.answer(asked.id, "ok").await;
        assert_eq!(client.reply("").await.text(), "ok");
    });
}

#[test]
fn an_empty_reply_over_a_kept_connection_is_asked_for_once_more_where_that_is_safe() {
    in_memory(&route(""), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send("GET /x?first HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let mut kept = Connection::accept(&mut application).await;
        let asked = kept.asked().await.unwrap();
        kept.answer(asked.id, "first").await;
        assert_eq!(client.reply("").await.text(), "first");
        client.send("GET /x?second HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let asked = kept.asked().await.unwrap();
        kept.send(end(asked.id)).await;
        let mut fresh = Connection::accept(&mut application).await;
        let asked = fresh.asked().await.unwrap();
        assert_eq!(asked.query(), "second");
        fresh.answer(asked.id, "second").await;
        assert_eq!(client.reply("").await.text(), "second");
        client.send("POST /x?empty HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na").await;
        // The gateway has kept the connection of the answered request, or opens another one.
        let (asked, mut connection) = match fresh.asked().await {
            Some(asked) => (asked, fresh),
            None => {
                let mut third = Connection::accept(&mut application).await;
                (third.asked().await.unwrap(), third)
            }
        };
        connection.send(end(asked.id)).await;
        assert_eq!(client.reply("").await.status(), 502);
        assert!(!application.has_visitor(), "a POST is not asked for twice");
        let errors = world.errors();
        assert!(errors.iter().any(|e| e.contains("sent an empty reply")), "{errors:?}");
    });
}

#[test]
fn interleaved_replies_reach_their_own_clients() {
    in_memory(&route(ON), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut clients = ask_at_once(world, 20).await;
        let mut connection = Connection::accept(&mut application).await;
        let mut asked = Vec::new();
        while asked.len() < 20 {
            asked.push(connection.asked().await.unwrap());
        }
        for one in &asked {
            connection.send(stdout(one.id, "Content-Type: text/plain\n\n<")).await;
        }
        for one in asked.iter().rev() {
            connection.send(stdout(one.id, &one.query())).await;
        }
        for one in asked.iter().rev() {
            connection.send([stdout(one.id, ">"), end(one.id)].concat()).await;
        }
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.reply("").await.text(), format!("<{n}>"));
        }
        assert!(!application.has_visitor(), "one connection");
    });
}

#[test]
fn more_requests_than_max_streams_open_another_connection() {
    in_memory(&route(", multiplex = \"on\", max_streams = 5"), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut clients = ask_at_once(world, 20).await;
        // The application sends no reply before each connection has its maximum number of requests.
        let mut connections = Vec::new();
        for _ in 0..4 {
            let mut connection = Connection::accept(&mut application).await;
            let mut asked = Vec::new();
            for _ in 0..5 {
                asked.push(connection.asked().await.unwrap());
            }
            connections.push((connection, asked));
        }
        for (connection, asked) in &mut connections {
            for one in asked {
                connection.answer(one.id, &one.query()).await;
            }
        }
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.reply("").await.text(), n.to_string());
        }
        assert!(!application.has_visitor());
    });
}

#[test]
fn requests_get_room_on_a_shared_connection_in_turn() {
    in_memory(
        &route(", multiplex = \"on\", max_streams = 2, max_connections = 1"),
        async |world| {
            let mut application = world.backend("10.0.0.1:9000");
            let mut clients = ask_at_once(world, 12).await;
            let mut connection = Connection::accept(&mut application).await;
            // An answered client sends its next request, which comes after the waiting ones.
            for n in (0..12).cycle().take(12 * 20) {
                let asked = connection.asked().await.unwrap();
                assert_eq!(asked.query(), n.to_string());
                connection.answer(asked.id, "ok").await;
                assert_eq!(clients[n].reply("").await.text(), "ok");
                clients[n].send(format!("GET /x?{n} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            }
            assert!(!application.has_visitor());
        },
    );
}

#[test]
fn a_request_that_nobody_waits_for_is_aborted_and_the_connection_goes_on() {
    in_memory(&format!("{}on_abort = \"stop\"\n", route(ON)), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut clients = ask_at_once(world, 2).await;
        let mut connection = Connection::accept(&mut application).await;
        let left = connection.asked().await.unwrap();
        let stays = connection.asked().await.unwrap();
        assert_eq!((left.query(), stays.query()), ("0".into(), "1".into()));
        drop(clients.remove(0));
        loop {
            let (kind, id, _) = connection.record().await.expect("the connection goes on");
            if kind == ABORT {
                assert_eq!(id, left.id);
                break;
            }
        }
        connection.answer(left.id, "nobody's").await;
        connection.answer(stays.id, "1").await;
        assert_eq!(clients[0].reply("").await.text(), "1");
    });
}

#[test]
fn a_connection_that_dies_is_made_anew() {
    in_memory(&route(ON), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        for n in 0..3 {
            let mut clients = ask_at_once(world, 1).await;
            let mut connection = Connection::accept(&mut application).await;
            let asked = connection.asked().await.unwrap();
            connection.answer(asked.id, "fine").await;
            assert_eq!(clients[0].reply("").await.text(), "fine", "{n}");
        }
    });
}

#[test]
fn silence_over_a_shared_connection_is_a_504_for_those_who_wait_and_no_more() {
    let configuration = format!(
        "[server.timeouts]\nreply_idle = \"8s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n{}",
        route(ON)
    );
    in_memory(&configuration, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let since = Instant::now();
        let mut clients = ask_at_once(world, 2).await;
        let mut connection = Connection::accept(&mut application).await;
        let silent = connection.asked().await.unwrap();
        let slow = connection.asked().await.unwrap();
        sleep(Duration::from_secs(6)).await;
        connection.send(stdout(slow.id, "A: b\n\nslow")).await;
        assert_eq!(clients[0].reply("").await.status(), 504);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(8) && took < Duration::from_millis(8300), "{took:?}");
        connection.send([stdout(slow.id, "ly"), end(slow.id)].concat()).await;
        assert_eq!(clients[1].reply("").await.text(), "slowly");
        connection.answer(silent.id, "too late").await;
        let mut more = ask_at_once(world, 1).await;
        let asked = connection.asked().await.expect("the connection goes on");
        connection.answer(asked.id, "in time").await;
        assert_eq!(more[0].reply("").await.text(), "in time");
        assert!(!application.has_visitor());
    });
}

#[test]
fn an_application_is_asked_whether_it_multiplexes_and_shares_no_connection_if_not() {
    in_memory(&route(", multiplex = \"auto\""), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut clients = ask_at_once(world, 2).await;
        let mut asking = Connection::accept(&mut application).await;
        let (kind, _, content) = asking.record().await.unwrap();
        assert_eq!(kind, GET_VALUES);
        let name = b"FCGI_MPXS_CONNS";
        assert!(content.windows(name.len()).any(|part| part == name));
        let values = [&[name.len() as u8, 1][..], name, b"0"].concat();
        asking.send(record(10, 0, &values)).await;
        // Each connection gets one request.
        let mut one = Connection::accept(&mut application).await;
        let mut two = Connection::accept(&mut application).await;
        for connection in [&mut one, &mut two] {
            let asked = connection.asked().await.unwrap();
            connection.answer(asked.id, &asked.query()).await;
        }
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.reply("").await.text(), n.to_string());
        }
    });
}

/// Returns a GET_VALUES_RESULT record with these pairs.
fn values(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (name, value) in pairs {
        content.extend([name.len() as u8, value.len() as u8]);
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(value.as_bytes());
    }
    record(10, 0, &content)
}

#[test]
fn an_answer_about_multiplexing_counts_within_250_ms() {
    for (answer, logged) in [
        (Some(values(&[("FCGI_MPXS_CONNS", "1"), ("FCGI_MAX_REQS", "10")])), None),
        (Some(values(&[("FCGI_MPXS_CONNS", "0")])), Some("does not multiplex")),
        (Some(values(&[])), Some("does not multiplex")),
        (Some(record(11, 0, &[9, 0, 0, 0, 0, 0, 0, 0])), Some("does not multiplex")),
        (Some(b"not FastCGI at all".to_vec()), Some("does not multiplex")),
        (None, Some("does not say whether")),
    ] {
        in_memory(&route(", multiplex = \"auto\""), async |world| {
            let mut application = world.backend("10.0.0.1:9000");
            let since = Instant::now();
            let mut clients = ask_at_once(world, 1).await;
            let mut asking = Connection::accept(&mut application).await;
            assert_eq!(asking.record().await.unwrap().0, GET_VALUES);
            if let Some(answer) = &answer {
                asking.send(answer.clone()).await;
            }
            let mut connection = Connection::accept(&mut application).await;
            let took = since.elapsed();
            let limit = Duration::from_millis(250);
            assert!(took <= limit * 2, "{answer:?}: {took:?}");
            assert!(answer.is_some() || took >= limit, "{took:?}");
            let asked = connection.asked().await.unwrap();
            connection.answer(asked.id, "fine").await;
            assert_eq!(clients[0].reply("").await.text(), "fine");
            let errors = world.errors();
            let said: Vec<_> = errors.iter().filter(|error| error.contains("multiplex")).collect();
            match logged {
                Some(part) => assert!(said.iter().any(|error| error.contains(part)), "{errors:?}"),
                None => assert!(said.is_empty(), "{errors:?}"),
            }
        });
    }
}

#[test]
fn a_client_that_falls_behind_max_buffered_is_cut_off_and_holds_up_nobody_else() {
    let keys = ", multiplex = \"on\", max_buffered = 100000";
    in_memory(&(route(keys) + "buffer = false\n"), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut clients = ask_at_once(world, 2).await;
        clients[0].link.limit_room(1000);
        let mut connection = Connection::accept(&mut application).await;
        let slow = connection.asked().await.unwrap();
        let fast = connection.asked().await.unwrap();
        let piece = "x".repeat(50_000);
        connection.send(stdout(slow.id, "A: b\n\n")).await;
        for _ in 0..20 {
            connection.send(stdout(slow.id, &piece)).await;
        }
        connection.answer(fast.id, "fast").await;
        assert_eq!(clients[1].reply("").await.text(), "fast");
        let (received, outcome) = clients[0].rest().await;
        assert!(outcome.is_err() && received.len() < 20 * piece.len(), "{}", received.len());
    });
}

#[test]
fn silence_of_an_application_that_never_reads_is_an_error() {
    let limits = "[server.timeouts]\nreply_idle = \"9s\"\nwrite = \"9s\"";
    let configuration = format!("{limits}\n[[site]]\nlisten = \"127.0.0.1:80\"\n{}", route(ON));
    in_memory(&configuration, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        let sending = async {
            client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n").await;
            client.send(vec![b'x'; 900_000]).await;
            client.reply("").await.status()
        };
        let since = Instant::now();
        let (_never_read, status) = tokio::join!(application.accept(), sending);
        assert!(matches!(status, 502 | 504), "{status}");
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(9) && took < Duration::from_secs(20), "{took:?}");
    });
}

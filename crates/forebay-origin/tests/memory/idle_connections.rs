//! How many idle connections to a backend are kept where nothing says how many: as many as were in
//! use at once, and no more once that is a while ago.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::fastcgi;
use crate::world::{Backend, Peer, World, in_memory};

const GET: &str = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
/// How long a backend takes: all that ask at one time are under way at once.
const WORK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 256;
/// Connections that are closed in half a second at the most, of 256 or fewer.
const AT_ONCE: usize = 16;

/// A protocol whose connections are kept.
struct Protocol {
    name: &'static str,
    route: &'static str,
    /// Its backend.
    to: &'static str,
    /// How a whole request without a body ends, if not by its length.
    is_whole: fn(&[u8]) -> bool,
    reply: fn() -> Vec<u8>,
    /// Seconds for which a connection may be idle.
    idle_time: u64,
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        name: "HTTP",
        route: "proxy = \"@backend\"",
        to: "http://10.0.0.1:80",
        is_whole: |asked| asked.ends_with(b"\r\n\r\n"),
        reply: || b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(),
        idle_time: 60,
    },
    Protocol {
        name: "FastCGI",
        route: "fastcgi = { to = \"@backend\", root = \"/srv/none\", scripts = \"*\" }",
        to: "10.0.0.1:80",
        is_whole: |asked| asked.ends_with(&[1, 5, 0, 1, 0, 0, 0, 0]),
        reply: || [fastcgi::stdout(1, "Content-Type: text/plain\n\nok"), fastcgi::end(1)].concat(),
        idle_time: 2,
    },
    Protocol {
        name: "AJP",
        route: "ajp = { to = \"@backend\" }",
        to: "10.0.0.1:80",
        is_whole: |asked| asked.len() > 4 && asked.len() == 4 + usize::from(asked[3]),
        reply: || b"AB\0\x08\x04\0\xc8\0\0\0\0\0AB\0\x06\x03\0\x02ok\0AB\0\x02\x05\x01".to_vec(),
        idle_time: 59,
    },
];

impl Protocol {
    fn route(&self, keys: &str) -> String {
        let Self { route, to, .. } = self;
        let group = format!("[upstream.backend]\nto = \"{to}\"\n{keys}\n");
        format!("[[site.route]]\npath = \"/x\"\n{route}\n{group}")
    }
}

/// What a backend has seen.
#[derive(Default)]
struct Seen {
    /// Connections that were made.
    made: Cell<usize>,
    /// Connections that are open.
    open: Cell<usize>,
}

impl Seen {
    fn of(world: &World, protocol: &'static Protocol) -> Rc<Self> {
        let seen = Rc::new(Self::default());
        let backend = world.backend("10.0.0.1:80");
        tokio::task::spawn_local(serve(backend, protocol, seen.clone()));
        seen
    }
}

async fn serve(mut backend: Backend, protocol: &'static Protocol, seen: Rc<Seen>) {
    loop {
        let connection = backend.accept().await;
        let seen = seen.clone();
        seen.made.set(seen.made.get() + 1);
        seen.open.set(seen.open.get() + 1);
        tokio::task::spawn_local(async move {
            let mut asked = Vec::new();
            while connection.link.read(&mut asked).await.is_ok_and(|read| read > 0) {
                if (protocol.is_whole)(&asked) {
                    asked.clear();
                    sleep(WORK).await;
                    connection.link.write(&(protocol.reply)()).await.unwrap();
                }
            }
            seen.open.set(seen.open.get() - 1);
        });
    }
}

fn clients(world: &World, count: usize) -> Vec<Peer> {
    (0..count).map(|_| world.client()).collect()
}

/// A request of each client, all at once.
async fn ask_at_once(clients: &mut [Peer]) {
    for client in &mut *clients {
        client.send(GET).await;
    }
    for client in clients {
        let reply = client.reply(GET).await;
        assert_eq!((reply.status(), reply.text()), (200, "ok"));
    }
}

#[test]
fn as_many_as_were_in_use_at_once_are_kept() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let seen = Seen::of(world, protocol);
            let mut clients = clients(world, CLIENTS);
            for _ in 0..20 {
                ask_at_once(&mut clients).await;
                assert_eq!((seen.made.get(), seen.open.get()), (256, 256), "{}", protocol.name);
            }
        });
    }
}

#[test]
fn what_was_not_in_use_for_a_while_is_closed_little_by_little() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let seen = Seen::of(world, protocol);
            ask_at_once(&mut clients(world, CLIENTS)).await;
            let mut few = clients(world, 4);
            let half_seconds = 2 * protocol.idle_time;
            for passed in 0..half_seconds + 2 + (CLIENTS / AT_ONCE) as u64 {
                let before = seen.open.get();
                ask_at_once(&mut few).await;
                sleep(Duration::from_millis(500) - WORK).await;
                if passed < half_seconds {
                    assert_eq!(seen.open.get(), CLIENTS, "{} at {passed}", protocol.name);
                }
                assert!(before - seen.open.get() <= AT_ONCE, "{} at {passed}", protocol.name);
            }
            assert_eq!((seen.made.get(), seen.open.get()), (CLIENTS, 4), "{}", protocol.name);
        });
    }
}

#[test]
fn keepalive_is_an_upper_bound() {
    for protocol in &PROTOCOLS {
        for (keepalive, kept) in [(0, 0), (3, 3), (300, 20)] {
            in_memory(&protocol.route(&format!("keepalive = {keepalive}")), async |world| {
                let seen = Seen::of(world, protocol);
                ask_at_once(&mut clients(world, 20)).await;
                sleep(WORK).await;
                assert_eq!(seen.open.get(), kept, "{}: {keepalive}", protocol.name);
            });
        }
    }
}

#[test]
fn descriptors_bound_what_all_routes_keep_together() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route("keepalive = 1000"), async |world| {
            world.gateway.limit_idle(7);
            let seen = Seen::of(world, protocol);
            let mut clients = clients(world, 20);
            for made in [20, 33, 46] {
                ask_at_once(&mut clients).await;
                sleep(WORK).await;
                assert_eq!((seen.made.get(), seen.open.get()), (made, 7), "{}", protocol.name);
            }
        });
    }
    let other = "[[site.route]]\nproxy = \"http://10.0.0.2:80\"\n";
    let routes = PROTOCOLS[0].route("").replacen("[upstream", &format!("{other}[upstream"), 1);
    in_memory(&routes, async |world| {
        world.gateway.limit_idle(7);
        let seen = Seen::of(world, &PROTOCOLS[0]);
        let mut elsewhere = world.backend("10.0.0.2:80");
        let mut client = world.client();
        client.send(GET.replace("/x", "/other")).await;
        let (_, mut kept) = elsewhere.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        client.reply(GET).await;
        ask_at_once(&mut clients(world, 20)).await;
        sleep(WORK).await;
        assert_eq!(seen.open.get(), 6, "one has its place elsewhere");
        sleep(Duration::from_secs(70)).await;
        assert!(kept.is_closed().await);
        ask_at_once(&mut clients(world, 20)).await;
        sleep(WORK).await;
        assert_eq!(seen.open.get(), 7, "its place is free again");
    });
}

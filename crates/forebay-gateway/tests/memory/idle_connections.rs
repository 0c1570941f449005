//! Number of idle connections to a backend without a configured number: the recent maximum of
//! connections in use at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use crate::fastcgi;
use crate::world::{Backend, Peer, World, in_memory};

pub const GET: &str = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
/// Duration of a backend's reply, so that simultaneous requests overlap.
const WORK: Duration = Duration::from_millis(10);
const CLIENTS: usize = 256;
/// Maximum number of connections that close within half a second, if there are 256 or fewer.
const AT_ONCE: usize = 16;

/// A protocol whose connections are kept.
pub struct Protocol {
    pub name: &'static str,
    route: &'static str,
    /// Backend of the route.
    to: &'static str,
    /// Returns true if these bytes are a whole request without a body.
    pub is_whole: fn(&[u8]) -> bool,
    pub reply: fn() -> Vec<u8>,
    /// Idle limit of a connection, in seconds.
    idle_time: u64,
}

pub const PROTOCOLS: [Protocol; 3] = [
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
    pub fn route(&self, keys: &str) -> String {
        let Self { route, to, .. } = self;
        let group = format!("[upstream.backend]\nto = \"{to}\"\n{keys}\n");
        format!("[[site.route]]\npath = \"/x\"\n{route}\n{group}")
    }
}

/// State of a backend.
#[derive(Default)]
struct Seen {
    /// Number of connections so far.
    made: Cell<usize>,
    /// Number of open connections.
    open: Cell<usize>,
    /// Numbers of the requests of `ask_in_turn`, in order of arrival.
    numbers: RefCell<Vec<usize>>,
}

impl Seen {
    fn of(world: &World, protocol: &'static Protocol) -> Rc<Self> {
        Self::at(world, "10.0.0.1:80", protocol)
    }

    fn at(world: &World, address: &str, protocol: &'static Protocol) -> Rc<Self> {
        let seen = Rc::new(Self::default());
        let backend = world.backend(address);
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
                    seen.numbers.borrow_mut().extend(number(&asked));
                    asked.clear();
                    sleep(WORK).await;
                    connection.link.write(&(protocol.reply)()).await.unwrap();
                }
            }
            seen.open.set(seen.open.get() - 1);
        });
    }
}

/// Returns the number in the query of a request.
fn number(asked: &[u8]) -> Option<usize> {
    let at = asked.windows(2).position(|pair| pair == b"n=")?;
    std::str::from_utf8(&asked[at + 2..at + 5]).unwrap().parse().ok()
}

fn clients(world: &World, count: usize) -> Vec<Peer> {
    (0..count).map(|_| world.client()).collect()
}

/// Sends a request from each client at once.
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
fn unused_connections_close_gradually() {
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

/// Sends a numbered request from each client without waiting for replies.
async fn ask_in_turn(clients: &mut [Peer]) {
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(GET.replace("/x", &format!("/x?n={n:03}"))).await;
    }
}

#[test]
fn waiting_requests_get_connections_in_turn() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route("max_connections = 8"), async |world| {
            let seen = Seen::of(world, protocol);
            let mut clients = clients(world, 100);
            for _ in 0..5 {
                ask_in_turn(&mut clients).await;
                for client in &mut clients {
                    assert_eq!(client.reply(GET).await.text(), "ok");
                }
                let in_turn: Vec<_> = (0..100).collect();
                assert_eq!(seen.numbers.take(), in_turn, "{}", protocol.name);
                assert_eq!((seen.made.get(), seen.open.get()), (8, 8), "{}", protocol.name);
            }
        });
    }
}

#[test]
fn leaving_the_queue_does_not_delay_others() {
    for protocol in &PROTOCOLS {
        for leave_after in [0, 1, 9, 10, 11, 12, 25] {
            in_memory(&protocol.route("max_connections = 4"), async |world| {
                let seen = Seen::of(world, protocol);
                let mut clients = clients(world, 40);
                ask_in_turn(&mut clients).await;
                sleep(Duration::from_millis(leave_after)).await;
                for client in (0..10).rev() {
                    drop(clients.remove(3 * client + 1));
                }
                for client in &mut clients {
                    assert_eq!(client.reply(GET).await.text(), "ok", "{}", protocol.name);
                }
                sleep(Duration::from_secs(1)).await;
                ask_at_once(&mut clients).await;
                assert!(seen.open.get() <= 4, "{}: {}", protocol.name, seen.open.get());
            });
        }
    }
}

#[test]
fn waiting_longer_than_the_connect_limit_is_an_error() {
    let keys = "max_connections = 1\nconnect_timeout = \"2s\"";
    in_memory(&PROTOCOLS[0].route(keys), async |world| {
        let mut backend = world.backend("10.0.0.1:80");
        let mut clients = clients(world, 3);
        clients[0].send(GET).await;
        let mut busy = backend.accept().await;
        busy.request().await;
        let since = tokio::time::Instant::now();
        clients[1].send(GET).await;
        assert_eq!(clients[1].reply(GET).await.status(), 503);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(2) && took <= Duration::from_millis(2_200), "{took:?}");
        // A request that waited in vain leaves the queue.
        clients[2].send(GET).await;
        sleep(WORK).await;
        busy.send((PROTOCOLS[0].reply)()).await;
        busy.request().await;
        busy.send((PROTOCOLS[0].reply)()).await;
        assert_eq!(clients[2].reply(GET).await.text(), "ok");
        assert!(!backend.has_visitor());
    });
}

/// Sends requests from `clients` clients at once. Returns the statuses.
async fn statuses(world: &World, path: &str, clients: usize) -> Vec<u16> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let asking = (0..clients).map(|_| {
        let (mut client, request) = (world.client(), request.clone());
        tokio::task::spawn_local(async move {
            client.send(&request).await;
            client.reply(&request).await.status()
        })
    });
    let mut statuses = Vec::new();
    for client in asking.collect::<Vec<_>>() {
        statuses.push(client.await.unwrap());
    }
    statuses
}

#[test]
fn idle_connections_are_closed_where_descriptors_run_out() {
    let routes = "[[site.route]]\npath = \"/a\"\nproxy = \"http://10.0.0.1:80\"\n\
                  [[site.route]]\npath = \"/b\"\nproxy = \"http://10.0.0.2:80\"\n";
    in_memory(routes, async |world| {
        let [a, b] = ["10.0.0.1:80", "10.0.0.2:80"].map(|at| Seen::at(world, at, &PROTOCOLS[0]));
        world.gateway.network().limit_connections(20);
        assert_eq!(statuses(world, "/a", 20).await, [200; 20]);
        assert_eq!(a.open.get(), 20);
        // For one new connection, the gateway closes several idle ones at once.
        assert_eq!(statuses(world, "/b", 1).await, [200]);
        assert_eq!((a.open.get(), b.open.get()), (20 - AT_ONCE, 1));
        // Connections to this server are reused, and those to the other server are closed.
        assert_eq!(statuses(world, "/b", 20).await, [200; 20]);
        assert_eq!((a.open.get(), b.open.get()), (0, 20));
        let errors = world.errors();
        let is_told = |line: &String| line.contains("idle connections to backends are closed");
        assert!(!errors.is_empty() && errors.iter().all(is_told), "{errors:#?}");
    });
}

#[test]
fn connections_in_use_are_not_closed_where_descriptors_run_out() {
    let routes = "[[site.route]]\npath = \"/a\"\nproxy = \"http://10.0.0.1:80\"\n";
    in_memory(routes, async |world| {
        let seen = Seen::at(world, "10.0.0.1:80", &PROTOCOLS[0]);
        world.gateway.network().limit_connections(2);
        let statuses = statuses(world, "/a", 5).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 3, "{statuses:?}");
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("Too many open files")), "{errors:#?}");
        assert_eq!(seen.made.get(), 2);
    });
}

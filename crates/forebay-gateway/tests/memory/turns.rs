//! A backend whose processes serve one connection at a time until it closes: every client gets a
//! process, although others keep their connections.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use crate::idle_connections::{GET, PROTOCOLS, Protocol};
use crate::world::{Backend, World, in_memory};

const WORK: Duration = Duration::from_millis(2);
/// Time after which idle connections close for a new one, while nothing is known of the backend.
const PATIENCE: Duration = Duration::from_millis(100);

/// Processes of a backend, which accept connections in order.
#[derive(Clone)]
struct Processes {
    free: Arc<Semaphore>,
    made: Rc<Cell<usize>>,
    /// Additional time of the first reply on a connection.
    start: Duration,
}

impl Processes {
    fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), made: Rc::default(), start: Duration::ZERO }
    }

    /// Serves the connections of `world`. A request takes as long as `work` returns; `/x?slow`
    /// takes a minute.
    fn serve(&self, world: &World, protocol: &'static Protocol, work: fn() -> Duration) {
        spawn_local(self.clone().run(world.backend("10.0.0.1:80"), protocol, work));
    }

    async fn run(self, mut backend: Backend, protocol: &'static Protocol, work: fn() -> Duration) {
        loop {
            let connection = backend.accept().await;
            self.made.set(self.made.get() + 1);
            let process = self.free.clone().acquire_owned();
            let start = self.start;
            spawn_local(async move {
                let _process = process.await;
                sleep(start).await;
                let mut asked = Vec::new();
                while connection.link.read(&mut asked).await.is_ok_and(|read| read > 0) {
                    if (protocol.is_whole)(&asked) {
                        let is_slow = asked.windows(4).any(|four| four == b"slow");
                        asked.clear();
                        sleep(if is_slow { Duration::from_secs(60) } else { work() }).await;
                        if connection.link.write(&(protocol.reply)()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    }
}

/// Starts a client that sends `count` requests in sequence. Returns its end time.
fn client(world: &World, count: usize) -> JoinHandle<Instant> {
    let mut client = world.client();
    spawn_local(async move {
        for _ in 0..count {
            client.send(GET).await;
            assert_eq!(client.reply(GET).await.text(), "ok");
        }
        Instant::now()
    })
}

#[test]
fn clients_whose_connections_were_kept_leave_others_their_turn() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            Processes::new(2).serve(world, protocol, || WORK);
            let begun = Instant::now();
            let clients: Vec<_> = (0..8).map(|_| client(world, 100)).collect();
            for client in clients {
                let took = client.await.unwrap() - begun;
                // 800 requests, two at once. With fair turns, all clients end at about the same
                // time.
                assert!(
                    took > 600 * WORK / 2 && took < 900 * WORK / 2,
                    "{}: {took:?}",
                    protocol.name
                );
            }
        });
    }
}

#[test]
fn a_burst_is_answered_although_nobody_asks_again() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            Processes::new(2).serve(world, protocol, || WORK);
            let begun = Instant::now();
            for client in (0..40).map(|_| client(world, 1)).collect::<Vec<_>>() {
                let took = client.await.unwrap() - begun;
                assert!(took < PATIENCE + 80 * WORK, "{}: {took:?}", protocol.name);
            }
        });
    }
}

#[test]
fn a_thread_without_a_process_gets_one_that_another_thread_keeps_idle() {
    for protocol in &PROTOCOLS {
        let routes = protocol.route("");
        in_memory(&routes, async |world| {
            let (processes, other) = (Processes::new(2), world.another_thread(&routes));
            processes.serve(world, protocol, || WORK);
            processes.serve(&other, protocol, || WORK);
            for client in [client(world, 3), client(world, 3)] {
                client.await.unwrap();
            }
            let begun = Instant::now();
            let took = client(&other, 1).await.unwrap() - begun;
            assert!(took < 2 * PATIENCE, "{}: {took:?}", protocol.name);
            assert_eq!(processes.made.get(), 3, "{}: the other is kept", protocol.name);
        });
    }
}

#[test]
fn a_backend_that_is_slow_on_new_connections_keeps_the_old_ones() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let processes = Processes { start: 20 * WORK, ..Processes::new(1024) };
            processes.serve(world, protocol, || WORK);
            let visitors: Vec<_> = (0..8)
                .map(|number| {
                    let visits = (0..200).map(|_| world.client()).collect::<Vec<_>>();
                    spawn_local(async move {
                        // Each begins while the kept connections of those before it are in use.
                        sleep(number * PATIENCE).await;
                        for mut visit in visits {
                            visit.send(GET).await;
                            assert_eq!(visit.reply(GET).await.text(), "ok");
                        }
                    })
                })
                .collect();
            for visitor in visitors {
                visitor.await.unwrap();
            }
            assert!(processes.made.get() <= 20, "{}: {}", protocol.name, processes.made.get());
        });
    }
}

#[test]
fn a_request_that_takes_long_costs_others_one_connection() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let processes = Processes::new(100);
            processes.serve(world, protocol, || WORK);
            let clients: Vec<_> = (0..3).map(|_| client(world, 1000)).collect();
            // All three requests are active.
            sleep(WORK / 2).await;
            let mut slow = world.client();
            let slow_request = GET.replace("/x", "/x?slow");
            slow.send(&slow_request).await;
            for client in clients {
                client.await.unwrap();
            }
            slow.reply(&slow_request).await;
            assert_eq!(processes.made.get(), 5, "{}: one was closed, and made anew", protocol.name);
        });
    }
}

#[test]
fn connections_are_kept_where_a_process_is_left_for_each() {
    let some_time = || Duration::from_millis(fastrand::u64(100..300));
    let works: [fn() -> Duration; 3] = [|| WORK, || Duration::from_millis(400), some_time];
    for protocol in &PROTOCOLS {
        for (n, work) in works.into_iter().enumerate() {
            in_memory(&protocol.route(""), async |world| {
                // Fixes the random times. With other times, the gateway opens some more connections
                // in about one of 30 runs.
                fastrand::seed(7);
                let processes = Processes::new(1000);
                processes.serve(world, protocol, work);
                // In each span of 10 s, about 1,800 clients send one request each and leave.
                let mut made = Vec::new();
                for _ in 0..3 {
                    let before = processes.made.get();
                    let end = Instant::now() + Duration::from_secs(10);
                    let mut clients = Vec::new();
                    while Instant::now() < end {
                        sleep(Duration::from_millis(fastrand::u64(0..10))).await;
                        clients.push(client(world, 1));
                    }
                    for client in clients {
                        client.await.unwrap();
                    }
                    made.push(processes.made.get() - before);
                }
                // The last span has about 1,800 requests.
                assert!(made[2] <= 30, "{}, {n}: {made:?}", protocol.name);
            });
        }
    }
}

/// Replies may take any time after their first byte.
#[test]
fn a_reply_that_goes_on_is_an_answer() {
    let [http, _, ajp] = &PROTOCOLS;
    let post = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab";
    for (protocol, request) in [(http, GET), (http, post), (ajp, GET)] {
        in_memory(&protocol.route(""), async |world| {
            let mut backend = world.backend("10.0.0.1:80");
            let mut peers = Vec::new();
            for _ in 0..2 {
                let mut client = world.client();
                client.send(request).await;
                let connection = backend.accept().await;
                let mut asked = Vec::new();
                while !(protocol.is_whole)(&asked) && !asked.ends_with(b"\r\n\r\nab") {
                    assert!(connection.link.read(&mut asked).await.unwrap() > 0);
                }
                peers.push((client, connection));
            }
            let reply = (protocol.reply)();
            let (first, rest) = reply.split_at(reply.len() - 3);
            for (_, connection) in &peers {
                connection.link.write(first).await.unwrap();
            }
            sleep(10 * PATIENCE).await;
            for (client, connection) in &mut peers {
                connection.link.write(rest).await.unwrap();
                assert_eq!(client.reply(request).await.text(), "ok");
            }
            for (_, connection) in &mut peers {
                let closed = tokio::time::timeout(WORK, connection.is_closed()).await;
                assert!(closed.is_err(), "{} {request}", protocol.name);
            }
        });
    }
}

#[test]
fn a_process_that_was_kept_under_the_configuration_before_is_given_up_as_well() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let processes = Processes::new(2);
            processes.serve(world, protocol, || WORK);
            // The slow request occupies one process. The kept connection of the next client
            // occupies the other.
            let mut slow = world.client();
            let slow_request = GET.replace("/x", "/x?slow");
            slow.send(&slow_request).await;
            client(world, 2).await.unwrap();
            world.reload();
            let begun = Instant::now();
            let took = client(world, 1).await.unwrap() - begun;
            assert!(took < 2 * PATIENCE, "{}: {took:?}", protocol.name);
            slow.reply(&slow_request).await;
        });
    }
}

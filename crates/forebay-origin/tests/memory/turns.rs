//! A backend whose processes serve one connection each, for as long as that is open: nobody is left
//! without a process because others keep theirs.

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
/// After so long idle connections are closed for a new one.
const PATIENCE: Duration = Duration::from_millis(200);

/// The processes of a backend, which take connections up in the order in which they were made.
struct Processes {
    free: Arc<Semaphore>,
    made: Rc<Cell<usize>>,
}

impl Processes {
    fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), made: Rc::default() }
    }

    /// Has them serve the connections that `world` makes; a request for `/x?slow` takes a minute.
    fn serve(&self, world: &World, protocol: &'static Protocol) {
        let (backend, free) = (world.backend("10.0.0.1:80"), self.free.clone());
        spawn_local(serve(backend, protocol, free, self.made.clone()));
    }
}

async fn serve(
    mut backend: Backend,
    protocol: &'static Protocol,
    free: Arc<Semaphore>,
    made: Rc<Cell<usize>>,
) {
    loop {
        let connection = backend.accept().await;
        made.set(made.get() + 1);
        let process = free.clone().acquire_owned();
        spawn_local(async move {
            let _process = process.await;
            let mut asked = Vec::new();
            while connection.link.read(&mut asked).await.is_ok_and(|read| read > 0) {
                if (protocol.is_whole)(&asked) {
                    let is_slow = asked.windows(4).any(|four| four == b"slow");
                    asked.clear();
                    sleep(if is_slow { Duration::from_secs(60) } else { WORK }).await;
                    if connection.link.write(&(protocol.reply)()).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}

/// A client that sends `count` requests, one after the other, and says when it is done.
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
            Processes::new(2).serve(world, protocol);
            let begun = Instant::now();
            let clients: Vec<_> = (0..8).map(|_| client(world, 100)).collect();
            for client in clients {
                let took = client.await.unwrap() - begun;
                // 800 requests, two at once. In turn all end as late.
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
            Processes::new(2).serve(world, protocol);
            let begun = Instant::now();
            for client in (0..40).map(|_| client(world, 1)).collect::<Vec<_>>() {
                let took = client.await.unwrap() - begun;
                assert!(took < 2 * PATIENCE + 40 * WORK, "{}: {took:?}", protocol.name);
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
            processes.serve(world, protocol);
            processes.serve(&other, protocol);
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
fn a_request_that_takes_long_costs_others_one_connection() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let processes = Processes::new(100);
            processes.serve(world, protocol);
            client(world, 3).await.unwrap();
            let clients: Vec<_> = (0..3).map(|_| client(world, 1000)).collect();
            let mut slow = world.client();
            let slow_request = GET.replace("/x", "/x?slow");
            slow.send(&slow_request).await;
            for client in clients {
                client.await.unwrap();
            }
            slow.reply(&slow_request).await;
            assert!(processes.made.get() <= 6, "{}: {}", protocol.name, processes.made.get());
        });
    }
}

#[test]
fn connections_are_kept_where_a_process_is_left_for_each() {
    for protocol in &PROTOCOLS {
        in_memory(&protocol.route(""), async |world| {
            let processes = Processes::new(64);
            processes.serve(world, protocol);
            let clients: Vec<_> = (0..64).map(|_| client(world, 200)).collect();
            for client in clients {
                client.await.unwrap();
            }
            assert!(processes.made.get() <= 70, "{}: {}", protocol.name, processes.made.get());
        });
    }
}

//! Clients that send requests without pauses during an event.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::http::{Client, Reply};

use super::Forebay;

/// The number of replies with each status; 0 stands for a reply that was cut off.
pub type Counts = BTreeMap<u16, usize>;

/// Runs this many clients with `ask` while `during` runs. `during` gets the number of replies so
/// far. If a reply was cut off, its client continues on another connection.
pub fn load(
    forebay: &Forebay,
    clients: usize,
    ask: impl Fn(&mut Client) -> io::Result<Reply> + Sync,
    during: impl FnOnce(&AtomicUsize),
) -> Counts {
    let (stop, replies) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask_on = || {
        let mut counts = Counts::new();
        let mut client = forebay.connect();
        while !stop.load(Ordering::Relaxed) {
            let status = ask(&mut client).map_or(0, |reply| reply.status);
            if status == 0 {
                client = forebay.connect();
            }
            *counts.entry(status).or_default() += 1;
            replies.fetch_add(1, Ordering::Relaxed);
        }
        counts
    };
    thread::scope(|scope| {
        // Stops the clients also if `during` panics.
        let stopping = Stop(&stop);
        let clients: Vec<_> = (0..clients).map(|_| scope.spawn(ask_on)).collect();
        during(&replies);
        drop(stopping);
        let mut sum = Counts::new();
        for client in clients {
            for (status, count) in client.join().expect("clients go on") {
                *sum.entry(status).or_default() += count;
            }
        }
        sum
    })
}

/// Sets the flag when it is dropped, also if an assertion has failed.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

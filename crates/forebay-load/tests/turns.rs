//! Load in several turns: some state is kept between turns, and the rest is not.

mod support;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use forebay_load::{Arrivals, Control, Outcome, Rate, Spec, Stop, Turns};

use support::{Server, spec};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn turn(turns: &mut Turns, stop: Stop) -> Outcome {
    turns.run(stop, None, &Control::default()).unwrap()
}

#[test]
fn connections_stay_open_between_turns() {
    let server = Server::answering(HELLO);
    // With a thread of its own, one connection could send all requests before the other starts.
    let one_thread = Spec { threads: 1, ..spec(server.url(), 1) };
    let mut turns = Turns::new(&one_thread).unwrap();
    for count in 1..=3 {
        let outcome = turn(&mut turns, Stop::Requests(20));
        assert_eq!((outcome.requests.completed, outcome.requests.failed), (20, 0));
        assert_eq!(outcome.latency.count(), 20, "each turn counts for itself");
        assert_eq!((server.requests(), server.connections()), (20 * count, 2));
    }
}

#[test]
fn a_turn_with_a_rate_that_the_server_cannot_keep_has_missed_it() {
    let gate = Mutex::new(());
    let server = Server::start(move |peer| {
        while peer.request().is_some() {
            let held = gate.lock().unwrap();
            thread::sleep(Duration::from_millis(5));
            drop(held);
            peer.send(HELLO.as_bytes());
        }
    });
    // The server answers at most 200 requests per second, and has enough connections for 600.
    let many = Spec { connections: 600, ..spec(server.url(), 1) };
    let mut turns = Turns::new(&many).unwrap();
    let rate = Rate { per_second: 300.0, arrivals: Arrivals::Even };
    let stop = Stop::Duration(Duration::from_millis(1500));
    let outcome = turns.run(stop, Some(rate), &Control::default()).unwrap();
    assert!(outcome.shortfall > 0.2 && outcome.has_missed_rate(), "{}", outcome.shortfall);
}

#[test]
fn nothing_is_under_way_after_a_turn_by_duration() {
    let server = Server::answering(HELLO);
    let mut turns = Turns::new(&spec(server.url(), 1)).unwrap();
    for _ in 0..3 {
        let before = server.requests();
        let outcome = turn(&mut turns, Stop::Duration(Duration::from_millis(20)));
        let requests = &outcome.requests;
        assert_eq!((requests.sent, requests.failed), (requests.completed, 0), "{outcome:?}");
        assert_eq!(server.requests() - before, requests.completed);
    }
}

#[test]
fn a_slow_reply_is_waited_for_at_the_end_of_a_turn() {
    let server = Server::start(|peer| {
        while peer.request().is_some() {
            std::thread::sleep(Duration::from_millis(60));
            peer.send(HELLO.as_bytes());
        }
    });
    let mut turns = Turns::new(&spec(server.url(), 1)).unwrap();
    let outcome = turn(&mut turns, Stop::Duration(Duration::from_millis(5)));
    assert_eq!((outcome.requests.completed, outcome.requests.failed), (2, 0), "{outcome:?}");
    assert!(outcome.duration >= Duration::from_millis(60), "{outcome:?}");
}

#[test]
fn a_connection_that_the_server_closed_meanwhile_is_replaced() {
    let server = Server::start(|peer| {
        for _ in 0..5 {
            if peer.request().is_none() {
                return;
            }
            peer.send(HELLO.as_bytes());
        }
    });
    let one = Spec { connections: 1, ..spec(server.url(), 1) };
    let mut turns = Turns::new(&one).unwrap();
    for count in 1..=3 {
        let outcome = turn(&mut turns, Stop::Requests(5));
        assert_eq!((outcome.requests.completed, outcome.requests.failed), (5, 0), "{outcome:?}");
        assert_eq!(server.connections(), count);
        server.wait_for_closed(count);
    }
}

#[test]
fn requests_that_are_not_due_at_the_end_are_given_up() {
    let server = Server::answering(HELLO);
    let mut turns = Turns::new(&spec(server.url(), 1)).unwrap();
    // The second request of each thread would be due after several hours.
    let rate = Some(Rate { per_second: 0.0001, arrivals: Arrivals::Even });
    for _ in 0..2 {
        let stop = Stop::Duration(Duration::from_millis(20));
        let outcome = turns.run(stop, rate, &Control::default()).unwrap();
        assert_eq!(outcome.requests.failed + outcome.requests.unsent, 0, "{outcome:?}");
    }
    let outcome = turn(&mut turns, Stop::Requests(8));
    assert_eq!(outcome.requests.completed, 8, "the next turn is as any other");
}

#[test]
fn turns_add_up() {
    let server = Server::answering(HELLO);
    let mut turns = Turns::new(&spec(server.url(), 1)).unwrap();
    let each: Vec<Outcome> = (1..=3).map(|n| turn(&mut turns, Stop::Requests(n * 10))).collect();
    let time = each.iter().map(|outcome| outcome.duration).sum::<Duration>();
    let sum = Outcome::sum(each).unwrap();
    assert_eq!((sum.requests.completed, sum.latency.count()), (60, 60));
    assert_eq!((sum.requests.status[&200], sum.bytes.body), (60, 300));
    assert_eq!(sum.duration, time);
    assert!(Outcome::sum(Vec::new()).is_none());
}

#[test]
fn a_client_is_saturated_if_it_was_so_for_most_of_the_time() {
    let sum_of = |turns: &str| {
        let turns = turns.chars().map(|turn| {
            let mut outcome = Outcome { duration: Duration::from_secs(1), ..Outcome::default() };
            outcome.client.saturated = turn == 'S';
            outcome.client.saturated_for = Duration::from_secs((turn == 'S').into());
            outcome
        });
        // `compare` adds one turn after the other.
        turns.reduce(|sum, turn| Outcome::sum([sum, turn]).unwrap()).unwrap().client.saturated
    };
    assert!(sum_of("NSS") && sum_of("SSN"));
    assert!(!sum_of("SSNNN") && !sum_of("NNNSS"));
}

//! Requests that wait in a worker's prefetch queue while the worker runs another one.
#![allow(missing_docs)]

mod support;

use forebay_workers::{App, Body, EndKind, LeaseEvent, WorkerFault, WorkerState, Workers};
use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use support::{Scripts, block, finish, get, join_all, kill, request, until};

/// A script that sleeps for SLEEP seconds, and then prints N and MUCH spaces.
const ECHO: &str = "#!/usr/bin/perl\nsleep $ENV{SLEEP} if $ENV{SLEEP};\n\
    print $ENV{N}, ' ' x ($ENV{MUCH} || 0);\n";

/// Starts an application, and sends requests until the pool has learnt that they only compute.
async fn computing(scripts: &Scripts, workers: usize) -> (App, String) {
    let echo = scripts.add("echo.pl", ECHO);
    let app = scripts.start(|spec| spec.workers = Workers { min: workers, max: workers });
    until("all workers are idle", || {
        app.status().iter().filter(|worker| worker.state == WorkerState::Idle).count() == workers
    })
    .await;
    for _ in 0..1000 {
        get(&app, &echo).await;
    }
    (app, echo)
}

async fn echo(app: &App, script: &str, n: &str, more: &[(&str, &str)]) {
    let more = [&[("N", n)], more].concat();
    let (kind, output) = request(app, script, &more, Body::Empty).await.expect("a reply");
    assert_eq!((kind, output.trim_end()), (EndKind::Ok, n));
}

#[tokio::test]
async fn many_requests_at_once_get_their_own_replies() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 2).await;
    let client = |client: usize| {
        let (app, script) = (&app, &script);
        async move {
            for i in 0..300 {
                // Some replies are larger than a socket's buffer.
                let much = if i % 50 == client { "300000" } else { "0" };
                echo(app, script, &format!("{client}-{i}"), &[("MUCH", much)]).await;
            }
        }
    };
    let clients: Vec<_> = (0..12).map(client).collect();
    join_all(clients).await;
    let workers = app.status();
    let requests: u64 = workers.iter().map(|worker| worker.requests).sum();
    assert_eq!(requests, 1000 + 12 * 300);
    assert!(workers.iter().any(|worker| worker.prefetched > 0), "none lay ready: {workers:?}");
}

#[tokio::test]
async fn requests_after_a_slow_one_go_to_another_worker() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 2).await;
    let order = RefCell::new(Vec::new());
    let slow = async {
        echo(&app, &script, "slow", &[("SLEEP", "2")]).await;
        order.borrow_mut().push("slow");
    };
    let quick = |n: usize| {
        let (app, script, order) = (&app, &script, &order);
        async move {
            echo(app, script, &n.to_string(), &[]).await;
            order.borrow_mut().push("quick");
        }
    };
    let quick = join_all((0..20).map(quick).collect::<Vec<_>>());
    tokio::join!(slow, quick);
    assert_eq!(order.borrow().last(), Some(&"slow"));
}

#[tokio::test]
async fn a_reply_that_nobody_reads_holds_nobody_up() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 2).await;
    // The reply fits the socket's buffer, so its worker continues with the next request.
    let environment = block(&script, &[("N", "unread"), ("MUCH", "100000")]);
    let mut unread = app.checkout_for(&environment, Body::Empty).await.unwrap();
    let other = app.checkout().await.unwrap();
    unread.send(&environment, Body::Empty).await.unwrap();
    let mut behind = pin!(echo(&app, &script, "behind", &[]));
    assert!(poll_once(behind.as_mut()).await.is_none());
    let mut output = Vec::new();
    assert!(matches!(unread.read(&mut output).await, Ok(LeaseEvent::Output(_))));
    drop(other);
    behind.await;
    let (kind, rest) = finish(&mut unread).await.unwrap();
    assert_eq!((kind, output.len() + rest.len()), (EndKind::Ok, 100_006));
}

#[tokio::test]
async fn requests_that_leave_the_prefetch_queue_cost_no_worker() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 1).await;
    let pid = app.status()[0].pid;
    for _ in 0..50 {
        let environment = block(&script, &[("N", "kept")]);
        let mut kept = app.checkout_for(&environment, Body::Empty).await.unwrap();
        kept.send(&environment, Body::Empty).await.unwrap();
        {
            let mut left = pin!(echo(&app, &script, "left", &[]));
            assert!(poll_once(left.as_mut()).await.is_none());
        }
        assert_eq!(finish(&mut kept).await.unwrap(), (EndKind::Ok, "kept".into()));
        echo(&app, &script, "next", &[]).await;
    }
    assert_eq!(app.status()[0].pid, pid);
}

#[tokio::test]
async fn unread_requests_of_a_killed_worker_run_in_another() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 1).await;
    for _ in 0..5 {
        let pid = app.status()[0].pid;
        let killed = request(&app, &script, &[("SLEEP", "20")], Body::Empty);
        let behind = echo(&app, &script, "behind", &[]);
        let killer = async {
            until("it runs", || app.status().iter().any(|it| it.current_request.is_some())).await;
            kill(pid);
        };
        let (killed, (), ()) = tokio::join!(killed, behind, killer);
        let Err(WorkerFault::Died { .. }) = killed else { panic!("{killed:?}") };
        until("the next is there", || app.status().iter().any(|it| it.pid != pid)).await;
        // The pool learns again, because the sleep has changed its knowledge of these requests.
        for _ in 0..400 {
            get(&app, &script).await;
        }
    }
}

#[tokio::test]
async fn unread_requests_of_an_ending_worker_run_in_another() {
    let scripts = Scripts::new();
    let (app, script) = computing(&scripts, 2).await;
    let leaves =
        scripts.add("leaves.pl", "#!/usr/bin/perl\n$| = 1; print $ENV{N}; system 'sleep 5 &';");
    let before = app.status().iter().map(|worker| worker.pid).collect::<Vec<_>>();
    let client = |client: usize| {
        let (app, script, leaves) = (&app, &script, &leaves);
        async move {
            for i in 0..60 {
                let script = if (client + i).is_multiple_of(20) { leaves } else { script };
                echo(app, script, &format!("{client}-{i}"), &[]).await;
            }
        }
    };
    join_all((0..12).map(client).collect()).await;
    let workers = app.status();
    assert!(workers.iter().all(|worker| !before.contains(&worker.pid)), "both have ended");
    assert_eq!(app.health().crashes, 0);
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

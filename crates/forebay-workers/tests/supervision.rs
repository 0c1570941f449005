//! Workers that die, hang, leak or are too few, requests on two threads, and the shutdown.

mod support;

use forebay_workers::{
    App, Body, EndKind, Exit, Unavailable, WorkerFault, WorkerState, WorkerStatus, Workers,
};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use support::{DEADLINE, Scripts, block, exists, finish, get, kill, request, until};

const HELLO: &str = "#!/usr/bin/perl\nprint 'hello ', $$";
const HANG: &str = "#!/usr/bin/perl\n$| = 1; print 'begun'; sleep 1 while 1;";

async fn running(app: &App, count: usize) -> Vec<WorkerStatus> {
    let idle = |app: &App| {
        let status = app.status();
        status.iter().all(|worker| worker.state == WorkerState::Idle).then_some(status)
    };
    until(&format!("{count} idle workers"), || idle(app).is_some_and(|all| all.len() == count))
        .await;
    app.status()
}

#[tokio::test]
async fn a_worker_killed_while_idle_is_replaced_and_no_request_notices() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|spec| spec.workers = Workers { min: 2, max: 2 });
    for _ in 0..5 {
        for worker in running(&app, 2).await {
            kill(worker.pid);
        }
        let mut lease = app.checkout().await.unwrap();
        let reply = match lease.send(&block(&hello, &[]), Body::Empty).await {
            Ok(()) => finish(&mut lease).await,
            Err(fault) => Err(fault),
        };
        match reply {
            Ok((EndKind::Ok, output)) => assert!(output.starts_with("hello")),
            Err(fault) => assert!(fault.may_retry(), "{fault:?}"),
            other => panic!("{other:?}"),
        }
    }
    running(&app, 2).await;
}

#[tokio::test]
async fn a_worker_killed_in_a_request_costs_that_request() {
    let scripts = Scripts::new();
    let hang = scripts.add("hang.pl", HANG);
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|_| ());
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&hang, &[("REQUEST_URI", "/hang?x")]), Body::Empty).await.unwrap();
    let mut output = Vec::new();
    lease.read(&mut output).await.unwrap();
    let status = app.status();
    assert_eq!(status[0].state, WorkerState::Busy);
    assert_eq!(status[0].current_request.as_deref(), Some("GET /hang?x"));
    assert!(status[0].rss > 1 << 20);
    kill(status[0].pid);
    match finish(&mut lease).await {
        Err(WorkerFault::Died { exit: Exit::Signal(9), any_output: true, retry: false }) => {}
        other => panic!("{other:?}"),
    }
    assert!(get(&app, &hello).await.starts_with("hello"));
    scripts.logged("signal 9 (SIGKILL): unasked").await;
}

#[tokio::test]
async fn a_child_that_outlives_its_worker_does_not_hold_the_request() {
    let scripts = Scripts::new();
    let leaves = "#!/usr/bin/perl\nuse POSIX; $| = 1; print 'begun';\n\
         if (!fork) { POSIX::setsid(); open STDIN, '<', '/dev/null'; open STDOUT, '>', '/dev/null';\n\
         open STDERR, '>', '/dev/null'; sleep 30; POSIX::_exit(0) }\n";
    let dies = scripts.add("dies.pl", &format!("{leaves}kill 9, $$; sleep 30"));
    let hangs = scripts.add("hangs.pl", &format!("{leaves}sleep 30"));
    let app = scripts.start(|spec| spec.request_timeout = Duration::from_secs(2));
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&dies, &[]), Body::Empty).await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(10), finish(&mut lease)).await;
    assert!(matches!(outcome, Ok(Err(WorkerFault::Died { .. }))), "{outcome:?}");
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&hangs, &[]), Body::Empty).await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(10), finish(&mut lease)).await;
    assert!(matches!(outcome, Ok(Err(WorkerFault::Timeout { .. }))), "{outcome:?}");
}

#[tokio::test]
async fn a_request_that_was_not_taken_in_may_be_retried() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|_| ());
    let mut lease = app.checkout().await.unwrap();
    let pid = lease.pid().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::STOP).unwrap();
    lease.send(&block(&hello, &[]), Body::Empty).await.unwrap();
    kill(pid);
    match finish(&mut lease).await {
        Err(fault @ WorkerFault::Died { exit: Exit::Signal(9), .. }) => assert!(fault.may_retry()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_hanging_script_ends_with_its_children_at_the_time_limit() {
    let scripts = Scripts::new();
    let hang = scripts.add(
        "hang.pl",
        "#!/usr/bin/perl\n$| = 1; my $p = fork // die; if (!$p) { sleep 1 while 1 }\n\
         print $p; sleep 1 while 1;",
    );
    let app = scripts.start(|spec| spec.request_timeout = Duration::from_millis(300));
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&hang, &[]), Body::Empty).await.unwrap();
    let mut output = Vec::new();
    lease.read(&mut output).await.unwrap();
    let child: u32 = String::from_utf8(output).unwrap().parse().unwrap();
    assert!(exists(child));
    match finish(&mut lease).await {
        Err(WorkerFault::Timeout { any_output: true }) => {}
        other => panic!("{other:?}"),
    }
    until("the child is gone", || !exists(child)).await;
    let hello = scripts.add("hello.pl", HELLO);
    assert!(get(&app, &hello).await.starts_with("hello"));
    scripts.logged("a request took longer than allowed").await;
}

#[tokio::test]
async fn a_lease_dropped_in_a_request_ends_the_worker_and_another_comes() {
    let scripts = Scripts::new();
    let hang = scripts.add("hang.pl", HANG);
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|_| ());
    for _ in 0..5 {
        let mut lease = app.checkout().await.unwrap();
        let pid = lease.pid().unwrap();
        lease.send(&block(&hang, &[]), Body::Empty).await.unwrap();
        drop(lease);
        assert!(get(&app, &hello).await.starts_with("hello"));
        assert!(!exists(pid));
    }
    let unused = app.checkout().await.unwrap();
    let pid = unused.pid();
    drop(unused);
    assert_eq!(app.checkout().await.unwrap().pid(), pid, "not used, so not ended");
}

#[tokio::test]
async fn the_queue_has_a_limit_a_deadline_and_an_order() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|spec| {
        spec.queue = 2;
        spec.queue_timeout = Duration::from_millis(200);
    });
    let held = app.checkout().await.unwrap();
    let (first, second, third) = tokio::join!(app.checkout(), app.checkout(), app.checkout());
    assert_eq!(first.err(), Some(Unavailable::QueueTimeout));
    assert_eq!(second.err(), Some(Unavailable::QueueTimeout));
    assert_eq!(third.err(), Some(Unavailable::QueueFull));
    let order = std::cell::RefCell::new(Vec::new());
    let one = |n| {
        let (app, hello, order) = (app.clone(), hello.clone(), &order);
        async move {
            let mut lease = app.checkout().await.unwrap();
            order.borrow_mut().push(n);
            lease.send(&block(&hello, &[]), Body::Empty).await.unwrap();
            finish(&mut lease).await.unwrap();
        }
    };
    tokio::join!(one(1), one(2), async move {
        tokio::task::yield_now().await;
        drop(held);
    });
    assert_eq!(*order.borrow(), [1, 2]);
}

#[tokio::test]
async fn a_request_that_leaves_the_queue_loses_no_worker() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    for _ in 0..50 {
        let held = app.checkout().await.unwrap();
        let mut waiting = Box::pin(app.checkout());
        assert!(futures_poll(&mut waiting).await.is_none());
        drop(held); // gives the worker to the waiting request ...
        drop(waiting); // ... which is not wanted any more
    }
    assert!(app.checkout().await.is_ok());
    assert_eq!(app.status().len(), 1);
}

async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

#[test]
fn two_threads_share_the_workers() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", "#!/usr/bin/perl\nprint $ENV{N}");
    let app = scripts.start(|spec| spec.workers = Workers { min: 3, max: 3 });
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let (app, hello) = (app.clone(), hello.clone());
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let local = tokio::task::LocalSet::new();
                for task in 0..4 {
                    let (app, hello) = (app.clone(), hello.clone());
                    local.spawn_local(async move {
                        for i in 0..500 {
                            let n = format!("{thread}-{task}-{i}");
                            let more = [("N", n.as_str())];
                            let reply = request(&app, &hello, &more, Body::Empty).await;
                            assert_eq!(reply.unwrap(), (EndKind::Ok, n));
                        }
                    });
                }
                runtime.block_on(local);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let requests: u64 = app.status().iter().map(|worker| worker.requests).sum();
    assert_eq!(requests, 4000);
}

#[tokio::test]
async fn workers_killed_at_random_cost_their_own_request_only() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", "#!/usr/bin/perl\nprint $ENV{N}");
    let app = scripts.start(|spec| spec.workers = Workers { min: 3, max: 3 });
    let kills = std::cell::Cell::new(0u32);
    let client = |client| {
        let (app, hello, kills) = (app.clone(), hello.clone(), &kills);
        async move {
            let mut lost = 0;
            let mut i = 0;
            while kills.get() < 30 {
                i += 1;
                let n = format!("{client}-{i}");
                match request(&app, &hello, &[("N", &n)], Body::Empty).await {
                    Ok(reply) => assert_eq!(reply, (EndKind::Ok, n)),
                    Err(WorkerFault::Died { exit: Exit::Signal(9), .. }) => lost += 1,
                    Err(fault) => panic!("{fault:?}"),
                }
            }
            lost
        }
    };
    let killer = async {
        for i in 0..30 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut workers = app.status();
            workers.retain(|worker| worker.state != WorkerState::Starting);
            if let Some(victim) = workers.get(i % workers.len().max(1)) {
                kill(victim.pid);
            }
            kills.set(kills.get() + 1);
        }
    };
    let (a, b, c, d, ()) = tokio::join!(client(1), client(2), client(3), client(4), killer);
    assert!(a + b + c + d <= 30);
    running(&app, 3).await;
}

#[tokio::test]
async fn twenty_thousand_requests_without_a_failure_or_growth() {
    let scripts = Scripts::new();
    let time = scripts.add(
        "time.pl",
        "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\", scalar localtime, $ENV{PORT};",
    );
    let app = scripts.start(|_| ());
    let mut after_warm_up = 0;
    for i in 0..20_000 {
        let port = (32_768 + i).to_string();
        let reply = request(&app, &time, &[("PORT", &port)], Body::Empty).await.unwrap();
        assert!(reply.0 == EndKind::Ok && reply.1.ends_with(&port), "{reply:?}");
        if i == 2000 {
            after_warm_up = app.status()[0].rss;
        }
    }
    let worker = &app.status()[0];
    assert_eq!(worker.requests, 20_000);
    let growth = worker.rss.saturating_sub(after_warm_up);
    assert!(growth < 512 * 1024, "grew by {growth} bytes");
}

#[tokio::test]
async fn workers_are_recycled_by_requests_without_losing_one() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|spec| spec.max_requests = Some(20));
    let mut pids = std::collections::HashSet::new();
    // A worker continues until its replacement is ready.
    while pids.len() < 4 {
        pids.insert(get(&app, &hello).await);
    }
    running(&app, 1).await;
    assert!(!scripts.log().contains("ended"), "{}", scripts.log());
}

#[tokio::test]
async fn a_fat_worker_is_replaced_between_requests() {
    let scripts = Scripts::new();
    let over_memory = scripts.add(
        "over_memory.pl",
        "#!/usr/bin/perl\nour @x; push @x, $_ . 'x' x 1_000_000 for 1..60; print $$",
    );
    let app = scripts.start(|spec| spec.max_memory = Some(50_000_000));
    let pid = get(&app, &over_memory).await;
    until("replaced", || {
        let status = app.status();
        status.len() == 1
            && status[0].pid.to_string() != pid
            && status[0].state == WorkerState::Idle
    })
    .await;
    scripts.logged("uses too much memory").await;
}

#[tokio::test]
async fn a_worker_that_has_used_its_cpu_time_is_replaced_between_requests() {
    let scripts = Scripts::new();
    // Uses CPU time itself, and in children that it waits for.
    let busy = scripts.add(
        "busy.pl",
        "#!/usr/bin/perl\n$end = (times)[0] + .2; 1 while (times)[0] < $end; \
         system 'perl', '-e', '1 while (times)[0] < .2'; print $$",
    );
    let app = scripts.start(|spec| spec.max_cpu = Some(Duration::from_millis(350)));
    let pid = get(&app, &busy).await;
    until("replaced", || {
        let status = app.status();
        status.len() == 1
            && status[0].pid.to_string() != pid
            && status[0].state == WorkerState::Idle
    })
    .await;
    scripts.logged("has used its CPU time").await;
}

#[tokio::test]
async fn workers_start_on_demand_and_end_when_idle() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", HELLO);
    let app = scripts.start(|spec| {
        spec.workers = Workers { min: 0, max: 3 };
        spec.idle_timeout = Duration::from_millis(200);
    });
    let (a, b, c) = tokio::join!(app.checkout(), app.checkout(), app.checkout());
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert_eq!(app.status().len(), 3);
    drop((a, b, c));
    running(&app, 0).await;
    assert!(get(&app, &hello).await.starts_with("hello"));
}

#[tokio::test]
async fn a_background_child_that_keeps_the_output_ends_the_worker_and_reaches_no_other_client() {
    let scripts = Scripts::new();
    let child = scripts.add(
        "child.pl",
        "#!/usr/bin/perl\n$| = 1; print 'parent'; if (!fork) { sleep 1 until -e 'go' || !-e $0; \
         print 'late'; open F, '>', 'done'; exit } ",
    );
    let hello = scripts.add("hello.pl", "#!/usr/bin/perl\nprint 'hello'");
    let app = scripts.start(|_| ());
    assert_eq!(get(&app, &child).await, "parent");
    scripts.add("go", "");
    for _ in 0..20 {
        assert_eq!(get(&app, &hello).await, "hello");
    }
    // The worker is the reaper of its descendants, so it finds a daemon whose parent has ended.
    let daemon = scripts.add(
        "daemon.pl",
        "#!/usr/bin/perl\n$| = 1; print 'parent'; $SIG{PIPE} = 'IGNORE'; if (!fork) { if (!fork) { \
         select undef, undef, undef, 0.01 until -e 'go2'; print 'late'; open F, '>', 'done2'; close F; \
         sleep 1 while -e $0 } exit } wait;",
    );
    assert_eq!(get(&app, &daemon).await, "parent");
    scripts.add("go2", "");
    until("it has written", || scripts.path("done2").exists()).await;
    for _ in 0..20 {
        assert_eq!(get(&app, &hello).await, "hello");
    }
    assert_eq!(scripts.log(), "", "nothing came from a worker that waited");
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_what_to_do() {
    let scripts = Scripts::new();
    let start = |change: fn(&mut forebay_workers::AppSpec)| {
        App::start(scripts.spec(change), |_, _| ()).err().expect("an error").to_string()
    };
    let no_perl = start(|spec| spec.env.push(("PATH".into(), "/nowhere".into())));
    assert!(no_perl.contains("install perl"), "{no_perl}");
    let broken = start(|spec| spec.env.push(("PERL5OPT".into(), "-MNo::Such::Module".into())));
    assert!(broken.contains("No/Such/Module.pm"), "{broken}");
    let none = start(|spec| spec.workers = Workers { min: 2, max: 1 });
    assert!(none.contains("maximum"), "{none}");
    let dir = start(|spec| {
        let forebay_workers::Kind::PerlCgi { dir, .. } = &mut spec.kind else {
            panic!("these tests are about Perl scripts");
        };
        *dir = "/no/such/dir".into();
    });
    assert!(dir.contains("/no/such/dir is no directory"), "{dir}");
}

#[tokio::test]
async fn workers_that_end_at_once_are_not_started_in_a_loop() {
    let scripts = Scripts::new();
    let module = scripts.path("Sick.pm");
    std::fs::write(&module, "1;").unwrap();
    let dir = scripts.dir.path().to_str().unwrap().to_string();
    let app = scripts.start(|spec| {
        spec.env = vec![("PERL5LIB".into(), dir), ("PERL5OPT".into(), "-MSick".into())];
    });
    std::fs::write(&module, "die 'sick today'").unwrap();
    kill(app.status()[0].pid);
    let deadline = Instant::now() + DEADLINE;
    let mut seen = None;
    while seen.is_none() && Instant::now() < deadline {
        seen = app.checkout().await.err();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    match seen {
        Some(Unavailable::CrashLoop(lines)) => assert!(lines.contains("sick today"), "{lines}"),
        other => panic!("{other:?}"),
    }
    std::fs::write(&module, "1;").unwrap();
    running(&app, 1).await;
    assert!(app.checkout().await.is_ok());
}

#[tokio::test]
async fn shutdown_lets_requests_finish_and_leaves_no_process() {
    let scripts = Scripts::new();
    let slow =
        scripts.add("slow.pl", "#!/usr/bin/perl\nselect undef, undef, undef, 0.3; print 'done'");
    let hang = scripts.add("hang.pl", HANG);
    let app = scripts.start(|spec| {
        spec.workers = Workers { min: 3, max: 3 };
        spec.queue = 10;
    });
    let pids: Vec<u32> = running(&app, 3).await.iter().map(|worker| worker.pid).collect();
    let mut slow_lease = app.checkout().await.unwrap();
    slow_lease.send(&block(&slow, &[]), Body::Empty).await.unwrap();
    let mut hang_lease = app.checkout().await.unwrap();
    hang_lease.send(&block(&hang, &[]), Body::Empty).await.unwrap();
    let ((), slow_reply, hang_reply) = tokio::join!(
        app.shutdown(Duration::from_secs(2)),
        finish(&mut slow_lease),
        finish(&mut hang_lease)
    );
    assert_eq!(slow_reply.unwrap(), (EndKind::Ok, "done".to_string()));
    assert!(matches!(hang_reply, Err(WorkerFault::Died { .. })), "{hang_reply:?}");
    assert!(pids.iter().all(|&pid| !exists(pid)));
    assert_eq!(app.checkout().await.err(), Some(Unavailable::ShuttingDown));
    app.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn an_app_that_is_dropped_leaves_no_process() {
    let scripts = Scripts::new();
    let app = scripts.start(|spec| spec.workers = Workers { min: 2, max: 2 });
    let pids: Vec<u32> = running(&app, 2).await.iter().map(|worker| worker.pid).collect();
    drop(app);
    until("the workers and the child are gone", || pids.iter().all(|&pid| !exists(pid))).await;
}

/// Not a test: the gateway that `nothing_outlives_a_gateway_that_is_killed` starts and kills.
#[tokio::test]
async fn gateway_to_be_killed() {
    if std::env::var_os("FOREBAY_TEST_GATEWAY").is_none() {
        return;
    }
    let scripts = Scripts::new();
    let hang = scripts.add(
        "hang.pl",
        "#!/usr/bin/perl\n$| = 1; my $child = fork; exec 'sleep', '1000' if !$child;\n\
         print $child; sleep 1 while 1;",
    );
    let app = scripts.start(|spec| spec.workers = Workers { min: 3, max: 3 });
    running(&app, 3).await;
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&hang, &[]), Body::Empty).await.unwrap();
    let mut child = Vec::new();
    lease.read(&mut child).await.unwrap();
    let mut pids: Vec<String> = app.status().iter().map(|worker| worker.pid.to_string()).collect();
    pids.push(String::from_utf8(child).unwrap());
    println!("pids {}", pids.join(" "));
    tokio::time::sleep(DEADLINE).await;
}

#[tokio::test]
async fn nothing_outlives_a_gateway_that_is_killed() {
    use std::io::BufRead;
    let mut gateway = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "gateway_to_be_killed", "--nocapture"])
        .env("FOREBAY_TEST_GATEWAY", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(gateway.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("pids ")).unwrap();
    let pids = line.split("pids ").nth(1).unwrap().split(' ');
    let pids: Vec<u32> = pids.map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 4 && pids.iter().all(|&pid| exists(pid)));
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    until("the workers and the child are gone", || pids.iter().all(|&pid| !exists(pid))).await;
}

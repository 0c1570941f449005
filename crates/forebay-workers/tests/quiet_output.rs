//! Output does not wake the gateway. The gateway reads output when the worker waits, or after a
//! moment.
#![allow(missing_docs)]

mod support;

use forebay_workers::{
    App, Body, EndKind, Kind, LeaseEvent, PerlMode, PythonMode, WorkerFault, Workers,
};
use std::path::PathBuf;
use support::{DEADLINE, Scripts, block, finish, get, join_all, request, until};

/// A PSGI application that answers with N, in the form of response that FORM names.
const APP: &str = r#"
use strict;
use Socket;
my @kept;
sub {
    my ($env) = @_;
    my $form = $env->{FORM} // '';
    my $body = $env->{N} . ' ' x ($env->{MUCH} || 0);
    select undef, undef, undef, $env->{SLEEP} if $env->{SLEEP};
    if ($form eq 'computes') { my $sum = 0; $sum += $_ for 1 .. 10_000 }
    if ($form eq 'waits') { select undef, undef, undef, 0.005 until -e $env->{FILE} }
    kill KILL => $$ if $form eq 'dies';
    die "no reply\n" if $form eq 'fails';
    if ($form eq 'junk') {
        for my $number (3 .. 30) {
            open my $handle, '+<&=', $number or next;
            push @kept, $handle;    # closed, it would be closed for the host, too
            my $type = getsockopt $handle, SOL_SOCKET, SO_TYPE or next;
            syswrite $handle, 'x' x 100 if unpack('i', $type) == SOCK_SEQPACKET;
        }
    }
    Forebay::Host::say_waiting() for $form eq 'waiting' ? 1 .. 20 : ();
    push @{ $env->{'psgix.cleanup.handlers'} }, sub { } if $form eq 'cleans';
    my $head = ['Content-Type', 'text/plain'];
    return [200, $head, [$body]] if $form ne 'streams';
    return sub {
        my $writer = $_[0]->([200, $head]);
        $writer->write($_) for split //, $env->{N};
        if ($env->{FILE}) {
            select undef, undef, undef, 0.005 until -e $env->{FILE};
            $writer->write('end');
        }
        $writer->close;
    };
}
"#;

/// Starts an application, and sends requests until the pool has learnt that they only compute.
async fn computing(scripts: &Scripts, workers: usize) -> (App, String) {
    let file = scripts.add("app.psgi", APP);
    let app = scripts.start(|spec| {
        let dir = scripts.dir.path().to_path_buf();
        spec.kind = Kind::Psgi { dir, file: file.clone().into() };
        spec.workers = Workers { min: workers, max: workers };
    });
    for _ in 0..400 * workers {
        get(&app, &file).await;
    }
    (app, file)
}

async fn ask(app: &App, file: &str, n: &str, more: &[(&str, &str)]) -> Result<(), WorkerFault> {
    let more = [&[("N", n), ("SERVER_PROTOCOL", "HTTP/1.1")], more].concat();
    let (kind, output) = request(app, file, &more, Body::Empty).await?;
    let (_, body) = output.split_once("\r\n\r\n").expect("a head");
    assert_eq!((kind, body.trim_end()), (EndKind::Ok, n));
    Ok(())
}

#[tokio::test]
async fn replies_of_every_form_are_their_own_clients() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 2).await;
    let client = |client: usize| {
        let (app, file) = (&app, &file);
        async move {
            for i in 0..300 {
                let n = format!("{client}-{i}");
                let more: &[_] = match (i + client) % 40 {
                    1 => &[("MUCH", "300000")],
                    2 => &[("MUCH", "30000")],
                    4 | 5 => &[("FORM", "streams")],
                    6 => &[("FORM", "cleans")],
                    7 => &[("SLEEP", "0.002")],
                    _ => &[],
                };
                ask(app, file, &n, more).await.expect("a reply");
            }
        }
    };
    join_all((0..12).map(client).collect()).await;
    let workers = app.status();
    assert!(workers.iter().any(|worker| worker.prefetched > 0), "none lay ready: {workers:?}");
}

#[tokio::test]
async fn a_reply_does_not_wait_for_the_next_request_to_end() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 1).await;
    for i in 0..10 {
        let path = scripts.path(&format!("{i}"));
        let first = async {
            ask(&app, &file, "first", &[("FORM", "computes")]).await.expect("a reply");
            std::fs::write(&path, "").unwrap();
        };
        // Ends only after the first reply.
        let waits = [("FORM", "waits"), ("FILE", path.to_str().unwrap())];
        let ((), next) = tokio::join!(first, ask(&app, &file, "next", &waits));
        next.expect("a reply");
        for _ in 0..400 {
            get(&app, &file).await;
        }
    }
}

#[tokio::test]
async fn a_reply_arrives_although_its_worker_dies_in_the_next_request() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 1).await;
    for _ in 0..5 {
        let pid = app.status()[0].pid;
        let first = ask(&app, &file, "first", &[("FORM", "computes")]);
        let died = request(&app, &file, &[("FORM", "dies")], Body::Empty);
        let (first, died) = tokio::join!(first, died);
        first.expect("it was sent before");
        assert!(matches!(died, Err(WorkerFault::Died { .. })), "{died:?}");
        until("the next is there", || app.status().iter().any(|it| it.pid != pid)).await;
        for _ in 0..400 {
            get(&app, &file).await;
        }
    }
}

#[tokio::test]
async fn writes_to_sockets_of_the_host_reach_no_client() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 1).await;
    let pid = app.status()[0].pid;
    ask(&app, &file, "junk", &[("FORM", "junk")]).await.expect("a reply");
    let client = |client: usize| {
        let (app, file) = (&app, &file);
        async move {
            for i in 0..50 {
                ask(app, file, &format!("{client}-{i}"), &[]).await.expect("a reply");
            }
        }
    };
    join_all((0..4).map(client).collect()).await;
    assert_eq!(app.status()[0].pid, pid, "it was in nobody's way");
}

#[tokio::test]
async fn a_worker_may_say_that_it_waits_at_any_time() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 1).await;
    let pid = app.status()[0].pid;
    for i in 0..50 {
        let form = if i % 5 == 0 { "waiting" } else { "" };
        ask(&app, &file, &format!("{i}"), &[("FORM", form)]).await.expect("a reply");
    }
    assert_eq!(app.status()[0].pid, pid);
}

#[tokio::test]
async fn the_first_part_of_a_stream_is_sent_at_once() {
    let scripts = Scripts::new();
    let (app, file) = computing(&scripts, 1).await;
    let path = scripts.path("seen");
    let path = path.to_str().unwrap();
    let block = block(&file, &[("N", "a"), ("FORM", "streams"), ("FILE", path)]);
    let mut lease = app.checkout_for(&block, Body::Empty).await.expect("a worker");
    lease.send(&block, Body::Empty).await.expect("it is there");
    let mut output = Vec::new();
    while !output.ends_with(b"a") {
        let event = tokio::time::timeout(DEADLINE, lease.read(&mut output)).await;
        assert!(matches!(event, Ok(Ok(LeaseEvent::Output(_)))), "{event:?}");
    }
    std::fs::write(path, "").unwrap();
    assert_eq!(finish(&mut lease).await.expect("a reply"), (EndKind::Ok, "end".into()));
}

/// A module that logs when the interpreter ends, and a script that sleeps for SLEEP seconds.
const PERL: [(&str, &str); 2] = [
    (
        "Ends.pm",
        "package Ends;\nmy $path = $ENV{ENDS};\nEND { open my $f, '>>', $path; print $f \"ended\\n\" }\n1;\n",
    ),
    (
        "script.pl",
        "#!/usr/bin/perl\nuse lib $ENV{LIB};\nuse Ends;\nselect undef, undef, undef, $ENV{SLEEP};\n\
         print \"Content-Type: text/plain\\r\\n\\r\\nit\";\n",
    ),
];
const PYTHON: [(&str, &str); 2] = [
    (
        "ends.py",
        "import atexit, os\nPATH = os.environ['ENDS']\n@atexit.register\ndef end():\n    \
         open(PATH, 'a').write('ended\\n')\n",
    ),
    (
        "script.py",
        "#!/usr/bin/python3\nimport os, sys, time\nimport ends\ntime.sleep(float(os.environ['SLEEP']))\n\
         sys.stdout.write('Content-Type: text/plain\\r\\n\\r\\nit')\n",
    ),
];

/// Returns the kind of application for the scripts in a directory.
type ToKind = fn(PathBuf) -> Kind;

/// The gateway may not have read the last messages of a worker when it ends the worker.
#[tokio::test]
async fn a_worker_that_is_let_go_ends_as_it_should() {
    let python = |dir| Kind::PythonCgi { dir, python: None, mode: PythonMode::Fresh };
    let perl = |dir| Kind::PerlCgi { dir, mode: PerlMode::Registry, preload: Vec::new() };
    let kinds: [(_, ToKind); 2] = [(PERL, perl), (PYTHON, python)];
    for (files, kind) in kinds {
        for sleep in ["0", "0.003", "0.005"] {
            let scripts = Scripts::new();
            let [_, file] = files.map(|(name, text)| scripts.add(name, text));
            let dir = scripts.dir.path().to_path_buf();
            let ends = scripts.path("ends");
            let more = [
                ("SLEEP", sleep),
                ("LIB", dir.to_str().unwrap()),
                ("ENDS", ends.to_str().unwrap()),
            ];
            let app = scripts.start(|spec| {
                spec.kind = kind(dir.clone());
                spec.max_requests = Some(1);
            });
            let ended = || std::fs::read_to_string(&ends).unwrap_or_default().lines().count();
            for i in 0..5 {
                let (end, output) =
                    request(&app, &file, &more, Body::Empty).await.expect("a reply");
                assert!(end == EndKind::Ok && output.ends_with("it"), "{output}");
                until(&format!("{i} have ended ({file}, {sleep})"), || ended() > i).await;
            }
            assert!(!scripts.log().contains("Traceback"), "{}", scripts.log());
        }
    }
}

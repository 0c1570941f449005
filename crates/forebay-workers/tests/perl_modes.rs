//! Tests the differences between the modes `perlrun`, `fork` and `cgi`, each with one worker.

mod support;

use forebay_workers::{Body, EndKind, PerlMode, WorkerFault};
use std::time::Duration;
use support::{DEADLINE, Scripts, block, exists, finish, get, request, until};

const ALL: [PerlMode; 5] = [
    PerlMode::Registry,
    PerlMode::RegistryPrefork,
    PerlMode::PerlRun,
    PerlMode::Fork,
    PerlMode::Cgi,
];
/// Modes in which a request leaves nothing for the next one.
const FRESH: [PerlMode; 3] = [PerlMode::PerlRun, PerlMode::Fork, PerlMode::Cgi];
/// Modes with a process for each request.
const PROCESSES: [PerlMode; 2] = [PerlMode::Fork, PerlMode::Cgi];

#[tokio::test]
async fn bodies_output_and_environment_arrive_in_every_mode() {
    let scripts = Scripts::new();
    let echo = scripts.add(
        "echo.pl",
        "#!/usr/bin/perl -w\nuse strict; local $/; my $b = <STDIN>;\n\
         print \"$ENV{REQUEST_METHOD} $ENV{N} \", defined $b ? length $b : 'none', ' ',\n\
         unpack('%32C*', $b // ''); system 'echo -n \" $N\"; cat'; print ' end'; exit;\n",
    );
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for length in [0usize, 1, 65_000, 65_537, 1_000_001] {
            let body: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let sum = body.iter().map(|&byte| u64::from(byte)).sum::<u64>() as u32;
            let n = length.to_string();
            let reply = request(&app, &echo, &[("N", &n)], Body::Bytes(&body)).await.unwrap();
            let expected = format!("GET {n} {length} {sum} {n} end");
            assert_eq!(reply, (EndKind::Ok, expected), "{mode:?}");
        }
        assert_eq!(app.status()[0].requests, 5, "{mode:?}: {}", scripts.log());
    }
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn nothing_is_left_for_the_next_request() {
    let scripts = Scripts::new();
    scripts.add("lib.pl", "sub lib { $loaded++ } 1;\n");
    let script = scripts.add(
        "left.pl",
        "#!/usr/bin/perl -w\nuse strict; our ($n, @l, %h, $loaded); my $m = 0;\n\
         sub inc { $m++ } inc();\n\
         require './lib.pl'; lib();\n\
         print ++$n, push(@l, 1), scalar(keys %h), $m, $loaded, defined &later ? 1 : 0, \"\\n\";\n\
         $h{$n} = 1; eval 'sub later { 1 }'; $ENV{LEFT} = 1; chdir '/'; $SIG{ALRM} = sub { };\n\
         open(LOG, '>>', \"$ENV{DIR}/log\"); print LOG 'x';\n\
         BEGIN { print defined $ENV{LEFT} ? 'left' : 'clean', ' ' }\n",
    );
    let dir = scripts.dir.path().to_str().unwrap().to_owned();
    for mode in FRESH {
        let app = scripts.start_mode(mode);
        for n in 1..4 {
            let reply = request(&app, &script, &[("DIR", &dir)], Body::Empty).await.unwrap();
            assert_eq!(reply, (EndKind::Ok, "clean 11".to_owned() + "0110\n"), "{mode:?}");
            assert_eq!(std::fs::read(scripts.path("log")).unwrap().len(), n, "{mode:?}");
        }
        std::fs::remove_file(scripts.path("log")).unwrap();
    }
    let log = scripts.log();
    let advice = "left.pl: a BEGIN block or a module at its load needs the request (it prints)";
    assert!(log.lines().all(|line| line.contains(advice)), "{log}");
    let compile_once = FRESH.iter().filter(|mode| **mode != PerlMode::Cgi).count();
    assert_eq!(log.lines().count(), compile_once, "once for each application: {log}");
}

#[tokio::test]
async fn two_scripts_each_have_the_library_that_both_require() {
    let scripts = Scripts::new();
    scripts.add("lib.pl", "sub greet { \"hello $_[0]\" } 1;\n");
    let text = "#!/usr/bin/perl\nuse FindBin; require \"$FindBin::Bin/lib.pl\"; print greet('";
    let one = scripts.add("one.pl", &format!("{text}one');"));
    let two = scripts.add("two.pl", &format!("{text}two');"));
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for _ in 0..3 {
            assert_eq!(get(&app, &one).await, "hello one", "{mode:?}");
            assert_eq!(get(&app, &two).await, "hello two", "{mode:?}");
        }
        scripts.add("one.pl", &format!("{text}other');"));
        assert_eq!(get(&app, &one).await, "hello other", "{mode:?}, after an edit");
        scripts.add("one.pl", &format!("{text}one');"));
    }
}

#[tokio::test]
async fn a_script_that_becomes_another_user_does_so_for_itself() {
    let scripts = Scripts::new();
    let show = scripts.add("show.pl", "#!/usr/bin/perl\nprint \"$< $> $( $)\"");
    for mode in ALL {
        for change in [
            "$> = 65534",
            "$< = 65534",
            "$) = '65534 65534'",
            "$( = 65534",
            "$) = join ' ', $) + 0, 65534",
            "$) = join ' ', $) + 0, 65533, 65534",
        ] {
            let app = scripts.start_mode(mode);
            let normal = get(&app, &show).await;
            let text = format!("#!/usr/bin/perl\n{change}; print 'changed';");
            let other = scripts.add("other.pl", &text);
            assert_eq!(get(&app, &other).await, "changed", "{mode:?}: {change}");
            assert_eq!(get(&app, &show).await, normal, "{mode:?}: {change}");
        }
    }
}

#[tokio::test]
async fn perlrun_keeps_what_belongs_to_modules() {
    let scripts = Scripts::new();
    scripts.add(
        "Shared.pm",
        "package Shared; use Exporter 'import'; our @EXPORT = qw($x @x %x &x);\n\
         our ($x, @x, %x) = (1, 2); %x = (3 => 4); sub x { 5 } 1;\n",
    );
    let script = scripts.add(
        "import.pl",
        "#!/usr/bin/perl\nuse FindBin; use lib $FindBin::Bin; use Shared; use Config;\n\
         print $x, \"@x\", %x, x(), $Config{path_sep}; my $self; sub again { $self = \\&again }\n",
    );
    let app = scripts.start_mode(PerlMode::PerlRun);
    for _ in 0..3 {
        assert_eq!(get(&app, &script).await, "12345:");
    }
}

#[tokio::test]
async fn perlrun_does_not_grow() {
    let scripts = Scripts::new();
    let script = scripts.add(
        "grow.pl",
        "#!/usr/bin/perl\nuse strict; our @big = (1) x 20_000; our $self = \\our $self; my %m;\n\
         sub fact { my $n = shift; $n < 2 ? 1 : $n * fact($n - 1) } print fact(5);\n",
    );
    let app = scripts.start_mode(PerlMode::PerlRun);
    for _ in 0..20 {
        assert_eq!(get(&app, &script).await, "120");
    }
    let before = app.status()[0].rss;
    for _ in 0..200 {
        get(&app, &script).await;
    }
    let after = app.status()[0].rss;
    assert!(after < before + 512 * 1024, "{before} -> {after}");
}

#[tokio::test]
async fn a_process_for_each_request_is_what_cgi_has() {
    let scripts = Scripts::new();
    let cases = [
        ("main", "package main; our $x = 1; print __PACKAGE__, $main::x, defined caller() ? 1 : 0"),
        ("exit", "eval { eval q{END { print 'e' } exit 3} }; print 'not'"),
        ("data", "print <DATA>; print ' ', -e 'data.pl' ? 'here' : 'away';\n__END__\ndata"),
        ("other", "package Other; chomp(my $d = <Other::DATA>); print $d;\n__DATA__\ndata"),
        ("begin", "BEGIN { $| = 1; print 'Begun '; $ENV{SET} = 'set' } print $ENV{SET}"),
        ("argv", "print scalar @ARGV, $0 =~ m{^/.*/argv.pl$} ? ' path' : $0"),
        ("pid", "print $$ == getppid() ? 'same' : 'own', $^T - time() > -5 ? ' new' : ' old'"),
        ("open", "use open qw(:std :utf8); print chr(233), chr(0x263a)"),
        ("init", "INIT { print 'init ' } CHECK { print 'check ' } print 'run'"),
        (
            "taint",
            "print ${^TAINT}, eval { system \"true $ENV{REQUEST_METHOD}\"; 1 } ? 'ran' : 'no'",
        ),
    ];
    let expected = [
        "main10",
        "e",
        "data\n here",
        "data",
        "Begun set",
        "0 path",
        "own new",
        "\u{e9}\u{263a}",
        "check init run",
        "1no",
    ];
    for mode in PROCESSES {
        let app = scripts.start_mode(mode);
        for ((name, code), expected) in cases.iter().zip(expected) {
            let switch = if *name == "taint" { " -T" } else { "" };
            let text = format!("#!/usr/bin/perl{switch}\n{code}\n");
            let script = scripts.add(&format!("{name}.pl"), &text);
            for _ in 0..3 {
                let (_, output) = request(&app, &script, &[], Body::Empty).await.unwrap();
                assert_eq!(output, expected, "{mode:?} {name}: {}", scripts.log());
            }
        }
        assert_eq!(app.status()[0].requests, 30, "{mode:?}");
    }
}

#[tokio::test]
async fn forked_scripts_compile_once_and_again_after_an_edit() {
    let scripts = Scripts::new();
    let text = |n: u32| {
        format!(
            "#!/usr/bin/perl\nBEGIN {{ open F, '>>', 'compiled'; print F 'x'; close F }}\n\
             our $n; print {n}, ++$n;"
        )
    };
    let app = scripts.start_mode(PerlMode::Fork);
    for n in 1..4 {
        let script = scripts.add("edit.pl", &text(n));
        for _ in 0..5 {
            assert_eq!(get(&app, &script).await, format!("{n}1"));
        }
        assert_eq!(std::fs::read(scripts.path("compiled")).unwrap().len() as u32, n);
    }
}

#[tokio::test]
async fn a_process_that_has_compiled_a_script_and_is_killed_is_replaced() {
    let scripts = Scripts::new();
    let script = scripts.add(
        "kill.pl",
        "#!/usr/bin/perl\nprint getppid; kill 9, getppid if -e 'now'; print ' end'",
    );
    let app = scripts.start_mode(PerlMode::Fork);
    let parent = get(&app, &script).await;
    assert_eq!(get(&app, &script).await, parent);
    scripts.add("now", "");
    let (kind, _) = request(&app, &script, &[], Body::Bytes(b"body")).await.unwrap();
    assert_eq!(kind, EndKind::Status(500));
    std::fs::remove_file(scripts.path("now")).unwrap();
    assert_ne!(get(&app, &script).await, parent);
    scripts.logged("has ended").await;
}

#[tokio::test]
async fn random_numbers_differ_between_forks_of_one_process() {
    let scripts = Scripts::new();
    let script = scripts.add("rand.pl", "#!/usr/bin/perl\nBEGIN { rand } print rand;");
    let app = scripts.start_mode(PerlMode::Fork);
    assert_ne!(get(&app, &script).await, get(&app, &script).await);
}

#[tokio::test]
async fn failures_have_a_status_and_a_reason_in_every_mode() {
    let scripts = Scripts::new();
    let dies = scripts.add("dies.pl", "#!/usr/bin/perl\ndie 'no luck'");
    let syntax = scripts.add("syntax.pl", "#!/usr/bin/perl\nprint 'x' 'y';\n");
    let module = scripts.add("module.pl", "#!/usr/bin/perl\nuse No::Such;\n");
    let killed = scripts.add("killed.pl", "#!/usr/bin/perl\nkill 9, $$;\n");
    let plain = scripts.add("plain.pl", "#!/usr/bin/perl\nprint 'x'");
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let missing = scripts.path("missing.pl").to_str().unwrap().to_string();
    let fine = scripts.add("fine.pl", "#!/usr/bin/perl\nread STDIN, my $x, 9; print $x");
    for mode in ALL {
        let app = scripts.start_mode(mode);
        let mut cases = vec![(&dies, 500), (&syntax, 500), (&module, 500)];
        cases.extend([(&plain, 403), (&missing, 404)]);
        if PROCESSES.contains(&mode) {
            cases.push((&killed, 502));
        }
        let count = cases.len() as u64;
        for (script, status) in cases {
            let reply = request(&app, script, &[], Body::Bytes(b"unread")).await.unwrap();
            assert_eq!(reply, (EndKind::Status(status), String::new()), "{mode:?} {script}");
        }
        let reply = request(&app, &fine, &[], Body::Bytes(b"body")).await.unwrap();
        assert_eq!(reply, (EndKind::Ok, "body".into()), "{mode:?}");
        assert_eq!(app.status()[0].requests, count + 1, "{mode:?}: one worker answered all");
    }
    for text in ["no luck at", "syntax.pl line 2", "No/Such.pm", "plain.pl: not executable"] {
        scripts.logged(text).await;
    }
}

#[tokio::test]
async fn any_language_runs_by_its_first_line() {
    let scripts = Scripts::new();
    let shell = scripts.add("hello.sh", "#!/bin/sh\ncat; echo \" $REQUEST_METHOD $0 $#\"");
    let text = scripts.add("text", "no program");
    let lost = scripts.add("lost", "#!/no/such/program\n");
    for mode in PROCESSES {
        let app = scripts.start_mode(mode);
        for _ in 0..2 {
            let reply = request(&app, &shell, &[], Body::Bytes(b"body")).await.unwrap();
            assert_eq!(reply, (EndKind::Ok, format!("body GET {shell} 0\n")), "{mode:?}");
            for script in [&text, &lost] {
                let reply = request(&app, script, &[], Body::Bytes(b"body")).await.unwrap();
                assert_eq!(reply.0, EndKind::Status(500), "{mode:?} {script}");
            }
        }
        assert_eq!(app.status()[0].requests, 6);
    }
    scripts.logged("text: neither a program nor").await;
    scripts.logged(&format!("cannot run {lost}: No such file")).await;
}

#[tokio::test]
async fn a_reply_ends_when_nothing_can_write_to_it_any_more() {
    let scripts = Scripts::new();
    let late = scripts.add(
        "late.pl",
        "#!/usr/bin/perl\n$| = 1; print \"now \"; if (!fork) { \
         select undef, undef, undef, 0.01 until -e 'go'; print 'late'; }",
    );
    let daemon = scripts.add(
        "daemon.pl",
        "#!/usr/bin/perl\nuse POSIX (); if (!fork) { POSIX::setsid(); open $_, '+<', '/dev/null' \
         for *STDIN, *STDOUT, *STDERR; open F, '>', 'pid'; print F \"$$\\n\"; close F; sleep 1000 }\
         print 'done'",
    );
    for mode in PROCESSES {
        let app = scripts.start_mode(mode);
        let mut lease = app.checkout().await.unwrap();
        lease.send(&block(&late, &[]), Body::Empty).await.unwrap();
        let mut output = Vec::new();
        lease.read(&mut output).await.unwrap();
        scripts.add("go", "");
        let rest = finish(&mut lease).await.unwrap();
        let all = String::from_utf8(output).unwrap() + &rest.1;
        assert_eq!((rest.0, all.as_str()), (EndKind::Ok, "now late"), "{mode:?}");
        drop(lease);
        assert_eq!(get(&app, &daemon).await, "done", "{mode:?}");
        let pid = || std::fs::read_to_string(scripts.path("pid")).ok()?.trim().parse::<u32>().ok();
        until("the daemon runs", || pid().is_some()).await;
        let daemon_pid = pid().unwrap();
        assert!(exists(daemon_pid), "a daemon goes on");
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(daemon_pid as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        std::fs::remove_file(scripts.path("pid")).unwrap();
        std::fs::remove_file(scripts.path("go")).unwrap();
        assert_eq!(app.status()[0].requests, 2, "{mode:?}: one worker answered both");
    }
}

#[tokio::test]
async fn a_descriptor_of_the_client_reaches_no_other_client() {
    let scripts = Scripts::new();
    let ways = [
        // An orphan that has the client as descriptor 2.
        "system q{sh -c '(touch up; until test -e go; do sleep 0.01; done; echo SECRET >&2; touch done) \
         2>&1 >/dev/null &'}",
        // A grandchild, whose parent has closed the client.
        "if (!fork) { if (!fork) { open my $o, '>&', \\*STDOUT; close STDOUT; F->go($o) } \
         open STDOUT, '>', '/dev/null'; wait; CORE::exit }",
    ];
    let hello = scripts.add("hello.pl", "#!/usr/bin/perl\nprint 'hello'");
    for mode in ALL {
        for (i, way) in ways.iter().enumerate() {
            let text = format!(
                "#!/usr/bin/perl\n$| = 1; print $$; {way}; \
                 select undef, undef, undef, 0.01 until -e 'up';\n\
                 sub F::go {{ open U, '>', 'up'; select undef, undef, undef, 0.01 until -e 'go'; \
                 syswrite $_[1], 'SECRET'; open D, '>', 'done'; CORE::exit }}\n"
            );
            let script = scripts.add(&format!("leave{i}.pl"), &text);
            let app = scripts.start_mode(mode);
            let worker = app.status()[0].pid;
            get(&app, &script).await;
            scripts.add("go", "");
            for _ in 0..20 {
                assert_eq!(get(&app, &hello).await, "hello", "{mode:?} {way}");
            }
            assert_ne!(app.status()[0].pid, worker, "{mode:?} {way}");
            for name in ["go", "up"] {
                std::fs::remove_file(scripts.path(name)).unwrap();
            }
            let _ = std::fs::remove_file(scripts.path("done"));
        }
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_ends_with_all_its_processes() {
    let scripts = Scripts::new();
    let slow = scripts.add(
        "slow.pl",
        "#!/usr/bin/perl\nmy $child = fork; sleep 1000 if defined $child && !$child;\n\
         open F, '>', 'new'; print F \"$$ $child\\n\"; close F; rename 'new', 'pids'; sleep 1000;",
    );
    for mode in PROCESSES {
        let dir = scripts.dir.path().to_path_buf();
        let app = scripts.start(|spec| {
            spec.kind = forebay_workers::Kind::PerlCgi { dir, mode, preload: Vec::new() };
            spec.request_timeout = Duration::from_millis(500);
        });
        let reply = tokio::time::timeout(DEADLINE, request(&app, &slow, &[], Body::Empty)).await;
        assert!(matches!(reply, Ok(Err(WorkerFault::Timeout { .. }))), "{mode:?}: {reply:?}");
        let Ok(pids) = std::fs::read_to_string(scripts.path("pids")) else { continue };
        for pid in pids.split_whitespace() {
            until("the process has gone", || !exists(pid.parse().unwrap())).await;
        }
        std::fs::remove_file(scripts.path("pids")).unwrap();
    }
}

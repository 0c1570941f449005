//! Bytes of one request reach no other. A script that spoils its worker spoils no other request.

mod support;

use forebay_workers::{App, Body, EndKind, Kind, PerlMode, Workers};
use std::time::Duration;
use support::{Scripts, get, join_all, request};

const ALL: [PerlMode; 5] = [
    PerlMode::Registry,
    PerlMode::RegistryPrefork,
    PerlMode::PerlRun,
    PerlMode::Fork,
    PerlMode::Cgi,
];
/// The modes that run scripts in the worker's own process.
const IN_WORKER: [PerlMode; 3] = [PerlMode::Registry, PerlMode::RegistryPrefork, PerlMode::PerlRun];

/// Requests a script that prints only the nonce, and checks the reply.
async fn ask(app: &App, victim: &str, nonce: &str) {
    let reply = request(app, victim, &[("NONCE", nonce)], Body::Empty).await;
    assert_eq!(reply.expect("a reply"), (EndKind::Ok, format!("nonce {nonce}")));
}

fn victim(scripts: &Scripts) -> String {
    scripts.add("victim.pl", "#!/usr/bin/perl\nprint \"nonce $ENV{NONCE}\"")
}

#[tokio::test]
async fn a_background_child_writes_into_no_other_reply_and_costs_no_victim() {
    let ways = [
        "system q{(sleep 0.1; printf 'Set-Cookie: session=attacker\\r\\n...') &}",
        "if (!fork) { exit if fork; select undef, undef, undef, 0.05; syswrite STDOUT, 'SECRET'; exit }",
        "system q{sh -c '(sleep 0.05; echo SECRET >&9) 9>&1 >/dev/null 2>&1 &'}",
        // Each process ends before a search looks at it, but its child still has the output.
        "if (!fork) { for (1 .. 100) { exit if fork } syswrite STDOUT, 'SECRET'; exit }",
    ];
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    for mode in ALL {
        let dir = scripts.dir.path().to_path_buf();
        let app = scripts.start(|spec| {
            spec.kind = Kind::PerlCgi { dir, mode, preload: Vec::new() };
            spec.workers = Workers { min: 2, max: 2 };
        });
        for (i, way) in ways.iter().enumerate() {
            let text = format!("#!/usr/bin/perl\n$| = 1; print 'own'; {way};\n");
            let script = scripts.add(&format!("way{i}.pl"), &text);
            let (app, script, victim) = (&app, &script, &victim);
            // Sends all at once, so that most requests wait in a prefetch queue when a worker ends.
            join_all(
                (0..60)
                    .map(|n| async move {
                        if n % 10 == 0 {
                            let reply = request(app, script, &[], Body::Empty).await.unwrap();
                            assert!(reply.1.starts_with("own"), "{mode:?} {way}: {reply:?}");
                        } else {
                            ask(app, victim, &format!("{mode:?} {i} {n}")).await;
                        }
                    })
                    .collect(),
            )
            .await;
        }
    }
}

#[tokio::test]
async fn bytes_in_a_kept_handle_reach_their_own_client() {
    let ways = [
        "open $kept, '>&', \\*STDOUT",
        "open $kept, '>&=', \\*STDOUT",
        "require IO::Handle; $kept = IO::Handle->new; $kept->fdopen(1, 'w')",
        "require POSIX; open $kept, '>&=', POSIX::dup(1)",
    ];
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        let pid = app.status()[0].pid;
        for (i, way) in ways.iter().enumerate() {
            let script = scripts.add(
                &format!("keep{i}.pl"),
                &format!(
                    "#!/usr/bin/perl\nour $kept; $kept or {way} or die $!;\n\
                     print 'first '; $kept->print(\"kept $ENV{{NONCE}}\");\n"
                ),
            );
            for n in 0..5 {
                let nonce = n.to_string();
                let reply =
                    request(&app, &script, &[("NONCE", &nonce)], Body::Empty).await.unwrap();
                assert!(
                    reply.1.contains("first ") && reply.1.contains(&format!("kept {n}")),
                    "{reply:?}"
                );
                assert_eq!(reply.1.len(), "first kept 0".len(), "{mode:?} {way}: {reply:?}");
                ask(&app, &victim, &nonce).await;
            }
        }
        assert_eq!(app.status()[0].pid, pid, "{mode:?}: it costs no worker");
    }
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn destructors_that_run_at_the_end_print_into_their_own_reply() {
    let ways = [
        "$SIG{ALRM} = sub { $o->{timeout} = 1 }",
        "$SIG{__WARN__} = sub { $o }",
        "@ARGV = ($o)",
        "$\" = $o",
        "$; = $o",
        "$/ = $o",
        "$, = $o",
        "$_ = $o",
        "*ENV = { at => $o, %ENV }",
        "tie *STDIN, 'T', $o; sub T::TIEHANDLE { bless [$_[1]], 'T' }",
        "tie $\", 'T', $o; sub T::TIESCALAR { bless [$_[1]], 'T' } sub T::FETCH { ' ' } sub T::STORE { }",
        "die $o",
    ];
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        let pid = app.status()[0].pid;
        for (i, way) in ways.iter().enumerate() {
            let text = format!(
                "#!/usr/bin/perl\nmy $o = bless {{ nonce => $ENV{{NONCE}} }}, 'Late';\n\
                 sub Late::DESTROY {{ local $, = ''; print \"late $_[0]{{nonce}}\" }}\n\
                 print 'own '; {way};\n"
            );
            let script = scripts.add(&format!("late{i}.pl"), &text);
            for n in 0..3 {
                let nonce = format!("n{n}");
                let reply = request(&app, &script, &[("NONCE", &nonce)], Body::Empty).await;
                assert_eq!(reply.unwrap().1, format!("own late {nonce}"), "{mode:?} {way}");
                ask(&app, &victim, &nonce).await;
            }
        }
        assert_eq!(app.status()[0].pid, pid, "{mode:?}: it costs no worker");
        for (i, way) in ["system q{(sleep 0.05; printf SECRET) &}", "alarm 1", "fork", "exit"]
            .iter()
            .enumerate()
        {
            let text = format!(
                "#!/usr/bin/perl\nmy $o = bless []; sub DESTROY {{ {way} }} $| = 1;\n\
                 $SIG{{HUP}} = sub {{ $o }}; print 'own';\n"
            );
            let script = scripts.add(&format!("act{i}.pl"), &text);
            let reply = request(&app, &script, &[], Body::Empty).await.unwrap();
            assert_eq!(reply.1.replace("own", ""), "", "{mode:?} {way}");
            for n in 0..5 {
                ask(&app, &victim, &n.to_string()).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A layer that keeps its text until it is flushed, and then prints it to the layer below.
const HOLD: &str = "package PerlIO::via::Hold; $INC{'PerlIO/via/Hold.pm'} = 1; \
    sub PUSHED { bless { text => '' } } sub WRITE { $_[0]{text} .= $_[1]; length $_[1] } \
    sub FLUSH { my ($o, $below) = @_; if ($below) { print {$below} $o->{text}; $o->{text} = '' } 0 }";

#[tokio::test]
async fn text_below_a_layer_written_in_perl_reaches_no_other_reply() {
    let ways = [
        ("binmode STDOUT, ':via(Hold)'; print \"late $ENV{NONCE}\"", true),
        (
            "binmode STDOUT, ':via(Hold)'; binmode STDOUT, ':via(Hold)'; print \"late $ENV{NONCE}\"",
            true,
        ),
        (
            "open our $kept, '>&', \\*STDOUT; binmode $kept, ':via(Hold)'; print $kept 'SECRET'",
            false,
        ),
        ("open $K::k, '>&', \\*STDOUT; binmode $K::k, ':via(Hold)'; print $K::k 'SECRET'", false),
        ("binmode STDERR, ':via(Hold)'", false),
    ];
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        for (i, (way, whole)) in ways.iter().enumerate() {
            let text = format!("#!/usr/bin/perl\n{HOLD}\npackage main; print 'own '; {way};\n");
            let script = scripts.add(&format!("via{i}.pl"), &text);
            for n in 0..3 {
                let nonce = format!("n{n}");
                let reply =
                    request(&app, &script, &[("NONCE", &nonce)], Body::Empty).await.unwrap();
                assert_eq!(reply.0, EndKind::Ok, "{mode:?} {way}");
                if *whole {
                    assert_eq!(reply.1, format!("own late {nonce}"), "{mode:?} {way}");
                }
                for _ in 0..3 {
                    ask(&app, &victim, &nonce).await;
                }
            }
        }
        assert_eq!(app.health().crashes, 0, "{mode:?}: {}", scripts.log());
    }
}

#[tokio::test]
async fn layers_of_the_standard_handles_do_not_grow() {
    let ways = [
        "binmode STDOUT, ':raw:perlio:encoding(UTF-8)'",
        "binmode STDOUT, ':perlio'; binmode STDOUT, ':unix'",
        "binmode $_, ':perlio' for *STDIN, *STDERR",
        "binmode $_, ':pop' for *STDOUT, *STDIN",
        "BEGIN { binmode STDOUT, ':perlio' }",
    ];
    let scripts = Scripts::new();
    let layers = scripts.add(
        "layers.pl",
        "#!/usr/bin/perl\nprint join ',', map { PerlIO::get_layers($_, output => $_ ne '*main::STDIN') } \
         *STDIN, *STDOUT, *STDERR",
    );
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        let pid = app.status()[0].pid;
        for (i, way) in ways.iter().enumerate() {
            let script = scripts
                .add(&format!("layer{i}.pl"), &format!("#!/usr/bin/perl\n{way}; print 'own'"));
            for _ in 0..4 {
                assert_eq!(get(&app, &script).await, "own", "{mode:?} {way}");
                let now = get(&app, &layers).await;
                assert_eq!(now, "unix,perlio,unix,perlio,unix,perlio", "{mode:?} {way}");
            }
        }
        assert_eq!(app.status()[0].pid, pid, "{mode:?}: it costs no worker");
    }
}

#[tokio::test]
async fn children_that_have_let_go_of_the_client_cost_no_worker() {
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    let head = "#!/usr/bin/perl\nuse POSIX (); use IPC::Open2; unlink 'up'; our ($in, $out);\n\
                sub up { open my $up, '>', 'up'; close $up; sleep 5; exit }\n";
    let rest = "select undef, undef, undef, 0.01 until -e 'up'; print 'own'";
    let ways = [
        "if (!fork) { POSIX::setsid(); exit if fork; \
         open $_, '+<', '/dev/null' for *STDIN, *STDOUT, *STDERR; up() } wait;",
        "if (!fork) { close STDOUT; close STDERR; up() }",
        "system q{(exec >/dev/null 2>&1; touch up; sleep 5) &};",
        "open2($out, $in, 'cat') if !$out; print $in \"x\\n\"; $in->flush; <$out> eq \"x\\n\" and \
         do { open my $up, '>', 'up' };",
    ];
    for mode in [PerlMode::Registry, PerlMode::RegistryPrefork] {
        let app = scripts.start_mode(mode);
        let pid = app.status()[0].pid;
        for (i, way) in ways.iter().enumerate() {
            let script = scripts.add(&format!("away{i}.pl"), &format!("{head}{way}{rest}"));
            for _ in 0..3 {
                assert_eq!(get(&app, &script).await, "own", "{mode:?} {way}");
                ask(&app, &victim, "1").await;
            }
            assert_eq!(app.status()[0].pid, pid, "{mode:?} {way}: {}", scripts.log());
        }
    }
}

#[tokio::test]
async fn a_child_that_does_not_end_itself_takes_no_request() {
    let ways = [
        "print 'own'; fork;",
        "print 'own'; our $o = bless []; sub DESTROY { fork }",
        "print 'own'; our $o = bless []; END { fork } undef $o;",
        "BEGIN { fork } print 'own';",
        "print 'own'; tie *STDIN, 'T'; sub T::TIEHANDLE { bless [] } sub T::UNTIE { fork }",
    ];
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for (i, way) in ways.iter().enumerate() {
            let text = format!("#!/usr/bin/perl\n$| = 1; {way}\n");
            let script = scripts.add(&format!("child{i}.pl"), &text);
            for n in 0..3 {
                // With CGI, parent and child both run the script.
                let reply = request(&app, &script, &[], Body::Empty).await.expect(way);
                assert_eq!(reply.1.replace("own", ""), "", "{mode:?} {way}");
                for _ in 0..5 {
                    ask(&app, &victim, &format!("{mode:?} {i} {n}")).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_thread_that_still_runs_ends_the_worker() {
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    let script = scripts.add(
        "thread.pl",
        "#!/usr/bin/perl\nuse Config; \
         if ($Config{useithreads}) { require threads; \
         threads->create(sub { sleep 1; syswrite STDOUT, 'SECRET' })->detach } print $$",
    );
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        let pid = get(&app, &script).await;
        for n in 0..5 {
            ask(&app, &victim, &n.to_string()).await;
        }
        assert_ne!(app.status()[0].pid.to_string(), pid, "{mode:?}");
    }
}

#[tokio::test]
async fn a_worker_without_descriptors_is_replaced_and_counted() {
    let scripts = Scripts::new();
    let leak = scripts.add(
        "leak.pl",
        "#!/usr/bin/perl\nour @kept; system \"prlimit --nofile=256:256 --pid $$\"; for (1 .. 100) { open my $h, '<', '/dev/null' or last; \
         push @kept, $h } $! = 0; print scalar @kept",
    );
    for mode in [PerlMode::Registry, PerlMode::RegistryPrefork] {
        let app = scripts.start_mode(mode);
        for _ in 0..4 {
            get(&app, &leak).await;
        }
        // A script that is not compiled yet has to be opened.
        let other = scripts.add(&format!("other{mode:?}.pl"), "#!/usr/bin/perl\nprint 'other'");
        let reply = request(&app, &other, &[], Body::Empty).await.unwrap();
        assert_eq!(reply, (EndKind::Status(503), String::new()), "{mode:?}");
        assert_eq!(get(&app, &other).await, "other", "{mode:?}");
        assert_eq!(app.health().crashes, 1, "{mode:?}");
        // A small body needs a pipe, a large one a file.
        for (crashes, length) in [(2, 4), (3, 100_000)] {
            for _ in 0..4 {
                get(&app, &leak).await;
            }
            let body = vec![b'x'; length];
            let reply = request(&app, &other, &[], Body::Bytes(&body)).await.unwrap();
            assert_eq!(reply, (EndKind::Status(503), String::new()), "{mode:?} {length}");
            assert_eq!(get(&app, &other).await, "other", "{mode:?} {length}");
            assert_eq!(app.health().crashes, crashes, "{mode:?} {length}");
        }
    }
    scripts.logged("Too many open files; the worker is replaced").await;
    scripts.logged("cannot do its work any more; it is replaced").await;
}

#[tokio::test]
async fn a_script_that_spoils_its_worker_spoils_no_other_request() {
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    let tie = "package T; sub TIEHASH { bless {} } sub FETCH { '/nowhere' } sub STORE { }\n\
               sub FIRSTKEY { } sub NEXTKEY { } sub EXISTS { } sub DELETE { } sub CLEAR { }\n\
               tie %ENV, 'T';";
    let ways = [
        tie,
        "*main::ENV = {}; *ENV = { SCRIPT_FILENAME => '/nowhere' };",
        "open my $h, '<', '/dev/null' or $! = 24 for 1; $! = 24;",
        "require POSIX; POSIX::close($_) for 3 .. 20;",
        "require Time::HiRes; Time::HiRes::setitimer($_, 0.01) for 1, 2;",
        "chroot '.';",
    ];
    for mode in IN_WORKER {
        let app = scripts.start_mode(mode);
        for (i, way) in ways.iter().enumerate() {
            let text = format!("#!/usr/bin/perl\nprint 'own'; {way}\n");
            let script = scripts.add(&format!("spoil{i}.pl"), &text);
            for n in 0..3 {
                let reply = request(&app, &script, &[], Body::Empty).await.unwrap();
                assert_eq!(reply, (EndKind::Ok, "own".to_owned()), "{mode:?} {way}");
                ask(&app, &victim, &n.to_string()).await;
            }
            // Uses processor time, which the timers of a script count.
            let busy =
                scripts.add("busy.pl", "#!/usr/bin/perl\nmy $n = 0; $n++ while $n < 3e6; print $n");
            assert_eq!(get(&app, &busy).await, "3000000", "{mode:?} {way}");
            // A program that a script starts has the environment, too.
            let child = scripts.add("child.pl", "#!/usr/bin/perl\nprint `echo \\$SCRIPT_FILENAME`");
            assert_eq!(get(&app, &child).await.trim_end(), child, "{mode:?} {way}");
        }
    }
}

#[tokio::test]
async fn a_root_directory_that_a_script_has_changed_by_itself_is_noticed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    let script = scripts.add(
        "root.pl",
        "#!/usr/bin/perl\nrequire 'syscall.ph' if 0; my $d = '.'; \
         my %number = (x86_64 => 161, aarch64 => 51); my $m = `uname -m`; chomp $m; \
         syscall $number{$m}, $d; print 'own'",
    );
    let app = scripts.start(|_| ());
    assert_eq!(get(&app, &script).await, "own");
    let reply = request(&app, &victim, &[], Body::Empty).await.unwrap();
    assert_eq!(reply, (EndKind::Status(503), String::new()));
    ask(&app, &victim, "1").await;
    assert_eq!(app.health().crashes, 1);
}

#[tokio::test]
async fn a_seed_of_one_script_does_not_make_the_next_predictable() {
    let scripts = Scripts::new();
    let seeds = scripts.add("seeds.pl", "#!/usr/bin/perl\nprint srand(42), ' ', rand");
    let draws = scripts.add("draws.pl", "#!/usr/bin/perl\nprint rand");
    for mode in ALL {
        let app = scripts.start_mode(mode);
        let mut drawn = std::collections::BTreeSet::new();
        let first = get(&app, &seeds).await;
        assert!(first.starts_with("42 "), "{first}");
        for _ in 0..10 {
            assert_eq!(get(&app, &seeds).await, first, "{mode:?}");
            drawn.insert(get(&app, &draws).await);
        }
        assert_eq!(drawn.len(), 10, "{mode:?}: {drawn:?}");
    }
}

#[tokio::test]
async fn code_may_precede_the_end_mark_on_its_line() {
    let scripts = Scripts::new();
    let cases = [
        ("print 'x'; __END__\n<junk {\n", "x"),
        ("print 'x', <DATA>; __DATA__ more\none\ntwo\n", "xone\ntwo\n"),
        ("my $t = '__END__ of it'; print $t;\n# __END__\nprint 'y'; __END__", "__END__ of ity"),
        ("END { print 'e' } print 'x'; __END__\n", "xe"),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for (i, (code, expected)) in cases.iter().enumerate() {
            let script = scripts.add(&format!("end{i}.pl"), &format!("#!/usr/bin/perl\n{code}"));
            for _ in 0..2 {
                assert_eq!(get(&app, &script).await, *expected, "{mode:?} {code}");
            }
        }
    }
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn a_header_that_comes_late_and_then_a_shorter_one_log_nothing() {
    let scripts = Scripts::new();
    let victim = victim(&scripts);
    let app = scripts.start(|_| ());
    let long = "x".repeat(200);
    for late in ["1", "2", "3"] {
        // One value that differs, at the end of a long block.
        let more = [("NONCE", "n"), ("HTTP_LONG", long.as_str()), ("HTTP_LATE", late)];
        let reply = request(&app, &victim, &more, Body::Empty).await.unwrap();
        assert_eq!(reply.1, "nonce n");
    }
    ask(&app, &victim, "short").await;
    let other = scripts.add("log.pl", "#!/usr/bin/perl\nprint STDERR \"through\\n\"");
    get(&app, &other).await;
    scripts.logged("through").await;
    assert!(!scripts.log().contains("substr"), "{}", scripts.log());
}

/// A PSGI application that keeps the objects of a request, and uses them in the next one.
const PSGI: &str = r#"
my %kept;
sub {
    my ($env) = @_;
    my $do = $env->{DO};
    my $said = '';
    if ($do eq 'keep') {
        $kept{hint} = $env->{'psgix.informational'};
        return sub {
            my ($respond) = @_;
            $kept{respond} = $respond;
            $kept{writer} = $respond->([200, []]);
            $kept{writer}->write('own');
            $kept{writer}->close;
        };
    }
    if ($do eq 'use') {
        eval { $kept{writer}->write('SECRET'); 1 } or $said .= "write: $@";
        eval { $kept{writer}->close; 1 } or $said .= "close: $@";
        eval { $kept{respond}->([200, [], ['SECRET']]); 1 } or $said .= "respond: $@";
        eval { $kept{hint}->(103, [Link => 'SECRET']); 1 } or $said .= "hint: $@";
    }
    if ($do eq 'fork' && !fork) {
        select undef, undef, undef, 0.05;
        return [200, [], ['SECRET']];
    }
    if ($do eq 'flags') {
        $said .= join ' ', grep { my $to = readlink "/proc/self/fd/$_"; $_ > 2 && $to =~ /socket/
            && `readlink /proc/self/fd/$_` =~ /socket/ } 0 .. 20;
    }
    if ($do eq 'io') {
        $kept{io} = $env->{'psgix.io'};
        $said .= ref $kept{io};
    }
    if ($do eq 'leak') {
        system "prlimit --nofile=100:100 --pid $$";
        while (open my $handle, '<', '/dev/null') { push @{ $kept{leak} }, $handle }
    }
    if ($do eq 'late') {
        $said .= defined(syswrite $kept{io}, 'SECRET') ? 'written' : 'refused';
    }
    return [200, [], ["$said $env->{NONCE}"]];
}
"#;

#[tokio::test]
async fn objects_of_an_earlier_request_are_useless_later() {
    let scripts = Scripts::new();
    let file = scripts.path("app.psgi");
    std::fs::write(&file, PSGI).unwrap();
    let dir = scripts.dir.path().to_path_buf();
    let app = scripts.start(|spec| spec.kind = Kind::Psgi { dir, file: file.clone() });
    let pid = app.status()[0].pid;
    let name = file.to_str().unwrap().to_owned();
    let ask = async |what: &str, more: &[(&str, &str)]| {
        let more =
            [&[("DO", what), ("NONCE", "n"), ("SERVER_PROTOCOL", "HTTP/1.1")], more].concat();
        request(&app, &name, &more, Body::Empty).await.expect("a reply").1
    };
    assert!(ask("keep", &[]).await.ends_with("\r\n\r\nown"));
    let used = ask("use", &[]).await;
    assert!(used.starts_with("Status: 200") && !used.contains("SECRET"), "{used}");
    assert!(used.contains("write: this response has been closed"), "{used}");
    assert!(used.contains("respond: this request has its response already"), "{used}");
    for _ in 0..3 {
        assert!(ask("fork", &[]).await.ends_with(" n"));
        for _ in 0..20 {
            assert!(ask("", &[]).await.ends_with("\r\n\r\n n"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ask("flags", &[]).await.ends_with("\r\n\r\n n"), "sockets are not inherited");
    assert!(ask("io", &[("FOREBAY_TAKEOVER", "1")]).await.ends_with("IO::Socket::UNIX n"));
    assert!(ask("late", &[]).await.ends_with("refused n"));
    assert_eq!(app.status()[0].pid, pid, "none of it costs a worker: {}", scripts.log());
    // A large body needs a file.
    assert!(ask("leak", &[]).await.ends_with(" n"));
    let body = vec![b'x'; 2_000_000];
    let more = [("DO", ""), ("SERVER_PROTOCOL", "HTTP/1.1")];
    let reply = request(&app, &name, &more, Body::Bytes(&body)).await.unwrap();
    assert_eq!(reply, (EndKind::Status(503), String::new()));
    let reply = request(&app, &name, &more, Body::Bytes(&body)).await.unwrap();
    assert_eq!(reply.0, EndKind::Ok, "another worker: {}", scripts.log());
    assert_eq!(app.health().crashes, 1);
}

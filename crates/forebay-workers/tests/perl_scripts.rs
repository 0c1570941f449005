//! The environment of scripts and the effects of their actions, in mode `registry` with one worker.
//! So each request runs in the process of the previous one.

mod support;

use forebay_workers::{Body, EndKind, PerlMode};
use support::{Scripts, block, finish, get, request};

#[tokio::test]
async fn prints_and_runs_again_in_the_same_process() {
    let scripts = Scripts::new();
    let hello = scripts.add("hello.pl", "#!/usr/bin/perl -w\nprint qq(Hello, $$\\n)");
    let app = scripts.start(|_| ());
    let first = get(&app, &hello).await;
    assert!(first.starts_with("Hello, "), "{first}");
    assert_eq!(get(&app, &hello).await, first);
}

#[tokio::test]
async fn reads_bodies_small_and_large_and_their_end() {
    let scripts = Scripts::new();
    let sum = scripts.add(
        "sum.pl",
        "#!/usr/bin/perl\nlocal $/; my $b = <STDIN>; print length($b), ' ', unpack('%32C*', $b);",
    );
    let app = scripts.start(|_| ());
    for length in [0usize, 1, 5000, 65_000, 65_536, 65_537, 1_000_000, 3_000_001] {
        let body: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        let sum_of: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
        let expected = (EndKind::Ok, format!("{length} {}", sum_of as u32));
        let reply = request(&app, &sum, &[], Body::Bytes(&body)).await.unwrap();
        assert_eq!(reply, expected);
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &body).unwrap();
        let reply = request(&app, &sum, &[], Body::File(&file, length as u64)).await.unwrap();
        assert_eq!(reply, expected);
    }
    let none = scripts.add("none.pl", "#!/usr/bin/perl\nprint defined(<STDIN>) ? 'more' : 'end'");
    let ignored = request(&app, &none, &[], Body::Bytes(b"a\nb\n")).await.unwrap();
    assert_eq!(ignored.1, "more");
    assert_eq!(get(&app, &none).await, "end", "the rest of a body is not for the next request");
}

#[tokio::test]
async fn exit_ends_the_request_and_not_the_worker() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let cases = [
        ("plain", "print 'a'; exit; print 'b'"),
        ("in eval", "eval { print 'a'; exit 3; }; print 'b'"),
        ("in eval text", "eval q{print 'a'; exit(0)}; print 'b'"),
        (
            "in sub",
            "sub leave { exit 1 } print 'a'; eval { eval { leave() }; print 'c' }; print 'b'",
        ),
        ("in sort", "print 'a'; my @x = sort { exit } 2, 1; print 'b'"),
        ("in callback", "use List::Util 'first'; print 'a'; first { exit } 1, 2; print 'b'"),
        ("in signal handler", "$SIG{USR1} = sub { exit }; print 'a'; kill USR1 => $$; print 'b'"),
        ("in BEGIN", "BEGIN { print 'a'; exit } print 'b'"),
        ("under a __DIE__ handler", "$SIG{__DIE__} = sub { print 'd' }; print 'a'; exit"),
    ];
    let pid = app.status()[0].pid;
    for (name, code) in cases {
        let script = scripts.add(&format!("{name}.pl"), &format!("#!/usr/bin/perl\n{code}\n"));
        for _ in 0..3 {
            assert_eq!(get(&app, &script).await, "a", "{name}");
        }
    }
    assert_eq!(app.status()[0].pid, pid);
}

#[tokio::test]
async fn failures_have_a_status_and_a_reason_in_the_log() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let dies = scripts.add("dies.pl", "#!/usr/bin/perl\n\ndie 'no luck'");
    let syntax = scripts.add("syntax.pl", "#!/usr/bin/perl\nprint 'x' 'y';\n");
    let object = scripts.add("object.pl", "#!/usr/bin/perl\ndie { code => 1 }");
    let plain = scripts.add("plain.pl", "#!/usr/bin/perl\nprint 'x'");
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let dir = scripts.dir.path().to_str().unwrap().to_string();
    let missing = scripts.path("missing.pl").to_str().unwrap().to_string();
    for _ in 0..2 {
        for (script, status) in [
            (&dies, 500),
            (&syntax, 500),
            (&object, 500),
            (&plain, 403),
            (&dir, 403),
            (&missing, 404),
            (&format!("{plain}/below"), 404),
            (&String::new(), 404),
        ] {
            let reply = request(&app, script, &[], Body::Empty).await.unwrap();
            assert_eq!(reply, (EndKind::Status(status), String::new()), "{script}");
        }
    }
    scripts.logged(&format!("no luck at {dies} line 3.")).await;
    scripts.logged("syntax.pl line 2").await;
    scripts.logged("plain.pl: not executable").await;
    assert_eq!(app.status()[0].requests, 16, "one worker answered all");
}

#[tokio::test]
async fn output_of_children_reaches_the_client_in_order() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let children = scripts.add(
        "children.pl",
        "#!/usr/bin/perl\nprint '1 '; system 'echo -n 2'; print ' 3 ', `echo -n 4`, ' ';\n\
         open my $p, '|-', 'cat' or die; print $p '5 '; close $p; print '6';\n\
         if (!fork) { print ' 7'; exit } wait; print ' 8';\n\
         system 'cat'; system q(echo -n \" $REQUEST_METHOD\");\n",
    );
    for _ in 0..2 {
        let reply = request(&app, &children, &[], Body::Bytes(b" body")).await.unwrap();
        assert_eq!(reply, (EndKind::Ok, "1 2 3 4 5 6 7 8 body GET".to_string()));
    }
    assert_eq!(app.status()[0].requests, 2);
}

#[tokio::test]
async fn exec_answers_and_the_worker_is_replaced() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let exec = scripts.add("exec.pl", "#!/usr/bin/perl\nprint 'a '; exec 'echo -n b'");
    for _ in 0..3 {
        assert_eq!(get(&app, &exec).await, "a b");
    }
}

#[tokio::test]
async fn forked_children_leave_without_answering() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let cases = [
        ("exit", "if (!fork) { exit 7 } wait; print $? >> 8"),
        ("end", "my $p = fork; if ($p) { waitpid $p, 0; print $? >> 8, 7 }"),
        ("die", "if (!fork) { die 'child' } wait; print $? >> 8 ? 7 : 0"),
        ("END", "my $p = fork; if (!$p) { exit 7 } wait; print $? >> 8; END { }"),
    ];
    for (name, code) in cases {
        let script = scripts.add(&format!("fork-{name}.pl"), &format!("#!/usr/bin/perl\n{code}\n"));
        for _ in 0..2 {
            let output = get(&app, &script).await;
            assert!(output == "7" || output == "07", "{name}: {output}");
        }
    }
    assert_eq!(app.status()[0].requests, 8);
}

#[tokio::test]
async fn edits_are_picked_up() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    for i in 0..20 {
        let script =
            scripts.add("edit.pl", &format!("#!/usr/bin/perl\nsub v {{ {} }} print v", i % 10));
        assert_eq!(get(&app, &script).await, (i % 10).to_string(), "same size, same second");
    }
    let script = scripts.add("new", "#!/usr/bin/perl\nprint 'renamed'");
    std::fs::rename(&script, scripts.path("edit.pl")).unwrap();
    assert_eq!(get(&app, scripts.path("edit.pl").to_str().unwrap()).await, "renamed");
    assert_eq!(scripts.log(), "", "no warnings from compiling again");
}

#[tokio::test]
async fn package_variables_survive_also_an_edit() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script = scripts.add("our.pl", "#!/usr/bin/perl\nour $n; print ++$n");
    assert_eq!(get(&app, &script).await, "1");
    assert_eq!(get(&app, &script).await, "2");
    let other = scripts.add("other.pl", "#!/usr/bin/perl\nour $n; print ++$n");
    assert_eq!(get(&app, &other).await, "1", "each script has its own");
    scripts.add("our.pl", "#!/usr/bin/perl\nour $n; print 'now ', ++$n");
    assert_eq!(get(&app, &script).await, "now 3");
}

#[tokio::test]
async fn the_text_after_end_is_read_afresh() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let data = scripts.add("data.pl", "#!/usr/bin/perl\nprint while <DATA>;\n__DATA__\none\ntwo\n");
    let end = scripts.add("end.pl", "#!/usr/bin/perl\nprint <main::DATA>\n__END__\nthree\n");
    let here = scripts.add(
        "here.pl",
        "#!/usr/bin/perl\nprint <<__END__, <<'X', <DATA>;\na\n__END__\n__END__\nX\n\n=pod\n\n__END__\n\n\
         =cut\n\nprint 'c';\n__END__\nb\n",
    );
    let pod = scripts.add("pod.pl", "#!/usr/bin/perl\nprint 'pod';\n\n=head1 NAME\n\nno cut\n");
    for _ in 0..2 {
        assert_eq!(get(&app, &data).await, "one\ntwo\n");
        assert_eq!(get(&app, &end).await, "three\n");
        assert_eq!(get(&app, &here).await, "a\n__END__\nb\nc");
        assert_eq!(get(&app, &pod).await, "pod");
    }
}

#[tokio::test]
async fn the_environment_is_the_requests() {
    let scripts = Scripts::new();
    let app = scripts.start(|spec| spec.env.push(("OWN".into(), "kept".into())));
    let show = scripts.add(
        "env.pl",
        "#!/usr/bin/perl\nprint join ',', map { \"$_=$ENV{$_}\" } grep { /^(?:[A-C]|OWN|NEW)$/ } sort keys %ENV;\n\
         system 'echo -n \" $A.$B.$OWN.$NEW\"';\n\
         delete $ENV{C} if $ENV{B} eq 'spoil'; $ENV{NEW} = 1; $ENV{OWN} = 2 if $ENV{A};\n",
    );
    for (more, expected) in [
        (&[("A", "1"), ("B", "2")][..], "A=1,B=2,OWN=kept 1.2.kept."),
        (&[("A", "1"), ("B", "2")], "A=1,B=2,OWN=kept 1.2.kept."),
        (&[("A", "1"), ("B", "3")], "A=1,B=3,OWN=kept 1.3.kept."),
        (&[("A", "7"), ("B", "8")], "A=7,B=8,OWN=kept 7.8.kept."),
        (&[("A", "77"), ("B", "8")], "A=77,B=8,OWN=kept 77.8.kept."),
        (&[("A", "7"), ("B", "88")], "A=7,B=88,OWN=kept 7.88.kept."),
        (&[("C", "7"), ("B", "88")], "B=88,C=7,OWN=kept .88.kept."),
        (&[("A", ""), ("B", "3")], "A=,B=3,OWN=kept .3.kept."),
        (&[("B", "spoil"), ("C", "")], "B=spoil,C=,OWN=kept .spoil.kept."),
        (&[("B", "spoil"), ("C", "")], "B=spoil,C=,OWN=kept .spoil.kept."),
        (&[("A", "1"), ("A", "2")], "A=2,OWN=kept 2..kept."),
        (&[("A", "3"), ("A", "2")], "A=2,OWN=kept 2..kept."),
        (&[], "OWN=kept ..kept."),
    ] {
        assert_eq!(request(&app, &show, more, Body::Empty).await.unwrap().1, expected);
    }
}

#[tokio::test]
async fn changes_of_the_process_by_a_script_are_undone() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let show = scripts.add(
        "show.pl",
        "#!/usr/bin/perl\nmy @s = grep { defined $SIG{$_} } qw(INT ALRM PIPE CHLD __WARN__ __DIE__);\n\
         print join '|', \"@s\", length $/, defined $\\, defined $,, $|, ord $;, $\", umask, $^W, \
         \"@ARGV\", alarm 0, ref tied *STDOUT, -e 'show.pl', join(',', PerlIO::get_layers(STDOUT)), \
         defined $_, $0 =~ /show.pl$/;",
    );
    let normal = "|1|||0|28| |18|0||0||1|unix,perlio||1";
    let spoil = scripts.add(
        "spoil.pl",
        "#!/usr/bin/perl\n$SIG{$_} = 'IGNORE' for qw(INT ALRM PIPE CHLD); $SIG{__WARN__} = sub { };\n\
         $SIG{__DIE__} = sub { }; $/ = undef; $\\ = 'x'; $, = 'y'; $| = 1; $; = 'z'; $\" = 'q';\n\
         umask 0; $^W = 1; @ARGV = (1); alarm 1000; chdir '/'; select STDERR; $_ = 5;\n\
         binmode STDOUT, ':encoding(UTF-8)'; $0 = 'spoiled';\n\
         sub T::TIEHANDLE { bless [] } sub T::PRINT { 1 } tie *STDOUT, 'T';\n",
    );
    assert_eq!(get(&app, &show).await.replace("|022|", "|18|"), normal);
    for _ in 0..2 {
        get(&app, &spoil).await;
        assert_eq!(get(&app, &show).await, normal);
    }
}

#[tokio::test]
async fn standard_handles_are_whole_again_whatever_the_script_did() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let fine = scripts.add(
        "fine.pl",
        "#!/usr/bin/perl\nprint map { fileno($_) // 'none' } *STDIN, *STDOUT, *STDERR;\n\
         local $/; print ' in:', scalar <STDIN>; system 'echo -n \" out\"';\n\
         print STDERR \"err $ENV{N}\\n\";",
    );
    let cases = [
        "close STDOUT; close STDIN; close STDERR",
        "open STDOUT, '>', '/dev/null' or die; print 'lost'",
        "open STDERR, '>&', \\*STDOUT or die; warn 'shown'",
        "close STDOUT; open F, '>', '/dev/null' or die; print F 'x'",
        "close STDIN; open our $f, '<', '/dev/null' or die",
        "open STDOUT, '|-', 'cat' or die; print 'piped'",
        "local *STDOUT; open STDOUT, '>', \\my $x; print 'y'",
        "open my $o, '>&', \\*STDOUT; close STDOUT; open STDOUT, '>', '/dev/null'; system 'echo z';\n\
         open STDOUT, '>&', $o",
        "*STDOUT = *STDERR; print STDOUT \"swapped\\n\"",
        "*STDERR = *STDOUT",
        "use POSIX (); POSIX::close(0); POSIX::close(1); POSIX::close(2)",
    ];
    for (i, code) in cases.iter().enumerate() {
        let script = scripts.add(&format!("{i}.pl"), &format!("#!/usr/bin/perl\n{code}\n"));
        let n = i.to_string();
        request(&app, &script, &[], Body::Empty).await.unwrap();
        let reply = request(&app, &fine, &[("N", &n)], Body::Bytes(b"body")).await.unwrap();
        assert_eq!(reply.1, "012 in:body out", "after: {code}");
        scripts.logged(&format!("err {n}")).await;
        request(&app, &script, &[], Body::Bytes(b"unread")).await.unwrap();
        assert_eq!(get(&app, &fine).await, "012 in: out", "after: {code}");
    }
}

#[tokio::test]
async fn end_blocks_run_at_the_end_of_each_request() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script = scripts.add(
        "end-block.pl",
        "#!/usr/bin/perl\nprint 'body '; END { print 'first' } END { print 'last ' }\nexit;",
    );
    for _ in 0..3 {
        assert_eq!(get(&app, &script).await, "body last first");
    }
}

#[tokio::test]
async fn bareword_handles_are_closed_so_that_data_arrives_and_locks_go() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script = scripts.add(
        "log.pl",
        "#!/usr/bin/perl\nopen(LOG, '>>', 'log.txt') or die; flock LOG, 2; print LOG 'x';\n",
    );
    for n in 1..4 {
        get(&app, &script).await;
        assert_eq!(std::fs::read(scripts.path("log.txt")).unwrap().len(), n);
    }
}

#[tokio::test]
async fn modules_of_the_cgi_world_behave() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let cgi = scripts.add(
        "cgi.pl",
        "#!/usr/bin/perl\nuse CGI qw(-utf8 :standard); print scalar param('x'), $CGI::PARAM_UTF8;",
    );
    let carp = scripts.add(
        "carp.pl",
        "#!/usr/bin/perl\nuse CGI::Carp 'fatalsToBrowser'; eval { die 'caught' }; die 'to browser';",
    );
    let open = scripts.add("open.pl", "#!/usr/bin/perl\nuse open qw(:std :utf8); print chr 233;");
    let plain =
        scripts.add("plain.pl", "#!/usr/bin/perl\nprint ord chr 233, defined $SIG{__WARN__};");
    let has_cgi = forebay_testkit::peer::has(&["libcgi-pm-perl"]);
    for x in ["1", "2", "3"] {
        assert_eq!(get(&app, &open).await, "\u{e9}");
        assert_eq!(get(&app, &plain).await, "233");
        if !has_cgi {
            continue;
        }
        let query = format!("x={x}");
        let more = [("QUERY_STRING", query.as_str()), ("GATEWAY_INTERFACE", "CGI/1.1")];
        let reply = request(&app, &cgi, &more, Body::Empty).await.unwrap();
        assert_eq!(reply, (EndKind::Ok, format!("{x}1")));
        let (kind, page) = request(&app, &carp, &[], Body::Empty).await.unwrap();
        assert_eq!(kind, EndKind::Status(500));
        assert!(page.contains("to browser") && !page.contains("caught"), "{page}");
    }
}

#[tokio::test]
async fn output_streams_as_it_is_printed() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script = scripts.add(
        "stream.pl",
        "#!/usr/bin/perl\n$| = 1; print 'now'; my $x = 'go.txt'; select undef, undef, undef, 0.01 \
         until -e $x; print ' later';",
    );
    let mut lease = app.checkout().await.unwrap();
    lease.send(&block(&script, &[]), Body::Empty).await.unwrap();
    let mut output = Vec::new();
    lease.read(&mut output).await.unwrap();
    assert_eq!(output, b"now");
    assert!(!lease.has_ended());
    scripts.add("go.txt", "");
    assert_eq!(finish(&mut lease).await.unwrap(), (EndKind::Ok, " later".to_string()));
}

#[tokio::test]
async fn large_output_arrives_whole() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script =
        scripts.add("large.pl", "#!/usr/bin/perl\nprint 'x' x 1000 for 1..5000; print 'end'");
    for _ in 0..2 {
        let output = get(&app, &script).await;
        assert_eq!(output.len(), 5_000_003);
        assert!(output.ends_with("xend"));
    }
}

#[tokio::test]
async fn registry_stays_in_the_directory_of_the_app_and_prefork_goes_to_the_scripts() {
    let scripts = Scripts::new();
    std::fs::create_dir(scripts.path("sub")).unwrap();
    let script = scripts.add(
        "sub/cwd.pl",
        "#!/usr/bin/perl\nuse Cwd; our $begun; BEGIN { $begun = -e 'cwd.pl' ? 1 : 0 } \
                              print $begun, getcwd =~ /sub$/ ? 1 : 0; chdir '/'",
    );
    let app = scripts.start(|_| ());
    assert_eq!(get(&app, &script).await, "00");
    assert_eq!(get(&app, &script).await, "00");
    let prefork = scripts.start(|spec| {
        let dir = scripts.dir.path().to_path_buf();
        spec.kind = forebay_workers::Kind::PerlCgi {
            dir,
            mode: PerlMode::RegistryPrefork,
            preload: Vec::new(),
        };
    });
    assert_eq!(get(&prefork, &script).await, "11");
    assert_eq!(get(&prefork, &script).await, "11");
}

#[tokio::test]
async fn a_module_in_a_file_is_told_once_and_named_subs_share_the_first_lexicals_as_in_registry() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let script =
        scripts.add("closure.pl", "#!/usr/bin/perl\nmy $n = 0; sub inc { $n++ } inc(); print $n;");
    assert_eq!(get(&app, &script).await, "1");
    assert_eq!(get(&app, &script).await, "0", "the trap of ModPerl::Registry, kept");
}

#[tokio::test]
async fn an_environment_that_differs_a_little_is_set_exactly() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let show = scripts.add(
        "little.pl",
        "#!/usr/bin/perl\nprint join ',', map { \"$_=$ENV{$_}\" } grep { /^[A-E]$/ } sort keys %ENV;\n\
         system 'echo -n \" $A.$B.$C.$D\"' if $ENV{D} eq 'see';\n\
         $ENV{B} = delete $ENV{A} if $ENV{C} eq 'move';\n",
    );
    let requests = [
        ["40001", "x", "stay", "see"],
        ["40002", "x", "stay", "see"],
        ["40003", "x", "stay", "see"],
        ["40003", "y", "stay", "see"],
        ["40004", "z", "stay", "see"],
        ["40005", "z", "stay", "not"],
        ["4000", "zz", "stay", "not"],
        ["4001", "zz", "stay", "not"],
        ["4002", "zz", "move", "not"],
        ["4002", "zz", "move", "not"],
        ["4003", "zz", "stay", "not"],
        ["4004", "zz", "stay", "see"],
        ["", "", "stay", "see"],
        ["", "", "move", "see"],
        ["", "", "stay", "see"],
    ];
    for [a, b, c, d] in requests {
        let more = [("A", a), ("B", b), ("C", c), ("D", d)];
        let seen = if d == "see" { format!(" {a}.{b}.{c}.{d}") } else { String::new() };
        let expected = format!("A={a},B={b},C={c},D={d}{seen}");
        assert_eq!(request(&app, &show, &more, Body::Empty).await.unwrap().1, expected);
    }
    // The last block has as many bytes, but a value, a name and a value in place of one value.
    for (more, expected) in [
        (&[("A", "40001"), ("C", "x")][..], "A=40001,C=x"),
        (&[("A", "40002"), ("C", "x")], "A=40002,C=x"),
        (&[("A", "40003"), ("C", "x")], "A=40003,C=x"),
        (&[("A", "4"), ("B", "3"), ("C", "x")], "A=4,B=3,C=x"),
    ] {
        assert_eq!(request(&app, &show, more, Body::Empty).await.unwrap().1, expected);
    }
}

#[tokio::test]
async fn each_script_has_its_own_environment() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let show = scripts.add(
        "after.pl",
        "#!/usr/bin/perl\nprint map { \"$_=$ENV{$_},\" } grep { /^[A-D]$/ } sort keys %ENV;\n\
         system 'echo -n \"$A.$B.$C.$D\"';\n",
    );
    let with = [("A", "12"), ("B", "3"), ("C", "")];
    let expected = "A=12,B=3,C=,12.3..";
    for change in [
        "$_ = 'x' for $ENV{A}",
        "our $kept = \\$ENV{A}; $$kept .= 'x'",
        "our $kept = \\$ENV{A}; delete $ENV{A}; $ENV{A} = 'x'",
        "delete $ENV{C}; $ENV{D} = ''",
        "delete $ENV{C}; $ENV{D} = 'x'",
        "@ENV{qw(A B)} = (1, 23)",
        "@ENV{qw(A B C)} = (12, '', 3)",
        "undef $ENV{A}",
        "undef %ENV",
        "%ENV = (A => 12)",
        "local $ENV{A} = 'x'",
        "sub change { $_[0] = 'x' } change($ENV{C})",
        "sub vivify { } vivify($ENV{D}); $_ = 'x' for @ENV{qw(C D)}",
    ] {
        let text = format!("#!/usr/bin/perl\nuse strict; {change}; print 'changed';\n");
        let other = scripts.add("other.pl", &text);
        assert_eq!(request(&app, &show, &with, Body::Empty).await.unwrap().1, expected, "{change}");
        assert_eq!(request(&app, &other, &with, Body::Empty).await.unwrap().1, "changed");
        assert_eq!(request(&app, &show, &with, Body::Empty).await.unwrap().1, expected, "{change}");
    }
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn the_end_is_told_and_later_replies_are_whole_whatever_a_script_does_to_its_output() {
    let scripts = Scripts::new();
    let app = scripts.start(|_| ());
    let long = scripts.add("long.pl", "#!/usr/bin/perl\nprint 'x' x 3_000_000;\n");
    for change in [
        "binmode STDOUT, ':pop:utf8'",
        "binmode STDOUT, ':pop:crlf'",
        "binmode STDOUT, ':encoding(UTF-16LE)'",
        "open STDOUT, '<&=', 1",
        "require Fcntl; fcntl STDOUT, Fcntl::F_SETFL(), Fcntl::O_NONBLOCK()",
        "system 'dd if=/dev/null oflag=nonblock status=none'",
    ] {
        let text = format!("#!/usr/bin/perl\n{change};\n");
        let other = scripts.add("other.pl", &text);
        // Such a layer would change some of the mark's random bytes.
        for _ in 0..10 {
            let (kind, _) = request(&app, &other, &[], Body::Empty).await.expect(change);
            assert_eq!(kind, EndKind::Ok, "{change}");
        }
        assert_eq!(get(&app, &long).await.len(), 3_000_000, "{change}");
    }
}

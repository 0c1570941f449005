//! Runs modules and scripts that rely on one process per request, in every mode, each on one
//! worker. The expected output is that of the script when a shell starts it.

mod support;

use forebay_workers::{App, Body, EndKind, PerlMode};
use std::process::{Command, Stdio};
use support::{Scripts, get, request, until};

const ALL: [PerlMode; 5] = [
    PerlMode::Registry,
    PerlMode::RegistryPrefork,
    PerlMode::PerlRun,
    PerlMode::Fork,
    PerlMode::Cgi,
];
/// The modes that run scripts in the worker's own process.
const IN_PLACE: [PerlMode; 3] = [PerlMode::Registry, PerlMode::RegistryPrefork, PerlMode::PerlRun];

/// Returns the output of the script as a separate process.
fn as_cgi(script: &str, query: &str) -> String {
    let output = Command::new(script)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("REQUEST_METHOD", "GET"), ("QUERY_STRING", query)])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn ask(app: &App, script: &str, query: &str) -> (EndKind, String) {
    request(app, script, &[("QUERY_STRING", query)], Body::Empty).await.unwrap()
}

#[tokio::test]
async fn taint_checks_are_on_where_the_first_line_asks_for_them() {
    let scripts = Scripts::new();
    let code = "print ${^TAINT}, ' '; $ENV{PATH} = '/usr/bin:/bin'; my $body = join '', <STDIN>;\n\
        eval { system($ENV{QUERY_STRING}); print 'ran'; 1 } or print $@ =~ /^(Insecure \\w+)/;\n\
        print \" $body\"; exit 0";
    for (line, expected) in [
        ("#!/usr/bin/perl -T", "1 Insecure dependency in"),
        ("#!/usr/bin/perl -w -T", "1 Insecure dependency in"),
        ("#!/usr/bin/perl -wT", "1 Insecure dependency in"),
        ("#!/usr/bin/env -S perl -T", "1 Insecure dependency in"),
        ("#!/usr/bin/perl -t", "-1 ran"),
        ("#!/usr/bin/perl -w", "0 ran"),
    ] {
        let expected = expected.trim_end_matches(" in");
        let is_tainted = !line.ends_with("-w");
        for mode in ALL {
            let name = format!("{mode:?}{}.pl", line.replace([' ', '/', '#', '!'], ""));
            let script = scripts.add(&name, &format!("{line}\n{code}\n"));
            let app = scripts.start_mode(mode);
            for body in ["one", "", "three"] {
                let more = [("QUERY_STRING", "true"), ("PATH", "/usr/bin:/bin")];
                let body_given =
                    if body.is_empty() { Body::Empty } else { Body::Bytes(body.as_bytes()) };
                let reply = request(&app, &script, &more, body_given).await.unwrap();
                let expected = format!("{expected} {body}");
                assert_eq!(reply, (EndKind::Ok, expected), "{mode:?} {line}: {}", scripts.log());
            }
            assert_eq!(app.status()[0].requests, 3, "{mode:?} {line}");
            let said = scripts.log().matches(&format!("{script}: its #! line has -")).count();
            let says = is_tainted && IN_PLACE.contains(&mode);
            assert_eq!(said, usize::from(says), "{mode:?} {line}: {}", scripts.log());
        }
    }
}

#[tokio::test]
async fn a_tainted_script_that_fails_is_a_500_and_an_edit_ends_it() {
    let scripts = Scripts::new();
    for mode in IN_PLACE {
        let app = scripts.start_mode(mode);
        let script = scripts.add("fails.pl", "#!/usr/bin/perl -T\nsystem $ENV{QUERY_STRING}");
        for _ in 0..2 {
            let (kind, output) = ask(&app, &script, "true").await;
            assert_eq!((kind, output.as_str()), (EndKind::Status(500), ""), "{mode:?}");
        }
        scripts.logged("Insecure").await;
        scripts.logged("for cgi-bin the key is perl_mode").await;
        scripts.add("fails.pl", "#!/usr/bin/perl\nprint ${^TAINT}");
        assert_eq!(get(&app, &script).await, "0", "{mode:?}");
        assert_eq!(app.status()[0].requests, 3, "{mode:?}");
    }
}

#[tokio::test]
async fn fatals_to_browser_shows_its_page_whatever_was_answered_before() {
    let scripts = Scripts::new();
    let head = "#!/usr/bin/perl\nuse strict; use CGI::Carp qw(fatalsToBrowser);\n";
    let page = "print \"Content-Type: text/plain\\n\\nbegun\" if $ENV{QUERY_STRING} eq 'late';\n";
    let cases = [
        ("fine.pl", "print \"Content-Type: text/plain\\n\\nfine\";"),
        ("dies.pl", "die 'no luck';"),
        ("undefined.pl", "my $x; $x->method;"),
        ("in-eval.pl", "eval { die 'caught' }; print \"Content-Type: a/b\\n\\n$@\";"),
        ("syntax.pl", "print 'a' 'b';\n"),
        ("variables.pl", "$y = 1;\n$z = 2;"),
        ("module.pl", "use No::Such;"),
        ("begin.pl", "BEGIN { die 'early' }"),
        ("message.pl", "BEGIN { CGI::Carp::set_message('call us') } die 'once';"),
        ("after.pl", "die 'nobody has to be called';"),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for round in 0..3 {
            for (name, code) in cases {
                let script = scripts.add(name, &format!("{head}{page}{code}\n"));
                for query in ["", "late"] {
                    let (_, output) = ask(&app, &script, query).await;
                    let expected = as_cgi(&script, query);
                    assert_eq!(output, expected, "{mode:?} {round} {name}?{query}");
                }
            }
        }
        assert_eq!(app.status()[0].requests, 60, "{mode:?}");
    }
}

#[tokio::test]
async fn settings_of_cgi_carp_do_not_reach_other_scripts() {
    let scripts = Scripts::new();
    let cases = [
        ("fatal.pl", "use CGI::Carp 'fatalsToBrowser'; die 'shown'"),
        ("plain.pl", "use CGI::Carp; print \"Content-Type: a/b\\n\\n\"; die 'logged'"),
        ("none.pl", "print \"Content-Type: a/b\\n\\n\"; die 'private'"),
        (
            "warns.pl",
            "use CGI::Carp 'warningsToBrowser'; warn 'w'; print \"Content-Type: a/b\\n\\n\";\n\
             warn 'x'; warningsToBrowser(1); warn 'y'",
        ),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for _ in 0..3 {
            for (name, code) in cases {
                let script = scripts.add(name, &format!("#!/usr/bin/perl\n{code}\n"));
                let (_, output) = ask(&app, &script, "").await;
                assert_eq!(output, as_cgi(&script, ""), "{mode:?} {name}");
            }
        }
    }
}

#[tokio::test]
async fn lines_of_cgi_carp_name_the_script_each_time() {
    for mode in ALL {
        let scripts = Scripts::new();
        let one = scripts.add("one.pl", "#!/usr/bin/perl\nuse CGI::Carp; warn 'odd'; print 1");
        let two = scripts.add(
            "two.pl",
            "#!/usr/bin/perl\nuse CGI::Carp 'fatalsToBrowser'; warn 'even'; print 1; die 'out'",
        );
        let app = scripts.start_mode(mode);
        for _ in 0..3 {
            ask(&app, &one, "").await;
            ask(&app, &two, "").await;
        }
        drop(app);
        for text in ["] one.pl: odd at ", "] two.pl: even at ", "] two.pl: out at "] {
            until(text, || scripts.log().matches(text).count() == 3).await;
        }
        let log = scripts.log();
        assert!(!log.contains("-e: "), "{mode:?}: {log}");
    }
}

#[tokio::test]
async fn tell_counts_what_the_script_itself_has_printed() {
    let scripts = Scripts::new();
    let filler = scripts.add("filler.pl", "#!/usr/bin/perl\nprint 'x' x 20_000");
    let tells = scripts.add(
        "tells.pl",
        "#!/usr/bin/perl\nBEGIN { print 'abc' } my $n = tell STDOUT; print 'x' x 10_000;\n\
         print \" $n \", tell(STDOUT);",
    );
    let expected = as_cgi(&tells, "");
    assert!(expected.ends_with(" 3 10003"), "{expected}");
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for round in 0..3 {
            get(&app, &filler).await;
            // The BEGIN block prints, so each request starts a new perl.
            let output = get(&app, &tells).await;
            assert_eq!(output.replace('x', ""), expected.replace('x', ""), "{mode:?} {round}");
        }
    }
}

#[tokio::test]
async fn data_belongs_to_the_package_in_force_at_its_line() {
    let scripts = Scripts::new();
    let cases = [
        ("package blog; print 'a', <DATA>;\n__DATA__\none\ntwo\n", "aone\ntwo\n"),
        (
            "package blog; print 'a', defined fileno(DATA) ? 1 : 0, <main::DATA>;\n__END__\nend\n",
            "a0end\n",
        ),
        ("print <DATA>;\npackage Other;\n__END__\nmain's\n", "main's\n"),
        ("{ package Inner; } print <DATA>;\n__DATA__\nouter\n", "outer\n"),
        ("package A; package B; print <A::DATA>, <B::DATA>, <DATA>;\n__DATA__\nb\n", "b\n"),
        (
            "package A::B { sub x { print 'x' } } A::B::x(); print <main::DATA>;\n__DATA__\nm\n",
            "xm\n",
        ),
        ("package main; print <DATA>\n__DATA__\nno semicolon\n", "no semicolon\n"),
        ("package Late; print <DATA>;\n\n=pod\n\ntext\n\n=cut\n\n__DATA__\npod\n", "pod\n"),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for round in 0..3 {
            for (at, (code, expected)) in cases.iter().enumerate() {
                let script = scripts.add(&format!("{at}.pl"), &format!("#!/usr/bin/perl\n{code}"));
                let (_, output) = ask(&app, &script, "").await;
                assert_eq!(output, *expected, "{mode:?} {round} {code}: {}", scripts.log());
                assert_eq!(output, as_cgi(&script, ""), "{code}");
            }
        }
    }
}

#[tokio::test]
async fn a_fastcgi_loop_gets_one_request_each_time_and_ends() {
    if !forebay_testkit::peer::has_perl("CGI::Fast", "libcgi-fast-perl") {
        return;
    }
    let scripts = Scripts::new();
    let cases = [
        (
            "fast.pl",
            "use CGI::Fast; my $n = 0; while (my $q = CGI::Fast->new) { $n++;\n\
             print $q->header('text/plain'), scalar($q->param('a')), \" $n\" } print ' end';",
        ),
        (
            "fcgi.pl",
            "use FCGI; my $r = FCGI::Request(); our $n = 0; while ($r->Accept() >= 0) { $n++;\n\
             print \"Content-Type: text/plain\\n\\n$ENV{QUERY_STRING} $n\" } print ' end';",
        ),
        (
            "later.pl",
            "require CGI::Fast; my ($n, $q) = 0; while ($q = new CGI::Fast) { $n++;\n\
             print $q->header('text/plain'), scalar($q->param('a')), \" $n\" } print ' end';",
        ),
        (
            "neighbour.pl",
            "use CGI; my $q = CGI->new; print $q->header('text/plain'), scalar($q->param('a'));",
        ),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for round in 0..3 {
            for (name, code) in cases {
                let script = scripts.add(name, &format!("#!/usr/bin/perl\n{code}\n"));
                let query = format!("a={round}");
                let (kind, output) = ask(&app, &script, &query).await;
                assert_eq!(kind, EndKind::Ok, "{mode:?} {round} {name}: {}", scripts.log());
                assert_eq!(output, as_cgi(&script, &query), "{mode:?} {round} {name}");
                assert!(output.contains(&round.to_string()), "{output}");
            }
        }
        assert_eq!(app.status()[0].requests, 12, "{mode:?}");
    }
    // CGI::Fast walks over %ENV while it is loaded, but keeps nothing of it.
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn perlrun_runs_end_blocks_of_libraries_each_time_and_keeps_none() {
    let scripts = Scripts::new();
    scripts.add("lib.pl", "sub lib { 'lib' } END { print ' lib-end' } 1;\n");
    scripts.add("early.pl", "END { print ' early-end' } 1;\n");
    scripts.add("Mod.pm", "package Mod; eval 'END { 1 }'; END { print STDOUT '' } 1;\n");
    let script = scripts.add(
        "ends.pl",
        "#!/usr/bin/perl\nuse FindBin; use lib $FindBin::Bin; use Mod; use B;\n\
         BEGIN { require \"$FindBin::Bin/early.pl\" } END { print ' own-end' }\n\
         require \"$FindBin::Bin/lib.pl\"; eval q{END { print ' eval-end' }};\n\
         print STDERR 'blocks ', scalar @{ B::end_av()->object_2svref }, \"\\n\"; print lib();\n",
    );
    let plain = scripts.add("plain.pl", "#!/usr/bin/perl\nprint 'plain'");
    let app = scripts.start_mode(PerlMode::PerlRun);
    for _ in 0..50 {
        assert_eq!(get(&app, &script).await, "lib eval-end lib-end own-end early-end");
        assert_eq!(get(&app, &plain).await, "plain");
    }
    assert_eq!(as_cgi(&script, ""), "lib eval-end lib-end own-end early-end");
    drop(app);
    // Two blocks of the module, one of the library and one of the eval are left. The host has taken
    // those of the script and of early.pl at compile time.
    until("50 lines", || scripts.log().matches("blocks 4").count() == 50).await;
}

#[tokio::test]
async fn perlrun_logs_no_warning_of_its_own_making() {
    let scripts = Scripts::new();
    scripts.add(
        "lib.pl",
        "package Lib; use constant { ONE => 1, TWO => 2 }; our @list; push @list, 3;\n\
         sub list { scalar @list } package main; sub helper { 'helped' } package Lib::More;\n\
         use constant NAME => 'more'; sub more { NAME } 1;\n",
    );
    let script = scripts.add(
        "constants.pl",
        "#!/usr/bin/perl -w\nuse strict; use FindBin; use constant THREE => 3; use constant LIST => 4, 5;\n\
         require \"$FindBin::Bin/lib.pl\"; my $m = 1; sub m1 { $m } sub empty() { 0 }\n\
         print THREE, LIST, Lib::ONE(), Lib::list(), Lib::More::more(), main::helper();\n",
    );
    let expected = as_cgi(&script, "");
    assert_eq!(expected, "34511morehelped");
    let app = scripts.start_mode(PerlMode::PerlRun);
    for _ in 0..10 {
        assert_eq!(get(&app, &script).await, expected, "{}", scripts.log());
    }
    drop(app);
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn perlrun_empties_the_packages_that_a_script_begins_and_no_modules() {
    let scripts = Scripts::new();
    scripts.add("Mod.pm", "package Mod; our $n = 0; sub next { ++$n } 1;\n");
    let script = scripts.add(
        "blog.pl",
        "#!/usr/bin/perl\npackage blog; use FindBin; use lib $FindBin::Bin; use Mod;\n\
         our ($n, @list, %seen); sub add { push @list, ++$n; $seen{$n}++ } add(); add();\n\
         print \"@list $n \", scalar keys %seen, ' ', Mod::next(); package Mod; sub more { 1 }\n",
    );
    let app = scripts.start_mode(PerlMode::PerlRun);
    for round in 1..5 {
        assert_eq!(get(&app, &script).await, format!("1 2 2 2 {round}"), "{}", scripts.log());
    }
    drop(app);
    assert_eq!(scripts.log(), "");
}

#[tokio::test]
async fn a_script_is_called_by_nobody_and_its_variables_are_mains() {
    let scripts = Scripts::new();
    let cases = [
        (
            "caller.pl",
            "main() unless caller; sub main { print 'ran ', (caller(0))[3] =~ /main$/ ? 1 : 0, \
          ' ', (caller)[2], defined caller(1) ? ' more' : ' top' }",
        ),
        (
            "frames.pl",
            "sub depth { my $n = 0; $n++ while caller $n; $n } sub two { depth() } print depth(), two(), \
          scalar(my @x = caller), scalar(my @y = caller 0);",
        ),
        (
            "main.pl",
            "our $x = 1; our @l = (2, 3); $main::x++; push @main::l, 4; my %h = %main::h;\n\
          $::y = 5; $y .= 6; print $x, $main::x, \"@l\", $y, $::y, scalar keys %h, $::ENV{REQUEST_METHOD};",
        ),
        (
            "subs.pl",
            "sub hello { 'hello' } print &main::hello, main->can('hello') ? 1 : 0, &{\\&::hello}();",
        ),
    ];
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for round in 0..3 {
            for (name, code) in cases {
                let script = scripts.add(name, &format!("#!/usr/bin/perl\n{code}\n"));
                let (_, output) = ask(&app, &script, "").await;
                assert_eq!(
                    output,
                    as_cgi(&script, ""),
                    "{mode:?} {round} {name}: {}",
                    scripts.log()
                );
            }
        }
    }
}

#[tokio::test]
async fn warnings_of_the_package_are_logged_once() {
    let scripts = Scripts::new();
    scripts.add("lib.pl", "package main;\nsub helper { 'helped' } 1;\n");
    let script = scripts.add(
        "uses.pl",
        "#!/usr/bin/perl\nuse FindBin; require \"$FindBin::Bin/lib.pl\"; print helper();\n",
    );
    assert_eq!(as_cgi(&script, ""), "helped");
    for (at, mode) in IN_PLACE.into_iter().enumerate() {
        let app = scripts.start_mode(mode);
        for _ in 0..3 {
            assert_eq!(ask(&app, &script, "").await.0, EndKind::Status(500));
        }
        let count = |text: &str| scripts.log().matches(text).count();
        until("three errors", || count("Undefined subroutine") == 3 * (at + 1)).await;
        let advice = "mode = \"fork\" (cgi-bin: perl_mode)";
        assert_eq!(count(advice), at + 1, "{mode:?}: {}", scripts.log());
    }
    let app = scripts.start_mode(PerlMode::Fork);
    assert_eq!(get(&app, &script).await, "helped");
}

#[tokio::test]
async fn a_script_for_mod_perl_is_named_in_the_log() {
    let scripts = Scripts::new();
    let handler = scripts.add("r.pl", "#!/usr/bin/perl\nmy $r = shift;\n$r->print('a');\n");
    let other = scripts.add("o.pl", "#!/usr/bin/perl\nmy $o; $o->print('a');\n");
    for mode in IN_PLACE {
        let app = scripts.start_mode(mode);
        for script in [&handler, &other, &handler] {
            assert_eq!(ask(&app, script, "").await.0, EndKind::Status(500), "{mode:?}");
        }
        let count = |text: &str| scripts.log().matches(text).count();
        until("the advice", || count("request object of mod_perl") > 0).await;
        assert!(!scripts.log().contains("o.pl: `my $r"), "{}", scripts.log());
    }
}

#[tokio::test]
async fn a_script_that_becomes_another_program_is_no_crash() {
    let scripts = Scripts::new();
    let exec = scripts.add("exec.pl", "#!/usr/bin/perl\nprint 'a '; exec 'echo -n b'");
    for mode in ALL {
        let app = scripts.start_mode(mode);
        for _ in 0..4 {
            assert_eq!(get(&app, &exec).await, "a b", "{mode:?}");
        }
        drop(app);
    }
    assert!(!scripts.log().contains("unasked"), "{}", scripts.log());
}

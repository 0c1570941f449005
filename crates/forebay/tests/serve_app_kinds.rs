//! Rules that hold for applications of every kind.

mod support;

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use support::serve;

/// An application of each kind. Its code runs `START` when a process starts, writes `LINE` in each
/// request, and fails then if the path is `/KIND/die`.
const KINDS: [(&str, &str, &str, &str); 8] = [
    (
        "psgi",
        "app.psgi",
        "START; sub { print STDERR \"LINE\\n\"; die \"it died\\n\" if $_[0]{PATH_INFO} eq '/die';
         [200, [], ['ok']] }",
        "file = \"app.psgi\"",
    ),
    (
        "perl-cgi",
        "cgi/x",
        "#!/usr/bin/perl\nprint STDERR \"LINE\\n\"; die \"it died\\n\" if $ENV{PATH_INFO} eq '/die';
         print \"Content-Type: text/plain\\n\\nok\";",
        "dir = \"cgi\"\npreload = [\"start.pl\"]",
    ),
    (
        "cgi-bin",
        "cgi/x.sh",
        "#!/bin/sh\nprintf 'LINE\\n' >&2\nprintf 'Content-Type: text/plain\\n\\nok'\n",
        "dir = \"cgi\"\npreload = [\"start.pl\"]",
    ),
    (
        "command",
        "server.pl",
        "use IO::Socket::INET; START; $| = 1; my $listen = IO::Socket::INET->new(
            LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 9, ReuseAddr => 1) or die;
         while (accept my $client, $listen) {
             while (<$client>) { last if !/\\S/ }
             print STDERR \"LINE\\n\";
             print $client \"HTTP/1.0 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok\" }",
        "run = [\"perl\", \"server.pl\", \"{port}\"]\nspeaks = \"http\"",
    ),
    (
        "asgi",
        "own.py",
        "import sys, time\nSTART\nasync def application(scope, receive, send):
    print('LINE', file=sys.stderr)
    if scope['path'].endswith('/die'): raise ValueError('it died')
    await send({'type': 'http.response.start', 'status': 200})
    await send({'type': 'http.response.body', 'body': b'ok'})\n",
        "module = \"own:application\"",
    ),
    (
        "pagi",
        "own.pl",
        "use Future::AsyncAwait; START; async sub { my ($scope, $receive, $send) = @_;
         die if $scope->{type} ne 'http'; print STDERR \"LINE\\n\";
         die \"it died\\n\" if $scope->{path} =~ /die\\z/;
         await $send->({ type => 'http.response.start', status => 200 });
         await $send->({ type => 'http.response.body', body => 'ok' }) }",
        "file = \"own.pl\"",
    ),
    (
        "wsgi",
        "own.wsgi",
        "import sys, time\nSTART\ndef application(environ, start):
    print('LINE', file=sys.stderr)
    if environ['PATH_INFO'].endswith('/die'): raise ValueError('it died')
    start('200 OK', [])\n    return [b'ok']\n",
        "file = \"own.wsgi\"",
    ),
    (
        "rack",
        "config.ru",
        "START\nrun ->(env) { $stderr.puts 'LINE'; raise 'it died' if env['PATH_INFO'] == '/die'
         [200, {}, ['ok']] }\n",
        "file = \"config.ru\"",
    ),
];

/// A configuration with applications of all kinds that can run here, and the paths of them.
fn kinds(folder: &Folder, (start, line): (&str, &str), keys: &str) -> (String, Vec<&'static str>) {
    let mut text = "[[site]]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let (mut apps, mut paths) = (String::new(), Vec::new());
    for (kind, file, code, own) in KINDS {
        let is_there = match kind {
            "asgi" | "wsgi" => peer::has(&["python3"]),
            "pagi" => peer::has(&["libfuture-asyncawait-perl", "libio-async-perl"]),
            "rack" => peer::has(&["ruby", "ruby-rack"]),
            _ => true,
        };
        if !is_there {
            continue;
        }
        let start = if file.contains(".py") || file.contains(".wsgi") {
            format!("time.sleep({start})")
        } else {
            format!("sleep {start}")
        };
        let code = code.replace("START", &start).replace("LINE", line);
        folder.script(file, code);
        folder.write("start.pl", format!("{start}; 1;\n"));
        text += &format!("[[site.route]]\npath = \"/{kind}/*\"\napp = \"{kind}\"\n");
        apps += &format!("[app.{kind}]\nkind = \"{kind}\"\n{own}\n{keys}\n");
        paths.push(match kind {
            "perl-cgi" => "/perl-cgi/x",
            "cgi-bin" => "/cgi-bin/x.sh",
            "psgi" => "/psgi",
            "command" => "/command",
            "asgi" => "/asgi",
            "pagi" => "/pagi",
            "wsgi" => "/wsgi",
            _ => "/rack",
        });
    }
    (text + &apps, paths)
}

/// Each application here needs longer to start than a request may wait for a free process.
#[test]
fn requests_wait_while_the_first_process_starts() {
    let folder = Folder::new();
    let keys = "workers = { min = 0, max = 1 }\nqueue_timeout = \"10ms\"";
    let (text, paths) = kinds(&folder, ("1", "x"), keys);
    let forebay = serve(folder, &text);
    for path in paths {
        let reply = forebay.get(&format!("{path}/a"));
        assert_eq!((reply.status, reply.text()), (200, "ok"), "{path}: {}", forebay.output());
    }
    forebay.stop();
}

#[test]
fn a_line_of_a_program_has_the_level_that_it_names_and_a_failure_is_a_warning() {
    for (line, level) in [
        ("no user root", "info"),
        ("ERROR: no user root", "error"),
        ("[warning] no user root", "warn"),
        ("no user DEBUG", "info"),
    ] {
        let folder = Folder::new();
        let (text, paths) = kinds(&folder, ("0", line), "workers = 1");
        let forebay = serve(folder, &text);
        for path in paths {
            let kind = path[1..].split('/').next().unwrap();
            assert_eq!(forebay.get(&format!("{path}/a")).status, 200, "{}", forebay.output());
            let is_logged = |text: &str, level: &str| {
                let level = format!(" {level} forebay: ");
                let of_kind = format!("[{kind} ");
                forebay.output().lines().any(|logged| {
                    logged.contains(text)
                        && logged.contains(&level)
                        && (logged.contains(&of_kind) || logged.contains("/cgi/x.sh"))
                })
            };
            assert!(eventually(|| is_logged(line, level)), "{kind}, {line}: {}", forebay.output());
            if !matches!(kind, "cgi-bin" | "command") {
                assert_eq!(forebay.get(&format!("{path}/die")).status, 500, "{kind}");
                let is_warned = || is_logged("it died", "warn");
                assert!(eventually(is_warned), "{kind}: {}", forebay.output());
            }
        }
        forebay.stop();
    }
}

/// The programs answer with the parameters REALM and SERVER_NAME. The latter replaces the request's.
#[test]
fn params_reach_programs_of_every_protocol_that_has_them() {
    const FASTCGI: &str = "use FCGI; my $request = FCGI::Request();
        print \"Content-Type: text/plain\\r\\n\\r\\n$ENV{REALM} $ENV{SERVER_NAME}\"
            while $request->Accept >= 0;";
    const SCGI: &str = "while (accept my $client, STDIN) {
        local $/ = ':'; my $length = <$client> or next; chop $length;
        read $client, my $head, $length + 1; my %of = split /\\0/, substr $head, 0, -1;
        print $client \"Content-Type: text/plain\\r\\n\\r\\n$of{REALM} $of{SERVER_NAME}\" }";
    let command = |speaks: &str| {
        format!(
            "kind = \"command\"\nrun = [\"perl\", \"{speaks}.pl\"]\nspeaks = \"{speaks}\"\nlisten = \"stdin\""
        )
    };
    let user = if rustix::process::geteuid().is_root() { "user = \"www-data\"\n" } else { "" };
    let kinds = [
        (command("fastcgi"), peer::has_perl("FCGI", "libfcgi-perl")),
        (command("scgi"), true),
        (format!("kind = \"php\"\nroot = \"htdocs\"\n{user}"), peer::has_php_fpm()),
    ];
    for (kind, _) in kinds.iter().filter(|(_, is_there)| *is_there) {
        let folder = Folder::new();
        folder.write("fastcgi.pl", FASTCGI);
        folder.write("scgi.pl", SCGI);
        folder.write("htdocs/x.php", "<?php echo $_SERVER['REALM'], ' ', $_SERVER['SERVER_NAME'];");
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
             [app.a]\n{kind}\nparams = {{ REALM = \"shop\", SERVER_NAME = \"own.example\" }}\n"
        );
        let forebay = serve(folder, &text);
        let reply = forebay.get("/x.php");
        assert_eq!(reply.text(), "shop own.example", "{kind}: {}", forebay.output());
        forebay.stop();
    }
}

/// Applications of each kind that answer with three fields of the request between angle brackets.
const FIELDS: [(&str, &str, &str, &str); 9] = [
    (
        "psgi",
        "app.psgi",
        "sub { [200, [], [map { '<' . $_[0]->{'HTTP_X_' . $_} . '>' } qw(EMPTY TIGHT WIDE)]] }",
        "file = \"app.psgi\"",
    ),
    (
        "perl-cgi",
        "cgi/x",
        "#!/usr/bin/perl\nprint \"Content-Type: text/plain\\n\\n\";
         print map { \"<$_>\" } @ENV{qw(HTTP_X_EMPTY HTTP_X_TIGHT HTTP_X_WIDE)};",
        "dir = \"cgi\"",
    ),
    (
        "python-cgi",
        "python/x",
        "#!/usr/bin/python3\nimport os\nprint('Content-Type: text/plain\\n')
print(''.join('<%s>' % os.environ['HTTP_X_' + name] for name in ('EMPTY', 'TIGHT', 'WIDE')), end='')",
        "dir = \"python\"",
    ),
    (
        "mod-perl",
        "lib/Own.pm",
        "package Own; use Apache2::RequestRec (); use Apache2::RequestIO (); sub handler {
             $_[0]->print(map { '<' . $_[0]->headers_in->get(\"X-$_\") . '>' } qw(Empty Tight Wide));
             return 0 } 1;",
        "handler = \"Own\"\nlib = \"lib\"\nroot = \"lib\"",
    ),
    (
        "command",
        "server.pl",
        "use IO::Socket::INET; my $listen = IO::Socket::INET->new(
            LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 9, ReuseAddr => 1) or die;
         while (accept my $client, $listen) {
             my %of; while (<$client>) { last if !/\\S/; /^([^:]*):\\s*(.*?)\\s*\\z/s and $of{lc $1} = $2 }
             my $body = join '', map { \"<$_>\" } @of{qw(x-empty x-tight x-wide)};
             print $client \"HTTP/1.0 200 OK\\r\\n\\r\\n$body\" }",
        "run = [\"perl\", \"server.pl\", \"{port}\"]\nspeaks = \"http\"",
    ),
    (
        "asgi",
        "own.py",
        "async def application(scope, receive, send):
    of = dict(scope['headers'])
    body = b''.join(b'<%s>' % of[b'x-' + name] for name in (b'empty', b'tight', b'wide'))
    await send({'type': 'http.response.start', 'status': 200})
    await send({'type': 'http.response.body', 'body': body})\n",
        "module = \"own:application\"",
    ),
    (
        "pagi",
        "own.pl",
        "use strict; use warnings; use Future::AsyncAwait; async sub { my ($scope, $receive, $send) = @_;
         die if $scope->{type} ne 'http'; my %of = map { @$_ } @{ $scope->{headers} };
         my $body = join '', map { \"<$_>\" } @of{qw(x-empty x-tight x-wide)};
         await $send->({ type => 'http.response.start', status => 200 });
         await $send->({ type => 'http.response.body', body => $body }) }",
        "file = \"own.pl\"",
    ),
    (
        "wsgi",
        "own.wsgi",
        "def application(environ, start):
    start('200 OK', [])
    of = ('<%s>' % environ['HTTP_X_' + name] for name in ('EMPTY', 'TIGHT', 'WIDE'))
    return [''.join(of).encode()]\n",
        "file = \"own.wsgi\"",
    ),
    (
        "rack",
        "config.ru",
        "run ->(env) { [200, {}, %w[EMPTY TIGHT WIDE].map { |name| \"<#{env.fetch(\"HTTP_X_#{name}\")}>\" }] }\n",
        "file = \"config.ru\"",
    ),
];

#[test]
fn fields_arrive_with_their_values_whatever_blanks_surround_them() {
    for (kind, file, code, own) in FIELDS {
        let needs: &[&str] = match kind {
            "asgi" | "wsgi" | "python-cgi" => &["python3"],
            "pagi" => &["libfuture-asyncawait-perl", "libio-async-perl"],
            "rack" => &["ruby", "ruby-rack"],
            _ => &[],
        };
        if !peer::has(needs) {
            continue;
        }
        let folder = Folder::new();
        folder.script(file, code);
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"a\"\n\
             [app.a]\nkind = \"{kind}\"\n{own}\n"
        );
        let forebay = serve(folder, &text);
        for blank in ["", " ", "\t "] {
            let request = format!(
                "GET /x HTTP/1.1\r\nHost: h\r\nX-Empty:{blank}\r\nX-Tight:a\r\nX-Wide:\t b: c {blank}\r\n\r\n"
            );
            let reply = forebay.ask(&request);
            let said = (reply.status, reply.text());
            assert_eq!(said, (200, "<><a><b: c>"), "{kind}: {}", forebay.output());
        }
        if peer::has(&["curl"]) {
            let output = Command::new("curl")
                .args(["-s", "--http2-prior-knowledge", "-H", "X-Empty;", "-H", "X-Tight:a"])
                .args(["-H", "X-Wide:  b: c", &format!("http://{}/x", forebay.address)])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, "<><a><b: c>", "HTTP/2, {kind}: {}", forebay.output());
        }
        forebay.get("/x%0aforged");
        forebay.get("/%0aforged");
        let log = forebay.stop().0.output;
        let is_forged =
            |line: &str| line.contains("forged") && !line.to_lowercase().contains("0aforged");
        assert!(!log.lines().any(is_forged), "{kind}: {log}");
    }
}

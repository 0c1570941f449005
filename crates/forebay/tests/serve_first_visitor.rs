//! A script, its modules or an application are loaded once, in the request of whoever comes first.
//! No later visitor sees anything of that request, in any host or mode, and each gets what a new
//! process would have answered.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer;
use support::{Forebay, serve};

/// Perl scripts that depend on the request while perl compiles them, except the last ones.
const PERL: &[(&str, &str)] = &[
    ("prints.pl", "BEGIN { print \"Content-Type: text/x\\n\\n$ENV{QUERY_STRING}\" } print 1;"),
    ("import.pl", "use Boot; print 'run';"),
    ("module.pl", "use Keeps; print \"Content-Type: text/x\\n\\n\", $Keeps::seen // 'none';"),
    ("module-again.pl", "use Keeps; print \"Content-Type: text/x\\n\\n\", $Keeps::seen // 'none';"),
    ("keeps.pl", "my $q; BEGIN { $q = $ENV{HTTP_COOKIE} // 'none' } print \"A: b\\n\\n$q\";"),
    ("absent.pl", "my $q; BEGIN { $q = exists $ENV{HTTPS} } print \"A: b\\n\\n<$q>\";"),
    ("copies.pl", "my %e; BEGIN { %e = %ENV } print \"A: b\\n\\n$e{QUERY_STRING}\";"),
    ("reads.pl", "my $in; BEGIN { $in = join '', <STDIN> } print \"A: b\\n\\n<$in>\";"),
    ("child-reads.pl", "my $in; BEGIN { $in = `cat` } print \"A: b\\n\\n<$in>\";"),
    ("child-prints.pl", "BEGIN { system 'echo A: b; echo; echo $QUERY_STRING' } print 1;"),
    ("copies-output.pl", "BEGIN { open OUT, '>&', STDOUT } print OUT \"A: b\\n\\nx\";"),
    ("joins.pl", "BEGIN { open STDERR, '>&', STDOUT } print STDERR \"A: b\\n\\nx\";"),
    ("input-gone.pl", "BEGIN { close STDIN } my @in = <STDIN>; print \"A: b\\n\\n@in\";"),
    ("ends.pl", "BEGIN { print \"A: b\\n\\n$ENV{QUERY_STRING}\"; exit } print 1;"),
    (
        "dies.pl",
        "BEGIN { print \"A: b\\n\\n$ENV{QUERY_STRING}\"; $ENV{QUERY_STRING} eq 'a' and die } print 1;",
    ),
    ("drops.pl", "BEGIN { delete $ENV{QUERY_STRING} } print \"A: b\\n\\n<$ENV{QUERY_STRING}>\";"),
    ("sets.pl", "BEGIN { $ENV{QUERY_STRING} = 'x' } print \"A: b\\n\\n<$ENV{QUERY_STRING}>\";"),
    (
        "nameless.pl",
        "# no #! line\nBEGIN { print \"Content-Type: text/x\\n\\n$ENV{QUERY_STRING}\" } print 1;",
    ),
    // These can be compiled once, as the log shows.
    (
        "layer.pl",
        "BEGIN { binmode STDOUT, ':utf8' } print \"A: b\\n\\n\\x{fc}$ENV{QUERY_STRING}\";",
    ),
    (
        "layers.pl",
        "use open ':std', ':encoding(UTF-8)'; read STDIN, my $in, 9; print \"A: b\\n\\n\\x{fc}$in\";",
    ),
    (
        "own.pl",
        "BEGIN { $ENV{PATH} = '/bin'; $ENV{OWN} = 1; delete $ENV{LANG} }\n\
         print \"A: b\\n\\n$ENV{PATH}$ENV{OWN}\", `echo $QUERY_STRING`;",
    ),
];

const FIT: &[&str] = &["layer.pl", "layers.pl", "own.pl"];

/// Python scripts whose modules depend on the request while they are loaded.
const PYTHON: &[(&str, &str)] = &[
    ("script-prints.py", "import prints\nprint('A: b\\n\\nrun')"),
    ("script-keeps.py", "import keeps\nprint('A: b\\n\\n', keeps.seen)"),
    ("script-between.py", "import between\nprint('A: b\\n\\n', between.seen)"),
    ("script-copies.py", "import copies\nprint('A: b\\n\\n', copies.seen.get('QUERY_STRING'))"),
    ("script-reads.py", "import reads\nprint('A: b\\n\\n', reads.seen)"),
    ("script-wraps.py", "import wraps\nprint('A: b\\n\\n\u{fc}')"),
];

/// Ways of modules to see the visitor, which each become a script `way-N.py`.
const WAYS: &[&str] = &[
    "open(0, closefd=False).read()",
    "os.read(0, 100)",
    "os.read(os.dup(0), 100)",
    "open('/dev/stdin').read()",
    "open('/proc/self/fd/0').read()",
    "os.fdopen(0, closefd=False).read()",
    "posix.environ.get(b'HTTP_COOKIE')",
    "dict(posix.environ).get(b'QUERY_STRING')",
    "os.environb.get(b'QUERY_STRING')",
    "[v for k, v in os.environ._data.items() if k == b'HTTP_COOKIE']",
    "subprocess.run('echo $QUERY_STRING; cat', shell=True, stdout=subprocess.PIPE).stdout",
    "os.popen('echo $HTTP_COOKIE; cat').read()",
    "subprocess.check_output(['cat'], env={})",
];

/// Random numbers that a script keeps from its compilation.
const PERL_RANDOM: &[&str] = &[
    "rand",
    "do { open my $r, '<', '/dev/urandom'; read $r, my $b, 9; unpack 'H*', $b }",
    "do { open R, '/dev/random'; sysread R, my $b, 9; unpack 'H*', $b }",
    "do { use Fcntl; sysopen R, '/dev/urandom', O_RDONLY; sysread R, my $b, 9; unpack 'H*', $b }",
    "`head -c 9 /dev/urandom | od -t x1`",
    "eval { require Crypt::URandom } ? unpack 'H*', Crypt::URandom::urandom(9) : rand",
    "eval { require Data::UUID } ? Data::UUID->new->create_str : rand",
];
const PYTHON_RANDOM: &[&str] = &[
    "uuid.uuid4()",
    "secrets.token_hex(9)",
    "random.random()",
    "random.SystemRandom().random()",
    "os.urandom(9).hex()",
    "os.getrandom(9).hex()",
    "open('/dev/urandom', 'rb').read(9).hex()",
    "uuid.UUID(bytes=os.urandom(16), version=4)",
];
const MODULES: &[(&str, &str)] = &[
    (
        "Boot.pm",
        "package Boot; sub import { print \"A: b\\n\\n$ENV{QUERY_STRING} $ENV{HTTP_COOKIE}\" } 1;",
    ),
    ("Keeps.pm", "package Keeps; our $seen = $ENV{HTTP_COOKIE}; 1;"),
    ("prints.py", "import os\nprint('X-Seen: ' + os.environ['QUERY_STRING'])"),
    ("keeps.py", "import os\nseen = os.environ.get('HTTP_COOKIE')"),
    ("between.py", "from keeps import seen"),
    ("copies.py", "import os\nseen = os.environ.copy()"),
    ("reads.py", "import sys\nseen = sys.stdin.read()"),
    ("wraps.py", "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'latin-1')"),
];

/// Applications that keep what they see while they are loaded, and answer with it.
const APPLICATIONS: &[(&str, &str, &str, &str)] = &[
    (
        "psgi",
        "app.psgi",
        "file = \"apps/app.psgi\"",
        "my $seen = join ' ', %ENV, <STDIN> // ''; sub { [200, [], [$seen]] }",
    ),
    (
        "wsgi",
        "wsgi_app.py",
        "dir = \"apps\"\nmodule = \"wsgi_app:application\"",
        "import os, sys\nseen = repr(os.environ) + sys.stdin.read()\n\
         def application(environ, start_response):\n    start_response('200 OK', [])\n    \
         return [seen.encode()]\n",
    ),
    (
        "asgi",
        "asgi_app.py",
        "dir = \"apps\"\nmodule = \"asgi_app:application\"",
        "import os, sys\nseen = repr(os.environ) + sys.stdin.read()\n\
         async def application(scope, receive, send):\n    \
         await send({'type': 'http.response.start', 'status': 200})\n    \
         await send({'type': 'http.response.body', 'body': seen.encode()})\n",
    ),
    (
        "rack",
        "config.ru",
        "file = \"apps/config.ru\"",
        "seen = ENV.to_a.to_s + $stdin.read\nrun ->(env) { [200, {}, [seen]] }\n",
    ),
];

/// Starts a server with all ways to run scripts, and returns the ways.
fn start() -> (Forebay, Vec<String>) {
    let folder = Folder::new();
    for (name, text) in PERL {
        let line = if text.starts_with('#') { "" } else { "#!/usr/bin/perl\n" };
        folder.script(&format!("perl/{name}"), format!("{line}{text}\n"));
    }
    folder.script(
        "perl/switch.pl",
        "#!/usr/bin/perl -CSDA\nread STDIN, my $in, 9; print \"A: b\\n\\n\\x{fc}$in\";\n",
    );
    for (name, text) in PYTHON {
        folder.script(&format!("python/{name}"), format!("#!/usr/bin/python3\n{text}\n"));
    }
    for (n, way) in WAYS.iter().enumerate() {
        let script =
            format!("#!/usr/bin/python3\nimport way{n}\nprint('A: b\\n\\n', way{n}.seen)\n");
        folder.script(&format!("python/way-{n}.py"), script);
        folder.write(
            &format!("modules/way{n}.py"),
            format!("import os, posix, subprocess\nseen = {way}\n"),
        );
    }
    for (n, draw) in PYTHON_RANDOM.iter().enumerate() {
        let script =
            format!("#!/usr/bin/python3\nimport draw{n}\nprint('A: b\\n\\n', draw{n}.seen)\n");
        folder.script(&format!("python/draw-{n}.py"), script);
        folder.write(
            &format!("modules/draw{n}.py"),
            format!("import os, random, secrets, tempfile, uuid\nseen = {draw}\n"),
        );
    }
    folder.script(
        "python/seeded.py",
        "#!/usr/bin/python3\nimport seeds\nprint('A: b\\n\\n', seeds.random.random())\n",
    );
    folder.write("modules/seeds.py", "import random, secrets, tempfile, uuid, multiprocessing\n");
    for (n, draw) in PERL_RANDOM.iter().enumerate() {
        let script = format!(
            "#!/usr/bin/perl\nmy $sid; BEGIN {{ $sid = {draw} }} print \"A: b\\n\\n$sid\";\n"
        );
        folder.script(&format!("perl/draw-{n}.pl"), script);
    }
    for (name, text) in MODULES {
        folder.write(&format!("modules/{name}"), text);
    }
    let mut ways = Vec::new();
    let mut text = "[[site]]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let mut apps = String::new();
    for (language, kind, modes) in [
        ("perl", "perl-cgi", &["registry", "registry-prefork", "perlrun", "fork", "cgi"][..]),
        ("perl", "cgi-bin", &["registry", "fork"]),
        ("python", "python-cgi", &["fresh", "fork"]),
        ("python", "cgi-bin", &["fresh"]),
    ] {
        if language == "python" && !peer::has(&["python3"]) {
            continue;
        }
        for mode in modes {
            let name = format!("{kind}-{language}-{mode}");
            let key = if kind == "cgi-bin" { &format!("{language}_mode") } else { "mode" };
            text += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
            apps += &format!(
                "[app.{name}]\nkind = \"{kind}\"\ndir = \"{language}\"\n{key} = \"{mode}\"\n\
                 workers = 1\nenv = {{ PERL5LIB = \"{{modules}}\", PYTHONPATH = \"{{modules}}\" }}\n"
            );
            ways.push(name);
        }
    }
    for language in ["perl", "python"] {
        text += &format!(
            "[[site.route]]\npath = \"/plain-{language}/*\"\n\
             cgi = {{ dir = \"{language}\", env = {{ PERL5LIB = \"{{modules}}\", \
             PYTHONPATH = \"{{modules}}\" }} }}\n"
        );
    }
    for (kind, file, keys, source) in APPLICATIONS {
        if *kind == "rack" && !peer::has(&["ruby", "ruby-rack"]) {
            continue;
        }
        folder.write(&format!("apps/{file}"), source);
        text += &format!("[[site.route]]\npath = \"/{kind}/*\"\napp = \"{kind}\"\n");
        apps += &format!("[app.{kind}]\nkind = \"{kind}\"\nworkers = 1\n{keys}\n");
    }
    let modules = folder.path().join("modules").display().to_string();
    let text = (text + &apps).replace("{modules}", &modules);
    (serve(folder, &text), ways)
}

/// Sends the request of a visitor, whose name is in its query, cookie and body.
fn visit(forebay: &Forebay, path: &str, visitor: &str) -> Reply {
    let cookie = if visitor == "nobody" { "" } else { &format!("Cookie: {visitor}\r\n") };
    let body = if visitor == "nobody" { "" } else { visitor };
    forebay.ask(format!(
        "POST {path}?{visitor} HTTP/1.1\r\nHost: {visitor}\r\n{cookie}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}

#[test]
fn nobody_sees_who_came_first() {
    let (forebay, ways) = start();
    let mut wrong = Vec::new();
    for way in &ways {
        let language = if way.contains("-perl-") { "perl" } else { "python" };
        let scripts = if language == "perl" { PERL } else { PYTHON };
        let more: Vec<_> = match language {
            "perl" => vec!["switch.pl".to_owned()],
            _ => (0..WAYS.len()).map(|n| format!("way-{n}.py")).collect(),
        };
        for name in scripts.iter().map(|(name, _)| *name).chain(more.iter().map(String::as_str)) {
            for visitor in ["first-visitor", "nobody", "second", "nobody"] {
                // Only the first of these kinds runs a script without a #! line. As with mod_perl, -C
                // in that line has no effect in a process that runs.
                let is_program = way.ends_with("-cgi") || way.starts_with("cgi-bin");
                if name == "nameless.pl" && is_program
                    || name == "switch.pl" && !way.ends_with("-fork")
                {
                    continue;
                }
                let reply = visit(&forebay, &format!("/{way}/{name}"), visitor);
                let model = if name == "nameless.pl" { "prints.pl" } else { name };
                let expected = visit(&forebay, &format!("/plain-{language}/{model}"), visitor);
                let is_leak = visitor != "first-visitor" && shown(&reply).contains("first-visitor");
                let is_same = (name == "dies.pl" && visitor == "first-visitor")
                    || shown(&reply) == shown(&expected);
                if is_leak || !is_same {
                    let (ours, theirs) = (shown(&reply), shown(&expected));
                    wrong.push(format!("{way}/{name} to {visitor}: {ours}\n  expected {theirs}"));
                }
            }
        }
    }
    for (kind, ..) in APPLICATIONS {
        for visitor in ["first-visitor", "second"] {
            let reply = visit(&forebay, &format!("/{kind}/x"), visitor);
            if reply.status != 200 || reply.body.is_empty() || shown(&reply).contains("visitor") {
                wrong.push(format!("{kind} to {visitor}: {}", shown(&reply)));
            }
        }
    }
    let log = forebay.output();
    assert!(wrong.is_empty(), "{}\n{log}", wrong.join("\n"));
    assert!(!log.contains(" at (eval "), "no host makes Perl warn: {log}");
    for (name, _) in PERL.iter().chain(PYTHON) {
        let needs = format!("/{name}: a BEGIN block");
        let loads = format!("/{name}: while a module");
        let is_told = log.contains(&needs) || log.contains(&loads);
        assert_eq!(is_told, !FIT.contains(name), "{name}: {log}");
    }
    forebay.stop();
}

#[test]
fn no_two_visitors_share_random_numbers() {
    let (forebay, ways) = start();
    let mut wrong = Vec::new();
    for way in &ways {
        let (suffix, draws) =
            if way.contains("-perl-") { ("pl", PERL_RANDOM) } else { ("py", PYTHON_RANDOM) };
        for (n, draw) in draws.iter().enumerate() {
            let path = format!("/{way}/draw-{n}.{suffix}");
            let replies: Vec<_> = (0..4).map(|_| shown(&visit(&forebay, &path, "a"))).collect();
            let mut distinct = replies.clone();
            distinct.sort();
            distinct.dedup();
            if distinct.len() < 4 || replies.iter().any(|reply| !reply.starts_with("200")) {
                wrong.push(format!("{way}: {draw}: {replies:?}"));
            }
        }
    }
    for way in ways.iter().filter(|way| way.contains("-python-")) {
        visit(&forebay, &format!("/{way}/seeded.py"), "a");
    }
    let log = forebay.output();
    assert!(wrong.is_empty(), "{}\n{log}", wrong.join("\n"));
    assert!(!log.contains("seeded.py: while a module"), "a seed is no number: {log}");
    forebay.stop();
}

/// Fields that depend on when parts of a reply come.
const SERVERS_OWN: &[&str] = &["Date", "Content-Length", "Transfer-Encoding"];

fn shown(reply: &Reply) -> String {
    let own: Vec<_> =
        reply.headers.iter().filter(|(name, _)| !SERVERS_OWN.contains(&name.as_str())).collect();
    format!("{} {own:?} {:?}", reply.status, String::from_utf8_lossy(&reply.body))
}

//! `forebay serve` with real applications whose clients leave in the middle of a request. Backends
//! and HTTP/2 are in `forebay-gateway/tests/memory/aborts.rs`.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{has, has_php_fpm};
use forebay_testkit::process::eventually;
use support::{Forebay, is_alive, serve};

/// Scripts and applications. Each writes its process id to `MARKS/begun-QUERY`, works for `WORK`
/// seconds, and writes `MARKS/done-QUERY`. An ASGI application that learns of the end of its client
/// writes `MARKS/told-QUERY`.
const FILES: [(&str, &str); 8] = [
    (
        "sh/x",
        "#!/bin/sh\nread -r body\necho $$ > MARKS/.$$ && mv MARKS/.$$ MARKS/begun-$QUERY_STRING\n\
         sleep WORK\n: > MARKS/done-$QUERY_STRING\nprintf 'Content-Type: text/plain\\n\\nok'\n",
    ),
    (
        "pl/x.pl",
        "#!/usr/bin/perl\nmy $q = $ENV{QUERY_STRING};\nsub mark { open(my $f, '>', \"MARKS/.$q\"); \
         print $f $$; close($f); rename(\"MARKS/.$q\", \"MARKS/$_[0]-$q\") }\n\
         mark('begun'); select(undef, undef, undef, WORK); mark('done');\n\
         print \"Content-Type: text/plain\\n\\nok\";\n",
    ),
    (
        "py/x.py",
        "#!/usr/bin/env python3\nimport os, time\nq = os.environ['QUERY_STRING']\n\
         def mark(name):\n    open('MARKS/.' + q, 'w').write(str(os.getpid()))\n    \
         os.rename('MARKS/.' + q, 'MARKS/' + name + '-' + q)\n\
         mark('begun'); time.sleep(WORK); mark('done')\nprint('Content-Type: text/plain\\n\\nok')\n",
    ),
    (
        "app.psgi",
        "sub { my $q = $_[0]{QUERY_STRING};\nmy $mark = sub { open(my $f, '>', \"MARKS/.$q\"); \
         print $f $$; close($f); rename(\"MARKS/.$q\", \"MARKS/$_[0]-$q\") };\n\
         $mark->('begun'); select(undef, undef, undef, WORK); $mark->('done');\n\
         [200, ['Content-Type', 'text/plain'], ['ok']] }\n",
    ),
    (
        "wsgi_app.py",
        "import os, time\ndef app(environ, start):\n    q = environ['QUERY_STRING']\n    \
         def mark(name):\n        open('MARKS/.' + q, 'w').write(str(os.getpid()))\n        \
         os.rename('MARKS/.' + q, 'MARKS/' + name + '-' + q)\n    \
         mark('begun'); time.sleep(WORK); mark('done')\n    \
         start('200 OK', [('Content-Type', 'text/plain')])\n    return [b'ok']\n",
    ),
    (
        "asgi_app.py",
        "import asyncio, os\nasync def app(scope, receive, send):\n    \
         if scope['type'] != 'http': raise RuntimeError\n    q = scope['query_string'].decode()\n    \
         def mark(name):\n        open('MARKS/.' + q, 'w').write(str(os.getpid()))\n        \
         os.rename('MARKS/.' + q, 'MARKS/' + name + '-' + q)\n    \
         while (await receive()).get('more_body'): pass\n    mark('begun')\n    \
         try:\n        await asyncio.wait_for(receive(), WORK)\n        mark('told')\n    \
         except asyncio.TimeoutError:\n        mark('done')\n    \
         await send({'type': 'http.response.start', 'status': 200})\n    \
         await send({'type': 'http.response.body', 'body': b'ok'})\n",
    ),
    (
        "config.ru",
        "run(lambda do |env|\n  q = env['QUERY_STRING']\n  mark = lambda do |name|\n    \
         File.write(\"MARKS/.#{q}\", Process.pid.to_s)\n    \
         File.rename(\"MARKS/.#{q}\", \"MARKS/#{name}-#{q}\")\n  end\n  \
         mark.('begun'); sleep WORK; mark.('done')\n  [200, {'content-type' => 'text/plain'}, ['ok']]\n\
         end)\n",
    ),
    (
        "php/x.php",
        "<?php $q = $_SERVER['QUERY_STRING'];\nfunction mark($name) { global $q; \
         file_put_contents(\"MARKS/.$q\", getmypid()); rename(\"MARKS/.$q\", \"MARKS/$name-$q\"); }\n\
         mark('begun'); usleep((int) (WORK * 1e6)); mark('done'); echo 'ok';\n",
    ),
];

/// Applications: name, keys, the path of a request, and the packages that they need.
fn applications() -> Vec<(String, String, &'static str, &'static [&'static str])> {
    let mut all = Vec::new();
    for mode in ["registry", "registry-prefork", "perlrun", "fork", "cgi"] {
        let keys = format!("kind = \"perl-cgi\"\ndir = \"pl\"\nmode = \"{mode}\"");
        all.push((format!("perl-{mode}"), keys, "x.pl", &[][..]));
    }
    for mode in ["fresh", "fork"] {
        let keys = format!("kind = \"python-cgi\"\ndir = \"py\"\nmode = \"{mode}\"");
        all.push((format!("python-{mode}"), keys, "x.py", &["python3"][..]));
    }
    let mut add = |name: &str, keys: &str, path, needs| {
        all.push((name.to_owned(), format!("kind = \"{name}\"\n{keys}"), path, needs));
    };
    add("psgi", "file = \"app.psgi\"", "", &[]);
    add("wsgi", "module = \"wsgi_app:app\"", "", &["python3"]);
    add("asgi", "module = \"asgi_app:app\"", "", &["python3"]);
    add("rack", "file = \"config.ru\"", "", &["ruby", "ruby-rack"]);
    if has_php_fpm() {
        let user = if rustix::process::geteuid().is_root() { "user = \"www-data\"\n" } else { "" };
        add("php", &format!("{user}root = \"php\"\nstrip_prefix = \"/php\""), "x.php", &[]);
    }
    all.retain(|(.., needs)| needs.is_empty() || has(needs));
    all
}

/// Returns a server with all applications and a route of CGI scripts. Each request works for `work`
/// seconds.
fn server(work: &str, on_abort: &str) -> (Forebay, std::path::PathBuf, Vec<(String, String)>) {
    let folder = Folder::new();
    let marks = folder.path().join("marks");
    fs::create_dir(&marks).unwrap();
    fs::set_permissions(&marks, fs::Permissions::from_mode(0o777)).unwrap();
    for (name, text) in FILES {
        let text = text.replace("MARKS", marks.to_str().unwrap()).replace("WORK", work);
        let file = folder.write(name, &text);
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut toml = "[[site]]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    toml += &format!("[[site.route]]\npath = \"/sh/*\"\ncgi = \"sh\"\n{on_abort}\n");
    let mut targets = vec![("cgi".to_owned(), "/sh/x".to_owned())];
    let mut tables = String::new();
    for (name, keys, path, _) in applications() {
        toml += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        tables += &format!("[app.{name}]\nworkers = 1\n{keys}\n{on_abort}\n");
        targets.push((name.clone(), format!("/{name}/{path}")));
    }
    (serve(folder, &(toml + &tables)), marks, targets)
}

/// Sends a POST and leaves as soon as the application has begun it. Returns the process id.
fn leave(forebay: &Forebay, marks: &std::path::Path, name: &str, target: &str) -> String {
    let mut client = forebay.connect();
    client
        .send(format!("POST {target}?{name} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"));
    let begun = marks.join(format!("begun-{name}"));
    assert!(eventually(|| begun.exists()), "{name}: {}", forebay.output());
    fs::read_to_string(begun).unwrap().trim().to_owned()
}

#[test]
fn every_kind_finishes_the_request_of_a_client_that_has_left() {
    // A script used to be killed a second after its client had left.
    let (forebay, marks, targets) = server("1.5", "");
    for (name, target) in &targets {
        leave(&forebay, &marks, name, target);
    }
    for (name, _) in &targets {
        let done = marks.join(format!("done-{name}"));
        assert!(eventually(|| done.exists()), "{name}: {}", forebay.output());
        assert!(!marks.join(format!("told-{name}")).exists(), "{name}");
    }
    for (name, target) in &targets {
        assert_eq!(forebay.get(&format!("{target}?{name}-again")).text().trim(), "ok", "{name}");
    }
    forebay.stop();
}

#[test]
fn every_kind_stops_with_its_client_if_the_route_says_so() {
    let (forebay, marks, targets) = server("600", "on_abort = \"stop\"");
    for (name, target) in &targets {
        let pid = leave(&forebay, &marks, name, target);
        let told = marks.join(format!("told-{name}"));
        let stopped = || match name.as_str() {
            "asgi" => told.exists(),
            // Their processes learn of it by their connection, and decide themselves.
            "rack" | "php" => true,
            _ => !is_alive(&pid),
        };
        assert!(eventually(stopped), "{name}: {}", forebay.output());
        assert!(!marks.join(format!("done-{name}")).exists(), "{name}");
    }
    assert!(forebay.output().contains("because nobody waits for"), "{}", forebay.output());
    forebay.stop();
}

/// Applications whose bodies write `MARKS/closed-QUERY` when they are closed.
const BODIES: [(&str, &str); 2] = [
    (
        "body.psgi",
        "package Body;\nsub mark { open(my $f, '>', \"MARKS/$_[0]\"); close($f) }\n\
         sub getline { my $self = shift; return \"x\\n\" if !$self->{begun}++; \
         mark(\"begun-$self->{q}\"); select(undef, undef, undef, 60); undef }\n\
         sub close { mark(\"closed-$_[0]{q}\") }\npackage main;\n\
         sub { [200, ['Content-Type', 'text/plain'], bless { q => $_[0]{QUERY_STRING} }, 'Body'] }\n",
    ),
    (
        "body.py",
        "import time\ndef mark(name):\n    open('MARKS/' + name, 'w').close()\nclass Body:\n    \
         def __init__(self, q):\n        self.q = q\n    def __iter__(self):\n        \
         yield b'x'\n        mark('begun-' + self.q)\n        time.sleep(60)\n    \
         def close(self):\n        mark('closed-' + self.q)\n\
         def app(environ, start):\n    start('200 OK', [('Content-Type', 'text/plain')])\n    \
         return Body(environ['QUERY_STRING'])\n",
    ),
];

#[test]
fn a_stopped_request_closes_its_body() {
    let folder = Folder::new();
    let marks = folder.path().join("marks");
    fs::create_dir(&marks).unwrap();
    fs::set_permissions(&marks, fs::Permissions::from_mode(0o777)).unwrap();
    for (name, text) in BODIES {
        folder.write(name, text.replace("MARKS", marks.to_str().unwrap()));
    }
    let mut toml = "[[site]]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let (mut tables, mut names) = (String::new(), vec!["psgi"]);
    names.extend(has(&["python3"]).then_some("wsgi"));
    for name in &names {
        let of = if *name == "psgi" { "file = \"body.psgi\"" } else { "module = \"body:app\"" };
        toml += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        tables +=
            &format!("[app.{name}]\nkind = \"{name}\"\n{of}\nworkers = 1\non_abort = \"stop\"\n");
    }
    let forebay = serve(folder, &(toml + &tables));
    for name in names {
        leave(&forebay, &marks, name, &format!("/{name}/"));
        let closed = marks.join(format!("closed-{name}"));
        assert!(eventually(|| closed.exists()), "{name}: {}", forebay.output());
    }
    forebay.stop();
}

//! `mode = "prove"` and `forebay prove`: scripts that leave nothing of one request to the next are
//! kept, and all others are found, with the variable and its line.

mod support;

use std::net::SocketAddr;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use serde_json::Value;
use support::{Forebay, serve};

const USERS: [&str; 6] = ["alice", "bob", "carol", "dave", "erin", "frances"];

/// Returns the requests of six users, who send a parameter and a cookie.
fn requests() -> String {
    USERS.map(|user| format!("/script?name={user}&page=1\nCookie: user={user}\n\n")).concat()
}

/// Runs `forebay prove` for the script `name`. Returns its exit code and the script's row.
fn prove(folder: &Folder, name: &str, more: &[&str]) -> (Option<i32>, Value) {
    folder.write("requests.txt", requests());
    let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .current_dir(folder.path())
        .args(["prove", name, "--requests", "requests.txt", "--prove-requests", "6", "--json"])
        .args(more)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let parsed: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
    (output.status.code(), parsed["scripts"][0].clone())
}

fn perl(code: &str) -> String {
    format!(
        "#!/usr/bin/perl\nuse strict;\nprint \"Content-Type: text/plain\\n\\n\";\n\
         my ($name) = $ENV{{QUERY_STRING}} =~ /name=(\\w+)/;\n{code}\nprint \"hello $name\\n\";\n"
    )
}

fn python(code: &str) -> String {
    format!(
        "#!/usr/bin/python3\nimport os, re, shop\nprint('Content-Type: text/plain\\n')\n\
         name = re.search(r'name=(\\w+)', os.environ['QUERY_STRING']).group(1)\n{code}\nprint('hello', name)\n"
    )
}

/// A case of misuse: name, code, part of the variable, part of the place.
type Misuse = (&'static str, &'static str, &'static str, &'static str);

fn find_each(
    cases: &[Misuse],
    end: &str,
    script: impl Fn(&str) -> String,
    others: &[(&str, &str)],
) {
    for (name, code, variable, place) in cases {
        let folder = Folder::new();
        others.iter().for_each(|(file, text)| drop(folder.write(file, text)));
        folder.script(&format!("script{end}"), script(code));
        let (code, proof) = prove(&folder, &format!("script{end}"), &[]);
        let finding = &proof["finding"];
        assert_eq!((code, proof["state"].as_str()), (Some(1), Some("refused")), "{name}: {proof}");
        assert!(finding["variable"].as_str().unwrap().contains(variable), "{name}: {proof}");
        assert!(finding["place"].as_str().unwrap().ends_with(place), "{name}: {proof}");
        assert!(!finding["cure"].as_str().unwrap().is_empty(), "{name}: {proof}");
        let values = finding["values"].to_string();
        assert!(USERS.iter().all(|user| !values.contains(user)), "{name} shows a value: {values}");
    }
}

#[test]
fn misuse_in_perl_is_found_with_its_line() {
    let cases: [Misuse; 14] = [
        ("package variable", "our $user = $name;", "$main::user", "script.pl line 5"),
        ("set only once", "our $first ||= $name;", "$main::first", "line 5"),
        ("cache by user", "our %cache;\n$cache{$name} ||= 'x';", "$main::cache{", "line 6"),
        (
            "cache by its length",
            "our %seen;\n$seen{length $name} = $name;",
            "$main::seen{",
            "line 6",
        ),
        ("growing list", "our @log;\npush @log, 1;", "main::log", "line 6"),
        ("growing counter", "our $hits;\n$hits++;", "$main::hits", "line 6"),
        (
            "captured lexical",
            "my $who = $name;\nsub who { $who } who();",
            "my $who in sub",
            "line 5",
        ),
        (
            "state variable",
            "use feature 'state';\nsub f { state $s = $_[0]; $s } f($name);",
            "my $s in sub",
            "line 6",
        ),
        (
            "memoised function",
            "use Memoize;\nour $u; sub greet { \"hi $u\" } BEGIN { memoize('greet') }\n\
             { local $u = $name; greet() }",
            "",
            "",
        ),
        ("current directory", "mkdir \"d$name\"; chdir \"d$name\";", "current directory", ""),
        ("umask", "umask(length $name);", "umask", ""),
        ("alarm", "alarm 100;", "alarm", ""),
        ("child", "if (!fork) { close STDOUT; close STDERR; sleep 1; exit }", "child", ""),
        ("open file", "open LOG, '>', 'log.txt'; print LOG $name;", "main::LOG", ""),
    ];
    find_each(&cases, ".pl", perl, &[]);
}

#[test]
fn values_that_perl_hides_are_found() {
    let tie = "package T; sub TIESCALAR { bless {} } sub FETCH { '' } sub STORE { $_[0]{v} = $_[1] }\n\
               package main; our $x; tie $x, 'T' if !tied $x; $x = $name;";
    let cases: [Misuse; 9] = [
        ("tied scalar", tie, "$main::x", ""),
        (
            "tied hash",
            "require Tie::Hash; our %h; tie %h, 'Tie::StdHash'; $h{user} = $name;",
            "%main::h",
            "",
        ),
        ("closure", "our $f = do { my $own = $name; sub { $own } };", "$main::f", "line 5"),
        ("evaluated sub", "eval \"sub who { '$name' }\";", "the text of sub main::who", ""),
        ("constant", "eval \"sub WHO() { '$name' }\";", "main::WHO", ""),
        ("entry of a stash", "$main::{leak} = \\$name;", "$main::leak", ""),
        ("handle of a variable", "open our $fh, '<', \\(my $own = $name);", "$main::fh", ""),
        ("odd names", "no strict; ${'a b'} = ${'x-y::z'} = $name;", "", ""),
        ("position", "our $p = 'a' x 30; pos($p) = length $name;", "the position of $main::p", ""),
    ];
    find_each(&cases, ".pl", perl, &[]);
}

#[test]
fn values_that_python_hides_are_found() {
    let cases: [Misuse; 8] = [
        ("lambda", "shop.f = lambda: name", "name in function shop.f", ""),
        (
            "new default argument",
            "def f(a=name): pass\nshop.f = f",
            "default argument of shop.f",
            "",
        ),
        ("new class", "shop.T = type('T', (), {'user': name})", "shop.T.user", ""),
        ("memory file", "import io; shop.b = io.StringIO(name)", "shop.b", ""),
        ("array", "import array; shop.a = array.array('u', name)", "shop.a", ""),
        ("name in the library", "import string; string.user = name", "string.user", ""),
        ("built-in name", "import builtins; builtins.user = name", "builtins.user", ""),
        (
            "module without file",
            "import sys, types; m = types.ModuleType('m'); m.user = name; sys.modules['m'] = m",
            "m.user",
            "",
        ),
    ];
    find_each(&cases, ".py", python, &[("shop.py", "")]);
}

#[test]
fn scripts_that_leave_the_usual_path_are_found() {
    let cases: [Misuse; 6] = [
        ("exit", "our $user = $name; exit 3;", "$main::user", "line 5"),
        ("die", "our $user = $name; die \"oops\\n\";", "$main::user", "line 5"),
        ("end block", "END { our $user = $name }", "$main::user", "line 5"),
        (
            "destructor",
            "{ package D; our $last; sub DESTROY { print 'bye'; $last = $_[0]{n} } }\n\
             { my $own = bless { n => $name }, 'D'; }",
            "$D::last",
            "",
        ),
        (
            "fork",
            "my $p = fork; exit 0 if !$p; waitpid $p, 0; our $user = $name;",
            "$main::user",
            "",
        ),
        ("10 MB", "print 'x' x 10_000_000; our $user = $name;", "$main::user", "line 5"),
    ];
    find_each(&cases, ".pl", perl, &[]);
}

#[test]
fn modules_in_perl_that_keep_a_visitor_are_found() {
    let module = "package Shop;\nmy %by_user;\nour $current;\nsub new { bless {}, shift }\n\
                  sub enter { $by_user{$_[1]} = time }\nsub set { $current = $_[1] }\n1;\n";
    let cases: [Misuse; 3] = [
        (
            "lexical of a module",
            "use lib '.'; use Shop; Shop->enter($name);",
            "my %by_user",
            "Shop.pm line 5",
        ),
        (
            "variable of a module",
            "use lib '.'; use Shop; Shop->set($name);",
            "$Shop::current",
            "Shop.pm line 6",
        ),
        ("module loaded late", "require './Shop.pm'; Shop->set($name);", "of package Shop", ""),
    ];
    find_each(&cases, ".pl", perl, &[("Shop.pm", module)]);
    let cgi: [Misuse; 1] = [("CGI.pm", "use CGI; our $q = CGI->new;", "$main::q", "line 5")];
    find_each(&cgi, ".pl", perl, &[]);
    let dbi: [Misuse; 1] = [(
        "transaction",
        "use DBI; our $dbh = DBI->connect('dbi:SQLite:dbname=t.db', '', '', { AutoCommit => 1 });\n\
         $dbh->do('create table if not exists t (a)'); $dbh->begin_work; $dbh->do('insert into t values (1)');",
        "DBI handle",
        "",
    )];
    find_each(&dbi, ".pl", perl, &[]);
}

#[test]
fn misuse_in_python_is_found_with_its_line() {
    let shop = "import contextvars, functools, sqlite3, threading\ncurrent = None\nhits = []\n\
                local = threading.local()\nvariable = contextvars.ContextVar('v')\n\
                class Cart:\n    items = []\n    def add(self, item):\n        self.items.append(item)\n\
                \x20   @functools.lru_cache\n    def greet(self):\n        return current\n\
                def remember(item, seen=[]):\n    seen.append(item)\n\
                def note(*, name, notes=[]):\n    notes.append(name)\n\
                def memoised(f):\n    known = {}\n    def g(x):\n        return known.setdefault(x, f(x))\n    return g\n\
                @memoised\ndef double(x):\n    return x * 2\ncart = Cart()\n";
    let cases: [Misuse; 12] = [
        ("module attribute", "shop.current = name", "shop.current", "script.py line 5"),
        ("growing list", "shop.hits.append(1)", "shop.hits", "script.py line 5"),
        ("class attribute", "shop.Cart().add(name)", "shop.Cart.items", "shop.py line 9"),
        (
            "lru_cache",
            "shop.current = name; shop.cart.greet(); shop.current = None",
            "cache of shop.Cart.greet",
            "shop.py line 11",
        ),
        (
            "default argument",
            "shop.remember(name)",
            "default argument of shop.remember",
            "shop.py line 13",
        ),
        ("keyword argument", "shop.note(name=name)", "default argument of shop.note", ""),
        ("closure", "shop.double(name)", "known in function shop.double", ""),
        ("thread-local", "shop.local.user = name", "shop.local.user", "script.py line 5"),
        ("umask", "os.umask(len(name))", "umask", ""),
        ("signal", "import signal; signal.alarm(100)", "alarm", ""),
        (
            "thread",
            "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
            "thread",
            "",
        ),
        (
            "transaction",
            "shop.db = shop.sqlite3.connect('t.db'); shop.db.execute('create table if not exists t (a)'); \
            shop.db.execute('insert into t values (1)')",
            "shop.db",
            "",
        ),
    ];
    find_each(&cases, ".py", python, &[("shop.py", shop)]);
}

#[test]
fn scripts_that_leave_nothing_are_proved() {
    let folder = Folder::new();
    let perls = [
        "",
        "our $dir = '/srv'; our @list = (1, 2);",
        "use CGI; my $q = CGI->new; print $q->param('name'), $q->header;",
        "use POSIX; use Data::Dumper; print Dumper({ a => $name }), POSIX::strftime('%Y', localtime);",
        "our $start = time; our $pid = $$;",
        "{ local $main::user = $name; } { local $/; }",
        "our %table; $table{a} ||= 1; require Text::Wrap; umask 077; chdir '/';",
        "my @rows = map { \"$_ $name\" } 1 .. 5; sub show { print @_ } show(@rows);",
        "use Scalar::Util; our $config ||= { a => [1, 2], b => bless({}, 'X') };",
        "use DBI; our $dbh ||= DBI->connect('dbi:SQLite:dbname=t.db'); $dbh->selectall_arrayref('select 1');",
    ];
    for code in perls {
        folder.script("script.pl", perl(code));
        let (code_of_exit, proof) = prove(&folder, "script.pl", &[]);
        assert_eq!(
            (code_of_exit, proof["state"].as_str()),
            (Some(0), Some("proved")),
            "{code}: {proof}"
        );
        assert!(proof["checks"].as_u64() > Some(3), "{proof}");
    }
    folder.write(
        "shop.py",
        "import functools, json, logging\nTABLE = {}\nhits = 0\n\
        @functools.lru_cache\ndef square(x):\n    return x * x\n",
    );
    let pythons = [
        "",
        "shop.square(3); shop.TABLE['a'] = [1]",
        "hits = []; hits.append(name)",
        "import sqlite3, decimal, csv; print(sqlite3.connect(':memory:').execute('select 1').fetchall())",
        "from string import Template; print(Template('$a').substitute(a=name)); re.sub('x', 'y', name)",
        "import time; shop.started = time.time()",
    ];
    for code in pythons {
        folder.script("script.py", python(code));
        let (code_of_exit, proof) = prove(&folder, "script.py", &[]);
        assert_eq!(
            (code_of_exit, proof["state"].as_str()),
            (Some(0), Some("proved")),
            "{code}: {proof}"
        );
    }
}

#[test]
fn values_are_shown_only_if_asked_for() {
    let folder = Folder::new();
    folder.script("script.pl", perl("our $who = \"user $name\";"));
    let values =
        |more: &[&str]| prove(&folder, "script.pl", more).1["finding"]["values"].to_string();
    assert!(values(&[]).contains("a text of"), "{}", values(&[]));
    assert!(values(&["--show-values"]).contains("user alice"), "{}", values(&["--show-values"]));
}

#[test]
fn a_proof_needs_different_requests_and_a_script() {
    let folder = Folder::new();
    folder.script("script.pl", perl(""));
    folder.write("same.txt", "/script?name=alice\n");
    let run = |arguments: &[&str]| {
        let command = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .current_dir(folder.path())
            .arg("prove")
            .args(arguments)
            .output()
            .unwrap();
        let text = [command.stdout, command.stderr].concat();
        (command.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, text) = run(&["script.pl", "--requests", "same.txt"]);
    assert!(code == Some(1) && text.contains("50 of 50 requests, 1 different inputs"), "{text}");
    let (code, text) = run(&[".", "--requests", "same.txt"]);
    assert!(code == Some(2) && text.contains("no request of same.txt names a script"), "{text}");
    let (code, text) = run(&["gone.pl", "--requests", "same.txt"]);
    assert!(code == Some(2) && text.contains("cannot read gone.pl"), "{text}");
}

fn serve_in_mode_prove(folder: Folder, admin: SocketAddr) -> Forebay {
    serve(
        folder,
        &format!(
            "[server]\nadmin = \"{admin}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         path = \"/*\"\napp = \"scripts\"\n[app.scripts]\nkind = \"cgi-bin\"\ndir = \"cgi\"\n\
         perl_mode = \"prove\"\npython_mode = \"prove\"\nprove_requests = 6\nworkers = 1\n"
        ),
    )
}

/// Returns the state of each script of the server, as `/status.json` has it.
fn proofs(admin: SocketAddr) -> Vec<Value> {
    let status: Value =
        serde_json::from_str(Client::connect(admin).get("/status.json").text()).unwrap();
    status["apps"][0]["proofs"].as_array().unwrap().clone()
}

fn await_state(admin: SocketAddr, script: &str, state: &str) {
    let is_there = || {
        proofs(admin).iter().any(|proof| {
            proof["script"].as_str().is_some_and(|path| path.ends_with(script))
                && proof["state"] == state
        })
    };
    assert!(eventually(is_there), "{script} is not {state}: {:?}", proofs(admin));
}

#[test]
fn a_server_keeps_proved_scripts_until_a_finding_or_a_change() {
    let folder = Folder::new();
    let own = "print \"process $$\\n\";";
    folder.script("cgi/good.pl", perl(own));
    folder.script("cgi/bad.pl", perl(&format!("our $user = $name; {own}")));
    folder.script(
        "cgi/grows.pl",
        perl(&format!("our $hits; $hits++; print \"hits $hits\\n\"; {own}")),
    );
    let own = "print('process', os.getpid())";
    folder.write("cgi/shop.py", "");
    folder.script("cgi/good.py", python(own));
    let path = folder.path().to_owned();
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let forebay = serve_in_mode_prove(folder, admin);
    let process = |script: &str, user: &str| {
        let reply = forebay.get(&format!("/{script}?name={user}"));
        let text = reply.text();
        assert!(text.contains(&format!("hello {user}\n")), "{text}");
        text.lines().find_map(|line| line.strip_prefix("process ").map(str::to_owned)).unwrap()
    };
    for script in ["good.pl", "good.py", "bad.pl"] {
        let mut seen: Vec<String> = USERS.iter().map(|user| process(script, user)).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), USERS.len(), "{script}: each request has its own process");
    }
    await_state(admin, "good.pl", "proved");
    await_state(admin, "good.py", "proved");
    await_state(admin, "bad.pl", "refused");
    for script in ["good.pl", "good.py"] {
        assert_eq!(process(script, "alice"), process(script, "bob"), "{script} is kept");
    }
    assert_ne!(process("bad.pl", "alice"), process("bad.pl", "bob"));

    // What grows shows only in a kept process.
    USERS.iter().for_each(|user| drop(process("grows.pl", user)));
    await_state(admin, "grows.pl", "proved");
    USERS.iter().for_each(|user| drop(process("grows.pl", user)));
    await_state(admin, "grows.pl", "refused");
    assert_ne!(process("grows.pl", "alice"), process("grows.pl", "bob"), "it is demoted");

    let text = perl("our $user = $name; print \"process $$\\n\";");
    std::fs::write(path.join("cgi/good.pl"), text).unwrap();
    assert_ne!(process("good.pl", "alice"), process("good.pl", "bob"), "a new version is unproved");
    USERS.iter().for_each(|user| drop(process("good.pl", user)));
    await_state(admin, "good.pl", "refused");

    let log = forebay.output();
    assert!(log.contains("is proved after 6 requests"), "{log}");
    assert!(log.contains("$main::user is not safe to keep"), "{log}");
    assert!(!log.contains(" trace ") && !log.contains(" forked "), "a report is in the log: {log}");
    let ctl = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["ctl", "proofs", "--admin", &admin.to_string()])
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&ctl.stdout);
    assert!(shown.contains("good.py: proved after 6 requests"), "{shown}");
    assert!(shown.contains("bad.pl: refused\n    $main::user: it"), "{shown}");
}

/// Serves an application of this kind, and sends it requests of the users. Returns its proof after a
/// verdict.
fn verdict_of(kind: &str, file: (&str, &str), state: &str) -> Value {
    let folder = Folder::new();
    folder.write(file.0, file.1);
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!(
        "[server]\nadmin = \"{admin}\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\n\
         path = \"/*\"\napp = \"app\"\n[app.app]\n{kind}\nmode = \"prove\"\nprove_requests = 6\n\
         workers = 1\n"
    );
    let forebay = serve(folder, &configuration);
    for user in USERS.iter().cycle().take(24) {
        let reply = forebay.get(&format!("/?name={user}"));
        assert!(
            reply.text().contains(&format!("hello {user}")),
            "{} {}",
            reply.text(),
            forebay.output()
        );
    }
    let is_there = || proofs(admin).first().is_some_and(|proof| proof["state"] == state);
    assert!(eventually(is_there), "not {state}: {:?} {}", proofs(admin), forebay.output());
    proofs(admin).remove(0)
}

#[test]
fn modules_that_requests_load_later_are_harmless() {
    let folder = Folder::new();
    for user in USERS {
        folder.write(
            &format!("part_{user}.py"),
            "import site_app\nsite_app.parts.append(__name__)\n",
        );
        let part = format!("package Part_{user}; push @main::parts, __PACKAGE__; 1;\n");
        folder.write(&format!("Part_{user}.pm"), part);
    }
    let app = "import importlib, urllib.parse\nparts = []\ndef app(environ, start):\n    \
               name = urllib.parse.parse_qs(environ['QUERY_STRING'])['name'][0]\n    \
               importlib.import_module('part_' + name)\n    start('200 OK', [])\n    \
               return [b'hello ' + name.encode()]\n";
    folder.write("site_app.py", app);
    let app = "use FindBin; use lib '.'; sub { my ($name) = $_[0]{QUERY_STRING} =~ /name=(\\w+)/;\n\
               require \"Part_$name.pm\"; [200, [], [\"hello $name\"]] }\n";
    folder.write("app.psgi", app);
    let dir = folder.path().display().to_string();
    let kind = format!(
        "kind = \"wsgi\"\nmodule = \"site_app:app\"\ndir = \"{dir}\"\npython = \"/usr/bin/python3\""
    );
    verdict_of(&kind, ("none", ""), "proved");
    let kind = format!("kind = \"psgi\"\nfile = \"{dir}/app.psgi\"\nlib = [\"{dir}\"]");
    verdict_of(&kind, ("none", ""), "proved");
}

fn variable(proof: &Value) -> &str {
    proof["finding"]["variable"].as_str().unwrap()
}

#[test]
fn psgi_applications_are_proved_or_refused() {
    let app = |code: &str| {
        format!(
            "my %by_user; our @log; my $hits = 0;\nsub {{ my $env = shift;\n\
             my ($name) = $env->{{QUERY_STRING}} =~ /name=(\\w+)/;\n{code}\n\
             [200, ['Content-Type' => 'text/plain'], [\"hello $name\\n\"]] }}\n"
        )
    };
    let kind = "kind = \"psgi\"\nfile = \"app.psgi\"";
    let proof = verdict_of(kind, ("app.psgi", &app("my $own = $name;")), "proved");
    assert!(proof["script"].as_str().unwrap().ends_with("/app.psgi"), "{proof}");
    let proof = verdict_of(kind, ("app.psgi", &app("$by_user{$name} = 1;")), "refused");
    assert!(variable(&proof).starts_with("my %by_user in the application{"), "{proof}");
    assert!(proof["finding"]["place"].as_str().unwrap().ends_with("app.psgi line 4"), "{proof}");
    let proof = verdict_of(kind, ("app.psgi", &app("$hits++;")), "refused");
    assert_eq!(variable(&proof), "my $hits in the application", "it grows: {proof}");
}

#[test]
fn flask_and_django_are_proved_unless_a_thread_local_keeps_a_user() {
    let flask = "import flask, threading\napp = flask.Flask(__name__)\nlocal = threading.local()\n\
                 @app.route('/')\ndef hello():\n    name = flask.request.args['name']\n    KEEP\n    \
                 flask.g.user = name\n    return 'hello ' + name\n";
    let kind = "kind = \"wsgi\"\nmodule = \"site_app:app\"\npython = \"/usr/bin/python3\"";
    verdict_of(kind, ("site_app.py", &flask.replace("KEEP", "pass")), "proved");
    let kept = flask.replace("KEEP", "local.user = name");
    let proof = verdict_of(kind, ("site_app.py", &kept), "refused");
    assert_eq!(variable(&proof), "site_app.local.user", "{proof}");
    assert!(proof["finding"]["place"].as_str().unwrap().ends_with("site_app.py line 7"), "{proof}");

    let django = "import threading\nfrom django.conf import settings\n\
                  settings.configure(ROOT_URLCONF=__name__, SECRET_KEY='x', ALLOWED_HOSTS=['*'],\n    \
                  MIDDLEWARE=[__name__ + '.CurrentUser'])\n\
                  from django.core.wsgi import get_wsgi_application\n\
                  from django.http import HttpResponse\nfrom django.urls import path\n\
                  _local = threading.local()\nclass CurrentUser:\n    \
                  def __init__(self, get):\n        self.get = get\n    \
                  def __call__(self, request):\n        KEEP\n        return self.get(request)\n\
                  def hello(request):\n    return HttpResponse('hello ' + request.GET['name'])\n\
                  urlpatterns = [path('', hello)]\napp = get_wsgi_application()\n";
    verdict_of(kind, ("site_app.py", &django.replace("KEEP", "pass")), "proved");
    let kept = django.replace("KEEP", "_local.user = request.GET['name']");
    let proof = verdict_of(kind, ("site_app.py", &kept), "refused");
    assert_eq!(variable(&proof), "site_app._local.user", "{proof}");
}

#[test]
fn frameworks_of_python_and_perl_are_proved() {
    let bottle = "import bottle\napp = bottle.Bottle()\n@app.route('/')\ndef hello():\n    \
                  return bottle.template('hello {{n}}', n=bottle.request.query.name)\n";
    let kind = "kind = \"wsgi\"\nmodule = \"site_app:app\"\npython = \"/usr/bin/python3\"";
    verdict_of(kind, ("site_app.py", bottle), "proved");
    let kind = "kind = \"psgi\"\nfile = \"app.psgi\"";
    let plack = "use Plack::Request;\nsub { my $r = Plack::Request->new(shift);\n\
                 [200, ['Content-Type' => 'text/plain'], ['hello ' . $r->param('name')]] }\n";
    verdict_of(kind, ("app.psgi", plack), "proved");
    let mojo = "use Mojolicious::Lite -signatures;\napp->secrets(['x']); app->log->level('fatal');\n\
                get '/' => sub ($c) { $c->session(user => $c->param('name'));\n\
                $c->render(inline => 'hello <%= param \"name\" %>') };\napp->start;\n";
    verdict_of(kind, ("app.psgi", mojo), "proved");
}

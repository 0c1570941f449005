//! `examples/database`: a script that keeps its database handle has one connection per worker. It
//! works again after the database was restarted.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::{Address, TestStream};
use support::load::{Stop, load};
use support::{Forebay, serve};

const WORKERS: usize = 3;

fn example(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/database");
    folder.join(name).canonicalize().expect("the example is in the repository")
}

fn is_installed() -> bool {
    peer::has(&["postgresql", "libdbd-pg-perl"])
}

fn postgres(folder: &Folder) -> Process {
    let mut command = Command::new("sh");
    command.arg(example("start-postgres.sh")).arg(folder.path());
    let mut process = Process::start(command);
    let socket = Address::Unix(folder.path().join(".s.PGSQL.5432"));
    process
        .wait_until("listened", |_| TestStream::connect(&socket, forebay_testkit::DEADLINE).is_ok())
        .unwrap_or_else(|error| panic!("{error}"));
    process
}

fn scripts(mode: &str, database: &Folder) -> Forebay {
    let (scripts, host) = (example("scripts"), database.path());
    serve(
        Folder::new(),
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"scripts\"\n\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \"{}\"\nmode = \"{mode}\"\n\
             workers = {WORKERS}\nenv = {{ PGHOST = \"{}\" }}\n",
            scripts.display(),
            host.display()
        ),
    )
}

/// Sends requests until each worker has had one.
fn connections(forebay: &Forebay) -> usize {
    thread::scope(|scope| {
        for _ in 0..2 * WORKERS {
            scope.spawn(|| {
                let mut client = forebay.connect();
                for _ in 0..5 {
                    let reply = client.get("/tables.pl");
                    assert_eq!(reply.status, 200, "{}", forebay.output());
                    assert!(reply.text().contains("<td>pg_class</td>"), "{}", reply.text());
                }
            });
        }
    });
    forebay.get("/tables.pl?connections").text().trim().parse().expect("a number")
}

#[test]
fn a_kept_handle_is_a_connection_for_each_worker_and_outlives_a_restart_of_the_database() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    let forebay = scripts("registry", &folder);
    assert!(eventually(|| connections(&forebay) == WORKERS));
    let before = forebay.get("/tables.pl?connections").text().to_owned();
    assert_eq!(before.trim(), WORKERS.to_string(), "no more of them with more requests");

    let exit = database.stop();
    assert!(exit.survivors.is_empty(), "{exit:?}");
    assert_eq!(forebay.get("/tables.pl").status, 500, "no database");
    let database = postgres(&folder);
    // The database listens some time before it accepts connections.
    assert!(eventually(|| forebay.get("/tables.pl").status == 200), "{}", forebay.output());
    for _ in 0..4 * WORKERS {
        assert_eq!(forebay.get("/tables.pl").status, 200, "{}", forebay.output());
    }
    assert!(eventually(|| connections(&forebay) == WORKERS));
    forebay.stop();
    database.stop();
}

#[test]
fn without_a_kept_handle_each_request_has_a_connection_of_its_own() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    for mode in ["perlrun", "fork", "cgi"] {
        let forebay = scripts(mode, &folder);
        connections(&forebay);
        // The connections of other requests close when these end. The server notices this a moment
        // later.
        let only_its_own = || forebay.get("/tables.pl?connections").text().trim() == "1";
        assert!(eventually(only_its_own), "{mode}");
        forebay.stop();
    }
    database.stop();
}

/// Scripts that keep a handle in all the ways of old programs, and do not handle its loss. Each
/// prints the process id of PostgreSQL's server process for its connection.
const KEEPERS: [(&str, &str); 7] = [
    ("variable.pl", "our $dbh; if (!$dbh) { $dbh = connected() } answer($dbh);"),
    ("hash.pl", "our %handles; $handles{shop} ||= connected(); answer($handles{shop});"),
    ("array.pl", "our @handles; $handles[2] ||= connected(); answer($handles[2]);"),
    (
        "statement.pl",
        "our ($dbh, $asks); $dbh ||= connected(); $asks ||= $dbh->prepare('select pg_backend_pid()');\n\
         $asks->execute; answered($asks->fetchrow_array);",
    ),
    ("cached.pl", "answer(DBI->connect_cached(arguments()));"),
    ("disconnects.pl", "our $dbh; $dbh ||= connected(); answer($dbh); $dbh->disconnect;"),
    ("module.pl", "use lib '{lib}'; use Shop; answer(Shop::handle(\\&connected));"),
];

const COMMON: &str = "#!/usr/bin/perl\nuse strict; use warnings; use DBI;\n\
    sub arguments { (\"dbi:Pg:dbname=postgres;host=$ENV{PGHOST}\", 'postgres', '', {PrintError => 0}) }\n\
    sub connected { DBI->connect(arguments()) }\n\
    sub answer { answered($_[0]->selectrow_array('select pg_backend_pid()')) }\n\
    sub answered { print \"Content-Type: text/plain\\n\\n\", $_[0] // 'nothing', \"\\n\" }\n";

fn write_script(folder: &Folder, name: &str, text: &str) {
    folder.script(&format!("cgi/{name}"), format!("{COMMON}{text}\n"));
}

/// Serves the scripts in `cgi` of `folder` with one worker and additional keys of the application.
fn one_worker(folder: Folder, database: &Folder, mode: &str, keys: &str) -> Forebay {
    serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"scripts\"\n\
             [app.scripts]\nkind = \"perl-cgi\"\ndir = \"{{tmp}}/cgi\"\nmode = \"{mode}\"\n\
             workers = 1\nenv = {{ PGHOST = \"{}\" }}\n{keys}\n",
            database.path().display()
        ),
    )
}

/// Runs a query as the superuser, on an own connection.
fn query(database: &Folder, text: &str) -> String {
    let output = Command::new("psql")
        .args(["-U", "postgres", "-h", database.path().to_str().unwrap(), "-Atc", text, "postgres"])
        .output()
        .expect("psql is a part of PostgreSQL");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the process of the database that served a request for `name`.
fn backend(forebay: &Forebay, name: &str) -> u32 {
    let reply = forebay.get(&format!("/{name}"));
    assert_eq!(reply.status, 200, "{name}: {}", forebay.output());
    let text = reply.text().trim().to_owned();
    text.parse().unwrap_or_else(|_| panic!("{name}: {text}\n{}", forebay.output()))
}

/// Ends a connection, and waits until its process has ended.
fn terminate(database: &Folder, backend: u32) {
    let ended = query(database, &format!("select pg_terminate_backend({backend}, 5000)"));
    assert_eq!(ended, "t", "{backend}");
}

#[test]
fn a_handle_that_a_script_keeps_is_dropped_when_its_connection_is_lost() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    let site = Folder::new();
    let lib = site.path().join("lib").to_str().unwrap().to_owned();
    site.write("lib/Shop.pm", "package Shop; my $dbh; sub handle { $dbh ||= $_[0]->() } 1;");
    for (name, text) in KEEPERS {
        write_script(&site, name, &text.replace("{lib}", &lib));
    }
    let forebay = one_worker(site, &folder, "registry", "");
    for (name, _) in KEEPERS {
        let mut last = backend(&forebay, name);
        for _ in 0..5 {
            let kept = backend(&forebay, name);
            assert_eq!(kept == last, name != "disconnects.pl", "{name}");
            if name != "disconnects.pl" {
                terminate(&folder, kept);
            }
            last = backend(&forebay, name);
            assert_ne!(last, kept, "{name}");
        }
    }
    forebay.stop();
    database.stop();
}

#[test]
fn a_transaction_ends_with_its_request() {
    if !is_installed() {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    query(&folder, "create table orders (name text)");
    let site = Folder::new();
    let insert = "$dbh->do(\"insert into orders values ('x')\"); answer($dbh);";
    write_script(
        &site,
        "begins.pl",
        &format!("our $dbh; $dbh ||= connected(); $dbh->begin_work; {insert}"),
    );
    let off = "our $dbh; $dbh ||= connected(); $dbh->{AutoCommit} = 0;";
    write_script(&site, "off.pl", &format!("{off} {insert}"));
    write_script(&site, "commits.pl", &format!("{off} {insert} $dbh->commit;"));
    let forebay = one_worker(site, &folder, "registry", "");
    for (name, rows) in [("begins.pl", 0), ("off.pl", 0), ("commits.pl", 1), ("begins.pl", 1)] {
        backend(&forebay, name);
        assert_eq!(query(&folder, "select count(*) from orders"), rows.to_string(), "{name}");
        let open = "select count(*) from pg_stat_activity where state like 'idle in %'";
        assert_eq!(query(&folder, open), "0", "{name}");
    }
    forebay.stop();
    database.stop();
}

#[test]
fn apache_dbi_keeps_its_connections() {
    if !is_installed() || !peer::has(&["libapache-dbi-perl"]) {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    let connects = "my $dbh = connected(); answer($dbh); $dbh->disconnect;";
    let site = Folder::new();
    write_script(&site, "first.pl", &format!("use Apache::DBI;\n{connects}"));
    write_script(&site, "second.pl", connects);
    write_script(
        &site,
        "fails.pl",
        "use Apache::DBI;\nmy $dbh = connected();\n\
        $dbh->begin_work; $dbh->do('create table lost ()'); answer($dbh); exit;",
    );
    let forebay = one_worker(site, &folder, "registry", "");
    let kept = backend(&forebay, "first.pl");
    for name in ["first.pl", "second.pl", "fails.pl", "fails.pl", "first.pl"] {
        assert_eq!(backend(&forebay, name), kept, "{name}");
    }
    assert_eq!(query(&folder, "select count(*) from pg_class where relname = 'lost'"), "0");
    for _ in 0..5 {
        let kept = backend(&forebay, "first.pl");
        terminate(&folder, kept);
        assert_ne!(backend(&forebay, "first.pl"), kept);
    }
    assert!(!forebay.output().contains("replaced"), "the worker stays\n{}", forebay.output());
    forebay.stop();
    database.stop();
}

#[test]
fn preload_runs_a_startup_file_once_in_each_worker() {
    if !is_installed() || !peer::has(&["libapache-dbi-perl"]) {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    let keys = "preload = [\"{tmp}/startup.pl\", \"CGI::Util\"]";
    for mode in ["registry", "perlrun"] {
        let site = Folder::new();
        site.write(
            "startup.pl",
            "use Apache::DBI; use lib '/made/by/startup'; $ENV{SHOP} = 'open'; $main::starts++;\n\
             print \"to the log\\n\"; our $config = 'main'; sub answer { 'main' } close STDIN; 1;",
        );
        write_script(&site, "asks.pl", "my $dbh = connected(); answer($dbh);");
        write_script(
            &site,
            "says.pl",
            "print \"Content-Type: text/plain\\n\\n\", join ' ', $main::starts, \
            $ENV{SHOP}, $INC{'CGI/Util.pm'} ? 'loaded' : 'not loaded', $INC[0], scalar @ARGV, $main::config, main::answer();",
        );
        let forebay = one_worker(site, &folder, mode, keys);
        for _ in 0..3 {
            let reply = forebay.get("/says.pl");
            assert_eq!(
                reply.text(),
                "1 open loaded /made/by/startup 0 main main",
                "{}",
                forebay.output()
            );
        }
        assert_eq!(backend(&forebay, "asks.pl"), backend(&forebay, "asks.pl"), "{mode}");
        forebay.stop();
    }
    database.stop();
}

/// Sends requests for `name` from several clients until `until` has returned. Returns the numbers
/// of replies with and without a result of the database.
fn under_load(forebay: &Forebay, name: &str, until: impl FnOnce()) -> (usize, usize) {
    let (over, good, failed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                while !over.load(Ordering::Relaxed) {
                    let reply = client.get(&format!("/{name}"));
                    let count = if has_result(&reply) { &good } else { &failed };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let stop = Stop(&over);
        until();
        drop(stop);
    });
    (good.into_inner(), failed.into_inner())
}

#[test]
fn a_lost_connection_fails_only_the_request_under_way() {
    const TERMINATIONS: usize = 200;
    if !is_installed() || !peer::has(&["libapache-dbi-perl"]) {
        return;
    }
    let folder = Folder::new();
    let database = postgres(&folder);
    let site = Folder::new();
    write_script(&site, "keeps.pl", KEEPERS[0].1);
    write_script(&site, "apache.pl", "use Apache::DBI; answer(connected());");
    let forebay = one_worker(site, &folder, "registry", "queue_timeout = \"30s\"");
    for name in ["keeps.pl", "apache.pl"] {
        let (good, failed) = under_load(&forebay, name, || {
            for _ in 0..TERMINATIONS {
                let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                     where backend_type = 'client backend' and pid <> pg_backend_pid()";
                query(&folder, end);
            }
        });
        assert!(failed <= TERMINATIONS && good > failed, "{name}: {good} good, {failed} failed");
    }
    let database = restart_under_load(&forebay, &folder, database);
    forebay.stop();
    database.stop();
}

/// Restarts the database ten times while clients send requests. Checks that each request without a
/// result was active at some time while the database did not run.
fn restart_under_load(forebay: &Forebay, folder: &Folder, database: Process) -> Process {
    // Number of starts and stops. Odd while the database does not run.
    let (changes, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let ask = |client: &mut Client| {
        let before = changes.load(Ordering::SeqCst);
        let name = ["keeps.pl", "apache.pl"][asked.fetch_add(1, Ordering::Relaxed) % 2];
        let reply = client.try_get(&format!("/{name}"))?;
        let is_affected = before % 2 == 1 || changes.load(Ordering::SeqCst) != before;
        assert!(is_affected || has_result(&reply), "{name}: {}", forebay.output());
        Ok(reply)
    };
    let mut running = Some(database);
    load(forebay, 4, ask, |_| {
        for _ in 0..10 {
            changes.fetch_add(1, Ordering::SeqCst);
            running.take().expect("it runs").stop();
            assert!(!has_result(&forebay.get("/keeps.pl")));
            running = Some(postgres(folder));
            query_until_ready(folder);
            changes.fetch_add(1, Ordering::SeqCst);
            for name in ["keeps.pl", "apache.pl", "keeps.pl"] {
                backend(forebay, name);
            }
        }
    });
    running.expect("it runs")
}

/// Returns true if a script got an answer from the database.
fn has_result(reply: &Reply) -> bool {
    reply.status == 200 && reply.text().trim().parse::<u32>().is_ok()
}

/// Waits until the database accepts connections. It listens some time before.
fn query_until_ready(database: &Folder) {
    let is_ready = || {
        let mut command = Command::new("pg_isready");
        command.args(["-q", "-h", database.path().to_str().unwrap()]);
        command.status().is_ok_and(|status| status.success())
    };
    assert!(eventually(is_ready));
}

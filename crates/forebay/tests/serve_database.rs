//! `examples/database`: a script that keeps its database handle has one connection for each worker, and
//! is well again after the database was restarted.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use forebay_testkit::stream::{Address, TestStream};
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

/// Asks until every worker has had its turn.
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
    // It listens some time before it takes connections.
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
        // The others' are closed when their requests are over; the server takes a moment to see it.
        let only_its_own = || forebay.get("/tables.pl?connections").text().trim() == "1";
        assert!(eventually(only_its_own), "{mode}");
        forebay.stop();
    }
    database.stop();
}

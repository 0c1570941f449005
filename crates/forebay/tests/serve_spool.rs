//! The place where `forebay serve` stores request bodies that are too large for memory.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::{Exit, Process};
use support::{pattern, serve, write_configuration};

/// A script that prints the kind and the length of its standard input.
const WHERE: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\n\
    readlink /proc/self/fd/0; wc -c\n";

/// Returns a folder with a script and, for large bodies, a directory with these permissions. Also
/// returns the lines of `[server]`.
fn configured(mode: u32) -> (Folder, String) {
    let folder = Folder::new();
    folder.script("cgi/where", WHERE);
    folder.write("spool/old", "");
    let spool = folder.path().join("spool");
    fs::set_permissions(&spool, fs::Permissions::from_mode(mode)).unwrap();
    let user = if is_root() { "user = \"www-data\"\n" } else { "" };
    let configuration = format!(
        "[server]\nspool_dir = \"spool\"\n{user}[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n"
    );
    (folder, configuration)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn run(verb: &str, file: &Path) -> Exit {
    let mut command = std::process::Command::new(support::program());
    command.arg(verb).arg(file);
    Process::start(command).wait()
}

#[test]
fn large_bodies_wait_where_the_configuration_says() {
    let (folder, configuration) = configured(0o777);
    let forebay = serve(folder, &configuration);
    let spool = forebay.folder.path().join("spool").canonicalize().unwrap();
    let body = pattern(300_000);
    let mut client = forebay.connect();
    client.send("POST /where HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n");
    client.send(&body);
    let reply = client.reply();
    let (place, length) = reply.text().split_once('\n').unwrap();
    assert!(Path::new(place).starts_with(&spool), "{place} below {}", spool.display());
    assert_eq!(length.trim(), "300000");
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 1, "files without a name");
    forebay.stop();
}

#[test]
fn a_spool_that_cannot_be_written_to_is_refused_before_a_request_is() {
    // Root may write there, but the user of Forebay, and any other, may not.
    let (folder, configuration) = configured(0o555);
    let file = write_configuration(&folder, &configuration);
    for verb in ["check", "serve"] {
        let exit = run(verb, &file);
        assert_eq!(exit.status.code(), Some(2), "{verb}: {}", exit.output);
        for part in ["cannot create a file in ", "/spool", "permission denied", "make it writable"]
        {
            assert!(exit.output.contains(part), "{verb}: {}", exit.output);
        }
    }
    let spool = folder.path().join("spool");
    fs::set_permissions(&spool, fs::Permissions::from_mode(0o777)).unwrap();
    let exit = run("check", &file);
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
}

#[test]
fn a_spool_that_is_not_there_is_refused() {
    let (folder, configuration) = configured(0o777);
    let file = write_configuration(&folder, &configuration.replace("\"spool\"", "\"spol\""));
    let exit = run("check", &file);
    assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
    assert!(exit.output.contains("spol"), "{}", exit.output);
}

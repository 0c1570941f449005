//! `forebay serve`: persistent applications, seen from outside.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, serve};

/// A site of one worker over the scripts of `folder`.
fn scripts(folder: Folder) -> Forebay {
    serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"scripts\"\n\
         [app.scripts]\nkind = \"perl-cgi\"\ndir = \".\"\nworkers = 1\n",
    )
}

/// Prints its process id, when the file `go` beside it is there if asked to wait for it.
const PATIENT: &str = "#!/usr/bin/perl
use Time::HiRes 'sleep';
(my $dir = $ENV{SCRIPT_FILENAME}) =~ s{/[^/]*$}{};
if ($ENV{QUERY_STRING} eq 'wait') {
    open my $begun, '>', \"$dir/begun\";
    sleep 0.01 until -e \"$dir/go\";
}
print \"Content-Type: text/plain\\n\\n$$\";
";

#[test]
fn a_client_that_leaves_costs_no_worker_if_the_script_ends_soon() {
    let folder = Folder::new();
    folder.script("patient.pl", PATIENT);
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    let forebay = scripts(folder);
    let worker = forebay.get("/patient.pl").text().to_owned();

    let mut client = forebay.connect();
    client.send("GET /patient.pl?wait HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| begun.exists()), "the script has not begun");
    drop(client);
    std::fs::write(go, "").unwrap();
    assert_eq!(forebay.get("/patient.pl").text(), worker, "another process answered");
    forebay.stop();
}

#[test]
fn a_client_that_leaves_a_script_without_end_leaves_the_worker_to_others() {
    let folder = Folder::new();
    folder.script("patient.pl", PATIENT);
    let begun = folder.path().join("begun");
    let forebay = scripts(folder);
    let worker = forebay.get("/patient.pl").text().to_owned();

    let mut client = forebay.connect();
    client.send("GET /patient.pl?wait HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| begun.exists()), "the script has not begun");
    drop(client);
    assert_ne!(forebay.get("/patient.pl").text(), worker, "the script has not been ended");
    forebay.stop();
}

//! `forebay serve` with symbolic links: which of them it follows while another process exchanges
//! them.

mod support;

use std::os::unix::fs::{lchown, symlink};
use std::sync::mpsc::{TryRecvError, channel};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use support::site;

/// Requests while a link is exchanged.
const REQUESTS: usize = 3_000;

/// `htdocs/now` is a directory, and `htdocs/then` is a link to a directory outside. Their files are
/// too large to be kept in memory.
fn flipped() -> Folder {
    let folder = Folder::new();
    folder.write("outside/file", "s".repeat(70_000));
    folder.write("htdocs/now/file", "i".repeat(70_000));
    symlink("../outside", folder.path().join("htdocs/then")).unwrap();
    folder
}

/// Returns the number of replies from inside and from outside, while `now` and `then` are exchanged
/// all the time.
fn count(folder: &Folder, mut client: Client) -> (usize, usize) {
    let names = ["now", "then"].map(|name| folder.path().join("htdocs").join(name));
    // Dropped with the requests, even if one of them fails.
    let (are_going_on, until) = channel::<()>();
    let mut counts = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while until.try_recv() == Err(TryRecvError::Empty) {
                renameat_with(CWD, &names[0], CWD, &names[1], RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..REQUESTS {
            client.send("GET /now/file HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0\r\n\r\n");
            match client.reply().text() {
                "i" => counts.0 += 1,
                "s" => counts.1 += 1,
                _ => {}
            }
        }
        drop(are_going_on);
    });
    counts
}

#[test]
fn a_link_that_is_flipped_while_it_is_asked_for_leads_nobody_out() {
    let route = "[[site.route]]\npath = \"/*\"\n\
                 files = { root = \"htdocs\", follow_symlinks = \"never\" }\n";
    let forebay = site(flipped(), route);
    let (inside, outside) = count(&forebay.folder, forebay.connect());
    assert_eq!(outside, 0, "and {inside} from inside");
    assert!(inside > 0);

    let folder = flipped();
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; disable_symlinks on; keepalive_requests 100000; root {}/htdocs; }}",
        folder.path().display()
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    let (inside, outside) = count(&folder, Client::connect(nginx.address().clone()));
    assert!(inside > 0);
    assert_eq!(outside, 0, "nginx, and {inside} from inside");
}

/// The user `nobody`, who has an application here.
const OTHER: u32 = 65534;

/// Links of an application's user to a file of root, to its own file, and to a directory; and a
/// link of root.
fn linked() -> Folder {
    let folder = Folder::new();
    folder.write("secret", "secret");
    folder.write("own", "own");
    folder.script("cgi/send", "#!/bin/sh\nprintf 'X-Sendfile: %s\\n\\n' \"$QUERY_STRING\"\n");
    let path = folder.path();
    std::fs::create_dir_all(path.join("htdocs")).unwrap();
    lchown(path.join("own"), Some(OTHER), None).unwrap();
    for (link, target, owner) in [
        ("theirs", "../secret", OTHER),
        ("way", "..", OTHER),
        ("own", "../own", OTHER),
        ("roots", "../own", 0),
        ("over", "theirs", 0),
    ] {
        symlink(target, path.join("htdocs").join(link)).unwrap();
        lchown(path.join("htdocs").join(link), Some(owner), None).unwrap();
    }
    folder
}

#[test]
fn links_of_an_application_to_foreign_files_are_not_sent() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let routes = "[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
                  sendfile_root = \"htdocs\"\n[[site.route]]\nfiles = \"htdocs\"\n";
    let forebay = site(linked(), routes);
    assert!(forebay.output().contains("WARNING: requests are served as root"));
    let htdocs = forebay.folder.path().join("htdocs");
    for (name, status) in
        [("theirs", 403), ("way/secret", 403), ("over", 403), ("own", 200), ("roots", 200)]
    {
        assert_eq!(forebay.get(&format!("/{name}")).status, status, "{name}");
        let target = format!("/cgi/send?{}/{name}", htdocs.display());
        assert_eq!(forebay.get(&target).status, status, "sendfile_root: {name}");
    }

    let folder = linked();
    let conf = format!(
        "DocumentRoot {0}/htdocs\n<Directory {0}>\nOptions SymLinksIfOwnerMatch\n\
         Require all granted\n</Directory>",
        folder.path().display()
    );
    let Some(apache) = peer::apache(&[], &conf) else { return };
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; disable_symlinks if_not_owner; root {}/htdocs; }}",
        folder.path().display()
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    // "over": both compare the first link with the last file, and root owns both.
    for (name, status) in
        [("theirs", 403), ("way/secret", 403), ("over", 200), ("own", 200), ("roots", 403)]
    {
        for peer in [&apache, &nginx] {
            let reply = Client::connect(peer.address().clone()).get(&format!("/{name}"));
            assert_eq!(reply.status, status, "{name} of {:?}", reply.header("Server"));
        }
    }
}

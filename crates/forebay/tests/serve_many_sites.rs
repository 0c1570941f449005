//! `hosts_from`: sites come and go with their directories, without a reload.

mod support;

use std::fs;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::serve;

#[test]
fn a_site_appears_and_disappears_with_its_directory() {
    let folder = Folder::new();
    folder.write("srv/a.example/htdocs/index.html", "a");
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\nhosts_from = \"srv/*/htdocs\"\n\
         [[site.route]]\nfiles = \"srv/{host}/htdocs\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"default\"\n",
    );
    let get = |host: &str| {
        let reply =
            forebay.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        reply.text().to_owned()
    };
    assert_eq!(get("a.example"), "a");
    assert_eq!(get("b.example"), "default");
    let b = forebay.folder.path().join("srv/b.example");
    fs::create_dir(&b).unwrap();
    fs::create_dir(forebay.folder.path().join("srv/not a host")).unwrap();
    // The root comes later than the directory of the site.
    assert!(eventually(|| get("b.example") == "default"));
    fs::create_dir(b.join("htdocs")).unwrap();
    fs::write(b.join("htdocs/index.html"), "b").unwrap();
    assert!(eventually(|| get("b.example") == "b"), "{}", forebay.output());
    fs::remove_dir_all(&b).unwrap();
    assert!(eventually(|| get("b.example") == "default"), "{}", forebay.output());
    assert_eq!(get("a.example"), "a");
    forebay.stop();
}

#[test]
fn a_site_is_served_once_it_is_complete() {
    let folder = Folder::new();
    for host in ["a.example", "b.example"] {
        folder.write(&format!("srv/{host}/htdocs/index.html"), host);
        folder.write(&format!("srv/{host}/users"), "");
    }
    let b = folder.path().join("srv/b.example/users");
    fs::remove_file(&b).unwrap();
    let mut forebay = serve(
        folder,
        "[server]\nadmin = \"unix:{tmp}/admin\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\nhosts_from = \"srv/*/htdocs\"\n\
         [[site.route]]\npath = \"/in/*\"\nbasic_auth = { file = \"srv/{host}/users\" }\n\
         respond = \"in\"\n[[site.route]]\nfiles = \"srv/{host}/htdocs\"\n",
    );
    let get = |forebay: &support::Forebay, host: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let reply = forebay.ask(request);
        (reply.status, reply.text().to_owned())
    };
    let left_out = |forebay: &support::Forebay| {
        let socket = std::os::unix::net::UnixStream::connect(forebay.folder.path().join("admin"));
        let mut socket = socket.unwrap();
        std::io::Write::write_all(
            &mut socket,
            b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        let status = std::io::read_to_string(socket).unwrap();
        status.contains("\"name\": \"b.example\"") && status.contains("create it, or give")
    };
    let ok = |host: &str| (200, host.to_owned());
    assert_eq!(get(&forebay, "b.example").0, 503);
    assert_eq!(get(&forebay, "a.example"), ok("a.example"));
    assert!(left_out(&forebay));
    forebay.wait_for_output("b.example is left out");

    fs::write(&b, "").unwrap();
    assert!(eventually(|| get(&forebay, "b.example") == ok("b.example")), "{}", forebay.output());
    // A thread may serve it before the status says so.
    assert!(eventually(|| !left_out(&forebay)));

    // What is removed later stops no reload either.
    fs::remove_file(&b).unwrap();
    forebay.folder.write("srv/c.example/htdocs/index.html", "c.example");
    forebay.folder.write("srv/c.example/users", "");
    assert!(eventually(|| get(&forebay, "c.example") == ok("c.example")), "{}", forebay.output());
    assert_eq!(get(&forebay, "b.example").0, 503);
    assert_eq!(get(&forebay, "a.example"), ok("a.example"));
    forebay.stop();
}

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

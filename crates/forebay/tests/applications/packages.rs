//! Applications of several languages behind one Forebay, with the configuration that the manual shows.

use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use rustix::process::geteuid;

use crate::harness::{row, run, text, writable};
use crate::support::{command, serve_command};

const SITE: &str = include_str!("../../../../examples/applications/site.toml");

/// The expected answers of each application.
const ROWS: [crate::harness::Row; 20] = [
    row("/dokuwiki/", 200, "DokuWiki"),
    row("/dokuwiki/doku.php?id=start&do=login", 200, "Username"),
    row("/dokuwiki/lib/exe/css.php", 200, "body"),
    row("/dokuwiki/inc/init.php", 403, ""),
    row("/dokuwiki/vendor/autoload.php", 403, ""),
    row("/adminer/", 200, "Login - Adminer"),
    row("/adminer/static/default.css", 403, ""),
    row("/cgit/", 200, "mill"),
    row("/cgit/mill/log/", 200, "The race is open"),
    row("/cgit/mill/tree/gates.txt", 200, "wide"),
    row("/cgit-css/cgit.css", 200, "cgit"),
    row("/fossil/", 302, ""),
    row("/fossil/timeline", 200, "initial empty check-in"),
    row("/fossil/style.css", 200, "body"),
    row("/radicale/", 302, ""),
    row("/radicale/.web/", 200, "Radicale Web Interface"),
    row("/hg", 200, "Mercurial repositories index"),
    row("/hg/mill", 200, "The gates are open"),
    row("/hg/mill/raw-file/tip/gates.txt", 200, "open"),
    row("/hg/none", 404, ""),
];

#[test]
fn applications_in_php_c_and_python_run_side_by_side() {
    let packages =
        ["dokuwiki", "adminer", "cgit", "git", "fossil", "radicale", "mercurial", "python3"];
    if !(peer::has(&packages) && peer::has_php_fpm()) {
        return;
    }
    let folder = Folder::new();
    set_up(&folder);
    let is_root = geteuid().is_root();
    let user = if is_root { "user" } else { "#user" };
    let site = folder.write("site.toml", SITE.replace("#user", user));
    let mut forebay = command(&["--threads", "1", "--listen", "127.0.0.1:0", text(&site)]);
    forebay.env("APPLICATIONS", folder.path());
    let forebay = serve_command(folder, forebay);
    // DokuWiki writes to directories of www-data.
    let rows = ROWS.iter().filter(|row| is_root || !row.target.starts_with("/dokuwiki/"));
    for row in rows.clone().chain(rows) {
        let reply = forebay.get(row.target);
        let body = String::from_utf8_lossy(&reply.body);
        let is_right = reply.status == row.status && body.contains(row.holds);
        assert!(is_right, "{}: {} {body:.2000}\n{}", row.target, reply.status, forebay.output());
    }
    let propfind = "PROPFIND /radicale/ann/ HTTP/1.1\r\nHost: h\r\nDepth: 0\r\n\
        Authorization: Basic YW5uOg==\r\nContent-Length: 0\r\n\r\n";
    let reply = forebay.ask(propfind);
    assert_eq!(reply.status, 207, "{}", forebay.output());
    assert!(reply.text().contains("<href>/radicale/ann/</href>"), "{}", reply.text());
}

/// The files that the configuration names, and a repository for each program.
fn set_up(folder: &Folder) {
    let dir = text(folder.path());
    crate::perl::make_repository(folder);
    let storage = writable(folder, "radicale");
    for (name, content) in [
        (
            "cgitrc",
            format!(
                "virtual-root=/cgit\ncss=/cgit-css/cgit.css\nrepo.url=mill\n\
                 repo.path={dir}/repositories/mill.git\n"
            ),
        ),
        (
            "radicale.conf",
            format!("[auth]\ntype = none\n[storage]\nfilesystem_folder = {storage}\n"),
        ),
        ("hgweb.config", format!("[paths]\nmill = {dir}/hg\n")),
        (
            "hg.py",
            format!(
                "from mercurial.hgweb import hgweb\napplication = hgweb(b'{dir}/hgweb.config')\n"
            ),
        ),
        ("hg/gates.txt", "open\n".to_owned()),
    ] {
        folder.write(name, content);
    }
    let fossil = format!("#!/usr/bin/fossil\nrepository: {dir}/mill.fossil\n");
    folder.script("fossil.cgi", fossil);
    let mut init = Command::new("fossil");
    run(init.args(["init", "mill.fossil"]).current_dir(dir).env("HOME", dir).env("USER", "ann"));
    for arguments in
        [&["init"][..], &["add", "-q"], &["commit", "-qu", "ann", "-m", "The gates are open"]]
    {
        let mut hg = Command::new("hg");
        run(hg.args(arguments).current_dir(folder.path().join("hg")).env("HGRCPATH", ""));
    }
}

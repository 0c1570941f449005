//! CGI scripts in Perl: gitweb, awstats and blosxom.

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;

use crate::harness::{Requests, Row, Scripts, compare_modes, row, run, text, writable};

/// The directory of Debian's scripts.
pub const CGI_BIN: &str = "/usr/lib/cgi-bin";

const GITWEB: [Row; 11] = [
    row("/cgi-bin/gitweb.cgi", 200, "mill.git"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=summary", 200, "shortlog"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=commit;h=HEAD", 200, "committer"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=commitdiff_plain;h=HEAD", 200, "diff --git"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=tree;hb=HEAD", 200, "gates.txt"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=blob;f=gates.txt;hb=HEAD", 200, "wide&gt;"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=blob_plain;f=wheel.bin;hb=HEAD", 200, "\0\u{1}"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=atom", 200, "<feed"),
    row("/cgi-bin/gitweb.cgi?p=mill.git;a=snapshot;h=HEAD;sf=tgz", 200, "\u{1f}"),
    row("/cgi-bin/gitweb.cgi/mill.git/tree/HEAD", 200, "gates.txt"),
    row("/cgi-bin/gitweb.cgi?p=none.git;a=summary", 404, "No such project"),
];

#[test]
fn gitweb_answers_as_under_cgi() {
    if !peer::has(&["gitweb", "libcgi-pm-perl"]) {
        return;
    }
    let folder = Folder::new();
    make_repository(&folder);
    let root = text(folder.path());
    let config = folder.write(
        "gitweb.conf",
        format!(
            "$projectroot = '{root}/repositories'; $projects_list = $projectroot;\n\
             $feature{{'snapshot'}}{{'default'}} = ['tgz']; $feature{{'pathinfo'}}{{'default'}} = [1];\n1;\n"
        ),
    );
    // The user of the test owns the repository, and git checks that its reader trusts this user.
    let trust = folder.write("gitconfig", "[safe]\n\tdirectory = *\n");
    let scripts = Scripts {
        dir: CGI_BIN,
        env: &[
            ("GITWEB_CONFIG", text(&config).to_owned()),
            ("GIT_CONFIG_GLOBAL", text(&trust).to_owned()),
        ],
    };
    let requests = Requests { rows: &GITWEB, ..Requests::default() };
    compare_modes(&scripts, &requests, &["registry", "fork"]);
}

/// Makes the repository `repositories/mill.git` for gitweb and git.
pub fn make_repository(folder: &Folder) {
    let work = folder.path().join("work");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(&work).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "Ann Miller");
            command.env(format!("GIT_{who}_EMAIL"), "ann@mill.example");
            command.env(format!("GIT_{who}_DATE"), "2020-01-02T03:04:05Z");
        }
        run(&mut command);
    };
    fs::create_dir(&work).unwrap();
    git(&["init", "--quiet", "--initial-branch=main"]);
    for (text, message) in [("closed\n", "The race is dug"), ("open <wide>\n", "The race is open")]
    {
        folder.write("work/gates.txt", text);
        folder.write("work/wheel.bin", [0, 1, 0xfe, b'\r', b'\n', 0]);
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", message]);
    }
    git(&["tag", "v1"]);
    let bare = folder.path().join("repositories/mill.git");
    git(&["clone", "--quiet", "--bare", ".", text(&bare)]);
    folder.write("repositories/mill.git/description", "The mill\n");
}

const AWSTATS: [Row; 7] = [
    row("/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=03&year=2021", 200, "waterwheel"),
    row("/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=all&year=2021", 200, "Mar 2021"),
    row(
        "/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=03&year=2021&output=urldetail",
        200,
        "/b.html",
    ),
    row(
        "/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=03&year=2021&output=allhosts",
        200,
        "192.0.2",
    ),
    row(
        "/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=03&year=2021&lang=de",
        200,
        "Besucher",
    ),
    row(
        "/cgi-bin/awstats.pl?config=mill&configdir={tmp}&month=03&year=2021&output=errors404",
        200,
        "404",
    ),
    row("/cgi-bin/awstats.pl?config=none&configdir={tmp}", 200, "Couldn't open config file"),
];

#[test]
fn awstats_answers_as_under_cgi() {
    if !peer::has(&["awstats"]) {
        return;
    }
    let folder = Folder::new();
    let data = writable(&folder, "data");
    let log: String = (0..600).map(log_line).collect();
    let log = folder.write("access.log", log);
    folder.write(
        "awstats.mill.conf",
        format!(
            "LogFile=\"{}\"\nLogType=W\nLogFormat=1\nSiteDomain=\"mill.example\"\nDNSLookup=0\n\
             DirData=\"{data}\"\nDirCgi=\"/cgi-bin\"\nDirIcons=\"/icon\"\nAllowFullYearView=3\n\
             UseFramesWhenCGI=0\n",
            text(&log)
        ),
    );
    let dir = text(folder.path());
    let update = ["-config=mill", &format!("-configdir={dir}"), "-update"];
    run(Command::new(format!("{CGI_BIN}/awstats.pl"))
        .args(update)
        .env("AWSTATS_ENABLE_CONFIG_DIR", dir));
    let scripts = Scripts { dir: CGI_BIN, env: &[("AWSTATS_ENABLE_CONFIG_DIR", dir.to_owned())] };
    let requests = Requests { rows: &AWSTATS, tmp: dir, ..Requests::default() };
    compare_modes(&scripts, &requests, &["registry", "fork"]);
}

/// Returns a line of an access log of March 2021. The number of requests differs for all hosts,
/// pages and browsers, because equal ones may come in any order.
fn log_line(number: usize) -> String {
    // The n-th one occurs n times.
    let weighted = |turn: usize| (0..).find(|n| (n + 1) * (n + 2) / 2 > turn).unwrap_or_default();
    let (page, status) = match number % 37 {
        0 => ("/none.html", 404),
        _ => {
            (["/", "/a.html", "/b.html?x=1", "/c.html", "/d.html"][weighted(number * 7 % 15)], 200)
        }
    };
    let from = match number % 6 {
        0 => "https://www.google.com/search?q=waterwheel",
        _ => "-",
    };
    format!(
        "192.0.2.{} - - [{:02}/Mar/2021:{:02}:{:02}:00 +0000] \"GET {page} HTTP/1.1\" {status} {} \
         \"{from}\" \"Mozilla/5.0 (X11; Linux x86_64; rv:{}.0) Gecko/20100101 Firefox/99.0\"\n",
        weighted(number % 45) + 1,
        number / 24 + 1,
        number % 24,
        number % 60,
        number * 7,
        90 + weighted(number % 6),
    )
}

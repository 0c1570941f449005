//! `challenge` with real browsers: Chromium with and without scripts, and the page's script in Node.

mod support;

use std::process::Command;

use forebay_testkit::chromium;
use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use support::{Forebay, site};

/// A page of the site. Its title shows what of the address has arrived.
const PAGE: &str = "<!DOCTYPE html><title>?</title>\n\
    <script>document.title = 'wiki ' + location.search + location.hash</script>\n";

fn wiki(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("files/page.html", PAGE);
    site(folder, &format!("[[site.route]]\nfiles = \"files\"\nchallenge = {{ {keys} }}\n"))
}

#[test]
fn chromium_solves_the_task_and_sees_the_page() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let forebay = wiki("difficulty = 12");
    let url = format!("http://{}/page.html?a=1#b", forebay.address);
    let profile = forebay.folder.path().join("profile");
    let (title, console) = chromium::show(&profile, &url, 20_000, 1);
    assert_eq!(title, "wiki ?a=1#b", "{console:?} {}", forebay.output());
    assert_eq!(console, [""; 0]);
    forebay.stop();
}

/// Runs the script of a page without a browser, and prints where it leads.
const DRIVER: &str = "
const place = { getAttribute: name => process.env[name] };
globalThis.document = { getElementById: () => place };
Object.defineProperty(globalThis, 'navigator', { value: { cookieEnabled: true } });
globalThis.location = { search: '?a=1', hash: '', replace: url => console.log(url) };
(0, eval)(process.env.SCRIPT);
";

#[test]
fn the_script_of_the_page_finds_answers_that_count() {
    if !peer::has(&["nodejs"]) {
        return;
    }
    let forebay = wiki("difficulty = 14");
    for _ in 0..5 {
        let page = forebay.get("/page.html?a=1").text().to_owned();
        let between = |before: &str, after: &str| {
            page.split_once(before).unwrap().1.split_once(after).unwrap().0.to_owned()
        };
        let output = Command::new("node")
            .args(["-e", DRIVER])
            .env("data-task", between("data-task=\"", "\""))
            .env("data-bits", between("data-bits=\"", "\""))
            .env("SCRIPT", between("<script>", "</script>"))
            .output()
            .unwrap();
        let query = String::from_utf8(output.stdout).unwrap();
        let reply = forebay.get(&format!("/page.html{}", query.trim_end()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(reply.status, 303, "{query} {errors}");
        assert_eq!(reply.header("Location"), Some("/page.html?a=1"));
    }
    forebay.stop();
}

//! The start of `forebay serve` and `forebay check --start` if one of several applications cannot
//! start.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::port::free_port;
use forebay_testkit::process::{Process, eventually};
use rustix::process::Signal;
use support::{check_start, serve, write_configuration};

/// Two sites with different ports: `good` answers, and `bad` ends until there is a file `go`.
const APPS: &str = "[[site]]\nlisten = \"127.0.0.1:0\"\n\
    [[site.route]]\npath = \"/good\"\napp = \"good\"\n[[site.route]]\npath = \"/*\"\napp = \"bad\"\n\
    [app.good]\nkind = \"psgi\"\nfile = \"good.psgi\"\n\
    [app.bad]\nkind = \"psgi\"\nfile = \"bad.psgi\"\nenv = { WHERE = \"{tmp}\" }\n";

fn apps() -> Folder {
    let folder = Folder::new();
    folder.write("good.psgi", "sub { [200, [], ['good']] }\n");
    folder.write(
        "bad.psgi",
        "die \"no database\\n\" if !-e \"$ENV{WHERE}/go\";\nsub { [200, [], ['mended']] }\n",
    );
    folder
}

#[test]
fn one_application_that_cannot_start_does_not_stop_the_others() {
    let admin = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let configuration = format!("[server]\nadmin = \"{admin}\"\n{APPS}");
    let mut forebay = serve(apps(), &configuration);
    assert_eq!(forebay.get("/good").text(), "good");
    let reply = forebay.get("/x");
    assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("1")));
    forebay.wait_for_output("cannot start app bad");
    forebay.wait_for_output("no database");
    let page = |target: &str| Client::connect(admin).get(target).text().to_owned();
    assert!(page("/metrics").contains("forebay_app_crash_loop{app=\"bad\"} 1"));
    assert!(page("/metrics").contains("forebay_app_crash_loop{app=\"good\"} 0"));
    let status: serde_json::Value = serde_json::from_str(&page("/status")).unwrap();
    let why = status["apps"][0]["crash_loop"].as_str().unwrap();
    assert!(why.contains("no database"), "{status}");
    forebay.folder.write("go", "");
    assert!(eventually(|| forebay.get("/x").text() == "mended"), "{}", forebay.output());
    assert!(page("/metrics").contains("forebay_app_crash_loop{app=\"bad\"} 0"));
    forebay.stop();
}

#[test]
fn an_application_that_does_not_come_to_an_end_of_its_start_holds_nobody_up() {
    let folder = apps();
    folder.write(
        "bad.psgi",
        "select undef, undef, undef, 0.05 while !-e \"$ENV{WHERE}/go\";\nsub { [200, [], ['late']] }\n",
    );
    let mut forebay = serve(folder, APPS);
    forebay.wait_for_output("app bad has not started within");
    assert_eq!(forebay.get("/good").text(), "good");
    let mut waiting = forebay.connect();
    waiting.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n");
    forebay.folder.write("go", "");
    assert_eq!(waiting.reply().text(), "late");
    forebay.stop();
}

#[test]
fn check_start_tells_which_applications_cannot_start() {
    let exit = check_start(&apps(), APPS);
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("app good: starts"), "{}", exit.output);
    assert!(exit.output.contains("cannot start app bad: "), "{}", exit.output);
    assert!(exit.output.contains("no database"), "{}", exit.output);
    assert!(!exit.output.contains(": ok, "), "{}", exit.output);
    let folder = apps();
    folder.write("go", "");
    let exit = check_start(&folder, APPS);
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
    assert!(exit.output.contains("app bad: starts"), "{}", exit.output);
    assert!(exit.output.contains(": ok, 1 site, 2 routes, 2 apps"), "{}", exit.output);
}

#[test]
fn check_start_also_starts_what_its_first_request_would_start() {
    let table = "[app.own]\nkind = \"command\"\nspeaks = \"http\"\nworkers = { min = 0, max = 1 }\n\
                 run = [\"sh\", \"-c\", \"echo not today; exit 5; : {socket}\"]\n";
    let site = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"own\"\n";
    let exit = check_start(&Folder::new(), &format!("{site}{table}"));
    assert_eq!(exit.status.code(), Some(3), "{}", exit.output);
    assert!(exit.output.contains("exit code 5"), "{}", exit.output);
    assert!(exit.output.contains("not today"), "{}", exit.output);
}

#[test]
fn a_mistake_in_the_file_comes_before_starts() {
    let exit = check_start(&apps(), &APPS.replace("good.psgi", "none.psgi"));
    assert_eq!(exit.status.code(), Some(2), "{}", exit.output);
    assert!(!exit.output.contains("no database"), "nothing was started: {}", exit.output);
}

#[test]
fn a_reload_with_an_application_that_cannot_start_changes_nothing() {
    let good = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"good\"\n\
                [app.good]\nkind = \"psgi\"\nfile = \"good.psgi\"\n";
    let mut forebay = serve(apps(), good);
    write_configuration(&forebay.folder, APPS);
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("not reloaded, the old configuration stays in use: app bad: ");
    assert_eq!(forebay.get("/x").text(), "good");
    forebay.stop();
}

#[test]
fn a_reload_keeps_an_application_that_could_not_start_before() {
    let mut forebay = serve(apps(), APPS);
    assert_eq!(forebay.get("/x").status, 503);
    let more = APPS
        .replace("[app.good]", "[[site.route]]\npath = \"/new\"\nrespond = \"new\"\n[app.good]");
    // The requests go to the routes in turn.
    let more = more.replacen("path = \"/*\"", "path = \"/x\"", 1);
    write_configuration(&forebay.folder, &more);
    forebay.signal(Signal::HUP);
    assert!(eventually(|| forebay.get("/new").text() == "new"), "{}", forebay.output());
    assert_eq!(forebay.get("/x").status, 503);
    forebay.folder.write("go", "");
    assert!(eventually(|| forebay.get("/x").text() == "mended"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_stop_does_not_wait_for_an_application_that_cannot_start() {
    let folder = apps();
    let file = write_configuration(&folder, APPS);
    let mut process = Process::start(support::command(&[file.to_str().unwrap()]));
    process.wait_for_output("serving http://");
    let exit = process.stop();
    assert_eq!(exit.status.code(), Some(0), "{}", exit.output);
    assert!(exit.survivors.is_empty(), "{:?}", exit.survivors);
}

//! `examples/asgi`: an ASGI application on uvicorn, behind `forebay serve`.

mod support;

use std::fs;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::Process;
use support::site;

const PYTHON: &str = "/usr/bin/python3";
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/asgi");

#[test]
fn uvicorn_answers_behind_forebay() {
    if !peer::has(&["uvicorn"]) {
        return;
    }
    let folder = Folder::new();
    folder.write("app.py", fs::read(format!("{EXAMPLE}/app.py")).unwrap());
    let socket = folder.path().join("s");
    let mut command = Command::new(PYTHON);
    command.args(["-m", "uvicorn", "--proxy-headers", "--forwarded-allow-ips=*", "--app-dir"]);
    command.arg(folder.path()).arg("--uds").arg(&socket).arg("app:application");
    let mut uvicorn = Process::start(command);
    uvicorn.wait_until_listening(&socket);
    let forebay =
        site(folder, "[[site.route]]\npath = \"/*\"\nproxy = { to = [\"unix:{tmp}/s\"] }\n");
    let mut client = forebay.connect();
    assert_eq!(client.get("/hello").text(), "GET /hello from 127.0.0.1\n");
    client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.reply().text(), "POST /x from 127.0.0.1\nbody");
    assert_eq!(client.get("/count").text(), "0\n1\n2\n");
    drop(client);
    forebay.stop();
    uvicorn.stop();
}

//! `forebay serve` with CGI scripts, good and bad: a whole reply, a clean error, and no process left.

mod support;

use std::fs;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, is_alive, site};

const ROUTE: &str = "[[site.route]]\npath = \"/cgi-bin/*\"\ncgi = \"cgi-bin\"\n";

/// A site of these scripts, each a name and what follows `#!/bin/sh`.
fn scripts(scripts: &[(&str, &str)]) -> Forebay {
    let folder = Folder::new();
    for (name, text) in scripts {
        folder.script(&format!("cgi-bin/{name}"), format!("#!/bin/sh\n{text}\n"));
    }
    site(folder, ROUTE)
}

#[test]
fn a_script_gets_the_request_and_its_output_is_the_reply() {
    let forebay = scripts(&[(
        "echo",
        "printf 'Status: 201 Made\\nContent-Type: text/plain\\nX-Own: 1\\n\\n'\n\
         echo \"$REQUEST_METHOD $SCRIPT_NAME $PATH_INFO $QUERY_STRING $HTTP_X_A:${HTTP_PROXY-none}\"\n\
         cat",
    )]);
    let reply = forebay.ask(
        "POST /cgi-bin/echo/more?a=b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX_A: 2\r\nProxy: evil\r\n\
         Content-Length: 4\r\n\r\nbody",
    );
    assert_eq!(reply.status, 201);
    assert_eq!(reply.header("X-Own"), Some("1"));
    assert_eq!(reply.text(), "POST /cgi-bin/echo /more a=b 1:none\nbody");
    forebay.stop();
}

#[test]
fn scripts_that_give_no_reply_are_a_bad_gateway() {
    let forebay = scripts(&[
        ("mute", "exit 0"),
        ("garbage", "printf '\\000\\001 no header'"),
        ("status", "printf 'Status: abc\\n\\n'"),
        ("return", "printf 'X: a\\rb\\n\\n'"),
        (
            "endless",
            "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
        ),
        ("killed", "kill -9 $$"),
        ("closed", "exec >&-; exec <&-"),
    ]);
    for name in ["mute", "garbage", "status", "return", "endless", "killed", "closed"] {
        assert_eq!(forebay.get(&format!("/cgi-bin/{name}")).status, 502, "{name}");
    }
    forebay.stop();
}

#[test]
fn what_cannot_be_run_is_told_apart_and_logged() {
    let forebay = scripts(&[("lost", "")]);
    let file = |name: &str| forebay.folder.path().join("cgi-bin").join(name);
    fs::write(file("plain"), "#!/bin/sh\n").unwrap();
    fs::create_dir(file("folder")).unwrap();
    fs::write(file("lost"), "#!/no/such/interpreter\n").unwrap();
    for (name, status) in [("plain", 403), ("folder", 403), ("lost", 500), ("absent", 404)] {
        assert_eq!(forebay.get(&format!("/cgi-bin/{name}")).status, status, "{name}");
    }
    let said = |text| eventually(|| forebay.output().contains(text));
    assert!(said("chmod +x"), "{}", forebay.output());
    assert!(said("the interpreter that its first line names is not there"), "{}", forebay.output());
    forebay.stop();
}

#[test]
fn a_reply_of_another_length_than_announced_is_never_whole() {
    let forebay = scripts(&[
        ("short", "printf 'Content-Length: 9\\nContent-Type: text/plain\\n\\nx'"),
        ("long", "printf 'Content-Length: 1\\nContent-Type: text/plain\\n\\nxyz'"),
    ]);
    for name in ["short", "long"] {
        let reply = forebay.connect().try_get(&format!("/cgi-bin/{name}"));
        assert!(reply.as_ref().map_or(true, |reply| reply.status == 502), "{name}: {reply:?}");
    }
    forebay.stop();
}

#[test]
fn a_script_is_ended_when_its_client_has_gone() {
    let forebay = scripts(&[("hang", "echo $$ > pid; sleep 1000")]);
    let mut client = forebay.connect();
    client.send("GET /cgi-bin/hang HTTP/1.1\r\nHost: h\r\n\r\n");
    let pid = || {
        let file = forebay.folder.path().join("cgi-bin/pid");
        fs::read_to_string(file).unwrap_or_default().trim().to_owned()
    };
    assert!(eventually(|| !pid().is_empty()), "the script has not begun");
    drop(client);
    assert!(eventually(|| !is_alive(&pid())), "the script runs on");
    forebay.stop();
}

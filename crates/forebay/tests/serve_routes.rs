//! `forebay serve`: the access log as a file.

mod support;

use std::fs;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::{Forebay, serve_arguments, write_configuration};

fn logged(format: &str) -> Forebay {
    let configuration = format!(
        "[log]\naccess = \"access.log\"\nformat = '{format}'\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/quiet\"\nlog = false\nrespond = \"q\"\n\
         [[site.route]]\nrespond = \"hello\"\n"
    );
    let folder = Folder::new();
    let file = write_configuration(&folder, &configuration);
    // One thread, because each thread passes its lines on in its own time.
    serve_arguments(folder, &["--threads", "1", file.to_str().unwrap()])
}

fn lines(forebay: &Forebay, name: &str, count: usize) -> Vec<String> {
    let path = forebay.folder.path().join(name);
    let read = || fs::read_to_string(&path).unwrap_or_default();
    assert!(eventually(|| read().lines().count() >= count), "{}", read());
    read().lines().map(str::to_owned).collect()
}

const HOSTILE: &str = "GET /a%22b\"?x=\\\"y HTTP/1.1\r\nHost: h\r\nUser-Agent: \"x\\\" \u{e9}\t\
                       10\r\nReferer: http://r/\r\n\r\n";

#[test]
fn common_and_combined_lines() {
    let forebay = logged("common");
    forebay.get("/a?b");
    forebay.get("/quiet");
    forebay.ask("POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    let got = lines(&forebay, "access.log", 2);
    assert!(got[0].starts_with("127.0.0.1 - - ["), "{got:?}");
    assert!(got[0].ends_with("] \"GET /a?b HTTP/1.1\" 200 5"), "{got:?}");
    assert!(got[1].ends_with("] \"POST / HTTP/1.0\" 200 5"), "{got:?}");
    assert_eq!(got.len(), 2, "{got:?}");

    let forebay = logged("combined");
    forebay.ask(HOSTILE);
    forebay.get("/");
    let got = lines(&forebay, "access.log", 2);
    let end = "\"GET /a%22b\\\"?x=\\\\\\\"y HTTP/1.1\" 200 5 \"http://r/\" \
               \"\\\"x\\\\\\\" \\xc3\\xa9\\x0910\"";
    assert!(got[0].ends_with(end), "{got:?}");
    assert!(got[1].ends_with("200 5 \"-\" \"-\""), "{got:?}");
}

#[test]
fn json_lines_are_json() {
    let forebay = logged("json");
    forebay.ask(HOSTILE);
    forebay.ask(b"GET /%FF%80 HTTP/1.1\r\nHost: h\r\nUser-Agent: \xff\"\r\n\r\n");
    for line in lines(&forebay, "access.log", 2) {
        let value: serde_json::Value = serde_json::from_str(&line).expect("each line is JSON");
        assert_eq!((&value["status"], &value["method"]), (&200.into(), &"GET".into()), "{line}");
        assert_eq!((&value["body_bytes"], &value["host"]), (&5.into(), &"h".into()), "{line}");
        assert!(value["duration_us"].is_u64(), "{line}");
    }
}

#[test]
fn a_log_is_opened_anew_after_rotation() {
    let mut forebay = logged("%U");
    forebay.get("/first");
    lines(&forebay, "access.log", 1);
    let folder = forebay.folder.path().to_owned();
    fs::rename(folder.join("access.log"), folder.join("access.log.1")).unwrap();
    forebay.signal(Signal::USR1);
    assert!(eventually(|| folder.join("access.log").exists()));
    forebay.get("/second");
    assert_eq!(lines(&forebay, "access.log", 1), ["/second"]);
    assert_eq!(lines(&forebay, "access.log.1", 1), ["/first"]);
    forebay.get("/last");
    let (_, folder) = forebay.stop();
    let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert_eq!(text, "/second\n/last\n", "what was logged last is written before the end");
}

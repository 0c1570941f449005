//! Handlers of mod_perl under `kind = "mod-perl"`. Each row of the table asks the same handler under
//! Forebay and under Apache with mod_perl. The differences are listed with their reasons.

mod support;

use std::path::Path;
use std::process::Command;
use std::{fs, iter};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;
use support::{Forebay, serve};

/// Paths with queries, and what the request has besides: a method, `POST:n` for a body
/// of n bytes, `LINES:a|b` for lines, or a field.
const ROWS: &str = include_str!("mod_perl/rows.txt");
/// The rows that differ from mod_perl: the row, and the reason.
const DIFFERENCES: &str = include_str!("mod_perl/differences.txt");

#[test]
fn handlers_answer_as_under_apache() {
    let forebay = forebay();
    let ours = answers(&forebay.address.into());
    for text in ["a reason to die", "logged by log_error", "logged by the server"] {
        assert!(forebay.output().contains(text), "the log has {text:?}");
    }
    assert!(!ours.iter().any(|answer| answer.contains("a reason to die")), "{ours:?}");
    forebay.stop();
    let Some(apache) = apache() else { return };
    let theirs = answers(apache.address());
    let mut wrong = Vec::new();
    for (row, (ours, theirs)) in iter::zip(ROWS.lines(), iter::zip(&ours, &theirs)) {
        let reason =
            DIFFERENCES.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(" # "));
        match reason {
            None if ours != theirs => {
                wrong.push(format!("{row}\n  ours:   {ours}\n  theirs: {theirs}"));
            }
            Some(reason) if ours == theirs => {
                wrong.push(format!("{row} does not differ any more: {reason}"));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_imported_configuration_answers_the_same() {
    let typed = forebay();
    let expected = answers(&typed.address.into());
    typed.stop();
    let folder = Folder::new();
    copy_files(&folder);
    let dir = folder.path().to_str().unwrap().to_owned();
    let listen = "127.0.0.1:8080";
    let conf = format!("Listen {listen}\nServerName localhost\n{}", apache_conf(&dir));
    let file = folder.write("apache.conf", conf);
    let out = Command::new(support::program()).args(["import", "apache"]).arg(file).output();
    let text = String::from_utf8(out.unwrap().stdout).unwrap();
    assert!(!text.contains("NOT TRANSLATED"), "{text}");
    let kind = "kind = \"mod-perl\"";
    let text = text.replace(listen, "127.0.0.1:0").replace(kind, &format!("{kind}\nworkers = 1"));
    let imported = serve(folder, &text);
    let answers = answers(&imported.address.into());
    for (row, (ours, expected)) in iter::zip(ROWS.lines(), iter::zip(&answers, &expected)) {
        assert_eq!(ours, expected, "{row}\n{text}");
    }
    imported.stop();
}

#[test]
fn a_visitor_leaves_nothing_to_the_next() {
    let forebay = forebay();
    let address: Address = forebay.address.into();
    let clean = describe(&ask(&address, "/t/remains"));
    for way in ["", "exit", "die", "stream", "alarm"] {
        let row =
            format!("/t/spoil?{way} Cookie=secret-of-anna Authorization=Basic_YW5uYTpzZWNyZXQ=");
        let spoiled = describe(&ask(&address, &row));
        assert!(spoiled.starts_with(if way == "die" { "500" } else { "200" }), "{way}: {spoiled}");
        assert_eq!(describe(&ask(&address, "/t/remains")), clean, "after {way:?}");
    }
    let log = forebay.output();
    assert!(!log.contains("secret-of-anna") && !log.contains("ended, "), "{log}");
    forebay.stop();
}

#[test]
fn a_handler_that_misbehaves_ends_its_own_request_only() {
    let forebay = forebay();
    let address: Address = forebay.address.into();
    for (row, status) in [
        ("/t/bad?dies-with-wide-text", 500),
        ("/t/bad?returns-object", 500),
        ("/t/bad?returns-list", 200),
        ("/t/bad?head-with-line-break", 500),
        ("/t/bad?name-with-line-break", 500),
        ("/t/bad?no-such-method", 500),
        ("/t/bad?closes-output", 200),
        ("/t/bad?closes-input POST:10", 200),
        ("/t/bad?reads-negative POST:10", 500),
        ("/t/bad?recursion", 500),
        ("/t/bad?late", 200),
        ("/t/bad?late-again", 200),
        ("/t/bad?huge-status", 500),
        ("/t/returns?-3", 500),
        ("/t/bad?table-misuse", 500),
        ("/t/bad?unknown-phase", 500),
        ("/t/bad?forks", 200),
        ("/t/bad?missing-module", 500),
    ] {
        assert_eq!(ask(&address, row).status, status, "{row}: {}", forebay.output());
        assert_eq!(ask(&address, "/t/plain").text(), "ab3\nputs\n007|x\n", "after {row}");
    }
    // What was sent cannot become an error page, and half a reply is not taken for a whole one.
    let mut client = Client::connect(&address);
    client.send(
        "GET /t/bad?dies-while-streaming HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let rest = client.rest();
    let rest = String::from_utf8_lossy(&rest);
    let is_cut = rest.starts_with("HTTP/1.1 200") && !rest.ends_with("0\r\n\r\n");
    assert!(is_cut || rest.starts_with("HTTP/1.1 500"), "{rest}");
    assert_eq!(ask(&address, "/t/plain").status, 200);
    assert!(!forebay.output().contains("did not become ready"), "{}", forebay.output());
    forebay.stop();
}

fn forebay() -> Forebay {
    let folder = Folder::new();
    copy_files(&folder);
    serve(folder, include_str!("mod_perl/forebay.toml"))
}

fn copy_files(folder: &Folder) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mod_perl/lib");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        folder.write(&format!("lib/{name}"), fs::read_to_string(entry.path()).unwrap());
    }
    folder.write("docs/file.txt", "contents of a file");
}

fn apache_conf(dir: &str) -> String {
    include_str!("mod_perl/apache.conf").replace("{dir}", dir)
}

/// Starts Apache with one process, so that each request comes to the process of the one before.
fn apache() -> Option<Peer> {
    let folder = Folder::new();
    copy_files(&folder);
    let dir = folder.path().to_str().unwrap().to_owned();
    let conf = apache_conf(&dir);
    let modules = ["authn_core", "authz_user", "auth_basic", "mime", "dir", "perl"];
    let peer = peer::apache(&modules, &conf);
    KEPT.with(|kept| kept.borrow_mut().push(folder));
    peer
}

thread_local! {
    static KEPT: std::cell::RefCell<Vec<Folder>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn answers(address: &Address) -> Vec<String> {
    ROWS.lines().map(|row| describe(&ask(address, row))).collect()
}

fn ask(address: &Address, row: &str) -> Reply {
    let mut words = row.split(' ');
    let path = words.next().unwrap_or_default();
    let (mut method, mut body, mut fields) = ("GET", None, String::new());
    for word in words {
        if let Some(length) = word.strip_prefix("POST:") {
            let length: usize = length.parse().unwrap();
            body = Some((0..length).map(|at| char::from(b'a' + (at % 23) as u8)).collect());
        } else if let Some(lines) = word.strip_prefix("LINES:") {
            body = Some(lines.replace('|', "\n"));
        } else if let Some((name, value)) = word.split_once('=') {
            fields.push_str(&format!("{name}: {}\r\n", value.replace('_', " ")));
        } else {
            method = word;
        }
    }
    let mut head = format!(
        "{} {path} HTTP/1.1\r\nHost: localhost\r\nX-Thing: 1\r\nX-Many: a\r\nX-Many: b\r\n\
         Cookie: c=d\r\nConnection: close\r\n{fields}",
        if body.is_some() { "POST" } else { method }
    );
    if let Some(body) = &body {
        let body: &String = body;
        head.push_str(&format!("Content-Type: text/plain\r\nContent-Length: {}\r\n", body.len()));
    }
    let mut client = Client::connect(address);
    client.send(format!("{head}\r\n{}", body.unwrap_or_default()));
    if method == "HEAD" { client.reply_to_head() } else { client.reply() }
}

/// Returns the parts of a reply that come from the handler. Error pages come from the server.
fn describe(reply: &Reply) -> String {
    let mut seen = reply.status.to_string();
    for name in ["Content-Type", "Location", "Set-Cookie", "Allow", "WWW-Authenticate"] {
        seen.push_str(&format!(" {name}={:?}", reply.headers_named(name)));
    }
    for name in ["X-One", "X-Two", "X-Err", "X-Tied", "X-Own", "X-Late", "Content-Encoding"] {
        let values = reply.headers_named(name);
        if !values.is_empty() {
            seen.push_str(&format!(" {name}={values:?}"));
        }
    }
    let body = String::from_utf8_lossy(&reply.body);
    if body.starts_with("<!DOCTYPE") {
        return seen + " page";
    }
    let sum = reply.body.iter().fold(0u64, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
    let shown: String = body.chars().take(2000).collect();
    format!("{seen} {} {sum:x} {shown:?}", reply.body.len())
}

//! The scripts of `scripts/table`: one for each way in which a persistent interpreter can differ
//! from a new process. Forebay's modes give the same bytes as their models, Apache with mod_perl or
//! with mod_cgi. The differences are listed here with their reasons.

mod support;

use std::path::Path;
use std::{fs, iter};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;
use support::{Forebay, serve};

/// A script and the queries that one worker gets for it, one after another. `POST:n` is a body of n
/// bytes instead, `FORM:text` a form.
const ROWS: &[(&str, &[&str])] = &[
    ("exit.pl", &["", "1", ""]),
    ("exit-in-eval.pl", &["", ""]),
    ("exit-in-begin.pl", &["", ""]),
    ("die.pl", &["", ""]),
    ("die-after-output.pl", &["", ""]),
    ("die-in-eval.pl", &["", ""]),
    ("begin-end.pl", &["", "", ""]),
    ("begin-count.pl", &["", "", ""]),
    ("data.pl", &["", ""]),
    ("end-token.pl", &["", ""]),
    ("end-in-here-document.pl", &["", ""]),
    ("pod.pl", &["", ""]),
    ("end-in-pod.pl", &["", ""]),
    ("findbin.pl", &["", ""]),
    ("closure.pl", &["", "", ""]),
    ("our.pl", &["", "", ""]),
    ("main-package.pl", &["", ""]),
    ("environment.pl", &["a=1", "b=%20", "a=1", "POST:5"]),
    ("environment-of-children.pl", &["a=1", "a=2"]),
    ("signals.pl", &["", "", "restore"]),
    ("alarm.pl", &["", "leave", ""]),
    ("zero.pl", &["", ""]),
    ("arguments.pl", &["", "restore=1"]),
    ("isindex.pl", &["word", "two+words", "a=b"]),
    ("directory.pl", &["", "spoil", ""]),
    ("umask.pl", &["", "", "restore"]),
    ("locale.pl", &["", "", "restore"]),
    ("variables.pl", &["", "", "restore"]),
    ("local-variables.pl", &["", ""]),
    ("reopened-output.pl", &["", ""]),
    ("output-to-scalar.pl", &["", ""]),
    ("reopened-input.pl", &["", ""]),
    ("input.pl", &["", "POST:200", ""]),
    ("body.pl", &["POST:0", "POST:1", "POST:65536", "POST:65537", "POST:1000000"]),
    ("body-unread.pl", &["POST:70000", ""]),
    ("module-globals.pl", &["a=1&a=2&b=%C3%A9", "", "FORM:a=x&c=y+z"]),
    ("module-objects.pl", &["a=1;b=2", "FORM:q=%41&r=", ""]),
    ("module-header.pl", &["", ""]),
    ("library-one.pl", &["", ""]),
    ("library-two.pl", &["", ""]),
    ("library-one.pl", &[""]),
    ("syntax-error.pl", &["", ""]),
    ("missing-module.pl", &["", ""]),
    ("runtime-error.pl", &["", ""]),
    ("warnings.pl", &["", ""]),
    ("redirect.pl", &[""]),
    ("redirect-cookie.pl", &[""]),
    ("redirect-local.pl", &[""]),
    ("nph-own.pl", &["", ""]),
    ("no-header.pl", &[""]),
    ("nothing.pl", &[""]),
    ("bad-header.pl", &[""]),
    ("empty-line-only.pl", &[""]),
    ("crlf.pl", &[""]),
    ("status.pl", &["200", "204", "206", "304", "404", "503"]),
    ("content-length.pl", &[""]),
    ("children.pl", &["", ""]),
    ("fork.pl", &["", ""]),
    ("unicode.pl", &["", ""]),
    ("bytes.pl", &["", ""]),
    ("large.pl", &["", ""]),
    ("streams.pl", &["", ""]),
    ("format.pl", &["", ""]),
    ("destroy.pl", &["", ""]),
    ("destroy-package-variable.pl", &["", ""]),
    ("local.pl", &["", ""]),
    ("caller.pl", &["", ""]),
    ("prototype.pl", &["", ""]),
    ("taint.pl", &["", "a"]),
    ("data-package.pl", &["", "", ""]),
    ("fatals.pl", &["", "early", "", "early"]),
    ("fast.pl", &["a=1", "a=2", "a=3"]),
    ("background.pl", &["1", "2", "3"]),
    ("kept-output.pl", &["1", "2", "3"]),
    ("end-in-line.pl", &["", ""]),
    ("not-there.pl", &[""]),
];

/// An intended difference between a mode and its model.
struct Difference {
    script: &'static str,
    modes: &'static [&'static str],
    reason: &'static str,
}

const IN_PLACE: &[&str] = &["registry", "registry-prefork", "perlrun"];
const EXACT: &[&str] = &["fork", "cgi", "origin"];
const ALL: &[&str] = &["registry", "registry-prefork", "perlrun", "fork", "cgi", "origin"];

const DIFFERENCES: &[Difference] = &[
    Difference {
        script: "exit-in-eval.pl",
        modes: IN_PLACE,
        reason: "exit ends the script, wherever it stands",
    },
    Difference {
        script: "exit-in-begin.pl",
        modes: IN_PLACE,
        reason: "exit ends the script, wherever it stands",
    },
    Difference {
        script: "die-after-output.pl",
        modes: IN_PLACE,
        reason: "no error page behind what was sent, as with CGI",
    },
    Difference {
        script: "begin-end.pl",
        modes: IN_PLACE,
        reason: "END blocks run last first, as Perl has it",
    },
    Difference { script: "data.pl", modes: IN_PLACE, reason: "DATA is readable" },
    Difference { script: "end-in-here-document.pl", modes: IN_PLACE, reason: "text is not code" },
    Difference { script: "end-in-pod.pl", modes: IN_PLACE, reason: "POD is not code" },
    Difference {
        script: "findbin.pl",
        modes: IN_PLACE,
        reason: "FindBin finds the script, not the server",
    },
    Difference {
        script: "environment-of-children.pl",
        modes: IN_PLACE,
        reason: "children have the request's environment",
    },
    Difference {
        script: "signals.pl",
        modes: IN_PLACE,
        reason: "handlers of one request are not for the next",
    },
    Difference {
        script: "arguments.pl",
        modes: IN_PLACE,
        reason: "@ARGV of one request is not for the next",
    },
    Difference {
        script: "isindex.pl",
        modes: EXACT,
        reason: "no argument comes from a query: programs have taken such for options",
    },
    Difference {
        script: "directory.pl",
        modes: &["registry"],
        reason: "the directory is the application's, not the server's, in each request",
    },
    Difference {
        script: "alarm.pl",
        modes: IN_PLACE,
        reason: "an alarm of one request is not for the next",
    },
    Difference {
        script: "library-two.pl",
        modes: &["registry", "registry-prefork"],
        reason: "a file without a package serves each script that requires it",
    },
    Difference {
        script: "umask.pl",
        modes: IN_PLACE,
        reason: "the umask of one request is not for the next",
    },
    Difference {
        script: "locale.pl",
        modes: IN_PLACE,
        reason: "the locale of one request is not for the next",
    },
    Difference {
        script: "variables.pl",
        modes: IN_PLACE,
        reason: "special variables are as new in each request",
    },
    Difference {
        script: "module-header.pl",
        modes: IN_PLACE,
        reason: "the status that CGI.pm prints is the reply's, and no error page follows",
    },
    Difference {
        script: "children.pl",
        modes: IN_PLACE,
        reason: "children's output reaches the client",
    },
    Difference {
        script: "fork.pl",
        modes: IN_PLACE,
        reason: "children's output reaches the client",
    },
    Difference {
        script: "streams.pl",
        modes: IN_PLACE,
        reason: "output of syswrite reaches the client",
    },
    Difference {
        script: "main-package.pl",
        modes: IN_PLACE,
        reason: "what a script names as main's and as its own is one, as in a main program",
    },
    Difference {
        script: "taint.pl",
        modes: IN_PLACE,
        reason: "-T in the #! line is in force: each request is a new process",
    },
    Difference {
        script: "data-package.pl",
        modes: IN_PLACE,
        reason: "DATA belongs to the package in force at its line",
    },
    Difference {
        script: "fatals.pl",
        modes: IN_PLACE,
        reason: "the page for a fatal error is part of the script's reply, as with CGI",
    },
    Difference {
        script: "fast.pl",
        modes: IN_PLACE,
        reason: "a FastCGI loop gets one request each time",
    },
    Difference {
        script: "end-in-line.pl",
        modes: IN_PLACE,
        reason: "code may precede __END__ on its line, as with CGI",
    },
    Difference {
        script: "format.pl",
        modes: &["registry", "registry-prefork"],
        reason: "formats write",
    },
    Difference {
        script: "no-header.pl",
        modes: ALL,
        reason: "a script's malformed reply is a 502, which tells it from a script that died",
    },
    Difference {
        script: "bad-header.pl",
        modes: ALL,
        reason: "a script's malformed reply is a 502",
    },
    Difference {
        script: "nothing.pl",
        modes: ALL,
        reason: "a script that prints nothing has not answered: 502",
    },
    Difference { script: "status.pl", modes: ALL, reason: "Content-Type is kept with 204 and 304" },
    Difference {
        script: "die.pl",
        modes: &["origin"],
        reason: "the cgi origin knows no exit codes: no header is a 502",
    },
    Difference {
        script: "syntax-error.pl",
        modes: &["origin"],
        reason: "the cgi origin knows no exit codes: no header is a 502",
    },
    Difference {
        script: "missing-module.pl",
        modes: &["origin"],
        reason: "the cgi origin knows no exit codes: no header is a 502",
    },
    Difference {
        script: "runtime-error.pl",
        modes: &["origin"],
        reason: "the cgi origin knows no exit codes: no header is a 502",
    },
];

#[test]
fn registry_is_as_mod_perls() {
    compare("registry", || mod_perl("Registry"));
}

#[test]
fn registry_prefork_is_as_mod_perls() {
    compare("registry-prefork", || mod_perl("RegistryPrefork"));
}

#[test]
fn perlrun_is_as_mod_perls() {
    compare("perlrun", || mod_perl("PerlRunPrefork"));
}

#[test]
fn fork_is_as_cgi() {
    compare("fork", mod_cgi);
}

#[test]
fn cgi_is_as_cgi() {
    compare("cgi", mod_cgi);
}

#[test]
fn the_cgi_origin_is_as_cgi() {
    compare("origin", mod_cgi);
}

fn compare(mode: &str, model: impl FnOnce() -> Option<Peer>) {
    let Some(model) = model() else { return };
    if !peer::has_perl("CGI::Fast", "libcgi-fast-perl") {
        return;
    }
    let forebay = forebay(mode);
    let mut wrong = Vec::new();
    for (script, queries) in ROWS {
        let ask = |address: &Address| -> Vec<String> {
            queries.iter().map(|query| ask(address, script, query)).collect()
        };
        let (ours, theirs) = (ask(&forebay.address.into()), ask(model.address()));
        let listed = DIFFERENCES.iter().find(|d| d.script == *script && d.modes.contains(&mode));
        match listed {
            None if ours != theirs => {
                let pairs = iter::zip(*queries, iter::zip(&ours, &theirs));
                for (query, (ours, theirs)) in pairs.filter(|(_, (a, b))| a != b) {
                    wrong.push(format!("{script}?{query}\n  ours:   {ours}\n  theirs: {theirs}"));
                }
            }
            Some(listed) if ours == theirs => {
                wrong.push(format!("{script} does not differ any more: {}", listed.reason));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{mode}:\n{}", wrong.join("\n"));
    for text in
        ["a reason to die", "a late reason", "syntax error at", "No/Such/Module.pm", "warned"]
    {
        let text = if text == "warned" { "a plain warning" } else { text };
        assert!(forebay.output().contains(text), "{mode}: the log has {text:?}");
    }
    forebay.stop();
}

/// Returns the parts of a reply that come from the script, on one line: status, fields and body.
/// Error pages and the texts of redirects come from the server.
fn ask(address: &Address, script: &str, query: &str) -> String {
    let post = query.strip_prefix("POST:").map(|length| {
        let length: usize = length.parse().unwrap();
        let body: String = (0..length).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
        ("text/plain", if length > 1000 { body } else { body.replace('w', "\n") })
    });
    let form = query.strip_prefix("FORM:");
    let form = form.map(|text| ("application/x-www-form-urlencoded", text.to_owned()));
    let mut client = Client::connect(address);
    let common = "Host: localhost\r\nX-Thing: 1\r\nCookie: c=d\r\nConnection: close\r\n";
    match post.or(form) {
        Some((kind, body)) => client.send(format!(
            "POST /s/{script} HTTP/1.1\r\n{common}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n\
             {body}",
            body.len()
        )),
        None => client.send(format!("GET /s/{script}?{query} HTTP/1.1\r\n{common}\r\n")),
    }
    describe(&client.reply())
}

fn describe(reply: &Reply) -> String {
    let mut seen = reply.status.to_string();
    let is_own = reply.header("X-Table").is_some();
    let names: &[&str] = if is_own { &["X-Table", "Content-Type"] } else { &[] };
    for name in names.iter().chain(&["X-Own", "Location", "Set-Cookie"]) {
        seen.push_str(&format!(" {name}={:?}", reply.headers_named(name)));
    }
    if is_own {
        // Some servers add a character set.
        let body = String::from_utf8_lossy(&reply.body);
        let shown: String = body.chars().take(2000).collect();
        let sum =
            reply.body.iter().fold(0u64, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
        seen.push_str(&format!(" {} {sum:x} {shown:?}", reply.body.len()));
    }
    seen
}

fn forebay(mode: &str) -> Forebay {
    let folder = Folder::new();
    copy_scripts(&folder);
    let what = match mode {
        "origin" => "cgi = { dir = \"table\" }\n".to_owned(),
        mode => format!(
            "app = \"table\"\n[app.table]\nkind = \"perl-cgi\"\ndir = \"table\"\nworkers = 1\n\
             mode = \"{mode}\"\n"
        ),
    };
    let route = "[[site.route]]\npath = \"/s/*\"\n";
    serve(folder, &format!("[[site]]\nlisten = \"127.0.0.1:0\"\n{route}{what}"))
}

fn copy_scripts(folder: &Folder) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/table");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        folder.script(&format!("table/{name}"), fs::read(entry.path()).unwrap());
    }
}

/// One process, so that each request comes to the process of the previous one, and a directory of
/// scripts that its user can read.
const APACHE: &str = "MaxRequestWorkers 1\nMinSpareServers 1\nMaxSpareServers 1\nKeepAlive Off\n\
    Alias /s/ \"{scripts}/table/\"\nUseCanonicalName Off\n\
    <Directory \"{scripts}/table\">\nOptions ExecCGI\nRequire all granted\n";

fn mod_perl(handler: &str) -> Option<Peer> {
    let conf = format!(
        "PerlModule ModPerl::{handler}\n{APACHE}SetHandler perl-script\nPerlOptions +ParseHeaders\n\
         PerlResponseHandler ModPerl::{handler}\n</Directory>\n<FilesMatch \"^nph-\">\n\
         PerlOptions -ParseHeaders\n</FilesMatch>\n"
    );
    apache(&["alias", "perl"], &conf)
}

fn mod_cgi() -> Option<Peer> {
    apache(&["alias", "cgi"], &format!("{APACHE}SetHandler cgi-script\n</Directory>\n"))
}

fn apache(modules: &[&str], conf: &str) -> Option<Peer> {
    let folder = Folder::new();
    copy_scripts(&folder);
    let scripts = folder.path().to_str().unwrap().to_owned();
    let peer = peer::apache(modules, &conf.replace("{scripts}", &scripts));
    // The folder lives as long as the process of the test, because other programs empty the
    // system's temporary directory.
    KEPT.with(|kept| kept.borrow_mut().push(folder));
    peer
}

thread_local! {
    static KEPT: std::cell::RefCell<Vec<Folder>> = const { std::cell::RefCell::new(Vec::new()) };
}

//! Handlers of mod_perl under `kind = "mod-perl"`. Each row of the table asks the same handler under
//! Forebay and under Apache with mod_perl. The differences are listed with their reasons.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::{fs, iter};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::process::eventually;
use forebay_testkit::stream::Address;
use support::{Forebay, serve};

/// Paths with queries, and what the request has besides: a method, `POST:n` for a body
/// of n bytes, `LINES:a|b` for lines, `FORM:text`, `SOAP:method`,
/// or a field.
const ROWS: &str = include_str!("mod_perl/rows.txt");
const APACHE: &str = include_str!("mod_perl/apache.conf");
/// The rows that differ from mod_perl: the row, and the reason.
const DIFFERENCES: &str = include_str!("mod_perl/differences.txt");

#[test]
fn handlers_answer_as_under_apache() {
    let forebay = forebay();
    let ours = answers(&forebay.address.into(), ROWS);
    for text in ["a reason to die", "logged by log_error", "logged by the server"] {
        assert!(forebay.output().contains(text), "the log has {text:?}");
    }
    assert!(!ours.iter().any(|answer| answer.contains("a reason to die")), "{ours:?}");
    forebay.stop();
    let Some(apache) = apache(APACHE) else { return };
    let theirs = answers(apache.address(), ROWS);
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
    let expected = answers(&typed.address.into(), ROWS);
    typed.stop();
    let imported = imported(APACHE);
    let answers = answers(&imported.address.into(), ROWS);
    for (row, (ours, expected)) in iter::zip(ROWS.lines(), iter::zip(&answers, &expected)) {
        assert_eq!(ours, expected, "{row}");
    }
    imported.stop();
}

#[test]
fn settings_reach_the_process_of_the_handler() {
    let folder = Folder::new();
    copy_files(&folder);
    let text = r#"
[[site]]
listen = "127.0.0.1:0"
[[site.route]]
path = "/strict/*"
app = "strict"
[[site.route]]
path = "/plain/*"
app = "plain"
[app.strict]
kind = "mod-perl"
handler = "Settings"
lib = "lib"
switches = ["-T", "-w"]
pass_env = "HOME"
env = { OWN = "x'y\\z" }
options = ["-SetupEnv", "-GlobalRequest"]
[app.plain]
kind = "mod-perl"
handler = "Settings"
lib = "lib"
"#;
    let forebay = serve(folder, text);
    let address: Address = forebay.address.into();
    let home = std::env::var("HOME").unwrap_or("none".to_owned());
    for (row, body) in [("", 0), (" POST:20", 20), (" POST:3000000", 3_000_000)] {
        assert_eq!(
            ask(&address, &format!("/strict/x{row}")).text(),
            format!("taint 1 warnings 1 home {home} own x'y\\z host none global no body {body}\n")
        );
        assert_eq!(
            ask(&address, &format!("/plain/x{row}")).text(),
            format!(
                "taint 0 warnings 0 home none own none host localhost global yes body {body}\n"
            )
        );
    }
    forebay.stop();
}

/// What all handlers decline is a file, but only below a `root` that the configuration names.
#[test]
fn files_are_sent_below_a_root_alone() {
    let folder = Folder::new();
    copy_files(&folder);
    folder.write("docs/.hidden", "hidden");
    folder.write("docs/.git/config", "hidden");
    folder.write("secret.txt", "secret");
    folder.write("docs/in/file.txt", "contents");
    folder.write("no/file.txt", "contents");
    let route = |name| format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
    let app = |name, key| {
        format!("[app.{name}]\nkind = \"mod-perl\"\nmount = \"\"\nworkers = 1\n{key}\n")
    };
    let text = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n{}{}{}{}",
        route("in"),
        route("no"),
        app("in", "root = \"docs\""),
        app("no", "lib = \"lib\"")
    );
    let forebay = serve(folder, &text);
    for (path, status) in [
        ("/in/file.txt", 200),
        ("/in/none.txt", 404),
        ("/in/file.txt/more", 404),
        ("/in/.hidden", 404),
        ("/in/%2e%2e/.git/config", 404),
        ("/in/..%2f..%2fsecret.txt", 404),
        ("/no/file.txt", 404),
        ("/no/..%2fsecret.txt", 404),
    ] {
        let reply = forebay.get(path);
        assert!(
            reply.status == status || status == 404 && reply.status == 400,
            "{path}: {}",
            reply.status
        );
    }
    let put = ask(&forebay.address.into(), "/in/file.txt PUT");
    assert_eq!(put.status, 405);
    forebay.stop();
}

#[test]
fn modules_about_the_process_do_their_work() {
    let folder = Folder::new();
    copy_files(&folder);
    let changing = |value: &str| format!("package Changing; sub value {{ '{value}' }} 1;\n");
    let file = folder.write("lib/Changing.pm", changing("old"));
    let text = r#"
[[site]]
listen = "127.0.0.1:0"
[[site.route]]
path = "/status"
app = "status"
[[site.route]]
path = "/*"
app = "own"
[app.status]
kind = "mod-perl"
handler = "Apache2::Status"
preload = "Processes"
lib = "lib"
[app.own]
kind = "mod-perl"
handler = "Processes"
phases = { header_parser = "Apache2::Reload" }
lib = "lib"
workers = 1
"#;
    let forebay = serve(folder, text);
    let page = forebay.get("/status").text().to_owned();
    assert!(page.contains("Own &lt;page&gt;") && page.contains("Processes.pm"), "{page}");
    assert!(forebay.get("/status?own").text().contains("a page of a module"));
    let (pid, value) = said(&forebay, "/");
    assert_eq!(value, "old");
    fs::write(&file, changing("new")).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
    assert_eq!(said(&forebay, "/"), (pid.clone(), "new".to_owned()));
    assert_eq!(said(&forebay, "/?limit").0, pid);
    assert!(eventually(|| said(&forebay, "/").0 != pid), "{}", forebay.output());
    forebay.stop();
}

/// What the handler `Processes` says: its process, and the value of the module that changes.
fn said(forebay: &Forebay, path: &str) -> (String, String) {
    let reply = forebay.get(path);
    let (pid, value) = reply.text().split_once(' ').expect("two words");
    (pid.to_owned(), value.to_owned())
}

/// HTML::Mason, Apache2_4::AuthCookie and SOAP::Lite, as Debian has them.
#[test]
fn applications_of_debian_answer_as_under_apache() {
    let packages = [
        ("HTML::Mason", "libhtml-mason-perl"),
        ("Apache::AuthCookie::Util", "libapache2-authcookie-perl"),
        ("SOAP::Lite", "libsoap-lite-perl"),
    ];
    if !packages.iter().all(|(module, package)| peer::has_perl(module, package)) {
        return;
    }
    let rows = include_str!("mod_perl/applications.txt");
    let folder = Folder::new();
    copy_files(&folder);
    let dir = folder.path().to_str().unwrap().to_owned();
    let forebay = serve(folder, &in_directory(include_str!("mod_perl/applications.toml"), &dir));
    let ours = answers(&forebay.address.into(), rows);
    let log = forebay.output();
    forebay.stop();
    let Some(apache) = apache(include_str!("mod_perl/applications.conf")) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(ours, theirs, "{row}\n{log}");
    }
    assert!(ours.iter().any(|answer| answer.contains("secret page")), "{ours:?}");
    assert!(ours.iter().any(|answer| answer.contains(">42<")), "{ours:?}");
}

/// Apache::ASP, Apache::Gallery and CGI::Application::Dispatch, with the configuration of their
/// manuals, which Forebay imports.
#[test]
fn imported_applications_of_debian_answer_as_under_apache() {
    let packages =
        ["libapache-asp-perl", "libapache-gallery-perl", "libcgi-application-dispatch-perl"];
    if !peer::has(&packages) {
        return;
    }
    let (conf, rows) =
        (include_str!("mod_perl/imported.conf"), include_str!("mod_perl/imported.txt"));
    let forebay = imported(conf);
    let ours = answers(&forebay.address.into(), rows);
    let log = forebay.output();
    forebay.stop();
    let Some(apache) = apache(conf) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(without_sessions(ours), without_sessions(theirs), "{row}\n{log}");
    }
    for text in ["Hello a&lt;b", "a b 4 POST", "page 7, z", "of a form"] {
        assert!(ours.iter().any(|answer| answer.contains(text)), "{text}: {ours:#?}");
    }
}

/// MasonX::Request::WithApacheSession needs libapreq2, which Debian 12 does not have, so there is no
/// Apache to compare with.
#[test]
fn pages_of_mason_keep_sessions_of_apache_session() {
    let packages = ["libhtml-mason-perl", "libmasonx-request-withapachesession-perl"];
    if !peer::has(&packages) {
        return;
    }
    let forebay = imported(include_str!("mod_perl/mason.conf"));
    let address: Address = forebay.address.into();
    let visit = |row: &str| {
        let reply = ask(&address, &format!("/sessions/session.html{row}"));
        let field = reply.header("Set-Cookie").unwrap_or_default();
        (reply.text().to_owned(), field.split(';').next().unwrap_or_default().to_owned())
    };
    let page = |visits: &str| format!("<auto>visits {visits} as Apache2::Request\n</auto>\n");
    let (text, anna) = visit("");
    assert_eq!(text, page("1"), "{}", forebay.output());
    assert!(anna.starts_with("visits="), "{anna}");
    let (text, otto) = visit("");
    assert_eq!(text, page("1"));
    assert_ne!(anna, otto);
    for count in 2..5 {
        assert_eq!(visit(&format!(" Cookie={anna}")).0, page(&count.to_string()));
    }
    assert_eq!(visit(&format!(" FORM:x=y Cookie={otto}")).0, page("2"));
    assert_eq!(visit(&format!(" FORM:forget=1 Cookie={anna}")).0, page("forgotten"));
    let (text, again) = visit(&format!(" Cookie={anna}"));
    assert_eq!(text, page("1"));
    assert_ne!(again, anna);
    for stranger in ["visits=../../etc/passwd", "visits=0123456789abcdef0123456789abcdef"] {
        let (text, own) = visit(&format!(" Cookie={stranger}"));
        assert!(!text.contains("visits 2") && own != stranger, "{stranger}: {text}");
    }
    forebay.stop();
}

/// LemonLDAP::NG's handler before a whole site, with the configuration of its files for Apache, which
/// Forebay imports. The test makes the sessions that a portal would make.
#[test]
fn single_sign_on_guards_a_whole_site_as_under_apache() {
    if !peer::has(&["liblemonldap-ng-handler-perl"]) {
        return;
    }
    let (conf, rows) = (include_str!("mod_perl/sso.conf"), include_str!("mod_perl/sso.txt"));
    let forebay = imported(conf);
    let ours = answers(&forebay.address.into(), rows);
    let log = forebay.output();
    forebay.stop();
    let Some(apache) = apache(conf) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(ours, theirs, "{row}\n{log}");
        assert!(!ours.contains("secret") || row.contains("=0123456789"), "{row}: {ours}");
    }
    for text in ["secret page", "user rtyler Auth-User=rtyler X-Group=rtyler@example.org"] {
        assert!(ours.iter().any(|answer| answer.contains(text)), "{text}: {ours:#?}");
    }
}

/// Writes the configuration and the sessions of LemonLDAP::NG.
fn prepare_sessions(folder: &Folder) {
    let dir = folder.path().to_str().unwrap();
    for (name, text) in [
        ("lemonldap-ng.ini", include_str!("mod_perl/sso/lemonldap-ng.ini")),
        ("lmConf-1.json", include_str!("mod_perl/sso/lmConf-1.json")),
    ] {
        folder.write(&format!("sso/{name}"), in_directory(text, dir));
    }
    let sessions = folder.path().join("data/sessions");
    fs::create_dir(&sessions).unwrap();
    fs::set_permissions(&sessions, fs::Permissions::from_mode(0o777)).unwrap();
    for (id, user) in [("0123456789abcdef", "dwho"), ("abcdefabcdefabcd", "rtyler")] {
        let session = format!(
            "{{\"_session_id\":\"{id}{id}\",\"_session_kind\":\"SSO\",\"_utime\":{},\"uid\":\"{user}\",\
             \"_whatToTrace\":\"{user}\",\"mail\":\"{user}@example.org\"}}",
            std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
        );
        let file = folder.write(&format!("data/sessions/{id}{id}"), session);
        fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    }
}

/// PerlAddAuthzProvider and PerlAddAuthnProvider, from an imported configuration. Who may is never
/// more than under Apache.
#[test]
fn rules_of_providers_decide_as_under_apache() {
    let (conf, rows) = (include_str!("mod_perl/rules.conf"), include_str!("mod_perl/rules.txt"));
    let forebay = imported(conf);
    let ours = answers(&forebay.address.into(), rows);
    let log = forebay.output();
    forebay.stop();
    let Some(apache) = apache(conf) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(ours, theirs, "{row}\n{log}");
    }
    for text in ["secret page for goo", "secret page for anybody", "secret page for otto x"] {
        assert!(ours.iter().any(|answer| answer.contains(text)), "{text}: {ours:#?}");
    }
}

/// The user name is `goo`, a line break and `forged`.
#[test]
fn a_refused_visitor_writes_no_line_of_the_log() {
    let mut forebay = imported(include_str!("mod_perl/rules.conf"));
    let row = "/staff/x%0Aforged Authorization=Basic_Z29vCmZvcmdlZDpzZWNyZXQ=";
    assert_eq!(ask(&forebay.address.into(), row).status, 401);
    forebay.wait_for_output("no rule of Require admits goo%0Aforged: /staff/x%0Aforged");
    let log = forebay.stop().0.output;
    assert!(log.lines().all(|line| line.matches("forged").count() != 1), "{log}");
}

/// Rules beside those of handlers, in many combinations. Where the import cannot say the same, it
/// closes more.
#[test]
fn imported_rules_open_nothing_that_apache_closes() {
    const RULES: [&str; 28] = [
        "Require valid-user",
        "Require user \"anna otto\"",
        "Require user anna",
        "Require staff anna",
        "Require staff anna otto",
        "Require token sesame\nRequire user anna",
        "Require all denied",
        "Require all granted\nRequire user anna",
        "Require ip 192.0.2.1",
        "PerlAuthzHandler Rules::accepts\nRequire ip 192.0.2.1",
        "PerlAuthzHandler Rules::accepts\nRequire all denied",
        "PerlAuthzHandler Rules::accepts\nRequire user nobody",
        "Require ip 127.0.0.1\nRequire user nobody",
        "<RequireAll>\nRequire not user anna\nRequire valid-user\n</RequireAll>",
        "<RequireAll>\nRequire valid-user\nRequire ip 192.0.2.1\n</RequireAll>",
        "<RequireAll>\nRequire staff anna\nRequire token sesame\n</RequireAll>",
        "<RequireAll>\n<RequireNone>\nRequire staff anna\n</RequireNone>\nRequire valid-user\n\
         </RequireAll>",
        "Order deny,allow\nDeny from all\nAllow from 192.0.2.1\nRequire valid-user",
        "Order allow,deny\nAllow from all\nDeny from 127.0.0.1\nRequire staff anna",
        "Order deny,allow\nDeny from all\nAllow from 127.0.0.1\nRequire staff anna",
        "<Limit POST>\nRequire user anna\n</Limit>",
        "<Limit POST>\nRequire staff anna\n</Limit>\nRequire user otto",
        "<LimitExcept GET>\nRequire staff anna\n</LimitExcept>",
        "<Limit GET>\nRequire user anna\n</Limit>\n<Limit POST>\nRequire user otto\n</Limit>",
        "<Limit POST>\nOrder deny,allow\nDeny from all\n</Limit>\nRequire valid-user",
        "Satisfy any\nPerlAccessHandler Rules::inside\nRequire user anna",
        "Satisfy any\nPerlAccessHandler Rules::inside\nAllow from 192.0.2.1\nRequire user anna",
        "Satisfy any\nOrder deny,allow\nDeny from all\nAllow from 192.0.2.1\nRequire user anna",
    ];
    let (mut conf, mut rows) = (
        "MaxRequestWorkers 1\nKeepAlive Off\nPerlSwitches -I{dir}/lib\nDocumentRoot {dir}/docs\n\
         TypesConfig /etc/mime.types\n<Directory />\nRequire all granted\n</Directory>\n\
         PerlModule Rules\nPerlAddAuthzProvider staff Rules->staff\n\
         PerlAddAuthzProvider token Rules::token\n"
            .to_owned(),
        String::new(),
    );
    let mut place = |sections: &str, path: &str, is_perl: bool| {
        let handler = "SetHandler perl-script\nPerlResponseHandler Rules";
        let handler = if is_perl { handler } else { "" };
        conf.push_str(&sections.replace("{path}", path).replace("{handler}", handler));
        for method in ["GET", "HEAD", "POST:3"] {
            for field in [
                "",
                " X-Token=sesame",
                " Authorization=Basic_YW5uYTpzZWNyZXQ=",
                " Authorization=Basic_b3R0bzpzZWNyZXQ=",
                " Authorization=Basic_YW5uYTpzZWNyZXQ= X-Token=sesame",
                " Authorization=Basic_YW5uYTp3cm9uZw==",
            ] {
                rows.push_str(&format!("{path}/file.txt {method}{field}\n"));
            }
        }
    };
    let login = "AuthType Basic\nAuthName own\nPerlAuthenHandler Rules::login\n";
    for (at, rules) in RULES.iter().enumerate() {
        for (is_perl, kind) in [(true, "app"), (false, "gate")] {
            let text = format!("<Location {{path}}>\n{{handler}}\n{login}{rules}\n</Location>\n");
            place(&text, &format!("/{kind}{at}"), is_perl);
        }
        // An inner section, whose rules replace those outside or are merged with them.
        for (merging, kind) in [("And", "and"), ("Or", "or"), ("Off", "off")] {
            let text = format!(
                "<Location {{path}}>\n{{handler}}\n{login}{rules}\n</Location>\n<Location \
                 {{path}}/file.txt>\nAuthMerging {merging}\nRequire user otto\n</Location>\n"
            );
            place(&text, &format!("/{kind}{at}"), true);
        }
    }
    for (options, kind) in [("", "replaced"), ("PerlOptions +MergeHandlers", "merged")] {
        let text = format!(
            "<Location {{path}}>\n{{handler}}\nPerlAccessHandler Rules::inside\n</Location>\n\
             <Location {{path}}/file.txt>\n{options}\nPerlAccessHandler Rules::accepts\n</Location>\n"
        );
        place(&text, &format!("/{kind}"), true);
        place(&text, &format!("/gate-{kind}"), false);
    }
    let forebay = serve_imported(&conf).0;
    let ours = answers(&forebay.address.into(), &rows);
    forebay.stop();
    let Some(apache) = apache(&conf) else { return };
    let theirs = answers(apache.address(), &rows);
    let is_open = |answer: &String| answer.starts_with("200") || answer.starts_with("404");
    let mut count = 0;
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert!(!is_open(ours) || is_open(theirs), "{row}: {ours}, and not {theirs}");
        count += usize::from(is_open(ours));
    }
    assert!(count > 100, "{count}");
}

/// Replaces the random names of sessions.
fn without_sessions(answer: &str) -> String {
    let mut parts = answer.split("session-id=");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "session-id=" + part.get(32..).unwrap_or(part))
}

/// Serves what `forebay import apache` makes of a configuration, all of which it knows.
fn imported(conf: &str) -> Forebay {
    let (forebay, text) = serve_imported(conf);
    assert!(!text.contains("NOT TRANSLATED"), "{text}");
    forebay
}

/// Serves what `forebay import apache` makes of a configuration, each application with one process.
fn serve_imported(conf: &str) -> (Forebay, String) {
    let folder = Folder::new();
    copy_files(&folder);
    prepare_sessions(&folder);
    let dir = folder.path().to_str().unwrap().to_owned();
    let listen = "127.0.0.1:8080";
    let conf = format!("Listen {listen}\nServerName localhost\n{}", in_directory(conf, &dir));
    let file = folder.write("apache.conf", conf);
    let out = Command::new(support::program()).args(["import", "apache"]).arg(file).output();
    let text = String::from_utf8(out.unwrap().stdout).unwrap();
    let kind = "kind = \"mod-perl\"";
    let text = text.replace(listen, "127.0.0.1:0").replace(kind, &format!("{kind}\nworkers = 1"));
    (serve(folder, &text), text)
}

#[test]
fn filters_and_names_of_mod_perl_1_work_as_under_apache() {
    let rows = include_str!("mod_perl/filters.txt");
    let folder = Folder::new();
    copy_files(&folder);
    let forebay = serve(folder, include_str!("mod_perl/filters.toml"));
    let ours = answers(&forebay.address.into(), rows);
    let log = forebay.output();
    forebay.stop();
    assert!(ours.iter().all(|answer| answer.starts_with("200")), "{ours:#?}\n{log}");
    let Some(apache) = apache(include_str!("mod_perl/filters.conf")) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(ours, theirs, "{row}\n{log}");
    }
}

/// Apache2_4::AuthCookie before files, as Debian has it. No other name of a file, and no other
/// method, leads around it.
#[test]
fn a_gate_decides_about_files_as_under_apache() {
    if !peer::has_perl("Apache::AuthCookie::Util", "libapache2-authcookie-perl") {
        return;
    }
    let rows = include_str!("mod_perl/gate.txt");
    let folder = Folder::new();
    copy_files(&folder);
    folder.write("docs/private/index.html", "secret index");
    let forebay = serve(folder, include_str!("mod_perl/gate.toml"));
    let address: Address = forebay.address.into();
    let ours = answers(&address, rows);
    let log = forebay.output();
    for path in [
        "/private/page.txt",
        "/private/",
        "/private",
        "/private/index.html",
        "/%70rivate/%70age.txt",
        "//private/page.txt",
        "/private//page.txt",
        "/./private/./page.txt",
        "/none/../private/page.txt",
        "/none/%2e%2e/private/page.txt",
        "/private%2Fpage.txt",
        "/private%5Cpage.txt",
        "/PRIVATE/page.txt",
        "/private/page.txt/",
        "/private/page.txt;x",
        "/open?to=/private/page.txt",
        "/login/../private/page.txt",
    ] {
        for method in ["GET", "HEAD", "POST", "OPTIONS", "PROPFIND", "TRACE", "get"] {
            for cookie in
                ["", " Cookie=Members%5fMembers=anna:401", " Forebay-Permit=1", " Cookie=a=b"]
            {
                let reply = ask(&address, &format!("{path} {method}{cookie}"));
                let shown = String::from_utf8_lossy(&reply.body);
                // Both secret files have 12 bytes.
                let is_file = reply.header("Content-Length") == Some("12");
                assert!(!shown.contains("secret") && !is_file, "{method} {path}{cookie}: {shown}");
                assert!(!reply.headers.iter().any(|(name, _)| name.starts_with("Forebay-")));
            }
        }
    }
    // What handlers have changed reaches the next application, and clients cannot forge it.
    let seen =
        ask(&address, "/echo Cookie=Members%5fMembers=anna:398;x=y X-Group=forged X_Group=forged");
    assert_eq!(
        seen.text(),
        "user anna X-Group=staff Cookie=c=d; x=y X-Thing=none X-Many=a, b",
        "{log}"
    );
    forebay.stop();
    let Some(apache) = apache(include_str!("mod_perl/gate.conf")) else { return };
    let theirs = answers(apache.address(), rows);
    for (row, (ours, theirs)) in iter::zip(rows.lines(), iter::zip(&ours, &theirs)) {
        assert_eq!(ours, theirs, "{row}\n{log}");
    }
    assert!(ours.iter().any(|answer| answer.contains("secret page")), "{ours:?}");
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
        ("/t/bad?traces", 200),
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

#[test]
fn forms_and_cookies_are_read_as_by_libapreq2() {
    let forebay = forebay();
    let address: Address = forebay.address.into();
    let text = |row: &str| ask(&address, row).text().to_owned();
    assert_eq!(
        text("/f/params?a=1&a=2;b=x%20y+z"),
        "names a b\na (1),(2) (1)\nnone  undef\nbody  uri /f/params again (1),(2)\n\
         APR::Table a=1,2|a=1,2|b=x y z\n"
    );
    assert_eq!(
        form(&address, "/f/params?a=1", "application/x-www-form-urlencoded", b"a=9&c=%41+b&d"),
        "names a c d\na (1),(9) (1)\nnone  undef\nbody (9) uri /f/params again (1),(9)\n\
         APR::Table a=1,9|a=1,9|c=A b|d=\n"
    );
    let cookies = ask(&address, "/f/cookies Cookie=e=%22f+g");
    assert_eq!(
        cookies.headers_named("Set-Cookie"),
        ["sid=a+b&c%26d; path=/shop; domain=.example.org; secure; HttpOnly"]
    );
    let multipart = "multipart/form-data; boundary=\"b-b\"";
    let part = |name: &str, file: &str, content: &[u8]| {
        let head = format!(
            "--b-b\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\
             Content-Type: text/x-own; charset=x\r\n\r\n"
        );
        [head.as_bytes(), content, b"\r\n"].concat()
    };
    // An upload that stays in memory, and one that goes to a file. Both have almost delimiters.
    for size in [3, 70_000, 300_000, 2_000_000] {
        let content = [b"first\n\r\n--b-\r\n-".as_slice(), &vec![b'y'; size]].concat();
        let body = [
            part("text", "", b"hello"),
            part("up", "; filename=\"a \\\"b.txt\"", &content),
            b"--b-b--\r\n".to_vec(),
        ];
        let length = content.len();
        let sum = content.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!(
            form(&address, "/f/uploads", multipart, &body.concat()),
            format!(
                "text (hello)\nup a \"b.txt text/x-own {length} {length} {sum}\nline 6 name temporary\n"
            )
        );
    }
    let many = (0..20_000).flat_map(|_| part("n", "", b"v")).collect::<Vec<u8>>();
    for (body, answer) in [
        (b"".as_slice(), "malformed"),
        (b"--b-b", "malformed"),
        (b"--b-b\r\nno head", "malformed"),
        (b"--b-b\r\n\r\nunnamed\r\n--b-b--", "undef  read"),
        (&many, "larger"),
        (&[b'x'; 101], "larger"),
    ] {
        let seen = form(&address, "/f/limited", multipart, body);
        assert!(seen.contains(answer), "{:?}: {seen}", body.escape_ascii().to_string());
    }
    assert!(!form(&address, "/f/params", multipart, &many).contains("names"), "too many parts");
    forebay.stop();
}

fn form(address: &Address, path: &str, kind: &str, body: &[u8]) -> String {
    let mut client = Client::connect(address);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(body);
    String::from_utf8_lossy(&client.reply().body).into_owned()
}

fn forebay() -> Forebay {
    let folder = Folder::new();
    copy_files(&folder);
    serve(folder, include_str!("mod_perl/forebay.toml"))
}

fn copy_files(folder: &Folder) {
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir_all(folder.path().join("docs/pictures")).unwrap();
    for dir in
        ["lib", "lib/Dispatched", "docs", "docs/perl", "docs/mason", "docs/private", "docs/asp"]
    {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mod_perl").join(dir);
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{dir}/{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
            } else if name.ends_with(".pl") && !name.ends_with("closed.pl") {
                folder.script(&name, fs::read(entry.path()).unwrap());
            } else {
                folder.write(&name, fs::read(entry.path()).unwrap());
            }
        }
    }
}

fn in_directory(conf: &str, dir: &str) -> String {
    conf.replace("{dir}", dir)
}

/// Starts Apache with one process, so that each request comes to the process of the one before.
fn apache(conf: &str) -> Option<Peer> {
    let folder = Folder::new();
    copy_files(&folder);
    prepare_sessions(&folder);
    let dir = folder.path().to_str().unwrap().to_owned();
    let conf = in_directory(conf, &dir);
    let modules = [
        "access_compat",
        "alias",
        "auth_basic",
        "authn_core",
        "authz_host",
        "authz_user",
        "dir",
        "mime",
        "perl",
    ];
    let peer = peer::apache(&modules, &conf);
    KEPT.with(|kept| kept.borrow_mut().push(folder));
    peer
}

thread_local! {
    static KEPT: std::cell::RefCell<Vec<Folder>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn answers(address: &Address, rows: &str) -> Vec<String> {
    rows.lines().map(|row| describe(&ask(address, row))).collect()
}

fn ask(address: &Address, row: &str) -> Reply {
    let mut words = row.split(' ');
    let path = words.next().unwrap_or_default();
    let (mut method, mut body, mut fields) = ("GET", None, String::new());
    let mut kind = "text/plain";
    for word in words {
        if let Some(length) = word.strip_prefix("POST:") {
            let length: usize = length.parse().unwrap();
            body = Some((0..length).map(|at| char::from(b'a' + (at % 23) as u8)).collect());
        } else if let Some(form) = word.strip_prefix("FORM:") {
            kind = "application/x-www-form-urlencoded";
            body = Some(form.to_owned());
        } else if let Some(method) = word.strip_prefix("SOAP:") {
            kind = "text/xml";
            fields.push_str(&format!("SOAPAction: \"Counter#{method}\"\r\n"));
            body = Some(soap(method));
        } else if let Some(lines) = word.strip_prefix("LINES:") {
            body = Some(lines.replace('|', "\n"));
        } else if let Some((name, value)) = word.split_once('=') {
            fields
                .push_str(&format!("{name}: {}\r\n", value.replace('_', " ").replace("%5f", "_")));
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
        head.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()));
    }
    let mut client = Client::connect(address);
    client.send(format!("{head}\r\n{}", body.unwrap_or_default()));
    if method == "HEAD" { client.reply_to_head() } else { client.reply() }
}

/// Returns a call of SOAP with the numbers 40 and 2.
fn soap(method: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><soap:Envelope xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\" \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\"><soap:Body><{method} xmlns=\"Counter\">\
         <a xsi:type=\"xsd:int\">40</a><b xsi:type=\"xsd:int\">2</b></{method}></soap:Body></soap:Envelope>"
    )
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

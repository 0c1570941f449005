//! `examples/connectors`: no request hangs, and no part of a reply looks like a whole one.

mod support;

use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{self, Peer, UwsgiApp, UwsgiSocket};
use forebay_testkit::stream::Address;

const PSGI: &str = "sub { [200, ['Content-Type' => 'text/plain'], ['x' x 5000]] }";
const WSGI: &str = "def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [b'x' * 2500, b'y' * 2500]
";
const HANDLER: &str = r#"<%@ WebHandler Language="C#" Class="Hello" %>
using System.Web;
public class Hello : IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(HttpContext context) { context.Response.Write(new string('x', 5000)); }
}
"#;
const PAGE: (&str, &str) = (
    "ok.jsp",
    r#"<%@ page session="false" %><% for (int n = 0; n < 500; n++) out.print("0123456789"); %>"#,
);

/// The address of a peer, as a configuration names it.
fn at(peer: &Peer) -> String {
    match peer.address() {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// Runs the example with these arguments, and returns its table.
fn table_of(arguments: &[String]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/connectors/run.py");
    let mut command = Command::new("python3");
    command.arg(script).arg("--forebay").arg(support::program()).args(["--requests", "3"]);
    let output = command.args(arguments).output().expect("python3 is installed");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{table}\n{}", String::from_utf8_lossy(&output.stderr));
    table
}

#[test]
fn slow_and_broken_backends_give_whole_replies_or_errors() {
    let table = table_of(&[]);
    assert_eq!(table.lines().count(), 32, "{table}");
}

#[test]
fn real_backends_give_whole_replies_to_all_kinds_of_clients() {
    let folder = Folder::new();
    let php = folder.write("page.php", "<?php echo str_repeat('x', 5000);");
    folder.script("page.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%05000d' 1\n");
    let psgi = folder.write("app.psgi", PSGI);
    let wsgi = UwsgiApp::Wsgi(WSGI);
    let site = Folder::new();
    site.write("page.ashx", HANDLER);
    let Some(fpm) = peer::php_fpm(2) else { return };
    let Some(fcgiwrap) = peer::fcgiwrap(2) else { return };
    let Some(mono) = peer::mono_fastcgi_tcp(&site, &[]) else { return };
    let Some(starman) = peer::starman(&psgi) else { return };
    let Some(starlet) = peer::starlet(&psgi) else { return };
    let Some(plack) = peer::plack_fastcgi(&psgi) else { return };
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Uwsgi, wsgi) else { return };
    let Some(scgi) = peer::uwsgi_tcp(UwsgiSocket::Scgi, wsgi) else { return };
    let Some(tomcat) = peer::tomcat(&[PAGE], "secretRequired=\"false\"", "t1") else { return };
    let Some(jetty) = peer::jetty_http2(&[PAGE], 100) else { return };
    let root = php.parent().expect("a folder").display();
    let fastcgi = |to: &str, keys: &str| format!("fastcgi = {{ to = \"{to}\", {keys} }}");
    let rows = [
        ("php-fpm", "/page.php", fastcgi(&at(&fpm), &format!("root = \"{root}\""))),
        (
            "fcgiwrap",
            "/page.cgi",
            fastcgi(&at(&fcgiwrap), &format!("root = \"{root}\", scripts = \".cgi\"")),
        ),
        (
            "fastcgi-mono-server4",
            "/page.ashx",
            fastcgi(&at(&mono), &format!("root = \"{}\", scripts = \"*\"", site.path().display())),
        ),
        ("Starman", "/", format!("proxy = \"http://{}\"", at(&starman))),
        ("Starlet", "/", format!("proxy = \"http://{}\"", at(&starlet))),
        ("Plack, FastCGI", "/", fastcgi(&at(&plack), "mount = \"/\"")),
        ("uWSGI", "/", format!("uwsgi = {{ to = \"{}\" }}", at(&uwsgi))),
        ("uWSGI, SCGI", "/", format!("scgi = {{ to = \"{}\" }}", at(&scgi))),
        ("Tomcat, AJP", "/ok.jsp", format!("ajp = {{ to = \"{}\" }}", at(&tomcat))),
        ("Jetty, HTTP/2", "/ok.jsp", format!("proxy = \"h2c://{}\"", at(&jetty))),
    ];
    let arguments = rows.iter().flat_map(|(name, path, route)| {
        ["--backend".to_owned(), (*name).to_owned(), (*path).to_owned(), route.clone()]
    });
    let table = table_of(&arguments.collect::<Vec<_>>());
    println!("{table}");
    assert_eq!(table.lines().count(), 32 + rows.len(), "{table}");
}

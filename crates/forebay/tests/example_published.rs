//! The configurations of `examples/published/configurations` serve the same after an import.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;
use support::Forebay;

/// Answers every URL, as ServiceStack does, and says what it sees.
const SERVICE: &str = r#"using System.Web;
public class Service : IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(HttpContext context) {
        var request = context.Request;
        context.Response.ContentType = "text/plain";
        context.Response.Write(string.Join("\n", request.HttpMethod, request.Path, request.FilePath, request.PathInfo,
            request.RawUrl, request.QueryString["n"], request.ContentLength, request.Form["name"],
            request.UserHostAddress, request.Url.Host, request.PhysicalPath,
            request.ServerVariables["SCRIPT_NAME"], request.ServerVariables["SERVER_NAME"],
            request.ServerVariables["HTTP_HOST"]));
    }
}
"#;

const ALL_URLS: &str = "<configuration><system.web><httpHandlers>\
    <add path=\"*\" verb=\"*\" type=\"Service\"/></httpHandlers></system.web></configuration>";

const SCRIPT: &str = r#"#!/usr/bin/perl
use CGI;
our $count; $count++;
my $q = CGI->new;
print "Content-Type: text/plain\n\n", join("\n", map { $_ // "" } @ENV{qw(REQUEST_METHOD SCRIPT_NAME PATH_INFO
    QUERY_STRING SERVER_NAME REMOTE_ADDR GATEWAY_INTERFACE CONTENT_LENGTH)}, $q->param("name"), $started::up,
    $count > 1 ? "kept" : ""), "\n";
"#;

/// Returns a configuration of the example, with these texts in place of its directories.
fn example(name: &str, fill: &[(&str, &str)]) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/published/configurations");
    let text = fs::read_to_string(dir.join(name)).unwrap();
    fill.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

/// Imports a configuration, and serves it on a free port. `moved` has further texts to replace.
fn imported(language: &str, text: &str, listen: &str, moved: &[(&str, &str)]) -> Forebay {
    let folder = Folder::new();
    let file = folder.write("imported.conf", text);
    let output =
        Command::new(support::program()).args(["import", language]).arg(file).output().unwrap();
    let toml = String::from_utf8(output.stdout).unwrap();
    assert!(!toml.contains("The route is closed"), "{toml}");
    let toml = moved.iter().fold(toml, |toml, (from, to)| toml.replace(from, to));
    support::serve(folder, &toml.replace(&format!("\"{listen}\""), "\"127.0.0.1:0\""))
}

fn application() -> Folder {
    let folder = Folder::new();
    folder.write("App_Code/Service.cs", SERVICE);
    folder.write("web.config", ALL_URLS);
    folder
}

fn tcp(peer: &Peer) -> String {
    match peer.address() {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => panic!("{} is no port", path.display()),
    }
}

/// The requests of one client: pages without files, queries, forms.
fn requests(host: &str, paths: &[&str]) -> Vec<String> {
    let head = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    let form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 6\r\n\r\nname=x";
    (0..5)
        .flat_map(|n| {
            let both = |path: &&str| {
                let path = format!("{path}?n={n}");
                [format!("{}\r\n", head("GET", &path)), format!("{}{form}", head("POST", &path))]
            };
            paths.iter().flat_map(both).collect::<Vec<_>>()
        })
        .collect()
}

fn ask(client: &mut Client, request: &str) -> Reply {
    client.send(request);
    client.reply()
}

const PAGES: [&str; 6] = ["/", "/hello/world", "/metadata", "/dir/", "/a%20b", "/none.aspx"];

#[test]
fn service_stack_behind_nginx_and_fastcgi_mono_server() {
    let site = application();
    let Some(mono) = peer::mono_fastcgi_tcp(&site, &[]) else { return };
    let root = site.path().display().to_string();
    let text = example("nginx-fastcgi-mono.conf", &[("SITE", &root)]);
    let at = tcp(&mono);
    let original =
        text.replace("127.0.0.1:8081", "127.0.0.1:{port}").replace("127.0.0.1:9000", &at);
    let Some(nginx) = peer::nginx(&original) else { return };
    let forebay = imported("nginx", &text, "127.0.0.1:8081", &[("127.0.0.1:9000", &at)]);
    let (mut old, mut new) = (Client::connect(nginx.address().clone()), forebay.connect());
    for request in requests("ssbench", &PAGES) {
        let (old, new) = (ask(&mut old, &request), ask(&mut new, &request));
        assert_eq!(old.status, 200, "{request}{}", old.text());
        assert_eq!((new.status, new.text()), (old.status, old.text()), "{request}");
    }
    forebay.stop();
}

#[test]
fn service_stack_behind_apache_with_mod_mono() {
    if !peer::has_mono() {
        return;
    }
    let site = application();
    let root = site.path().display().to_string();
    let text = example("apache-mod-mono.conf", &[("SITE", &root)]);
    // The test's frame has the modules and the address.
    let own = ["Listen", "LoadModule"];
    let kept = text.lines().filter(|line| !own.iter().any(|name| line.starts_with(name)));
    // mod_mono's server runs as Debian's user for web servers.
    let socket = Folder::new();
    fs::set_permissions(socket.path(), Permissions::from_mode(0o777)).unwrap();
    let line = format!("MonoUnixSocket ssbench3 {}/mono\n", socket.path().display());
    let original = line + &kept.collect::<Vec<_>>().join("\n");
    let original = original.replace("ssbench3:8082", "127.0.0.1:{port}");
    let modules = ["access_compat", "authz_host", "filter", "deflate", "setenvif", "mono"];
    let Some(apache) = peer::apache(&modules, &original) else { return };
    let forebay = imported("apache", &text, "127.0.0.1:8082", &[]);
    let (mut old, mut new) = (Client::connect(apache.address().clone()), forebay.connect());
    for request in requests("ssbench3", &PAGES) {
        let (old, new) = (ask(&mut old, &request), ask(&mut new, &request));
        assert_eq!(old.status, 200, "{request}{}", old.text());
        // mod_mono passes RawUrl decoded, other servers as the client sent it.
        let raw_url = |text: &str| text.replace("/a b?", "/a%20b?");
        assert_eq!((new.status, new.text()), (200, &*raw_url(old.text())), "{request}");
    }
    forebay.stop();
}

#[test]
fn scripts_behind_nginx_and_apache_with_mod_perl() {
    let folder = Folder::new();
    folder.script("cgi-bin/show.cgi", SCRIPT);
    folder.write("cgi-bin/logo.png", "png");
    folder.write("startup.pl", "package started; our $up = 'up'; 1;\n");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (scripts, startup) = (path("cgi-bin"), path("startup.pl"));
    let fill = [("SCRIPTS", scripts.as_str()), ("STARTUP", startup.as_str())];
    let text = example("apache-mod-perl.conf", &fill);
    // The test's frame has the processes, and Debian's tests no mod_rpaf.
    let own = ["Listen", "LoadModule", "RPAF", "Start", "Min", "Max", "PerlModule Apache::DBI"];
    let kept = text.lines().filter(|line| !own.iter().any(|name| line.starts_with(name)));
    let original =
        kept.collect::<Vec<_>>().join("\n").replace("127.0.0.1:8083", "127.0.0.1:{port}");
    let modules = ["alias", "env", "authz_host", "access_compat", "perl"];
    let Some(apache) = peer::apache(&modules, &original) else { return };
    let forebay = imported("apache", &text, "127.0.0.1:8083", &[]);
    let (mut old, mut new) = (Client::connect(apache.address().clone()), forebay.connect());
    for request in requests("mirror.example", &["/perl/show.cgi", "/perl/show.cgi/more"]) {
        let (old, new) = (ask(&mut old, &request), ask(&mut new, &request));
        let (old, new) =
            [old, new].map(|reply| (reply.status, reply.text().replace("kept", ""))).into();
        assert_eq!(new, old, "{request}{}", forebay.output());
        assert_eq!(new.0, 200);
        assert!(new.1.contains("\nup\n"), "{}", new.1);
    }
    // The front names its client.
    let front = example("nginx-front.conf", &fill);
    let backend = forebay.address.to_string();
    let front = imported("nginx", &front, "127.0.0.1:8084", &[("127.0.0.1:8083", &backend)]);
    let request = "GET /perl/show.cgi?x HTTP/1.1\r\nHost: mirror.example\r\n\r\n";
    let reply = front.ask(request);
    assert_eq!(reply.status, 200, "{}", front.output());
    assert!(reply.text().contains("GET\n/perl/show.cgi\n\nx\nmirror.example\n127.0.0.1\n"));
    let claimed = "GET /perl/show.cgi HTTP/1.1\r\nHost: mirror.example\r\n\
                   X-Forwarded-For: 203.0.113.7\r\n\r\n";
    assert!(forebay.ask(claimed).text().contains("\n203.0.113.7\n"));
    let logo = front.ask("GET /logo.png HTTP/1.1\r\nHost: mirror.example\r\n\r\n");
    assert_eq!((logo.status, logo.text()), (200, "png"));
    assert_eq!(logo.header("cache-control"), Some("max-age=2592000"));
    front.stop();
    forebay.stop();
}

//! Applications that check their server (Plack::Test::Suite, wsgiref.validate, Rack::Lint): in
//! Forebay's workers over each protocol of clients and after other web servers, in CGI scripts, and
//! in application servers. More servers of Plack are in `serve_psgi_plack.rs`.

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{self, Peer, UwsgiApp, UwsgiSocket};
use forebay_testkit::tls::Authority;
use support::checkers::{Front, PLACK_SUITE, RACK, WSGI, has_plack_suite};
use support::http3::write_identity;
use support::http3_bridge::Bridge;
use support::{Forebay, serve, site};

/// Plack::Test::Suite expects "HTTP/1.1" or "HTTP/1.0". SERVER_PROTOCOL is "HTTP/2.0" over HTTP/2.
const EXPECTS_HTTP_1: &[&str] = &["SERVER_PROTOCOL is required"];

/// Two workers for PSGI, one for WSGI below `/wsgi`, and one for Rack below `/rack`.
const APPLICATIONS: &str = "
    [[site.route]]
    path = \"/wsgi/*\"
    app = \"wsgi\"
    [[site.route]]
    path = \"/rack/*\"
    app = \"rack\"
    [[site.route]]
    path = \"/*\"
    app = \"psgi\"
    [app.psgi]
    kind = \"psgi\"
    file = \"app.psgi\"
    workers = 2
    [app.wsgi]
    kind = \"wsgi\"
    dir = \".\"
    module = \"checked:application\"
    python = \"/usr/bin/python3\"
    workers = 1
    [app.rack]
    kind = \"rack\"
    file = \"config.ru\"
    workers = 1
";

/// A Forebay with all applications.
struct Host {
    forebay: Forebay,
    authority: Arc<Authority>,
    tls: SocketAddr,
    ajp: SocketAddr,
}

impl Host {
    fn start() -> Option<Self> {
        if !has_plack_suite() || !peer::has(&["python3", "ruby", "ruby-rack"]) {
            return None;
        }
        let authority = Arc::new(Authority::new("of the test"));
        let folder = Folder::new();
        write_identity(&folder, &authority.issue(&["localhost"]));
        folder.write("app.psgi", PLACK_SUITE);
        folder.write("checked.py", WSGI);
        folder.write("config.ru", RACK);
        let mut forebay = serve(
            folder,
            &format!(
                "[[site]]\nlisten = [\"127.0.0.1:0\", \"https://127.0.0.1:0\", \"ajp://127.0.0.1:0\"]\n\
                 http3 = true\najp_secret = \"word\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
                 merge_slashes = false\n\
                 tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n{APPLICATIONS}"
            ),
        );
        let tls = forebay.listener("https");
        let ajp = forebay.listener("ajp");
        Some(Self { forebay, authority, tls, ajp })
    }

    fn pass_all(&self, front: &Front) {
        front.pass_plack_suite();
        front.pass_requests("/wsgi");
        front.pass_requests("/rack");
    }
}

#[test]
fn hosts_pass_over_each_protocol_of_clients_and_through_another_forebay() {
    let Some(host) = Host::start() else { return };
    let (plain, tls) = (host.forebay.address, host.tls.port());
    host.pass_all(&Front::of(plain, "HTTP/1.1"));
    let over_tls =
        format!("\"https://localhost:{tls}\", http_version = \"2\", tls = {{ ca = \"ca.pem\" }}");
    for (to, server_port, skipped, what) in [
        (format!("\"http://{plain}\""), plain.port(), &[][..], "another Forebay"),
        (format!("\"h2c://{plain}\""), plain.port(), EXPECTS_HTTP_1, "another Forebay, h2c"),
        (over_tls, tls, EXPECTS_HTTP_1, "another Forebay, HTTP/2 over TLS"),
    ] {
        let folder = Folder::new();
        folder.write("ca.pem", &host.authority.pem);
        let keys = format!("to = {to}, host = \"client\"");
        let route =
            format!("merge_slashes = false\n[[site.route]]\npath = \"/*\"\nproxy = {{ {keys} }}\n");
        let front = site(folder, &route);
        host.pass_all(&Front { what, address: front.address, server_port, skipped });
        front.stop();
    }
    let bridge = Bridge::start(host.tls, Arc::clone(&host.authority));
    host.pass_all(&Front {
        what: "HTTP/3",
        address: bridge.address(),
        server_port: tls,
        skipped: EXPECTS_HTTP_1,
    });
    bridge.stop();
    host.forebay.stop();
}

#[test]
fn hosts_pass_after_other_web_servers() {
    let Some(host) = Host::start() else { return };
    let to = host.forebay.address.port();
    let nginx = format!(
        "server {{ listen 127.0.0.1:{{port}}; merge_slashes off;\n\
         location / {{ proxy_pass http://127.0.0.1:{to}; proxy_http_version 1.1;\n\
         proxy_set_header Host $http_host; proxy_set_header Connection \"\";\n\
         proxy_set_header X-Forwarded-For $remote_addr; }} }}"
    );
    let haproxy = format!(
        "frontend f\nbind 127.0.0.1:{{port}}\noption forwardfor\ndefault_backend b\n\
         backend b\nserver s 127.0.0.1:{to}\n"
    );
    let caddy = format!("http://127.0.0.1:{{port}} {{\nreverse_proxy h2c://127.0.0.1:{to}\n}}\n");
    let apache = format!(
        "MergeSlashes Off\nAllowEncodedSlashes NoDecode\n\
         ProxyPass / ajp://127.0.0.1:{}/ secret=word nocanon\n",
        host.ajp.port()
    );
    let fronts: [(&str, Option<Peer>, &[&str]); 4] = [
        ("nginx", peer::nginx(&nginx), &[]),
        ("HAProxy", peer::haproxy(&haproxy), &[]),
        ("Caddy, h2c", peer::caddy(&caddy, &[]), EXPECTS_HTTP_1),
        // mod_proxy_ajp removes one of the two slashes at the start of a path.
        ("Apache, AJP", peer::apache(&["proxy", "proxy_ajp"], &apache), &["repeated slashes"]),
    ];
    for (what, front, skipped) in fronts {
        let Some(front) = front else { continue };
        let address = (Ipv4Addr::LOCALHOST, front.port()).into();
        // AJP carries the port of the web server.
        let server_port = if what.ends_with("AJP") { front.port() } else { to };
        host.pass_all(&Front { what, address, server_port, skipped });
        front.stop();
    }
    host.forebay.stop();
}

#[test]
fn cgi_scripts_pass() {
    if !peer::has(&["python3", "ruby", "ruby-rack"]) {
        return;
    }
    let folder = Folder::new();
    folder.write("checked.py", WSGI);
    folder.write("config.ru", RACK);
    folder.script(
        "wsgi.cgi",
        "#!/usr/bin/python3\nfrom wsgiref.handlers import CGIHandler\n\
         from checked import application\nCGIHandler().run(application)\n",
    );
    folder.script(
        "rack.cgi",
        "#!/usr/bin/ruby\nrequire 'rack'\nrequire 'uri'\n\
         Rack::Handler::CGI.run(Rack::Builder.parse_file(\"#{__dir__}/config.ru\").first)\n",
    );
    let forebay = site(
        folder,
        "merge_slashes = false\n\
         [[site.route]]\npath = \"/wsgi/*\"\ncgi = { program = \"wsgi.cgi\" }\n\
         [[site.route]]\npath = \"/rack/*\"\ncgi = { program = \"rack.cgi\" }\n",
    );
    Front::of(forebay.address, "WSGI, CGI").pass_requests("/wsgi");
    Front::of(forebay.address, "Rack, CGI").pass_requests("/rack");
    forebay.stop();
}

/// Serves one application server.
fn front_of(protocol: &str, server: &Peer, keys: &str) -> Forebay {
    let to = server.port();
    let route = format!(
        "merge_slashes = false\n[[site.route]]\npath = \"/*\"\n\
         {protocol} = {{ to = \"127.0.0.1:{to}\"{keys} }}\n"
    );
    site(Folder::new(), &route)
}

#[test]
fn applications_in_uwsgi_pass_over_each_protocol() {
    for (protocol, speaks, keys) in [
        ("uwsgi", UwsgiSocket::Uwsgi, ""),
        ("scgi", UwsgiSocket::Scgi, ""),
        ("fastcgi", UwsgiSocket::Fastcgi, ", mount = \"\""),
    ] {
        let Some(uwsgi) = peer::uwsgi_tcp(speaks, UwsgiApp::Wsgi(WSGI)) else { return };
        let forebay = front_of(protocol, &uwsgi, keys);
        Front::of(forebay.address, protocol).pass_requests("");
        forebay.stop();
        uwsgi.stop();
        if !has_plack_suite() {
            continue;
        }
        let Some(uwsgi) = peer::uwsgi_tcp(speaks, UwsgiApp::Psgi(PLACK_SUITE)) else { continue };
        let forebay = front_of(protocol, &uwsgi, keys);
        Front::of(forebay.address, protocol).pass_plack_suite();
        forebay.stop();
        uwsgi.stop();
    }
}

#[test]
fn racks_fastcgi_handler_passes() {
    let folder = Folder::new();
    let Some(rack) = peer::rack_fastcgi(&folder.write("config.ru", RACK)) else { return };
    let forebay = front_of("fastcgi", &rack, ", mount = \"\"");
    Front::of(forebay.address, "Rack, FastCGI").pass_requests("");
    forebay.stop();
    rack.stop();
}

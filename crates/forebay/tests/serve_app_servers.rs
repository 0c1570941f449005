//! `forebay serve` with applications that speak SCGI and uwsgi: uWSGI over both, and a server of a
//! few lines.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer, UwsgiApp, UwsgiSocket};
use forebay_testkit::process::Process;
use forebay_testkit::stream::Address;
use support::{Forebay, chunked, pattern, site};

const WSGI: &str = "
def application(environ, start_response):
    path = environ['PATH_INFO']
    if path == '/dump':
        lines = [f'{k}={v}' for k, v in sorted(environ.items())
                 if isinstance(v, str) and k.isupper()]
        start_response('200 OK', [('Content-Type', 'text/plain')])
        return [('\\n'.join(lines)).encode('latin-1')]
    if path == '/echo':
        body = environ['wsgi.input'].read()
        start_response('201 Made', [('Content-Length', str(len(body))), ('X-A', 'b')])
        return [body]
    if path == '/ignore':
        start_response('200 OK', [('Content-Length', '7')])
        return [b'ignored']
    if path == '/large':
        start_response('200 OK', [])
        return (b'x' * 1000 for _ in range(3000))
    start_response('200 OK', [])
    return [('hello ' + environ['QUERY_STRING']).encode()]
";

const PSGI: &str = "sub {
    my $env = shift;
    my $text = join '|', map $env->{$_}, qw(REQUEST_METHOD SCRIPT_NAME PATH_INFO QUERY_STRING);
    [200, ['Content-Type' => 'text/plain'], [$text]];
};";

fn route(protocol: &str, address: &Address, keys: &str) -> String {
    let to = match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    };
    format!("[[site.route]]\n{protocol} = {{ to = \"{to}\"{keys} }}\n")
}

fn front_of(protocol: &str, peer: &Peer, keys: &str) -> Forebay {
    site(Folder::new(), &route(protocol, peer.address(), keys))
}

/// Runs a check against uWSGI over both protocols, each over Unix sockets and TCP.
fn over_all(check: impl Fn(&Forebay)) {
    for (protocol, speaks) in [("scgi", UwsgiSocket::Scgi), ("uwsgi", UwsgiSocket::Uwsgi)] {
        for start in [peer::uwsgi, peer::uwsgi_tcp] {
            let Some(uwsgi) = start(speaks, UwsgiApp::Wsgi(WSGI)) else { return };
            let forebay = front_of(protocol, &uwsgi, "");
            check(&forebay);
            forebay.stop();
        }
    }
}

#[test]
fn bodies_arrive_exactly() {
    let body = pattern(1_000_000);
    over_all(|forebay| {
        let mut client = forebay.connect();
        for length in [0, 1, 46_000, 65_535, 65_536, 1_000_000] {
            client.send(format!(
                "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body[..length]);
            let reply = client.reply();
            assert!(reply.body == body[..length], "{length}: {}", forebay.output());
            assert_eq!((reply.status, reply.header("X-A")), (201, Some("b")));
            client.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&body[..length].chunks(10_007).collect::<Vec<_>>()));
            assert!(client.reply().body == body[..length], "chunked {length}");
        }
        let large = client.get("/large");
        assert!(large.body == [b'x'; 3_000_000]);
    });
}

#[test]
fn a_body_that_nobody_reads_is_no_obstacle() {
    let body = pattern(900_000);
    over_all(|forebay| {
        for _ in 0..5 {
            let mut client = forebay.connect();
            let length = body.len();
            client.send(format!(
                "POST /ignore HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body);
            assert_eq!(client.reply().text(), "ignored", "{}", forebay.output());
        }
    });
}

#[test]
fn many_requests_of_many_clients() {
    over_all(|forebay| {
        thread::scope(|scope| {
            for client in 0..8 {
                scope.spawn(move || {
                    let mut connection = forebay.connect();
                    for n in 0..60 {
                        let reply = connection.get(&format!("/?{client}-{n}"));
                        assert_eq!(reply.text(), format!("hello {client}-{n}"));
                    }
                });
            }
        });
        let mut client = forebay.connect();
        client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.reply_to_head().status, 200);
        assert_eq!(client.get("/?2").text(), "hello 2");
    });
}

#[test]
fn applications_see_what_they_see_behind_nginx() {
    for (protocol, speaks) in [("scgi", UwsgiSocket::Scgi), ("uwsgi", UwsgiSocket::Uwsgi)] {
        let Some(uwsgi) = peer::uwsgi(speaks, UwsgiApp::Wsgi(WSGI)) else { return };
        let Some(forebay) = compare_with_nginx(protocol, &uwsgi) else { return };
        forebay.stop();
    }
}

fn compare_with_nginx(protocol: &str, uwsgi: &Peer) -> Option<Forebay> {
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; server_name localhost; root /srv;\n\
         location / {{ include /etc/nginx/{protocol}_params;\n\
         {protocol}_param PATH_INFO $document_uri; {protocol}_param SCRIPT_NAME \"\";\n\
         {protocol}_pass unix:{}; }} }}",
        uwsgi.socket().display(),
    );
    let nginx = peer::nginx(&conf)?;
    let keys = ", root = \"{tmp}\"";
    let forebay = front_of(protocol, uwsgi, keys);
    for request in [
        "GET /dump HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /%64ump?a=b%20c HTTP/1.1\r\nHost: localhost\r\nX-Thing: 1\r\nCookie: a=b\r\n\
         Accept: */*\r\nUser-Agent: test\r\nX_Under: no\r\nConnection: close\r\n\r\n",
        "POST /dump?q HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
         Content-Length: 3\r\n\r\nabc",
    ] {
        let ours = dump(&forebay.address.into(), request);
        let theirs = dump(nginx.address(), request);
        for (name, value) in &theirs {
            assert_eq!(ours.get(name), Some(value), "{name} of {protocol}: {request}");
        }
        let more: Vec<_> = ours.keys().filter(|name| !theirs.contains_key(*name)).collect();
        let of_ours = ["DOCUMENT_URI", "GATEWAY_INTERFACE", "SERVER_ADDR", "SERVER_SOFTWARE"];
        assert!(more.iter().all(|name| of_ours.contains(&name.as_str())), "{protocol}: {more:?}");
    }
    Some(forebay)
}

/// Returns the variables by name. Leaves out those that depend on the server and those that nginx
/// adds: empty ones, and fields about the body with a second name.
fn dump(address: &Address, request: &str) -> BTreeMap<String, String> {
    let mut client = Client::connect(address.clone());
    client.send(request);
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    let differ = ["DOCUMENT_ROOT", "REMOTE_PORT", "SERVER_PORT"];
    let added = ["HTTP_CONTENT_LENGTH", "HTTP_CONTENT_TYPE"];
    let lines = reply.text().lines().filter_map(|line| line.split_once('='));
    let kept = lines.filter(|(name, value)| {
        !differ.contains(name) && !added.contains(name) && !value.is_empty()
            // nginx also sends this for a request without a body.
            && (*name, *value) != ("CONTENT_LENGTH", "0")
    });
    kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_mounted_psgi_application() {
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Uwsgi, UwsgiApp::Psgi(PSGI)) else { return };
    let forebay = front_of("uwsgi", &uwsgi, ", modifier1 = 5, mount = \"/shop\"");
    for (target, text) in [
        ("/shop/a%20b?c", "GET|/shop|/a b|c"),
        ("/shop", "GET|/shop||"),
        ("/shopping", "GET||/shopping|"),
    ] {
        assert_eq!(forebay.get(target).text(), text);
    }
}

#[test]
fn applications_over_fastcgi_need_no_script_files() {
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Fastcgi, UwsgiApp::Psgi(PSGI)) else { return };
    let to = uwsgi.socket().display();
    let route = |paths: &str, mount: &str| {
        format!(
            "[[site.route]]\npaths = [{paths}]\n\
             fastcgi = {{ to = \"unix:{to}\", mount = \"{mount}\", params = {{ UWSGI_MODIFIER1 = \"5\" }} }}\n"
        )
    };
    let routes = route("\"/shop\", \"/shop/*\"", "/shop") + &route("\"/*\"", "");
    let forebay = site(Folder::new(), &routes);
    for (target, text) in [
        ("/shop/a%20b?c", "GET|/shop|/a b|c"),
        ("/shop", "GET|/shop||"),
        ("/shop/x.php/y", "GET|/shop|/x.php/y|"),
        ("/shopping/", "GET||/shopping/|"),
    ] {
        assert_eq!(forebay.get(target).text(), text, "{}", forebay.output());
    }
}

#[test]
fn the_same_application_over_fastcgi() {
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Fastcgi, UwsgiApp::Wsgi(WSGI)) else { return };
    let to = uwsgi.socket().display();
    let routes = format!(
        "[[site.route]]\nfastcgi = {{ to = \"unix:{to}\", root = \"/nonexistent\", index = \"x\" }}\n"
    );
    let folder = Folder::new();
    let root = folder.path().join("htdocs");
    folder.write("htdocs/echo", "");
    let routes = routes.replace("/nonexistent", root.to_str().unwrap());
    let forebay = site(folder, &routes);
    for n in 0..20 {
        let reply = forebay
            .ask(format!("POST /echo?{n} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"));
        // The script's name takes the whole path, so nothing is left for the application.
        assert_eq!(reply.text(), format!("hello {n}"), "{}", forebay.output());
    }
}

#[test]
fn variables_up_to_the_limit_arrive() {
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Uwsgi, UwsgiApp::Wsgi(WSGI)) else { return };
    let routes = route("uwsgi", uwsgi.address(), "");
    let configuration = format!(
        "[server.limits]\nhead_size = \"128k\"\n[[site]]\nlisten = \"127.0.0.1:0\"\n{routes}"
    );
    let forebay = support::serve(Folder::new(), &configuration);
    let ask = |length: usize| {
        let value = "v".repeat(length);
        forebay.ask(format!("GET /?a HTTP/1.1\r\nHost: h\r\nX-A: {value}\r\n\r\n")).status
    };
    // uWSGI itself accepts as much as its --buffer-size allows, which the peer sets to the maximum.
    let most = (64_000..65_535).rev().find(|&length| ask(length) != 431).expect("one that fits");
    assert_eq!(ask(most), 200, "{most}");
    assert_eq!(ask(most + 1), 431);
}

/// A typical SCGI server in Perl that uses only the modules of Perl itself.
const PERL_SCGI: &str = r#"
use strict; use IO::Socket::UNIX;
my $listener = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 64) or die "$!";
while (my $client = $listener->accept) {
    local $/ = ':';
    # A check connects and sends nothing.
    my $length = <$client> // next; chop $length;
    read $client, my $head, $length;
    read $client, my $comma, 1;
    my %env = split /\0/, $head, -1;
    read $client, my $body, $env{CONTENT_LENGTH};
    my @names = split /\0/, $head;
    print $client "Status: 200 Fine
Content-Type: text/plain

",
        "$names[0]|$comma|$env{SCGI}|$env{REQUEST_METHOD}|$env{PATH_INFO}|$env{QUERY_STRING}|$body";
}
"#;

#[test]
fn a_server_of_a_few_lines_of_perl() {
    if !peer::has(&["perl"]) {
        return;
    }
    let folder = Folder::new();
    let script = folder.write("scgi.pl", PERL_SCGI);
    let socket = folder.path().join("perl.sock");
    let mut command = Command::new("perl");
    command.arg(script).arg(&socket);
    let mut perl = Process::start(command);
    perl.wait_until_listening(Address::Unix(socket));
    let forebay = site(folder, "[[site.route]]\nscgi = { to = \"unix:{tmp}/perl.sock\" }\n");
    let text = forebay.get("/a%20b?c").text().to_owned();
    assert_eq!(text, "CONTENT_LENGTH|,|1|GET|/a b|c|");
    for n in 0..30 {
        let request = format!("POST /{n} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(forebay.ask(request).text(), format!("CONTENT_LENGTH|,|1|POST|/{n}||hello"));
    }
    forebay.stop();
}

#[test]
fn the_first_that_is_there_answers() {
    let Some(uwsgi) = peer::uwsgi(UwsgiSocket::Scgi, UwsgiApp::Wsgi(WSGI)) else { return };
    let to = uwsgi.socket().display();
    let routes =
        format!("[[site.route]]\nscgi = {{ to = [\"unix:{{tmp}}/gone\", \"unix:{to}\"] }}\n");
    let forebay = site(Folder::new(), &routes);
    for _ in 0..4 {
        let request = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(forebay.ask(request).text(), "hi");
    }
}

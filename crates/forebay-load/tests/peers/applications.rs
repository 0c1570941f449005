//! Load on applications without a web server: php-fpm, uWSGI and Tomcat.

use forebay_load::{Check, Control, Gateway, Outcome, Protocol, Spec, Stop, Url, fetch, run};
use forebay_testkit::folder::Folder;
use forebay_testkit::peer::{Peer, UwsgiApp, UwsgiSocket, php_fpm, tomcat, uwsgi};
use std::time::Duration;

/// Script that answers with the method, the query, a request field and the length of the body.
const PHP: &str = "<?php header('Content-Type: text/plain'); if ($_GET['s'] ?? 0) \
    http_response_code((int) $_GET['s']); echo $_SERVER['REQUEST_METHOD'], ' ', \
    $_SERVER['QUERY_STRING'], ' ', $_SERVER['HTTP_X_FIELD'] ?? '-', ' ', $_SERVER['X'] ?? '-', ' ', \
    strlen(file_get_contents('php://input')), \"\\n\", str_repeat('x', 100000);";

const WSGI: &str = "
def application(environ, start_response):
    body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [('%s %s %d' % (environ['REQUEST_METHOD'], environ['PATH_INFO'], len(body))).encode()]
";

fn spec(peer: &Peer, scheme: &str, target: &str, requests: u64) -> Spec {
    let url = format!("{scheme}+unix://{}:{target}", peer.socket().display());
    Spec {
        connections: 2,
        threads: 1,
        stop: Stop::Requests(requests),
        timeout: Duration::from_secs(30),
        ..Spec::new(Url::parse(&url).unwrap())
    }
}

fn without_failure(spec: &Spec) -> Outcome {
    let outcome = run(spec, &Control::default()).unwrap();
    let requests = &outcome.requests;
    assert_eq!((requests.completed, requests.failed), (requests.sent, 0), "{outcome:?}");
    outcome
}

fn says(text: &str) -> Option<Check> {
    Some(Check { status: 200, body_contains: Some(text.into()) })
}

#[test]
fn php_fpm_is_loaded_over_fastcgi_with_and_without_kept_connections() {
    let Some(peer) = php_fpm(2) else { return };
    let folder = Folder::new();
    folder.write("page.php", PHP);
    let variables = vec![("X".to_owned(), "of ours".to_owned())];
    for keepalive in [true, false] {
        let spec = Spec {
            method: "POST".into(),
            body: vec![b'b'; 70_000],
            headers: vec![("X-Field".into(), "seen".into())],
            gateway: Gateway {
                root: Some(folder.path().display().to_string()),
                variables: variables.clone(),
                ..Gateway::default()
            },
            check: says("POST a=b seen of ours 70000\n"),
            keepalive,
            ..spec(&peer, "fcgi", "/page.php?a=b", 100)
        };
        let outcome = without_failure(&spec);
        assert_eq!(outcome.protocol, Protocol::Fastcgi);
        assert_eq!(outcome.requests.status.get(&200), Some(&100));
        assert!(outcome.bytes.body > 100 * 100_000, "{:?}", outcome.bytes);
    }
}

#[test]
fn a_status_of_a_script_is_counted_as_what_it_is() {
    let Some(peer) = php_fpm(2) else { return };
    let folder = Folder::new();
    folder.write("page.php", PHP);
    let gateway = Gateway { root: Some(folder.path().display().to_string()), ..Gateway::default() };
    let outcome = without_failure(&Spec { gateway, ..spec(&peer, "fcgi", "/page.php?s=404", 10) });
    assert_eq!(outcome.requests.status.get(&404), Some(&10));
}

#[test]
fn uwsgi_is_loaded_over_each_of_its_protocols() {
    let protocols = [
        (UwsgiSocket::Uwsgi, "uwsgi"),
        (UwsgiSocket::Scgi, "scgi"),
        (UwsgiSocket::Fastcgi, "fcgi"),
    ];
    for (socket, scheme) in protocols {
        let Some(peer) = uwsgi(socket, UwsgiApp::Wsgi(WSGI)) else { return };
        let spec = Spec {
            method: "POST".into(),
            body: b"12345".to_vec(),
            check: says("POST /a b 5"),
            // uWSGI always closes FastCGI connections, even if the request asks to keep them open.
            keepalive: scheme != "fcgi",
            ..spec(&peer, scheme, "/a%20b", 50)
        };
        without_failure(&spec);
    }
}

#[test]
fn tomcat_is_loaded_over_ajp() {
    let page = "<%@ page session=\"false\" contentType=\"text/plain\" trimDirectiveWhitespaces=\"true\" %><% \
        long n = 0; for (int b; (b = request.getInputStream().read()) >= 0; ) n++; \
        %><%= request.getMethod() %>,<%= request.getQueryString() %>,<%= n %>";
    let Some(peer) = tomcat(&[("page.jsp", page)], "secret=\"s3cret\"", "") else { return };
    let url = format!("ajp://127.0.0.1:{}/page.jsp?a=b", peer.port());
    let gateway = |secret: &str| Gateway { secret: Some(secret.into()), ..Gateway::default() };
    let spec = Spec {
        connections: 2,
        threads: 1,
        stop: Stop::Requests(100),
        timeout: Duration::from_secs(30),
        method: "POST".into(),
        gateway: gateway("s3cret"),
        ..Spec::new(Url::parse(&url).unwrap())
    };
    for (length, keepalive) in [(0, true), (1, true), (8187, false), (70_000, true)] {
        let body = vec![b'b'; length];
        let check = says(&format!("POST,a=b,{length}"));
        let outcome = without_failure(&Spec { body, check, keepalive, ..spec.clone() });
        assert_eq!(outcome.protocol, Protocol::Ajp);
        assert_eq!(outcome.requests.status.get(&200), Some(&100), "{length}");
    }
    // Tomcat closes the connection after it has rejected a request.
    let outcome = without_failure(&Spec { gateway: gateway("wrong"), ..spec });
    assert_eq!(outcome.requests.status.get(&403), Some(&100));
}

#[test]
fn a_probe_speaks_what_its_url_says() {
    let Some(peer) = uwsgi(UwsgiSocket::Uwsgi, UwsgiApp::Wsgi(WSGI)) else { return };
    let spec = spec(&peer, "uwsgi", "/probe", 1);
    let reply = fetch(&spec.url, spec.timeout, &[]).unwrap();
    assert_eq!((reply.status, &reply.body[..]), (200, &b"GET /probe 0"[..]));
}

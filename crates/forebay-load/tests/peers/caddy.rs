//! Load on Caddy over HTTP/3. Its access log must count what the load generator counts.

use std::fs;
use std::time::Duration;

use forebay_load::{Check, Control, Spec, Stop, TlsOptions, Url, run};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use forebay_testkit::tls::Authority;

const SITE: &str = r"
https://localhost:{port} {
    bind 127.0.0.1
    tls {tmp}/cert.pem {tmp}/key.pem
    root * {tmp}/www
    file_server
    log {
        output file {tmp}/access.log
    }
}
";

#[test]
fn caddy_counts_the_requests_over_http3_that_we_count() {
    let authority = Authority::new("An authority");
    let identity = authority.issue(&["localhost"]);
    let page = "A page of Caddy.\n".repeat(40);
    let large = "0123456789abcdef".repeat(65_536);
    let files = [
        ("cert.pem", &*identity.certificate),
        ("key.pem", &identity.key),
        ("ca.pem", &authority.pem),
        ("www/page.html", &page),
        ("www/large.bin", &large),
    ];
    let Some(caddy) = peer::caddy(SITE, &files) else { return };
    let url = |path: &str| {
        let url = format!("https://localhost:{}{path}", caddy.port());
        Url::parse(&url).unwrap().over_http3().unwrap()
    };
    let ca = Some(caddy.folder().path().join("ca.pem"));
    let tls = TlsOptions { ca, ..TlsOptions::default() };
    let check = Some(Check { status: 200, body_contains: Some(b"page of Caddy".to_vec()) });
    let mut sent = 0;
    let mut load = |spec: Spec, n: u64, length: usize| {
        let outcome = run(&spec, &Control::default()).unwrap();
        let requests = &outcome.requests;
        assert_eq!((requests.completed, requests.failed), (n, 0), "{outcome:?}");
        assert_eq!(outcome.bytes.body, n * length as u64);
        sent += requests.sent + requests.resent;
    };
    for (n, connections, streams, keepalive) in
        [(1000, 4, 8, true), (101, 2, 1, true), (20, 2, 1, false)]
    {
        let (stop, tls, check) = (Stop::Requests(n), tls.clone(), check.clone());
        let base = Spec { threads: 2, tls, check, ..Spec::new(url("/page.html")) };
        load(Spec { connections, streams, keepalive, stop, ..base }, n, page.len());
    }
    let base = Spec { stop: Stop::Requests(20), tls, ..Spec::new(url("/large.bin")) };
    load(Spec { connections: 2, streams: 3, ..base.clone() }, 20, large.len());
    let think = Some(Duration::from_millis(1));
    load(Spec { think, connections: 2, ..base }, 20, large.len());
    let log = caddy.folder().path().join("access.log");
    let count = || fs::read_to_string(&log).unwrap_or_default().matches("HTTP/3.0").count() as u64;
    assert!(eventually(|| count() >= sent), "{} of {sent}", count());
    assert_eq!(count(), sent);
}

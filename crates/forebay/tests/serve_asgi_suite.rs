//! The tests of Starlette, run against the ASGI host: directly over HTTP/1.1, and through another
//! Forebay over HTTP/2. `asgi/suite.py` describes how, and which tests are skipped.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::tls::Authority;
use support::{Forebay, serve};

/// Starlette's application may be mounted at two paths.
const APPLICATION: &str = "
    [[site.route]]
    paths = [\"/root/*\"]
    app = \"suite\"
    [[site.route]]
    paths = [\"/sub_path/*\"]
    app = \"suite\"
    [[site.route]]
    path = \"/*\"
    app = \"suite\"
";

/// Serves a site over TCP and TLS. Returns the port of TLS, too.
fn site(rest: &str) -> (Forebay, u16) {
    let folder = Folder::new();
    let identity = Authority::new("of the test").issue(&["localhost"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder.write("app/suite.py", include_str!("asgi/suite.py"));
    let mut forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = [\"127.0.0.1:0\", \"https://127.0.0.1:0\"]\n\
             encoded_slashes = \"pass\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
             tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n{rest}"
        ),
    );
    let tls = forebay.listener("https");
    (forebay, tls.port())
}

fn host() -> Option<(Forebay, u16)> {
    let packages = [
        "python3-h2",
        "python3-httpx",
        "python3-itsdangerous",
        "python3-jinja2",
        "python3-pytest",
        "python3-starlette",
        "python3-typing-extensions",
    ];
    let (source, pip) = (peer::python_source("starlette")?, peer::pip_folder("python_multipart")?);
    peer::has(&packages).then(|| {
        site(&format!(
            "{APPLICATION}[app.suite]\nkind = \"asgi\"\ndir = \"app\"\nmodule = \"suite:app\"\n\
             python = \"/usr/bin/python3\"\nrequest_timeout = \"100s\"\n\
             env = {{ SUITE = \"{}\", PYTHONPATH = \"{}\" }}\n",
            source.display(),
            pip.display()
        ))
    })
}

/// Runs the tests with clients of `front`. Returns the number of tests that passed, and of those
/// that were skipped.
fn run(host: &Forebay, front: &(Forebay, u16), version: u8) -> (u64, u64) {
    let (http, https) = (front.0.address.port(), front.1);
    let reply = host.get(&format!("/run?http={http}&https={https}&version={version}"));
    // A dot for each second, the counts, and failures.
    let (counts, failures) = reply.text().split_once('\n').unwrap_or((reply.text(), ""));
    assert!(failures.is_empty(), "{counts}\n{failures}");
    let counts: serde_json::Value = serde_json::from_str(counts.trim_matches('.')).unwrap();
    (counts["passed"].as_u64().unwrap(), counts["skipped"].as_u64().unwrap())
}

#[test]
fn starlettes_tests_pass_over_http_1() {
    let Some(host) = host() else { return };
    assert_eq!(run(&host.0, &host, 1), (367, 19), "{}", host.0.output());
    host.0.stop();
}

#[test]
fn starlettes_tests_pass_over_http_2_through_another_forebay() {
    let Some((host, _)) = host() else { return };
    let front = site(&format!(
        "[[site.route]]\npath = \"/*\"\nproxy = {{ to = [\"h2c://{}\"], host = \"client\" }}\n",
        host.address
    ));
    assert_eq!(run(&host, &front, 2), (365, 21), "{}", host.output());
    front.0.stop();
    host.stop();
}

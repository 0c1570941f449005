//! The checkers of PSGI, WSGI and Rack: Plack::Test::Suite, wsgiref.validate and Rack::Lint.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::Process;

use super::pattern;

/// The application of Plack::Test::Suite.
pub const PLACK_SUITE: &str = include_str!("../psgi/suite.psgi");
/// A WSGI application with wsgiref.validate.
pub const WSGI: &str = include_str!("../wsgi/checked.py");
/// A Rack application with Rack::Lint.
pub const RACK: &str = include_str!("../rack/config.ru");

/// Number of cases of Plack::Test::Suite. With another number, some did not run.
const CASES: usize = 36;

pub fn has_plack_suite() -> bool {
    peer::perl_has(&[("Plack::Test::Suite", "libplack-perl"), ("Test::TCP", "libtest-tcp-perl")])
}

/// A way to an application.
pub struct Front {
    pub what: &'static str,
    /// Address for clients of HTTP/1.1.
    pub address: SocketAddr,
    /// Value of SERVER_PORT: the port of the listener that the application's server has.
    pub server_port: u16,
    /// Names of the cases of Plack::Test::Suite that cannot pass.
    pub skipped: &'static [&'static str],
}

impl Front {
    pub fn of(address: SocketAddr, what: &'static str) -> Self {
        Self { what, address, server_port: address.port(), skipped: &[] }
    }

    /// Runs the client side of Plack::Test::Suite. Checks that every case passes.
    pub fn pass_plack_suite(&self) {
        let Self { what, address, server_port, skipped } = self;
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/psgi/suite.pl");
        let mut command = Command::new("perl");
        command.arg(driver).args([address.port().to_string(), server_port.to_string()]);
        command.args(*skipped);
        let exit = Process::start(command).wait();
        let output = &exit.output;
        assert_eq!(exit.status.code(), Some(0), "{what}: {output}");
        let plan = format!("1..{}", CASES - skipped.len());
        assert!(output.lines().any(|line| line == plan), "{what}: {output}");
        let is_failure = |line: &str| line.trim_start().starts_with("not ok");
        assert!(!output.lines().any(is_failure), "{what}: {output}");
    }

    /// Sends requests to [`WSGI`] or [`RACK`] below `base`. A fault that the checker finds is a 500.
    pub fn pass_requests(&self, base: &str) {
        let Self { what, address, .. } = self;
        let mut client = Client::connect(*address);
        let mut ask = |method: &str, target: &str, fields: &str, body: &[u8]| -> Reply {
            let mut head =
                format!("{method} {base}{target} HTTP/1.1\r\nHost: {address}\r\n{fields}");
            if !body.is_empty() {
                head += &format!("Content-Length: {}\r\n", body.len());
            }
            client.send([head.as_bytes(), b"\r\n", body].concat());
            if method == "HEAD" { client.reply_to_head() } else { client.reply() }
        };
        for (method, body) in [
            ("POST", &b"five!"[..]),
            ("POST", &pattern(100_000)),
            ("PUT", b"put"),
            ("PATCH", b"patch"),
            ("DELETE", b""),
            ("OPTIONS", b""),
            ("GET", b""),
        ] {
            let reply = ask(method, "/echo?a=b%20c&d", "Content-Type: text/plain\r\n", body);
            assert_eq!(reply.status, 200, "{what}: {method}");
            assert!(reply.body == body, "{what}: {method}");
        }
        let fields = "Cookie: a=1\r\nCookie: b=2\r\nX-Thing: 1\r\nX-Thing: 2\r\nAccept: */*\r\n";
        let reply = ask("GET", "/cookies", fields, b"");
        let cookies = reply.headers_named("Set-Cookie");
        assert_eq!((reply.text(), cookies), ("two", vec!["a=1", "b=2"]), "{what}");
        assert_eq!(ask("GET", "/pieces", "", b"").text(), "abc", "{what}");
        assert_eq!(ask("GET", "/none", "", b"").status, 204, "{what}");
        assert_eq!(ask("HEAD", "/echo", "", b"").status, 200, "{what}");
        assert_eq!(ask("GET", "/a%20b%C3%A9/c", "", b"").status, 404, "{what}");
        assert_eq!(ask("GET", "/", "", b"").status, 404, "{what}");
    }
}

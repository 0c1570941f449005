//! Sends the requests of `expect` to a separate server.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use forebay_conf::{Plan, Setting};
use forebay_gateway::Difference;
use forebay_gateway::expect::{self, Outcome, Tested};
use serde_json::{Value, json};

use crate::ctl::client::CtlServer;
use crate::test_server::{PATIENCE, TestServer};

/// Maximum size of the head of a reply, in bytes.
const LARGEST_HEAD: u64 = 64 * 1024;

/// Sends the request of each test to a server, and sets the outcome of the test. Fails if the
/// server does not start.
pub(super) fn send(file: &Path, plan: &Plan, tests: &mut [Tested]) -> Result<(), String> {
    if tests.is_empty() {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let _server = TestServer::start(file, dir.path())?;
    let listeners = expect::listeners(plan);
    for test in tests {
        let Some(number) = listeners.iter().position(|listen| *listen == test.listen) else {
            continue;
        };
        test.outcome = match reply(&expect::socket(dir.path(), number), test) {
            Ok((status, location)) => test.judge(plan, status, location.as_deref()),
            Err(error) => Outcome::Fails(format!("there is no reply: {error}")),
        };
    }
    Ok(())
}

/// Sends the request of a test. Returns the status and `Location` field of the reply.
fn reply(socket: &Path, test: &Tested) -> std::io::Result<(u16, Option<String>)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let scheme = if test.listen.is_https() { "https" } else { "http" };
    let Tested { method, target, host, .. } = test;
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 127.0.0.1\r\n\
         X-Forwarded-Proto: {scheme}\r\nConnection: close\r\n\r\n"
    )?;
    let mut lines = BufReader::new(stream.take(LARGEST_HEAD));
    loop {
        let (status, location) = head(&mut lines)?;
        // Skip informational replies, which precede the final reply.
        if status >= 200 {
            return Ok((status, location));
        }
    }
}

/// Reads the head of a reply. Returns the status and the `Location` field.
fn head(lines: &mut impl BufRead) -> std::io::Result<(u16, Option<String>)> {
    let mut status = None;
    let mut location = None;
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        let Some(status) = status else {
            let code = line.split(' ').nth(1).and_then(|code| code.parse().ok());
            status = Some(code.ok_or(std::io::ErrorKind::InvalidData)?);
            continue;
        };
        if line.is_empty() {
            return Ok((status, location));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("location")
        {
            location = Some(value.trim().to_owned());
        }
    }
}

/// Exit codes of the manual: wrong usage or configuration, and a server that cannot be reached.
const WRONG: u8 = 2;
const UNREACHABLE: u8 = 3;

/// Returns what a reload of `plan` would change, as text. `running` is the address of a server or
/// its configuration file. An error contains the exit code and the reason.
pub fn with(running: &str, plan: &Plan) -> Result<String, (u8, String)> {
    let next = plan.file.settings();
    let path = Path::new(running);
    if path.exists() {
        let now = forebay_conf::load(path).map_err(|error| (WRONG, error.to_string()))?;
        return Ok(Difference::of(&now.file.settings(), &next).text());
    }
    let server = CtlServer::find(Some(running), None, None).map_err(|why| {
        (WRONG, format!("--diff {running} is neither a file nor an address: {why}"))
    })?;
    let server = server.or_token(plan.server.admin_token.clone());
    // Send the settings to the server, which compares them. The server does not send its own
    // settings, because they contain secrets.
    let settings = next.iter().map(|Setting { part, key, value, shown }| {
        json!({ "part": part, "key": key, "value": value, "shown": shown })
    });
    let body = json!({ "settings": settings.collect::<Vec<_>>() }).to_string();
    let answer = server.post("/control/diff", "application/json", None, body);
    let answer = answer.map_err(|why| (UNREACHABLE, why))?;
    let parsed: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    if answer.status != 200 {
        let why = parsed["error"].as_str().unwrap_or("the server refuses");
        return Err((WRONG, why.to_owned()));
    }
    Ok(crate::ctl::shown::difference(&parsed))
}

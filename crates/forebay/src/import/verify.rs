//! `forebay import --verify`: compares the answers of the old server with the answers of Forebay,
//! which runs the translated configuration.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use forebay_conf::Plan;
use forebay_gateway::expect;

use super::fetch::{Received, VerifiedUrl, from_old, from_socket};
use crate::test_server::TestServer;

/// Requests each URL from the old server and from Forebay with the configuration `toml`, and
/// reports the differences. `connect` is the address of the old server, if the host names of the
/// URLs lead to another server.
pub fn verify(toml: &str, urls: &[String], connect: Option<&str>) -> ExitCode {
    let mut stderr = std::io::stderr().lock();
    match compared(toml, urls, connect, &mut stderr) {
        Err(error) => {
            let _ = writeln!(stderr, "forebay: cannot verify: {error}");
            ExitCode::from(3)
        }
        Ok(different) => {
            let (all, agree) = (urls.len(), urls.len() - different);
            let _ = writeln!(stderr, "{agree} of {all} URLs have the same answer");
            if different == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
    }
}

/// Returns the number of URLs that the old server and Forebay answer differently. Writes the
/// differences to `out`.
fn compared(
    toml: &str,
    urls: &[String],
    connect: Option<&str>,
    out: &mut impl Write,
) -> Result<usize, String> {
    let mut targets: Vec<VerifiedUrl> =
        urls.iter().map(|url| VerifiedUrl::parse(url)).collect::<Result<_, _>>()?;
    if let Some((_, port)) = connect.and_then(|address| address.rsplit_once(':')) {
        for target in &mut targets {
            target.with_port = Some(format!("{}:{port}", target.name));
        }
    }
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = dir.path().join("site.toml");
    std::fs::write(&file, toml).map_err(|error| error.to_string())?;
    let plan = forebay_conf::load(&file).map_err(|error| error.to_string())?;
    let _server = TestServer::start(&file, dir.path())?;
    let mut different = 0;
    for target in &targets {
        let found = differences_of(&plan, dir.path(), target, connect)?;
        different += usize::from(!found.is_empty());
        for text in found {
            let _ = writeln!(out, "{}: {text}", target.url);
        }
    }
    Ok(different)
}

/// Returns the differences between the answers of the old server and of Forebay for one URL.
fn differences_of(
    plan: &Plan,
    dir: &Path,
    target: &VerifiedUrl,
    connect: Option<&str>,
) -> Result<Vec<String>, String> {
    let old = || {
        from_old(target, connect).map_err(|error| {
            format!("{}: the old server does not answer: {error}; see --connect", target.url)
        })
    };
    let (before, again) = (old()?, old()?);
    let Some(number) = expect::socket_number(plan, &target.name, target.is_https) else {
        let tls = if target.is_https { "with" } else { "without" };
        return Ok(vec![format!("the translation has no listener {tls} TLS")]);
    };
    Ok(match from_socket(target, &expect::socket(dir, number)) {
        Ok(now) => differences(target, &before, &again, &now),
        Err(error) => vec![format!("the translation does not answer: {error}")],
    })
}

/// Fields that are not compared: they describe the connection, the server or its cache.
const IGNORED: [&str; 12] = [
    "accept-ranges",
    "age",
    "alt-svc",
    "cache-status",
    "connection",
    "content-length",
    "date",
    "etag",
    "keep-alive",
    "server",
    "transfer-encoding",
    "via",
];

/// Returns the differences between a reply of the old server (`before`) and Forebay's reply with
/// the translated configuration (`now`). `again` is a second reply of the old server. A field or
/// body that differs between the two replies of the old server is not compared.
pub fn differences(
    target: &VerifiedUrl,
    before: &Received,
    again: &Received,
    now: &Received,
) -> Vec<String> {
    if before.status != now.status {
        return vec![format!("status {}, before {}", now.status, before.status)];
    }
    let mut found = Vec::new();
    let names = [before, now].into_iter().flat_map(|reply| &reply.fields);
    let names: BTreeSet<&str> = names.map(|(name, _)| name.as_str()).collect();
    // Do not compare the Content-Type of redirects and errors, because each server generates its
    // own text for these replies.
    let is_note = |name: &str| name == "content-type" && before.status >= 300;
    let is_compared = |name: &&str| !IGNORED.contains(name) && !is_note(name);
    for name in names.into_iter().filter(is_compared) {
        let of = |reply| values(target, reply, name);
        let (old, new) = (of(before), of(now));
        if old != new && old == of(again) {
            let name = name.escape_debug();
            found.push(format!("{name} {}, before {}", shown(&new), shown(&old)));
        }
    }
    if before.status < 300 && before.body == again.body && before.body != now.body {
        found.push(format!(
            "another body of {} bytes, before {} bytes",
            now.body.len(),
            before.body.len()
        ));
    }
    found
}

/// Returns the values of a field. Values with the same meaning become equal texts.
fn values(target: &VerifiedUrl, reply: &Received, name: &str) -> Vec<String> {
    let fields = reply.fields.iter().filter(|(field, _)| field == name);
    let value = |value: &str| match name {
        "location" => location(target, value),
        // Compare types without `charset`. `application/javascript` counts as `text/javascript`,
        // which replaces it (RFC 9239).
        "content-type" => {
            let kind = value.split(';').next().unwrap_or_default().trim();
            kind.replace("application/javascript", "text/javascript")
        }
        _ => value.to_owned(),
    };
    fields.map(|(_, text)| value(text)).collect()
}

/// Returns the value of `Location` without scheme and host if both are those of the request's URL.
/// Otherwise, returns the value unchanged.
fn location(target: &VerifiedUrl, value: &str) -> String {
    let scheme = if target.is_https { "https" } else { "http" };
    let rest = value.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    let path = rest.and_then(|rest| {
        let with_port = target.with_port.as_ref().and_then(|host| rest.strip_prefix(host.as_str()));
        with_port.or_else(|| rest.strip_prefix(target.authority.as_str()))
    });
    match path {
        Some("") => "/".into(),
        Some(path) if path.starts_with('/') => path.to_owned(),
        _ => value.to_owned(),
    }
}

/// Returns values for a message, without control characters.
fn shown(values: &[String]) -> String {
    match values {
        [] => "missing".into(),
        values => values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(" and "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, fields: &[(&str, &str)], body: &str) -> Received {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Received { status, fields, body: body.into() }
    }

    #[test]
    fn differences_are_named_unless_the_old_server_varies() {
        let target = VerifiedUrl::parse("http://a.example/").unwrap();
        let all = |before: &Received, again: &Received, now: &Received| {
            differences(&target, before, again, now)
        };
        let old = reply(200, &[("date", "1"), ("x", "1"), ("y", "1")], "a");
        let varied = reply(200, &[("date", "2"), ("x", "2"), ("y", "1")], "b");
        let new = reply(200, &[("date", "3"), ("x", "3"), ("y", "\u{1b}[2J")], "c");
        assert_eq!(
            all(&old, &old, &new),
            [
                "x \"3\", before \"1\"",
                "y \"\\u{1b}[2J\", before \"1\"",
                "another body of 1 bytes, before 1 bytes"
            ]
        );
        assert_eq!(all(&old, &varied, &new).len(), 1);
        assert_eq!(all(&old, &old, &reply(404, &[], "")), ["status 404, before 200"]);
        let moved = |to: &str| reply(301, &[("location", to), ("content-type", "text/html")], "x");
        let (long, short) = (moved("http://a.example/b"), reply(301, &[("location", "/b")], ""));
        assert!(all(&long, &long, &short).is_empty());
        assert_eq!(all(&short, &short, &moved("http://b.example/b")).len(), 1);
    }
}

//! `forebay import --verify`: compares the answers of the old server with the answers of Forebay,
//! which runs the translated configuration.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use forebay_conf::Plan;
use forebay_gateway::expect;

use super::compare::differences;
use super::fetch::{VerifiedUrl, from_old, from_socket};
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

//! Reads lists of networks again while the server runs: files when they change, URLs several times a day. If a
//! list cannot be read or is refused, the last good one stays.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_conf::{
    BackendTls, MAX_LIST_BYTES, NetworkList, NetworkSource, NetworkUrl, Plan, files,
};
use forebay_net::log::ErrorLog;
use forebay_net::timed_stream::TimedStream;
use forebay_net::tls::ClientTls;

/// Interval at which files are looked at.
const FILE_PERIOD: Duration = Duration::from_secs(2);
/// Interval at which URLs are read.
const URL_PERIOD: Duration = Duration::from_secs(6 * 3600);
/// Pause after the first failure to read a URL. Each further failure doubles it, up to an hour.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_LIMIT: Duration = Duration::from_secs(3600);
/// Time limit for reading a URL.
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a reply.
const MAX_HEAD: usize = 16 * 1024;

/// The thread that reads the lists. It ends when this value is dropped.
pub(crate) struct NetworkService {
    /// Never used: the thread sees that it is dropped.
    _stop: Sender<()>,
}

impl NetworkService {
    /// Starts the thread if `plan` has lists. Lists at URLs begin with the networks that the same lists of
    /// `previous` have.
    pub fn start(
        plan: &Plan,
        previous: Option<&Plan>,
        errors: &ErrorLog,
    ) -> io::Result<Option<Self>> {
        let mut by_source: Vec<Vec<Arc<NetworkList>>> = Vec::new();
        for list in lists(plan) {
            if let NetworkSource::Url(_) = list.source
                && let Some(old) = previous.and_then(|old| lists(old).find(|old| **old == *list))
            {
                list.replace_by(old);
            }
            match by_source.iter_mut().find(|same| same[0] == *list) {
                Some(same) => same.push(list.clone()),
                None => by_source.push(vec![list.clone()]),
            }
        }
        if by_source.is_empty() {
            return Ok(None);
        }
        let has_https = |same: &Vec<Arc<NetworkList>>| matches!(&same[0].source, NetworkSource::Url(url) if url.is_https);
        let tls = if by_source.iter().any(has_https) {
            let loaded = ClientTls::load(&BackendTls::default());
            Some(loaded.map_err(|error| io::Error::other(error.message))?)
        } else {
            None
        };
        let (stop, stopped) = channel();
        let errors = errors.clone();
        thread::Builder::new().name("networks".into()).spawn(move || {
            read_again(&by_source, tls.as_ref(), &errors, &stopped);
        })?;
        Ok(Some(Self { _stop: stop }))
    }
}

fn lists(plan: &Plan) -> impl Iterator<Item = &Arc<NetworkList>> {
    let of_sites = plan.sites.iter().flat_map(|site| &site.proxy_lists);
    let routes = plan.sites.iter().flat_map(|site| &site.routes);
    let challenges = routes.filter_map(|route| route.access.challenge.as_ref());
    of_sites
        .chain(plan.relays.iter().flat_map(|relay| &relay.proxy_lists))
        .chain(challenges.flat_map(|challenge| &challenge.exempt_lists))
}

/// Reads the lists until `stopped` is disconnected. The lists of each vector have the same source.
fn read_again(
    all: &[Vec<Arc<NetworkList>>],
    tls: Option<&ClientTls>,
    errors: &ErrorLog,
    stopped: &Receiver<()>,
) {
    let mut due: Vec<_> = all.iter().map(|_| Instant::now()).collect();
    let mut failures = vec![0_u32; all.len()];
    let mut seen: HashMap<usize, Option<Stamp>> = HashMap::new();
    loop {
        for (at, same) in all.iter().enumerate() {
            if due[at] > Instant::now() {
                continue;
            }
            let source = &same[0].source;
            let text = match source {
                NetworkSource::File(path) => {
                    due[at] = Instant::now() + FILE_PERIOD;
                    let now = stamp(path);
                    if seen.insert(at, now) == Some(now) {
                        continue;
                    }
                    read_file(path)
                }
                NetworkSource::Url(url) => read_url(url, tls),
            };
            let outcome =
                text.and_then(|text| same.iter().try_for_each(|list| list.replace(&text)));
            if let NetworkSource::Url(_) = source {
                let pause = PAUSE.saturating_mul(1 << failures[at].min(10)).min(PAUSE_LIMIT);
                due[at] = Instant::now() + if outcome.is_ok() { URL_PERIOD } else { pause };
            }
            match outcome {
                Ok(()) => {
                    failures[at] = 0;
                    errors.info(&format!("trusted proxies: read {source}"));
                }
                Err(why) => {
                    failures[at] += 1;
                    let kept = if same[0].is_empty() {
                        "nobody in it is trusted"
                    } else {
                        "the last good list stays"
                    };
                    errors.warn(&format!("trusted proxies: {source} is refused: {why}; {kept}"));
                }
            }
        }
        let next = due.iter().min().copied().unwrap_or_else(Instant::now);
        let wait = next.saturating_duration_since(Instant::now());
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

/// What shows that a file has changed: time, size and inode. `None` if it cannot be looked at.
type Stamp = (i64, i64, u64, u64);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.mtime(), found.mtime_nsec(), found.size(), found.ino()))
}

fn read_file(path: &Path) -> Result<String, String> {
    let bytes = files::read(path, MAX_LIST_BYTES).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_LIST_BYTES {
        return Err("it is larger than 1 MiB".into());
    }
    String::from_utf8(bytes).map_err(|_| "it is not text".into())
}

/// Reads a URL. Follows no redirects.
fn read_url(url: &NetworkUrl, tls: Option<&ClientTls>) -> Result<String, String> {
    let deadline = Instant::now() + READ_LIMIT;
    let reply = exchange(url, tls, deadline).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} s", READ_LIMIT.as_secs())
        }
        _ => error.to_string(),
    })?;
    body(&reply)
}

fn exchange(url: &NetworkUrl, tls: Option<&ClientTls>, deadline: Instant) -> io::Result<Vec<u8>> {
    // A URL that begins with https:// must not be read without TLS.
    let tls =
        url.is_https.then(|| tls.ok_or_else(|| io::Error::other("the TLS settings are missing")));
    let mut stream = TimedStream::connect(&url.host, tls.transpose()?, deadline)?;
    // A reply to HTTP/1.0 has no chunks.
    let request = format!(
        "GET {} HTTP/1.0\r\nHost: {}\r\nUser-Agent: forebay/{}\r\nAccept: text/plain, */*\r\n\
         Connection: close\r\n\r\n",
        url.target,
        url.authority,
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut reply = Vec::new();
    let most = MAX_LIST_BYTES + MAX_HEAD as u64;
    stream.take(most + 1).read_to_end(&mut reply)?;
    if reply.len() as u64 > most {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(reply)
}

/// Returns the body of a complete reply with status 200.
fn body(reply: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(reply).map_err(|_| "its reply is not text".to_owned())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("its reply is not HTTP")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let status = status.and_then(|line| line.split(' ').nth(1)).ok_or("its reply is not HTTP")?;
    if status != "200" {
        return Err(format!("status {}", status.escape_debug()));
    }
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("its reply is not HTTP")?;
        if name.eq_ignore_ascii_case("transfer-encoding")
            || name.eq_ignore_ascii_case("content-encoding")
        {
            return Err(format!("its reply has {name}, for which Forebay did not ask"));
        }
        if name.eq_ignore_ascii_case("content-length") && value.trim() != body.len().to_string() {
            return Err("its reply is not complete".into());
        }
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_reply_of_status_200_counts() {
        let of = |text: &str| body(text.as_bytes());
        assert_eq!(of("HTTP/1.1 200 OK\r\nX: y\r\n\r\n10.0.0.1\n"), Ok("10.0.0.1\n".into()));
        assert_eq!(of("HTTP/1.0 200\r\ncontent-length: 2\r\n\r\nab"), Ok("ab".into()));
        for wrong in [
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n10.0.0.1\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n10.0.0.1\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab",
            "HTTP/1.1 301 Moved\r\nLocation: http://x/\r\n\r\n",
            "HTTP/1.1 404 No\r\n\r\n10.0.0.1\n",
            "HTTP/1.1 206 Part\r\n\r\n10.0.0.1\n",
            "HTTP/2 200\r\n\r\n10.0.0.1",
            "10.0.0.1\n",
            "",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}

//! Purges of stored replies, and the keys that a URL has in the routes of all sites.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_admin::{Purge, Purged};
use forebay_net::head::Request;
use forebay_wire::http1::{Http1Limits, Progress, RequestHead, RequestParser};

use super::key::KeyOf;
use super::store::Key;
use super::stored::is_meant;

/// The keys of all routes that have stored replies. Routes of former configurations stay, because
/// their replies may still be on disk.
#[derive(Default)]
pub struct RouteKeys(Mutex<Vec<Arc<KeyOf>>>);

impl RouteKeys {
    /// Adds a route, unless its zone is known. If the keys of a route contain the whole URL, the URL
    /// of a reply is enough to find the reply, so the route is not added.
    pub fn add(&self, route: KeyOf) {
        let mut routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = routes.iter().any(|known| known.zone() == route.zone());
        if !is_known && !route.has_whole_url() {
            routes.push(Arc::new(route));
        }
    }

    /// Prepares a purge: computes the keys of its URL.
    pub fn prepare(&self, purge: &Purge) -> Purging {
        let (mut urls, mut keys) = (Vec::new(), Vec::new());
        let mut purge = purge.clone();
        if let Purged::Prefix(prefix) = &mut purge.what {
            lower_host(prefix);
        }
        if let Purged::Url(asked) = &purge.what {
            urls = spellings(asked);
            let routes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            keys = routes
                .iter()
                .map(|route| {
                    let requests = urls.iter().filter_map(|url| request_for(url));
                    (route.clone(), requests.map(|request| route.of(&request)).collect())
                })
                .collect();
        }
        Purging { purge, urls, keys }
    }
}

/// Maximum length in bytes of a URL and of a request for it.
const LONGEST: usize = 1 << 20;

/// A purge and the keys of its URL.
#[derive(Clone)]
pub struct Purging {
    pub purge: Purge,
    /// The URL with each scheme that it may have. Empty if the purge names no URL.
    urls: Vec<Vec<u8>>,
    /// Routes whose keys do not contain the whole URL, with the keys of `urls`.
    keys: Vec<(Arc<KeyOf>, Vec<Key>)>,
}

impl fmt::Debug for Purging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.purge.fmt(f)
    }
}

impl Purging {
    /// Returns true if the purge includes the reply with this key, URL and field lines.
    pub fn includes(&self, key: &[u8], url: &[u8], lines: &[u8]) -> bool {
        if !matches!(self.purge.what, Purged::Url(_)) {
            return is_meant(url, lines, &self.purge.what);
        }
        // The key of the reply may contain fields or cookies, so compare the keys of both URLs.
        self.urls.iter().any(|asked| asked == url)
            || self.keys.iter().filter(|(route, _)| key.starts_with(route.zone())).any(
                |(route, asked)| {
                    let key = request_for(url).map(|request| route.of(&request));
                    key.is_some_and(|key| asked.contains(&key))
                },
            )
    }

    /// Returns the only URLs that the purge may include; `None` if it may include others, too.
    pub fn only_urls(&self) -> Option<&[Vec<u8>]> {
        let is_only = matches!(self.purge.what, Purged::Url(_)) && self.keys.is_empty();
        is_only.then_some(&self.urls)
    }
}

/// Returns a URL as stored replies have it: scheme and host in lower case, and at least `/` as its
/// path. A URL without a scheme (`//host/path`) gets both schemes.
fn spellings(url: &[u8]) -> Vec<Vec<u8>> {
    if url.starts_with(b"//") {
        return [b"http:", &b"https:"[..]].map(|scheme| normal([scheme, url].concat())).into();
    }
    vec![normal(url.to_vec())]
}

fn normal(mut url: Vec<u8>) -> Vec<u8> {
    let end = lower_host(&mut url);
    if url.get(end) != Some(&b'/') {
        url.insert(end, b'/');
    }
    url
}

/// Changes scheme and host of a URL to lower case. Returns the position after the host.
fn lower_host(url: &mut [u8]) -> usize {
    let start = if url.starts_with(b"//") {
        2
    } else {
        memchr::memmem::find(url, b"://").map_or(0, |at| at + 3)
    };
    let end = url[start..].iter().position(|byte| b"/?".contains(byte));
    let end = end.map_or(url.len(), |at| start + at);
    url[..end].make_ascii_lowercase();
    end
}

/// Returns a GET request for a URL, without any fields except `Host`.
fn request_for(url: &[u8]) -> Option<Request> {
    let https = url.starts_with(b"https://");
    let rest = url.strip_prefix(if https { &b"https://"[..] } else { b"http://" })?;
    let (authority, target) = rest.split_at(memchr::memchr(b'/', rest)?);
    let bytes = [b"GET ", target, b" HTTP/1.1\r\nHost: ", authority, b"\r\n\r\n"].concat();
    let limits = Http1Limits { head: LONGEST, target: LONGEST, ..Http1Limits::default() };
    let mut head = RequestHead::default();
    let progress = RequestParser::new(limits).parse(&bytes, &mut head);
    // More bytes after the head mean that the URL contains a line end.
    if !matches!(progress, Ok(Progress::Complete(length)) if length == bytes.len()) {
        return None;
    }
    let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let mut request = Request::new(bytes, head, nobody.into(), nobody);
    request.https = https;
    request.clean_path().ok()?;
    request.forget_original();
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_scheme_has_both() {
        let of = |url: &str| {
            let texts = spellings(url.as_bytes()).into_iter();
            texts.map(|text| String::from_utf8(text).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of("HTTP://H.Example/A?B=://C"), ["http://h.example/A?B=://C"]);
        assert_eq!(of("http://h?x=/Y"), ["http://h/?x=/Y"]);
        assert_eq!(of("//H"), ["http://h/", "https://h/"]);
        assert_eq!(of(""), ["/"]);
    }

    #[test]
    fn a_url_with_a_line_end_is_no_request() {
        assert!(request_for(b"https://h/a?b").unwrap().https);
        for wrong in ["http://h/a HTTP/1.1\r\nX: y\r\n\r\n", "http://h/\r\n\r\nz", "/a", "ftp://h/"]
        {
            assert!(request_for(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }
}

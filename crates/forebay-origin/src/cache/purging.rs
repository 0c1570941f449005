//! Purges of stored replies, and the keys that a URL has in the routes of all sites.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_admin::{Purge, Purged};
use forebay_conf::{Matcher, Placeholder, Template};
use forebay_net::head::Request;
use forebay_wire::fields::of_lines;
use forebay_wire::http1::{Http1Limits, Progress, RequestHead, RequestParser};

use super::key::KeyOf;
use super::resource_key::Key;
use super::stored::Stored;

/// Maximum number of routes of former configurations whose keys are known.
const MOST_FORMER: usize = 64;

/// The keys of the routes that have stored replies.
#[derive(Default)]
pub struct RouteKeys(Mutex<KnownRoutes>);

#[derive(Default)]
struct KnownRoutes {
    /// Routes of the configuration.
    current: Vec<Arc<CachedRoute>>,
    /// Routes of former configurations, the oldest first. Their replies may still be on disk, and
    /// the configuration may return.
    former: VecDeque<Arc<CachedRoute>>,
    /// True if the keys of further former routes were forgotten.
    has_forgotten: bool,
}

/// A route that stores replies.
pub struct CachedRoute {
    key: KeyOf,
    /// The route's conditions on the path. `None` if the key contains no part of the path that the
    /// conditions find, such as `{rest}`.
    matcher: Option<Matcher>,
}

/// A stored reply that a purge may include.
#[derive(Clone, Copy)]
pub struct PurgedReply<'r> {
    /// Key.
    pub key: &'r [u8],
    /// URL of the request.
    pub url: &'r [u8],
    /// Other URL of the request; empty for most requests.
    pub other_url: &'r [u8],
    /// Field lines.
    pub lines: &'r [u8],
}

impl CachedRoute {
    /// Creates the value from the zone, the key and the conditions of a route.
    pub fn new(zone: &str, key: &Template, matcher: &Matcher) -> Self {
        let is_found = |value: &Placeholder| {
            matches!(value, Placeholder::Rest | Placeholder::Prefix | Placeholder::Capture(_))
        };
        // A purge names only a URL, so no other conditions count.
        let of_path = || Matcher { when: None, methods: Vec::new(), ..matcher.clone() };
        let matcher = key.depends_on(&is_found).then(of_path);
        Self { key: KeyOf::new(zone, key), matcher }
    }

    /// Returns the key of a GET for a URL. Returns `None` if the route does not answer this URL, or
    /// if the URL is malformed.
    fn of(&self, url: &[u8]) -> Option<Key> {
        let mut request = request_for(url)?;
        let is_taken = self.matcher.as_ref().is_none_or(|matcher| request.take(matcher));
        is_taken.then(|| self.key.of(&request))
    }
}

impl RouteKeys {
    /// Sets the routes of a configuration. Keeps some routes of former configurations, because
    /// replies of these routes may be stored.
    pub fn set(&self, routes: Vec<CachedRoute>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *known;
        let before =
            std::mem::replace(&mut known.current, routes.into_iter().map(Arc::new).collect());
        // If the keys of a route contain the whole URL, a purge finds replies by their stored URL,
        // so forget the route.
        known.former.extend(before.into_iter().filter(|route| !route.key.has_whole_url()));
        let current = known.current.iter().map(|route| route.key.zone().to_vec());
        let mut zones: HashSet<_> = current.collect();
        known.former.retain(|route| zones.insert(route.key.zone().to_vec()));
        while known.former.len() > MOST_FORMER {
            known.former.pop_front();
            known.has_forgotten = true;
        }
    }

    /// Prepares a purge: computes the keys of the purge's URL for each route.
    pub fn prepare(&self, purge: &Purge) -> Purging {
        let (mut urls, mut keys, mut zones) = (Vec::new(), Vec::new(), None);
        let mut purge = purge.clone();
        if let Purged::Prefix(prefix) = &mut purge.what {
            lower_host(prefix);
        }
        if let Purged::Url(asked) = &purge.what {
            urls = spellings(asked);
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let routes = || known.current.iter().chain(&known.former);
            let is_partial = |route: &&Arc<CachedRoute>| !route.key.has_whole_url();
            let keys_of =
                |route: &CachedRoute| urls.iter().filter_map(|url| route.of(url)).collect();
            keys =
                routes().filter(is_partial).map(|route| (route.clone(), keys_of(route))).collect();
            if known.has_forgotten {
                zones = Some(routes().map(|route| route.key.zone().into()).collect());
            }
        }
        Purging { purge, urls, keys, zones }
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
    keys: Vec<(Arc<CachedRoute>, Vec<Key>)>,
    /// Zones of all known routes; `None` if no route was forgotten. A purge by URL includes all
    /// replies in other zones. These replies may be for the URL, and a later configuration may use
    /// the replies again.
    zones: Option<Arc<[Box<[u8]>]>>,
}

impl fmt::Debug for Purging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.purge.fmt(f)
    }
}

impl Purging {
    /// Returns true if the purge includes the reply.
    pub fn includes(&self, reply: &PurgedReply<'_>) -> bool {
        match &self.purge.what {
            Purged::All => true,
            Purged::Tag(tag) => reply.has_tag(tag),
            Purged::Prefix(prefix) => reply.urls().any(|url| has_prefix(url, prefix)),
            Purged::Url(_) => {
                reply.urls().any(|url| self.urls.iter().any(|asked| asked == url))
                    || self.shares_key(reply)
                    || self.is_in_unknown_zone(reply.key)
            }
        }
    }

    /// Returns true if a GET for the URL of the purge has the key of the reply.
    fn shares_key(&self, reply: &PurgedReply<'_>) -> bool {
        let is_of = |(route, asked): &&(Arc<CachedRoute>, Vec<Key>)| {
            !asked.is_empty() && reply.key.starts_with(route.key.zone())
        };
        // The key of the reply may contain fields or cookies, which the purge does not know. So
        // compute a key without them from the URL of the reply.
        self.keys.iter().filter(is_of).any(|(route, asked)| {
            let mut keys = reply.urls().filter_map(|url| route.of(url));
            keys.any(|key| asked.contains(&key))
        })
    }

    fn is_in_unknown_zone(&self, key: &[u8]) -> bool {
        let zones = self.zones.as_ref();
        zones.is_some_and(|zones| !zones.iter().any(|zone| key.starts_with(zone)))
    }

    /// Returns the only URLs that the purge may include. Returns `None` if the purge may include
    /// other URLs.
    pub fn only_urls(&self) -> Option<&[Vec<u8>]> {
        let is_by_url = matches!(self.purge.what, Purged::Url(_));
        let is_only = is_by_url && self.keys.is_empty() && self.zones.is_none();
        is_only.then_some(&self.urls)
    }
}

impl<'r> PurgedReply<'r> {
    /// Returns the values of a reply in memory.
    pub fn of(stored: &'r Stored, key: &'r [u8]) -> Self {
        Self { key, url: &stored.url, other_url: &stored.other_url, lines: &stored.lines }
    }

    fn urls(&self) -> impl Iterator<Item = &'r [u8]> {
        [self.url, self.other_url].into_iter().filter(|url| !url.is_empty())
    }

    fn has_tag(&self, tag: &[u8]) -> bool {
        of_lines(self.lines).any(|field| {
            let divider = match () {
                () if field.name.eq_ignore_ascii_case(b"cache-tag") => b',',
                () if field.name.eq_ignore_ascii_case(b"surrogate-key") => b' ',
                () => return false,
            };
            let mut tags = field.value.split(|&b| b == divider);
            tags.any(|other| other.trim_ascii() == tag)
        })
    }
}

fn has_prefix(url: &[u8], prefix: &[u8]) -> bool {
    let end = if prefix.starts_with(b"//") { memchr::memchr(b':', url) } else { None };
    url[end.map_or(0, |end| end + 1)..].starts_with(prefix)
}

/// Returns a URL in the form that stored replies have: scheme and host in lower case, and at least
/// `/` as the path. A URL without a scheme (`//host/path`) gets both schemes.
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

/// Converts the scheme and the host of a URL to lower case. Returns the position after the host.
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

/// Returns a GET request for a URL, without any fields except `Host`. Returns `None` if the URL is
/// malformed.
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
    use forebay_conf::TemplatePart;

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

    fn route(zone: &str) -> CachedRoute {
        CachedRoute::new(zone, &Template::text("page"), &Matcher::default())
    }

    fn whole() -> CachedRoute {
        let values = [Placeholder::Scheme, Placeholder::Host, Placeholder::Uri];
        let key = Template::of(values.map(TemplatePart::Value).into());
        CachedRoute::new("whole", &key, &Matcher::default())
    }

    #[test]
    fn reloads_do_not_add_routes_for_ever() {
        let routes = RouteKeys::default();
        let purge = Purge { what: Purged::Url(b"http://h/a".to_vec()), is_soft: false };
        let includes = |zone: &str, url: &[u8]| {
            let key = [zone.as_bytes(), b"\0\0page"].concat();
            let reply = PurgedReply { key: &key, url, other_url: b"", lines: b"" };
            routes.prepare(&purge).includes(&reply)
        };
        for number in 0..1000 {
            routes.set(vec![route(&format!("zone{number}")), whole()]);
            let known = routes.0.lock().unwrap();
            assert!(known.former.len() <= MOST_FORMER && known.current.len() == 2);
        }
        // The key has no part of the URL, so all URLs share it.
        for zone in ["zone999", "zone990", "zone1"] {
            assert!(includes(zone, b"http://h/b"), "{zone}");
        }
        assert!(includes("whole", b"http://h/a") && !includes("whole", b"http://h/b"));
        // A configuration that returns is known again.
        routes.set(vec![route("zone1")]);
        let zones: HashSet<_> = {
            let known = routes.0.lock().unwrap();
            known.former.iter().map(|route| route.key.zone().to_vec()).collect()
        };
        assert!(!zones.contains(b"zone1\0".as_slice()));
        assert_eq!(zones.len(), routes.0.lock().unwrap().former.len());
    }
}

//! Rewrites URLs and cookies of a backend for the client: `Location` and similar fields, and the
//! path and domain of cookies.
//!
//! With `strip_prefix`, a backend does not know the beginning of its paths. If Forebay sends the
//! backend's own name as `Host`, the backend does not know the host that the client requested.
//! Forebay rewrites only references to the backend itself. Rewritten references are paths or URLs
//! of the host that the client requested.

use forebay_conf as conf;
use forebay_wire::http1::{Field, KnownField, ResponseHead, encode, host_of};

/// The prefix of a route's paths, and the authorities of its backends.
pub struct Rewrite {
    /// Prefix of clients' paths that the backend does not get: percent-encoded, without a slash at
    /// the end.
    prefix: Vec<u8>,
    /// Authority of each backend, and true if the backend uses TLS. `None` for a backend on a Unix
    /// socket that does not receive its configured name as `Host`.
    own: Vec<Option<(String, bool)>>,
}

/// The facts about one request that are necessary to rewrite URLs in its reply.
pub struct Context<'a> {
    pub rewrite: &'a Rewrite,
    /// Number of the backend that answers.
    pub index: usize,
    /// The authority that the client requested.
    pub authority: &'a [u8],
    /// True if the client uses TLS.
    pub https: bool,
}

impl Rewrite {
    /// Creates the rewriter for a route. Returns `None` if `plan` turns rewriting off.
    pub fn new(plan: &conf::Proxy) -> Option<Self> {
        if plan.redirect == conf::Redirects::Off {
            return None;
        }
        let prefix = plan.strip_prefix.as_deref().unwrap_or_default().trim_end_matches('/');
        let own = plan.upstream.to.iter().map(|backend| {
            // A backend on a Unix socket uses its configured name in URLs only if Forebay sends
            // this name as `Host`. So rewrite these URLs only in this case.
            let is_meant = plan.host == conf::HostField::Backend
                || matches!(backend.address, conf::Address::Tcp(_));
            is_meant.then(|| (backend.authority.clone(), backend.https))
        });
        Some(Self { prefix: percent_encode(prefix.as_bytes()), own: own.collect() })
    }
}

/// Returns true if [`Context::append`] handles this field.
pub fn is_concerned(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::Location
            | KnownField::ContentLocation
            | KnownField::Refresh
            | KnownField::SetCookie
    )
}

impl Context<'_> {
    /// Appends the fields of `head` that [`is_concerned`] accepts, rewritten if necessary.
    pub fn append(&self, out: &mut Vec<u8>, head: &ResponseHead, bytes: &[u8]) {
        let is_dropped = |field: &Field| {
            head.connection_names_fields && head.connection_lists(field.name.of(bytes), bytes)
        };
        for field in head.fields.iter().filter(|field| is_concerned(field.known)) {
            if is_dropped(field) {
                continue;
            }
            let value = field.value.of(bytes);
            let rewritten = match field.known {
                KnownField::Refresh => self.refresh(value),
                KnownField::SetCookie => self.cookie(value),
                _ => self.url(value),
            };
            match rewritten {
                None => out.extend_from_slice(field.line.of(bytes)),
                Some(value) => {
                    out.extend_from_slice(field.name.of(bytes));
                    encode::field(out, "", &value);
                }
            }
        }
    }

    /// Returns the rewritten URL or reference, or `None` if no change is needed.
    fn url(&self, url: &[u8]) -> Option<Vec<u8>> {
        let (scheme, rest) = split_scheme(url);
        let Some(rest) = rest else {
            // `a/b` needs no change. `/a/b` needs the prefix.
            return url.starts_with(b"/").then(|| self.with_prefix(b"", url))?;
        };
        let end = rest.iter().position(|b| b"/?#\\".contains(b)).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if self.is_own(scheme, authority) {
            return self.path_here(path);
        }
        let is_clients = eq_authority(authority, self.authority, scheme);
        let origin = &url[..url.len() - path.len()];
        is_clients.then(|| self.with_prefix(origin, path))?
    }

    /// Returns the backend's `path` with the prefix, as a reference without a host. Returns `None`
    /// if clients could read the result as a host (`//host`, `/\host`), or if `path` has a space or
    /// control byte. The caller then leaves the URL unchanged.
    fn path_here(&self, path: &[u8]) -> Option<Vec<u8>> {
        let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
        let path = [slash, path].concat();
        let is_host = matches!(path.get(1), Some(b'/' | b'\\'));
        let is_plain = path.iter().all(|b| *b > b' ' && *b != 0x7f);
        if is_host || !is_plain {
            return None;
        }
        Some(self.with_prefix(b"", &path).unwrap_or(path))
    }

    /// Returns `origin`, the prefix and `path`, joined. Returns `None` if `path` already has the
    /// prefix, which some applications add themselves. Also returns `None` if `path` does not begin
    /// with a slash, for example `?a`.
    fn with_prefix(&self, origin: &[u8], path: &[u8]) -> Option<Vec<u8>> {
        let prefix = &self.rewrite.prefix[..];
        let is_below = path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.first().is_none_or(|b| b"/?#".contains(b)));
        let is_path = path.is_empty() || path.starts_with(b"/");
        (is_path && !is_below).then(|| [origin, prefix, path].concat())
    }

    /// Returns true if a URL names the backend. The scheme of the URL may be the backend's or the
    /// client's.
    fn is_own(&self, scheme: &[u8], authority: &[u8]) -> bool {
        let own = self.rewrite.own.get(self.index).and_then(Option::as_ref);
        own.is_some_and(|(own, by_tls)| {
            // The backend may use the client's scheme in URLs, because `X-Forwarded-Proto` names
            // it.
            let is_scheme = !scheme.eq_ignore_ascii_case(b"https:") || self.https || *by_tls;
            is_scheme && eq_authority(authority, own.as_bytes(), scheme)
        })
    }

    /// Rewrites the URL in a value like `5; url=http://...`. Returns `None` if there is no URL, or
    /// if the URL needs no change.
    fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let at = value.windows(4).position(|four| four.eq_ignore_ascii_case(b"url="))? + 4;
        let quote = value.get(at).copied().filter(|b| matches!(b, b'"' | b'\''));
        let start = at + usize::from(quote.is_some());
        let length = quote.and_then(|quote| memchr::memchr(quote, &value[start..]));
        let end = length.map_or(value.len(), |length| start + length);
        let url = self.url(&value[start..end])?;
        Some([&value[..start], &url, &value[end..]].concat())
    }

    /// Adds the prefix to a cookie's path, and removes the cookie's domain if it is the backend's
    /// host. Returns `None` if nothing changes.
    fn cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        // If the name of a cookie begins with `__Host-`, browsers require the path "/". So do not
        // add the prefix to this path.
        let is_bound = value.get(..7).is_some_and(|name| name.eq_ignore_ascii_case(b"__Host-"));
        let mut parts = value.split(|&b| b == b';');
        let mut out = parts.next().unwrap_or_default().to_vec();
        let mut is_changed = false;
        for part in parts {
            let (name, of) = match memchr::memchr(b'=', part) {
                Some(at) => (part[..at].trim_ascii(), part[at + 1..].trim_ascii()),
                None => (part.trim_ascii(), &b""[..]),
            };
            let rewritten = if name.eq_ignore_ascii_case(b"path") && !is_bound {
                self.cookie_path(of)
            } else if name.eq_ignore_ascii_case(b"domain") && self.is_own_domain(of) {
                Some(Vec::new())
            } else {
                None
            };
            is_changed |= rewritten.is_some();
            match rewritten {
                None => out.extend_from_slice(&[b";", part].concat()),
                Some(path) if path.is_empty() => {}
                Some(path) => out.extend_from_slice(&[b"; ", name, b"=", &path].concat()),
            }
        }
        is_changed.then_some(out)
    }

    /// Returns the cookie's path with the prefix. With the prefix `/app`, the path `/` becomes
    /// `/app`, which browsers use for `/app` and `/app/`. Returns `None` if the path needs no
    /// change.
    fn cookie_path(&self, path: &[u8]) -> Option<Vec<u8>> {
        if self.rewrite.prefix.is_empty() || !path.starts_with(b"/") {
            return None;
        }
        self.with_prefix(b"", if path == b"/" { b"" } else { path })
    }

    fn is_own_domain(&self, domain: &[u8]) -> bool {
        let domain = domain.strip_prefix(b".").unwrap_or(domain);
        let own = self.rewrite.own.get(self.index).and_then(|own| own.as_ref().map(|own| &own.0));
        own.is_some_and(|own| {
            let (own, clients) = (host_of(own.as_bytes()), host_of(self.authority));
            domain.eq_ignore_ascii_case(own) && !domain.eq_ignore_ascii_case(clients)
        })
    }
}

/// Splits a URL: `http://host/path` becomes `http:` and `host/path`, and `//host/path` becomes an
/// empty scheme and `host/path`. For a reference without an authority, the second value is `None`.
pub fn split_scheme(url: &[u8]) -> (&[u8], Option<&[u8]>) {
    let schemes: [&[u8]; 3] = [b"http://", b"https://", b"//"];
    let found = schemes.into_iter().find(|scheme| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    match found {
        Some(scheme) => (&url[..scheme.len() - 2], Some(&url[scheme.len()..])),
        None => (b"", None),
    }
}

/// Returns true if two authorities are equal, ignoring case, and not empty. The default port of
/// `scheme` may be missing.
pub fn eq_authority(a: &[u8], b: &[u8], scheme: &[u8]) -> bool {
    let port: &[u8] = if scheme.eq_ignore_ascii_case(b"https:") { b":443" } else { b":80" };
    let plain = |authority| <[u8]>::strip_suffix(authority, port).unwrap_or(authority);
    !a.is_empty() && plain(a).eq_ignore_ascii_case(plain(b))
}

pub fn percent_encode(path: &[u8]) -> Vec<u8> {
    let encode = |byte: u8| match byte {
        b'!'..=b'~' if !b"\"<>\\^`{|};,".contains(&byte) => vec![byte],
        _ => format!("%{byte:02X}").into_bytes(),
    };
    path.iter().copied().flat_map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(prefix: &str, own: &str) -> Rewrite {
        Rewrite { prefix: prefix.as_bytes().to_vec(), own: vec![Some((own.into(), false))] }
    }

    fn context(rewrite: &Rewrite) -> Context<'_> {
        Context { rewrite, index: 0, authority: b"www.example", https: false }
    }

    fn text(value: Option<Vec<u8>>, otherwise: &str) -> String {
        value.map_or(otherwise.into(), |value| String::from_utf8(value).unwrap())
    }

    #[test]
    fn urls_of_a_backend_that_is_asked_by_tls_become_paths_however_the_client_came() {
        let by_tls = |own: &str, https| {
            let own = vec![Some((own.to_owned(), https))];
            Rewrite { prefix: b"/shop".to_vec(), own }
        };
        let own = by_tls("backend.example", true);
        for (url, rewritten) in [
            ("https://backend.example/a", "/shop/a"),
            ("https://backend.example:443/a", "/shop/a"),
            ("HTTPS://Backend.Example", "/shop/"),
            ("//backend.example/a", "/shop/a"),
            ("https://backend.example:8443/a", "https://backend.example:8443/a"),
            ("https://other.example/a", "https://other.example/a"),
        ] {
            for https in [false, true] {
                let context = Context { https, ..context(&own) };
                assert_eq!(text(context.url(url.as_bytes()), url), rewritten, "{url}");
            }
        }
        // Without TLS, a URL with https may mean another server.
        let plain = by_tls("backend.example", false);
        assert_eq!(context(&plain).url(b"https://backend.example/a"), None);
    }

    #[test]
    fn urls_of_the_backend_become_paths_of_the_client() {
        let with_prefix = rewrite("/shop", "10.0.0.1:3000");
        let without = rewrite("", "10.0.0.1:3000");
        for (url, stripped, plain) in [
            ("http://10.0.0.1:3000/a?b#c", "/shop/a?b#c", "/a?b#c"),
            ("HTTP://10.0.0.1:3000", "/shop/", "/"),
            ("http://10.0.0.1:3000?q", "/shop/?q", "/?q"),
            ("//10.0.0.1:3000/a", "/shop/a", "/a"),
            ("/", "/shop/", "/"),
            ("/login?next=/", "/shop/login?next=/", "/login?next=/"),
            ("/shop", "/shop", "/shop"),
            ("/shop/a", "/shop/a", "/shop/a"),
            ("/shop?a", "/shop?a", "/shop?a"),
            ("/shopping", "/shop/shopping", "/shopping"),
            ("http://10.0.0.1:3000/shop/a", "/shop/a", "/shop/a"),
            ("http://www.example/a", "http://www.example/shop/a", "http://www.example/a"),
            ("http://www.example", "http://www.example/shop", "http://www.example"),
            (
                "http://www.example:80/shop/",
                "http://www.example:80/shop/",
                "http://www.example:80/shop/",
            ),
        ] {
            assert_eq!(text(context(&with_prefix).url(url.as_bytes()), url), stripped, "{url}");
            assert_eq!(text(context(&without).url(url.as_bytes()), url), plain, "{url}");
        }
    }

    #[test]
    fn links_to_other_places_stay() {
        let rewrite = rewrite("/shop", "10.0.0.1:3000");
        for url in [
            "http://10.0.0.1/a",
            "http://10.0.0.1:30000/a",
            "http://10.0.0.1:3000@evil.example/",
            "http://10.0.0.1:3000.evil.example/",
            "http://evil.example/10.0.0.1:3000",
            "http://evil.example\\@10.0.0.1:3000/",
            "https://10.0.0.1:3000/a",
            "//evil.example/",
            "http://10.0.0.1:3000//evil.example/",
            "http://10.0.0.1:3000/\\evil.example/",
            "http://10.0.0.1:3000\\evil.example/",
            "http://10.0.0.1:3000/\t/evil.example/",
            "ftp://10.0.0.1:3000/",
            "http:10.0.0.1:3000",
            "login",
            "?a",
            "../a",
            "",
        ] {
            assert_eq!(context(&rewrite).url(url.as_bytes()), None, "{url}");
        }
        let by_tls = Context { https: true, ..context(&rewrite) };
        assert_eq!(by_tls.url(b"https://10.0.0.1:3000/a").unwrap(), b"/shop/a");
    }

    #[test]
    fn refresh_fields() {
        let rewrite = rewrite("/shop", "b");
        for (value, expected) in [
            ("5; url=http://b/x", "5; url=/shop/x"),
            ("5;URL='/x'; a", "5;URL='/shop/x'; a"),
            ("0, url=\"http://b/x\"", "0, url=\"/shop/x\""),
            ("5; url=http://c/x", "5; url=http://c/x"),
            ("5", "5"),
            ("5; url=", "5; url="),
            ("5; url='", "5; url='"),
        ] {
            assert_eq!(text(context(&rewrite).refresh(value.as_bytes()), value), expected);
        }
    }

    #[test]
    fn cookies() {
        let rewrite = rewrite("/shop", "b.example:3000");
        for (value, expected) in [
            ("a=b; Path=/; HttpOnly", "a=b; Path=/shop; HttpOnly"),
            ("a=b;path=/x/", "a=b; path=/shop/x/"),
            ("a=b; Path=/shop/x", "a=b; Path=/shop/x"),
            ("a=b; Path=/shop", "a=b; Path=/shop"),
            ("a=b; Path=x", "a=b; Path=x"),
            ("a=b; Path=", "a=b; Path="),
            ("a=b", "a=b"),
            ("__Host-a=b; Secure; Path=/", "__Host-a=b; Secure; Path=/"),
            ("a=b; Domain=.B.example; Secure", "a=b; Secure"),
            ("a=b; Domain=b.example;Path=/", "a=b; Path=/shop"),
            ("a=b; Domain=example", "a=b; Domain=example"),
            ("path=/; domain=c", "path=/; domain=c"),
            (";", ";"),
            ("", ""),
        ] {
            assert_eq!(text(context(&rewrite).cookie(value.as_bytes()), value), expected);
        }
    }

    #[test]
    fn prefixes_are_percent_encoded() {
        assert_eq!(percent_encode("/a b/\u{e9};%41".as_bytes()), b"/a%20b/%C3%A9%3B%41");
    }
}

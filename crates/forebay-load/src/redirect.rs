//! Redirects: decides if a virtual user follows one, and describes the next request.

use crate::Url;

/// Request that follows a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// Value of the Host field, if the redirect leads to another name of the server.
    pub host: Option<String>,
    /// Path and query.
    pub target: String,
    /// True if the request has no body. Its method is then GET, or HEAD if the step has the method
    /// HEAD.
    pub is_get: bool,
    /// Sends Authorization fields and cookies to the other name of the server, too.
    pub has_credentials: bool,
}

impl Redirect {
    /// Returns true if the request sends the user's `Authorization` fields and cookies. A redirect
    /// to another name of the server sends them only if the scenario permits this.
    pub fn sends_credentials(&self) -> bool {
        self.host.is_none() || self.has_credentials
    }
}

/// Maximum length of a `Location` in bytes.
const LONGEST: usize = 8192;

/// Returns true if a reply with this status redirects the client to its `Location`.
pub(crate) fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Resolves a `Location` (RFC 3986, section 5.2) against `base`, the target of the request. Returns
/// the new value of `Host` and the new target. `Host` is `None` if `location` contains no host, or
/// if its host is that of `url`.
///
/// # Errors
/// Returns the reason why the redirect is not followed.
pub(crate) fn resolve(
    location: &[u8],
    base: &str,
    url: &Url,
    hosts: &[String],
) -> Result<(Option<String>, String), String> {
    let is_plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'`');
    let text = std::str::from_utf8(location).ok().filter(|text| text.bytes().all(|b| is_plain(&b)));
    let Some(text) = text.filter(|text| !text.is_empty() && text.len() <= LONGEST) else {
        return Err("its Location is no valid URL".to_owned());
    };
    let text = text.split('#').next().unwrap_or_default();
    let parts = split_authority(text);
    let has_authority = parts.is_some();
    let (host, rest) = match parts {
        Some((scheme, authority, rest)) => {
            let secure = if url.protocol().is_tls() { "https" } else { "http" };
            if scheme.is_some_and(|scheme| !scheme.eq_ignore_ascii_case(secure)) {
                return Err(format!("it leads to another origin than {}", url.host()));
            }
            (same_server(authority, secure, url, hosts)?, rest)
        }
        None => (None, text),
    };
    let path = base.split('?').next().unwrap_or_default();
    let target = match rest.as_bytes().first() {
        None if has_authority => "/".to_owned(),
        None => base.to_owned(),
        Some(b'/') => rest.to_owned(),
        Some(b'?') if has_authority => format!("/{rest}"),
        Some(b'?') => format!("{path}{rest}"),
        Some(_) => format!("{}{rest}", &path[..path.rfind('/').map_or(0, |at| at + 1)]),
    };
    let target = without_dots(&target);
    match url.with_target(&target) {
        Ok(url) => Ok((host, url.target().to_owned())),
        Err(_) => Err("its Location is no valid URL".to_owned()),
    }
}

/// Returns true if a `Location` begins with a scheme or with `//`.
pub(crate) fn is_absolute(location: &[u8]) -> bool {
    std::str::from_utf8(location).is_ok_and(|text| split_authority(text).is_some())
}

/// Splits `scheme://authority/path` or `//authority/path` into scheme, authority and the rest.
/// Returns `None` if `text` begins neither with a scheme nor with `//`.
fn split_authority(text: &str) -> Option<(Option<&str>, &str, &str)> {
    let (scheme, rest) = match text.strip_prefix("//") {
        Some(rest) => (None, rest),
        None => {
            let (scheme, rest) = text.split_once(':')?;
            let is_scheme = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
            if !scheme.bytes().all(is_scheme) {
                return None;
            }
            // A URL without an authority, such as `javascript:x`, gets an empty one. No list of
            // hosts has an empty authority, so the redirect is refused.
            (Some(scheme), rest.strip_prefix("//").unwrap_or_default())
        }
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    Some((scheme, &rest[..end], &rest[end..]))
}

/// Returns the value of `Host` for a redirect to `authority`: a name of `hosts`, or `None` for the
/// host of `url`. Each other authority is an error.
fn same_server(
    authority: &str,
    scheme: &str,
    url: &Url,
    hosts: &[String],
) -> Result<Option<String>, String> {
    let port = if scheme == "https" { ":443" } else { ":80" };
    let short = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.strip_suffix(port).map(str::to_owned).unwrap_or(name)
    };
    if short(authority) == short(url.host()) {
        return Ok(None);
    }
    if hosts.iter().any(|listed| short(listed) == short(authority)) {
        return Ok(Some(short(authority)));
    }
    Err(format!("it leads to {authority}: list this name in hosts, or set redirects = 0"))
}

/// Removes the dot segments of a target's path (RFC 3986, section 5.2.4).
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut out: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    out.pop();
                }
                if is_last {
                    out.push("");
                }
            }
            other => out.push(other),
        }
    }
    format!("/{}{query}", out.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_the_server() {
        let url = Url::parse("http://Shop.example:8080/").unwrap();
        let hosts = ["www.example:8080".to_owned(), "plain.example".to_owned()];
        let to = |location: &str| resolve(location.as_bytes(), "/a/b/c?x=1", &url, &hosts);
        let target = |location: &str| to(location).unwrap().1;
        assert_eq!(target("/d?y#z"), "/d?y");
        assert_eq!(target("d"), "/a/b/d");
        assert_eq!(target("../d/./e/.."), "/a/d/");
        assert_eq!(target("../../../../d"), "/d");
        assert_eq!(target("?q"), "/a/b/c?q");
        assert_eq!(target("?to=http://evil.example/"), "/a/b/c?to=http://evil.example/");
        assert_eq!(target("http://shop.EXAMPLE:8080"), "/");
        assert_eq!(target("//shop.example:8080?q"), "/?q");
        let host = |location: &str| to(location).unwrap().0;
        assert!(is_absolute(b"//h") && is_absolute(b"http://h/"));
        assert!(!is_absolute(b"/a//b") && !is_absolute(b"?to=http://h/"));
        assert_eq!(host("http://www.example:8080/"), Some("www.example:8080".to_owned()));
        assert_eq!(host("http://plain.example:80/"), Some("plain.example".to_owned()));
        for wrong in [
            "http://evil.example/",
            "//evil.example/",
            "http://shop.example/",
            "https://shop.example:8080/",
            "http://shop.example:8080@evil.example/",
            "javascript:alert(1)",
            "http:/d",
            "/a b",
            "/a\r\nX: y",
            "\\\\evil.example/",
            "",
            "/\u{fc}",
        ] {
            assert!(to(wrong).is_err(), "{wrong:?}: {:?}", to(wrong));
        }
        assert!(to(&format!("/{}", "x".repeat(LONGEST))).is_err());
    }
}

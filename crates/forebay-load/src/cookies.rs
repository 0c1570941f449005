//! Cookies that a server sets on a connection of the load generator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;

/// Cookies of one connection, which its streams share.
// A connection is created on one thread and used on another, so `Rc` is not possible. No thread
// ever waits for the lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedJar(Arc<Mutex<Jar>>);

#[derive(Debug, Default)]
struct Jar {
    cookies: Vec<Cookie>,
    /// Name of the server that the current request uses; empty for the host of the run.
    host: String,
}

#[derive(Debug)]
struct Cookie {
    /// Name of the server that set the cookie.
    host: String,
    name: Vec<u8>,
    value: Vec<u8>,
    path: Vec<u8>,
}

/// Limits as in browsers.
const MOST_COOKIES: usize = 180;
const LONGEST: usize = 4096;

impl SharedJar {
    /// Stores the cookie of a `Set-Cookie` field, or removes the stored cookie if the field deletes
    /// it. The cookie's domain is ignored, because a connection has one server. A field that is too long
    /// or has no name is ignored as a whole.
    pub fn store(&self, field: &[u8]) {
        let mut parts = field.split(|&b| b == b';').map(<[u8]>::trim_ascii);
        let pair = parts.next().unwrap_or_default();
        let Some(at) = memchr::memchr(b'=', pair) else { return };
        let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
        if name.is_empty() || field.len() > LONGEST {
            return;
        }
        let (mut path, mut is_over, mut has_age) = (&b"/"[..], false, false);
        for part in parts {
            let at = memchr::memchr(b'=', part).unwrap_or(part.len());
            let text = part.get(at + 1..).unwrap_or_default().trim_ascii();
            match part[..at].trim_ascii().to_ascii_lowercase().as_slice() {
                b"path" if text.starts_with(b"/") => path = text,
                b"max-age" => {
                    has_age = true;
                    is_over = text == b"0" || text.starts_with(b"-");
                }
                b"expires" if !has_age => is_over = is_past(text),
                _ => {}
            }
        }
        let Jar { cookies, host } = &mut *self.lock();
        cookies.retain(|cookie| cookie.name != name || cookie.path != path || cookie.host != *host);
        if !is_over && cookies.len() < MOST_COOKIES {
            let [name, value, path] = [name, value, path].map(<[u8]>::to_vec);
            cookies.push(Cookie { host: host.clone(), name, value, path });
        }
    }

    /// Selects the host whose cookies [`Self::store`], [`Self::value`] and [`Self::append`] use. An
    /// empty `host` is the host in the URL of the run.
    pub fn select_host(&self, host: &str) {
        let mut jar = self.lock();
        if jar.host != host {
            host.clone_into(&mut jar.host);
        }
    }

    pub fn clear(&self) {
        *self.lock() = Jar::default();
    }

    /// Returns the value of the cookie with this name that the selected host has set. Returns
    /// `None` if there is no such cookie.
    pub fn value(&self, name: &str) -> Option<Vec<u8>> {
        let jar = self.lock();
        let is_named = |cookie: &&Cookie| cookie.name == name.as_bytes() && cookie.host == jar.host;
        jar.cookies.iter().find(is_named).map(|cookie| cookie.value.clone())
    }

    /// Appends the cookies of the selected host for `target` to `out`, which may already contain
    /// cookies.
    pub fn append(&self, target: &[u8], out: &mut Vec<u8>) {
        let path = target.split(|&b| b == b'?').next().unwrap_or_default();
        let jar = self.lock();
        let is_sent = |cookie: &&Cookie| cookie.host == jar.host && cookie.is_for(path);
        for cookie in jar.cookies.iter().filter(is_sent) {
            if !out.is_empty() {
                out.extend_from_slice(b"; ");
            }
            out.extend_from_slice(&cookie.name);
            out.push(b'=');
            out.extend_from_slice(&cookie.value);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jar> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cookie {
    /// Returns true if the cookie's path matches `path` (RFC 6265, section 5.1.4).
    fn is_for(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.path.as_slice()).is_some_and(|rest| {
            rest.is_empty() || self.path.ends_with(b"/") || rest.starts_with(b"/")
        })
    }
}

/// Returns true if an `Expires` date is in the past. Servers delete cookies with a date in 1970.
/// Returns false if the date cannot be read.
fn is_past(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).replace('-', " ");
    let date = jiff::fmt::rfc2822::parse(&text);
    date.is_ok_and(|date| date.timestamp() < Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_sent_until_they_are_deleted() {
        let jar = SharedJar::default();
        let sent = |target: &str| {
            let mut out = Vec::new();
            jar.append(target.as_bytes(), &mut out);
            String::from_utf8(out).unwrap()
        };
        for field in [
            "id=1; HttpOnly; Path=/; Secure",
            "id=2; Expires=Wed, 01 Jan 2200 00:00:00 GMT",
            "basket=a=b; Path=/shop",
            "=x",
            "no pair",
            "long=",
        ] {
            jar.store(field.as_bytes());
        }
        jar.store(&[&b"huge="[..], &vec![b'x'; 5000]].concat());
        assert_eq!(sent("/"), "id=2; long=");
        assert_eq!(sent("/shop?x"), "id=2; basket=a=b; long=");
        assert_eq!(sent("/shop/cart"), "id=2; basket=a=b; long=");
        assert_eq!(sent("/shopping"), "id=2; long=");
        jar.store(b"id=; Expires=Thu, 01-Jan-1970 00:00:00 GMT");
        jar.store(b"long=x; max-age=0");
        assert_eq!(sent("/"), "");
        (0..300).for_each(|n| jar.store(format!("c{n}=1").as_bytes()));
        assert_eq!(sent("/").split("; ").count(), MOST_COOKIES - 1);
    }
}

//! Sticky sessions: a cookie keeps a client on one backend.

use forebay_conf as conf;
use forebay_net::head::Request;
use forebay_wire::cookies::{Cookie, cookies};
use forebay_wire::http1::encode;

/// Rules of the cookie that names a client's backend.
pub struct Sticky {
    cookie: String,
    /// True if the backends create the cookie. Its value then ends in `.` and the backend's name.
    routes: bool,
    /// Name of each backend in the cookie.
    names: Vec<String>,
}

impl Sticky {
    /// Creates the cookie's rules from `upstream`; `None` if sticky sessions are off.
    pub fn new(upstream: &conf::Upstream) -> Option<Self> {
        let conf::Sticky { cookie, routes } = upstream.sticky.clone()?;
        Some(Self { cookie, routes, names: upstream.to.iter().map(name).collect() })
    }

    /// Returns the backend that the request's cookie names, or `None` if there is no such backend.
    /// If the backends create the cookie, also looks for a path parameter such as `;jsessionid=`,
    /// which clients without cookies send.
    pub fn wanted(&self, request: &Request) -> Option<usize> {
        let by_cookie = values(request, &self.cookie).find_map(|value| self.backend(value));
        by_cookie.or_else(|| self.routes.then(|| self.in_path(request.target()))?)
    }

    /// Appends the cookie that directs the client to `backend`. Does nothing if the client has this
    /// cookie already, or if the backends create the cookie themselves.
    pub fn append(&self, out: &mut Vec<u8>, backend: usize, wanted: Option<usize>, https: bool) {
        if self.routes || wanted == Some(backend) {
            return;
        }
        let secure = if https { "; Secure" } else { "" };
        let name = &self.names[backend];
        let value = format!("{}={name}; Path=/; HttpOnly; SameSite=Lax{secure}", self.cookie);
        encode::field(out, "Set-Cookie", value.as_bytes());
    }

    fn backend(&self, value: &[u8]) -> Option<usize> {
        let name = if self.routes { &value[memchr::memrchr(b'.', value)? + 1..] } else { value };
        self.names.iter().position(|known| known.as_bytes() == name)
    }

    fn in_path(&self, target: &[u8]) -> Option<usize> {
        let path = target.split(|&b| b == b'?').next()?;
        path.split(|&b| b == b';' || b == b'/').find_map(|part| {
            let (name, value) = part.split_at_checked(self.cookie.len())?;
            if !name.eq_ignore_ascii_case(self.cookie.as_bytes()) {
                return None;
            }
            self.backend(value.strip_prefix(b"=")?)
        })
    }
}

/// Returns the values of the request's cookies with this name.
pub fn values<'a>(request: &'a Request, cookie: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = request
        .head
        .fields
        .iter()
        .filter(|field| field.name.of(&request.bytes).eq_ignore_ascii_case(b"cookie"));
    lines
        .flat_map(|field| cookies(field.value.of(&request.bytes)))
        .filter(move |one| one.name == cookie.as_bytes())
        .map(Cookie::unquoted)
}

/// Returns the backend's `route` setting. Without this setting, returns a hash of the address
/// (FNV-1a), which is the same in all processes. The hash does not keep the address secret, because
/// an attacker could try all addresses.
fn name(backend: &conf::Backend) -> String {
    backend.route.clone().unwrap_or_else(|| {
        let address = backend.address.to_string();
        let hash = address.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn cookies_of(to: &[&str]) -> Vec<(String, String)> {
        let list: Vec<_> = to.iter().map(|to| format!("\"http://{to}\"")).collect();
        let text = format!(
            "[[site]]\nlisten = \"127.0.0.1:1\"\n[[site.route]]\n\
             proxy = {{ to = [{}], sticky = {{ cookie = \"srv\" }} }}\n",
            list.join(", ")
        );
        let plan = conf::parse(&text, "site.toml", Path::new("/")).unwrap();
        let upstream = plan.sites[0].routes[0].action.upstream().unwrap();
        let sticky = Sticky::new(upstream).unwrap();
        let mut cookies: Vec<_> =
            to.iter().map(|to| (*to).to_owned()).zip(sticky.names.clone()).collect();
        cookies.sort();
        cookies
    }

    #[test]
    fn all_machines_name_a_backend_alike() {
        let one = cookies_of(&["10.0.0.1:3000", "app.example:80", "[::1]:3000"]);
        let other = cookies_of(&["[::1]:3000", "10.0.0.1:3000", "app.example:80"]);
        assert_eq!(one, other, "the order in the file does not matter");
        // Cookies of clients must survive an upgrade of some of the machines.
        assert_eq!(one[0], ("10.0.0.1:3000".to_owned(), "00f2323b34cbe556".to_owned()));
        let mut names: Vec<_> = one.iter().map(|(_, name)| name).collect();
        names.dedup();
        assert_eq!(names.len(), 3);
    }
}

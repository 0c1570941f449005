//! The client of a server's `admin` address.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_conf::Listen;

/// Time limit to connect.
const CONNECT: Duration = Duration::from_secs(5);

/// Time limit of a read. A reload answers only after applications have started.
const PATIENCE: Duration = Duration::from_secs(300);

/// Maximum bytes of an answer.
const LARGEST: u64 = 64 * 1024 * 1024;

pub const DEFAULT_FILE: &str = "/etc/forebay/site.toml";

/// Address of a server's administrator listener, and the token that the listener may require.
pub struct CtlServer {
    address: Listen,
    token: Option<String>,
}

/// Reason why a server's address cannot be found.
pub enum FindError {
    /// The configuration has no `admin`.
    NoAddress(String),
    /// Another mistake.
    Other(String),
}

impl From<String> for FindError {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl std::fmt::Display for FindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NoAddress(why) | Self::Other(why)) = self;
        f.write_str(why)
    }
}

pub struct CtlAnswer {
    pub status: u16,
    pub body: String,
}

trait CtlStream: Read + Write {}
impl<T: Read + Write> CtlStream for T {}

impl CtlServer {
    /// Returns the server at the first of these addresses: `admin`, the variable FOREBAY_ADMIN, the
    /// address in a configuration file. If `config` is given, ignores the variable. Fails if there
    /// is no address.
    pub fn find(
        admin: Option<&str>,
        config: Option<&Path>,
        token_file: Option<&Path>,
    ) -> Result<Self, FindError> {
        let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let token = match token_file {
            Some(file) => {
                let text = fs::read_to_string(file);
                let text = text.map_err(|e| format!("cannot read {}: {e}", file.display()))?;
                Some(text.trim().to_owned())
            }
            None => environment("FOREBAY_ADMIN_TOKEN"),
        };
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("the token has a space or a control character".to_owned().into());
        }
        let named = admin.map(str::to_owned).or_else(|| match config {
            Some(_) => None,
            None => environment("FOREBAY_ADMIN"),
        });
        if let Some(named) = named {
            let address = named.strip_prefix("http://").unwrap_or(&named).trim_end_matches('/');
            let address = Listen::parse(address).map_err(|error| error.to_string())?;
            return Ok(Self { address, token });
        }
        let default = Path::new(DEFAULT_FILE);
        let file = config.or_else(|| default.exists().then_some(default)).ok_or(
            "name the server: --admin unix:/run/forebay/admin.sock, or --config FILE with its \
             configuration"
                .to_owned(),
        )?;
        let plan = forebay_conf::load(file).map_err(|error| error.to_string())?;
        let address = plan.server.admin.ok_or_else(|| {
            FindError::NoAddress(format!(
                "{} has no `admin`; add admin = \"unix:/run/forebay/admin.sock\" to [server], and \
                 restart",
                file.display()
            ))
        })?;
        Ok(Self { address, token: token.or(plan.server.admin_token) })
    }

    /// Returns false if the server refuses changes, because its address is not a Unix socket, and
    /// there is no token.
    pub fn permits_changes(&self) -> bool {
        matches!(self.address, Listen::Unix(_)) || self.token.is_some()
    }

    /// Sets the token, if the server has none yet.
    pub fn or_token(self, token: Option<String>) -> Self {
        Self { token: self.token.or(token), ..self }
    }

    pub fn get(&self, target: &str) -> Result<CtlAnswer, String> {
        self.exchange(format!("GET {target} HTTP/1.1\r\n{}\r\n", self.fields()), "")
    }

    /// Sends a POST request. If `generation` is given, the server refuses the request unless the
    /// configuration with this number runs.
    pub fn post(
        &self,
        target: &str,
        content_type: &str,
        generation: Option<u64>,
        body: String,
    ) -> Result<CtlAnswer, String> {
        let tag = generation.map(|number| format!("If-Match: \"{number}\"\r\n"));
        let head = format!(
            "POST {target} HTTP/1.1\r\n{}Content-Type: {content_type}\r\n{}Content-Length: {}\r\n\r\n",
            self.fields(),
            tag.unwrap_or_default(),
            body.len()
        );
        self.exchange(head, &body)
    }

    fn fields(&self) -> String {
        let token = self.token.as_ref().filter(|_| matches!(self.address, Listen::Tcp(_)));
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        format!("Host: localhost\r\n{}", token.unwrap_or_default())
    }

    fn exchange(&self, head: String, body: &str) -> Result<CtlAnswer, String> {
        let bytes = self.try_exchange(&head, body).map_err(|error| {
            let next = match error.kind() {
                io::ErrorKind::PermissionDenied => "; run this as the user that starts Forebay",
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "; is Forebay running?"
                }
                _ => "",
            };
            format!("cannot reach {}: {error}{next}", self.address)
        })?;
        parse(&bytes).ok_or_else(|| format!("{} does not answer as Forebay does", self.address))
    }

    fn try_exchange(&self, head: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut stream = self.connect()?;
        let sent =
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        let mut bytes = Vec::new();
        // Read the answer even if a write has failed, because a server may answer and close the
        // connection before it has read the whole body.
        match (Read::take(&mut stream, LARGEST).read_to_end(&mut bytes), sent) {
            (Err(error), _) | (Ok(0), Err(error)) => Err(error),
            _ => Ok(bytes),
        }
    }

    fn connect(&self) -> io::Result<Box<dyn CtlStream>> {
        match &self.address {
            Listen::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream))
            }
            Listen::Tcp(address) => {
                let stream = TcpStream::connect_timeout(&reachable(*address), CONNECT)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream))
            }
            _ => Err(io::Error::other("this is not the address of `admin`")),
        }
    }
}

/// Returns an address to connect to. For a listener on all addresses, such as `0.0.0.0`, this is
/// the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Parses an answer whose body ends at the close of the connection. Returns `None` if the answer is
/// not HTTP/1.1.
fn parse(bytes: &[u8]) -> Option<CtlAnswer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(CtlAnswer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_answer_is_none() {
        let answer = parse(b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n{}").unwrap();
        assert_eq!((answer.status, &*answer.body), (404, "{}"));
        for wrong in ["", "HTTP/1.1 404", "HTTP/1.1 4\r\n\r\n", "ftp\r\n\r\n"] {
            assert!(parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}

//! Rules of `--connect-to`: connections of a URL go to another address than that of the URL.

use std::str::FromStr;

use crate::url::{SOCKET_PATH_LIMIT, split_port};
use crate::{Endpoint, Protocol, Url, UrlError};

/// Rule that changes where connections go, as `--connect-to` of curl does. The `Host` field and the
/// name in the TLS handshake stay those of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTo {
    /// Host and port of the URLs to which the rule applies; `None` for any.
    from: (Option<String>, Option<u16>),
    to: Destination,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    /// Host and port; `None` for those of the URL.
    Tcp(Option<String>, Option<u16>),
    Unix(String),
}

const HELP: &str = "write HOST:PORT, HOST1:PORT1:HOST2:PORT2 with the host and port of the URL \
                    first, or unix:/SOCKET in place of the second host and port";

impl Url {
    /// Returns the URL with the address of the first rule that applies to it. The text of the URL
    /// stays the same.
    ///
    /// # Errors
    /// Fails for HTTP/3 and a Unix socket.
    pub fn connected_to(self, rules: &[ConnectTo]) -> Result<Self, UrlError> {
        let own = self.own_endpoint();
        let Some(endpoint) = rules.iter().find_map(|rule| rule.endpoint(&own)) else {
            return Ok(self);
        };
        if self.protocol() == Protocol::Http3 && matches!(endpoint, Endpoint::Unix(_)) {
            return Err(UrlError::NoUdp);
        }
        Ok(self.with_endpoint(endpoint))
    }
}

impl ConnectTo {
    /// Returns the address for a URL with the address `url`. Returns `None` if the rule does not
    /// apply to it. A URL with a Unix socket has no host and no port, so only a rule for all URLs
    /// with a complete destination applies.
    fn endpoint(&self, url: &Endpoint) -> Option<Endpoint> {
        let (host, port) = match url {
            Endpoint::Tcp { host, port } => (Some(host.as_str()), Some(*port)),
            Endpoint::Unix(_) => (None, None),
        };
        let is_host = |name: &String| host.is_some_and(|host| host.eq_ignore_ascii_case(name));
        let applies = self.from.0.as_ref().is_none_or(is_host)
            && self.from.1.is_none_or(|other| port == Some(other));
        if !applies {
            return None;
        }
        match &self.to {
            Destination::Unix(path) => Some(Endpoint::Unix(path.into())),
            Destination::Tcp(to, to_port) => Some(Endpoint::Tcp {
                host: to.as_deref().or(host)?.to_owned(),
                port: to_port.or(port)?,
            }),
        }
    }
}

impl FromStr for ConnectTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || HELP.to_owned();
        let (from, to) = match text.strip_prefix("unix:") {
            Some(_) => ((None, None), text),
            None => match split_pair(text).ok_or_else(wrong)? {
                (first, "") => ((None, None), first),
                (first, rest) => (host_and_port(first)?, rest),
            },
        };
        let to = match to.strip_prefix("unix:") {
            Some(path) if !path.starts_with('/') || path.len() > SOCKET_PATH_LIMIT => {
                return Err(
                    "unix: needs the absolute path of a socket, of at most 107 bytes".to_owned()
                );
            }
            Some(path) => Destination::Unix(path.to_owned()),
            None => match split_pair(to).ok_or_else(wrong)? {
                (pair, "") => {
                    let (host, port) = host_and_port(pair)?;
                    Destination::Tcp(host, port)
                }
                _ => return Err(wrong()),
            },
        };
        Ok(Self { from, to })
    }
}

/// Splits `HOST:PORT` from the beginning of `text`. Returns the pair, and what follows the next
/// colon. Returns `None` if there is no port.
fn split_pair(text: &str) -> Option<(&str, &str)> {
    let host = if text.starts_with('[') { text.find(']')? } else { 0 };
    let colon = host + text[host..].find(':')?;
    match text[colon + 1..].find(':') {
        Some(end) => Some((&text[..colon + 1 + end], &text[colon + end + 2..])),
        None => Some((text, "")),
    }
}

/// Parses `HOST:PORT`. Both may be empty.
fn host_and_port(pair: &str) -> Result<(Option<String>, Option<u16>), String> {
    let (host, port) = pair.rsplit_once(':').ok_or_else(|| HELP.to_owned())?;
    // An empty host or port stands for any.
    let checked = |text: &str| {
        let (host, port) = split_port(text, 1).map_err(|error| error.to_string())?;
        Ok::<_, String>((host.to_owned(), port))
    };
    let host = if host.is_empty() { None } else { Some(checked(host)?.0) };
    let port = if port.is_empty() { None } else { Some(checked(&format!("h:{port}"))?.1) };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_where_the_first_matching_rule_says() {
        let to = |url: &str, rules: &[&str]| {
            let rules: Vec<ConnectTo> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let url = Url::parse(url).unwrap().connected_to(&rules).unwrap();
            (url.endpoint().to_string(), url.host().to_owned())
        };
        for (rules, endpoint) in [
            (&["127.0.0.1:81"][..], "127.0.0.1:81"),
            (&["[::1]:81"], "[::1]:81"),
            (&["a.test:80:b:81"], "b:81"),
            (&["A.TEST:80:[::1]:81"], "[::1]:81"),
            (&["a.test::b:"], "b:80"),
            (&["::b:81"], "b:81"),
            (&[":80::81"], "a.test:81"),
            (&["a.test:8080:b:81", "other:80:b:82", "::b:83"], "b:83"),
            (&["other:80:b:82"], "a.test:80"),
            (&["[::1]:80:b:82"], "a.test:80"),
            (&["unix:/run/x.sock"], "/run/x.sock"),
            (&["a.test:80:unix:/run/x:y.sock"], "/run/x:y.sock"),
        ] {
            assert_eq!(
                to("http://a.test/x", rules),
                (endpoint.to_owned(), "a.test".to_owned()),
                "{rules:?}"
            );
        }
        assert_eq!(to("http+unix:///s:/", &["a.test:80:b:81", ":81"]).0, "/s");
        assert_eq!(to("http+unix:///s:/", &["h:81"]), ("h:81".to_owned(), "localhost".to_owned()));
        let url = Url::parse("http://a.test/").unwrap();
        let moved = url.connected_to(&["unix:/s".parse().unwrap()]).unwrap();
        let other = moved.with_target("/y").unwrap();
        assert_eq!((other.as_str(), other.endpoint()), ("http://a.test/y", moved.endpoint()));
        let url = Url::parse("https://a.test/").unwrap().over_http3().unwrap();
        assert!(url.connected_to(&["unix:/s".parse().unwrap()]).is_err());
    }

    #[test]
    fn malformed_rules_are_refused() {
        for text in [
            "",
            "h",
            "h:x",
            "h:0",
            "a:1:b",
            "a:1:b:2:c",
            "[::1:80",
            "unix:",
            "unix:x",
            "a b:1",
            "::1:2:3:4",
        ] {
            assert!(text.parse::<ConnectTo>().is_err(), "{text:?}");
        }
    }
}

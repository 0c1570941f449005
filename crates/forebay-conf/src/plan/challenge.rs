//! A task for the browsers of new visitors.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Clients, NetworkList, Secret, When};

/// A task that the browser of a new visitor solves before the route answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Number of leading zero bits of the hash that a browser finds, from 1 to 32. Default 16.
    pub difficulty: u8,
    /// The time that a visitor without JavaScript waits; at least a second. `None`: such visitors
    /// are refused. Default 10 s.
    pub delay: Option<Duration>,
    /// The time for which a visitor is not asked again. Default 7 days.
    pub lifetime: Duration,
    /// The requests that are challenged. `None`: all.
    pub when: Option<Box<When>>,
    /// Crawlers that are not challenged if DNS verifies them.
    pub verified: Vec<Crawler>,
    /// Clients that are not challenged.
    pub exempt: Vec<Clients>,
    /// Lists of further clients that are not challenged.
    pub exempt_lists: Vec<Arc<NetworkList>>,
    /// True if paths of feeds are challenged, too.
    pub feeds: bool,
    /// The secret for signatures. `None`: one of the store or of the process.
    pub secret: Option<Secret>,
}

impl Challenge {
    /// Returns true if a client at this address is never challenged. `None`: of a Unix socket.
    pub fn exempts(&self, client: Option<IpAddr>) -> bool {
        self.exempt.iter().any(|clients| clients.contains(client))
            || client.is_some_and(|ip| self.exempt_lists.iter().any(|list| list.contains(ip)))
    }
}

/// A crawler of a search engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Crawler {
    Googlebot,
    Bingbot,
    Applebot,
    Yandexbot,
    Baiduspider,
    Seznambot,
}

impl Crawler {
    /// Returns words of which the crawler's `User-Agent` contains one, and the domains of the names
    /// that its addresses have. Names in googleusercontent.com are missing, because each machine
    /// that Google rents out has one.
    fn signs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Googlebot => (
                &["Googlebot", "GoogleOther", "Google-InspectionTool", "Storebot-Google"],
                &[".googlebot.com", ".google.com"],
            ),
            Self::Bingbot => (&["bingbot"], &[".search.msn.com"]),
            Self::Applebot => (&["Applebot"], &[".applebot.apple.com"]),
            Self::Yandexbot => (&["Yandex"], &[".yandex.ru", ".yandex.net", ".yandex.com"]),
            Self::Baiduspider => (&["Baiduspider"], &[".baidu.com", ".baidu.jp"]),
            Self::Seznambot => (&["SeznamBot"], &[".seznam.cz"]),
        }
    }

    /// Returns true if a `User-Agent` claims to be this crawler.
    pub fn is_claimed(self, agent: &[u8]) -> bool {
        let (words, _) = self.signs();
        let has = |word: &str| agent.windows(word.len()).any(|part| part == word.as_bytes());
        words.iter().any(|word| has(word))
    }

    /// Returns true if the name of a host, in lower case, is in the domain of the search engine.
    pub fn owns(self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.signs().1.iter().any(|domain| name.ends_with(domain))
    }
}

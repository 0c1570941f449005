//! The keys of `challenge`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Table, Time};
use super::when::When;

/// A task that the browser of a new visitor solves before the route answers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Challenge {
    /// The work of a browser with JavaScript, from 1 to 32: it tries 2 to the power of this number
    /// hashes on average. Default: 16, less than a second on most machines.
    pub difficulty: Option<At<u8>>,
    /// The time that a visitor without JavaScript waits before a link opens the page. Default:
    /// "10s".
    pub delay: Option<Time>,
    /// Refuses visitors without JavaScript. Default: false.
    pub require_javascript: Option<At<bool>>,
    /// The time for which a visitor is not asked again. Default: "7d".
    pub lifetime: Option<Time>,
    /// Conditions on a request, as in `when` of a route. Forebay asks only visitors whose requests
    /// meet all of them, such as { not = { header.Authorization = true } }. Default: all visitors.
    pub when: Option<At<Table<When>>>,
    /// Crawlers of search engines that are never asked: "googlebot", "bingbot", "applebot",
    /// "yandexbot", "baiduspider" or "seznambot". Forebay verifies by DNS that the client is not
    /// just named like one: its address has a name of the search engine, which has this address.
    /// Default: none.
    pub verified: Option<At<OneOrMany<Crawler>>>,
    /// Clients that are never asked: addresses and networks, and lists of them as in
    /// `trusted_proxies`, also as the JSON that search engines publish, such as
    /// `https://developers.google.com/static/search/apis/ipranges/googlebot.json`. Default: none.
    pub exempt: Option<At<OneOrMany<String>>>,
    /// Also asks for paths of feeds, which end in ".rss", ".atom", "/feed", "/rss" or "/atom".
    /// Default: false, because feed readers cannot answer.
    pub feeds: Option<At<bool>>,
    /// The secret that signs the cookies of visitors who have answered, such as
    /// "{env.CHALLENGE_SECRET}". It has at least 32 bytes. Default: derived from `store_key` if the
    /// server has a store with a key, else random, so that a restart asks all visitors again.
    pub secret: Option<At<String>>,
}

/// A crawler of a search engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Crawler {
    /// Google.
    Googlebot,
    /// Bing.
    Bingbot,
    /// Apple.
    Applebot,
    /// Yandex.
    Yandexbot,
    /// Baidu.
    Baiduspider,
    /// Seznam.
    Seznambot,
}

//! The rules of a route that let a request in: challenges, tokens, limits, and another server's word.

use std::collections::BTreeMap;

use forebay_conf_derive::Table;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;
use toml::de::DeValue;

use super::reply::RequestFields;
use super::upstream::{Ajp, Fastcgi, Scgi, Uwsgi};
use crate::key::{At, Cx, Form, Node, OneOrMany, Resolution, TextOr, Time, wrong};
use crate::plan::{Crawler, HostField, Secret, When};

/// A task that the browser of a new visitor solves before the route answers.
#[derive(Debug, Default, Table)]
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
    pub when: Option<When>,
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
    #[key(check = Secret::is_long)]
    pub secret: Option<Secret>,
}

/// A server that permits or refuses each request.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "oneOf": [
    { "required": ["to"] },
    { "required": ["fastcgi"] },
    { "required": ["scgi"] },
    { "required": ["uwsgi"] },
    { "required": ["ajp"] },
] }))]
pub struct ForwardAuth {
    /// The URL that Forebay requests before it passes a client's request on:
    /// "http://127.0.0.1:4180/oauth2/auth", or "@NAME/verify" for the group [upstream.NAME].
    pub to: Option<At<String>>,
    /// Instead of `to`: a FastCGI server, with the keys of `fastcgi` of a route.
    pub fastcgi: Option<At<Fastcgi>>,
    /// Instead of `to`: an SCGI server, with the keys of `scgi` of a route.
    pub scgi: Option<At<Scgi>>,
    /// Instead of `to`: a uwsgi server, with the keys of `uwsgi` of a route.
    pub uwsgi: Option<At<Uwsgi>>,
    /// Instead of `to`: a servlet container, with the keys of `ajp` of a route.
    pub ajp: Option<At<TextOr<Ajp>>>,
    /// The path and query that a server of `fastcgi`, `scgi`, `uwsgi` or `ajp` gets: "/" without
    /// this key.
    pub path: Option<At<String>>,
    /// Parameters that a server of `fastcgi`, `scgi` or `uwsgi` gets, with values as in
    /// `request_headers`: { X_ORIGINAL_URI = "{uri}" }. They replace parameters of the same name.
    /// Default: none.
    #[key(default)]
    pub params: BTreeMap<String, At<String>>,
    /// The fields of the server's answer that the application gets as request headers: a list of
    /// names. A table renames them: { "Remote-User" = "X-User" } sets `Remote-User` to the answer's
    /// `X-User`. A header `Remote-User` of the client itself is always removed. Default: none.
    pub copy: Option<At<Copied>>,
    /// The field of the server's answer that names the user, for REMOTE_USER, {user} and the log.
    /// Default: none.
    pub user: Option<At<String>>,
    /// The longest time between two reads of the server's answer, including the wait for its head.
    /// Default: "10s".
    pub timeout: Option<Time>,
    /// Request headers that the server gets, with values as in `request_headers` of a
    /// route. They replace the client's own headers with these names. Default: none.
    #[key(default)]
    pub request_headers: RequestFields,
    /// The Host field that the server of `to` gets: "client" for the client's own, "backend" for
    /// the host and port of the URL. Default: "backend". Other servers get the client's own.
    pub host: Option<HostField>,
}

/// The value of `copy`: the fields of the answer that become request fields.
#[derive(Clone, Debug)]
pub enum Copied {
    /// Each request field has the name of the answer's field.
    Named(OneOrMany<String>),
    /// The keys are names of request fields. The values are names of the answer's fields.
    Renamed(BTreeMap<String, At<String>>),
}

impl Form for Copied {
    fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" } },
            { "type": "object", "additionalProperties": { "type": "string" } },
        ] })
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        match node.get_ref() {
            DeValue::String(_) | DeValue::Array(_) => OneOrMany::read(node, cx).map(Self::Named),
            DeValue::Table(_) => BTreeMap::read(node, cx).map(Self::Renamed),
            _ => Err(wrong(node, "a string, a list of strings or a table of strings")),
        }
    }
}

/// A signed token (JWT, RFC 7519) that each request must have.
#[derive(Debug, Default, Table)]
#[table(extend = json!({ "oneOf": [
    { "required": ["key"] },
    { "required": ["secret"] },
    { "required": ["jwks"] },
] }))]
pub struct Jwt {
    /// A PEM file with the public key or the certificate of the issuer: RSA, EC (P-256, P-384) or
    /// Ed25519. Forebay reads it at the start and at a reload.
    pub key: Option<At<String>>,
    /// The secret that the issuer shares with Forebay, for HS256, HS384 and HS512. It has at least
    /// 32 bytes. Write it into a separate file: "{file.jwt-secret}".
    #[key(check = Secret::is_long)]
    pub secret: Option<Secret>,
    /// The public keys of the issuer (JWK Set, RFC 7517): a file, which Forebay reads at the start
    /// and at a reload. Or a URL: `https://login.example.org/keys`, or `@NAME/keys` for the group
    /// [upstream.NAME]. Forebay reads a URL at the start and after each `refresh`. A token with an
    /// unknown key (`kid`) also makes Forebay read the URL, at most every 30 seconds. If the server
    /// does not answer, the old keys stay. http:// is for servers of this machine only.
    pub jwks: Option<At<String>>,
    /// The time after which Forebay reads the URL in `jwks` again. Default: "1h".
    pub refresh: Option<Time>,
    /// The algorithms that tokens may use, such as "RS256". Default: all algorithms of the key's
    /// type.
    pub algorithms: Option<At<OneOrMany<String>>>,
    /// The issuers whose tokens are valid (claim `iss`). Default: any issuer.
    pub issuer: Option<At<OneOrMany<String>>>,
    /// The names of this service. The claim `aud` of a token must have one of them. Default: tokens
    /// for any audience are valid.
    pub audience: Option<At<OneOrMany<String>>>,
    /// The largest difference between the clock of the issuer and that of this machine. Default:
    /// "60s".
    pub leeway: Option<Time>,
    /// The request header with the token. In "Authorization", the token follows `Bearer`. Default:
    /// "Authorization", unless `cookie` is given.
    pub header: Option<At<String>>,
    /// The cookie with the token. Default: none.
    pub cookie: Option<At<String>>,
    /// Request headers that the application gets, each with the claim whose value it gets, such as
    /// "X-User" = "sub". The client's own headers with these names are always removed. A dot
    /// separates the names of nested claims: "realm_access.roles".
    #[key(default)]
    pub copy: BTreeMap<String, At<String>>,
    /// The claim that names the user, for REMOTE_USER, {user} and the log. Default: none.
    pub user: Option<At<String>>,
    /// Claims and the values that they must have, such as { role = "admin" }. If the claim is a
    /// list, one of its items must have the value. If you list several values for a claim, one of
    /// them is enough.
    #[key(default)]
    pub require: BTreeMap<String, At<OneOrMany<String>>>,
}

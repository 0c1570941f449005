//! The experiment file as parsed TOML, before validation.
//!
//! If validation can still reject a key, its value carries its position in the file ([`Spanned`]).

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub title: Option<String>,
    pub before: Option<Spanned<Vec<String>>>,
    pub after: Option<Spanned<Vec<String>>>,
    pub load: Spanned<Load>,
    #[serde(default)]
    pub check: Check,
    #[serde(default)]
    pub against: Against,
    #[serde(default)]
    pub matrix: Matrix,
    #[serde(default, rename = "service")]
    pub services: Vec<Spanned<Service>>,
    #[serde(default, rename = "configuration")]
    pub configurations: Vec<Spanned<Configuration>>,
}

/// `[load]`: the load of every configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
// More than 20 fields: one for each key of the table `[load]`.
pub struct Load {
    pub path: Option<Spanned<String>>,
    pub connections: Option<Spanned<u32>>,
    pub requests: Option<Spanned<u64>>,
    pub duration: Option<Spanned<String>>,
    pub rate: Option<Spanned<f64>>,
    pub think: Option<Spanned<String>>,
    pub rounds: Option<Spanned<u32>>,
    pub threads: Option<Spanned<u32>>,
    pub keepalive: Option<bool>,
    pub method: Option<Spanned<String>>,
    #[serde(default)]
    pub headers: BTreeMap<String, Spanned<String>>,
    pub body: Option<String>,
    pub timeout: Option<Spanned<String>>,
    pub warmup: Option<Spanned<toml::Value>>,
    pub steady: Option<Spanned<String>>,
    pub slice: Option<Spanned<String>>,
    pub http2: Option<bool>,
    pub http3: Option<bool>,
    pub streams: Option<Spanned<u32>>,
    pub insecure: Option<bool>,
    pub ca: Option<String>,
    pub tls_resume: Option<bool>,
    pub root: Option<String>,
    pub secret: Option<String>,
    #[serde(default)]
    pub params: BTreeMap<String, Spanned<String>>,
    pub isolated: Option<bool>,
    pub cpus: Option<Spanned<Vec<usize>>>,
    pub client: Option<Spanned<Client>>,
}

/// `[load.client]`: a command instead of the built-in load generator.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    pub command: Spanned<Vec<String>>,
    pub metric: Spanned<Find>,
    pub count: Option<Spanned<Find>>,
    pub timeout: Option<Spanned<String>>,
    #[serde(default)]
    pub requires: Vec<String>,
}

/// Place of a number in the output of a command. Only `metric` may have `unit` and `better`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Find {
    pub pattern: Option<String>,
    pub json: Option<String>,
    pub unit: Option<String>,
    pub better: Option<Spanned<String>>,
}

/// `[check]`: the expected reply.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub status: Option<Spanned<u16>>,
    pub body_contains: Option<String>,
    pub max_failed: Option<Spanned<toml::Value>>,
}

/// `[against]`: the preparation of an older revision for a comparison.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    pub build: Option<String>,
}

/// `[[service]]`: a process that every configuration needs in addition to its own server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    pub name: Spanned<String>,
    pub start: Spanned<Vec<String>>,
    pub listens: Option<Spanned<String>>,
    #[serde(default)]
    pub requires: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    #[serde(default)]
    pub templates: Vec<Spanned<String>>,
    pub ready_timeout: Option<Spanned<String>>,
    pub stop_timeout: Option<Spanned<String>>,
    pub cpus: Option<Spanned<Vec<usize>>>,
}

/// `[[configuration]]`: a way to serve the application.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    pub name: Spanned<String>,
    pub baseline: Option<Spanned<bool>>,
    pub start: Option<Spanned<Vec<String>>>,
    pub before: Option<Spanned<Vec<String>>>,
    pub after: Option<Spanned<Vec<String>>>,
    pub url: Spanned<String>,
    pub path: Option<Spanned<String>>,
    #[serde(default)]
    pub requires: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    #[serde(default)]
    pub templates: Vec<Spanned<String>>,
    pub ready_timeout: Option<Spanned<String>>,
    pub stop_timeout: Option<Spanned<String>>,
    pub version: Option<Spanned<Vec<String>>>,
    pub notes: Option<String>,
    pub isolated: Option<Spanned<bool>>,
    pub cpus: Option<Spanned<Vec<usize>>>,
}

/// Table `[matrix]` as parsed: the list of values of each key.
pub type Matrix = BTreeMap<Spanned<String>, Vec<Spanned<Value>>>;

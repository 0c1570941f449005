//! Tables of a scenario file, as serde reads them.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub hosts: Vec<String>,
    #[serde(default)]
    pub share_credentials: bool,
    #[serde(default)]
    pub scenario: Vec<Spanned<ScenarioTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioTable {
    pub name: Option<String>,
    pub weight: Option<Spanned<u32>>,
    pub iterations: Option<Spanned<u32>>,
    pub cookies: Option<bool>,
    pub stop_on_failure: Option<bool>,
    pub think: Option<Spanned<String>>,
    pub redirects: Option<u32>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    pub step: Vec<Spanned<StepTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTable {
    pub name: Option<String>,
    pub method: Option<String>,
    pub path: Option<Spanned<String>>,
    pub url: Option<Spanned<String>>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    pub body: Option<String>,
    pub body_file: Option<Spanned<String>>,
    pub form: Option<BTreeMap<String, String>>,
    pub multipart: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub extract: BTreeMap<String, Spanned<ExtractTable>>,
    #[serde(default)]
    pub check: CheckTable,
    pub think: Option<Spanned<String>>,
    pub repeat: Option<Spanned<u32>>,
    pub redirects: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtractTable {
    pub regex: Option<Spanned<String>>,
    pub json: Option<Spanned<String>>,
    pub field: Option<String>,
    pub cookie: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckTable {
    pub status: Option<Spanned<toml::Value>>,
    #[serde(default)]
    pub fields: BTreeMap<String, Spanned<String>>,
    pub body_contains: Option<String>,
    pub body_matches: Option<Spanned<String>>,
    #[serde(default)]
    pub json: BTreeMap<String, Spanned<toml::Value>>,
}

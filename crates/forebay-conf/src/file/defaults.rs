//! The tables `[defaults]`, `[site.defaults]` and `[set.NAME]`. They have the keys of a route, and
//! no key is required.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Route, Site};
use crate::key::{Cx, Form, Node, Resolution, properties};

/// The keys of a route that select its answer. The second value is the key of the answer's table
/// that a text sets: `files = "x"` means `files = { root = "x" }`.
pub(crate) const ANSWERS: [(&str, Option<&str>); 10] = [
    ("files", Some("root")),
    ("cgi", Some("dir")),
    ("fastcgi", None),
    ("scgi", None),
    ("uwsgi", None),
    ("ajp", None),
    ("proxy", Some("to")),
    ("app", None),
    ("respond", Some("body")),
    ("redirect", Some("to")),
];

/// Keys of a route that are tables, or `false`.
pub(crate) const SWITCHES: [&str; 7] =
    ["challenge", "log", "maintenance", "compress", "replace", "ssi", "cache"];

/// Keys of a site that `[defaults]` may have.
pub(crate) const SITE_KEYS: [&str; 12] = [
    "listen",
    "trusted_proxies",
    "forwarded",
    "proxy_protocol",
    "encoded_slashes",
    "merge_slashes",
    "underscores_in_headers",
    "max_body",
    "redirect_to_https",
    "http3",
    "tls",
    "error_pages",
];

/// Keys of a route in `[set.NAME]` or `[site.defaults]`. `merge` has already added these keys to
/// the routes, so this type only checks the form of the values, and stores nothing.
#[derive(Debug, Default)]
pub struct RouteKeys;

/// The table `[defaults]`: the keys of a route, and the keys in `SITE_KEYS`. `merge` has already
/// moved the keys in `SITE_KEYS` to the sites, so this type only checks the keys of a route.
#[derive(Debug, Default)]
pub struct Defaults;

impl Form for RouteKeys {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        check(node, cx).map(|()| Self)
    }
}

impl Form for Defaults {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        check(node, cx).map(|()| Self)
    }
}

/// Checks the keys of a route, of which none is required.
fn check(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<()> {
    cx.is_partial.set(true);
    let outcome = Route::read(node, cx);
    cx.is_partial.set(false);
    match outcome {
        Err(problem) if problem.is_not_whole() => Ok(()),
        outcome => outcome.map(drop),
    }
}

impl JsonSchema for RouteKeys {
    fn schema_name() -> Cow<'static, str> {
        "RouteKeys".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Keys of a route, none of them required.",
            "type": "object",
            "additionalProperties": false,
            "properties": properties::<Route>(generator),
        })
    }
}

impl JsonSchema for Defaults {
    fn schema_name() -> Cow<'static, str> {
        "Defaults".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut all = properties::<Site>(generator);
        all.retain(|key, _| SITE_KEYS.contains(&key.as_str()));
        all.append(&mut properties::<Route>(generator));
        json_schema!({
            "description": "Keys for every route, and keys for every site.",
            "type": "object",
            "additionalProperties": false,
            "properties": all,
        })
    }
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;
    use serde_json::Value;

    use super::*;

    #[test]
    fn switches_are_the_keys_that_are_tables_or_booleans() {
        let all = properties::<Route>(&mut SchemaSettings::draft2020_12().into_generator());
        let may_be_boolean = |schema: &Value| {
            let mut forms = schema["anyOf"].as_array().into_iter().flatten();
            forms.any(|form| form["type"] == "boolean")
        };
        let mut found: Vec<_> =
            all.iter().filter(|(_, schema)| may_be_boolean(schema)).map(|(key, _)| key).collect();
        let mut expected = SWITCHES.to_vec();
        found.sort();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

//! The tables [map.NAME], as the user types them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::shape::At;

/// A table of values, for the placeholder `{map.NAME}`.
#[derive(Clone, Debug, Default)]
pub struct ValueMap {
    /// The text that is looked up.
    pub from: Option<At<String>>,
    /// The value if no pattern fits.
    pub default: Option<At<String>>,
    /// Patterns and their values, in the order of the file.
    pub values: Vec<(String, At<String>)>,
}

impl<'de> Deserialize<'de> for ValueMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueMapVisitor;
        impl<'de> Visitor<'de> for ValueMapVisitor {
            type Value = ValueMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ValueMap, A::Error> {
                let mut table = ValueMap::default();
                while let Some(key) = map.next_key::<String>()? {
                    let value: At<String> = map.next_value()?;
                    match key.as_str() {
                        "from" => table.from = Some(value),
                        "default" => table.default = Some(value),
                        _ => table.values.push((key, value)),
                    }
                }
                // Restore the order of the file, because the first regular expression that matches
                // counts.
                table.values.sort_by_key(|(_, at)| at.span.start);
                Ok(table)
            }
        }
        deserializer.deserialize_map(ValueMapVisitor)
    }
}

impl JsonSchema for ValueMap {
    fn schema_name() -> Cow<'static, str> {
        "ValueMap".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A table of values, for the placeholder {map.NAME}. Each other key is a \
                            pattern: a text, a text with one `*`, or a regular expression after `~` \
                            (with `~*` without case). If several patterns match, a text has precedence, \
                            then the longest pattern with `*`, then the first regular expression.",
            "type": "object",
            "required": ["from"],
            "properties": {
                "from": {
                    "description": "The text that is looked up, with placeholders, such as \
                                    \"{header.Origin}\".",
                    "type": "string",
                },
                "default": {
                    "description": "The value if no pattern fits. Default: \"\".",
                    "type": "string",
                    "default": "",
                },
            },
            "additionalProperties": { "type": "string" },
        })
    }
}

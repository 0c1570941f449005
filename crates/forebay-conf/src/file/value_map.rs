//! The tables [map.NAME], as the user types them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::key::{At, Cx, Form, Node, Resolution};

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

impl Form for ValueMap {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Self>()
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<Self> {
        let mut values = BTreeMap::<String, At<String>>::read(node, cx)?;
        let (from, default) = (values.remove("from"), values.remove("default"));
        let mut values: Vec<_> = values.into_iter().collect();
        // The order of the file, because the first regular expression that matches counts.
        values.sort_by_key(|(_, at)| at.span.start);
        Ok(Self { from, default, values })
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

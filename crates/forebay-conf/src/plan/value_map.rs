//! Tables of values for placeholders.

use std::collections::HashMap;

use super::{Regex, Template};

/// A table [map.NAME]: values by a text of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueMap {
    /// The text that is looked up. It contains no map.
    pub from: Template,
    /// Values of exactly these texts.
    pub exact: HashMap<String, Template>,
    /// Values of texts with a beginning and an end. Longer patterns come first.
    pub globs: Vec<(String, String, Template)>,
    /// Values of texts that an expression matches. The first one counts.
    pub expressions: Vec<(Regex, Template)>,
    /// The value of all other texts.
    pub default: Template,
}

impl ValueMap {
    /// Returns the value for a text.
    pub fn value(&self, text: &[u8]) -> &Template {
        let exact = str::from_utf8(text).ok().and_then(|text| self.exact.get(text));
        if let Some(value) = exact {
            return value;
        }
        let fits = |start: &str, end: &str| {
            text.len() >= start.len() + end.len()
                && text.starts_with(start.as_bytes())
                && text.ends_with(end.as_bytes())
        };
        let glob = self.globs.iter().find(|(start, end, _)| fits(start, end));
        if let Some((_, _, value)) = glob {
            return value;
        }
        let found = self.expressions.iter().find(|(expression, _)| expression.is_match(text));
        found.map_or(&self.default, |(_, value)| value)
    }

    /// Returns all templates of the table.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let globs = self.globs.iter().map(|(_, _, value)| value);
        let expressions = self.expressions.iter().map(|(_, value)| value);
        [&self.from, &self.default]
            .into_iter()
            .chain(self.exact.values())
            .chain(globs)
            .chain(expressions)
    }
}

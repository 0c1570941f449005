//! Finds the tables that have a given key, from the JSON Schema.

use std::sync::LazyLock;

use schemars::Schema;
use serde_json::Value;

/// Returns the tables that have the key, as a user would write them: `[server]`, `[[site.route]]`,
/// `files = { ... }`.
pub(crate) fn places(key: &str) -> Vec<String> {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(super::root_schema);
    let schema = SCHEMA.as_value();
    let mut walk = Walk { root: schema, key, found: Vec::new() };
    walk.table(schema, "", "the top of the file");
    walk.found
}

struct Walk<'s> {
    root: &'s Value,
    key: &'s str,
    found: Vec<String>,
}

impl<'s> Walk<'s> {
    /// Searches a table and the tables in it. `path` is the path of the table in the file, and
    /// `name` is the table as a user would write it. The search skips the table `not` of `when`:
    /// its schema contains `not`, so the search would never end.
    fn table(&mut self, table: &Value, path: &str, name: &str) {
        if path.ends_with(".not") {
            return;
        }
        let Some(keys) = table["properties"].as_object() else { return };
        if keys.contains_key(self.key) {
            self.found.push(name.to_owned());
        }
        // `defaults` and `set` repeat the keys of a route.
        for (key, value) in
            keys.iter().filter(|(key, _)| !["defaults", "set"].contains(&key.as_str()))
        {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            if let Some(below) = self.refers(value) {
                self.table(below, &path, &format!("[{path}]"));
            }
            if let Some(below) = self.refers(&value["items"]) {
                self.table(below, &path, &format!("[[{path}]]"));
            }
            if let Some(below) = self.refers(&value["additionalProperties"]) {
                self.table(below, &path, &format!("[{path}.NAME]"));
            }
            for form in value["anyOf"].as_array().into_iter().flatten() {
                if let Some(below) = self.refers(form) {
                    self.table(below, &path, &format!("`{key} = {{ ... }}`"));
                }
            }
        }
    }

    /// Returns the definition that a `$ref` names. Returns `None` if the schema has no `$ref`.
    fn refers(&self, schema: &Value) -> Option<&'s Value> {
        let name = schema["$ref"].as_str()?.strip_prefix("#/$defs/")?;
        self.root["$defs"].get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tables_of_every_form() {
        assert_eq!(places("threads"), ["[app.NAME]", "[server]"]);
        assert_eq!(places("admin"), ["[server]"]);
        assert_eq!(places("head_size"), ["[server.limits]"]);
        assert_eq!(places("hosts"), ["[[site]]"]);
        assert_eq!(places("expires"), ["[[site.route]]", "[site.route.signed_url]"]);
        assert_eq!(places("queue"), ["[app.NAME]"]);
        assert_eq!(places("listing"), ["`files = { ... }`"]);
        assert_eq!(places("site"), ["the top of the file"]);
        assert!(places("nonsense").is_empty());
    }
}

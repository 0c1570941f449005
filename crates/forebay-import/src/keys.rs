//! The keys of this version of Forebay, from the schema of its configuration.

use std::sync::LazyLock;

use serde_json::Value;

/// The keys that a configuration may have.
pub struct Keys {
    tables: Value,
}

impl Keys {
    /// Returns the keys of this version. The schema is read only once.
    pub fn shared() -> &'static Self {
        static KEYS: LazyLock<Keys> = LazyLock::new(Keys::of_this_version);
        &KEYS
    }

    pub fn of_this_version() -> Self {
        let schema: Value = serde_json::from_str(&forebay_conf::schema())
            .expect("the schema is JSON that this program wrote");
        Self { tables: schema["$defs"].clone() }
    }

    /// Returns true if a table of the schema, such as `Route`, has the key `key`.
    pub fn has(&self, table: &str, key: &str) -> bool {
        self.tables[table]["properties"].get(key).is_some()
    }

    /// Returns true if routes may have the key `key` in this version.
    pub fn route(&self, key: &str) -> bool {
        self.has("Route", key)
    }

    /// Returns true if this version allows placeholders in all texts of routes, such as field
    /// values and targets with a query.
    pub fn has_placeholders(&self) -> bool {
        self.route("rewrite")
    }
}

#[cfg(test)]
impl Keys {
    /// Returns the keys of this version and, additionally, these keys of routes.
    pub fn with(names: &[&str]) -> Self {
        let mut keys = Self::of_this_version();
        for name in names {
            keys.tables["Route"]["properties"][name] = Value::Bool(true);
        }
        keys
    }

    /// Returns the keys of this version without these keys of routes.
    pub fn without(names: &[&str]) -> Self {
        let mut keys = Self::of_this_version();
        let table = keys.tables["Route"]["properties"].as_object_mut().unwrap();
        names.iter().for_each(|name| drop(table.remove(*name)));
        keys
    }
}

/// Fields that Forebay sends to HTTP servers by itself, each with the values of nginx that have the
/// same effect. An empty list means all values.
const SENT: [(&str, &[&str]); 6] = [
    ("host", &[]),
    ("x-forwarded-for", &["$proxy_add_x_forwarded_for", "$remote_addr"]),
    ("x-forwarded-proto", &["$scheme"]),
    ("x-forwarded-host", &["$host", "$http_host"]),
    ("upgrade", &[]),
    ("connection", &[]),
];

/// Fields that Forebay does not let a configuration set. It removes those that a client must not
/// send.
const OWN: [&str; 10] = [
    "content-length",
    "expect",
    "forebay-hops",
    "http2-settings",
    "keep-alive",
    "proxy",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
];

/// The treatment of a request field that nginx sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// Forebay sends the field with a value of the same effect.
    Sent,
    /// Forebay sends the field, but its value may differ.
    SentOtherwise,
    /// Forebay sets or removes the field itself.
    Own,
}

/// Returns true for a field that a configuration of Forebay cannot set or remove.
pub fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns Forebay's treatment of a request field with this value. Returns `None` if the
/// configuration may set the field.
pub fn of(name: &str, value: &str) -> Option<Fixed> {
    if is_own(name) {
        return Some(Fixed::Own);
    }
    let (_, usual) = SENT.iter().find(|(sent, _)| sent.eq_ignore_ascii_case(name))?;
    let is_usual = usual.is_empty() || usual.contains(&value);
    Some(if is_usual { Fixed::Sent } else { Fixed::SentOtherwise })
}

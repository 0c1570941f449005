//! TOML values, in the order of their addition.

use std::fmt::{self, Display, Formatter, Write};

/// A TOML value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(u64),
    Bool(bool),
    List(Vec<Value>),
    Table(Table),
}

/// Keys and values in the order of their addition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<(String, Value)>);

impl Table {
    /// Sets a key, or replaces its value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        match self.0.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    pub fn set_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the table of a key. If the key is missing or has another value, sets it to an empty
    /// table.
    pub fn table(&mut self, key: &str) -> &mut Table {
        let at = self.0.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
            self.0.push((key.to_owned(), Value::Table(Table::default())));
            self.0.len() - 1
        });
        let slot = &mut self.0[at].1;
        if !matches!(slot, Value::Table(_)) {
            *slot = Value::Table(Table::default());
        }
        match slot {
            Value::Table(table) => table,
            _ => unreachable!("the value was just replaced by a table"),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the lines `key = value`.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(key, value)| format!("{} = {value}", Key(key)))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl From<Table> for Value {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => quote(&without_outside(text), f),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(is) => write!(f, "{is}"),
            Self::List(list) => {
                f.write_char('[')?;
                for (at, item) in list.iter().enumerate() {
                    write!(f, "{}{item}", if at > 0 { ", " } else { "" })?;
                }
                f.write_char(']')
            }
            Self::Table(table) if table.is_empty() => f.write_str("{}"),
            Self::Table(table) => {
                let lines: Vec<String> = table.lines().collect();
                write!(f, "{{ {} }}", lines.join(", "))
            }
        }
    }
}

/// Escapes `{env.NAME}` and `{file.PATH}`, which Forebay replaces in every text of a configuration.
/// No translation uses these placeholders, so they are texts of the old configuration.
fn without_outside(text: &str) -> String {
    text.replace("{env.", "{{env.").replace("{file.", "{{file.")
}

/// A key, quoted unless it is bare.
pub struct Key<'a>(pub &'a str);

impl Display for Key<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let is_bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if !self.0.is_empty() && self.0.bytes().all(is_bare) {
            f.write_str(self.0)
        } else {
            quote(self.0, f)
        }
    }
}

/// Writes a text as a TOML string. Writes a text with backslashes or quotation marks as a literal
/// string if possible, so that regular expressions are easier to read.
fn quote(text: &str, f: &mut Formatter<'_>) -> fmt::Result {
    let is_literal = |c: char| c != '\'' && !c.is_control();
    if text.contains(['\\', '"']) && text.chars().all(is_literal) {
        return write!(f, "'{text}'");
    }
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            c if c.is_control() => write!(f, "\\u{:04X}", c as u32)?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_as_toml_reads_them() {
        for (text, written) in [
            ("a", "\"a\""),
            ("a\"b", "'a\"b'"),
            (r"\.php$", r"'\.php$'"),
            ("it's\\", "\"it's\\\\\""),
            ("a\nb\u{1}", "\"a\\nb\\u0001\""),
            ("{env.A} {file./etc/shadow}", "\"{{env.A} {{file./etc/shadow}\""),
        ] {
            assert_eq!(Value::from(text).to_string(), written);
        }
        let table = Table::default().with("a b", 1_u64).with("c", vec!["x", "y"]);
        assert_eq!(Value::from(table).to_string(), "{ \"a b\" = 1, c = [\"x\", \"y\"] }");
    }
}

//! Keys that a site or route has from another table.

/// A key that defaults or a set gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The key, after the table that holds it: `set_headers.X-Frame-Options`.
    pub key: String,
    /// The value as typed, with placeholders such as `{env.TOKEN}`.
    pub typed: String,
    /// The table: `[defaults]`, `[site.defaults]` or `[set.NAME]`.
    pub table: String,
    /// The line of the value in its file, from 1.
    pub line: usize,
    /// The included file that has the value; `None` for the configuration file itself.
    pub file: Option<String>,
}

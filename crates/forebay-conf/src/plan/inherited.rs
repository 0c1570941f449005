//! Keys that a site or route gets from another table.

/// A key that a site or route gets from defaults or from a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The key, with the names of the tables in the route that contain it:
    /// `set_headers.X-Frame-Options`.
    pub key: String,
    /// The value as typed, with placeholders such as `{env.TOKEN}`.
    pub typed: String,
    /// The table that the key comes from: `[defaults]`, `[site.defaults]` or `[set.NAME]`.
    pub table: String,
    /// The line of the value in its file, from 1.
    pub line: usize,
    /// The included file that contains the value; `None` for the configuration file itself.
    pub file: Option<String>,
}

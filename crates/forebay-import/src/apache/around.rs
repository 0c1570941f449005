//! The context of rewrite rules.

use super::syntax::Directive;

/// The context of rewrite rules: the path of their directory, and the scheme of the site.
#[derive(Clone, Copy)]
pub struct Around<'s> {
    /// The path of the directory. Patterns match only the rest of the path. `None` for the rules of
    /// a server.
    pub url: Option<&'s str>,
    pub scheme: Option<&'s str>,
    /// True if the directory of the rules is above the directory that the site serves. Patterns
    /// then match a path that begins outside of the site.
    pub is_above: bool,
    /// The block of the rules.
    pub block: &'s [Directive],
}

//! Conditions and settings that a block inherits from the blocks around it.

use super::matchers::Named;
use super::syntax::Directive;
use crate::matcher::Matcher;
use crate::value::Table;

/// Conditions and settings that a block inherits from the blocks around it.
#[derive(Clone, Debug, Default)]
pub struct Around<'a> {
    pub matcher: Matcher,
    /// The prefix that `handle_path` or `uri` removes.
    pub strip: Option<String>,
    pub root: Option<String>,
    /// The path whose answer clients get for missing files.
    pub fallback: Option<String>,
    /// The extensions that `try_files` looks for after the path itself, such as `.html`.
    pub extensions: Vec<String>,
    pub layers: Vec<Layer>,
    pub named: Named<'a>,
    /// True if `file_server` sends the files beside PHP scripts.
    pub has_file_server: bool,
    /// True if the index of a directory is a PHP script.
    pub is_php: bool,
    /// True if the lines apply in the order of the file, as in a `route` block.
    pub is_route: bool,
    /// True if the routes of the block are all routes of the site.
    pub is_whole: bool,
    /// True if only one line of the block answers requests or changes their path.
    pub is_alone: bool,
    /// The lines of the block.
    pub lines: &'a [Directive],
    /// The new path from `rewrite`, for all requests in the block.
    pub rewrite: Option<String>,
}

/// Keys that apply to all requests that meet a condition.
#[derive(Clone, Debug)]
pub struct Layer {
    pub matcher: Matcher,
    pub keys: Table,
    /// The note on an access rule without a translation. Routes with this layer then refuse all
    /// requests (403).
    pub closed: Option<String>,
}

//! Conditions and settings of the blocks around a block.

use super::matchers::Named;
use crate::matcher::Matcher;
use crate::value::Table;

/// Conditions and settings of the blocks around a block.
#[derive(Clone, Debug, Default)]
pub struct Around<'a> {
    pub matcher: Matcher,
    /// The prefix that `handle_path` or `uri` removes.
    pub strip: Option<String>,
    pub root: Option<String>,
    /// The path for missing files.
    pub fallback: Option<String>,
    pub layers: Vec<Layer>,
    pub named: Named<'a>,
    /// `file_server` sends the files beside PHP scripts.
    pub has_file_server: bool,
    /// The index of a directory is a PHP script.
    pub is_php: bool,
    /// The lines are run in their own order.
    pub is_route: bool,
}

/// Keys for the requests of a condition.
#[derive(Clone, Debug)]
pub struct Layer {
    pub matcher: Matcher,
    pub keys: Table,
    /// The note on a gate without a translation.
    pub closed: Option<String>,
}

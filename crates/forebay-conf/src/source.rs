//! The text that a plan was made from, kept to show findings at their keys.

use std::fmt;
use std::sync::Arc;

/// The file that a plan was made from; empty if there was none.
#[derive(Clone, Default)]
pub struct SourceFile {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
}

impl SourceFile {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self { name: name.into(), text: text.into() }
    }
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)
    }
}

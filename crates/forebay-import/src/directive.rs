//! Directives of nginx and Apache, and lines of a Caddyfile.

use std::cell::Cell;
use std::rc::Rc;

use crate::draft::SourceLine;

/// A directive, with its block if it has one.
#[derive(Clone, Debug)]
pub struct Directive {
    pub name: String,
    pub args: Vec<String>,
    pub block: Option<Vec<Directive>>,
    pub place: SourceLine,
    settled: Settled,
}

/// The mark "read" of a directive. The import reports each directive without this mark, so that no
/// line is lost. Copies of a directive share the mark.
#[derive(Clone, Debug, Default)]
struct Settled(Rc<Cell<bool>>);

impl Directive {
    /// Returns a directive that no translator has read.
    pub fn new(
        name: impl Into<String>,
        args: Vec<String>,
        block: Option<Vec<Self>>,
        place: SourceLine,
    ) -> Self {
        Self { name: name.into(), args, block, place, settled: Settled::default() }
    }

    /// Marks the directive as read: it is translated, has a note, or has no effect. At the end, the
    /// import reports each directive without this mark.
    pub fn settle(&self) {
        self.settled.0.set(true);
    }

    /// Marks the directive and all directives within its block as read.
    pub fn settle_all(&self) {
        self.settle();
        self.inside().iter().for_each(Self::settle_all);
    }

    /// Returns a directive with other words and the same block. Both directives share one mark.
    pub fn with_words(&self, name: impl Into<String>, args: Vec<String>) -> Self {
        Self { name: name.into(), args, ..self.clone() }
    }

    /// Returns a copy of the directive and of its block. The copies have their own marks, which are
    /// not set.
    pub fn with_own_mark(&self) -> Self {
        let block = self.block.as_ref();
        let block = block.map(|block| block.iter().map(Self::with_own_mark).collect());
        Self { block, settled: Settled::default(), ..self.clone() }
    }

    /// Returns the identity of the directive. Directives on one line differ, but copies of a
    /// directive are the same.
    pub fn id(&self) -> *const Cell<bool> {
        Rc::as_ptr(&self.settled.0)
    }

    pub fn is_settled(&self) -> bool {
        self.settled.0.get()
    }

    /// Returns the argument with this index, or an empty text if there is no such argument.
    pub fn arg(&self, at: usize) -> &str {
        self.args.get(at).map_or("", String::as_str)
    }

    /// Returns the directive as one line.
    pub fn line(&self) -> String {
        let mut line = self.name.clone();
        self.args.iter().for_each(|arg| {
            line.push(' ');
            line.push_str(arg);
        });
        line + if self.block.is_some() { " { ... }" } else { ";" }
    }

    /// Returns the directives of the block.
    pub fn inside(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

//! Inheritance: a block inherits the directives of the blocks around it.
//!
//! The functions that look up a directive mark it as read, because their callers translate it. A
//! caller that only asks for a directive, and leaves it to another translator, uses the functions
//! with `peek` in their names. At the end, `unread` reports each directive without this mark.

use std::collections::HashMap;
use std::rc::Rc;

use super::names;
use super::syntax::Directive;

/// A block and the blocks around it, the outermost first.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    levels: Vec<ScopeLevel<'a>>,
}

/// A block, with the positions of the directives of each name. Without these positions, the import
/// of a large server with many locations would take long.
#[derive(Clone, Debug)]
struct ScopeLevel<'a> {
    block: &'a [Directive],
    by_name: Rc<HashMap<&'a str, Vec<usize>>>,
    /// The names of directives that may restrict access, and have no translation.
    gates: Rc<[&'a str]>,
}

impl<'a> ScopeLevel<'a> {
    fn new(block: &'a [Directive]) -> Self {
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, directive) in block.iter().enumerate() {
            by_name.entry(&directive.name).or_default().push(at);
        }
        let gates = by_name.keys().copied().filter(|name| names::restricts(name)).collect();
        Self { block, by_name: Rc::new(by_name), gates }
    }

    /// Returns the directives of these names, in the order of the block.
    fn named(&self, names: &[&str]) -> Vec<&'a Directive> {
        let found = names.iter().filter_map(|name| self.by_name.get(name));
        let mut found: Vec<usize> = found.flatten().copied().collect();
        found.sort_unstable();
        found.into_iter().map(|at| &self.block[at]).collect()
    }
}

impl<'a> Scope<'a> {
    pub fn new(outermost: &'a [Directive]) -> Self {
        Self { levels: vec![ScopeLevel::new(outermost)] }
    }

    /// Returns the scope of a block inside of the innermost block.
    pub fn inside(&self, block: &'a [Directive]) -> Self {
        let mut levels = self.levels.clone();
        levels.push(ScopeLevel::new(block));
        Self { levels }
    }

    /// Returns the scope of the block of `directive`, which must be in a block of this scope.
    pub fn of(&self, directive: &'a Directive) -> Self {
        let has_it =
            |level: &ScopeLevel<'a>| level.block.iter().any(|own| std::ptr::eq(own, directive));
        let at = self.levels.iter().rposition(has_it).unwrap_or(0);
        Self { levels: self.levels[..=at].to_vec() }.inside(directive.inside())
    }

    /// Returns the directive whose block has `directive`. Returns `None` if no block of this scope
    /// has it, or only the outermost block.
    pub fn owner(&self, directive: &Directive) -> Option<&'a Directive> {
        let has_it =
            |level: &ScopeLevel<'a>| level.block.iter().any(|own| std::ptr::eq(own, directive));
        let at = self.levels.iter().rposition(has_it)?;
        let outer = self.levels.get(at.checked_sub(1)?)?;
        outer.block.iter().find(|owner| std::ptr::eq(owner.inside(), self.levels[at].block))
    }

    /// Returns the directives of the innermost block.
    pub fn own(&self) -> &'a [Directive] {
        self.levels.last().map_or(&[], |level| level.block)
    }

    /// Returns the first directive of this name in the innermost block, and marks it as read.
    /// Returns `None` if there is none.
    pub fn of_own(&self, name: &str) -> Option<&'a Directive> {
        let found = self.peek_own(name)?;
        found.settle();
        Some(found)
    }

    /// Returns the first directive of this name in the innermost block. Does not mark it as read.
    /// Returns `None` if there is none.
    pub fn peek_own(&self, name: &str) -> Option<&'a Directive> {
        let level = self.levels.last()?;
        let first = level.by_name.get(name)?.first()?;
        Some(&level.block[*first])
    }

    /// Returns the last directive of this name in the nearest block that has one. Marks the
    /// directives of this name in all blocks as read. Returns `None` if no block has one.
    pub fn nearest(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// Returns the directives of this name in the nearest block that has one. nginx inherits lists,
    /// such as `add_header`, only if a block has no directive of this name. Marks the directives of
    /// this name in all blocks as read.
    pub fn all(&self, name: &str) -> Vec<&'a Directive> {
        self.any(&[name])
    }

    /// Returns the directives of these names in the nearest block that has one. Marks the
    /// directives of these names in all blocks as read, because the directives in outer blocks have
    /// no effect here.
    pub fn any(&self, names: &[&str]) -> Vec<&'a Directive> {
        let all = self.levels.iter().flat_map(|level| level.named(names));
        all.for_each(Directive::settle);
        self.peek(names)
    }

    /// Returns the directives of these names in the nearest block that has one. Does not mark them
    /// as read.
    pub fn peek(&self, names: &[&str]) -> Vec<&'a Directive> {
        let mut levels = self.levels.iter().rev().map(|level| level.named(names));
        levels.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Returns the first argument of [`Self::nearest`]. Returns `None` if there is no directive of
    /// this name.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.nearest(name).map(|directive| directive.arg(0))
    }

    /// Returns true if the first argument of [`Self::nearest`] is `on`.
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == Some("on")
    }

    /// Returns the blocks, the outermost first.
    pub fn blocks(&self) -> Vec<&'a [Directive]> {
        self.levels.iter().map(|level| level.block).collect()
    }

    /// Returns the directives of every block, from the outermost inwards. Does not mark them as
    /// read.
    pub fn all_levels(&self) -> impl Iterator<Item = &'a Directive> + use<'a> {
        self.blocks().into_iter().flatten()
    }

    /// Returns the names of directives in all blocks that may restrict access and have no
    /// translation. A name may occur several times.
    pub fn gates(&self) -> impl Iterator<Item = &'a str> {
        self.levels.iter().flat_map(|level| level.gates.iter().copied())
    }

    /// Returns the directives of this name in all blocks, from the innermost outwards. Does not
    /// mark them as read.
    pub fn every(&self, name: &str) -> impl Iterator<Item = &'a Directive> + use<'a> {
        let levels: Vec<_> = self.levels.iter().rev().map(|level| level.named(&[name])).collect();
        levels.into_iter().flatten()
    }
}

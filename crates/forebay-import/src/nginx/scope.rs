//! Inheritance: a block inherits the directives of the blocks around it.

use super::syntax::Directive;

/// A block and the blocks around it, the outermost first.
#[derive(Clone, Debug)]
pub struct Scope<'a> {
    levels: Vec<&'a [Directive]>,
}

impl<'a> Scope<'a> {
    pub fn new(outermost: &'a [Directive]) -> Self {
        Self { levels: vec![outermost] }
    }

    /// Returns the scope of a block inside of the innermost block.
    pub fn inside(&self, block: &'a [Directive]) -> Self {
        let mut levels = self.levels.clone();
        levels.push(block);
        Self { levels }
    }

    /// Returns the scope of the block of `directive`, which one of these blocks contains.
    pub fn of(&self, directive: &'a Directive) -> Self {
        let has_it = |level: &&'a [Directive]| level.iter().any(|own| std::ptr::eq(own, directive));
        let at = self.levels.iter().rposition(has_it).unwrap_or(0);
        Self { levels: self.levels[..=at].to_vec() }.inside(directive.inside())
    }

    /// Returns the directives of the innermost block.
    pub fn own(&self) -> &'a [Directive] {
        self.levels.last().copied().unwrap_or_default()
    }

    /// Returns the first directive of this name in the innermost block.
    pub fn of_own(&self, name: &str) -> Option<&'a Directive> {
        self.own().iter().find(|directive| directive.name == name)
    }

    /// Returns the nearest directive of this name.
    pub fn nearest(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// Returns the directives of this name in the nearest block that has one. nginx inherits lists,
    /// such as `add_header`, only if a block has none.
    pub fn all(&self, name: &str) -> Vec<&'a Directive> {
        self.any(&[name])
    }

    /// Returns the directives of these names in the nearest block that has one.
    pub fn any(&self, names: &[&str]) -> Vec<&'a Directive> {
        for level in self.levels.iter().rev() {
            let is_named = |directive: &&Directive| names.contains(&directive.name.as_str());
            let found: Vec<_> = level.iter().filter(is_named).collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// Returns the first argument of the nearest directive of this name.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.nearest(name).map(|directive| directive.arg(0))
    }

    /// Returns true if the nearest directive of this name says `on`.
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == Some("on")
    }

    /// Returns the directives of every block, from the outermost inwards.
    pub fn all_levels(&self) -> impl Iterator<Item = &'a Directive> + use<'a> {
        self.levels.clone().into_iter().flatten()
    }

    /// Returns all directives of this name, of every block from the innermost outwards.
    pub fn every(&self, name: &'static str) -> impl Iterator<Item = &'a Directive> + use<'a> {
        let levels: Vec<_> = self.levels.iter().rev().copied().collect();
        levels.into_iter().flatten().filter(move |directive| directive.name == name)
    }
}

//! Finds the directives that no translator has read.
//!
//! A directive needs no note if it has a mark, or if it needs no key (see [`needless`]). If a
//! directive has an effect only beside another directive, and the other directive is missing, the
//! directive also needs no note.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use super::syntax::Directive;
use super::{Cx, names, needless};
use crate::unread::{self, Unread};

/// The next step for a location without routes.
const UNREACHED: &str = "no route answers as this location does: write routes for its paths";

/// Maximum number of names of directives in a note on a closed location.
const MOST_NAMES: usize = 12;

/// Adds notes on the directives without a translation in a block and in the blocks inside it.
/// Returns the notes as comments.
pub fn report(cx: &mut Cx<'_>, around: &[&[Directive]], block: &[Directive]) -> Vec<String> {
    let mut used = HashSet::new();
    named_locations(block, &mut used);
    let mut search = Search { closed: &cx.closed, used, found: Vec::new() };
    let around: Vec<TestedBlock<'_>> = around.iter().map(|block| TestedBlock::new(block)).collect();
    search.within(&around.iter().collect::<Vec<_>>(), block);
    let found = search.found;
    unread::add(&mut cx.draft.notes, found)
}

/// Marks the lines of a location as read if they have no effect because `return` or `rewrite`
/// answers all requests of the location first.
pub fn settle_unreached(block: &[Directive]) {
    let is_of_content = |directive: &&Directive| {
        let name = directive.name.as_str();
        let starts = ["proxy_", "fastcgi_", "scgi_", "uwsgi_", "grpc_", "auth_", "limit_"];
        starts.iter().any(|start| name.starts_with(start))
            || needless::is_of_files(name)
            || matches!(name, "alias" | "allow" | "deny" | "satisfy" | "try_files")
    };
    block.iter().filter(is_of_content).for_each(Directive::settle_all);
}

/// Marks the directives of nginx's rewrite module in `block` as read, because an earlier directive
/// has ended the processing of this module.
pub fn settle_rewrites(block: &[Directive]) {
    let is_rewrite =
        |inner: &&Directive| matches!(&*inner.name, "return" | "rewrite" | "if" | "break" | "set");
    block.iter().filter(is_rewrite).for_each(Directive::settle_all);
}

/// Adds the names of locations, such as `@php`, that the lines of a block use.
fn named_locations<'a>(block: &'a [Directive], names: &mut HashSet<&'a str>) {
    for directive in block {
        if directive.name != "location" {
            let args = directive.args.iter().map(String::as_str);
            names.extend(args.filter(|arg| arg.starts_with('@')));
        }
        named_locations(directive.inside(), names);
    }
}

/// A block, and the results of the tests of [`needless::needs`] on its own directives.
struct TestedBlock<'b> {
    own: &'b [Directive],
    tests: RefCell<HashMap<&'static str, bool>>,
}

impl<'b> TestedBlock<'b> {
    fn new(own: &'b [Directive]) -> Self {
        Self { own, tests: RefCell::default() }
    }

    fn has(&self, test: &'static str, is_of_kind: fn(&Directive) -> bool) -> bool {
        let mut tests = self.tests.borrow_mut();
        *tests.entry(test).or_insert_with(|| self.own.iter().any(is_of_kind))
    }
}

/// A search for unread directives.
struct Search<'a> {
    /// The locations that have a closed route, by [`Directive::id`].
    closed: &'a HashSet<*const Cell<bool>>,
    /// The names of the named locations that lines use.
    used: HashSet<&'a str>,
    found: Vec<Unread>,
}

impl Search<'_> {
    fn within(&mut self, around: &[&TestedBlock<'_>], block: &[Directive]) {
        let own = TestedBlock::new(block);
        let around = [around, &[&own]].concat();
        // Keep the results of tests for other directives, because many directives need the same
        // test.
        let mut known = HashMap::new();
        for directive in block {
            match directive.name.as_str() {
                // The caller starts another search for each of these blocks.
                "http" | "server" | "stream" if directive.block.is_some() => {}
                "location" => self.location(&around, directive),
                _ if directive.is_settled() => self.within(&around, directive.inside()),
                _ if !has_effect(&around, directive, &mut known) => {}
                name => {
                    let next = names::next_step(name);
                    self.found.push(Unread::new(directive, directive.line(), next));
                }
            }
        }
    }

    /// Adds the unread lines of a location to `found`. If the location is closed, or has no routes,
    /// adds one entry for all of its lines.
    fn location(&mut self, around: &[&TestedBlock<'_>], location: &Directive) {
        let name = location.args.last().map_or("", String::as_str);
        if !is_read(location) && !location.inside().is_empty() {
            if !name.starts_with('@') || self.used.contains(name) {
                self.found.push(Unread::new(location, location.line(), UNREACHED));
            }
            return;
        }
        let before = self.found.len();
        self.within(around, location.inside());
        if self.found.len() == before || !self.closed.contains(&location.id()) {
            return;
        }
        let mut list: Vec<&str> = Vec::new();
        for name in self.found[before..].iter().map(Unread::name) {
            if !list.contains(&name) {
                list.push(name);
            }
            if list.len() > MOST_NAMES {
                break;
            }
        }
        let others = if list.len() > MOST_NAMES { " and others" } else { "" };
        list.truncate(MOST_NAMES);
        let names = list.join(", ");
        let next = format!(
            "a route of this location is closed, so write these lines in it: {names}{others}"
        );
        self.found.truncate(before);
        self.found.push(Unread::new(location, location.line(), next));
    }
}

/// Returns true if a directive needs a key and has an effect in its block. `around` are the blocks
/// that contain the directive, the innermost last. `known` keeps the results of tests for the
/// innermost block.
fn has_effect(
    around: &[&TestedBlock<'_>],
    directive: &Directive,
    known: &mut HashMap<&'static str, bool>,
) -> bool {
    let name = directive.name.as_str();
    let is_default = match directive.arg(0) {
        "on" => name == "merge_slashes",
        "off" => names::restricts(name),
        _ => false,
    };
    if needless::is_needless(name)
        || needless::is_definition(directive)
        || needless::is_of_files(name)
        || is_default
    {
        return false;
    }
    let Some((test, beside)) = needless::needs(name) else { return true };
    let is_beside = || {
        around.iter().any(|block| block.has(test, beside))
            || around.last().is_some_and(|block| has(block.own, beside))
    };
    *known.entry(test).or_insert_with(is_beside)
}

/// Returns true if a block, or a block in it, has a directive of a kind.
fn has(block: &[Directive], is_of_kind: fn(&Directive) -> bool) -> bool {
    block.iter().any(|inner| is_of_kind(inner) || has(inner.inside(), is_of_kind))
}

/// Returns true if a translator has read a directive, or one in its block.
fn is_read(directive: &Directive) -> bool {
    directive.is_settled() || directive.inside().iter().any(is_read)
}

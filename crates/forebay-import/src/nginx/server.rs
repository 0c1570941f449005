//! A `server` block that is being translated.

use super::locations::Location;
use super::scope::Scope;
use super::syntax::Directive;
use super::variables::Variables;
use crate::keys::Keys;
use crate::pattern::PatternConditions;
use crate::value::Table;

/// A server that is being translated.
pub struct TranslatedServer<'a> {
    pub directive: &'a Directive,
    pub scope: Scope<'a>,
    pub locations: Vec<Location<'a>>,
    pub keys: &'a Keys,
    /// The first host name without a wildcard.
    pub name: Option<String>,
    /// True if applications may choose a location that clients cannot ask for.
    pub has_hidden: bool,
    /// The scheme of the listeners, if all listeners have the same scheme.
    pub scheme: Option<&'static str>,
    /// The path whose answer clients get for missing files.
    pub fallback: Option<String>,
    /// The key `maintenance` of the whole site.
    pub maintenance: Option<Table>,
}

impl<'a> TranslatedServer<'a> {
    /// Returns the variables of a scope in this server.
    pub fn variables<'s>(
        &'s self,
        scope: &'s Scope<'a>,
        found: Option<&'s PatternConditions>,
    ) -> Variables<'s, 'a> {
        let server_name = self.name.as_deref();
        Variables { scope, keys: self.keys, found, server_name, scheme: self.scheme }
    }

    /// Returns the `if` blocks of the server that test for one host, with their hosts. Each host
    /// becomes a site.
    pub fn host_conditions(&self) -> impl Iterator<Item = (&'a Directive, String)> {
        let all = self.scope.own().iter();
        all.filter_map(|directive| Some((directive, host_of_condition(directive)?)))
    }

    /// Returns true for an `if` block of the server that tests for one host.
    pub fn is_host_condition(&self, directive: &Directive) -> bool {
        host_of_condition(directive).is_some()
            && self.scope.own().iter().any(|own| std::ptr::eq(own, directive))
    }
}

/// Returns the host of a block such as `if ($host = NAME) { return ...; }`. Returns `None` for
/// other directives.
fn host_of_condition(directive: &Directive) -> Option<String> {
    let [variable, operator, host] = &directive.args[..] else { return None };
    let is_host = variable == "($host" && operator == "=";
    let decides = directive.inside().iter().any(|inner| inner.name == "return");
    let host = host.trim_end_matches(')').to_ascii_lowercase();
    (directive.name == "if" && is_host && decides).then_some(host)
}

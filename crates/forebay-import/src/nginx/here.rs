//! The requests of a location, and the results of the directives that nginx applies before the
//! location's content. The content is the directive that answers, such as `proxy_pass`.

use super::locations::{Location, LocationKind};
use super::server::TranslatedServer;
use super::syntax::Directive;
use super::variables::Variables;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::PatternConditions;
use crate::value::Table;

/// A location with the requests that its routes take.
pub struct Here<'l, 'a> {
    pub location: &'l Location<'a>,
    pub matcher: Matcher,
    /// The conditions of the location's expression.
    pub found: Option<PatternConditions>,
    pub region: Option<&'a str>,
}

impl<'a> Here<'_, 'a> {
    pub fn path(&self) -> Option<&'a str> {
        self.location.path()
    }

    pub fn is_exact(&self) -> bool {
        matches!(self.location.kind, LocationKind::Exact(_))
    }

    /// Returns a route without keys for the requests of `matcher`.
    pub fn route(&self, server: &TranslatedServer<'_>) -> DraftRoute {
        let directive = self.location.directive.unwrap_or(server.directive);
        let source = match self.location.directive {
            Some(directive) => directive.line(),
            None => "paths without a location".into(),
        };
        DraftRoute::new(&directive.place, source, self.matcher.clone())
    }

    /// Returns the variables of the location.
    pub fn variables<'s>(&'s self, server: &'s TranslatedServer<'a>) -> Variables<'s, 'a>
    where
        'a: 's,
    {
        server.variables(&self.location.scope, self.found.as_ref())
    }
}

/// The results of the directives that precede the content of a location.
#[derive(Default)]
pub struct Phase<'a> {
    /// True if `return` or `rewrite` answers all requests, so that none gets the content of the
    /// location.
    pub is_done: bool,
    /// The new path of the requests that reach the content.
    pub rewrite: Option<String>,
    /// The note on a condition without a translation. The content of the location is then closed.
    pub closed: Option<String>,
    /// The methods that the content answers. `otherwise` is the route for all other methods.
    pub methods: Option<Vec<String>>,
    pub otherwise: Option<DraftRoute>,
    /// The key `maintenance` of the content.
    pub maintenance: Option<Table>,
    /// The path whose answer clients get for missing files.
    pub fallback: Option<String>,
    /// True if later routes answer requests for missing files.
    pub is_left: bool,
    /// The named location that answers for missing files.
    pub named: Option<String>,
    /// The `proxy_pass` directive that answers for missing files.
    pub missing_pass: Option<&'a Directive>,
}

/// A result of `return`, `rewrite` or `if`, in the order of the routes.
pub enum EarlyStep {
    Route(DraftRoute),
    Content(OwnContent),
}

/// Requests that get the content of the location.
pub struct OwnContent {
    pub matcher: Matcher,
    pub found: Option<PatternConditions>,
    /// The new path of these requests.
    pub rewrite: Option<String>,
}
